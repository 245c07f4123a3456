"""The JSON form of the journal's records: what is kept of each, and how it is read back.

Whatever reads as a record has all its fields, of their kinds; what records mean together is in `records.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, astuple
from typing import Any, TypeVar, assert_never

from elasticdl.cluster.cluster import process_name
from elasticdl.control.protocol.view import MemberId, StateId, ViewId, view_from_json
from elasticdl.data.plan.loopplan import LoopPlan
from elasticdl.data.plan.shard import Position, Shard
from elasticdl.errors import BadData
from elasticdl.files.reading import field as field_of
from elasticdl.files.reading import fields, flag, integer, items, number, text
from elasticdl.master.core.done import Done, TaskNumber
from elasticdl.master.core.entry import Entry, ServerId
from elasticdl.master.core.records import (
    CheckpointRecord,
    CutRecord,
    DoneRecord,
    EpochRecord,
    ErrorRecord,
    EvaluatedRecord,
    FailedRecord,
    FinishedRecord,
    Fruitless,
    KnownRecord,
    LaunchedRecord,
    ModelRecord,
    PlacementRecord,
    PositionRecord,
    Record,
    ResumedRecord,
    ResumedStateRecord,
    SavedRecord,
    Server,
    ShardsRecord,
    SnapshotRecord,
    StoppingRecord,
    ViewRecord,
    WantedRecord,
    WorkersRecord,
)

FORMAT = 6
"""Format number of the journal; another one is refused and left untouched."""
_MOST_SLOTS = 1 << 16
"""Of any model, in the core."""

_Value = TypeVar("_Value")


def record_to_json(record: Record) -> dict[str, Any]:
    """Return a record as plain JSON values; `record_from_json` is the inverse."""
    match record:
        case EpochRecord(epoch):
            return {"type": "epoch", "epoch": epoch}
        case ShardsRecord(shards, validation, plan):
            return {
                "type": "shards",
                "shards": _shards_to_json(shards),
                "validation": _shards_to_json(validation),
                **({} if plan is None else {"plan": asdict(plan)}),
            }
        case ViewRecord(view, evicted, fruitless):
            count = [fruitless.views, fruitless.held]
            return {"type": "view", "view": view.to_json(), "evicted": list(evicted), "fruitless": count}
        case SnapshotRecord(view_id, state, position, path, number, passed):
            return {
                "type": "snapshot", "view": view_id, "state": [state.step, state.view],
                "position": list(astuple(position)), "path": path, "number": number, "passed": passed,
            }  # fmt: skip
        case ResumedStateRecord(number, path, state, position, passed):
            return {
                "type": "resumed-state", "number": number, "path": path, "state": [state.step, state.view],
                "position": list(astuple(position)), "passed": passed,
            }  # fmt: skip
        case CheckpointRecord(path):
            return {"type": "checkpoint", "path": path}
        case EvaluatedRecord():
            return {"type": "evaluated", **_evaluated_to_json(record)}
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
        case LaunchedRecord(lives):
            return {"type": "launched", "lives": [str(life) for life in lives]}
        case WorkersRecord(joined, left, evicted):
            return {
                "type": "workers",
                "joined": list(joined),
                "left": list(left),
                "evicted": list(evicted),
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
        case CutRecord(number, position, roll_back, step, best):
            body = {"number": number, "position": _done_to_json(position), "roll_back": roll_back}
            return {"type": "cut", **body, "step": step, "best": best}
        case SavedRecord(number, path):
            return {"type": "saved", "number": number, "path": path}
        case ResumedRecord(number, path, position, roll_back, renumbered, model, step, barriers):
            where = {"number": number, "path": path, "position": _done_to_json(position)}
            return {
                "type": "resumed",
                **where,
                "roll_back": roll_back,
                "renumbered": renumbered,
                "model": model,
                "step": step,
                "barriers": [_evaluated_to_json(one) for one in barriers],
            }
    assert_never(record)


def _shards_to_json(shards: tuple[Shard, ...]) -> list[Any]:
    return [list(astuple(shard)) for shard in shards]


def _evaluated_to_json(record: EvaluatedRecord) -> dict[str, Any]:
    return {
        "state": [record.state.step, record.state.view],
        "values": [list(item) for item in record.values],
        "seconds": record.seconds,
        "task": record.task,
        "epoch": record.epoch,
        "epoch_ended": record.epoch_ended,
    }


def _done_to_json(done: Done) -> list[Any]:
    return [done.low, list(done.above)]


def _read_evaluated(body: _Body) -> EvaluatedRecord:
    return EvaluatedRecord(
        _read_state(body["state"]),
        tuple(map(_read_metric, items(body["values"]))),
        number(body["seconds"]),
        _task(body["task"]),
        integer(body["epoch"]),
        flag(body["epoch_ended"]),
    )


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
    name, start, count, block, fingerprint = items(body, 5)
    return Shard(text(name), integer(start), integer(count), integer(block, 1), text(fingerprint))


def _read_plan(body: object) -> LoopPlan:
    plan = _Body(fields(body))
    return LoopPlan(
        records=integer(plan["records"]),
        batch_size=integer(plan["batch_size"], 1),
        num_epochs=integer(plan["num_epochs"]),
        shuffle=flag(plan["shuffle"]),
        global_batch_size=integer(plan["global_batch_size"]),
        max_step=integer(plan["max_step"]),
        seed=integer(plan["seed"]),
    )


def _read_state(body: object) -> StateId:
    return StateId(*map(integer, items(body, 2)))


def _read_metric(body: object) -> tuple[str, float]:
    name, value = items(body, 2)
    return text(name), number(value, finite=False)


def _names(body: object) -> tuple[str, ...]:
    return tuple(map(text, items(body)))


def _fruitless(body: object) -> Fruitless:
    views, held = items(body, 2)
    return Fruitless(integer(views), integer(held))


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
    """The fields of a record, each of which has to be there if it is not asked for with `get`."""

    def __init__(self, body: Mapping[str, Any]) -> None:
        self._body = body

    def __getitem__(self, name: str) -> Any:
        return field_of(self._body, name)

    def get(self, name: str) -> Any:
        return self._body.get(name)


_READERS: dict[str, Callable[[_Body], Record]] = {
    "epoch": lambda b: EpochRecord(integer(b["epoch"])),
    "shards": lambda b: ShardsRecord(
        tuple(map(_read_shard, items(b["shards"]))),
        tuple(map(_read_shard, items(b["validation"]))),
        _optional(_read_plan, b.get("plan")),
    ),
    "view": lambda b: ViewRecord(view_from_json(b["view"]), _names(b["evicted"]), _fruitless(b["fruitless"])),
    "launched": lambda b: LaunchedRecord(tuple(map(process_name, _names(b["lives"])))),
    "workers": lambda b: WorkersRecord(_names(b["joined"]), _names(b["left"]), _names(b["evicted"])),
    "snapshot": lambda b: SnapshotRecord(
        ViewId(integer(b["view"])),
        _read_state(b["state"]),
        Position(*map(integer, items(b["position"], 4))),
        text(b["path"]),
        integer(b["number"]),
        flag(b["passed"]),
    ),
    "resumed-state": lambda b: ResumedStateRecord(
        integer(b["number"]),
        text(b["path"]),
        _read_state(b["state"]),
        Position(*map(integer, items(b["position"], 4))),
        flag(b["passed"]),
    ),
    "checkpoint": lambda b: CheckpointRecord(text(b["path"])),
    "evaluated": _read_evaluated,
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
        integer(b["number"]),
        _read_done(b["position"]),
        integer(b["roll_back"]),
        integer(b["step"]),
        flag(b["best"]),
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
        tuple(_read_evaluated(_Body(fields(one))) for one in items(b["barriers"])),
    ),
    "position": lambda b: PositionRecord(_read_done(b["done"]), integer(b["roll_back"])),
}
