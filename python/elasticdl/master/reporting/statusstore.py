"""What a master keeps for people beside its journal: the events so far, how the job stands, and at the end the summary.

None of it is needed to go on, so a failure to write it is logged and no more. Locally it lies in the job's folder; on Kubernetes in two
ConfigMaps, which all who may read the namespace can see: what changes every second is small, and events are written when there are
new ones.
"""

from __future__ import annotations

import contextlib
import json
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from typing import Any, Protocol

from elasticdl.cluster.kubernetes.items import Item, Stale
from elasticdl.cluster.local.place import JobPlace
from elasticdl.control.protocol.status import EventKind, JobEvent, JobStatus
from elasticdl.files.drafts import replace_file
from elasticdl.files.permissions import PRIVATE, private
from elasticdl.master.reporting.history import HistoryEvent, event_from_line

_log = logging.getLogger(__name__)

STATUS, TOLD, SUMMARY, CURVES = "status", "told", "summary", "curves"
"""Texts of the first object; `told` is another whenever there are new events."""
EVENTS = "events"
"""The text of the second."""
EVENTS_LIMIT = 400_000
"""Bytes of events that an object keeps; older ones go first, and those of `_PASSING` before all others."""
_DETAILS = frozenset({EventKind.SEALED, EventKind.COMMITTED_FIRST, EventKind.DIGEST})
"""Events of each member in each change of the group: in a large one they would drive out all others. The master's log has them."""
_PASSING = frozenset(
    f'"kind": "{kind}"'
    for kind in (
        EventKind.SNAPSHOT,
        EventKind.EVALUATED,
        EventKind.NOTE,
        EventKind.LAUNCHED,
        EventKind.SERVING,
        EventKind.HEALING,
        EventKind.HEALED,
        EventKind.COPYING,
        EventKind.COPIED,
    )
)
"""How lines look that no figure of a summary is made of. A text can't look like that, as its quotation marks are escaped."""
_PERIOD = 1.0
_RECALL_SECONDS = 10.0
"""How long a new master waits for a cluster that does not answer, to know what those before it told."""
_LAST_SECONDS = 30.0


def headline(status: JobStatus) -> str:
    """Return one line about how a job stands: `training, 3/4 workers, epoch 2, 41 %`."""
    training = sum(worker.state in ("training", "evaluating") for worker in status.workers)
    # The epoch after the last is the last.
    epoch = min(status.epoch + 1, status.num_epochs or status.epoch + 1)
    parts = [status.state, f"{training}/{status.wanted_workers} workers"]
    if status.wanted_servers:
        serving = sum(worker.state == "serving" for worker in status.workers)
        parts.append(f"{serving}/{status.wanted_servers} servers")
    parts.append(f"epoch {epoch}")
    if status.done is not None:
        parts.append(f"{status.done * 100:.0f} %")
    return ", ".join(parts)


def _is_passing(line: str) -> bool:
    return any(kind in line for kind in _PASSING)


def _newest(lines: list[str]) -> list[str]:
    """Return the lines that an object keeps, in their order.

    The figures of the next master are made of them: a job that told of a snapshot every ten seconds would soon have no loss left.
    """
    excess = sum(map(len, lines)) - EVENTS_LIMIT
    for may_go in (_is_passing, bool):
        if excess <= 0:
            break
        kept = []
        for line in lines:
            if excess > 0 and may_go(line):
                excess -= len(line)
            else:
                kept.append(line)
        lines = kept
    return lines


class StatusStore(Protocol):
    """Where people look, and where the next master finds what was reported before."""

    curves_limit: int
    """Bytes of curves that it keeps."""

    def recall_curves(self) -> str:
        """Return the curves that a master before this one kept, empty if there are none."""

    def keep_curves(self, curves: str) -> None:
        """Keep curves in place of those before."""

    def recall(self) -> list[HistoryEvent]:
        """Return the events that masters before this one told."""

    def tell(self, told: HistoryEvent) -> None:
        """Keep an event."""

    def show(self, status: JobStatus) -> None:
        """Keep how the job stands, in place of what was kept before."""

    def conclude(self, summary: Mapping[str, Any]) -> None:
        """Keep the summary, and return when all that was reported is kept."""


def _events_of(lines: Iterable[str]) -> list[HistoryEvent]:
    return [told for line in lines if (told := event_from_line(line)) is not None]


