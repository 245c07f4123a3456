"""`elasticdl run`: a program with a loop of its own in every worker, and how programs end that are none."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest

from elasticdl.audit import audit
from elasticdl.control.protocol.status import JobStatus

from .conftest import Job, Result, Start
from .test_faults import at_step, joins, kill, training

PROGRAM = Path(__file__).parent / "loops" / "train.py"
PYTHON = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}


@pytest.fixture(autouse=True)
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    shutil.copy(PROGRAM, tmp_path)


def test_a_program_trains_on_while_workers_and_the_master_are_killed(start: Start, tmp_path: Path) -> None:
    """Its plan comes from the journal then; it has its words as they are, its place, and the result of one process alone."""
    job = start(
        {**PYTHON, "GO": str(tmp_path / "go")},
        command="run",
        words=("--", "python", "train.py", "two words"),
        num_workers=2,
        threads_per_worker=3,
        audit=tmp_path / "audit",
        output=tmp_path / "weights",
    )
    at_step(job, 5, lambda status: kill(training(status)[-1]))
    joins(job, 3)
    at_step(job, 10, lambda status: kill_master(job))
    shown: list[JobStatus] = []
    at_step(job, 15, lambda status: not shown.append(status))
    assert shown[0].num_epochs == 10
    (tmp_path / "go").touch()
    result = job.wait().succeeded()
    assert [epoch.counted for epoch in audit(tmp_path / "audit").epochs] == [400] * 10
    assert result.summary["num_epochs"] == 10
    assert result.summary["steps"] == 250
    assert f"['two words'] 3 {tmp_path}" in result.err
    alone = [sys.executable, "train.py", "alone", "alone.bin"]
    subprocess.run(alone, cwd=tmp_path, check=True, timeout=60, capture_output=True)
    both = (np.frombuffer((tmp_path / name).read_bytes()) for name in ("weights", "alone.bin"))
    np.testing.assert_allclose(*both, rtol=1e-9)


def kill_master(job: Job) -> bool:
    for process in psutil.Process(job.process.pid).children():
        if "elasticdl.job.master" in process.cmdline():
            process.kill()
            return True
    return False


def failed(start: Start, tmp_path: Path, text: str, **settings: object) -> Result:
    (tmp_path / "other.py").write_text(text)
    result = start(
        PYTHON, command="run", words=("--", "python", "other.py"), **{"num_workers": 1, **settings}
    ).wait()
    assert result.code != 0
    return result


def test_a_program_that_never_calls_init_fails_the_job(start: Start, tmp_path: Path) -> None:
    """With this code it would look like a worker that its group has left out, which is started again for ever."""
    result = failed(start, tmp_path, "print('did nothing'); raise SystemExit(3)")
    assert result.code == 1
    assert (
        "worker-0-2 has ended with exit code 3 before it was connected to the job (does other.py call elasticdl.init()?): "
        "worker 0 has failed 2 times"
    ) in result.err
    assert "did nothing" in result.err


def test_a_program_that_dies_before_init_shows_its_traceback(start: Start, tmp_path: Path) -> None:
    result = failed(start, tmp_path, "import missing_module", relaunch_on_worker_failure=0)
    assert result.code == 1
    assert "has ended with exit code 1 before it was connected to the job" in result.err
    assert "ModuleNotFoundError: No module named 'missing_module'" in result.err


def test_workers_whose_programs_read_different_data_fail_the_job(start: Start, tmp_path: Path) -> None:
    text = (
        "import os, numpy as np, elasticdl\n"
        "size = 8 + ('worker-1' in os.environ['ELASTICDL_PROCESS'])\n"
        "job = elasticdl.init()\n"
        "for chunk in job.chunks(100, size, 100, parameters=np.zeros(2)):\n"
        "    job.step(np.ones(2))\n"
    )
    result = failed(start, tmp_path, text, num_workers=2)
    assert result.code == 2
    assert "batch size (" in result.err
