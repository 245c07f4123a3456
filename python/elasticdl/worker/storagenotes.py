"""What a worker says of storage that does not answer, so that the job's status is right also when a connection breaks meanwhile.

What is sent while there is no connection is dropped, and a later master knows of nobody who waits. So that a worker waits is said again on
each connection, and that it need not any more until that could be sent.
"""

from __future__ import annotations

import threading

from elasticdl.control.protocol.messages import Note
from elasticdl.control.protocol.status import EventKind
from elasticdl.control.protocol.view import ViewId
from elasticdl.worker.notes import Sending


class StorageNotes:
    """What one worker says; may be called from any thread."""

    def __init__(self, send: Sending) -> None:
        """`send` returns whether there was a connection."""
        self._send = send
        self._lock = threading.Lock()
        self._unsaid: Note | None = None

    def tell(self, text: str, waits: bool) -> None:
        """Say that storage does not answer, or that it does again, as `Patience` notes it."""
        with self._lock:
            kind = EventKind.WAITING if waits else EventKind.ANSWERED
            self._unsaid = Note(kind, ViewId(0), 0, text)
            self._say()

    def connected(self) -> None:
        """Say on a new connection what the master may not know."""
        with self._lock:
            self._say()

    def _say(self) -> None:
        note = self._unsaid
        if note is not None and self._send(note) and note.kind == EventKind.ANSWERED:
            self._unsaid = None
