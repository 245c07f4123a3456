"""Jobs on machines that are not as they should be: a clock that jumps, a full /dev/shm, no IPv4, a slow network that loses packets."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from elasticdl.audit import audit
from elasticdl.control.protocol.status import JobStatus, WorkerStatus

from .conftest import Job, Start
from .test_faults import at_step, check, kill, training
from .test_ps import at, processes
from .test_ps import check as check_counts

HERE = Path(__file__).parent
HOUR = 3600.0


@pytest.fixture
def begin(start: Start, iris: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    """Start a job of two workers, with what `surroundings/sitecustomize.py` is told."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))

    def starting(tell: dict[str, str], **settings: object) -> Job:
        given = {
            "model_zoo": HERE / "zoo",
            "model_def": "flowers.custom_model",
            "training_data": iris / "train",
            "num_workers": 2,
            "num_epochs": 40,
            "minibatch_size": 8,
            "num_minibatches_per_task": 1,
            "audit": tmp_path / "audit",
            "output": tmp_path / "iris.npz",
            "witness_seconds": 2,
        }
        environment = {"GO": str(tmp_path / "go"), "PYTHONPATH": str(HERE / "surroundings"), **tell}
        whole = given | settings
        if "num_ps_pods" not in whole:
            whole["global_batch_size"] = 16
        return start(environment=environment, **whole)

    return starting


@pytest.fixture
def namespaces() -> None:
    """The right to make namespaces, and the tools to set them up."""
    can = subprocess.run(
        ["unshare", "--net", "--mount", "ip", "link", "set", "lo", "up"], capture_output=True, check=False
    )
    if os.geteuid() or can.returncode or not Path("/dev/net/tun").exists():
        end = pytest.fail if os.environ.get("CI") == "true" else pytest.skip
        end("needs root, iproute2 and /dev/net/tun, to make network namespaces")


def killed(at: Callable[[list[WorkerStatus]], WorkerStatus]) -> Callable[[JobStatus], bool]:
    return lambda status: kill(at(training(status)))


def test_a_clock_that_jumps_decides_nothing(begin: Start, tmp_path: Path) -> None:
    """An hour back, and an hour ahead: nobody is taken for lost who is not, who is lost is replaced, and nothing is trained twice."""
    clock = tmp_path / "clock"
    clock.write_text("0")
    job = begin({"CLOCK": str(clock)}, model_def="paced.custom_model")
    at_step(job, 10, lambda status: bool(clock.write_text(str(-HOUR))))
    at_step(job, 20, killed(lambda workers: workers[-1]))
    at_step(job, 30, lambda status: bool(clock.write_text(str(HOUR))))
    at_step(job, 40, killed(lambda workers: workers[0]))
    summary = check(job, tmp_path)
    assert summary["members"]["lost"] == 2
    assert (
        summary["seconds"] > HOUR
    )  # the processes did believe the clock, and the summary's dates are those of the day


FULL = 'mount -t tmpfs -o size=64k none /dev/shm; cat /dev/zero > /dev/shm/full 2> /dev/null; exec "$@"'
WITH_FULL = ["unshare", "--mount", "sh", "-c", FULL, "sh"]


@pytest.mark.usefixtures("namespaces")
def test_a_full_shared_memory_file_system_is_not_missed(begin: Start, tmp_path: Path) -> None:
    check(begin({}, within=WITH_FULL), tmp_path)


@pytest.mark.usefixtures("namespaces")
def test_servers_go_by_no_clock_of_the_day_and_miss_no_shared_memory(
    plain: Start, ids: np.ndarray, tmp_path: Path
) -> None:
    """Both at once, as in the two tests above: a lost worker and a lost server are replaced, and each record counts once."""
    clock = tmp_path / "clock"
    clock.write_text("0")
    surroundings = {
        "GO": str(tmp_path / "go"),
        "CLOCK": str(clock),
        "PYTHONPATH": str(HERE / "surroundings"),
    }
    files = {"audit": tmp_path / "audit", "output": tmp_path / "tallied.npz"}
    job = plain(environment=surroundings, within=WITH_FULL, **files)
    at_step(job, 10, lambda status: bool(clock.write_text(str(-HOUR))))
    at_step(job, 20, killed(lambda workers: workers[-1]))
    at(job, 30, lambda status: clock.write_text(str(HOUR)))
    at(job, 40, lambda status: os.kill(processes(status, "ps")[0], signal.SIGKILL))
    summary = check_counts(job, tmp_path, ids)
    assert (summary["members"]["lost"], summary["servers"]["lost"]) == (1, 1)
    assert summary["roll_backs"] == 0
    assert summary["seconds"] > HOUR


@pytest.mark.usefixtures("namespaces")
@pytest.mark.parametrize("servers", [{}, {"num_ps_pods": 2}], ids=["", "servers"])
def test_a_machine_with_ipv6_only(begin: Start, tmp_path: Path, servers: dict[str, int]) -> None:
    only = 'ip link set lo up; ip address delete 127.0.0.1/8 dev lo; exec "$@"'
    job = begin({"HOST": "[::1]"}, within=["unshare", "--net", "sh", "-c", only, "sh"], **servers)
    check(job, tmp_path)


@pytest.mark.usefixtures("namespaces")
@pytest.mark.parametrize("servers", [{}, {"num_ps_pods": 2}], ids=["", "servers"])
def test_a_slow_network_that_loses_packets(begin: Start, tmp_path: Path, servers: dict[str, int]) -> None:
    """200 ms there and back, and one packet of a hundred is lost: slow, but nobody is taken for dead."""
    slow = [sys.executable, str(HERE / "surroundings" / "slow_network.py"), "0.1", "0.01"]
    job = begin({"HOST": "127.0.0.1"}, within=["unshare", "--net", *slow], **servers, num_epochs=1)
    result = job.wait().succeeded()
    assert [epoch.counted for epoch in audit(tmp_path / "audit").epochs] == [120]
    assert result.summary["members"]["lost"] == 0
