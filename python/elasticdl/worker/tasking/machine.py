"""The worker of a job that evaluates or predicts, as a pure state machine: events in, instructions out.

It does one task at a time, minibatch by minibatch, and knows the next one by then, so that its records are read ahead. What it has done it
keeps until the job ends, for masters that come later.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

from elasticdl.cluster.cluster import EVICTED, FINISHED, RELEASED
from elasticdl.control.protocol.frozen import replace
from elasticdl.control.protocol.messages import (
    Acknowledged,
    AtGate,
    Evaluated,
    Evicted,
    Failed,
    Finished,
    MasterMessage,
    MemberMessage,
    MetricValues,
    ProgramFailed,
    TaskKind,
    TaskLeased,
    TaskResult,
    Verdict,
)
from elasticdl.control.protocol.psmessages import Enroll, Enrolled, Holding, Leave
from elasticdl.control.protocol.tasking import NO_VIEW, STATE
from elasticdl.control.protocol.view import MemberId
from elasticdl.worker.events import (
    Connected,
    Disconnected,
    DrainRequested,
    Exit,
    News,
    ProgramError,
    Received,
    Send,
    Tick,
    WorkCancelled,
)


@dataclass(frozen=True, slots=True)
class DoChunk:
    """Work: do a minibatch of a task, which its first one begins; outcome ChunkDone or WorkCancelled.

    `following`: the task after it, None if none is leased yet.
    """

    kind: TaskKind
    task: int
    chunk: int
    following: int | None


@dataclass(frozen=True, slots=True)
class MakeMetrics:
    """Work: make metrics of what all tasks have added up; outcome MetricsMade or WorkCancelled."""

    body: bytes


@dataclass(frozen=True, slots=True)
class LoadRows:
    """Work: put what all tasks have written into a table; outcome RowsLoaded or WorkCancelled."""

    task: int


@dataclass(frozen=True, slots=True)
class ChunkDone:
    """Work done: a minibatch of a task; `body`: the task's result if all of it is done, else None."""

    task: int
    chunk: int
    body: bytes | None


@dataclass(frozen=True, slots=True)
class MetricsMade:
    """Work done: the metrics."""

    values: MetricValues


@dataclass(frozen=True, slots=True)
class RowsLoaded:
    """Work done: all rows are in the table."""

    task: int


TaskWork = DoChunk | MakeMetrics | LoadRows
Outcome = ChunkDone | MetricsMade | RowsLoaded | WorkCancelled | ProgramError
TaskEvent = News | Outcome
TaskInstruction = Send | TaskWork | Exit


