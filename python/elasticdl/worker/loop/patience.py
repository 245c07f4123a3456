"""Signs of life of a program that does something else than training for a while: without them a worker at work would seem to hang."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_EVERY_SECONDS = 1.0


class Patience:
    """Gives signs of life, for some time at most; called from one thread."""

    def __init__(self, alive: Callable[[], None]) -> None:
        """`alive` gives one."""
        self._alive = alive
        self._over: threading.Event | None = None

    def begin(self, seconds: float) -> None:
        """Give signs of life for so long, or until `end`."""
        self.end()
        over = self._over = threading.Event()

        def run() -> None:
            for _ in range(int(seconds / _EVERY_SECONDS)):
                if over.wait(_EVERY_SECONDS):
                    return
                self._alive()

        threading.Thread(target=run, name="patience", daemon=True).start()

    def end(self) -> None:
        """Give no more."""
        if self._over is not None:
            self._over.set()
            self._over = None

    @contextmanager
    def during(self, seconds: float) -> Iterator[None]:
        """Give signs of life for so long, while something is done."""
        self.begin(seconds)
        try:
            yield
        finally:
            self.end()
