"""What people hear of a running job: each event goes to those who watch, to the log, and to where the next master finds it again.

It decides nothing. Figures are kept by the history (`master/reporting/history.py`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from typing import Protocol

from elasticdl.control.protocol.status import EventKind, JobEvent, JobStatus
from elasticdl.control.transport.stream import ControlServer
from elasticdl.master.core.events import Announce
from elasticdl.master.reporting.history import EventHistory, HistoryEvent
from elasticdl.master.reporting.statusstore import StatusStore

_log = logging.getLogger(__name__)

_LONGEST_STATUS_SECONDS = 1.0
_LONG = 0.005
"""Seconds: a status that takes so long is shown less often."""
_REST = 10
"""Times as long as the last one took, nothing but what is due is shown after it."""
_ONCE = (EventKind.FINISHED, EventKind.FAILED, EventKind.EXPORTED)
"""What each master that reads the job's end does, and one of them tells."""
_INDEXING_SECONDS = 2.0
_SNAPSHOT_SECONDS = 10.0


class Observer(Protocol):
    """Hears all that people hear of a job, and each step; it must not wait."""

    def event(self, event: JobEvent) -> None:
        """Take what happened; what masters before this one told comes first."""

    def status(self, status: JobStatus) -> None:
        """Take how the job stands now."""

    def progress(self, step: int, loss: float | None) -> None:
        """Take that a step is committed now."""

    def close(self) -> None:
        """Take that nothing more comes; what is to be kept is kept on return."""


class Reporter:
    """Tells people, for one life of a master."""

    def __init__(
        self,
        history: EventHistory,
        store: StatusStore,
        server: ControlServer,
        observers: Iterable[Observer] = (),
        *,
        snapshots_last: bool,
    ) -> None:
        """Tell by a history, a store, the server's watchers and others; `snapshots_last`: they are checkpoints, each worth an event."""
        self.history = history
        self._observers = tuple(observers)
        self.changed = True
        """Something but figures has changed since the last status."""
        self._store = store
        self._server = server
        self._snapshots_last = snapshots_last
        self._told_ends: set[str] = set()
        self._told_once: set[EventKind] = set()
        self._status_at = self._took = 0.0
        self._indexing_at = 0.0
        self._next_snapshot_at = 0.0

    def recall(self, told: Sequence[HistoryEvent]) -> None:
        """Take up what masters before this one told."""
        for one in told:
            if one.event.kind == EventKind.ENDED:
                self._told_ends.add(one.event.worker)
            if one.event.kind in _ONCE:
                self._told_once.add(one.event.kind)
            self.history.tell(one)
            self._publish(one.event)
        self.tell(EventKind.MASTER, "the master is back and has read its journal")

    def tell(
        self,
        kind: EventKind,
        text: str,
        *,
        worker: str = "",
        view: int = 0,
        step: int = 0,
        seconds: float | None = None,
        cause: str = "",
        redone: int = 0,
        values: tuple[tuple[str, float], ...] = (),
    ) -> None:
        """Tell people of an event, if no master before this one has told it for good."""
        if kind in self._told_once:
            return
        now = self.history.next_time(time.time())
        told = HistoryEvent(JobEvent(now, kind, worker, view, step, text, seconds, values), cause, redone)
        self.history.tell(told)
        self._store.tell(told)  # first: the next master must know of what people have seen
        self._publish(told.event)
        _log.info("%s: %s", kind, text)
        self.changed = True

    def note(self, text: str) -> None:
        """Tell people what is of no other kind."""
        self.tell(EventKind.NOTE, text)

    def end(self, name: str, cause: str) -> None:
        """Tell that a process has ended, if no master before this one did."""
        if name not in self._told_ends:
            self.tell(EventKind.ENDED, f"{name} has ended: {cause}", worker=name, cause=cause)

    def announce(self, announce: Announce) -> bool:
        """Tell what the machine announces, if people want to hear it; return whether they wait for the figures that go with it."""
        kind, step = announce.kind, announce.step
        if kind == EventKind.STEP and (step < 1 or self.history.first_step_at is not None):
            return False  # the status shows steps; only the first one is an event
        if kind == EventKind.SNAPSHOT and not self._snapshots_last:
            # Epochs may last milliseconds; what matters to people is that there is a recent one. Checkpoints are there to stay.
            if time.monotonic() < self._next_snapshot_at:
                return False
            self._next_snapshot_at = time.monotonic() + _SNAPSHOT_SECONDS
        begins_again = kind in (EventKind.VIEW, EventKind.ROLLED_BACK)
        given_up = self.history.begin_again(step) if begins_again else 0
        self.tell(
            kind,
            announce.text,
            worker=announce.worker,
            view=announce.view,
            step=step,
            seconds=announce.seconds,
            cause=announce.cause,
            redone=given_up if announce.redone is None else announce.redone,
            values=announce.values,
        )
        return kind == EventKind.STEP  # people wait for the first loss

    def indexing(self, done: int, total: int) -> None:
        """Tell from time to time how much of the data is indexed, in bytes."""
        now = time.monotonic()
        if self._indexing_at == 0.0:
            self._indexing_at = now
        if now - self._indexing_at >= _INDEXING_SECONDS:
            self._indexing_at = now
            self.note(f"indexing the data: {done / max(1, total):.0%} of {total / 1e9:.1f} GB")

    def is_status_due(self, now: float, least: float) -> bool:
        """Tell whether a status is to be shown; `least`: seconds between two of which only figures differ."""
        return now - self._status_at >= (least if self.changed else _LONGEST_STATUS_SECONDS)

    def may_show(self, now: float) -> bool:
        """Tell whether a status may be shown beside those that are due: one of a thousand workers takes long, and each of them comes."""
        rests = self._took >= _LONG and now - self._status_at < _REST * self._took
        self.changed = self.changed or rests
        return not rests

    def show(self, now: float, status: JobStatus) -> None:
        """Show the status of `now`."""
        self._server.publish(status)
        self._store.show(status)
        for observer in self._observers:
            observer.status(status)
        self._status_at, self.changed = time.monotonic(), False
        self._took = self._status_at - now

    def progressed(self) -> None:
        """Tell those who want to know each step what the history says."""
        for observer in self._observers:
            observer.progress(self.history.step, self.history.loss)

    def close(self) -> None:
        """Tell nothing more."""
        for observer in self._observers:
            observer.close()

    def _publish(self, event: JobEvent) -> None:
        self._server.publish(event)
        for observer in self._observers:
            observer.event(event)
