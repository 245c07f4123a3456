"""Messages of the control plane to and from their wire form (`proto/elasticdl/v1/control.proto`).

One function per direction and kind of conversation, values in, values out; it opens no connection. Messages whose fields are plain
numbers and words are converted by name, the others one by one, so that a field added on one side only is found by the tests.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Any

from elasticdl.control.generated import control_pb2 as wire
from elasticdl.control.protocol.frozen import field_names
from elasticdl.control.protocol.messages import (
    Acknowledged,
    AtGate,
    Barrier,
    Cut,
    Data,
    Evaluated,
    Evicted,
    Exported,
    Failed,
    Finished,
    FoundShards,
    GateOpen,
    Lost,
    MasterMessage,
    MemberMessage,
    NewView,
    NextView,
    Note,
    Pending,
    ProgramFailed,
    Progress,
    Register,
    Released,
    Report,
    Saved,
    Stop,
    StopJob,
    TaskKind,
    TaskLeased,
    TaskResult,
    UseCheckpoint,
    Welcome,
)
from elasticdl.control.protocol.profiling import (
    Missing,
    Phase,
    Profiled,
    Recorded,
    RecordSteps,
    Refused,
    StepRecorded,
)
from elasticdl.control.protocol.psmessages import (
    Accounts,
    AccountsWanted,
    BarrierPassed,
    CopiesVoid,
    CopyOrdered,
    CopyReady,
    CutOrdered,
    DrainRequest,
    EndTraining,
    Enroll,
    Enrolled,
    FoundMetrics,
    FoundModel,
    Holding,
    Leased,
    Leave,
    Limits,
    Model,
    Placed,
    RevokeTask,
    Settled,
    SlotAccount,
    SlotEntry,
    SlotsCut,
    SlotSection,
    TaskDone,
    Unreached,
    Watermark,
    Workers,
    WriteResult,
)
from elasticdl.control.protocol.status import EventKind, JobEvent, JobStatus, WorkerStatus
from elasticdl.control.protocol.view import MemberId, StateId, View, ViewId, digest_of, view_from_json
from elasticdl.data.plan.loopplan import LoopPlan
from elasticdl.data.plan.shard import Position, Shard


class Malformed(ValueError):
    """Bytes of the other end make no message; that connection ends, and only that one."""


_FROM_MEMBER: dict[type, str] = {
    FoundShards: "found_shards",
    Register: "register",
    NextView: "next_view",
    Lost: "lost",
    Progress: "progress",
    Note: "note",
    Saved: "saved",
    Exported: "exported",
    StopJob: "stop_job",
    ProgramFailed: "program_failed",
    Enroll: "enroll",
    FoundModel: "found_model",
    FoundMetrics: "found_metrics",
    Settled: "settled",
    TaskDone: "task_done",
    BarrierPassed: "barrier_passed",
    Unreached: "unreached",
    CopyReady: "copy_ready",
    Accounts: "accounts",
    SlotsCut: "slots_cut",
    Leave: "leave",
    AtGate: "at_gate",
    TaskResult: "task_result",
    Evaluated: "evaluated",
    StepRecorded: "step_recorded",
}
_TO_MEMBER: dict[type, str] = {
    Welcome: "welcome",
    Data: "data",
    NewView: "view",
    Pending: "pending",
    Stop: "stop",
    Acknowledged: "acknowledged",
    Evicted: "evicted",
    Released: "released",
    Finished: "finished",
    Failed: "failed",
    Enrolled: "enrolled",
    Model: "model",
    Placed: "placed",
    Leased: "leased",
    Watermark: "watermark",
    Limits: "limits",
    Workers: "workers",
    RevokeTask: "revoke_task",
    CopyOrdered: "copy_ordered",
    CopiesVoid: "copies_void",
    CutOrdered: "cut_ordered",
    AccountsWanted: "accounts_wanted",
    DrainRequest: "drain_request",
    WriteResult: "write_result",
    EndTraining: "end_training",
    TaskLeased: "task_leased",
    GateOpen: "gate_open",
    UseCheckpoint: "use_checkpoint",
    RecordSteps: "record_steps",
}
_NOT_PLAIN = frozenset(
    {
        FoundShards, Register, NextView, Progress, Saved, Exported, AtGate, TaskResult, Evaluated, Data, NewView, TaskLeased, GateOpen,
        BarrierPassed,
    }
)  # fmt: skip
_BY_NAME: dict[str, type] = {
    name: kind for kind, name in {**_FROM_MEMBER, **_TO_MEMBER}.items() if kind not in _NOT_PLAIN
}
"""Messages of plain fields only: numbers, words, and rows of either."""
MOST_JOINED = 64
"""Messages that a member says at once: all that it says when its ring breaks, and much more."""
_LEVEL = 1
"""Of zlib for a view: the fastest one; ids are random, and names and addresses are short at any level."""
_VIEW_LIMIT = 16 * 1024 * 1024
"""Bytes of a view's JSON: of more than a hundred thousand members."""
_OF_PART = ("path", "first", "length", "size", "crc", "head", "error")
"""Of a saved part, what is said as it is."""
_ROWS = {kind.__name__: kind for kind in (Holding, SlotEntry, SlotAccount, SlotSection, Phase)}


