"""Jobs of programs with loops of their own: as elastic and as exact as those of model files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from elasticdl.audit import audit
from tests.jax import need_jax
from tests.job.conftest import Start
from tests.job.losing import lose_one_of_each
from tests.torch import need_torch

PROGRAMS = Path(__file__).parent / "programs"
NEEDS = {"flowers": need_torch, "flowers_jax": need_jax}
EPOCHS = 6
"""Of 120 flowers: 48 steps, which take their time until the faults are done."""


@pytest.mark.parametrize("name", ["regression", "flowers", "flowers_jax", "flowers_tf"])
def test_a_loop_survives_every_loss_and_gives_the_bits_of_the_program_alone(
    name: str, start: Start, iris: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In NumPy; in PyTorch with all that has a state: a schedule, buffers, dropout, processes that read; in JAX and
    TensorFlow with an optimizer, a schedule and dropout."""
    NEEDS.get(name, lambda: None)()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    survive(name, start, iris / "train" / "iris.csv", tmp_path)


def survive(name: str, start: Start, data: Path, tmp_path: Path) -> None:
    """Run a program over 120 flowers as a job with faults, and alone; `tmp_path / "state"` is where jobs keep theirs."""
    workers = 3 if name == "regression" else 2
    program = [sys.executable, str(PROGRAMS / f"{name}.py"), str(data)]
    go = {"GO": str(tmp_path / "go"), "PACE": "1.0"}
    environment = {**go, "EPOCHS": str(EPOCHS), "OMP_NUM_THREADS": "1"}
    job = start(
        command="run",
        environment=environment,
        num_workers=workers,
        threads_per_worker=1,
        audit=tmp_path / "audit",
        output=tmp_path / "weights.npz",
        witness_seconds=2,
        words=["--", *program],
    )
    lose_one_of_each(job, workers)
    (tmp_path / "go").touch()
    summary = job.wait().succeeded().summary
    assert [epoch.counted for epoch in audit(tmp_path / "audit").epochs] == [120] * EPOCHS
    assert (summary["members"]["lost"], summary["members"]["drained"]) == (1, 1)
    assert summary["steps"] == 8 * EPOCHS

    (events,) = (tmp_path / "state").glob("**/events.jsonl")
    told = list(map(json.loads, events.read_text().splitlines()))
    assert {one["text"] for one in told if one["kind"] == "digest"} == {summary["digest"]}
    ends = [one["text"] for one in told if one["text"].startswith("trained to")]
    assert ends == [f"trained to step {8 * EPOCHS}"]

    alone = tmp_path / "alone.npz"
    subprocess.run([*program, str(alone)], env={**os.environ, **environment}, check=True, timeout=600)
    with np.load(tmp_path / "weights.npz") as found, np.load(alone) as expected:
        assert {name: found[name].tobytes() for name in found} == {
            name: expected[name].tobytes() for name in expected
        }
