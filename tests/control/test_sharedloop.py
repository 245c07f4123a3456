"""One event loop for all of a process's servers: what its callbacks raise is logged, but for gRPC's last look at its own socket."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable

import pytest

from elasticdl.control.transport.sharedloop import SharedLoop

EMPTY, FAILED, CLOSED = errno.EAGAIN, errno.EIO, errno.EBADF


class PollerCompletionQueue:
    """What gRPC calls its queue."""

    def __init__(self, number: int) -> None:
        self.number = number

    def _handle_events(self) -> None:
        raise OSError(self.number, os.strerror(self.number))


def own() -> None:
    """Raise the same in a callback of our own."""
    raise OSError(EMPTY, os.strerror(EMPTY))


def fails() -> None:
    """Raise something else."""
    raise ValueError("a defect")


async def cancelled(queue: PollerCompletionQueue) -> None:
    """Return when the loop has called a queue's reader, which ends meanwhile: the loop no longer knows what it has called."""
    loop, done = asyncio.get_running_loop(), asyncio.Event()

    def _handle_events() -> None:
        handle.cancel()
        queue._handle_events()

    handle = loop.call_soon(_handle_events)
    loop.call_soon(done.set)
    await done.wait()


async def called(callback: Callable[[], None]) -> None:
    """Return when the loop has called it."""
    loop, done = asyncio.get_running_loop(), asyncio.Event()
    loop.call_soon(callback)
    loop.call_soon(done.set)
    await done.wait()


def test_errors_of_callbacks_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    loop = SharedLoop.share()
    try:
        for callback in (PollerCompletionQueue(EMPTY)._handle_events, own, fails):
            loop.run(called(callback))
        loop.run(cancelled(PollerCompletionQueue(CLOSED)))
        loop.run(cancelled(PollerCompletionQueue(FAILED)))
    finally:
        loop.leave()
    messages = [record.message.splitlines()[0].partition(" at ")[0] for record in caplog.records]
    assert messages == [
        "Exception in callback own()",
        "Exception in callback fails()",
        "Exception in callback None()",
    ]
