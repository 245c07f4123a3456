"""The proxy's thread sleeps when there is nothing to carry, whatever state its connections are in."""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from elasticdl.cluster.kubernetes.certificates import make_identities
from tests.core.proxies import gateway

JOB = make_identities()
SECONDS = 20.0


@pytest.fixture
def ends(tmp_path: Path) -> Iterator[tuple[ssl.SSLSocket, socket.socket]]:
    """A worker's end of a connection that the proxy carries, and the other one."""
    with gateway(JOB, tmp_path) as proxy, proxy.worker() as both:
        yield both


def fill(end: socket.socket) -> None:
    end.settimeout(0.3)
    with contextlib.suppress(TimeoutError):
        for _ in range(100):
            end.send(bytes(1 << 20))
        raise AssertionError("all of it is somewhere on the way")


def idles() -> bool:
    began = time.process_time()
    time.sleep(0.5)
    return time.process_time() - began < 0.1


def test_idle(ends: tuple[ssl.SSLSocket, socket.socket]) -> None:
    worker, served = ends
    worker.sendall(b"question")
    assert served.recv(8) == b"question"
    assert idles()


def test_readers_that_are_stuck(ends: tuple[ssl.SSLSocket, socket.socket]) -> None:
    worker, served = ends
    fill(served)
    fill(worker)
    assert idles()


def test_a_worker_that_is_gone_while_the_other_end_is_stuck(
    ends: tuple[ssl.SSLSocket, socket.socket],
) -> None:
    worker, _ = ends
    fill(worker)
    worker.close()
    assert idles()


def test_a_stuck_worker_after_the_other_end_has_closed(ends: tuple[ssl.SSLSocket, socket.socket]) -> None:
    _, served = ends
    fill(served)
    served.close()
    assert idles()


def test_half_closed(ends: tuple[ssl.SSLSocket, socket.socket]) -> None:
    worker, served = ends
    served.shutdown(socket.SHUT_WR)
    assert worker.recv(1) == b""
    assert idles()
    worker.sendall(b"question")
    assert served.recv(8) == b"question"


def test_closed_by_the_other_end_alone(ends: tuple[ssl.SSLSocket, socket.socket]) -> None:
    worker, served = ends
    served.close()
    assert worker.recv(1) == b""
    assert idles()
