"""One event loop for all of a process's servers: what its callbacks raise is logged, but for gRPC's last look at an empty socket."""

from __future__ import annotations

import asyncio

import pytest

from elasticdl.control.transport.sharedloop import SharedLoop


async def raises_soon(error: Exception) -> None:
    """Return when a callback that raises it has run."""

    def fails() -> None:
        raise error

    loop, done = asyncio.get_running_loop(), asyncio.Event()
    loop.call_soon(fails)
    loop.call_soon(done.set)
    await done.wait()


def test_errors_of_callbacks_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    loop = SharedLoop.share()
    loop.run(raises_soon(BlockingIOError(11, "Resource temporarily unavailable")))
    assert not caplog.records
    loop.run(raises_soon(ValueError("a defect")))
    loop.leave()
    assert [str(record.exc_info[1]) for record in caplog.records if record.exc_info] == ["a defect"]
