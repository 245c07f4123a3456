"""Model files for MXNet, against plain MXNet."""

from __future__ import annotations

import importlib.util
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


def need_mxnet() -> None:
    """Skip the test where MXNet is not installed: it has an environment of its own, whose target fails without it."""
    if importlib.util.find_spec("mxnet") is None:
        pytest.skip("MXNet has an environment of its own; `make test-mxnet` runs this there")


def job(**settings: Any) -> JobSpec:
    asked = {
        "model_def": "m.custom_model",
        "training_data": "x",
        "framework": "mxnet",
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
    import mxnet as mx

    def default_feed(records: Any, mode: str, metadata: Any) -> Any:
        rows = np.asarray(records, np.float32)
        return rows[:, :4], rows[:, 4]

    return UserModel(
        path=FILE,
        model=model,
        params={},
        loss=loss or mx.gluon.loss.SoftmaxCrossEntropyLoss(),
        optimizer=optimizer or (lambda: ("sgd", {"learning_rate": 0.1, "momentum": 0.9})),
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
    found = framework.find("mxnet")
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
