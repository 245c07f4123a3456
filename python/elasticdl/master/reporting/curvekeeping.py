"""Keeps a job's curves where the next master, and those who look later, find them: from time to time, and at the end.

What is kept is never needed by the job. It is thinned until it fits to where it is kept.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from elasticdl.control.protocol.status import JobEvent, JobStatus
from elasticdl.master.reporting.statusstore import StatusStore
from elasticdl.page.recording import Recording
from elasticdl.page.series import MOST

_log = logging.getLogger(__name__)

PERIOD = 5.0
"""Seconds from one time to the next: what a master that is killed has seen since is lost."""
_LEAST = 20
"""Points of a curve, with fewer of which it says nothing."""


class CurveKeeper:
    """Observes a job beside the recording that it keeps, behind which it has to be told."""

    def __init__(
        self, recording: Recording, store: StatusStore, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Take up what the store has; `clock`: seconds that only grow."""
        self._recording = recording
        self._store = store
        self._clock = clock
        self._next = clock() + PERIOD
        if text := store.recall_curves():
            try:
                recording.recall(text)
            except ValueError as error:
                _log.warning("the curves of the masters before this one can't be read: %s", error)

    def event(self, event: JobEvent) -> None:
        """Do nothing: the recording has it."""

    def status(self, status: JobStatus) -> None:
        """Keep the curves if it is time."""
        if self._clock() >= self._next:
            self._keep()

    def progress(self, step: int, loss: float | None) -> None:
        """Do nothing: the recording has it."""

    def close(self) -> None:
        """Keep the curves for those who look later."""
        self._keep()

    def _keep(self) -> None:
        self._next, most = self._clock() + PERIOD, MOST
        while len(text := self._recording.curves(most)) > self._store.curves_limit and most > _LEAST:
            most //= 2
        self._store.keep_curves(text)
