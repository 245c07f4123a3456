"""Spare processes in whole jobs: what is relaunched or added takes the one that waits, whatever happens to that meanwhile."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from elasticdl.cluster.cluster import RELEASED
from elasticdl.cluster.local import place as places
from elasticdl.cluster.local.place import JobPlace
from elasticdl.control.protocol.status import JobEvent
from elasticdl.control.transport.client import JobClient
from elasticdl.spec.edge import build, from_arguments

from .conftest import Job, Start
from .test_faults import at_step, begin, check, joins, kill, seen, training, wait_a_moment

__all__ = ["begin"]
READY = "has imported the framework"
GROUPED = Path("/proc/self/autogroup").exists()


def spare_of(job: Job, *, after: int = 0) -> int:
    """Wait until a spare waits for its name, another one than `after`; return its pid."""
    while job.process.poll() is None:
        for child in psutil.Process(job.process.pid).children():
            if child.pid != after and "elasticdl.job.spare" in child.cmdline() and is_ready(job, child):
                return child.pid
        wait_a_moment(job)
    pytest.fail("the job ended before it had a spare process")


def is_ready(job: Job, child: psutil.Process) -> bool:
    """Tell whether the spare's log is that of this child, and says that it waits."""
    return any(READY in path.read_text() for path in job.state.glob("**/logs/spare")) and any(
        Path(file.path).name == "spare" for file in child.open_files()
    )


def oom_score(pid: int) -> int:
    return int(Path(f"/proc/{pid}/oom_score_adj").read_text())


def niceness(pid: int) -> int:
    """Return that of a process' session; 0 where Linux does not share the processors between sessions."""
    return int(Path(f"/proc/{pid}/autogroup").read_text().rpartition(" ")[2]) if GROUPED else 0


def took_spare(job: Job, name: str) -> None:
    """Wait until the job says that a worker was the spare process."""
    for item in seen(job):
        if isinstance(item, JobEvent) and item.text.startswith(f"{name} was the spare process"):
            return
    pytest.fail(f"the job ended before {name} took the spare process")


def test_workers_take_the_spare_that_there_is(begin: Start, tmp_path: Path) -> None:
    """A new process after the first kill, a spare after the second, and when a worker is added; one spare is killed between."""
    job = begin()
    at_step(job, 3, lambda status: kill(training(status)[-1]))
    joins(job, 3)
    first = spare_of(job)
    os.kill(first, signal.SIGKILL)
    second = spare_of(job, after=first)
    assert niceness(second) == (10 if GROUPED else 0)
    at_step(job, 6, lambda status: kill(training(status)[0]))
    took_spare(job, "worker-0-2")
    joins(job, 4)
    third = spare_of(job, after=second)
    place = places.find("test")
    with JobClient(place.control_address, place.token()) as client:
        client.scale(3, None)
    took_spare(job, "worker-2-1")
    joins(job, 5)
    events = [json.loads(line) for line in (place.path / "events.jsonl").read_text().splitlines()]
    assert [one["worker"] for one in events if "was the spare process" in one["text"]] == [
        "worker-0-2",
        "worker-2-1",
    ]
    for name, pid in (("worker-0-2", second), ("worker-2-1", third)):
        assert psutil.Process(pid).environ()[places.ENVIRONMENT] == str(place.path)
        assert READY in place.log_path(name).read_text()
        assert oom_score(pid) == oom_score(os.getpid())
        assert niceness(pid) == 0
    summary = check(job, tmp_path)
    assert summary["members"] == {"joined": 5, "drained": 0, "lost": 2}
    assert not (place.logs / "spare").exists()


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[JobPlace]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    made = places.create(
        build(from_arguments({"model_def": "a.b", "training_data": "x", "framework": "reference"}))
    )
    yield made
    made.close()


def waiting(place: JobPlace) -> subprocess.Popen[bytes]:
    """Start a spare process, and wait until it waits for a name."""
    process = subprocess.Popen(
        [sys.executable, "-m", "elasticdl.job.spare"],
        env={**os.environ, places.ENVIRONMENT: str(place.path)},
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stderr is not None
    assert READY in process.stderr.readline().decode()
    return process


def test_a_spare_ends_with_its_launcher_and_when_it_is_told_to(place: JobPlace) -> None:
    with waiting(place) as orphan, waiting(place) as unwanted:
        assert orphan.stdin is not None
        orphan.stdin.close()
        assert orphan.wait(60) == RELEASED
        unwanted.terminate()
        assert unwanted.wait(60) == RELEASED


def test_a_spare_goes_first_when_memory_is_short_and_is_no_worker_of_a_job_that_has_ended(
    place: JobPlace,
) -> None:
    with waiting(place) as spare:
        assert spare.stdin is not None
        assert oom_score(spare.pid) == 1000
        place.close()
        spare.stdin.write(b'{"name": "worker-0-1", "environment": {}}\n')
        spare.stdin.close()
        assert spare.stderr is not None
        assert "has ended" in spare.stderr.read().decode()
        assert spare.wait(60) == 1
