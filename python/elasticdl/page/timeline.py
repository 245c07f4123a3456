"""When each process of a job was starting, at work or lost, and why: made of the job's events. Pure.

A row is one worker or server, whatever process it is just then: what replaces a lost one continues its row. Where a row is empty nothing
of it ran.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any

from elasticdl.cluster.cluster import Role
from elasticdl.control.protocol.status import IN_ORDER, EventKind, JobEvent

MOST_SPANS = 1000
"""Of all rows; the oldest go first."""
MOST_MARKS = 200
"""Of each sort; the oldest go first."""

_MARKED = frozenset(
    {
        EventKind.MASTER, EventKind.SCALED, EventKind.ROLLED_BACK, EventKind.RESUMED, EventKind.STOPPING, EventKind.FINISHED,
        EventKind.FAILED,
    }
)  # fmt: skip
"""Kinds of events that concern the whole job."""


class Phase(StrEnum):
    """What a process does for some time."""

    STARTING = "starting"
    HEALING = "healing"
    """It receives the model."""
    TRAINING = "training"
    SERVING = "serving"
    LEAVING = "leaving"
    """It hands over what it has."""
    LOST = "lost"
    """It has ended, or was left out, and nothing has replaced it yet."""


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of time.

    Attributes:
        process: whose, `worker-3-2`.
        phase: what it did.
        since: seconds since the Unix epoch.
        until: the same, None if it lasts.
        why: one sentence, or empty.
    """

    process: str
    phase: Phase
    since: float
    until: float | None = None
    why: str = ""


class Timeline:
    """The rows of a job, and what concerned all of it."""

    def __init__(self, began: float) -> None:
        """Begin at `began`, in seconds since the Unix epoch: the first processes are started then, which is no event."""
        self._began = began
        self._rows: dict[str, list[Span]] = {}
        self._marks: deque[tuple[float, str, str]] = deque(maxlen=MOST_MARKS)
        self._evaluations: deque[tuple[float, float, str]] = deque(maxlen=MOST_MARKS)
        self._ended_at: float | None = None
        self.version = 0
        """Another number whenever there is something new."""

    def take(self, event: JobEvent) -> None:
        """Take what happened next."""
        if event.kind == EventKind.EVALUATED:
            self._evaluations.append((event.time - (event.seconds or 0.0), event.time, event.text))
            self.version += 1
        if event.kind in _MARKED:
            self._marks.append((event.time, event.kind, event.text))
            self.version += 1
        if event.kind in (EventKind.FINISHED, EventKind.FAILED):
            self._ended_at = event.time
            for row in self._rows.values():
                row[-1] = _closed(row[-1], event.time)
        if row_of(event.worker):
            self._take_process(event)

    def _take_process(self, event: JobEvent) -> None:
        is_server = event.worker.startswith(Role.PS)
        match event.kind:
            case EventKind.LAUNCHED:
                self._begin(event, Phase.STARTING, "")
            case EventKind.HEALING:
                self._begin(event, Phase.HEALING, event.text)
            case EventKind.JOINED | EventKind.HEALED:
                self._begin(event, Phase.SERVING if is_server else Phase.TRAINING, "")
            case EventKind.LEAVING:
                self._begin(event, Phase.LEAVING, event.text)
            case EventKind.DRAINED:
                self._end(event)
            case EventKind.LOST | EventKind.EVICTED | EventKind.REPLACED:
                self._lose(event)
            case EventKind.ENDED:
                in_order = self._ended_at is not None or any(event.text.endswith(cause) for cause in IN_ORDER)
                if in_order:
                    self._end(event)
                else:
                    self._lose(event)

    def rows(self) -> Mapping[str, tuple[Span, ...]]:
        """Return the spans of each row, servers after workers."""
        names = sorted(self._rows, key=lambda name: (name.startswith(Role.PS), int(name.rpartition("-")[2])))
        return {name: tuple(self._rows[name]) for name in names}

    def to_json(self) -> dict[str, Any]:
        """Return all of it as plain values."""
        return {
            "began": self._began,
            "ended": self._ended_at,
            "rows": [
                {"name": name, "spans": [asdict(span) for span in spans]}
                for name, spans in self.rows().items()
            ],
            "marks": [{"time": time, "kind": kind, "text": text} for time, kind, text in self._marks],
            "evaluations": [
                {"since": since, "until": until, "text": text} for since, until, text in self._evaluations
            ],
        }

    # ------------------------------------------------------------------ one row

    def _begin(self, event: JobEvent, phase: Phase, why: str) -> None:
        row = self._rows.setdefault(row_of(event.worker), [])
        if not row and phase is not Phase.STARTING:
            row.append(Span(event.worker, Phase.STARTING, self._began))
        if row and row[-1].process == event.worker and row[-1].phase == phase and row[-1].until is None:
            return
        if row and _is_later(row[-1].process, event.worker):
            return  # of a process that has been replaced meanwhile
        if row:
            row[-1] = _closed(row[-1], event.time)
        row.append(Span(event.worker, phase, event.time, None, why))
        self._noted()

    def _end(self, event: JobEvent) -> None:
        """It has left in order; one that was lost before stays lost."""
        for row, index in self._last_of(event.worker):
            if row[index].phase is not Phase.LOST:
                row[index] = _closed(row[index], event.time)
                self._noted()

    def _lose(self, event: JobEvent) -> None:
        for row, index in self._last_of(event.worker):
            last = row[index]
            if last.phase is Phase.LOST:
                if event.text not in last.why:
                    row[index] = replace(last, why=f"{last.why}; {event.text}")
                    self._noted()
            elif last.until is None:
                row[index] = _closed(last, event.time)
                row.append(Span(event.worker, Phase.LOST, event.time, None, event.text))
                self._noted()

    def _last_of(self, process: str) -> Iterator[tuple[list[Span], int]]:
        """Yield where the last span of a process is, if it has one."""
        row = self._rows.setdefault(row_of(process), [])
        if not row:  # it was started with the job, and has done nothing else
            row.append(Span(process, Phase.STARTING, self._began))
        for index in reversed(range(len(row))):
            if row[index].process == process:
                yield row, index
                return

    def _noted(self) -> None:
        self.version += 1
        spans = [(row[0].since, name) for name, row in self._rows.items() if len(row) > 1]
        if spans and sum(map(len, self._rows.values())) > MOST_SPANS:
            del self._rows[min(spans)[1]][0]


def row_of(process: str) -> str:
    """Return the row of a process, `worker-3` of `worker-3-2`; empty for what is no worker or server."""
    role, _, rest = process.partition("-")
    index, _, life = rest.partition("-")
    return (
        f"{role}-{index}" if role in (Role.WORKER, Role.PS) and index.isdecimal() and life.isdecimal() else ""
    )


def _is_later(one: str, other: str) -> bool:
    """Tell whether a process has replaced another one of its row."""
    return int(one.rpartition("-")[2]) > int(other.rpartition("-")[2])


def _closed(span: Span, time: float) -> Span:
    return span if span.until is not None else replace(span, until=time)
