"""A rig for masters: a real launcher, a real master, and stand-ins for workers, all processes of their own."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from elasticdl.cluster.cluster import ProcessName, Role
from elasticdl.cluster.local import place as places
from elasticdl.cluster.local.place import JobPlace
from elasticdl.cluster.local.processes import Launcher
from elasticdl.control.protocol.status import EventKind, JobEvent, JobStatus
from elasticdl.control.transport.client import JobClient
from elasticdl.data.readers.writing import write_tfrecord
from elasticdl.errors import ElasticDLError, MasterAway
from elasticdl.spec.edge import build, from_arguments

SECONDS = 60.0

MODEL = """
def model(): ...
def feed(dataset, mode, metadata): ...
def loss(labels, predictions): ...
def optimizer(): ...
"""


class Job:
    """A running job and what was seen of it."""

    def __init__(self, place: JobPlace, records: int, master: list[str], go: Path) -> None:
        self.place = place
        self._go = go
        self.records = records
        self.token = place.token()
        argv = {
            Role.MASTER: [sys.executable, *master],
            Role.WORKER: [sys.executable, str(Path(__file__).with_name("stand_in.py"))],
        }
        self.launcher = Launcher(place, argv)
        self.events: list[JobEvent] = []
        self.status: JobStatus | None = None
        self._news = threading.Condition()
        self._over = False
        self.launcher.start()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        since = 0.0
        while not self._over:
            try:
                with JobClient(self.place.control_address, self.token) as client:
                    for seen in client.watch(since):
                        with self._news:
                            if isinstance(seen, JobEvent):
                                since = seen.time
                                self.events.append(seen)
                            else:
                                self.status = seen
                            self._news.notify_all()
            except MasterAway:
                time.sleep(0.02)
            except ElasticDLError as error:
                print(error)
                return

    def until(self, done: Callable[[Job], Any]) -> Any:
        """Wait until `done(self)` is true, and return what it returned."""
        end = time.monotonic() + SECONDS
        with self._news:
            while not (found := done(self)):
                left = end - time.monotonic()
                ended = self.launcher.wait(0)
                if left <= 0 or ended is not None:
                    raise AssertionError(f"ended: {ended}; status: {self.status}\n{self.logs()}")
                self._news.wait(min(left, 0.2))
            return found

    def happened(self, kind: EventKind, count: int = 1) -> JobEvent:
        """Wait for the `count`-th event of a kind."""
        return self.until(lambda job: len(found := job.of(kind)) >= count and found[count - 1])

    def of(self, kind: EventKind) -> list[JobEvent]:
        return [event for event in self.events if event.kind == kind]

    def past(self, step: int) -> None:
        self.until(lambda job: job.status and job.status.step >= step)

    def pid(self, name: str) -> int:
        return {str(process): pid for process, pid in self.launcher.processes().items()}[name]

    def kill(self, name: str, number: int = signal.SIGKILL) -> None:
        os.kill(self.pid(name), number)

    def master(self) -> str:
        return next(str(name) for name in self.launcher.processes() if name.role is Role.MASTER)

    def client(self) -> JobClient:
        return JobClient(self.place.control_address, self.token)

    def hurry(self) -> None:
        """Let chunks take no longer than they have to: the test has nothing to do any more while the job trains."""
        self._go.touch()

    def end(self) -> tuple[int, dict[str, Any]]:
        """Wait for the end; return exit code and summary."""
        ended = self.launcher.wait(4 * SECONDS)
        assert ended is not None, f"{self.status}\n{self.logs()}"
        self._over = True
        self._thread.join(5)
        summary = self.place.summary()
        assert summary is not None, self.logs()
        return ended.code, summary

    def close(self) -> None:
        self._over = True
        self.launcher.kill()
        self.launcher.wait(10)
        self.place.close()

    def logs(self) -> str:
        paths = sorted(self.place.logs.iterdir())
        return "\n".join(f"--- {path.name}\n{path.read_text(errors='replace')[-3000:]}" for path in paths)


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Job]]:
    """Start a job: settings by name; `rows` records; `step` seconds per chunk until it may hurry; `faults` by process name."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "zoo").mkdir()
    jobs: list[Job] = []

    def begin(
        rows: int = 400,
        step: float = 0.02,
        faults: dict[str, str] | None = None,
        model: str = MODEL,
        master: str = "-m elasticdl.job.master",
        **settings: Any,
    ) -> Job:
        (tmp_path / "zoo" / "m.py").write_text(model)
        data = tmp_path / "data.tfrecord"
        write_tfrecord(data, (str(number).encode() for number in range(rows)))
        monkeypatch.setenv("STAND_IN_STEP", str(step))
        monkeypatch.setenv("STAND_IN_GO", str(tmp_path / "go"))
        monkeypatch.setenv("STAND_IN_FAULTS", json.dumps(faults or {}))
        given = {
            "model_zoo": str(tmp_path / "zoo"),
            "model_def": "m.model",
            "training_data": str(data),
            "minibatch_size": 4,
            "num_minibatches_per_task": 5,
            "output": str(tmp_path / "out.keras"),
            "audit": str(tmp_path / "audit"),
        }
        job = Job(
            places.create(build(from_arguments({**given, **settings}))), rows, master.split(), tmp_path / "go"
        )
        jobs.append(job)
        return job

    yield begin
    for job in jobs:
        job.close()


@pytest.fixture
def worker() -> Callable[[int, int], ProcessName]:
    return lambda index, life: ProcessName(Role.WORKER, index, life)
