"""The journal's records: the master's only state.

Plain values with JSON forms, and what a reader makes of a sequence of them (`Journal`). No files here: `journal.py` appends
by compare-and-set (rule J2) and reads back. Whatever is not in one of these records may be forgotten at any moment, because members
repeat what they said.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar, assert_never

from elasticdl.control.protocol.view import MemberId, StateId, View, ViewId, view_from_json
from elasticdl.data.plan.shard import Position, Shard
from elasticdl.errors import BadData
from elasticdl.files.reading import field as field_of
from elasticdl.files.reading import fields, integer, items, number, text
from elasticdl.master.core.done import Done, TaskNumber
from elasticdl.master.core.entry import Entry, ServerId

FORMAT = 2
"""Format number of the journal; another one is refused and left untouched."""
_MOST_SLOTS = 1 << 16
"""Of any model, in the core."""

_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class EpochRecord:
    """A master began: its epoch, one more than any before."""

    epoch: int


@dataclass(frozen=True, slots=True)
class ShardsRecord:
    """The job's data, for all members and for ever."""

    shards: tuple[Shard, ...]


@dataclass(frozen=True, slots=True)
class ViewRecord:
    """The next view; it is sent exactly as it is here (J1)."""

    view: View


@dataclass(frozen=True, slots=True)
class SnapshotRecord:
    """A stable state lies at `path` (D6)."""

    view: ViewId
    state: StateId
    position: Position
    path: str


@dataclass(frozen=True, slots=True)
class WantedRecord:
    """How many workers and parameter servers the job wants from now on (`scale`); None: as many as before."""

    workers: int | None
    servers: int | None = None


@dataclass(frozen=True, slots=True)
class ErrorRecord:
    """A program error that did not fail the job (D10): the worker is started once more.

    Attributes:
        worker: name of the life that had it, `worker-3-2`.
        signature: the exception's type and last frame in the user's code.
    """

    worker: str
    signature: str


@dataclass(frozen=True, slots=True)
class StoppingRecord:
    """An early end was asked for: every view decided from now on is final (D7)."""

    reason: str


@dataclass(frozen=True, slots=True)
class FinishedRecord:
    """Terminal: the job's result is the export of `state` at `path`; its final name follows the record (D7)."""

    view: ViewId
    state: StateId
    path: str
    digest: str = ""
    metrics: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class FailedRecord:
    """Terminal: the job has failed (D10).

    Attributes:
        reason: one sentence for people.
        kind: `program`, `bad-input` or `lost` (exit code 2 for `bad-input`, else 1).
        worker: who had the error, or empty.
        traceback: the user's traceback, or empty.
    """

    reason: str
    kind: str = "program"
    worker: str = ""
    traceback: str = ""


@dataclass(frozen=True, slots=True)
class KnownRecord:
    """Only in a compacted journal (J3): every member id that ever stood in a view, in the order of their first view."""

    members: tuple[MemberId, ...]


# ------------------------------------------------------------------ jobs with parameter servers


@dataclass(frozen=True, slots=True)
class ModelRecord:
    """What the job's model has on parameter servers, for ever; as JSON that only workers and servers read."""

    catalog: str


@dataclass(frozen=True, slots=True)
class Server:
    """A parameter server.

    Attributes:
        number: given once.
        name: of its process.
        address: where it listens.
    """

    number: ServerId
    name: str
    address: str


@dataclass(frozen=True, slots=True)
class PlacementRecord:
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


@dataclass(frozen=True, slots=True)
class DoneRecord:
    """All chunks of these tasks are applied (R22), by attempts that began in this roll-back."""

    tasks: tuple[TaskNumber, ...]
    roll_back: int


@dataclass(frozen=True, slots=True)
class PositionRecord:
    """Only in a compacted journal: what is done, and the number of roll-backs."""

    done: Done
    roll_back: int


@dataclass(frozen=True, slots=True)
class CutRecord:
    """A snapshot of all slots is begun, with its position: the tasks done at that moment (R26), and the steps before `step` (A6)."""

    number: int
    position: Done
    roll_back: int
    step: int = 0


@dataclass(frozen=True, slots=True)
class SavedRecord:
    """That snapshot is whole, and its manifest lies at `path` (R27)."""

    number: int
    path: str


@dataclass(frozen=True, slots=True)
class ResumedRecord:
    """The job continues from a checkpoint of an earlier one (R28).

    Attributes:
        number: the highest of a checkpoint so far, where this job writes its own.
        path: manifest of the checkpoint.
        position: what is done.
        roll_back: number of the first roll-back of this job: that by which all slots are restored.
        renumbered: numbers of tasks mean others than in the checkpoint, and those before this one are done; None: they mean the same.
        model: what is on parameter servers.
        step: the step at which slots begin; 0 where each push is applied by itself.
    """

    number: int
    path: str
    position: Done
    roll_back: int
    renumbered: TaskNumber | None
    model: str
    step: int = 0


