"""What is reported of a job: events and figures in, the status and the summary that people read out.

It decides nothing and does no I/O; the runner gives it what the machine announces, keeps the events in the job's folder, and gives them
back after a restart of the master, so that the summary is of the whole job.
"""

from __future__ import annotations

import json
from collections import deque
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from elasticdl.cluster.cluster import Role
from elasticdl.control.protocol.status import IN_ORDER, EventKind, JobEvent, values_from_json
from elasticdl.data.plan.schedule import Schedule
from elasticdl.data.plan.shard import Position
from elasticdl.files import reading
from elasticdl.master.core.witnesses import SUSPICION

_WINDOW = 5.0
"""Seconds over which the rate is taken, or those of the last steps, if they take longer."""
_LEAST = 0.1
"""Seconds that a rate needs: of messages that come together, as those of a short job, the time between them says nothing."""
_INTRODUCTION_SECONDS = 3.0
"""For so long a new master hears at once of what workers have done under the one before: the time between that says nothing either."""
_STEPS = 6
_RECOVERIES = 500
"""Recoveries of which the summary tells, the last ones; it has to fit into an object of a cluster."""


class Extent(Protocol):
    """How long a job is."""

    @property
    def total_records(self) -> int | None:
        """Return the records of all epochs, None if endless."""

    @property
    def max_step(self) -> int:
        """Return the steps after which it ends, 0 for no limit."""


@dataclass(frozen=True, slots=True)
class HistoryEvent:
    """An event, and what only the summary wants of it.

    Attributes:
        event: as everybody sees it.
        cause: of a recovery or the end of a worker, in a few words.
        redone: steps that had been committed and are trained again, of a view or a roll-back.
    """

    event: JobEvent
    cause: str = ""
    redone: int = 0

    def to_line(self) -> str:
        """Return one line of the events file; `event_from_line` is the inverse."""
        return json.dumps({**asdict(self.event), "cause": self.cause, "redone": self.redone}) + "\n"


def event_from_line(line: str) -> HistoryEvent | None:
    """Read a line of the events file; None if it is torn, or not one that a master wrote."""
    try:
        body = reading.fields(reading.load(line))
        cause, redone = reading.text(body.pop("cause")), reading.integer(body.pop("redone"))
        kind = EventKind(reading.text(body.pop("kind")))
        values = values_from_json(body.pop("values"))
        return HistoryEvent(reading.record(JobEvent, body, kind=kind, values=values), cause, redone)
    except (ValueError, KeyError):
        return None