# ------------------------------------------------------------------ member → master


def encode_member(message: MemberMessage) -> wire.FromMember:
    """Return the wire form of what a member says."""
    name = _FROM_MEMBER[type(message)]
    body: Any
    match message:
        case FoundShards(shards, validation, plan):
            body = wire.FoundShards(
                shards=_shards(shards), validation=_shards(validation), plan=_loop_plan(plan)
            )
        case Register(member, called, address, epoch, report):
            body = wire.Register(
                member=member, name=called, address=address, epoch=epoch, report=_report(report)
            )
        case NextView(report):
            body = wire.NextView(report=_report(report))
        case Progress():
            body = wire.Progress(
                current=message.current,
                state=_state(message.state),
                position=_position(message.position),
                loss=message.loss,
                records=message.records,
                metrics=_figures(message.metrics),
            )
        case Saved(cut, position):
            rest = {name: getattr(message, name) for name in _OF_PART}
            body = wire.Saved(
                view=cut.view,
                state=_state(cut.state),
                passed=cut.passed,
                position=_position(position),
                **rest,
            )
        case Exported(view, state, path, digest, metrics):
            body = wire.Exported(
                view=view, state=_state(state), path=path, digest=digest, metrics=_figures(metrics)
            )
        case AtGate(view, state, metrics):
            body = wire.AtGate(view=view, state=_state(state), metrics=metrics)
        case TaskResult(state, task, result):
            body = wire.TaskResult(state=_state(state), task=task, body=result)
        case Evaluated(state, values):
            body = wire.Evaluated(state=_state(state), values=_figures(values))
        case BarrierPassed(state, stop):
            body = wire.BarrierPassed(state=_state(state), stop=stop)
        case _:
            body = _plain(getattr(wire, type(message).__name__), message)
    return wire.FromMember(**{name: body})


def decode_member(message: wire.FromMember) -> MemberMessage:
    """Read what a member said. Raises Malformed."""
    name, body = _one_of(message)
    decoded: MemberMessage
    match name:
        case "found_shards":
            decoded = FoundShards(
                _read_shards(body.shards), _read_shards(body.validation), _read_loop_plan(body)
            )
        case "register":
            decoded = Register(
                MemberId(body.member), body.name, body.address, body.epoch, _read_report(body.report)
            )
        case "next_view":
            decoded = NextView(_read_report(body.report))
        case "progress":
            decoded = Progress(
                ViewId(body.current),
                _read_state(body.state),
                _read_position(body.position),
                _optional(body, "loss"),
                body.records,
                _read_figures(body.metrics),
            )
        case "note":
            decoded = _read_plain(Note, body, kind=_read_kind(body.kind))
        case "saved":
            cut = Cut(ViewId(body.view), _read_state(body.state), body.passed)
            rest = {name: getattr(body, name) for name in _OF_PART}
            decoded = Saved(cut, _read_position(body.position), **rest)
        case "exported":
            decoded = Exported(
                ViewId(body.view),
                _read_state(body.state),
                body.path,
                body.digest,
                _read_figures(body.metrics),
            )
        case "at_gate":
            decoded = AtGate(ViewId(body.view), _read_state(body.state), body.metrics)
        case "task_result":
            decoded = TaskResult(_read_state(body.state), body.task, body.body)
        case "evaluated":
            decoded = Evaluated(_read_state(body.state), _read_figures(body.values))
        case "barrier_passed":
            decoded = BarrierPassed(_read_state(body.state), body.stop)
        case _:
            decoded = _read_plain(_BY_NAME[name], body)
    return decoded


def joined(messages: Sequence[wire.FromMember]) -> wire.FromMember:
    """Return the first of some messages, with those that are said at once with it."""
    first, *others = messages
    first.then.extend(others)
    return first


def decode_said(message: wire.FromMember) -> Iterator[MemberMessage]:
    """Yield what a member said at once, in its order. Raises Malformed."""
    if len(message.then) >= MOST_JOINED:
        raise Malformed(f"{len(message.then)} messages after the first one at once")
    yield decode_member(message)
    for one in message.then:
        if one.then:
            raise Malformed("messages that follow one which follows another one")
        yield decode_member(one)


# ------------------------------------------------------------------ master → member