Record = (
    EpochRecord | ShardsRecord | ViewRecord | SnapshotRecord | WantedRecord | ErrorRecord | StoppingRecord
    | FinishedRecord | FailedRecord | KnownRecord | ModelRecord | PlacementRecord | DoneRecord | PositionRecord
    | CutRecord | SavedRecord | ResumedRecord
)  # fmt: skip
Terminal = FinishedRecord | FailedRecord


@dataclass(frozen=True, slots=True)
class Journal:
    """What a sequence of records says; the part of a master that outlives it.

    Attributes:
        length: number of records that exist; the next one is `length + 1`.
        epoch: highest master epoch.
        shards: the job's data, None until it is known.
        view: the current view, None before the first.
        known: ids that ever stood in a view, oldest first (D8).
        snapshot: the last snapshot.
        stopping: the reason of an early end, or None.
        terminal: the last record of a job that has ended.
        wanted: how many workers `scale` asked for, or None.
        wanted_servers: how many parameter servers, or None.
        errors: the program errors that did not fail the job.
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
    """

    length: int = 0
    epoch: int = 0
    shards: tuple[Shard, ...] | None = None
    view: View | None = None
    known: Mapping[MemberId, None] = field(default_factory=dict)
    snapshot: SnapshotRecord | None = None
    stopping: str | None = None
    terminal: Terminal | None = None
    wanted: int | None = None
    wanted_servers: int | None = None
    errors: tuple[ErrorRecord, ...] = ()
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
            case ShardsRecord(shards):
                return replace(after, shards=shards)
            case ViewRecord(view):
                return replace(
                    after, view=view, known={**self.known, **dict.fromkeys(peer.id for peer in view.members)}
                )
            case SnapshotRecord():
                return replace(after, snapshot=record)
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
            case ResumedRecord(number, path, position, roll_back, _, model, step):
                cut = CutRecord(number, position, roll_back - 1, step)
                return replace(
                    after,
                    resumed=record,
                    model=model,
                    done=position,
                    roll_back=roll_back,
                    cut=cut,
                    saved=(SavedRecord(number, path), cut),
                )
        assert_never(record)

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
        return replace(after, done=self.done.common(record.position), roll_back=self.roll_back + 1)


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
    kept += [] if journal.shards is None else [ShardsRecord(journal.shards)]
    kept += [] if journal.view is None else [ViewRecord(journal.view)]
    kept += [] if journal.snapshot is None else [journal.snapshot]
    kept += [] if journal.resumed is None else [journal.resumed]
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
    wanted = WantedRecord(journal.wanted, journal.wanted_servers)
    kept += [] if wanted == WantedRecord(None) else [wanted]
    kept += journal.errors
    kept += [] if journal.stopping is None else [StoppingRecord(journal.stopping)]
    kept += [] if journal.terminal is None else [journal.terminal]
    return tuple(kept)


def record_to_json(record: Record) -> dict[str, Any]:
    """Return a record as plain JSON values; `record_from_json` is the inverse."""
    match record:
        case EpochRecord(epoch):
            return {"type": "epoch", "epoch": epoch}
        case ShardsRecord(shards):
            return {"type": "shards", "shards": [[shard.name, shard.start, shard.count] for shard in shards]}
        case ViewRecord(view):
            return {"type": "view", "view": view.to_json()}
        case SnapshotRecord(view_id, state, position, path):
            return {
                "type": "snapshot", "view": view_id, "state": [state.step, state.view],
                "position": [position.epoch, position.first_task, position.lanes, position.chunk], "path": path,
            }  # fmt: skip
        case WantedRecord(workers, servers):
            return {"type": "wanted", "workers": workers, "servers": servers}
        case ErrorRecord(worker, signature):
            return {"type": "error", "worker": worker, "signature": signature}
        case StoppingRecord(reason):
            return {"type": "stopping", "reason": reason}
        case FinishedRecord(view_id, state, path, digest, metrics):
            return {
                "type": "finished", "view": view_id, "state": [state.step, state.view], "path": path,
                "digest": digest, "metrics": [list(item) for item in metrics],
            }  # fmt: skip
        case FailedRecord(reason, kind, worker, traceback):
            return {
                "type": "failed",
                "reason": reason,
                "kind": kind,
                "worker": worker,
                "traceback": traceback,
            }
        case KnownRecord(members):
            return {"type": "known", "members": list(members)}
        case ModelRecord(catalog):
            return {"type": "model", "catalog": catalog}
        case PlacementRecord(joined, gone, entries, position):
            return {
                "type": "placement",
                "joined": [[server.number, server.name, server.address] for server in joined],
                "gone": list(gone),
                "entries": [
                    [slot, one.term, one.primary_epoch, one.primary, one.backup, one.restored]
                    for slot, one in entries
                ],
                "position": None if position is None else _done_to_json(position),
            }
        case DoneRecord(tasks, roll_back):
            return {"type": "done", "tasks": list(tasks), "roll_back": roll_back}
        case PositionRecord(done, roll_back):
            return {"type": "position", "done": _done_to_json(done), "roll_back": roll_back}
        case CutRecord(number, position, roll_back, step):
            body = {"number": number, "position": _done_to_json(position), "roll_back": roll_back}
            return {"type": "cut", **body, "step": step}
        case SavedRecord(number, path):
            return {"type": "saved", "number": number, "path": path}
        case ResumedRecord(number, path, position, roll_back, renumbered, model, step):
            where = {"number": number, "path": path, "position": _done_to_json(position)}
            return {
                "type": "resumed",
                **where,
                "roll_back": roll_back,
                "renumbered": renumbered,
                "model": model,
                "step": step,
            }
    assert_never(record)


