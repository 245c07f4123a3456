"""The journal's records: the master's only state.

Plain values, and what a reader makes of a sequence of them (`Journal`). Their JSON is in `recordforms.py`, and no files are here:
`journal.py` appends by compare-and-set (rule J2) and reads back. Whatever is not in one of these records may be forgotten at any moment,
because members repeat what they said. One file because the journal is what its records make of each other.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import assert_never

from msgspec import Struct

from elasticdl.cluster.cluster import ProcessName, Role
from elasticdl.control.protocol.frozen import replace
from elasticdl.control.protocol.messages import MetricValues
from elasticdl.control.protocol.view import MemberId, StateId, View, ViewId
from elasticdl.data.plan.loopplan import LoopPlan
from elasticdl.data.plan.shard import Position, Shard
from elasticdl.errors import BadData
from elasticdl.master.core.done import FIRST, Done, TaskNumber
from elasticdl.master.core.entry import Entry, ServerId


class EpochRecord(Struct, frozen=True):
    """A master began: its epoch, one more than any before."""

    epoch: int


class ShardsRecord(Struct, frozen=True):
    """The job's data, for all members and for ever.

    Attributes:
        shards: what is trained on.
        validation: what is evaluated while the model is trained, if anything is.
        plan: of a custom training loop, as its first worker said.
    """

    shards: tuple[Shard, ...]
    validation: tuple[Shard, ...] = ()
    plan: LoopPlan | None = None


class Fruitless(Struct, frozen=True):
    """Views in a row that had the same members at the same step, while nothing was computed (D11).

    Attributes:
        views: how many, the first of them not counted.
        held: the most chunks that their members held of the step.
    """

    views: int = 0
    held: int = 0


class ViewRecord(Struct, frozen=True):
    """The next view; it is sent exactly as it is here (J1).

    Attributes:
        view: the view.
        evicted: names of the workers of the view before that are left out on suspicion, and killed if they do not end.
        fruitless: views before it without progress.
    """

    view: View
    evicted: tuple[str, ...] = ()
    fruitless: Fruitless = Fruitless()


class SnapshotRecord(Struct, frozen=True):
    """A state that all members of a view held is saved (D6).

    Attributes:
        view: whose members.
        state: of the model.
        position: of that state.
        path: of the manifest; what is there may have its name after this record only.
        number: of the checkpoint.
        passed: the state's gate was passed before.
    """

    view: ViewId
    state: StateId
    position: Position
    path: str
    number: int = 0
    passed: bool = False


class WantedRecord(Struct, frozen=True):
    """How many workers and parameter servers the job wants from now on (`scale`); None: as many as before."""

    workers: int | None
    servers: int | None = None


class LaunchedRecord(Struct, frozen=True):
    """These lives of processes were started: their names are in use for ever, also when the cluster has forgotten them."""

    lives: tuple[ProcessName, ...]


class ErrorRecord(Struct, frozen=True):
    """A program error that did not fail the job (D10): the worker is started once more.

    Attributes:
        worker: name of the life that had it, `worker-3-2`.
        signature: the exception's type and last frame in the user's code.
    """

    worker: str
    signature: str


class StoppingRecord(Struct, frozen=True):
    """An early end was asked for: every view decided from now on is final (D7)."""

    reason: str


class EvaluatedRecord(Struct, frozen=True):
    """Metrics of `state`, once and for ever: nobody acts on others (G4).

    Attributes:
        state: of the model.
        values: its metrics.
        seconds: how long the evaluation took.
        task: with parameter servers, all tasks before it are trained and none from it on is (B1); the view of the state is the roll-back.
        epoch: with parameter servers, that of the last task before.
        epoch_ended: it ends there, and callbacks hear of that; then there may be no metrics (B5).
    """

    state: StateId
    values: MetricValues
    seconds: float
    task: TaskNumber = FIRST
    epoch: int = 0
    epoch_ended: bool = False


class FinishedRecord(Struct, frozen=True):
    """Terminal: the job's result is the export of `state` at `path`; its final name follows the record (D7)."""

    view: ViewId
    state: StateId
    path: str
    digest: str = ""
    metrics: tuple[tuple[str, float], ...] = ()


