"""What a worker says for people that must not be missing while there is no master: what a program prints, and what is counted.

What is sent while there is no connection is dropped. So these notes wait for one, in their order; of very many the newest do.
"""

from __future__ import annotations

import threading
from collections import deque

from elasticdl.control.protocol.messages import Note
from elasticdl.control.protocol.status import EventKind
from elasticdl.control.protocol.view import ViewId
from elasticdl.worker.notes import Sending

_MOST_NOTES = 1000


class KeptNotes:
    """The notes of one worker; may be called from any thread."""

    def __init__(self, send: Sending) -> None:
        """`send` returns whether there was a connection."""
        self._send = send
        self._lock = threading.Lock()
        self._unsaid: deque[Note] = deque(maxlen=_MOST_NOTES)

    def add(self, note: Note) -> None:
        """Say something, now or on the next connection."""
        with self._lock:
            self._unsaid.append(note)
            self._say()

    def say(self, text: str) -> None:
        """Say a line in the job's log, now or on the next connection."""
        self.add(Note(EventKind.NOTE, ViewId(0), 0, text))

    def connected(self) -> None:
        """Say on a new connection what waits for it."""
        with self._lock:
            self._say()

    def _say(self) -> None:
        while self._unsaid and self._send(self._unsaid[0]):
            self._unsaid.popleft()
