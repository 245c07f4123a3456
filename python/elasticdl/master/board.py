"""What a master keeps for people beside its journal: the events so far, how the job stands, and at the end the summary.

None of it is needed to go on, so a failure to write it is logged and no more. Locally it lies in the job's folder; on Kubernetes in a
ConfigMap, written about once a second, which whoever may read the namespace can see.
"""

from __future__ import annotations

import contextlib
import json
import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, Protocol

from elasticdl.cluster.items import Item, Stale
from elasticdl.control.status import JobEvent, JobStatus
from elasticdl.master.story import Told, told_from_line
from elasticdl.spec.place import JobPlace

_log = logging.getLogger(__name__)

STATUS, EVENTS, SUMMARY = "status", "events", "summary"
"""Texts of the object."""
EVENTS_LIMIT = 400_000
"""Bytes of events that an object keeps; older ones go first."""
_PERIOD = 1.0
_LAST_SECONDS = 30.0


def headline(status: JobStatus) -> str:
    """Return one line about how a job stands: `training, 3/4 workers, epoch 2, 41 %`."""
    training = sum(worker.state == "training" for worker in status.workers)
    parts = [status.state, f"{training}/{status.wanted_workers} workers", f"epoch {status.epoch + 1}"]
    if status.done is not None:
        parts.append(f"{status.done * 100:.0f} %")
    return ", ".join(parts)


class Board(Protocol):
    """Where people look, and where the next master finds what was told before."""

    def recall(self) -> list[Told]:
        """Return the events that masters before this one told."""

    def tell(self, told: Told) -> None:
        """Keep an event."""

    def show(self, status: JobStatus) -> None:
        """Keep how the job stands, in place of what was kept before."""

    def conclude(self, summary: Mapping[str, Any]) -> None:
        """Keep the summary, and return when all that was told is kept."""


class FileBoard:
    """A local job's: `events.jsonl` and `summary.json` in its folder; the status is asked for over the control plane."""

    def __init__(self, place: JobPlace) -> None:
        self._events = place.path / "events.jsonl"
        self._summary = place.summary_path

    def recall(self) -> list[Told]:
        """Read the events; a torn last line is given an end, so that the next event does not continue it."""
        try:
            lines = self._events.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
        except OSError:
            return []
        if lines and not lines[-1].endswith("\n"):
            with open(self._events, "a", encoding="utf-8") as file:
                file.write("\n")
        return [told for line in lines if (told := told_from_line(line)) is not None]

    def tell(self, told: Told) -> None:
        """Append a line."""
        try:
            with open(self._events, "a", encoding="utf-8") as file:
                file.write(told.to_line())
        except OSError as error:
            _log.warning("the event can't be kept: %s", error)

    def show(self, status: JobStatus) -> None:
        """Do nothing: who wants to see it asks the master."""

    def conclude(self, summary: Mapping[str, Any]) -> None:
        """Write the summary, whole or not at all."""
        draft = self._summary.with_name(f".{self._summary.name}.draft")
        try:
            draft.write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
            draft.replace(self._summary)
        except OSError as error:
            _log.error("the summary can't be written: %s", error)
            draft.unlink(missing_ok=True)


class ItemBoard:
    """A job's on Kubernetes: three texts of one object, written by a thread of their own."""

    def __init__(
        self, item: Item, headline: Callable[[str], None], announce: Callable[[JobEvent], None]
    ) -> None:
        """Write to an item.

        Args:
            item: the object, which exists.
            headline: is given one line about how the job stands, and may raise OSError.
            announce: is given every event once; it must not wait.
        """
        self._item = item
        self._announce = announce
        self._headline = headline
        self._line = self._line_shown = ""
        self._lock = threading.Condition()
        self._lines: list[str] = []
        self._texts: dict[str, str] = {}
        self._changed = False
        self._over = False
        self._thread = threading.Thread(target=self._write, name="board", daemon=True)

    def recall(self) -> list[Told]:
        """Read the events, and begin to write."""
        try:
            texts, _ = self._item.read()
        except OSError as error:
            _log.warning("what was told before can't be read: %s", error)
            texts = {}
        with self._lock:
            self._lines = texts.get(EVENTS, "").splitlines(keepends=True)
        self._thread.start()
        return [told for line in self._lines if (told := told_from_line(line)) is not None]

    def tell(self, told: Told) -> None:
        """Keep an event with the next writing."""
        self._announce(told.event)
        with self._lock:
            self._lines.append(told.to_line())
            size = sum(map(len, self._lines))
            while size > EVENTS_LIMIT:
                size -= len(self._lines.pop(0))
            self._changed = True

    def show(self, status: JobStatus) -> None:
        """Keep a status with the next writing."""
        with self._lock:
            self._texts[STATUS] = json.dumps(asdict(status))
            self._line = headline(status)
            self._changed = True

    def conclude(self, summary: Mapping[str, Any]) -> None:
        """Write everything, for as long as half a minute if the cluster does not answer."""
        if self._thread.ident is None:
            self.recall()  # a master that can't even begin says so too
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
                over, changed, self._changed = self._over, self._changed, False
                texts = {**self._texts, EVENTS: "".join(self._lines)}
            self._show_line()
            if changed and not self._put(texts):
                with self._lock:
                    self._changed = True
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

    def _put(self, texts: Mapping[str, str]) -> bool:
        try:
            before, version = self._item.read()
            self._item.replace({**before, **texts}, version)
        except (OSError, Stale) as error:
            _log.info("what people see can't be written, trying again: %s", error)
            return False
        return True
