"""Strangers who open connection after connection and say nothing keep nobody out, and cost those who are in nothing."""

from __future__ import annotations

import contextlib
import resource
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from elasticdl import _core
from elasticdl.cluster.cluster import Role
from elasticdl.cluster.kubernetes.certificates import make_identities
from tests.core.proxies import gateway

TOKEN = b"the job's token"
JOB = make_identities()
SECONDS = 30.0
PER_SECOND = 1000
KEPT = 6000
"""More connections than come before a listener gives a handshake up."""


class Flood:
    """A thread that opens connections until it is closed, or has opened so many; to a port they come from another address of this machine.

    `kept`: how many of them stay open at a time.
    """

    def __init__(self, address: str, most: int = 15_000, kept: int = KEPT) -> None:
        kind, _, place = address.partition(":")
        host, _, port = place.rpartition(":")
        self._unix = kind == "unix"
        self._to: str | tuple[str, int] = place if self._unix else (host, int(port))
        self._most, self._keeps = most, kept
        self.opened = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        began, kept = time.monotonic(), deque[socket.socket]()
        while self.opened < self._most:
            if self._ended.wait(max(0.0, began + self.opened / PER_SECOND - time.monotonic())):
                break
            stranger = socket.socket(socket.AF_UNIX if self._unix else socket.AF_INET)
            stranger.setblocking(False)
            if not self._unix:
                stranger.bind(("127.0.0.2", 0))
            stranger.connect_ex(self._to)
            kept.append(stranger)
            self.opened += 1
            if len(kept) > self._keeps:
                kept.popleft().close()
        for one in kept:
            one.close()

    def goes_on(self) -> bool:
        return self.opened < self._most

    def close(self) -> None:
        self._ended.set()
        self._thread.join()


@contextlib.contextmanager
def flood(address: str) -> Iterator[Flood]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with contextlib.closing(Flood(address)) as found:
        try:
            await_it(lambda: found.opened >= PER_SECOND)
            yield found
            assert found.goes_on(), "the flood was waited for"
        finally:
            found.close()
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def await_it(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < until, "it did not come to that"
        time.sleep(0.005)


def beats(monitor: _core.HeartMonitor, member: str, progress: int) -> bool:
    return any(sign[0] == member and sign[3] == progress and sign[5] for sign in monitor.poll())


def test_members_come_in_and_go_on() -> None:
    with contextlib.closing(_core.HeartMonitor("tcp:127.0.0.1:0", TOKEN, JOB[Role.MASTER])) as monitor:
        early = _core.Heart(monitor.address, "early", TOKEN, 0.02, JOB[Role.WORKER])
        await_it(lambda: beats(monitor, "early", 0))
        with flood(monitor.address):
            for number in range(1, 11):
                late = _core.Heart(monitor.address, f"late-{number}", TOKEN, 0.02, JOB[Role.WORKER])
                await_it(lambda: beats(monitor, f"late-{number}", 0))  # noqa: B023
                late.close()
                early.set(0, 0, number)
                await_it(lambda: beats(monitor, "early", number))  # noqa: B023
        early.close()


def test_workers_reach_the_control_plane(tmp_path: Path) -> None:
    with gateway(JOB, tmp_path) as proxy, flood(proxy.address):
        for _ in range(10):
            with proxy.worker() as (worker, served):
                worker.sendall(b"question")
                assert served.recv(8) == b"question"


SCARCE = """
import resource, socket, sys, time
from elasticdl import _core
monitor = _core.HeartMonitor("tcp:127.0.0.1:0", b"token", None)
host, _, port = monitor.address.removeprefix("tcp:").rpartition(":")
early = _core.Heart(monitor.address, "early", b"token", 0.02, None)
def beats(member, progress):
    until = time.monotonic() + 30
    while not any(sign[0] == member and sign[3] == progress and sign[5] for sign in monitor.poll()):
        if time.monotonic() > until:
            sys.exit(f"{member} is not heard")
        time.sleep(0.005)
beats("early", 0)
strangers = [socket.create_connection((host, int(port))) for _ in range(40)]
while monitor.refused == 0 and len(strangers) < 60:
    strangers.append(socket.create_connection((host, int(port))))
taken = []
soft = len(__import__("os").listdir("/proc/self/fd"))
resource.setrlimit(resource.RLIMIT_NOFILE, (soft + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
try:
    while True:
        taken.append(open("/dev/null"))
except OSError:
    pass
early.set(0, 0, 1)
beats("early", 1)
for one in taken + strangers:
    one.close()
late = _core.Heart(monitor.address, "late", b"token", 0.02, None)
beats("late", 0)
print("well")
"""


def test_a_process_without_descriptors_goes_on() -> None:
    ran = subprocess.run([sys.executable, "-c", SCARCE], capture_output=True, text=True, timeout=120)
    assert (ran.stdout, ran.stderr) == ("well\n", "")


@pytest.mark.parametrize("transport", ["unix", "tcp"])
def test_half_a_word_is_no_way_to_stay(tmp_path: Path, transport: str) -> None:
    """Strangers who have begun to speak make room as well, if there are too many of them from one place."""
    address = f"unix:{tmp_path}/heart" if transport == "unix" else "tcp:127.0.0.1:0"
    with contextlib.closing(_core.HeartMonitor(address, TOKEN, None)) as monitor:
        kind, _, place = monitor.address.partition(":")
        strangers = []
        for _ in range(400):
            stranger = socket.socket(socket.AF_UNIX if kind == "unix" else socket.AF_INET)
            host, _, port = place.rpartition(":")
            stranger.connect(place if kind == "unix" else (host, int(port)))
            stranger.sendall(b"EDL")
            strangers.append(stranger)
        with contextlib.closing(_core.Heart(monitor.address, "late", TOKEN, 0.02, None)):
            await_it(lambda: beats(monitor, "late", 0))
        assert monitor.refused > 0
        for stranger in strangers:
            stranger.close()
