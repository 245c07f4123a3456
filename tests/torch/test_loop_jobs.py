"""Jobs of programs with loops of their own in PyTorch: as elastic and as exact as those of model files."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from elasticdl.audit import audit
from elasticdl.control.protocol.status import EventKind, JobEvent
from tests.job.conftest import Start
from tests.job.test_evaluation import master_of
from tests.job.test_faults import at_step, joins, kill, seen, training

from . import need_torch

PROGRAM = Path(__file__).parents[1] / "loops" / "programs" / "flowers.py"
EPOCHS = 40
"""Of 120 flowers: 320 steps, which take their time until the faults are done."""


def test_a_loop_survives_losses_and_gives_the_bits_of_the_program_alone(
    start: Start, iris: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need_torch()
    import torch

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    program = [sys.executable, str(PROGRAM), str(iris / "train" / "iris.csv")]
    environment = {"GO": str(tmp_path / "go"), "EPOCHS": str(EPOCHS), "OMP_NUM_THREADS": "1"}
    job = start(
        command="run",
        environment=environment,
        num_workers=2,
        threads_per_worker=1,
        audit=tmp_path / "audit",
        output=tmp_path / "flowers.pt",
        witness_seconds=2,
        words=["--", *program],
    )
    at_step(job, 3, lambda status: kill(training(status)[-1]))
    joins(job, 3)
    os.kill(master_of(job), signal.SIGKILL)
    at_step(job, 8, lambda status: kill(training(status)[0], signal.SIGTERM))
    for item in seen(job):
        if isinstance(item, JobEvent) and item.kind == EventKind.DRAINED:
            break
    (tmp_path / "go").touch()
    summary = job.wait().succeeded().summary
    assert [epoch.counted for epoch in audit(tmp_path / "audit").epochs] == [120] * EPOCHS
    assert summary["members"]["lost"] == 1
    assert summary["steps"] == 8 * EPOCHS

    (events,) = (tmp_path / "state").glob("**/events.jsonl")
    told = list(map(json.loads, events.read_text().splitlines()))
    assert {one["text"] for one in told if one["kind"] == "digest"} == {summary["digest"]}

    alone = tmp_path / "alone.pt"
    subprocess.run([*program, str(alone)], env={**os.environ, **environment}, check=True, timeout=120)
    found, expected = torch.load(tmp_path / "flowers.pt"), torch.load(alone)
    assert (found["lr"], found["seen"]) == (expected["lr"], expected["seen"])
    assert all(torch.equal(value, expected["model"][name]) for name, value in found["model"].items())