class FailedRecord(Struct, frozen=True):
    """Terminal: the job has failed (D10).

    Attributes:
        reason: one sentence for people.
        kind: `program`, `bad-input`, `nan`, `unwritable`, `storage` or `lost` (exit code 2 for `bad-input`, else 1).
        worker: who had the error, or empty.
        traceback: the user's traceback, or empty.
    """

    reason: str
    kind: str = "program"
    worker: str = ""
    traceback: str = ""


class KnownRecord(Struct, frozen=True):
    """Only in a compacted journal (J3): every member id that ever stood in a view, in the order of their first view."""

    members: tuple[MemberId, ...]


# ------------------------------------------------------------------ jobs with parameter servers


class ModelRecord(Struct, frozen=True):
    """What the job's model has on parameter servers, for ever; as JSON that only workers and servers read."""

    catalog: str


class Server(Struct, frozen=True):
    """A parameter server.

    Attributes:
        number: given once.
        name: of its process.
        address: where it listens.
    """

    number: ServerId
    name: str
    address: str


class PlacementRecord(Struct, frozen=True):
    """Servers and slots as they are from now on, one compare-and-append for all that follows from one thing.

    Attributes:
        joined: servers that are new.
        gone: servers that are lost, or were emptied.
        entries: slots with another entry → it.
        position: of a roll-back: what stays done at most (R24); None: there is none.
    """

    joined: tuple[Server, ...] = ()
    gone: tuple[ServerId, ...] = ()
    entries: tuple[tuple[int, Entry], ...] = ()
    position: Done | None = None


class WorkersRecord(Struct, frozen=True):
    """Workers that take part from now on, and that do so no more; a synchronous job's are in its views.

    Attributes:
        joined: names of those that are new, or are heard of again.
        left: of those that have ended, or leave.
        evicted: of those that do not answer, and are killed if they do not end.
    """

    joined: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    evicted: tuple[str, ...] = ()


class DoneRecord(Struct, frozen=True):
    """All chunks of these tasks are applied (R22), by attempts that began in this roll-back."""

    tasks: tuple[TaskNumber, ...]
    roll_back: int


class PositionRecord(Struct, frozen=True):
    """Only in a compacted journal: what is done, and the number of roll-backs."""

    done: Done
    roll_back: int


class CutRecord(Struct, frozen=True):
    """A snapshot of all slots is begun, with its position: the tasks done at that moment (R26), and the steps before `step` (A6).

    `best`: it is of the barrier that it is cut at, where the metrics are the best so far (B4).
    """

    number: int
    position: Done
    roll_back: int
    step: int = 0
    best: bool = False


class SavedRecord(Struct, frozen=True):
    """That snapshot is whole, and its manifest lies at `path` (R27)."""

    number: int
    path: str


class ResumedRecord(Struct, frozen=True):
    """The job continues from a checkpoint of an earlier one (R28).

    Attributes:
        number: the highest of a checkpoint so far, where this job writes its own.
        path: manifest of the checkpoint.
        position: what is done.
        roll_back: number of the first roll-back of this job: that by which all slots are restored.
        renumbered: numbers of tasks mean others than in the checkpoint, and those before this one are done; None: they mean the same.
        model: what is on parameter servers.
        step: the step at which slots begin; 0 where each push is applied by itself.
        barriers: that were passed in it, up to the position.
    """

    number: int
    path: str
    position: Done
    roll_back: int
    renumbered: TaskNumber | None
    model: str
    step: int = 0
    barriers: tuple[EvaluatedRecord, ...] = ()


class ResumedStateRecord(Struct, frozen=True):
    """A synchronous job continues from a checkpoint of an earlier one: all its members begin with that state.

    Attributes:
        number: the highest of a checkpoint so far, where this job writes its own.
        path: manifest of the checkpoint.
        state: as this job calls it: of no view.
        position: of that state, in this job's data.
        passed: the state's gate was passed.
    """

    number: int
    path: str
    state: StateId
    position: Position
    passed: bool


class CheckpointRecord(Struct, frozen=True):
    """A job evaluates or predicts with the weights of a checkpoint; `path`: of its manifest."""

    path: str


