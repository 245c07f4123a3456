"""The worker with parameter servers as a state machine: times and events in, instructions out (`worker/ps/events.py` has both).

It decides what is computed, pushed and awaited, and what the master hears: no I/O, no thread, no lock, no clock. The runner and the
simulator drive the same class. It has two halves. What the master says changes values, at any time. What the main thread does, one piece
of work after the other, is written as one generator, because each step of it continues what came before: it yields a piece of work and
gets its outcome, or yields nothing and continues with the next thing that happens.

One file because the parts of that generator call each other and share what the master says; what is leased stands in `tasks.py`.

While a chunk is computed, the rows of the next one come and the gradients of the one before go, in the same messages. Nothing here is
lost with this process but time: the task's next owner begins where this one was, and servers know what they hold already. Rule
numbers are those of the page on the protocol of parameter servers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable
from dataclasses import dataclass
from typing import TypeAlias, TypeVar, assert_never

from elasticdl.cluster.cluster import EVICTED, FINISHED, RELEASED
from elasticdl.control.protocol.frozen import replace
from elasticdl.control.protocol.messages import (
    Acknowledged,
    Evaluated,
    Evicted,
    Exported,
    Failed,
    Finished,
    GateOpen,
    MasterMessage,
    MemberMessage,
    Note,
    ProgramFailed,
    Stop,
    TaskKind,
    TaskLeased,
    TaskResult,
    Verdict,
)
from elasticdl.control.protocol.psmessages import EndTraining as EndOfTraining
from elasticdl.control.protocol.psmessages import (
    Enroll,
    Enrolled,
    FoundMetrics,
    FoundModel,
    Leased,
    Leave,
    Model,
    Placed,
    RevokeTask,
    Settled,
    TaskDone,
    Unreached,
    Watermark,
    WriteResult,
)
from elasticdl.control.protocol.status import EventKind
from elasticdl.control.protocol.view import MemberId, StateId, ViewId
from elasticdl.data.plan.evaluation import EvaluationPlan
from elasticdl.data.plan.tasks import TaskOrder
from elasticdl.data.plan.waves import WHOLE
from elasticdl.worker.contract.ps import PsBatch
from elasticdl.worker.events import (
    ChunkEvaluated,
    ComputeMetrics,
    Connected,
    Disconnected,
    DrainRequested,
    Exit,
    MetricsComputed,
    ProgramError,
    Received,
    Send,
    Tick,
    WorkCancelled,
)
from elasticdl.worker.ps.evaluation import Evaluation
from elasticdl.worker.ps.events import (
    Asked,
    AwaitEnd,
    AwaitRows,
    Compute,
    Computed,
    Confirm,
    Done,
    EndTraining,
    EvaluateChunk,
    Export,
    Fetch,
    Fetched,
    FetchEvaluated,
    Forget,
    GiveUp,
    Instruction,
    Learn,
    Leaving,
    Line,
    Log,
    Outcome,
    Passed,
    PsEvent,
    Pull,
    PullRows,
    PullVariables,
    Push,
    PushEnded,
    PushFirstValues,
    Rows,
    RowsCame,
    Started,
    StillWaiting,
    UseLast,
    Wanted,
    Work,
    WriteLine,
    Written,
)
from elasticdl.worker.ps.pacing import Needed, Pacing
from elasticdl.worker.ps.passing import Passing
from elasticdl.worker.ps.tasks import Chunk, LeasedTasks
from elasticdl.worker.settings import AHEAD

UNSETTLED = 2
"""Chunks that may be pushed and not settled (R9)."""
LOOK_SECONDS = 0.1
"""How often one who waits for servers looks whether the master has said something, and tells whom it can't reach."""
_PROGRESS_SECONDS = 0.2
"""Least time between two messages on how far a task has come, its end excepted: only people and a successor want to know."""
_OTHER_MODEL = (
    "this worker's model is not the one that the job's first worker found: model file and packages have to be the same everywhere, and "
    "the model may not depend on chance"
)

Answer = TypeVar("Answer")
Flow: TypeAlias = Generator[Work | None, Outcome | None, Answer]
"""A part of what the main thread does; None: it waits for anything that happens, and has no outcome."""