def encode_master(message: MasterMessage, before: View | None = None) -> wire.ToMember:
    """Return the wire form of what the master says; `before`: the view before on the same stream, of which the other end has all."""
    name = _TO_MEMBER[type(message)]
    body: Any
    match message:
        case Data(shards, validation, plan):
            body = wire.Data(shards=_shards(shards), validation=_shards(validation), plan=_loop_plan(plan))
        case NewView(view):
            record = canonical = view.canonical
            if before is not None:
                record = json.dumps(view.changes(before), separators=(",", ":")).encode()
            body = wire.NewView(
                record=zlib.compress(record, _LEVEL),
                digest=digest_of(canonical),
                since=0 if before is None else before.id,
            )
        case TaskLeased(kind, state, task, given):
            body = wire.TaskLeased(kind=kind, state=_state(state), task=task, body=given)
        case GateOpen(state, values, barrier):
            known = () if values is None else values
            body = wire.GateOpen(
                state=_state(state),
                evaluated=values is not None,
                values=_figures(known),
                barrier=None if barrier is None else _plain(wire.Barrier, barrier),
            )
        case _:
            body = _plain(getattr(wire, type(message).__name__), message)
    return wire.ToMember(**{name: body})


def decode_master(message: wire.ToMember, before: View | None = None) -> MasterMessage:
    """Read what the master said. Raises Malformed, also for a view whose digest is not that of its content.

    Args:
        message: the wire form.
        before: the view before on the same stream.
    """
    name, body = _one_of(message)
    decoded: MasterMessage
    match name:
        case "data":
            decoded = Data(_read_shards(body.shards), _read_shards(body.validation), _read_loop_plan(body))
        case "view":
            decoded = NewView(_read_view(body, before))
        case "task_leased":
            decoded = TaskLeased(_read_task_kind(body.kind), _read_state(body.state), body.task, body.body)
        case "gate_open":
            values = _read_figures(body.values) if body.evaluated else None
            barrier = _read_plain(Barrier, body.barrier) if body.HasField("barrier") else None
            decoded = GateOpen(_read_state(body.state), values, barrier)
        case _:
            decoded = _read_plain(_BY_NAME[name], body)
    return decoded


# ------------------------------------------------------------------ clients


def encode_seen(seen: JobStatus | JobEvent) -> wire.Seen:
    """Return the wire form of one item of a watch."""
    if isinstance(seen, JobStatus):
        return wire.Seen(status=encode_status(seen))
    return wire.Seen(event=_plain(wire.JobEvent, seen, values=_figures(seen.values)))


def decode_seen(message: wire.Seen) -> JobStatus | JobEvent:
    """Read one item of a watch. Raises Malformed."""
    name, body = _one_of(message)
    if name == "status":
        return decode_status(body)
    kind, values = _read_kind(body.kind), _read_figures(body.values)
    event: JobEvent = _read_plain(JobEvent, body, kind=kind, values=values)
    return event


def encode_profiled(said: Profiled) -> wire.Profiled:
    """Return the wire form of what the master says to one who asked for a profile."""
    match said:
        case Recorded(worker, step):
            return wire.Profiled(recorded=wire.Recorded(worker=worker, step=_plain(wire.StepRecorded, step)))
        case Missing():
            return wire.Profiled(missing=_plain(wire.Missing, said))
        case Refused():
            return wire.Profiled(refused=_plain(wire.Refused, said))


def decode_profiled(message: wire.Profiled) -> Profiled:
    """Read what the master says to one who asked for a profile. Raises Malformed."""
    name, body = _one_of(message)
    if name == "recorded":
        return Recorded(body.worker, _read_plain(StepRecorded, body.step))
    said: Profiled = _read_plain(Missing if name == "missing" else Refused, body)
    return said


def encode_status(status: JobStatus) -> wire.JobStatus:
    """Return the wire form of a status."""
    workers = [_plain(wire.WorkerStatus, worker) for worker in status.workers]
    return _plain(wire.JobStatus, status, workers=workers)  # type: ignore[no-any-return]


def decode_status(body: wire.JobStatus) -> JobStatus:
    """Read a status."""
    workers = tuple(_read_plain(WorkerStatus, worker) for worker in body.workers)
    status: JobStatus = _read_plain(JobStatus, body, workers=workers)
    return status


# ------------------------------------------------------------------ pieces


def _read_kind(kind: str) -> EventKind:
    try:
        return EventKind(kind)
    except ValueError as error:
        raise Malformed(f"an event that this version does not know: {error}") from error


def _read_task_kind(kind: str) -> TaskKind:
    try:
        return TaskKind(kind)
    except ValueError as error:
        raise Malformed(f"a task that this version does not know: {error}") from error


@cache
def _oneof_of(kind: Any) -> str:
    (oneof,) = kind.DESCRIPTOR.oneofs
    name: str = oneof.name
    return name


