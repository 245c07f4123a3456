"""What a worker's heartbeats say, while it works and while it waits for its data.

Progress is odd while a worker is at work, and one that makes none for too long is evicted. Who waits for storage that does not answer is
not to be: each sign of life counts as progress.
"""

from __future__ import annotations

import threading

from elasticdl.worker.settings import Beats


class PatientHeart:
    """Heartbeats in which signs of life of who waits for storage are progress."""

    def __init__(self, heart: Beats) -> None:
        self._heart = heart
        self._lock = threading.Lock()
        self._said = (0, 0, 0)
        self._signs = 0

    def set(self, view: int, step: int, progress: int) -> None:
        """Say what the next ones say."""
        with self._lock:
            self._said = view, step, progress
            self._heart.set(view, step, progress + 2 * self._signs)

    def alive(self) -> None:
        """Give a sign of life, which counts two, so that odd stays odd. May be called from any thread."""
        with self._lock:
            self._signs += 1
            view, step, progress = self._said
            self._heart.set(view, step, progress + 2 * self._signs)