def _done_to_json(done: Done) -> list[Any]:
    return [done.low, list(done.above)]


def _read_done(body: object) -> Done:
    low, above = items(body, 2)
    return Done(_task(low), tuple(map(_task, items(above))))


def _read_entry(body: object) -> tuple[int, Entry]:
    slot, term, primary_epoch, primary, backup, restored = items(body, 6)
    return integer(slot, most=_MOST_SLOTS - 1), Entry(
        integer(term),
        integer(primary_epoch),
        ServerId(integer(primary)),
        _optional(lambda value: ServerId(integer(value)), backup),
        integer(restored),
    )


def _read_server(body: object) -> Server:
    number, name, address = items(body, 3)
    return Server(ServerId(integer(number)), text(name), text(address))


def _read_shard(body: object) -> Shard:
    name, start, count = items(body, 3)
    return Shard(text(name), integer(start), integer(count))


def _read_state(body: object) -> StateId:
    return StateId(*map(integer, items(body, 2)))


def _read_metric(body: object) -> tuple[str, float]:
    name, value = items(body, 2)
    return text(name), number(value, finite=False)


def _task(value: object) -> TaskNumber:
    return TaskNumber(integer(value))


def _optional(read: Callable[[object], _Value], value: object) -> _Value | None:
    return None if value is None else read(value)


def record_from_json(body: object) -> Record:
    """Read a record from what `record_to_json` wrote. Raises BadData for anything else."""
    try:
        record: Record = _READERS[text(field_of(body, "type"))](_Body(fields(body)))
    except (KeyError, ValueError) as error:
        raise BadData(f"not a journal record of format {FORMAT}: {error}") from error
    return record


class _Body:
    """The fields of a record, each of which has to be there."""

    def __init__(self, body: Mapping[str, Any]) -> None:
        self._body = body

    def __getitem__(self, name: str) -> Any:
        return field_of(self._body, name)


_READERS: dict[str, Callable[[_Body], Record]] = {
    "epoch": lambda b: EpochRecord(integer(b["epoch"])),
    "shards": lambda b: ShardsRecord(tuple(map(_read_shard, items(b["shards"])))),
    "view": lambda b: ViewRecord(view_from_json(b["view"])),
    "snapshot": lambda b: SnapshotRecord(
        ViewId(integer(b["view"])),
        _read_state(b["state"]),
        Position(*map(integer, items(b["position"], 4))),
        text(b["path"]),
    ),
    "wanted": lambda b: WantedRecord(_optional(integer, b["workers"]), _optional(integer, b["servers"])),
    "error": lambda b: ErrorRecord(text(b["worker"]), text(b["signature"])),
    "stopping": lambda b: StoppingRecord(text(b["reason"])),
    "finished": lambda b: FinishedRecord(
        ViewId(integer(b["view"])),
        _read_state(b["state"]),
        text(b["path"]),
        text(b["digest"]),
        tuple(map(_read_metric, items(b["metrics"]))),
    ),
    "failed": lambda b: FailedRecord(
        text(b["reason"]), text(b["kind"]), text(b["worker"]), text(b["traceback"])
    ),
    "known": lambda b: KnownRecord(tuple(MemberId(text(member)) for member in items(b["members"]))),
    "model": lambda b: ModelRecord(text(b["catalog"])),
    "placement": lambda b: PlacementRecord(
        tuple(map(_read_server, items(b["joined"]))),
        tuple(ServerId(integer(number)) for number in items(b["gone"])),
        tuple(map(_read_entry, items(b["entries"]))),
        _optional(_read_done, b["position"]),
    ),
    "done": lambda b: DoneRecord(tuple(map(_task, items(b["tasks"]))), integer(b["roll_back"])),
    "cut": lambda b: CutRecord(
        integer(b["number"]), _read_done(b["position"]), integer(b["roll_back"]), integer(b["step"])
    ),
    "saved": lambda b: SavedRecord(integer(b["number"]), text(b["path"])),
    "resumed": lambda b: ResumedRecord(
        integer(b["number"]),
        text(b["path"]),
        _read_done(b["position"]),
        integer(b["roll_back"]),
        _optional(_task, b["renumbered"]),
        text(b["model"]),
        integer(b["step"]),
    ),
    "position": lambda b: PositionRecord(_read_done(b["done"]), integer(b["roll_back"])),
}