def _one_of(message: Any) -> tuple[str, Any]:
    kind: Any = type(message)
    name = message.WhichOneof(_oneof_of(kind))
    if name is None:
        raise Malformed(f"a {message.DESCRIPTOR.name} without any message that this version knows")
    return name, getattr(message, name)


def _plain(kind: Any, value: Any, **converted: Any) -> Any:
    value_kind: type = type(value)
    names = field_names(value_kind) or ()
    given = {name: _field(kind, value, name) for name in names if name not in converted}
    return kind(**given, **converted)


def _field(kind: Any, value: Any, name: str) -> Any:
    given = getattr(value, name)
    if not isinstance(given, tuple) or not given or isinstance(given[0], int | str):
        return given
    return [getattr(wire, type(row).__name__)(**row._asdict()) for row in given]


def _read_plain(kind: type, body: Any, /, **converted: Any) -> Any:
    given = {name: _optional(body, name) for name in field_names(kind) or () if name not in converted}
    return kind(**given, **converted)


@cache
def _form_of(kind: Any, name: str) -> tuple[bool, Any, bool]:
    """Return whether a field is repeated, of which rows, and whether it may be absent: what protobuf says of it is slow to ask for."""
    field = kind.DESCRIPTOR.fields_by_name[name]
    row = _ROWS[field.message_type.name] if field.is_repeated and field.message_type is not None else None
    return field.is_repeated, row, field.has_presence


def _optional(body: Any, name: str) -> Any:
    kind: Any = type(body)
    is_repeated, row, may_be_absent = _form_of(kind, name)
    value = getattr(body, name)
    if row is not None:
        return tuple(row(**{part: _optional(one, part) for part in row._fields}) for one in value)
    if is_repeated:
        return tuple(value)
    return None if may_be_absent and not body.HasField(name) else value


def _report(report: Report) -> wire.Report:
    return wire.Report(
        current=report.current,
        sealed=report.sealed,
        state=None if report.state is None else _state(report.state),
        position=None if report.position is None else _position(report.position),
        holds=sorted(report.holds),
        draining=report.draining,
    )


def _read_report(body: wire.Report) -> Report:
    return Report(
        current=ViewId(body.current),
        sealed=ViewId(body.sealed),
        state=_read_state(body.state) if body.HasField("state") else None,
        position=_read_position(body.position) if body.HasField("position") else None,
        holds=frozenset(body.holds),
        draining=body.draining,
    )


def _state(state: StateId) -> wire.StateId:
    return wire.StateId(step=state.step, view=state.view)


def _read_state(body: wire.StateId) -> StateId:
    return StateId(body.step, body.view)


def _position(position: Position) -> wire.Position:
    return wire.Position(
        epoch=position.epoch, first_task=position.first_task, lanes=position.lanes, chunk=position.chunk
    )


def _read_position(body: wire.Position) -> Position:
    return Position(body.epoch, body.first_task, body.lanes, body.chunk)


def _shards(shards: Iterable[Shard]) -> list[wire.Shard]:
    return [_plain(wire.Shard, shard) for shard in shards]


def _read_shards(bodies: Iterable[wire.Shard]) -> tuple[Shard, ...]:
    return tuple(_read_plain(Shard, body) for body in bodies)


def _loop_plan(plan: LoopPlan | None) -> wire.LoopPlan | None:
    return None if plan is None else _plain(wire.LoopPlan, plan)


def _read_loop_plan(body: Any) -> LoopPlan | None:
    return _read_plain(LoopPlan, body.plan) if body.HasField("plan") else None


def _figures(metrics: Iterable[tuple[str, float]]) -> list[wire.Figure]:
    return [wire.Figure(name=name, value=value) for name, value in metrics]


def _read_figures(bodies: Iterable[wire.Figure]) -> tuple[tuple[str, float], ...]:
    return tuple((body.name, body.value) for body in bodies)


def _read_view(body: wire.NewView, before: View | None) -> View:
    if body.since and (before is None or body.since != before.id):
        raise Malformed(
            f"a view as changes of view {body.since}, which was not the one before on this stream"
        )
    unpacking = zlib.decompressobj()
    try:
        record = unpacking.decompress(body.record, _VIEW_LIMIT)
        if not unpacking.eof:
            raise ValueError(f"it is cut off, or has more than {_VIEW_LIMIT:,} bytes")
        view = view_from_json(json.loads(record), before if body.since else None)
    except (ValueError, KeyError, TypeError, zlib.error) as error:
        raise Malformed(f"a view that can't be read: {error}") from error
    if view.digest != body.digest or (not body.since and digest_of(record) != body.digest):
        raise Malformed(f"view {view.id} does not match its digest")
    return view
