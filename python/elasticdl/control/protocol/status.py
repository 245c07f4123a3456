"""What people see of a running job: a status and a stream of events.

Plain values that `control/transport/client.py` delivers; progress displays, `status`, `chaos` and Kubernetes Events are made of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from elasticdl.files import reading

INTERRUPT = "interrupt"
"""Reason of a stop by Ctrl-C: the job ends as `interrupted`, with exit code 130."""

WORKING = frozenset({"training", "evaluating", "predicting", "processing", "draining", "sealed", "finishing"})
"""States of workers that a job counts as at work."""


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """One worker as the master sees it.

    Attributes:
        name: `worker-3-2`.
        state: `pending` (there is no room for it yet), `delayed` (those before it were short-lived),
            `starting`, `joining`, `healing`, `training`, `evaluating`, `sealed`, `draining`, `finishing`, `lost`, `ended`.
        pid: process id where there is one, else None.
        member: its member id once it has registered.
        waits_for: what keeps one that is pending or delayed from running, or how long one has been starting.
    """

    name: str
    state: str
    pid: int | None
    member: str | None
    waits_for: str = ""


@dataclass(frozen=True, slots=True)
class JobStatus:
    """One look at a job.

    Attributes:
        job_name: its name.
        state: `starting`, `training`, `evaluating` (training continues after it), `waiting` (below its minimum, no member, or storage
            that does not answer), `stopping`, `finished`, `failed`.
        reason: one sentence, why it is in this state.
        view: current view id, 0 = none.
        step: last committed step known.
        epoch: epoch of the next step, 0-based; num_epochs when the data has ended.
        num_epochs: 0 = until stopped.
        done: share of all records trained, 0 … 1, None if there is no end.
        loss: last known mean loss.
        records: records trained.
        records_per_second: over the last seconds.
        seconds_left: estimate, None if unknown.
        wanted_workers: how many the job wants now.
        workers: all that live, or ended lately; parameter servers, too.
        wanted_servers: how many parameter servers the job wants now.
        slots_alone: slots of the parameter servers that have no second copy on servers that stay, and should have one.
        copies: slots that are being copied to another server.
        handovers: slots that are being handed over to another server.
        snapshot: number of the snapshot of the servers that is under way, 0 if there is none.
    """

    job_name: str
    state: str
    reason: str
    view: int
    step: int
    epoch: int
    num_epochs: int
    done: float | None
    loss: float | None
    records: int
    records_per_second: float | None
    seconds_left: float | None
    wanted_workers: int
    workers: tuple[WorkerStatus, ...]
    wanted_servers: int = 0
    slots_alone: int = 0
    copies: int = 0
    handovers: int = 0
    snapshot: int = 0


IN_ORDER = frozenset({"released", "exit code 0"})
"""Causes of an end that is none of a fault."""


class EventKind(StrEnum):
    """What an event of a job is about; what people read is its text."""

    JOINED = "joined"
    """A process takes part."""
    DRAINED = "drained"
    """It has left as it wished."""
    EVICTED = "evicted"
    """It was left out on suspicion."""
    LOST = "lost"
    """It has ended, and what it had under way is lost."""
    LEAVING = "leaving"
    """A parameter server empties itself."""

    LAUNCHED = "launched"
    """A process is started."""
    REPLACED = "replaced"
    """It is killed because its start takes too long."""
    ENDED = "ended"
    """It has ended."""

    VIEW = "view"
    """A view begins."""
    SEALED = "sealed"
    """A member does nothing more in a view."""
    SERVING = "serving"
    """A member sends its state to others."""
    HEALING = "healing"
    """A member receives a state."""
    HEALED = "healed"
    """It has it."""
    COMMITTED_FIRST = "committed-first"
    """A member has committed its first step in a view."""
    DIGEST = "digest"
    """The bits that a member of a final view holds."""
    DIVERGED = "diverged"
    """Members of a final view hold other bits."""

    EVALUATED = "evaluated"
    """Metrics of a state are journalled."""
    STEP = "step"
    """A step is committed or settled."""
    RECOVERED = "recovered"
    """The first step after a loss is."""
    ROLLED_BACK = "rolled-back"
    """Steps are done once more, because servers have lost what they made."""
    BAD_RECORD = "bad-record"
    """A record was skipped."""
    IDLE_STEP = "idle-step"
    """A step has changed nothing."""
    SNAPSHOT = "snapshot"
    """A snapshot is whole."""
    UNSAVED = "unsaved"
    """A snapshot or checkpoint could not be written, or was given up."""
    COPYING = "copying"
    """Slots are copied to other servers."""
    COPIED = "copied"
    """All slots are where they should be."""
    RESUMED = "resumed"
    """The job continues from a checkpoint."""

    MASTER = "master"
    """Another life of the master has begun."""
    SCALED = "scaled"
    """The job wants another number of processes."""
    STOPPING = "stopping"
    """An early end was asked for."""
    EXPORTED = "exported"
    """The result is in its place."""
    FINISHED = "finished"
    """The job has ended with a result."""
    FAILED = "failed"
    """It has ended without one."""
    WAITING = "waiting"
    """A process waits for storage that does not answer."""
    ANSWERED = "answered"
    """The storage has answered again."""
    NOTE = "note"
    """Anything else that is worth a line."""


@dataclass(frozen=True, slots=True)
class JobEvent:
    """Something that happened, as it happens.

    Attributes:
        time: seconds since the Unix epoch.
        kind: what it is about.
        worker: whom it is about, `worker-3-2`, or empty.
        view: view id, 0 = none.
        step: step, 0 = none.
        text: one readable sentence with the reason, and the duration where there is one.
        seconds: the duration, None if there is none.
        values: what was measured, by name.
    """

    time: float
    kind: EventKind
    worker: str
    view: int
    step: int
    text: str
    seconds: float | None = None
    values: tuple[tuple[str, float], ...] = ()


def values_from_json(body: object) -> tuple[tuple[str, float], ...]:
    """Read `JobEvent.values` of what JSON made of it. Raises ValueError."""
    pairs = (reading.items(pair, 2) for pair in reading.items(body))
    return tuple((reading.text(name), reading.number(value, finite=False)) for name, value in pairs)


def status_from_json(body: object) -> JobStatus:
    """Read a status that `dataclasses.asdict` gave. Raises ValueError."""
    workers = reading.items(reading.field(body, "workers"))
    return reading.record(
        JobStatus, body, workers=tuple(reading.record(WorkerStatus, one) for one in workers)
    )


def how_many(workers: int | None, servers: int | None) -> str:
    """Return numbers in words, `3 workers and 2 parameter servers`; None: nobody speaks of these."""
    counted = ((workers, "worker"), (servers, "parameter server"))
    return " and ".join(count_of(number, what) for number, what in counted if number is not None)


def count_of(number: int, noun: str) -> str:
    """Return `1 worker`, `2 workers`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
