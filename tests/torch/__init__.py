"""Model files for PyTorch, against plain PyTorch."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from elasticdl.cluster.cluster import process_name
from elasticdl.spec import framework
from elasticdl.spec.edge import build, from_arguments
from elasticdl.spec.jobspec import JobSpec
from elasticdl.worker.contract.allreduce import Adapter
from elasticdl.worker.contract.usermodel import UserModel

FULL = 8
"""Examples of a full chunk."""
LIFE = process_name("worker-0-1")
FILE = Path("m.py")


def need_torch() -> None:
    """Skip the test where PyTorch is not installed, which is a failure in CI."""
    if importlib.util.find_spec("torch") is None:
        why = "PyTorch is not installed; `make setup-torch` installs it"
        pytest.fail(why) if os.environ.get("CI") == "true" else pytest.skip(why)


def job(**settings: Any) -> JobSpec:
    asked = {
        "model_def": "m.custom_model",
        "training_data": "x",
        "framework": "torch",
        "minibatch_size": FULL,
        "seed": 7,
    }
    return build(from_arguments({**asked, **settings}))


def made_of(
    model: Callable[..., Any],
    optimizer: Callable[..., Any] | None = None,
    loss: Callable[..., Any] | None = None,
    feed: Callable[..., Any] | None = None,
    **others: Any,
) -> UserModel:
    """Return a model file's symbols: four features and one of three classes, unless told otherwise."""
    import torch

    def default_feed(records: Any, mode: str, metadata: Any) -> Any:
        rows = torch.tensor([[float(value) for value in record] for record in records])
        return rows[:, :4], rows[:, 4].long()

    return UserModel(
        path=FILE,
        model=model,
        params={},
        loss=loss or (lambda labels, outputs: torch.nn.functional.cross_entropy(outputs, labels)),
        optimizer=optimizer or (lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9)),
        feed=feed or default_feed,
        callbacks=None,
        custom_data_reader=None,
        **others,
    )


def records(count: int, first: int = 0) -> list[list[str]]:
    draw = np.random.default_rng(first).normal(size=(count, 4))
    return [[*(f"{value:.4f}" for value in row), str(int(abs(row).sum() * 3) % 3)] for row in draw]


def adapter_of(user: UserModel, **settings: Any) -> Adapter:
    """Return an adapter that has tried the first records."""
    found = framework.find("torch")
    found.start(1)
    made: Adapter = found.adapter(user, job(**settings), None, LIFE)
    made.prepare(records(FULL))
    return made


def commit(adapters: Sequence[Adapter], chunks: Sequence[list[list[str]]], step: int) -> npt.NDArray[Any]:
    """Let adapters compute chunks in turn, add up, and commit in all of them; return the sum."""
    examples = 0.0
    for slot, raw in enumerate(chunks):
        made = adapters[slot % len(adapters)]
        examples += made.compute(made.convert(raw), step, slot).examples
    result = sum(np.array(one.accumulator()) for one in adapters)
    for one in adapters:
        one.apply(result.copy(), examples)
    assert len({one.digest() for one in adapters}) == 1
    return result
