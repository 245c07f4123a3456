"""What a person sees of a job in a notebook: one output that changes while the job runs, by IPython's own display handle."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from elasticdl.control.protocol.status import EventKind, JobEvent, JobStatus
from elasticdl.job.card import beginning, card
from elasticdl.job.display import event_line
from elasticdl.page.recording import Recording

_LINES = 5
"""Of what has happened lately."""
_PERIOD = 0.5
"""Seconds between two changes: each goes to the browser as a whole."""
_ENDS = {EventKind.FINISHED: "finished", EventKind.FAILED: "failed"}


class NotebookDisplay:
    """Shows a job in the output of a cell; calls may come from any one thread at a time."""

    def __init__(
        self, recording: Recording, started: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Begin to show.

        Args:
            recording: what is known of the job; what is seen from now on is added.
            started: when the job was submitted; each line begins with the seconds since then.
            clock: seconds that only grow.
        """
        self._recording = recording
        self._known = recording.last_time()
        self._started = started
        self._clock = clock
        self._lines: deque[str] = deque(maxlen=_LINES)
        self._status: JobStatus | None = None
        self._end: JobEvent | None = None
        self._next = 0.0
        self._handle: Any = None

    def notice(self, text: str) -> None:
        """Show one line at once, also of a job that has said nothing yet: it may not come to that for long."""
        self._add(time.time(), text)
        if self._status is None:
            self._put(beginning(self._lines))
        else:
            self._draw(at_once=True)

    def event(self, event: JobEvent) -> None:
        """Show what happened, if it is worth a line."""
        if event.time > self._known:
            self._recording.event(event)
        if event.kind in _ENDS:
            self._end = event
        if (line := event_line(event)) is not None:
            self._add(event.time, line)
        self._draw()

    def status(self, status: JobStatus) -> None:
        """Show how the job stands, about twice a second."""
        self._recording.status(status)
        self._status = status
        self._draw()

    def ask(self, question: str) -> str:
        """Return the line that the person types."""
        return input(f"{question} ")

    def close(self) -> None:
        """Show what was seen last; the output stays."""
        self._draw(at_once=True)

    def _add(self, when: float, text: str) -> None:
        self._lines.append(f"{max(0.0, when - self._started):8.1f} s  {text}")

    def _draw(self, *, at_once: bool = False) -> None:
        now = self._clock()
        if self._status is None or (now < self._next and not at_once):
            return
        self._next = now + _PERIOD
        status = self._status
        if self._end is not None and status.state not in _ENDS.values():
            status = replace(status, state=_ENDS[self._end.kind], reason=self._end.text)
        if self._end is not None:
            status = replace(status, seconds_left=None)
        self._put(card(status, self._recording, self._lines))

    def _put(self, text: str) -> None:
        from IPython.display import HTML, display

        if self._handle is None:
            self._handle = display(HTML(text), display_id=True)
        else:
            self._handle.update(HTML(text))
