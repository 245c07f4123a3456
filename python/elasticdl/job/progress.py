"""How far work is that this process does itself: a line now and then on standard error, in a terminal one that moves.

Jobs have a `Display`; what is done without one, such as reading the rows of a query, or computing the importance of a thousand columns,
has this.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Self, TextIO

from elasticdl.job.display import bar, clock, live

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

_INTRODUCTION = 3.0
"""Seconds without a line: what is done by then needs none, and a rate is not known earlier."""
_SILENCE = 15.0
"""Seconds between two lines where they stay."""
_PERIOD = 1.0
"""Seconds between two questions how much is done, of work that does not say so by itself."""


class Progress:
    """Shows, within `with`, how much is done, how fast, and how long the rest takes at the rate so far."""

    def __init__(
        self,
        what: str,
        total: int | None,
        stream: TextIO | None = None,
        now: Callable[[], float] = time.monotonic,
        ask: Callable[[], int] | None = None,
    ) -> None:
        """Show the progress of some work.

        Args:
            what: is counted, in the plural.
            total: how many there are; None: nobody knows yet.
            stream: where it is shown; standard error if none is given, nowhere if that is closed.
            now: a clock, in seconds.
            ask: returns how much is done, and is called from a thread of its own; None: the work calls this object.
        """
        self._what, self._total = what, total
        self._stream = sys.stderr if stream is None else stream
        self._now = now
        self._ask = ask
        self._began = now()
        self._first: tuple[int, float] | None = None
        self._shown_at = self._began + _INTRODUCTION - _SILENCE
        self._done = 0
        self._live: Live | None = None
        self._over = threading.Event()
        self._asking: threading.Thread | None = None

    def __enter__(self) -> Self:
        if self._stream is not None and self._stream.isatty():
            from rich.console import Console

            self._live = live(Console(file=self._stream, highlight=False), self._render)
            self._live.start()
        if self._ask is not None:
            self._asking = threading.Thread(
                target=self._follow, args=(self._ask,), name="progress", daemon=True
            )
            self._asking.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        if self._asking is not None:
            self._asking.join()
        if self._live is not None:
            self._live.stop()

    def __call__(self, done: int) -> None:
        """Take how much is done by now."""
        self._done, now = done, self._now()
        is_first = self._first is None
        if self._first is None or done == self._first[0]:
            # what came before the first ones, such as loading a model or sorting rows, says nothing of the others
            self._first = done, now
        if self._live is not None or is_first or done == self._total or now - self._shown_at < _SILENCE:
            return
        self._shown_at = now
        with suppress(OSError):  # who reads it may be gone, which changes nothing of the work
            if self._stream is not None:
                print(f"{now - self._began:8.1f} s  {self._line()}", file=self._stream, flush=True)

    def _follow(self, ask: Callable[[], int]) -> None:
        while not self._over.wait(_PERIOD):
            self(ask())
        self._done = ask()

    def _line(self) -> str:
        of = f"{self._done:,}" if self._total is None else f"{self._done:,} of {self._total:,}"
        parts = [f"{of} {self._what}"]
        if self._first is not None and self._done != self._first[0]:
            done, at = self._first
            seconds = self._now() - at
            if self._done - done >= seconds > 0:
                parts.append(f"{(self._done - done) / seconds:,.0f} a second")
            if self._total is not None:
                parts.append(f"{clock(seconds / (self._done - done) * (self._total - self._done))} left")
        return ", ".join(parts)

    def _render(self) -> RenderableType:
        from rich.console import Group
        from rich.text import Text

        text = Text(self._line())
        return text if self._total is None else Group(text, bar(self._done / max(1, self._total)))