Record = (
    EpochRecord | ShardsRecord | ViewRecord | SnapshotRecord | WantedRecord | ErrorRecord | StoppingRecord
    | FinishedRecord | FailedRecord | KnownRecord | ModelRecord | PlacementRecord | DoneRecord | PositionRecord
    | CutRecord | SavedRecord | ResumedRecord | LaunchedRecord | WorkersRecord | EvaluatedRecord
    | ResumedStateRecord | CheckpointRecord
)  # fmt: skip
Terminal = FinishedRecord | FailedRecord

MOST_EVALUATED = 256
"""States whose metrics are kept: a job without snapshots would keep all."""
MOST_BARRIERS = 1024
"""Barriers that are kept, the last ones: workers that join pass them. Of those before, only what was lowest or highest is."""


@dataclass(frozen=True, slots=True)
class Journal:
    """What a sequence of records says; the part of a master that outlives it.

    Attributes:
        length: number of records that exist; the next one is `length + 1`.
        epoch: highest master epoch.
        shards: the job's data, None until it is known.
        validation: the data that is evaluated.
        plan: of a custom training loop, None with model files.
        view: the current view, None before the first.
        known: ids that ever stood in a view, oldest first (D8).
        snapshot: the last snapshot.
        evaluated: metrics of states that a member may still be at, by state.
        stopping: the reason of an early end, or None.
        terminal: the last record of a job that has ended.
        wanted: how many workers `scale` asked for, or None.
        wanted_servers: how many parameter servers, or None.
        errors: the program errors that did not fail the job.
        launched: the last life of each process that was started.
        workers: names of the workers that take part in a job with parameter servers.
        evicted: names of the workers that were left out on suspicion and are not known to have ended.
        fruitless: views before the last one without progress.
        model: what is on parameter servers, None until it is known.
        servers: parameter servers that are there, as far as anybody knows.
        next_server: the number of the next one.
        entries: by slot; none before the first placement.
        pairs: of each primary and backup that some slot has, one slot's entry: a question about servers looks at these, not at all slots.
        done: tasks that are done.
        roll_back: how often the job was rolled back.
        cut: the last snapshot of slots that was begun.
        saved: the last one that is whole, and how it was begun.
        resumed: the checkpoint from which the job continued, None if it began anew.
        resumed_state: that from which a synchronous job continued.
        checkpoint: the manifest of that with whose weights the job evaluates or predicts, None if it is not known or there is none.
    """

    length: int = 0
    epoch: int = 0
    shards: tuple[Shard, ...] | None = None
    validation: tuple[Shard, ...] = ()
    plan: LoopPlan | None = None
    view: View | None = None
    known: Mapping[MemberId, None] = field(default_factory=dict)
    snapshot: SnapshotRecord | None = None
    evaluated: dict[StateId, EvaluatedRecord] = field(default_factory=dict)
    stopping: str | None = None
    terminal: Terminal | None = None
    wanted: int | None = None
    wanted_servers: int | None = None
    errors: tuple[ErrorRecord, ...] = ()
    launched: Mapping[tuple[Role, int], ProcessName] = field(default_factory=dict)
    workers: frozenset[str] = frozenset()
    evicted: frozenset[str] = frozenset()
    fruitless: Fruitless = field(default_factory=Fruitless)
    model: str | None = None
    servers: Mapping[ServerId, Server] = field(default_factory=dict)
    next_server: int = 0
    entries: tuple[Entry, ...] = ()
    pairs: tuple[Entry, ...] = ()
    done: Done = field(default_factory=Done)
    roll_back: int = 0
    cut: CutRecord | None = None
    saved: tuple[SavedRecord, CutRecord] | None = None
    resumed: ResumedRecord | None = None
    resumed_state: ResumedStateRecord | None = None
    checkpoint: str | None = None

    @property
    def last_barrier(self) -> EvaluatedRecord | None:
        """Return the last barrier that is passed, of those that are not forgotten; None if there is none."""
        last = next(reversed(self.evaluated), None)
        return None if last is None else self.evaluated[last]

    @property
    def data(self) -> ShardsRecord | None:
        """Return the record of the job's data, None until it is known."""
        return None if self.shards is None else ShardsRecord(self.shards, self.validation, self.plan)

    @property
    def has_begun(self) -> bool:
        """Tell whether it says who trains what: then there may be a model that is trained."""
        return self.view is not None or bool(self.entries)

    def with_record(self, record: Record) -> Journal:
        """Return what the journal says with one more record."""
        after = replace(self, length=self.length + 1)
        match record:
            case EpochRecord(epoch):
                return replace(after, epoch=max(self.epoch, epoch))
            case ShardsRecord(shards, validation, plan):
                return replace(after, shards=shards, validation=validation, plan=plan)
            case ViewRecord(view, evicted, fruitless):
                known = {**self.known, **dict.fromkeys(peer.id for peer in view.members)}
                evaluated = self._still_evaluated(view)
                return replace(
                    after,
                    view=view,
                    known=known,
                    evicted=self.evicted.union(evicted),
                    evaluated=evaluated,
                    fruitless=fruitless,
                )
            case LaunchedRecord(lives):
                last = dict(self.launched)
                for life in lives:
                    key = life.role, life.index
                    last[key] = max(life, last.get(key, life))
                return replace(after, launched=last)
            case WorkersRecord(joined, left, evicted):
                return replace(
                    after,
                    workers=self.workers.union(joined).difference(left, evicted),
                    evicted=self.evicted.difference(joined, left).union(evicted),
                )
            case SnapshotRecord():
                return replace(after, snapshot=record)
            case EvaluatedRecord(state):
                evaluated = {**self.evaluated, state: record}
                # No view trims what a job with servers keeps.
                return replace(after, evaluated=_kept(evaluated) if record.task else evaluated)
            case WantedRecord(workers, servers):
                return replace(
                    after,
                    wanted=self.wanted if workers is None else workers,
                    wanted_servers=self.wanted_servers if servers is None else servers,
                )
            case ErrorRecord():
                return replace(after, errors=(*self.errors, record))
            case StoppingRecord(reason):
                return replace(after, stopping=reason)
            case FinishedRecord() | FailedRecord():
                return replace(after, terminal=record)
            case KnownRecord(members):
                return replace(after, known={**dict.fromkeys(members), **self.known})
            case ModelRecord(catalog):
                return replace(after, model=catalog)
            case PlacementRecord():
                return after._placed(record)
            case DoneRecord(tasks, roll_back):
                done = self.done
                for task in tasks if roll_back == self.roll_back else ():
                    done = done.with_task(task)
                return replace(after, done=done)
            case PositionRecord(done, roll_back):
                return replace(after, done=done, roll_back=roll_back)
            case CutRecord():
                return replace(after, cut=record)
            case SavedRecord(number):
                if self.cut is None:
                    raise BadData(f"snapshot {number} is whole, and was never begun")
                return replace(after, saved=(record, self.cut)) if number == self.cut.number else after
            case ResumedRecord(number, path, position, roll_back, _, model, step, barriers):
                cut = CutRecord(number, position, roll_back - 1, step)
                return replace(
                    after,
                    resumed=record,
                    model=model,
                    done=position,
                    roll_back=roll_back,
                    cut=cut,
                    saved=(SavedRecord(number, path), cut),
                    evaluated={one.state: one for one in barriers},
                )
            case ResumedStateRecord(number, path, state, position, passed):
                snapshot = SnapshotRecord(ViewId(0), state, position, path, number, passed)
                return replace(after, resumed_state=record, snapshot=snapshot)
            case CheckpointRecord(path):
                return replace(after, checkpoint=path)
        assert_never(record)

    def _still_evaluated(self, view: View) -> dict[StateId, EvaluatedRecord]:
        """J3: return the metrics from a view's base on, and of the last snapshot's state and those that a later snapshot may be of."""
        oldest = 0 if self.snapshot is None else self.snapshot.state.step
        kept = {
            state: one for state, one in self.evaluated.items() if state.step >= min(oldest, view.base.step)
        }
        return dict(list(kept.items())[-MOST_EVALUATED:])

    def _placed(self, record: PlacementRecord) -> Journal:
        servers = {**self.servers, **{server.number: server for server in record.joined}}
        following = max((self.next_server, *(server.number + 1 for server in record.joined)))
        for gone in record.gone:
            servers.pop(gone, None)
        entries = list(self.entries)
        for slot, entry in record.entries:
            if slot > len(entries):
                raise BadData(f"slot {slot} is placed, and of those before it only {len(entries)}")
            if entry.primary == entry.backup or max(entry.primary, entry.backup or 0) >= following:
                raise BadData(
                    f"slot {slot} is placed on servers {entry.primary} and {entry.backup}; numbers were given to {following}"
                )
            entries[slot : slot + 1] = [entry]
        pairs = {(entry.primary, entry.backup): entry for entry in entries}
        after = replace(
            self,
            servers=servers,
            next_server=following,
            entries=tuple(entries),
            pairs=tuple(pairs.values()),
        )
        if record.position is None:
            return after
        done = self.done.common(record.position)
        # B3: what is trained once more is evaluated once more.
        evaluated = {state: one for state, one in self.evaluated.items() if one.task <= done.low}
        return replace(after, done=done, roll_back=self.roll_back + 1, evaluated=evaluated)


