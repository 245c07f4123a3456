"""Model files for MXNet, against plain MXNet."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from elasticdl.spec.jobspec import JobSpec
from elasticdl.worker.contract.allreduce import Adapter
from elasticdl.worker.contract.usermodel import UserModel
from tests.modelfiles import FILE, FULL, LIFE, commit, job_of, prepared, records

__all__ = ["FILE", "FULL", "LIFE", "commit", "records"]


def need_mxnet() -> None:
    """Skip the test where MXNet is not installed: it has an environment of its own, whose target fails without it."""
    if importlib.util.find_spec("mxnet") is None:
        pytest.skip("MXNet has an environment of its own; `make test-mxnet` runs this there")


def job(**settings: Any) -> JobSpec:
    return job_of("mxnet", **settings)


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


def adapter_of(user: UserModel, **settings: Any) -> Adapter:
    """Return an adapter that has tried the first records."""
    return prepared(user, job(**settings))
