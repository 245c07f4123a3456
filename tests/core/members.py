"""Members of a ring for the tests of the data plane: in threads of this process, or in processes of their own."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from elasticdl import _core
from elasticdl.cluster.cluster import Role
from elasticdl.cluster.kubernetes.certificates import make_identities
from elasticdl.control.transport.tls import Identity, read_identity

TRANSPORTS = ("unix", "tcp", "tls")
HOSTS = ("hosts:0011", "hosts:01020", "safe-hosts:00111")
"""Members of several hosts on this one, each rank with the name of its host."""
TOKEN = b"the job's token"
DIGEST = 0xFEDCBA9876543210


def member(rank: int) -> str:
    return f"{rank:032x}"


def write_identity(folder: Path) -> None:
    """Write what the workers of one job show each other, once for all that share the folder."""
    if (folder / "ca.crt").exists():
        return
    identity = make_identities()[Role.WORKER]
    for name, text in (
        ("tls.key", identity.key),
        ("tls.crt", identity.certificate),
        ("ca.crt", identity.authority),
    ):
        (folder / name).write_bytes(text)


def is_safe(transport: str) -> bool:
    """Whether what goes from host to host has TLS."""
    return transport == "tls" or transport.startswith("safe-")


def open_endpoint(folder: Path, rank: int, transport: str) -> _core.Endpoint:
    identity: Identity | None = read_identity(folder) if is_safe(transport) else None
    address = f"unix:{folder}/{rank}" if transport == "unix" else "tcp:127.0.0.1:0"
    if ":" in transport:
        host = folder / transport.partition(":")[2][rank]
        host.mkdir(exist_ok=True)
        address += f"+unix:{host}/{rank}"
    return _core.Endpoint(address, member(rank), TOKEN, identity)


def endpoints(folder: Path, count: int, transport: str = "unix") -> list[_core.Endpoint]:
    if is_safe(transport):
        write_identity(folder)
    return [open_endpoint(folder, rank, transport) for rank in range(count)]


def peers(of: list[_core.Endpoint]) -> list[tuple[str, str]]:
    return [(member(rank), endpoint.address) for rank, endpoint in enumerate(of)]


@contextmanager
def group(
    folder: Path, count: int, transport: str = "unix", silence: float = 30.0
) -> Iterator[list[_core.Ring]]:
    """Rings of view 1 of `count` members in this process."""
    all_endpoints = endpoints(folder, count, transport)
    for endpoint in all_endpoints:
        endpoint.enter(1, DIGEST)
    addresses = peers(all_endpoints)
    rings = [
        _core.Ring(endpoint, 1, DIGEST, rank, addresses, silence)
        for rank, endpoint in enumerate(all_endpoints)
    ]
    try:
        yield rings
    finally:
        for ring in rings:
            ring.close(False)
        for endpoint in all_endpoints:
            endpoint.close()


def side_by_side(*calls: Callable[[], Any], limit: float = 60.0) -> list[Any]:
    """Run calls in threads; return what each returned or raised."""
    outcomes: list[Any] = [None] * len(calls)

    def run(index: int) -> None:
        try:
            outcomes[index] = calls[index]()
        except Exception as error:
            outcomes[index] = error

    threads = [threading.Thread(target=run, args=(index,), daemon=True) for index in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(limit)
        assert not thread.is_alive(), "a call hangs"
    return outcomes


class Process:
    """A member in a process of its own (`ring_process.py`), driven by lines of JSON."""

    def __init__(
        self, folder: Path, rank: int, count: int, silence: float = 30.0, transport: str = "unix"
    ) -> None:
        script = Path(__file__).with_name("ring_process.py")
        self.process = subprocess.Popen(
            [sys.executable, script, folder, str(rank), str(count), str(silence), transport],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def tell(self, **order: Any) -> None:
        assert self.process.stdin
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()

    def hear(self) -> dict[str, Any]:
        assert self.process.stdout
        line = self.process.stdout.readline()
        assert line, "the process ended"
        answer: dict[str, Any] = json.loads(line)
        return answer

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@contextmanager
def processes(
    folder: Path, count: int, silence: float = 30.0, transport: str = "unix"
) -> Iterator[list[Process]]:
    """`count` processes that have entered view 1 and know each other."""
    if is_safe(transport):
        write_identity(folder)
    started = [Process(folder, rank, count, silence, transport) for rank in range(count)]
    try:
        addresses = [process.hear()["address"] for process in started]
        for process in started:
            process.tell(addresses=addresses)
        yield started
    finally:
        for process in started:
            process.end()
