"""What a worker's steps consist of, recorded for as many steps as somebody asks for (`elasticdl profile`).

While nobody asks, a step costs some comparisons. The main thread records; any thread may ask.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from elasticdl.control.protocol.profiling import Phase, RecordSteps, StepRecorded

MOST_PHASES = 500
"""What is kept of one step; of a step with more, the rest is left undivided."""


class StepRecorder:
    """The steps of one worker."""

    def __init__(
        self,
        send: Callable[[StepRecorded], object],
        clock: Callable[[], int] = time.perf_counter_ns,
        wall: Callable[[], int] = time.time_ns,
    ) -> None:
        """Record nothing yet.

        Args:
            send: takes each step when it has ended, on the main thread.
            clock: nanoseconds, which never go back.
            wall: nanoseconds since the Unix epoch; read once for each request, so that a clock that is set makes no phases overlap.
        """
        self._send = send
        self._clock = clock
        self._wall = wall
        self._asked: deque[RecordSteps] = deque(maxlen=1)
        self._request = 0
        self._left = 0
        """Steps that are still to be recorded; the first begins with the end of the one that was under way."""
        self._offset = 0
        self._began = 0
        self._phases: list[Phase] = []

    def ask(self, wanted: RecordSteps) -> None:
        """Record steps from the end of the one under way; called from any thread."""
        self._asked.append(wanted)

    def begin(self) -> int:
        """Return when a phase begins, 0 while nothing is recorded."""
        return self._clock() if self._left else 0

    def end(self, name: str | None, began: int) -> None:
        """Record the phase that began then; nothing if it has no name, or nothing was recorded when it began.

        A phase that continues the one before it, as the next look of one who waits, becomes a part of it.
        """
        if not (began and self._left and name):
            return
        begin = began + self._offset
        duration = self._clock() - began
        if self._phases and self._phases[-1].name == name:
            last = self._phases[-1]
            self._phases[-1] = Phase(name, last.begin, begin + duration - last.begin)
        elif len(self._phases) < MOST_PHASES:
            self._phases.append(Phase(name, begin, duration))

    def end_step(self, step: int) -> None:
        """Record the end of a step, and begin the next one."""
        if self._left:
            duration = self._clock() - self._began
            self._left -= 1
            self._send(
                StepRecorded(self._request, step, self._began + self._offset, duration, tuple(self._phases))
            )
        elif not self._asked:
            return
        self._phases.clear()
        if self._asked:
            wanted = self._asked.pop()
            self._request, self._left = wanted.request, wanted.steps
            self._offset = self._wall() - self._clock()
        self._began = self._clock()