def _kept(barriers: dict[StateId, EvaluatedRecord]) -> dict[StateId, EvaluatedRecord]:
    """Return the last barriers, and of those before where each metric was lowest and highest: one of them may still be the best (B4)."""
    count = len(barriers) - MOST_BARRIERS
    if count <= 0:
        return barriers
    older, recent = list(barriers.items())[:count], list(barriers.items())[count:]
    lowest: dict[str, tuple[float, StateId]] = {}
    highest: dict[str, tuple[float, StateId]] = {}
    for state, record in older:
        for name, value in record.values:
            if not math.isfinite(value):
                continue
            if name not in lowest or value < lowest[name][0]:
                lowest[name] = value, state
            if name not in highest or value > highest[name][0]:
                highest[name] = value, state
    extreme = {state for _, state in (*lowest.values(), *highest.values())}
    return dict([*((state, record) for state, record in older if state in extreme), *recent])


def read_journal(records: Iterable[Record], length: int | None = None) -> Journal:
    """Return what records say; `length`: number of the last one where older ones were compacted away. Raises BadData for what can't be."""
    journal = Journal()
    for record in records:
        journal = journal.with_record(record)
    return journal if length is None else replace(journal, length=length)


def compact(records: Iterable[Record]) -> tuple[Record, ...]:
    """Return fewer records that say the same (J3): the last of each kind that replaces what was before, of others the sum."""
    journal = read_journal(records)
    kept: list[Record] = [EpochRecord(journal.epoch), KnownRecord(tuple(journal.known))]
    kept += [] if journal.data is None else [journal.data]
    kept += [] if journal.checkpoint is None else [CheckpointRecord(journal.checkpoint)]
    kept += [] if journal.view is None else [ViewRecord(journal.view, fruitless=journal.fruitless)]
    kept += [] if journal.resumed_state is None else [journal.resumed_state]
    kept += [] if journal.snapshot is None else [journal.snapshot]
    kept += [] if journal.resumed is None else [journal.resumed]
    kept += journal.evaluated.values()
    kept += [] if journal.model is None else [ModelRecord(journal.model)]
    if journal.next_server:
        last = Server(ServerId(journal.next_server - 1), "", "")
        gone = () if last.number in journal.servers else (last.number,)
        joined = (*((last,) if gone else ()), *journal.servers.values())
        kept.append(PlacementRecord(joined, gone, tuple(enumerate(journal.entries))))
    kept += [PositionRecord(journal.done, journal.roll_back)] if journal.entries else []
    if journal.saved is not None:
        kept += reversed(journal.saved)
    kept += [] if journal.cut is None or journal.cut in kept else [journal.cut]
    workers = WorkersRecord(tuple(sorted(journal.workers)), (), tuple(sorted(journal.evicted)))
    kept += [] if workers == WorkersRecord() else [workers]
    kept += [LaunchedRecord(tuple(journal.launched.values()))] if journal.launched else []
    wanted = WantedRecord(journal.wanted, journal.wanted_servers)
    kept += [] if wanted == WantedRecord(None) else [wanted]
    kept += journal.errors
    kept += [] if journal.stopping is None else [StoppingRecord(journal.stopping)]
    kept += [] if journal.terminal is None else [journal.terminal]
    return tuple(kept)