class FileStatusStore:
    """A local job's: `events.jsonl`, `curves.json` and `summary.json` in its folder; the status is asked for over the control plane."""

    curves_limit = 4 << 20

    def __init__(self, place: JobPlace) -> None:
        self._events = place.path / "events.jsonl"
        self._curves = place.path / "curves.json"
        self._summary = place.summary_path
        self._reserve = place.reserve_path

    def recall_curves(self) -> str:
        """Read the curves."""
        try:
            return self._curves.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""

    def keep_curves(self, curves: str) -> None:
        """Write the curves, whole or not at all."""
        try:
            replace_file(self._curves, curves, PRIVATE)
        except OSError as error:
            _log.info("the curves can't be kept: %s", error)

    def recall(self) -> list[HistoryEvent]:
        """Read the events; a torn last line is given an end, so that the next event does not continue it."""
        lines = self._lines()
        if lines and not lines[-1].endswith("\n"):
            with open(self._events, "a", encoding="utf-8", opener=private) as file:
                file.write("\n")
        return _events_of(lines)

    def peek(self) -> list[HistoryEvent]:
        """Read the events of a job whose master may just be writing one."""
        return _events_of(self._lines())

    def _lines(self) -> list[str]:
        try:
            return self._events.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
        except OSError:
            return []

    def tell(self, told: HistoryEvent) -> None:
        """Append a line."""
        try:
            with open(self._events, "a", encoding="utf-8", opener=private) as file:
                file.write(told.to_line())
        except OSError as error:
            _log.warning("the event can't be kept: %s", error)

    def show(self, status: JobStatus) -> None:
        """Do nothing: who wants to see it asks the master."""

    def conclude(self, summary: Mapping[str, Any]) -> None:
        """Write the summary, whole or not at all; the room that was kept for it is free then."""
        try:
            self._reserve.unlink(missing_ok=True)
            replace_file(self._summary, json.dumps(summary, indent=2) + "\n", PRIVATE)
        except OSError as error:
            _log.error("the summary can't be written: %s", error)


class ObjectStatusStore:
    """A job's on Kubernetes: texts of two objects, written by a thread of their own."""

    curves_limit = 100_000  # they are written as often as the status

    def __init__(
        self,
        item: Item,
        events: Item,
        headline: Callable[[str], None],
        announce: Callable[[JobEvent], None],
    ) -> None:
        """Write to two items.

        Args:
            item: the object of status and summary, which exists.
            events: the object of events, which exists.
            headline: is given one line about how the job stands, and may raise OSError.
            announce: is given every event once; it must not wait.
        """
        self._item = item
        self._events = events
        self._announce = announce
        self._headline = headline
        self._line = self._line_shown = ""
        self._lock = threading.Condition()
        self._before: list[str] | None = None
        self._lines: list[str] = []
        self._texts: dict[str, str] = {}
        self._changed = self._told = False
        self._over = False
        self._thread = threading.Thread(target=self._write, name="status", daemon=True)
        self._thread.start()

    def recall(self) -> list[HistoryEvent]:
        """Read the events, for some seconds if the cluster does not answer. What can't be read now is read before it is written over."""
        until = time.monotonic() + _RECALL_SECONDS
        while True:
            try:
                self._read_before()
            except OSError as error:
                _log.info("what was reported before can't be read: %s", error)
                if time.monotonic() < until:
                    time.sleep(_PERIOD)  # nobody says when the cluster answers again
                    continue
            return _events_of(self._before or ())

    def recall_curves(self) -> str:
        """Read the curves; those that can't be read now are begun anew."""
        with contextlib.suppress(OSError):
            return self._item.read()[0].get(CURVES, "")
        return ""

    def keep_curves(self, curves: str) -> None:
        """Keep curves with the next writing."""
        with self._lock:
            self._texts[CURVES] = curves
            self._changed = True

    def _read_before(self) -> None:
        texts, _ = self._events.read()
        self._before = texts.get(EVENTS, "").splitlines(keepends=True)

    def tell(self, told: HistoryEvent) -> None:
        """Keep an event with the next writing, if it is not one of the many that each member tells of each view."""
        if told.event.kind in _DETAILS:
            return
        self._announce(told.event)
        with self._lock:
            self._lines = _newest([*self._lines, told.to_line()])
            self._texts[TOLD] = str(told.event.time)
            self._changed = self._told = True

    def show(self, status: JobStatus) -> None:
        """Keep a status with the next writing."""
        with self._lock:
            self._texts[STATUS] = json.dumps(asdict(status))
            self._line = headline(status)
            self._changed = True

    def conclude(self, summary: Mapping[str, Any]) -> None:
        """Write everything, for as long as half a minute if the cluster does not answer."""
        with self._lock:
            self._texts[SUMMARY] = json.dumps(summary)
            self._changed = self._over = True
            self._lock.notify_all()
        self._thread.join(_LAST_SECONDS)
        if self._thread.is_alive():
            _log.error("the summary can't be written: the cluster does not answer")

    def _write(self) -> None:
        while True:
            with self._lock:
                self._lock.wait_for(lambda: self._over, _PERIOD)
                over, changed, told = self._over, self._changed, self._told
                self._changed = self._told = False
                texts, lines = dict(self._texts), list(self._lines)
            self._show_line()
            # Events first: who reads the summary finds all of them.
            done = not told or self._put_events(lines)
            if not (done and (not changed or self._put(self._item, texts))):
                with self._lock:
                    self._changed, self._told = True, self._told or told
                    self._lock.wait(_PERIOD)
                continue
            if over:
                return

    def _show_line(self) -> None:
        line = self._line
        if line != self._line_shown:
            with contextlib.suppress(OSError):  # the next one will do
                self._headline(line)
                self._line_shown = line

    def _put_events(self, lines: list[str]) -> bool:
        if self._before is None:
            try:
                self._read_before()
            except OSError as error:
                _log.info("what was reported before can't be read, trying again: %s", error)
                return False
        kept = _newest([*(self._before or ()), *lines])
        return self._put(self._events, {EVENTS: "".join(kept)})

    def _put(self, item: Item, texts: Mapping[str, str]) -> bool:
        try:
            before, version = item.read()
            item.replace({**before, **texts}, version)
        except (OSError, Stale) as error:
            _log.info("what people see can't be written, trying again: %s", error)
            return False
        return True