@dataclass(frozen=True, slots=True)
class PsMemberSettings:
    """What the machine has to know of the job.

    Attributes:
        catalog: the model's, as words.
        acts_at_end: a callback does something at the end of training.
        skips_nan: gradients that are no numbers are passed over.
        resumed: slots may hold chunks from an earlier job.
        evaluation: what is evaluated at barriers, None if nothing is.
        metrics: what the result of an evaluation task consists of, as text.
        follows: a callback follows epochs or evaluations.
    """

    catalog: str
    acts_at_end: bool
    skips_nan: bool
    resumed: bool
    evaluation: EvaluationPlan | None = None
    metrics: str = ""
    follows: bool = False


@dataclass(slots=True)
class _Begun:
    """A chunk that has been fetched; `ticket`: of its rows, None if it needs none."""

    chunk: Chunk
    fetched: Fetched
    ticket: int | None = None


@dataclass(frozen=True, slots=True)
class _Pushed:
    """A chunk that is not known to be settled; without a ticket nothing is under way."""

    begun: _Begun
    ticket: int | None
    loss: float | None


class _RolledBack(Exception):
    """The job was rolled back: what is under way means nothing any more."""


class _Abandoned(Exception):
    """What is waited for is not to be waited for any more: a chunk of an earlier step comes first (A5), or this worker leaves."""


class _Over(Exception):
    """This process ends."""

    def __init__(self, end: Exit) -> None:
        super().__init__(end.reason)
        self.end = end


class _ProgramFailed(Exception):
    """The user's program has raised."""

    def __init__(self, error: ProgramError) -> None:
        super().__init__(error.signature)
        self.error = error


