"""`elasticdl run`: a program with a loop of its own in every worker, and how programs end that are none."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from elasticdl.audit import audit

from .conftest import Result, Start

PROGRAM = Path(__file__).parent / "loops" / "train.py"
PYTHON = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}


@pytest.fixture(autouse=True)
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    shutil.copy(PROGRAM, tmp_path)


def test_a_program_has_its_words_and_its_place_and_continues_from_its_checkpoint(
    start: Start, tmp_path: Path
) -> None:
    words = ("--", "python", "train.py")
    settings = {"command": "run", "threads_per_worker": 3, "num_workers": 2}
    whole = start(PYTHON, **settings, output=tmp_path / "whole", words=(*words, "3", "two words", "*.py"))
    done = whole.wait().succeeded()
    assert f"['two words', '*.py'] 3 {tmp_path}" in done.err
    assert done.summary["num_epochs"] == done.summary["epochs"] == 3
    assert done.summary["steps"] == 75
    checkpoints = {"checkpoint_dir": tmp_path / "checkpoints"}
    start(PYTHON, **settings, **checkpoints, words=(*words, "1")).wait().succeeded()
    later = start(
        PYTHON,
        command="run",
        num_workers=1,
        checkpoint_dir_for_init=tmp_path / "checkpoints",
        audit=tmp_path / "audit",
        output=tmp_path / "later",
        words=(*words, "3"),
    )
    assert later.wait().succeeded().summary["steps"] == 75
    assert [epoch.counted for epoch in audit(tmp_path / "audit").epochs] == [0, 400, 400]
    # two gradients are added in one order or the other
    found, expected = (np.frombuffer((tmp_path / name).read_bytes()) for name in ("later", "whole"))
    np.testing.assert_allclose(found, expected, rtol=1e-12)


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
        "worker-0-2 has ended with exit code 3 before it was connected to the job (does other.py call elasticdl.init() or "
        "elasticdl.shards()?): "
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
