"""One event loop for all of a process's servers."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import threading
import traceback
from collections.abc import Callable, Coroutine
from typing import Any, ClassVar, TypeVar

_Result = TypeVar("_Result")
_ENDED = (errno.EAGAIN, errno.EBADF)
_READER = "PollerCompletionQueue._handle_events"
"""The method of gRPC's queue that reads its socket."""


class SharedLoop:
    """An event loop on a thread of its own, for all servers of this process.

    gRPC has one queue of events in a process; with several loops each would be woken by the others' events.
    """

    _lock: ClassVar = threading.Lock()
    _shared: ClassVar[SharedLoop | None] = None

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.loop.set_exception_handler(_tell_errors)
        self._users = 0
        self._thread = threading.Thread(target=self.loop.run_forever, name="control", daemon=True)
        self._thread.start()

    @classmethod
    def share(cls) -> SharedLoop:
        """Return the loop, to be given back with `leave`."""
        with cls._lock:
            if cls._shared is None:
                cls._shared = SharedLoop()
            cls._shared._users += 1
            return cls._shared

    def leave(self) -> None:
        """End the loop and its thread if nobody else has it."""
        with self._lock:
            self._users -= 1
            if self._users:
                return
            type(self)._shared = None
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    def soon(self, what: Callable[..., object], *arguments: Any) -> None:
        """Have something done there, soon; nothing if it has ended."""
        with contextlib.suppress(RuntimeError):  # closed, by what may be another thread
            self.loop.call_soon_threadsafe(what, *arguments)

    def run(self, what: Coroutine[Any, Any, _Result]) -> _Result:
        """Have something done there, and return what comes of it; raises what it raises."""
        return asyncio.run_coroutine_threadsafe(what, self.loop).result()


def _tell_errors(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log what a callback has raised.

    That of gRPC's queue of events may find nothing to read any more, or its socket closed, when the queue ends, which does no harm
    (grpc/grpc#34139).
    """
    error = context.get("exception")
    if not (isinstance(error, OSError) and error.errno in _ENDED and _raised_in(error).endswith(_READER)):
        loop.default_exception_handler(context)


def _raised_in(error: BaseException) -> str:
    """Return the name of the function that raised an error: the callback itself may have been cancelled, and has no name then."""
    name = ""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        name = frame.f_code.co_qualname
    return name
