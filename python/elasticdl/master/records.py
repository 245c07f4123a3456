"""The journal's records: the master's only state.

Plain values with JSON forms, and what a reader makes of a sequence of them (`Journal`). No files here: `master/journal.py` appends
by compare-and-set (rule J2) and reads back. Whatever is not in one of these records may be forgotten at any moment, because members
repeat what they said.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, assert_never

from elasticdl.control.view import MemberId, StateId, View, ViewId, view_from_json
from elasticdl.data.shard import Position, Shard
from elasticdl.errors import BadData

FORMAT = 1
"""Format number of the journal; another one is refused and left untouched."""


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
    """The next view; it is told exactly as it stands here (J1)."""

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
    """How many workers the job wants from now on (`scale`)."""

    workers: int


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


Record = (
    EpochRecord | ShardsRecord | ViewRecord | SnapshotRecord | WantedRecord | ErrorRecord | StoppingRecord
    | FinishedRecord | FailedRecord | KnownRecord
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
        errors: the program errors that did not fail the job.
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
    errors: tuple[ErrorRecord, ...] = ()

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
            case WantedRecord(workers):
                return replace(after, wanted=workers)
            case ErrorRecord():
                return replace(after, errors=(*self.errors, record))
            case StoppingRecord(reason):
                return replace(after, stopping=reason)
            case FinishedRecord() | FailedRecord():
                return replace(after, terminal=record)
            case KnownRecord(members):
                return replace(after, known={**dict.fromkeys(members), **self.known})
        assert_never(record)


def read_journal(records: Iterable[Record], length: int | None = None) -> Journal:
    """Return what records say; `length`: number of the last one where older ones were compacted away."""
    journal = Journal()
    for record in records:
        journal = journal.with_record(record)
    return journal if length is None else replace(journal, length=length)


def compact(records: Iterable[Record]) -> tuple[Record, ...]:
    """Return fewer records that say the same (J3): last view, last snapshot, all known ids, epoch, stopping, the end, wanted, errors."""
    journal = read_journal(records)
    kept: list[Record] = [EpochRecord(journal.epoch), KnownRecord(tuple(journal.known))]
    kept += [] if journal.shards is None else [ShardsRecord(journal.shards)]
    kept += [] if journal.view is None else [ViewRecord(journal.view)]
    kept += [] if journal.snapshot is None else [journal.snapshot]
    kept += [] if journal.wanted is None else [WantedRecord(journal.wanted)]
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
                "position": [position.epoch, position.first_task, position.slots, position.chunk], "path": path,
            }  # fmt: skip
        case WantedRecord(workers):
            return {"type": "wanted", "workers": workers}
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
    assert_never(record)


def record_from_json(body: dict[str, Any]) -> Record:
    """Read a record from what `record_to_json` wrote. Raises BadData for anything else."""
    try:
        record: Record = _READERS[body["type"]](body)
    except (KeyError, TypeError, ValueError) as error:
        raise BadData(f"not a journal record of format {FORMAT}: {str(body)[:200]}") from error
    return record


_READERS: dict[str, Any] = {
    "epoch": lambda b: EpochRecord(int(b["epoch"])),
    "shards": lambda b: ShardsRecord(tuple(Shard(str(n), int(s), int(c)) for n, s, c in b["shards"])),
    "view": lambda b: ViewRecord(view_from_json(b["view"])),
    "snapshot": lambda b: SnapshotRecord(
        ViewId(int(b["view"])), StateId(*b["state"]), Position(*b["position"]), str(b["path"])
    ),
    "wanted": lambda b: WantedRecord(int(b["workers"])),
    "error": lambda b: ErrorRecord(str(b["worker"]), str(b["signature"])),
    "stopping": lambda b: StoppingRecord(str(b["reason"])),
    "finished": lambda b: FinishedRecord(
        ViewId(int(b["view"])),
        StateId(*b["state"]),
        str(b["path"]),
        str(b["digest"]),
        tuple((str(name), float(value)) for name, value in b["metrics"]),
    ),
    "failed": lambda b: FailedRecord(str(b["reason"]), str(b["kind"]), str(b["worker"]), str(b["traceback"])),
    "known": lambda b: KnownRecord(tuple(MemberId(member) for member in b["members"])),
}
