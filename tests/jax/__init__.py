"""Model files for JAX, against plain Flax."""

from __future__ import annotations

import importlib.util
import os
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from elasticdl.spec import framework
from elasticdl.spec.jobspec import JobSpec
from elasticdl.worker.contract.allreduce import Adapter
from elasticdl.worker.contract.usermodel import UserModel
from tests.modelfiles import FILE, FULL, LIFE, commit, job_of, prepared, records

__all__ = ["FILE", "FULL", "LIFE", "commit", "records"]

_CODE = tempfile.TemporaryDirectory(prefix="elasticdl-jax-")
# The same small programs are compiled again and again, here and in processes of jobs and of other tests, which import this and take what
# is there: it is half of the time of these tests.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", _CODE.name)
os.environ |= {
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
}


def need_jax() -> None:
    """Skip the test where JAX, Flax or optax is not installed, which is a failure in CI."""
    if any(importlib.util.find_spec(name) is None for name in ("jax", "flax", "optax")):
        why = "JAX is not installed; `make setup-jax` installs it"
        pytest.fail(why) if os.environ.get("CI") == "true" else pytest.skip(why)


def job(**settings: Any) -> JobSpec:
    return job_of("jax", **settings)


def feed(records: Any, mode: str, metadata: Any) -> Any:
    """Return four features and one of three classes of each record."""
    rows = np.array(records, np.float32)
    return rows[:, :4], rows[:, 4].astype(np.int32)


def loss(labels: Any, outputs: Any) -> Any:
    import optax

    return optax.softmax_cross_entropy_with_integer_labels(outputs, labels).mean()


def made_of(
    model: Callable[..., Any], optimizer: Callable[..., Any] | None = None, **others: Any
) -> UserModel:
    """Return a model file's symbols."""
    import optax

    symbols = {"loss": loss, "feed": feed, "callbacks": None, "custom_data_reader": None, **others}
    return UserModel(
        path=FILE,
        model=model,
        params={},
        optimizer=optimizer or (lambda: optax.sgd(0.1, momentum=0.9)),
        **symbols,
    )


def adapter_of(user: UserModel, **settings: Any) -> Adapter:
    """Return an adapter that has tried the first records."""
    framework.find("jax").start(1)
    return prepared(user, job(**settings))
