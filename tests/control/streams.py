"""What tests of the control plane's connections share: who waits for events, and ends of a stream."""

from __future__ import annotations

import queue
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from elasticdl.control.protocol.status import JobStatus
from elasticdl.control.protocol.view import MemberId
from elasticdl.control.transport.keys import Key, derive
from elasticdl.control.transport.memberstream import (
    MemberStream,
)
from elasticdl.control.transport.stream import (
    ControlServer,
)
from elasticdl.control.transport.tls import Identity

TOKEN = b"the job's token"
KEY = derive(TOKEN, Key.WORKER)
MEMBER = MemberId("5" * 32)
SECONDS = 20.0


class Events:
    """What came, in order; `until` waits for one."""

    def __init__(self) -> None:
        self.queue: queue.Queue[Any] = queue.Queue()

    def __call__(self, event: Any) -> None:
        self.queue.put(event)

    def next(self) -> Any:
        return self.queue.get(timeout=SECONDS)

    def until(self, kind: type) -> Any:
        while True:
            event = self.next()
            if isinstance(event, kind):
                return event


def member(
    address: str, events: Events, token: bytes = TOKEN, identity: Identity | None = None
) -> MemberStream:
    return MemberStream(address, derive(token, Key.WORKER), "worker-0-1", MEMBER, events, identity)


def status(step: int) -> JobStatus:
    return JobStatus("j", "training", "", 1, step, 0, 1, 0.5, None, 10, None, None, 2, ())


SERVER = """
import sys, threading
from elasticdl.control.transport.stream import ControlServer
server = ControlServer(sys.argv[1], b"the job's token", lambda event: print(event, flush=True))
print("bound", flush=True)
threading.Event().wait()
"""


def serve(address: str) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", SERVER, address], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "bound\n"
    return process


def eventually(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.005)  # what is waited for is state that nobody announces


def next_refusals(server: ControlServer) -> list[str]:
    """Return why a caller was refused: it may know before it is written down."""
    found: list[str] = []

    def come() -> bool:
        found.extend(why for _, why in server.refusals()[0])
        return bool(found)

    eventually(come)
    return found