class PsMember:
    """One worker: what it knows, what it has, and what it is doing."""

    def __init__(
        self, member: MemberId, name: str, order: TaskOrder, pacing: Pacing, settings: PsMemberSettings
    ) -> None:
        self._member = member
        self._name = name
        self._order = order
        self._pacing = pacing
        self._settings = settings

        self._tasks = LeasedTasks(order, pacing)
        self._epoch = 0
        self._placed = self._draining = self._stopping = self._left = False
        self._model_known = False
        self._wanted: WriteResult | None = None
        self._ending: EndOfTraining | None = None
        self._exported: Exported | None = None
        self._evaluation = Evaluation()
        self._passing = Passing(settings.follows)
        self._pulled: StateId | None = None
        """The state at a barrier that the model's variables are of; None once something is computed for training."""
        self._failure: ProgramFailed | None = None
        self._end: Exit | None = None
        self._written = self._ended = self._finished = False
        self._steps = self._last_step = self._evaluated = 0
        self._told_at = 0.0
        self._is_busy = False

        self._now = 0.0
        self._out: list[Instruction] = []
        """Instructions of the transition under way."""
        self._flow = self._run()
        self._work: Work | None = None
        """What is outstanding."""
        self._waits = False
        """The main thread has nothing to do until something happens."""

    @property
    def beat(self) -> tuple[int, int, int]:
        """Return what the heartbeat says: no view, chunks computed, progress; this is odd while the worker itself is at work."""
        return 0, self._steps, 2 * (self._steps + self._evaluated) + self._is_busy

    # ------------------------------------------------------------------ the transition

    def handle(self, now: float, event: PsEvent) -> tuple[Instruction, ...]:
        """Take an event; return what is to be done, in order. `now`: seconds of a clock that does not go back."""
        self._now, self._out = now, []
        match event:
            case Connected():
                self._enroll()
            case Disconnected():
                pass
            case Received(message):
                self._take(message)
            case DrainRequested():
                self._draining = True
            case Tick():
                self._repeat()
            case Started():
                self._waits = True
            case StillWaiting(lost) if isinstance(self._work, Export):
                self._look_from_export(self._work, lost)
            case _:
                self._continue(event)
        if self._waits:
            self._continue(None)
        return tuple(self._out)

    def _continue(self, outcome: Outcome | None) -> None:
        """Let the main thread continue to its next piece of work."""
        self._waits = False
        try:
            self._work = self._flow.send(outcome)
        except StopIteration:
            self._work = None
            return
        if self._work is None:
            self._waits = True
        else:
            self._out.append(self._work)

    def _send(self, message: MemberMessage) -> None:
        self._out.append(Send(message))

    # ------------------------------------------------------------------ what happens

    def _enroll(self) -> None:
        if not self._model_known:
            self._send(FoundModel(self._settings.catalog))
        tasks = self._tasks
        self._send(
            Enroll(
                self._member,
                self._name,
                "",
                self._epoch,
                None,
                tasks.holds(),
                tasks.roll_back,
                self._draining,
                self._settings.follows,
            )
        )
        self._repeat()
        if self._settings.metrics:
            self._send(FoundMetrics(self._settings.metrics))
        self._evaluation = self._evaluation.unsaid()
        for result in self._evaluation.said():
            self._send(result)
        for message in (self._passing.said(), self._failure, self._exported):
            if message is not None:
                self._send(message)
        if self._left:
            self._send(Leave(tasks.holds(), tasks.roll_back))

    def _repeat(self) -> None:
        for task, roll_back in self._tasks.done.items():
            self._send(TaskDone(task, roll_back))

    def _take(self, message: MasterMessage) -> None:
        tasks = self._tasks
        match message:
            case Enrolled(epoch, _):
                self._epoch = max(self._epoch, epoch)
            case Model(catalog):
                self._model_known = True
                if catalog != self._settings.catalog:
                    self._fail(ProgramError("bad-input", "BadModel at ", "", _OTHER_MODEL))
            case Placed():
                if tasks.roll_back_to(message.roll_back):
                    self._wanted = self._ending = None
                    self._evaluation = Evaluation()
                    self._passing = self._passing.rolled_back()
                self._out.append(Learn(message))
                self._placed = True
            case Leased(task, chunk, roll_back):
                if tasks.lease(task, chunk, roll_back):
                    self._confirm(roll_back, [(task, chunk)])
            case Watermark(low, roll_back, above):
                if roll_back == tasks.roll_back:
                    tasks.raise_low(low)
                    self._confirm(roll_back, [(task, WHOLE) for task in dict.fromkeys(above)])
            case RevokeTask(task, roll_back):
                if roll_back == tasks.roll_back:
                    tasks.revoke(task)
            case TaskLeased():
                self._take_lease(message)
            case GateOpen(state):
                self._evaluation = self._evaluation.opened(state)
                self._open_barrier(message)
            case Stop():
                self._stopping = True
            case WriteResult():
                self._wanted = message
            case EndOfTraining(steps):
                self._ending, self._last_step = message, steps
            case Acknowledged("failed"):
                self._finish(Exit(1, "its program has failed"))
            case Evicted(reason):
                self._finish(Exit(EVICTED, reason))
            case Failed(reason):
                self._finish(Exit(1, reason))
            case Verdict():
                self._finished = isinstance(message, Finished)
                code = FINISHED if self._finished else RELEASED
                self._finish(Exit(code, getattr(message, "reason", "")))

    def _take_lease(self, lease: TaskLeased) -> None:
        """Take an evaluation task; what was done before is said again, to a master that may be another one."""
        if lease.state.view != self._tasks.roll_back or lease.state == self._evaluation.over:
            return  # of before a roll-back, or by a master that does not know yet that it was replaced
        self._evaluation = self._evaluation.leased(lease)
        known = self._evaluation.known(lease)
        if known is not None:
            self._send(known)
            self._evaluation = self._evaluation.without(lease)

    def _confirm(self, roll_back: int, tasks: Iterable[tuple[int, int]]) -> None:
        """Let servers know how far tasks are settled, which others may wait for (A3); nothing if that was before a roll-back."""
        if self._pacing.accumulates and roll_back == self._tasks.roll_back:
            self._out.append(Confirm(roll_back, self._tasks.low, tuple(tasks)))

    def _finish(self, end: Exit) -> None:
        if self._end is None:
            self._end = end
            self._out.append(Leaving(end))

    def _fail(self, error: ProgramError) -> None:
        """D10: tell the master, and wait for its answer."""
        self._failure = ProgramFailed(error.kind, error.signature, error.chunk, error.traceback, self._steps)
        self._tasks.give_back()
        self._send(self._failure)

    # ------------------------------------------------------------------ the main thread

    def _run(self) -> Flow[None]:
        """Work until the master says that this process ends."""
        while True:
            try:
                yield from self._do_what_there_is()
            except _RolledBack:
                self._out.append(Forget())
            except _Over as over:
                yield from self._end_late()
                self._out.append(over.end)
                return
            except _ProgramFailed as failed:
                self._fail(failed.error)

    def _outcome_of(self, work: Work) -> Flow[Outcome]:
        """Have work done, unless the user's program raises."""
        outcome = yield work
        assert outcome is not None, "only who has no work outstanding continues without an outcome"
        if isinstance(outcome, ProgramError):
            raise _ProgramFailed(outcome)
        return outcome

    def _do(self, work: Work, kind: type[Answer]) -> Flow[Answer]:
        """Have work done that has one kind of outcome."""
        outcome = yield from self._outcome_of(work)
        assert isinstance(outcome, kind), f"{outcome} is no outcome of {work}"
        return outcome

    def _do_what_there_is(self) -> Flow[None]:
        """Do what there is to be done, or wait for it."""
        yield from self._pass_barriers()
        while (wanted := self._wanted or self._ending or self._evaluable()) is None and self._next() is None:
            if self._end is not None:
                raise _Over(self._end)
            if (self._draining or self._stopping) and not self._left:
                self._left = True
                self._send(Leave(self._tasks.holds(), self._tasks.roll_back))
                self._tasks.give_back()
            self._is_busy = False
            yield None
            yield from self._pass_barriers()
        roll_back = self._tasks.roll_back
        self._wanted = self._ending = None
        match wanted:
            case None:
                yield from self._train()
            case WriteResult():
                yield from self._write(wanted, roll_back)
            case EndOfTraining(steps):
                yield from self._end_aside(steps, roll_back)
            case TaskLeased(TaskKind.METRICS):
                yield from self._make_metrics(wanted)
            case TaskLeased():
                yield from self._evaluate(wanted, roll_back)
            case _:
                assert_never(wanted)

    def _next(self) -> Chunk | None:
        """Return the chunk that is begun next, None if there is none or nothing more is to be begun."""
        if self._draining or self._stopping or self._failure is not None or not self._placed:
            return None
        if self._passing.is_behind:
            return None  # what is leased may be beyond
        return next(self._tasks.following(), None)

    # ------------------------------------------------------------------ training

    def _train(self) -> Flow[None]:
        """Train what is leased until nothing more is; then all of it is settled."""
        pushed: deque[_Pushed] = deque()
        self._pulled = None
        try:
            try:
                yield from self._train_on(pushed)
            except _Abandoned:
                self._out.append(Forget())
            yield from self._settle(pushed, 0)
        finally:
            self._tasks.begin_again()

    def _train_on(self, pushed: deque[_Pushed]) -> Flow[None]:
        """Fetch, compute and push."""
        computed: tuple[_Begun, Computed] | None = None
        begun = yield from self._begin(self._next(), None, pushed)
        while begun is not None:
            following = yield from self._begin(self._next(), computed, pushed)
            computed = None
            if following is not None and self._tasks.is_before(following.chunk, begun.chunk):
                # Its task was leased a moment ago, and the other waits for it (A5).
                begun, following = following, begun
            found = yield from self._computed(begun, pushed)
            if found is None:
                # What was computed before it has been pushed.
                pushed.append(_Pushed(begun, None, None))
                if self._pacing.accumulates:
                    yield from self._settle(pushed, 0)
                    task, chunk = begun.chunk.task, begun.chunk.chunk
                    self._confirm(begun.chunk.roll_back, [(task, self._pacing.settled(task, chunk))])
            else:
                computed = begun, found
            begun = following
        if computed is not None:
            yield from self._push(computed, None, pushed)

    def _begin(
        self, chunk: Chunk | None, computed: tuple[_Begun, Computed] | None, pushed: deque[_Pushed]
    ) -> Flow[_Begun | None]:
        """Ask for the rows of a chunk, and push in the same messages what was computed before."""
        begun = None
        if chunk is not None:
            if computed is not None and computed[0].chunk.roll_back != chunk.roll_back:
                # The push would be given up, and what is asked for along with it.
                raise _RolledBack
            self._is_busy = True
            fetched = yield from self._do(Fetch(self._tasks.begin(chunk, AHEAD)), Fetched)
            begun = _Begun(chunk, fetched)
        if computed is not None:
            yield from self._push(computed, begun, pushed)
        elif begun is not None and begun.fetched.batch.examples:
            asked = yield from self._do(Pull(self._wish(begun)), Asked)
            begun.ticket = asked.ticket
        return begun

    def _wish(self, begun: _Begun) -> Wanted:
        need = self._pacing.need(begun.chunk.task, begun.chunk.chunk)
        return Wanted(begun.chunk, begun.fetched.batch, need)

    def _computed(self, begun: _Begun, pushed: deque[_Pushed]) -> Flow[Computed | None]:
        """Compute a chunk; None if there is nothing to be pushed: it has no record, or all slots hold it."""
        if begun.ticket is None:
            yield from self._do(WriteLine(self._line(begun)), Done)
            return None
        came = yield from self._await_rows(begun.ticket, begun.chunk.roll_back, begun.chunk, pushed)
        if self._is_held(begun.fetched.slots, came.held):
            if self._settings.resumed:  # nobody in this job may have told of it
                yield from self._do(WriteLine(self._line(begun)), Done)
            return None
        return (yield from self._compute(begun, came))

    def _is_held(self, slots: frozenset[int], held: frozenset[int]) -> bool:
        """R8: all slots that a chunk concerns hold it, from another worker."""
        return slots <= held

    def _await_rows(
        self, ticket: int, roll_back: int, chunk: Chunk | None = None, pushed: deque[_Pushed] | None = None
    ) -> Flow[RowsCame]:
        """Wait for what was asked for, for a chunk or without one; rows of its step may wait for a chunk of `pushed` that was stale."""
        self._is_busy = False
        while True:
            came = yield from self._outcome_of(AwaitRows(ticket, LOOK_SECONDS))
            if isinstance(came, RowsCame):
                break
            self._look(came, roll_back)
            if pushed and self._pacing.accumulates:
                yield from self._settle(pushed, len(pushed))
            if chunk is not None and self._pacing.accumulates and self._is_idle_wait(chunk):
                raise _Abandoned
        if came.missing:
            yield from self._give_first_values(came.missing, roll_back)
        return came

    def _is_idle_wait(self, chunk: Chunk) -> bool:
        """Tell whether there is something better to do than to wait for others to come to a chunk's step."""
        if self._draining or self._stopping:
            return True
        first = self._next()
        return first is not None and self._tasks.is_before(first, chunk)

    def _give_first_values(self, variables: tuple[int, ...], roll_back: int) -> Flow[None]:
        """Push the first values of variables that have none, and take what the servers have then: another worker may have been first."""
        pushed = yield from self._do(PushFirstValues(variables, self._tasks.low, roll_back), Asked)
        yield from self._await_end(pushed.ticket, roll_back)
        pulled = yield from self._do(PullVariables(variables), Asked)
        yield from self._await_rows(pulled.ticket, roll_back)

    def _look(self, waited: Outcome, roll_back: int) -> None:
        """Look up from waiting."""
        assert isinstance(waited, StillWaiting), f"{waited} is no outcome of waiting"
        self._tell_lost(waited.lost)
        if self._end is not None:
            raise _Over(self._end)
        if self._tasks.roll_back != roll_back:
            raise _RolledBack

    def _tell_lost(self, servers: tuple[int, ...]) -> None:
        if servers:
            self._send(Unreached(servers))

    def _compute(self, begun: _Begun, came: RowsCame) -> Flow[Computed]:
        """Compute a chunk; if its gradients are not finite that is to be passed over."""
        self._is_busy = True
        chunk = begun.chunk
        step = self._pacing.step(chunk.task, chunk.chunk)
        computed = yield from self._do(Compute(chunk, begun.fetched.batch, came.rows, step), Computed)
        self._steps += 1
        if computed.finite:
            return computed
        task = self._order.task(chunk.task)
        records = self._order.ledger.chunk(task, chunk.chunk)
        what = (
            f"the loss or gradient of a minibatch is not finite (loss {computed.gradients.loss}; among the records {records.min()} to "
            f"{records.max()} of {task.shard.name})"
        )
        if not self._settings.skips_nan:
            text = f"{what}. Lower the learning rate, clip gradients, or set --on_nan=skip_step."
            self._fail(ProgramError("nan", "not finite", "", text))
            yield from self._wait_for_end()
        self._send(Note(EventKind.IDLE_STEP, ViewId(0), self._steps, what))
        return computed

    def _wait_for_end(self) -> Flow[None]:
        while self._end is None:
            yield None
        raise _Over(self._end)

    def _push(
        self, computed: tuple[_Begun, Computed], following: _Begun | None, pushed: deque[_Pushed]
    ) -> Flow[None]:
        """Push a chunk's gradients, and ask for the rows of the following one in the same messages.

        What is no number changes nothing, and its stamp is in all slots of the chunk: another worker that gets it may see other weights,
        and must find it done (R8).
        """
        begun, found = computed
        chunk = begun.chunk
        # What is settled of a task is said by one number, so its chunks have to be settled in turn.
        in_turn = self._pacing.accumulates and any(one.begun.chunk.task == chunk.task for one in pushed)
        yield from self._settle(pushed, 0 if in_turn else UNSETTLED - 1)
        push = Push(
            chunk,
            begun.fetched.batch,
            found.gradients,
            self._tasks.low,
            self._pacing.step(chunk.task, chunk.chunk),
            self._pacing.share(chunk.task, chunk.chunk),
            line=self._line(begun, idle=not found.finite),
            is_nothing=not found.finite,
            confirms=self._pacing.settled(chunk.task, chunk.chunk),
            wanted=None
            if following is None or not following.fetched.batch.examples
            else self._wish(following),
        )
        asked = yield from self._do(push, Asked)
        if following is not None and push.wanted is not None:
            following.ticket = asked.ticket
        pushed.append(_Pushed(begun, asked.ticket, found.gradients.loss if found.finite else None))

    def _line(self, begun: _Begun, *, idle: bool = False) -> Line:
        """Return what the audit says of a chunk; `idle`: it changes nothing in its slots."""
        chunk, fetched = begun.chunk, begun.fetched
        task = self._order.task(chunk.task)
        return Line(
            chunk.task, chunk.chunk, task.epoch, task.id, fetched.records, fetched.bad, fetched.slots, idle
        )

    def _settle(self, pushed: deque[_Pushed], most: int) -> Flow[None]:
        """Wait until so many chunks at most are not settled."""
        while pushed:
            first = pushed[0]
            if first.ticket is not None:
                if len(pushed) > most:
                    how = yield from self._await_end(first.ticket, first.begun.chunk.roll_back)
                else:
                    end = yield from self._outcome_of(AwaitEnd(first.ticket, 0.0))
                    if not isinstance(end, PushEnded):
                        return
                    how = _unless_rolled_back(end)
                if how == "stale":
                    yield from self._compute_again(first.begun)
            pushed.popleft()
            self._advance(first)

    def _await_end(self, ticket: int, roll_back: int) -> Flow[str]:
        """Return how a push has ended."""
        self._is_busy = False
        while True:
            end = yield from self._outcome_of(AwaitEnd(ticket, LOOK_SECONDS))
            if isinstance(end, PushEnded):
                return _unless_rolled_back(end)
            self._look(end, roll_back)

    def _compute_again(self, begun: _Begun) -> Flow[None]:
        """Compute a chunk of which a part was too stale, until no part is: the slots that hold it say so, and take nothing.

        A part is stale, too, if its variable's first value is lost: it was seen at a server that was lost before another one had it (R11).
        """
        chunk, batch = begun.chunk, begun.fetched.batch
        self._out.append(
            Log(f"chunk {chunk.chunk} of task {chunk.task} was too stale, and is computed again")
        )
        end = "stale"
        while end == "stale":
            asked = yield from self._do(Pull(replace(self._wish(begun), again=True)), Asked)
            came = yield from self._await_rows(asked.ticket, chunk.roll_back)
            computed = yield from self._compute(begun, came)
            push = Push(
                chunk,
                batch,
                computed.gradients,
                self._tasks.low,
                self._pacing.step(chunk.task, chunk.chunk),
                self._pacing.share(chunk.task, chunk.chunk),
                confirms=self._pacing.settled(chunk.task, chunk.chunk),
                # Its line says which slots it is in, and some of them hold it: the others get nothing of it, under its stamp.
                is_nothing=not computed.finite,
            )
            asked = yield from self._do(push, Asked)
            end = yield from self._await_end(asked.ticket, chunk.roll_back)

    def _advance(self, settled: _Pushed) -> None:
        """Tell the master how far a task has come."""
        chunk = settled.begun.chunk
        if not self._tasks.settle(chunk):
            return
        if chunk.last:
            self._told_at = self._now
            self._send(TaskDone(chunk.task, chunk.roll_back, settled.loss))
        elif self._now - self._told_at >= _PROGRESS_SECONDS:
            self._told_at = self._now
            self._send(Settled(chunk.task, chunk.chunk + 1, chunk.roll_back, settled.loss))

    # ------------------------------------------------------------------ evaluation

    def _evaluable(self) -> TaskLeased | None:
        """Return what is to be evaluated, None if nothing is or nothing more is to be begun."""
        if self._draining or self._stopping or self._failure is not None or not self._placed:
            return None
        return next(iter(self._evaluation.leases), None)

    def _evaluate(self, lease: TaskLeased, roll_back: int) -> Flow[None]:
        """Evaluate a task with what the servers have, which nobody changes before the metrics are journalled (B2)."""
        plan = self._settings.evaluation
        assert plan is not None, "tasks are leased of jobs that evaluate"
        need = self._pacing.result(lease.state.step)
        if self._pulled != lease.state:
            yield from self._take_last(lease.state.step, roll_back)
            self._pulled = lease.state
        chunks = plan.num_chunks(lease.task)
        following = yield from self._ask_evaluated(lease, 0, need)
        for chunk in range(chunks):
            batch, ticket = following
            rows: Rows = ()
            if ticket is not None:
                came = yield from self._await_rows(ticket, roll_back)
                rows = came.rows
            if chunk + 1 < chunks:
                following = yield from self._ask_evaluated(lease, chunk + 1, need)
            self._is_busy = True
            work = EvaluateChunk(lease.state, lease.task, chunk, batch, rows)
            done = yield from self._do(work, ChunkEvaluated)
            self._evaluated += 1
            if self._gives_up(lease, roll_back):
                self._out.append(Forget())
                return
            if done.body is not None:
                result = TaskResult(lease.state, lease.task, done.body)
                self._evaluation = self._evaluation.with_result(lease, result)
                self._send(result)

    def _ask_evaluated(
        self, lease: TaskLeased, chunk: int, need: Needed | None
    ) -> Flow[tuple[PsBatch, int | None]]:
        """Fetch a minibatch and ask for its rows; without a ticket it needs none."""
        self._is_busy = True
        following = next((one.task for one in self._evaluation.leases if one != lease), None)
        fetched = yield from self._do(FetchEvaluated(lease.task, chunk, following), Fetched)
        if not fetched.batch.examples:
            return fetched.batch, None
        asked = yield from self._do(PullRows(fetched.batch, need), Asked)
        return fetched.batch, asked.ticket

    def _make_metrics(self, lease: TaskLeased) -> Flow[None]:
        """Make metrics of what all tasks have added up."""
        self._is_busy = True
        roll_back = self._tasks.roll_back
        made = yield from self._do(ComputeMetrics(lease.state, lease.body), MetricsComputed)
        self._evaluated += 1
        if not self._gives_up(lease, roll_back):
            self._evaluation = self._evaluation.with_metrics(lease, made.values)
            self._send(Evaluated(lease.state, made.values))

    def _gives_up(self, lease: TaskLeased, roll_back: int) -> bool:
        """Look up from evaluating; tell whether nobody waits for it any more."""
        if self._end is not None:
            raise _Over(self._end)
        if self._tasks.roll_back != roll_back:
            raise _RolledBack
        return self._draining or self._stopping or self._evaluation.over == lease.state

    # ------------------------------------------------------------------ callbacks

    def _open_barrier(self, gate: GateOpen) -> None:
        """Take note that a barrier is passed; what a roll-back has not forgotten is said once more, as its master waits for it again."""
        before = self._passing
        self._passing = before.opened(gate, self._tasks.roll_back)
        said = self._passing.said()
        if self._passing is not before and said is not None:
            self._send(said)

    def _pass_barriers(self) -> Flow[None]:
        """Let callbacks pass the barriers that are open, before anything beyond is begun (B5)."""
        while self._passing.is_behind and self._failure is None and self._end is None:
            self._is_busy = True
            work, passed = self._passing.work()
            outcome = yield from self._do(work, Passed)
            self._evaluated += 1  # progress
            self._passing = self._passing.after(passed, outcome.stop or "")
            if (said := self._passing.said()) is not None:
                self._send(said)

    # ------------------------------------------------------------------ the result

    def _write(self, wanted: WriteResult, roll_back: int) -> Flow[None]:
        """Write the model as the servers have it, in the roll-back in which it was asked for."""
        if self._written:
            # What was written first was given up, and took the model apart.
            self._finish(Exit(EVICTED, "the result is asked for once more, by a new life of this worker"))
            raise _Over(Exit(EVICTED, "the result is asked for once more"))
        need = yield from self._take_last(wanted.steps, roll_back)
        yield from self._end_training(wanted.steps, writes=True)
        self._written = True
        outcome = yield from self._outcome_of(Export(wanted.steps, wanted.attempt, roll_back, need))
        if isinstance(outcome, WorkCancelled):
            raise _RolledBack if self._end is None else _Over(self._end)
        assert isinstance(outcome, Written), f"{outcome} is no outcome of an export"
        state = StateId(wanted.steps, wanted.attempt)
        self._exported = Exported(ViewId(0), state, outcome.path, outcome.digest)
        self._send(self._exported)

    def _look_from_export(self, export: Export, lost: tuple[int, ...]) -> None:
        """Look up while the result is written from what servers send."""
        self._tell_lost(lost)
        if self._end is not None or self._tasks.roll_back != export.roll_back:
            self._out.append(GiveUp())

    def _take_last(self, steps: int, roll_back: int) -> Flow[Needed | None]:
        """Take the variables as they are once all is trained; return what servers wait for before they show the model of so many steps."""
        need = self._pacing.result(steps)
        if need is not None:
            # The master says that so much is settled. Who told it so may be gone, and may have told no server.
            _, first, end, chunks = need
            self._confirm(roll_back, [(task, chunks) for task in range(first, end)])
        pulled = yield from self._do(PullVariables(None, need), Asked)
        yield from self._await_rows(pulled.ticket, roll_back)
        yield from self._do(UseLast(), Done)
        return need

    def _end_training(self, steps: int, *, writes: bool) -> Flow[None]:
        """Let callbacks know that training is over, once in the life of this process."""
        if not self._ended:
            self._ended = True
            yield from self._do(EndTraining(steps, writes), Done)

    def _end_aside(self, steps: int, roll_back: int) -> Flow[None]:
        """End training while another worker writes the result; nobody waits for this one."""
        if self._settings.acts_at_end and not self._ended and self._failure is None:
            yield from self._take_last(steps, roll_back)
            yield from self._end_training(steps, writes=False)

    def _end_late(self) -> Flow[None]:
        """End training with the variables that are at hand if the job was finished before this worker came to it."""
        if not self._finished or not self._placed or self._failure is not None:
            return
        try:
            yield from self._end_training(self._last_step, writes=False)
        except _ProgramFailed as failed:
            # The result is there: nothing is gained by another life of this worker.
            text = f"a callback failed at the end of training: {failed.error.traceback}"
            self._out.append(Log(text, warning=True))


def _unless_rolled_back(end: PushEnded) -> str:
    if end.how == "rolled back":
        raise _RolledBack
    return end.how
