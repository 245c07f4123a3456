"""The thread that writes the journal: storage may be slow, and a master that waits for it would take everybody's silence for its own."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass

from elasticdl.errors import JobFailed, JournalConflict
from elasticdl.master.core.events import Append, Check
from elasticdl.master.core.journal import Journal

_RETRY_SECONDS = 0.2
"""Between attempts to append to a journal that can't be written."""


@dataclass(frozen=True, slots=True)
class Written:
    """The record exists."""

    append: Append


@dataclass(frozen=True, slots=True)
class Unwritten:
    """J2: whether the record exists is open; it is tried on until that is known."""

    append: Append
    error: OSError | JobFailed


@dataclass(frozen=True, slots=True)
class Overtaken:
    """Another master has written the journal."""


Outcome = Written | Unwritten | Overtaken


class JournalWriter:
    """Appends records one after another, and tells what became of them."""

    def __init__(self, journal: Journal, tell: Callable[[Outcome], None]) -> None:
        """Begin to work; `tell` is called from this thread, once with `Unwritten` for a record that can't be written at first."""
        self._journal = journal
        self._tell = tell
        self._requests: queue.SimpleQueue[Append | Check | None] = queue.SimpleQueue()
        self._closed = threading.Event()
        threading.Thread(target=self._work, name="journal", daemon=True).start()

    def take(self, request: Append | Check) -> None:
        """Append a record, or look whether another master has appended one."""
        self._requests.put(request)

    def close(self) -> None:
        """Write nothing more."""
        self._closed.set()
        self._requests.put(None)

    def _work(self) -> None:
        while (request := self._requests.get()) is not None:
            if isinstance(request, Append):
                self._append(request)
            else:
                self._check(request)

    def _append(self, append: Append) -> None:
        told = False
        while not self._closed.is_set():
            try:
                self._journal.append(append.number, append.record)
            except JournalConflict:
                self._tell(Overtaken())
                return
            except (OSError, JobFailed) as error:
                if not told:
                    told = True
                    self._tell(Unwritten(append, error))
                self._closed.wait(_RETRY_SECONDS)
            else:
                self._tell(Written(append))
                return

    def _check(self, check: Check) -> None:
        with contextlib.suppress(OSError):  # asked again soon
            if self._journal.has(check.number):
                self._tell(Overtaken())
