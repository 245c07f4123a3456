"""Model files for JAX, against plain Flax."""

from __future__ import annotations

import importlib.util
import os
import tempfile
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


_CODE = tempfile.TemporaryDirectory(prefix="elasticdl-jax-")
# The same small programs are compiled again and again, here and in processes of jobs: it is half of the time of these tests.
os.environ |= {
    "JAX_COMPILATION_CACHE_DIR": _CODE.name,
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
}


def need_jax() -> None:
    """Skip the test where JAX, Flax or optax is not installed, which is a failure in CI."""
    if any(importlib.util.find_spec(name) is None for name in ("jax", "flax", "optax")):
        why = "JAX is not installed; `make setup-jax` installs it"
        pytest.fail(why) if os.environ.get("CI") == "true" else pytest.skip(why)


def job(**settings: Any) -> JobSpec:
    asked = {
        "model_def": "m.custom_model",
        "training_data": "x",
        "framework": "jax",
        "minibatch_size": FULL,
        "seed": 7,
    }
    return build(from_arguments({**asked, **settings}))


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


def records(count: int, first: int = 0) -> list[list[str]]:
    draw = np.random.default_rng(first).normal(size=(count, 4))
    return [[*(f"{value:.4f}" for value in row), str(int(abs(row).sum() * 3) % 3)] for row in draw]


def adapter_of(user: UserModel, **settings: Any) -> Adapter:
    """Return an adapter that has tried the first records."""
    found = framework.find("jax")
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
