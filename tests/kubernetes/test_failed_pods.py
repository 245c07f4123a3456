"""What the client shows of a job that fails in its pods: the reason, and the end of the log of the process that failed, once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .conftest import Start
from .jobs import SECONDS, paced, spoiled


@pytest.mark.timeout(900)
def test_a_worker_whose_image_is_not_there(start: Start, tmp_path: Path) -> None:
    job = start(**{**paced(tmp_path), "worker_image": "elasticdl:none"})
    assert job.process.wait(SECONDS) == 1
    said = job.output.read_text()
    assert "can't be started: ErrImageNeverPull: " in said


@pytest.mark.timeout(900)
def test_a_worker_that_ends_itself(start: Start, tmp_path: Path) -> None:
    zoo = spoiled(
        tmp_path,
        "def custom_model():\n    import os\n"
        "    print('\\n'.join(f'line {number} of the log' for number in range(200)), flush=True)\n"
        "    print('the last words', flush=True)\n    os._exit(7)\n    return 1",
    )
    job = start(**{**paced(tmp_path), "model_zoo": zoo, "relaunch_on_worker_failure": 0})
    assert job.process.wait(SECONDS) == 1
    said = job.output.read_text()
    assert "exit code 7" in said
    assert said.count("the last words") == 1
    assert "line 199 of the log" in said
    assert "line 9 of the log" not in said
    summary = json.loads((tmp_path / "test-job.json").read_text())
    assert summary["log_of"] == summary["failed_worker"]
    assert summary["log"][-1] == "the last words"
    assert len(summary["log"]) == 20
