"""Programs that process records once, in jobs: each record is in one published file, whatever is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from elasticdl.control.protocol.status import EventKind, JobEvent, JobStatus
from tests.job.conftest import Job, Result, Start
from tests.job.test_evaluation import master_of
from tests.job.test_faults import seen

PROGRAM = Path(__file__).parent / "programs" / "squares.py"
RECORDS = 400
TASKS = 100


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def at_record(job: Job, record: int, act: Callable[[JobStatus], object]) -> JobStatus:
    """Act on the first status in which so many records are done, and a worker is at work."""
    for item in seen(job):
        if isinstance(item, JobStatus) and item.records >= record and at_work(item):
            act(item)
            return item
    pytest.fail("the job ended before the fault")


def at_work(status: JobStatus) -> list[int]:
    return [one.pid for one in status.workers if one.state == "processing" and one.pid is not None]


def test_each_record_is_in_one_file_although_workers_and_the_master_are_killed(
    start: Start, tmp_path: Path
) -> None:
    """Two workers in the middle of a file, one asked to leave, the master, and one more worker; the files are those of one process."""
    data = tmp_path / "numbers.csv"
    data.write_text("number,other\n" + "".join(f"{number},x\n" for number in range(RECORDS)))
    job = start(
        {"GO": str(tmp_path / "go")},
        command="run",
        work="tasks",
        num_workers=3,
        output=tmp_path / "squares",
        words=["--", sys.executable, str(PROGRAM), str(data)],
    )
    gone = set[str]()
    for item in seen(job):
        if isinstance(item, JobEvent) and item.kind in (EventKind.LOST, EventKind.DRAINED):
            gone.add(item.worker)
        if len(gone) == 3:
            break
    os.kill(master_of(job), signal.SIGKILL)
    status = at_record(job, 60, lambda status: os.kill(at_work(status)[0], signal.SIGKILL))
    assert status.done == status.records / RECORDS
    (tmp_path / "go").touch()
    result = job.wait().succeeded()
    assert gone == {"worker-0-1", "worker-1-1", "worker-2-1"}
    members = result.summary["members"]
    assert (members["drained"], members["lost"]) == (1, 3)
    assert result.summary["records_processed"] == RECORDS
    assert result.summary["tasks"] == TASKS
    assert result.summary["records_per_second"] > 0
    assert not result.summary.keys() & {"steps", "epochs", "loss"}

    alone = tmp_path / "alone"
    subprocess.run([sys.executable, PROGRAM, data, alone], check=True, timeout=60)
    files = content(tmp_path / "squares")
    assert files == content(alone)
    assert len(files) == TASKS
    rows = b"".join(files[name] for name in sorted(files)).decode().split()
    assert rows == [f"{number},{number**2}" for number in range(RECORDS)]
    assert not list(tmp_path.glob(".*.draft"))


def failed(start: Start, tmp_path: Path, text: str, **settings: object) -> Result:
    (tmp_path / "program.py").write_text("import os, sys, elasticdl\n" + text)
    words = ["--", sys.executable, "program.py"]
    result = start(command="run", words=words, **{"num_workers": 1, **settings}).wait()
    assert result.code != 0
    return result


def test_tasks_in_a_job_of_steps_are_refused(start: Start, tmp_path: Path) -> None:
    result = failed(start, tmp_path, "for task in elasticdl.shards(9): pass")
    assert result.code == 2
    assert (
        "elasticdl.shards is for a job of tasks; start this program with `elasticdl run --work=tasks"
        in result.err
    )


def test_steps_in_a_job_of_tasks_are_refused(start: Start, tmp_path: Path) -> None:
    result = failed(start, tmp_path, "elasticdl.init()", work="tasks")
    assert result.code == 2
    assert "init() is for programs that train, and --work=tasks is given" in result.err


def test_an_exception_in_a_task_fails_the_job_when_it_comes_again(start: Start, tmp_path: Path) -> None:
    """What others have written is no result then."""
    text = (
        "for task in elasticdl.shards(30, records_per_task=10):\n"
        "    with task.output() as path:\n"
        "        path.write_text(str(1 / (1 - task.number)))\n"
    )
    output = tmp_path / "output"
    result = failed(start, tmp_path, text, work="tasks", output=output)
    assert result.code == 1
    assert "ZeroDivisionError" in result.err
    assert "program.py" in result.err
    assert not output.exists()
    assert not list(tmp_path.glob(".*.draft"))
