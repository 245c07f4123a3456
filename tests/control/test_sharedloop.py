"""One event loop for all of a process's servers: what its callbacks raise is logged, but for gRPC's last look at an empty socket."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from elasticdl.control.transport.sharedloop import SharedLoop

EMPTY = BlockingIOError(11, "Resource temporarily unavailable")


class PollerCompletionQueue:
    """What gRPC calls its queue."""

    def _handle_events(self) -> None:
        raise EMPTY


def own() -> None:
    """Raise the same in a callback of our own."""
    raise EMPTY


def fails() -> None:
    """Raise something else."""
    raise ValueError("a defect")


async def called(callback: Callable[[], None]) -> None:
    """Return when the loop has called it."""
    loop, done = asyncio.get_running_loop(), asyncio.Event()
    loop.call_soon(callback)
    loop.call_soon(done.set)
    await done.wait()


def test_errors_of_callbacks_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    loop = SharedLoop.share()
    try:
        for callback in (PollerCompletionQueue()._handle_events, own, fails):
            loop.run(called(callback))
    finally:
        loop.leave()
    messages = [record.message.partition(" at ")[0] for record in caplog.records]
    assert messages == ["Exception in callback own()", "Exception in callback fails()"]
