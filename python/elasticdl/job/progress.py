"""How far work is that this process does itself: a line now and then on standard error, in a terminal one that moves.

Jobs have a `Display`; what is computed without one, such as the importance of a thousand columns, has this.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TextIO

from elasticdl.job.display import clock

if TYPE_CHECKING:
    from rich.console import RenderableType

_INTRODUCTION = 3.0
"""Seconds without a line: what is done by then needs none, and a rate is not known earlier."""
_SILENCE = 15.0
"""Seconds between two lines where they stay."""


class Progress:
    """Shows, within `with`, how much is done, and how long the rest takes at the rate so far."""

    def __init__(
        self, what: str, total: int, stream: TextIO | None = None, now: Callable[[], float] = time.monotonic
    ) -> None:
        """Show the progress of some work.

        Args:
            what: is counted, in the plural.
            total: how many there are.
            stream: where it is shown; standard error if none is given.
            now: a clock, in seconds.
        """
        self._what, self._total = what, total
        self._stream = sys.stderr if stream is None else stream
        self._now = now
        self._began = now()
        self._first: tuple[int, float] | None = None
        self._shown_at = self._began + _INTRODUCTION - _SILENCE
        self._done = 0
        self._live: Any = None

    def __enter__(self) -> Self:
        if self._stream.isatty():
            from rich.console import Console
            from rich.live import Live

            console = Console(file=self._stream, highlight=False)
            self._live = Live(
                console=console, get_renderable=self._render, refresh_per_second=4, transient=True
            )
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def __call__(self, done: int) -> None:
        """Take how much is done by now."""
        self._done, now = done, self._now()
        # what came before the first one, such as loading a model, says nothing of the others
        self._first = self._first or (done, now)
        if self._live is not None or done in (self._first[0], self._total) or now - self._shown_at < _SILENCE:
            return
        self._shown_at = now
        print(f"{now - self._began:8.1f} s  {self._line()}", file=self._stream, flush=True)

    def _line(self) -> str:
        line = f"{self._done:,} of {self._total:,} {self._what}"
        if self._first is None or self._done == self._first[0]:
            return line
        done, at = self._first
        left = (self._now() - at) / (self._done - done) * (self._total - self._done)
        return f"{line}, {clock(left)} left"

    def _render(self) -> RenderableType:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.text import Text

        return Group(
            Text(self._line()), ProgressBar(total=max(1, self._total), completed=self._done, width=60)
        )
