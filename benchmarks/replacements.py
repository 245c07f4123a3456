"""How soon a killed worker's replacement trains, and what it costs: from the spare process, and from a new one.

Run it alone: `python -m benchmarks replacements`. Each job has two workers, of which one is killed again and again. The time is that from
SIGKILL until the job says that the replacement has joined: it commits from that step on. The processor time is that of the replacement
until then; of a spare it is what comes after its name, because it has waited for that.
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.recovery import PATIENCE, job, tiny_data, wait_for_another
from benchmarks.servers import ROOT, Row, busy
from benchmarks.servers import table as table
from elasticdl.cluster.local.place import JobPlace
from elasticdl.control.protocol.status import EventKind, JobEvent, JobStatus
from elasticdl.control.transport.client import JobClient
from elasticdl.errors import MasterAway


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured.

    Attributes:
        kills: of workers, in each job.
        models: whose jobs are measured, by what people call them.
        pace: seconds by which a step of a tiny model is made longer.
    """

    kills: int = 5
    models: tuple[str, ...] = ("NumPy, tiny model", "TensorFlow, tiny model", "TensorFlow, digits")
    pace: float = 0.005


FULL = Sizes()
SMALLEST = Sizes(kills=1, models=("NumPy, tiny model",), pace=0.01)
_READY = "has imported the framework"


def rows(sizes: Sizes = FULL) -> list[Row]:
    """Measure jobs with a spare process and without one. Raises RuntimeError if one fails or hangs."""
    found = []
    with tempfile.TemporaryDirectory(prefix="edl-") as folder:
        directory = Path(folder)
        os.environ["XDG_STATE_HOME"] = str(directory / "state")
        for model in sizes.models:
            data, settings = _job(model, directory)
            times = {}
            for spare in ("true", "false"):
                with job(directory, data, 2, sizes.pace, spare_process=spare, **settings) as (place, _):
                    times[spare] = [replaced(place, spare == "true") for _ in range(sizes.kills)]
            (warm, warm_cpu), (cold, cold_cpu) = (
                [statistics.median(column) for column in zip(*times[spare], strict=True)]
                for spare in ("true", "false")
            )
            found.append(
                Row(
                    f"{model}: a killed worker's replacement has joined, from the spare process",
                    f"{warm:.2f} s, {warm_cpu:.2f} s of a core", f"a new process {cold:.2f} s, {cold_cpu:.2f} s of a core",
                    warm, 3, 2, " s",
                )
            )  # fmt: skip
    return found


def _job(model: str, directory: Path) -> tuple[Path, dict[str, Any]]:
    data = directory / f"{len(list(directory.iterdir()))}"
    if model.endswith("tiny model"):
        return tiny_data(data), {} if model.startswith("TensorFlow") else {
            "model_def": "softmax.custom_model"
        }
    zoo = ROOT / "model_zoo"
    make = [sys.executable, str(zoo / "mnist/make_data.py"), str(data)]
    subprocess.run(make, check=True, stdout=subprocess.DEVNULL)
    settings = {
        "model_zoo": zoo,
        "model_def": "mnist.mnist_functional_api.custom_model",
        "minibatch_size": 64,
    }
    return data / "train", settings


def replaced(place: JobPlace, spare: bool) -> tuple[float, float]:
    """Kill the last worker once all is well; return seconds until the next one has joined, and of a processor that it has taken."""
    status, _ = wait_for_another(place, 0)
    if spare:
        _await_spare(place)
    victim = [worker for worker in status.workers if worker.state == "training"][-1]
    assert victim.pid is not None
    before = busy([_spare_of(place)]) if spare else 0.0
    killed = time.time()
    os.kill(victim.pid, signal.SIGKILL)
    joined, pid = _joined(place, killed)
    return joined - killed, busy([pid]) - before


def _await_spare(place: JobPlace) -> None:
    until = time.monotonic() + PATIENCE
    log = place.logs / "spare"
    while not log.exists() or _READY not in log.read_text():
        if time.monotonic() > until:
            raise RuntimeError("the job has no spare process")
        time.sleep(0.05)  # the job has no event for it


def _spare_of(place: JobPlace) -> int:
    """Return the pid of the job's spare process: the one that writes its log."""
    log = (place.logs / "spare").stat().st_ino
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if (folder / "fd/1").stat().st_ino == log:
                return int(folder.name)
        except OSError:  # it has ended, or is somebody else's
            continue
    raise RuntimeError("the job has no spare process")


def _joined(place: JobPlace, since: float) -> tuple[float, int]:
    """Wait until a worker joins; return when that was, and its pid."""
    until = time.monotonic() + PATIENCE
    name, at = "", 0.0
    while time.monotonic() < until:
        try:
            with JobClient(place.control_address, place.token()) as client:
                for seen in client.watch(since):
                    if isinstance(seen, JobEvent) and seen.kind == EventKind.JOINED and seen.time > since:
                        name, at = seen.worker, seen.time
                    elif isinstance(seen, JobStatus):
                        for worker in seen.workers:
                            if worker.name == name and worker.pid is not None:
                                return at, worker.pid
        except MasterAway:
            time.sleep(0.1)  # until its successor listens
    raise RuntimeError("no worker has joined")