class EventHistory:
    """The figures of one job so far.

    Attributes:
        step: highest step known to be committed in the current lineage.
        loss: the last known.
        records: records trained.
        epoch: epoch that the next step belongs to.
        joined: names of the workers and servers that have taken part.
        first_step_at: when the first step was committed, in seconds since the Unix epoch.
        first_joined_at: when the first worker joined, in seconds since the Unix epoch.
        records_before: of these records, those that an earlier job has trained.
        unsaved: snapshots that could not be written, or were given up.
        waiting: who waits for storage that does not answer, and for which; empty for the master itself.
    """

    def __init__(self, submitted_at: float) -> None:
        self._last_time = 0.0
        self.step = 0
        self.loss: float | None = None
        self.records = 0
        self.epoch = 0
        self.joined: set[str] = set()
        self.first_step_at: float | None = None
        self.first_joined_at: float | None = None
        self.records_before = 0
        self._submitted_at = submitted_at
        self._samples: deque[tuple[float, int, int]] = deque()
        self._introduced_at: float | None = 0.0
        """From when on, in monotonic seconds, all workers may have said what they have done; None: since the next figures come."""
        self._recoveries: deque[dict[str, Any]] = deque(maxlen=_RECOVERIES)
        self._ends: dict[str, str] = {}
        self._left: dict[str, str] = {}
        """How processes have left, as one of their masters has told."""
        self._died: set[str] = set()
        """Names of processes that have ended before the job, and not in order."""
        self.unsaved = 0
        self.waiting: dict[str, str] = {}
        self._redone = 0
        self._bad_records: set[str] = set()
        self._idle_steps: set[tuple[int, str]] = set()
        self._ended_at: float | None = None

    def tell(self, told: HistoryEvent) -> None:
        """Take an event, new or read back."""
        event = told.event
        self._last_time = event.time
        self._redone += told.redone
        match event.kind:
            case EventKind.STEP if self.first_step_at is None:
                self.first_step_at = event.time
            case EventKind.RECOVERED:
                self._recoveries.append(
                    {
                        "cause": told.cause,
                        "member": event.worker,
                        "step": event.step,
                        "seconds": round(event.seconds or 0.0, 4),
                    }
                )
            case EventKind.ENDED:
                self._ends[event.worker] = told.cause
                if self._ended_at is None and told.cause not in IN_ORDER:
                    self._died.add(event.worker)
                self.waiting.pop(event.worker, None)
            case EventKind.WAITING:
                self.waiting[event.worker] = event.text
            case EventKind.ANSWERED:
                self.waiting.pop(event.worker, None)
            case EventKind.MASTER:
                self.waiting.clear()  # workers that still wait say so again
                self._introduced_at = None
            case EventKind.BAD_RECORD:
                # every worker meets its own ones, and others' after a change
                self._bad_records.add(event.text)
            case EventKind.IDLE_STEP:
                # Members of a view say the same of one step; without one each worker counts its own.
                self._idle_steps.add((event.step, "" if event.view else event.worker))
            case EventKind.JOINED:
                self.joined.add(event.worker)
                if self.first_joined_at is None:
                    self.first_joined_at = event.time
            case EventKind.DRAINED | EventKind.LOST | EventKind.EVICTED:
                # The next master may find out once more what one has told.
                self._left.setdefault(event.worker, "drained" if event.kind == EventKind.DRAINED else "lost")
            case EventKind.UNSAVED:
                self.unsaved += 1
            case EventKind.FINISHED | EventKind.FAILED:
                self._ended_at = event.time

    @property
    def servers(self) -> dict[str, int]:
        """Return how many parameter servers were drained, and how many lost."""
        return self._how_left(servers=True)

    def _how_left(self, *, servers: bool) -> dict[str, int]:
        """Return how many servers, or workers, were drained and lost, also if the master that knew it was killed before it told."""
        left = {**dict.fromkeys(self._died & self.joined, "lost"), **self._left}
        hows = [how for name, how in left.items() if name.startswith(Role.PS) == servers]
        return {how: hows.count(how) for how in ("drained", "lost")}

    def next_time(self, now: float) -> float:
        """Return a time for an event at `now` that is later than that of the last one."""
        return max(now, self._last_time + 1e-6)

    def begin_again(self, step: int) -> int:
        """A view begins at `step`, or the job is rolled back to it: return how many steps that gives up."""
        given_up = max(0, self.step - step)
        self.step = step
        return given_up

    def stand_at(self, position: Position, schedule: Schedule) -> None:
        """The group is at `position`: this is exact, where progress may lag behind."""
        self.epoch = position.epoch
        self.records = schedule.ledger.num_records * position.epoch + schedule.records_done(position)

    def committed(self, step: int) -> None:
        """A member reports that it has committed `step`."""
        self.step = max(self.step, step)

    def stand(self, epoch: int) -> None:
        """The next step belongs to this epoch."""
        self.epoch = epoch

    def progress(self, now: float, step: int, records: int, loss: float | None) -> None:
        """Take figures at `now` (monotonic seconds)."""
        self.committed(step)
        self.records = records
        if loss is not None:
            self.loss = loss
        if self._introduced_at is None:
            self._introduced_at = now + _INTRODUCTION_SECONDS
        if now < self._introduced_at:
            self._samples.clear()
        self._samples.append((now, records, step))
        while len(self._samples) > _STEPS and self._samples[1][0] < now - _WINDOW:
            self._samples.popleft()

    def rate(self, now: float) -> float | None:
        """Return records per second over the last seconds, None if nothing can be said."""
        return self._per_second(now, 1)

    def done(self, schedule: Extent | None) -> float | None:
        """Return the share of the job that is done, None if it has no end or its data is not known."""
        if schedule is None:
            return None
        shares = []
        if schedule.total_records:
            shares.append(self.records / schedule.total_records)
        if schedule.max_step:
            shares.append(self.step / schedule.max_step)
        return min(1.0, max(shares)) if shares else None

    def seconds_left(self, now: float, schedule: Extent | None) -> float | None:
        """Return an estimate of the time left."""
        if schedule is None:
            return None
        times = []
        records, steps = self._per_second(now, 1), self._per_second(now, 2)
        if schedule.total_records and records:
            times.append((schedule.total_records - self.records) / records)
        if schedule.max_step and steps:
            times.append((schedule.max_step - self.step) / steps)
        return max(0.0, min(times)) if times else None

    def whole_rate(self, now: float) -> float | None:
        """Return records per second since the first worker joined, None in the first moment; `now`: seconds since the Unix epoch."""
        seconds = 0.0 if self.first_joined_at is None else now - self.first_joined_at
        return round(self.records / seconds, 1) if seconds >= _LEAST else None

    def summary(self, now: float) -> dict[str, Any]:
        """Return the part of the summary that the history knows; `now`: seconds since the Unix epoch."""
        body: dict[str, Any] = {
            "epochs": self.epoch,
            "steps": self.step,
            "records_trained": self.records,
            "records_per_second": None,
            "redone_steps": self._redone,
            "bad_records": len(self._bad_records),
            "idle_steps": len(self._idle_steps),
            "members": self._how_left(servers=False),
            "recoveries": [self._explained(recovery) for recovery in self._recoveries],
            "loss": self.loss,
            "seconds": round(now - self._submitted_at, 3),
        }
        if self.first_step_at is not None:
            body["seconds_to_first_step"] = round(self.first_step_at - self._submitted_at, 3)
            trained = (self._ended_at or now) - self.first_step_at
            if trained >= _LEAST:
                body["records_per_second"] = round((self.records - self.records_before) / trained, 1)
        return body

    def _explained(self, recovery: dict[str, Any]) -> dict[str, Any]:
        """Return a recovery with what became of its worker, if that was not known yet when the group continued."""
        end = self._ends.get(recovery["member"])
        if recovery["cause"] != SUSPICION or not end:
            return recovery
        return {**recovery, "cause": f"{SUSPICION}, then {end}"}

    def _per_second(self, now: float, column: int) -> float | None:
        if len(self._samples) < 2:
            return None
        first, last = self._samples[0], self._samples[-1]
        # Between two steps nothing comes; when it lasts, the rate falls.
        pause = 2 * (last[0] - first[0]) / (len(self._samples) - 1)
        until = last[0] if now - last[0] < max(_WINDOW / 2, pause) else now
        seconds = until - first[0]
        return max(0.0, (last[column] - first[column]) / seconds) if seconds >= _LEAST else None