@dataclass(frozen=True)  # no slots: see elasticdl.control.protocol.frozen
class TaskMember:
    """One worker.

    Attributes:
        member: its id.
        name: of its process.
        metrics: what a result consists of, as text; empty if nothing is evaluated.
        epoch: the highest master epoch that it has seen.
        leases: the tasks that it is to do, in their order.
        working: a piece of work is outstanding.
        loads: the load of rows that is, or None.
        results: of tasks, and of the load.
        evaluated: metrics that it has made.
        done: minibatches done, for the heartbeat.
        draining: it is to leave.
        failure: what the user's program has raised.
        end: how this process ends, once it is known.
    """

    member: MemberId
    name: str
    metrics: str
    epoch: int = 0
    leases: tuple[TaskLeased, ...] = ()
    working: bool = False
    loads: int | None = None
    results: tuple[TaskResult, ...] = ()
    evaluated: Evaluated | None = None
    done: int = 0
    draining: bool = False
    failure: ProgramFailed | None = None
    end: Exit | None = None

    @property
    def beat(self) -> tuple[int, int, int]:
        """Return what the heartbeat says: no view, minibatches done, and the same as progress."""
        return 0, self.done, self.done

    def handle(self, event: TaskEvent) -> tuple[TaskMember, tuple[TaskInstruction, ...]]:
        """Take an event; return the next state and what is to be done, in order."""
        if self.end is not None:
            return self, ()
        out: list[TaskInstruction] = []
        match event:
            case Connected():
                out += map(Send, self._all_that_is_said())
                return replace(self, leases=()), tuple(out)
            case Disconnected() | Tick():
                return self, ()
            case Received(message):
                return self._take(message)
            case DrainRequested():
                drained = replace(self, draining=True)
                return drained, () if self.working else (Send(Leave((), 0)),)
            case ChunkDone() | MetricsMade() | RowsLoaded() | WorkCancelled() | ProgramError():
                return replace(self, working=False, loads=None)._after(event)
        assert_never(event)

    def _all_that_is_said(self) -> list[MemberMessage]:
        """Return what a master is to know from the beginning of a connection on."""
        # A load may take long, and a second one could only wait for it.
        holds = () if self.loads is None else (Holding(self.loads, 0),)
        said: list[MemberMessage] = [
            Enroll(self.member, self.name, "", self.epoch, None, holds, 0, self.draining),
            AtGate(NO_VIEW, STATE, self.metrics),
            *self.results,
        ]
        said += [message for message in (self.evaluated, self.failure) if message is not None]
        return said

    def _take(self, message: MasterMessage) -> tuple[TaskMember, tuple[TaskInstruction, ...]]:
        match message:
            case Enrolled(epoch):
                return replace(self, epoch=max(self.epoch, epoch)), ()
            case TaskLeased():
                return self._with(message)._begin()
            case Acknowledged("failed"):
                return self._finish(Exit(1, "its program has failed"))
            case Evicted(reason):
                return self._finish(Exit(EVICTED, reason))
            case Failed(reason):
                return self._finish(Exit(1, reason))
            case Verdict():
                code = FINISHED if isinstance(message, Finished) else RELEASED
                return self._finish(Exit(code, getattr(message, "reason", "")))
        return self, ()

    def _finish(self, end: Exit) -> tuple[TaskMember, tuple[TaskInstruction, ...]]:
        return replace(self, end=end), (end,)

    # ------------------------------------------------------------------ work

    def _with(self, lease: TaskLeased) -> TaskMember:
        """Return what holds when something is leased; metrics and loads are when all tasks are done, by any worker."""
        is_task = lease.kind not in (TaskKind.METRICS, TaskKind.LOAD)
        return replace(self, leases=(*self.leases, lease) if is_task else (lease,))

    def _begin(self, chunk: int = 0) -> tuple[TaskMember, tuple[TaskInstruction, ...]]:
        """Do the first of what is leased from a minibatch on, unless something is outstanding, which comes first."""
        if not self.leases or self.working or self.draining or self.failure is not None:
            return self, ()
        lease, *others = self.leases
        known = next((result for result in self.results if result.task == lease.task), None)
        if lease.kind == TaskKind.METRICS:
            return replace(self, working=True), (MakeMetrics(lease.body),)
        if known is not None:
            member, out = replace(self, leases=tuple(others))._begin()
            return member, (Send(known), *out)
        if lease.kind == TaskKind.LOAD:
            return replace(self, working=True, loads=lease.task), (LoadRows(lease.task),)
        following = others[0].task if others else None
        return replace(self, working=True), (DoChunk(lease.kind, lease.task, chunk, following),)

    def _after(self, outcome: Outcome) -> tuple[TaskMember, tuple[TaskInstruction, ...]]:
        member, out = self, list[TaskInstruction]()
        first, onward = next(iter(self.leases), None), 0
        match outcome:
            case ChunkDone(task, chunk, body):
                member = replace(member, done=self.done + 1)
                if body is not None:
                    result = TaskResult(STATE, task, body)
                    member = replace(member, results=(*member.results, result))
                    out.append(Send(result))
                if first is not None and first.kind != TaskKind.METRICS and first.task == task:
                    if body is None:
                        onward = chunk + 1
                    else:
                        others = tuple(one for one in self.leases if one.task != task)
                        member = replace(member, leases=others)
            case MetricsMade(values):
                evaluated = Evaluated(STATE, values)
                member = replace(member, evaluated=evaluated, leases=())
                out.append(Send(evaluated))
            case RowsLoaded(task):
                result = TaskResult(STATE, task, b"")
                member = replace(member, results=(*member.results, result), leases=())
                out.append(Send(result))
            case ProgramError():
                failure = ProgramFailed(outcome.kind, outcome.signature, outcome.chunk, outcome.traceback, 0)
                return replace(member, failure=failure, leases=()), (Send(failure),)
            case WorkCancelled():
                pass
        if self.draining:
            return member, (*out, Send(Leave((), 0)))
        member, more = member._begin(onward)
        return member, (*out, *more)
