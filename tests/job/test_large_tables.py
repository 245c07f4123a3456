"""A table three times larger than what one server may use trains over four, and the process that writes it never has all of it."""

from __future__ import annotations

import contextlib
import resource
import threading
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import h5py
import psutil
import pytest

from elasticdl.cluster.local.place import PROCESS_ENVIRONMENT
from tests.job.conftest import Job, Start
from tests.job.zoo.large import PER_RECORD, WIDTH

MIB = 1 << 20
TABLE = 384 * MIB
RECORDS = TABLE // (4 * PER_RECORD * WIDTH)
SERVER = TABLE // 3
"""Bytes that a server may use for what it gets to hold, beyond what it has when it begins."""
WRITER = TABLE // 3
"""Bytes that a worker may use more from when it begins to write."""

SETTINGS = {
    "model_zoo": Path(__file__).parent / "zoo",
    "model_def": "large.custom_model",
    "model_params": f"records={RECORDS}",
    "training_data": "numbers.csv",
    "num_workers": 1,
    "ps_replicas": 1,
    "minibatch_size": 32,
    "shuffle": "false",
    "relaunch_on_worker_failure": 0,
}


@pytest.fixture
def numbers(tmp_path: Path) -> None:
    (tmp_path / "numbers.csv").write_text("number\n" + "".join(f"{one}\n" for one in range(RECORDS)))


@contextlib.contextmanager
def limiting(job: Job, role: str, more: int, is_time: Callable[[str], bool]) -> Iterator[set[str]]:
    """Let the job's processes of a role have so much memory more than they have when it is time; yields those that are limited."""
    limited: set[str] = set()
    over = threading.Event()

    names: dict[int, str] = {}

    def watch() -> None:
        while not over.wait(0.02):
            with contextlib.suppress(psutil.Error, OSError):
                for pid in children(job.process.pid):
                    if not names.get(pid):
                        names[pid] = psutil.Process(pid).environ().get(PROCESS_ENVIRONMENT, "")
                    name = names[pid]
                    if name.startswith(role) and name not in limited and is_time(name):
                        limit(pid, more)
                        limited.add(name)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield limited
    finally:
        over.set()
        thread.join()


def children(pid: int) -> list[int]:
    """Return the processes that a process has started; psutil would look at all that there are, fifty times a second."""
    return [
        int(one) for task in Path(f"/proc/{pid}/task").glob("*/children") for one in task.read_text().split()
    ]


def limit(pid: int, more: int) -> None:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    used = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmData"))
    resource.prlimit(pid, resource.RLIMIT_DATA, (used + more, used + more))


def is_ready(job: Job) -> Callable[[str], bool]:
    """Tell of a server whether it holds slots: from then on only these take memory."""

    def is_serving(name: str) -> bool:
        logs = job.state.glob(f"**/logs/{name}.log")
        return any("serves as number" in log.read_text() for log in logs)

    return is_serving


@pytest.mark.usefixtures("numbers")
def test_one_server_has_too_little_memory_and_says_so(start: Start) -> None:
    job = start(**SETTINGS, num_ps_pods=1)
    with limiting(job, "ps-", SERVER, is_ready(job)) as limited:
        result = job.wait()
    assert result.code == 1
    assert limited == {"ps-0-1"}
    assert "ps-0-1 has ended (out of memory)" in result.err, result.err + result.logs
    assert "let more servers share them (--num_ps_pods)" in result.err


@pytest.mark.usefixtures("numbers")
def test_four_servers_hold_it_and_a_worker_writes_it(start: Start, tmp_path: Path) -> None:
    output = tmp_path / "out" / "large.keras"
    job = start(**SETTINGS, num_ps_pods=4, output=output)

    def is_writing(_: str) -> bool:
        return output.parent.is_dir() and any(output.parent.iterdir())

    with (
        limiting(job, "ps-", SERVER, is_ready(job)) as servers,
        limiting(job, "worker-", WRITER, is_writing) as writers,
    ):
        job.wait().succeeded()
    assert servers == {f"ps-{index}-1" for index in range(4)}
    assert writers == {"worker-0-1"}
    with zipfile.ZipFile(output) as archive:
        archive.extract("model.weights.h5", tmp_path)
    with h5py.File(tmp_path / "model.weights.h5") as file:
        matrix = file["layers/embedding/vars/0"]
        assert matrix.shape == (RECORDS * PER_RECORD, WIDTH)
        # each row was trained once, at weights that change slowly: no two are equal, none is far from where it began
        assert 0 < abs(matrix[-1]).max() < 0.5
