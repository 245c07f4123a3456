"""Adapters of model files, driven by hand: what tests of every framework have alike."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

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


def job_of(name: str, **settings: Any) -> JobSpec:
    """Return a job of a framework."""
    asked = {
        "model_def": "m.custom_model",
        "training_data": "x",
        "framework": name,
        "minibatch_size": FULL,
        "seed": 7,
    }
    return build(from_arguments({**asked, **settings}))


def records(count: int, first: int = 0) -> list[list[str]]:
    """Return rows of four features and one of three classes."""
    draw = np.random.default_rng(first).normal(size=(count, 4))
    return [[*(f"{value:.4f}" for value in row), str(int(abs(row).sum() * 3) % 3)] for row in draw]


def prepared(user: UserModel, spec: JobSpec) -> Adapter:
    """Return an adapter that has tried the first records; its framework has been started, if it has to be."""
    made: Adapter = framework.find(spec.framework).adapter(user, spec, None, LIFE)
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
