"""The launcher's spare process, with real processes: tiny scripts stand for master, workers and spares."""

from __future__ import annotations

import os
import signal
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from elasticdl.cluster.cluster import ProcessEnded, ProcessName, ProcessStarted, Role
from elasticdl.cluster.local import place as places
from elasticdl.cluster.local.localcluster import LocalCluster
from elasticdl.cluster.local.place import JobPlace
from elasticdl.cluster.local.processes import Launcher
from elasticdl.spec.edge import build, from_arguments

from .test_local import SLEEP, WAIT, _eventually, _lives, until, worker

SPARE = """
    import json, os, signal, sys
    print("spare", flush=True)
    told = json.loads(sys.stdin.readline())
    print(told["name"], sys.stdin.readline() == "", flush=True)
    signal.pause()
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[JobPlace]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    made = places.create(build(from_arguments({"model_def": "a.b", "training_data": "x"})))
    yield made
    made.close()


class Sparing:
    """A launcher, whose master's part the test plays, and what it has said."""

    def __init__(self, place: JobPlace, spare: str, master: str = SLEEP) -> None:
        argv = {
            role: [sys.executable, "-c", textwrap.dedent(text)]
            for role, text in ((Role.MASTER, master), (Role.WORKER, SLEEP), (Role.PS, SLEEP))
        }
        self.place = place
        self._others = {child.pid for child in psutil.Process().children()}
        self.notices: list[str] = []
        spare_argv = [sys.executable, "-c", textwrap.dedent(spare)] if spare else []
        self.launcher = Launcher(place, argv, self.notices.append, spare=spare_argv)
        self.launcher.start()
        self.cluster = LocalCluster(place.launcher_address, place.token())

    def spares(self) -> list[int]:
        """Return the pids of children that are not the master's, nor a worker's, nor a server's."""
        known = self._others.union(self.launcher.processes().values())
        return [child.pid for child in psutil.Process().children() if child.pid not in known]

    def keep_spare(self) -> int:
        """Have one, and return its pid once it waits for a name."""
        self.cluster.keep_spare()
        _eventually(lambda: (self.place.logs / "spare").read_text())
        (pid,) = self.spares()
        return pid

    def launch(self, name: ProcessName) -> ProcessStarted:
        self.cluster.launch(name)
        seen = until(self.cluster, lambda event: event.name == name and isinstance(event, ProcessStarted))
        started = seen[-1]
        assert isinstance(started, ProcessStarted)
        return started


@pytest.fixture
def sparing(place: JobPlace) -> Iterator[Callable[..., Sparing]]:
    made: list[Sparing] = []

    def start(spare: str = SPARE, master: str = SLEEP) -> Sparing:
        made.append(Sparing(place, spare, master))
        return made[-1]

    yield start
    for one in made:
        one.cluster.close()
        one.launcher.kill()
        assert one.launcher.wait(WAIT) is not None


def test_the_spare_is_the_next_worker_and_ends_as_that(sparing: Callable[..., Sparing]) -> None:
    job = sparing()
    pid = job.keep_spare()
    assert job.launch(worker(3, 2)) == ProcessStarted(worker(3, 2), pid, spare=True)
    log = job.place.log_path("worker-3-2")
    assert (
        _eventually(lambda: log.read_text() if "worker" in log.read_text() else "")
        == "spare\nworker-3-2 True\n"
    )
    assert not (job.place.logs / "spare").exists()
    assert job.launcher.processes()[worker(3, 2)] == pid
    job.cluster.signal(worker(3, 2), signal.SIGKILL)
    until(job.cluster, lambda event: event == ProcessEnded(worker(3, 2), None, 9))
    assert job.spares() == []


def test_a_new_master_hears_of_it_as_of_any_worker(sparing: Callable[..., Sparing]) -> None:
    job = sparing()
    pid = job.keep_spare()
    job.launch(worker(0))
    again = LocalCluster(job.place.launcher_address, job.place.token())
    assert until(again, lambda event: event.name == worker(0)) == [ProcessStarted(worker(0), pid)]
    again.close()


def test_two_launches_get_one_spare_and_one_new_process(sparing: Callable[..., Sparing]) -> None:
    job = sparing()
    job.cluster.keep_spare()  # asked for twice, it is one
    job.keep_spare()
    assert not job.launch(ProcessName(Role.PS, 0, 1)).spare
    assert [job.launch(worker(index)).spare for index in (0, 1)] == [True, False]


def test_a_job_without_spares_has_none(sparing: Callable[..., Sparing]) -> None:
    job = sparing("")
    job.cluster.keep_spare()
    assert not job.launch(worker(0)).spare
    assert job.spares() == []


def test_a_spare_that_is_killed_is_replaced(sparing: Callable[..., Sparing]) -> None:
    job = sparing()
    first = job.keep_spare()
    os.kill(first, signal.SIGKILL)
    second = _eventually(lambda: [pid for pid in job.spares() if pid != first and _lives(pid)])[0]
    assert job.launch(worker(0)).pid == second


def test_spares_that_end_by_themselves_are_given_up(sparing: Callable[..., Sparing]) -> None:
    job = sparing("raise SystemExit('no such library')")
    job.cluster.keep_spare()
    (said,) = _eventually(lambda: job.notices)
    assert "3 spare processes in a row have ended" in said
    assert f"`elasticdl logs {job.place.name} spare`" in said
    for number in (1, 2, 3):
        assert job.place.log_path(f"spare-{number}").read_text() == "no such library\n"
    job.cluster.keep_spare()
    assert not job.launch(worker(0)).spare
    assert job.spares() == []


def test_a_spare_that_hears_nothing_is_no_worker(sparing: Callable[..., Sparing]) -> None:
    job = sparing("import os, signal; os.close(0); print('deaf', flush=True); signal.pause()")
    deaf = job.keep_spare()
    started = job.launch(worker(0))
    assert not started.spare
    assert started.pid != deaf
    _eventually(lambda: not _lives(deaf))


def test_a_spare_that_is_stopped_is_no_worker(sparing: Callable[..., Sparing]) -> None:
    job = sparing()
    stopped = job.keep_spare()
    os.kill(stopped, signal.SIGSTOP)
    _eventually(lambda: psutil.Process(stopped).status() == psutil.STATUS_STOPPED)
    started = job.launch(worker(0))
    assert not started.spare
    assert started.pid != stopped
    _eventually(lambda: not _lives(stopped))


def test_no_spare_stays_when_the_job_ends(sparing: Callable[..., Sparing]) -> None:
    job = sparing(
        master="""
            import os, pathlib, time
            from elasticdl.cluster.local.place import own_place
            go = own_place().path / "go"
            while not go.exists():
                time.sleep(0.01)
        """
    )
    pid = job.keep_spare()
    (job.place.path / "go").touch()
    ended = job.launcher.wait(WAIT)
    assert ended is not None
    assert ended.code == 0
    assert not _lives(pid)
    assert not list(job.place.logs.glob("*spare*"))
