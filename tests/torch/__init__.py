"""Model files for PyTorch, against plain PyTorch."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from typing import Any

import pytest

from elasticdl.spec import framework
from elasticdl.spec.jobspec import JobSpec
from elasticdl.worker.contract.allreduce import Adapter
from elasticdl.worker.contract.usermodel import UserModel
from tests.modelfiles import FILE, FULL, LIFE, commit, job_of, prepared, records

__all__ = ["FILE", "FULL", "LIFE", "commit", "records"]


def need_torch() -> None:
    """Skip the test where PyTorch is not installed, which is a failure in CI."""
    if importlib.util.find_spec("torch") is None:
        why = "PyTorch is not installed; `make setup-torch` installs it"
        pytest.fail(why) if os.environ.get("CI") == "true" else pytest.skip(why)


def job(**settings: Any) -> JobSpec:
    return job_of("torch", **settings)


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


def adapter_of(user: UserModel, **settings: Any) -> Adapter:
    """Return an adapter that has tried the first records."""
    framework.find("torch").start(1)
    return prepared(user, job(**settings))
