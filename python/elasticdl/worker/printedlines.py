"""What a program prints for the whole job, by `job.print`, so that nothing is missing in the job's log while there is no master.

What is sent while there is no connection is dropped. So lines wait for one, in their order; of very many the newest do.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

_MOST_LINES = 1000


class PrintedLines:
    """The lines of one worker; may be called from any thread."""

    def __init__(self, note: Callable[[str], bool]) -> None:
        """`note` says a line in the job's log, and returns whether there was a connection."""
        self._note = note
        self._lock = threading.Lock()
        self._unsaid: deque[str] = deque(maxlen=_MOST_LINES)

    def add(self, text: str) -> None:
        """Say a line, now or on the next connection."""
        with self._lock:
            self._unsaid.append(text)
            self._say()

    def connected(self) -> None:
        """Say on a new connection what waits for it."""
        with self._lock:
            self._say()

    def _say(self) -> None:
        while self._unsaid and self._note(self._unsaid[0]):
            self._unsaid.popleft()
