"""The loop of a worker with parameter servers: leased tasks, chunk by chunk, each pushed under its own stamp.

While a chunk is computed, the rows of the next one come and the gradients of the one before go, in the same messages. Nothing here is
lost with this process but time: the task's next owner begins where this one was, and servers know what they hold already. Rule
numbers are those of the page on the protocol of parameter servers.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import assert_never

import numpy as np
import numpy.typing as npt

from elasticdl._core import Batch, Heart, ParameterClient
from elasticdl.cluster.cluster import EVICTED, FINISHED, RELEASED
from elasticdl.control.protocol.messages import (
    Acknowledged,
    Evicted,
    Exported,
    Failed,
    Finished,
    MasterMessage,
    MemberMessage,
    Note,
    ProgramFailed,
    Stop,
    Verdict,
)
from elasticdl.control.protocol.psmessages import (
    EndTraining,
    Enroll,
    Enrolled,
    FoundModel,
    Holding,
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
from elasticdl.control.protocol.view import MemberId, StateId, ViewId
from elasticdl.data.plan.tasks import TaskOrder
from elasticdl.data.plan.waves import WHOLE
from elasticdl.data.prefetch import ChunkKey, ChunkSource
from elasticdl.errors import BadModel
from elasticdl.files.output import output_unwritable, unpublished_path
from elasticdl.worker.auditlog import PsAuditLog
from elasticdl.worker.contract.ps import Gradients, PsAdapter, PsBatch
from elasticdl.worker.events import Connected, DrainRequested, Event, Exit, ProgramError, Received, Tick
from elasticdl.worker.finite import all_finite
from elasticdl.worker.ps.localcopy import LocalCopy
from elasticdl.worker.ps.pacing import Needed, Pacing
from elasticdl.worker.ps.tablereader import ServerTableReader
from elasticdl.worker.raised import PROGRAM_ERRORS, program_error
from elasticdl.worker.settings import AHEAD, LoopSettings

_log = logging.getLogger(__name__)

UNSETTLED = 2
"""Chunks that may be pushed and not settled (R9)."""
_LOOK_SECONDS = 0.1
"""How often one who waits for servers looks whether the master has said something, and tells whom it can't reach."""
_PROGRESS_SECONDS = 0.2
"""Least time between two messages on how far a task has come, its end excepted: only people and a successor want to know."""


@dataclass(frozen=True, slots=True)
class _Chunk:
    """A chunk that is leased to this worker.

    Attributes:
        task: number of the task.
        chunk: its place in the task.
        last: whether it is the task's last.
        roll_back: the roll-back that the attempt belongs to.
    """

    task: int
    chunk: int
    last: bool
    roll_back: int


@dataclass(slots=True)
class _Fetched:
    """A chunk whose rows have been asked for."""

    chunk: _Chunk
    records: int
    bad: int
    batch: PsBatch
    ticket: int | None = None


@dataclass(slots=True)
class _Pushed:
    """A chunk that is not known to be settled; without a ticket nothing is under way."""

    fetched: _Fetched
    ticket: int | None
    loss: float | None


_Parts = tuple[
    tuple[tuple[int, int], int, int, float, int],
    list[tuple[Batch, memoryview, bool]],
    list[tuple[int, memoryview]],
]


@dataclass(slots=True)
class _Lease:
    """A task of this worker.

    Attributes:
        chunk: the first chunk that is not settled.
        roll_back: the roll-back that it was leased in.
        begun: the first chunk whose rows have not been asked for.
    """

    chunk: int
    roll_back: int
    begun: int


class _RolledBack(Exception):
    """The job was rolled back: what is under way means nothing any more."""


class _Abandoned(Exception):
    """What is waited for is not to be waited for any more: a chunk of an earlier step comes first (A5), or this worker leaves."""


class _Over(Exception):
    """This process ends."""

    def __init__(self, end: Exit) -> None:
        super().__init__(end.reason)
        self.end = end


class PsWorker:
    """One worker: its leases, its model, its connections to parameter servers."""

    def __init__(
        self,
        member: MemberId,
        name: str,
        adapter: PsAdapter,
        client: ParameterClient,
        chunks: ChunkSource,
        order: TaskOrder,
        pacing: Pacing,
        audit: PsAuditLog | None,
        heart: Heart,
        send: Callable[[MemberMessage], bool],
        settings: LoopSettings,
        leaving: Callable[[Exit], None],
        resumed: bool,
    ) -> None:
        """`leaving` is called at once when the process is to end, while the main thread may still be at work.

        `resumed`: slots may hold chunks from an earlier job.
        """
        self._member = member
        self._name = name
        self._adapter = adapter
        self._client = client
        self._core = adapter.catalog.core()
        self._chunks = chunks
        self._order = order
        self._pacing = pacing
        self._audit = audit
        self._heart = heart
        self._send = send
        self._settings = settings
        self._leaving = leaving
        self._resumed = resumed
        self._variables = list(range(len(adapter.catalog.variables)))
        self._dense_slots = {self._core.slot_of_variable(variable) for variable in self._variables}
        every = settings.get_model_steps
        self._copy = LocalCopy(self._core, len(self._variables), every) if every > 1 else None
        self._taker = adapter if self._copy is None else self._copy

        self._news = threading.Condition(threading.RLock())
        """Guards all that the master says."""
        self._leases: dict[int, _Lease] = {}
        self._done: dict[int, int] = {}
        self._low = self._roll_back = self._epoch = 0
        self._placed = self._draining = self._stopping = self._left = False
        self._model_known = False
        self._wanted: WriteResult | None = None
        self._ending: EndTraining | None = None
        self._exported: Exported | None = None
        self._failure: ProgramFailed | None = None
        self._end: Exit | None = None
        self._written = self._ended = self._finished = False
        self._steps = self._last_step = 0
        self._told_at = 0.0

    # ------------------------------------------------------------------ events, on other threads

    def feed(self, event: Event) -> None:
        """Take what happens; callable from every thread."""
        with self._news:
            match event:
                case Connected():
                    self._enroll()
                case Received(message):
                    self._take(message)
                case DrainRequested():
                    self._draining = True
                case Tick():
                    self._repeat()
            self._news.notify_all()

    def _enroll(self) -> None:
        if not self._model_known:
            self._send(FoundModel(self._adapter.catalog.text()))
        self._send(
            Enroll(
                self._member,
                self._name,
                "",
                self._epoch,
                None,
                self._holds(),
                self._roll_back,
                self._draining,
            )
        )
        self._repeat()
        for message in (self._failure, self._exported):
            if message is not None:
                self._send(message)
        if self._left:
            self._send(Leave(self._holds(), self._roll_back))

    def _repeat(self) -> None:
        for task, roll_back in self._done.items():
            self._send(TaskDone(task, roll_back))

    def _holds(self) -> tuple[Holding, ...]:
        return tuple(Holding(task, lease.chunk) for task, lease in self._leases.items())

    def _take(self, message: MasterMessage) -> None:
        match message:
            case Enrolled(epoch, _):
                self._epoch = max(self._epoch, epoch)
            case Model(catalog):
                self._model_known = True
                if catalog != self._adapter.catalog.text():
                    self._fail_with(
                        BadModel(
                            "this worker's model is not the one that the job's first worker found: model file and packages have to be "
                            "the same everywhere, and the model may not depend on chance"
                        ),
                    )
            case Placed():
                if message.roll_back > self._roll_back:
                    self._roll_back, self._low = message.roll_back, 0
                    self._wanted = self._ending = None
                    self._leases.clear()
                    self._done.clear()
                addresses = dict(zip(message.servers, message.addresses, strict=True))
                self._client.learn(addresses, message.entries, message.roll_back)
                self._placed = True
            case Leased(task, chunk, roll_back):
                if roll_back == self._roll_back and task not in self._leases and task not in self._done:
                    self._leases[task] = _Lease(chunk, roll_back, chunk)
                    self._confirm(roll_back, {task: chunk})
            case Watermark(low, roll_back, above):
                if roll_back == self._roll_back:
                    self._low = max(self._low, low)
                    self._done = {task: at for task, at in self._done.items() if task >= low}
                    self._leases = {task: lease for task, lease in self._leases.items() if task >= low}
                    self._confirm(roll_back, dict.fromkeys(above, WHOLE))
            case RevokeTask(task, roll_back):
                if roll_back == self._roll_back:
                    self._leases.pop(task, None)
                    self._done.pop(task, None)
            case Stop():
                self._stopping = True
            case WriteResult():
                self._wanted = message
            case EndTraining(steps):
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

    def _confirm(self, roll_back: int, tasks: Mapping[int, int]) -> None:
        """Let servers know how far tasks are settled, which others may wait for (A3); nothing if that was before a roll-back."""
        with self._news:
            if self._pacing.accumulates and roll_back == self._roll_back:
                self._client.confirm(roll_back, self._low, list(tasks.items()))

    def _finish(self, end: Exit) -> None:
        if self._end is None:
            self._end = end
            self._leaving(end)

    # ------------------------------------------------------------------ the main thread

    def run(self) -> Exit:
        """Work until the master says that this process ends; the caller's thread is the only one that touches the model."""
        while True:
            try:
                self._work()
            except _RolledBack:
                self._client.forget()
            except _Over as over:
                self._end_late()
                return over.end
            except PROGRAM_ERRORS as error:
                self._fail_with(error)

    def _fail_with(self, error: BaseException) -> None:
        self._fail(program_error(error))

    def _fail(self, error: ProgramError) -> None:
        """D10: tell the master, and wait for its answer."""
        with self._news:
            self._failure = ProgramFailed(
                error.kind, error.signature, error.chunk, error.traceback, self._steps
            )
            self._leases.clear()
            self._send(self._failure)

    def _work(self) -> None:
        """Do what there is to be done, or wait for it."""
        with self._news:
            while (wanted := self._wanted or self._ending) is None and self._next() is None:
                if self._end is not None:
                    raise _Over(self._end)
                if (self._draining or self._stopping) and not self._left:
                    self._left = True
                    self._send(Leave(self._holds(), self._roll_back))
                    self._leases.clear()
                self._beat(False)
                self._news.wait()
            roll_back = self._roll_back
            self._wanted = self._ending = None
        match wanted:
            case None:
                self._train()
            case WriteResult():
                self._write(wanted, roll_back)
            case EndTraining(steps):
                self._end_aside(steps, roll_back)
            case _:
                assert_never(wanted)

    def _following(self) -> Iterator[_Chunk]:
        """Yield what is leased and not begun, in the order in which it is computed."""

        def of_task(task: int, lease: _Lease) -> Iterator[_Chunk]:
            chunks = self._order.chunks(task)
            for chunk in range(lease.begun, chunks):
                yield _Chunk(task, chunk, chunk + 1 == chunks, lease.roll_back)

        with self._news:
            tasks = [of_task(task, lease) for task, lease in self._leases.items()]
        if not self._pacing.accumulates:
            return itertools.chain.from_iterable(tasks)
        return heapq.merge(*tasks, key=lambda one: (self._pacing.step(one.task, one.chunk), one.task))

    def _next(self) -> _Chunk | None:
        """Return the chunk that is begun next, None if there is none or nothing more is to be begun."""
        with self._news:
            if self._draining or self._stopping or self._failure is not None or not self._placed:
                return None
            return next(self._following(), None)

    def _beat(self, busy: bool) -> None:
        self._heart.set(0, self._steps, 2 * self._steps + busy)

    # ------------------------------------------------------------------ training

    def _train(self) -> None:
        """Train what is leased until nothing more is; then all of it is settled."""
        pushed: deque[_Pushed] = deque()
        try:
            try:
                self._train_on(pushed)
            except _Abandoned:
                self._client.forget()
            self._settle(pushed, 0)
        finally:
            with self._news:
                for lease in self._leases.values():
                    lease.begun = lease.chunk

    def _train_on(self, pushed: deque[_Pushed]) -> None:
        """Fetch, compute and push."""
        computed: tuple[_Fetched, Gradients] | None = None
        fetched = self._fetch(self._next(), None, pushed)
        while fetched is not None:
            following = self._fetch(self._next(), computed, pushed)
            computed = None
            if following is not None and self._is_before(following.chunk, fetched.chunk):
                # Its task was leased a moment ago, and the other waits for it (A5).
                fetched, following = following, fetched
            gradients = self._gradients(fetched)
            if gradients is None:
                # What was computed before it has been pushed.
                pushed.append(_Pushed(fetched, None, None))
                if self._pacing.accumulates:
                    self._settle(pushed, 0)
                    task, chunk = fetched.chunk.task, fetched.chunk.chunk
                    self._confirm(fetched.chunk.roll_back, {task: self._pacing.settled(task, chunk)})
            else:
                computed = fetched, gradients
            fetched = following
        if computed is not None:
            self._push(computed, None, pushed)

    def _fetch(
        self,
        chunk: _Chunk | None,
        computed: tuple[_Fetched, Gradients] | None,
        pushed: deque[_Pushed],
    ) -> _Fetched | None:
        """Ask for the rows of a chunk, and push in the same messages what was computed before."""
        fetched = None
        if chunk is not None:
            if computed is not None and computed[0].chunk.roll_back != chunk.roll_back:
                # The push would be given up, and what is asked for along with it.
                raise _RolledBack
            self._beat(True)
            task = self._order.task(chunk.task)
            with self._news:
                ahead = (one for one in self._following() if one != chunk)
                self._chunks.want([self._key(one) for one in (chunk, *itertools.islice(ahead, AHEAD - 1))])
                if (lease := self._leases.get(chunk.task)) is not None:
                    lease.begun = chunk.chunk + 1
            fetched = _Fetched(chunk, *self._chunks.get((task.epoch, task.id, chunk.chunk)))
            if fetched.batch is None:  # all of its records were bad
                fetched.batch = PsBatch(0, (), None)
        if computed is not None:
            self._push(computed, fetched, pushed)
        elif fetched is not None and fetched.batch.examples:
            fetched.ticket = self._client.pull(*self._wish(fetched), self._need(fetched))
        return fetched

    def _key(self, chunk: _Chunk) -> ChunkKey:
        task = self._order.task(chunk.task)
        return task.epoch, task.id, chunk.chunk

    def _wish(
        self, fetched: _Fetched, is_again: bool = False
    ) -> tuple[tuple[int, int], Sequence[Batch], list[int]]:
        chunk = fetched.chunk
        variables = self._variables if self._copy is None else self._copy.ask(chunk.roll_back, is_again)
        return (chunk.task, chunk.chunk), fetched.batch.batches, variables

    def _need(self, fetched: _Fetched) -> Needed | None:
        return self._pacing.need(fetched.chunk.task, fetched.chunk.chunk)

    def _gradients(self, fetched: _Fetched) -> Gradients | None:
        """Compute a chunk; None if there is nothing to be pushed."""
        gradients = None
        if fetched.ticket is not None:
            rows, held = self._await_rows(fetched.ticket, fetched.chunk.roll_back, fetched.chunk)
            if self._touched(fetched.batch) <= held:
                if self._resumed:  # nobody in this job may have told of it
                    self._write_line(fetched, self._touched(fetched.batch))
                return None  # all whom it concerns hold it (R8), from another worker
            gradients = self._compute(fetched, rows)
        if gradients is None:
            self._write_line(fetched, set())
        return gradients

    def _touched(self, batch: PsBatch) -> set[int]:
        return self._dense_slots.union(*(one.slots() for one in batch.batches))

    def _await_rows(
        self, ticket: int, roll_back: int, chunk: _Chunk | None = None
    ) -> tuple[list[npt.NDArray[np.float32]], set[int]]:
        self._beat(False)
        while (found := self._client.rows(ticket, _LOOK_SECONDS)) is None:
            self._look(roll_back)
            if chunk is not None and self._pacing.accumulates and self._is_idle_wait(chunk):
                raise _Abandoned
        rows, variables, held = found
        missing = []
        for variable, value in variables:
            if value is None:
                missing.append(variable)
            else:
                self._taker.take(variable, np.frombuffer(value, np.float32))
        if missing:
            self._give_first_values(missing, roll_back)
        return [np.frombuffer(one, np.float32) for one in rows], set(held)

    def _is_idle_wait(self, chunk: _Chunk) -> bool:
        """Tell whether there is something better to do than to wait for others to come to a chunk's step."""
        with self._news:
            if self._draining or self._stopping:
                return True
            first = self._next()
            return first is not None and self._is_before(first, chunk)

    def _is_before(self, one: _Chunk, other: _Chunk) -> bool:
        """Tell whether the step of a chunk comes before another one's, which waits for it."""
        step = self._pacing.step
        return self._pacing.accumulates and step(one.task, one.chunk) < step(other.task, other.chunk)

    def _give_first_values(self, variables: list[int], roll_back: int) -> None:
        """Push the first values of variables that have none, and take what the servers have then: another worker may have been first."""
        first = self._adapter.first_values()
        head = (None, self._low, roll_back, 0.0, 0)
        ticket = self._client.push(
            head, [], [(variable, first[variable].data) for variable in variables], True
        )
        self._await_end(ticket, roll_back)
        ticket = self._client.pull(None, [], variables)
        self._await_rows(ticket, roll_back)

    def _look(self, roll_back: int) -> None:
        """Look up from waiting."""
        lost, _ = self._client.notice()
        if lost:
            self._send(Unreached(tuple(lost)))
        with self._news:
            if self._end is not None:
                raise _Over(self._end)
            if self._roll_back != roll_back:
                raise _RolledBack

    def _compute(self, fetched: _Fetched, rows: list[npt.NDArray[np.float32]]) -> Gradients | None:
        """Compute a chunk; None if its gradients are no numbers, and that is to be passed over."""
        self._beat(True)
        chunk = fetched.chunk
        if self._copy is not None:
            self._show(self._copy.weights())
        gradients = self._adapter.compute(fetched.batch, rows, chunk.task, chunk.chunk)
        self._steps += 1
        if _is_finite(gradients):
            if self._copy is not None:
                self._copy.change(
                    gradients.dense, self._adapter.rate(self._pacing.step(chunk.task, chunk.chunk))
                )
            return gradients
        task = self._order.task(chunk.task)
        records = self._order.ledger.chunk(task, chunk.chunk)
        what = (
            f"the loss or gradient of a minibatch is not finite (loss {gradients.loss}; among the records {records.min()} to "
            f"{records.max()} of {task.shard.name})"
        )
        if self._settings.on_nan == "fail":
            text = f"{what}. Lower the learning rate, clip gradients, or set --on_nan=skip_step."
            self._fail(ProgramError("nan", "not finite", "", text))
            self._wait_for_end()
        self._note("idle-step", what)
        return None

    def _show(self, variables: Iterator[tuple[int, npt.NDArray[np.float32]]]) -> None:
        for variable, weights in variables:
            self._adapter.take(variable, weights)

    def _wait_for_end(self) -> None:
        with self._news:
            while self._end is None:
                self._news.wait()
            raise _Over(self._end)

    def _push(
        self, computed: tuple[_Fetched, Gradients], following: _Fetched | None, pushed: deque[_Pushed]
    ) -> None:
        """Push a chunk's gradients, and ask for the rows of the following one in the same messages."""
        fetched, gradients = computed
        # What is settled of a task is said by one number, so its chunks have to be settled in turn.
        in_turn = self._pacing.accumulates and any(
            one.fetched.chunk.task == fetched.chunk.task for one in pushed
        )
        self._settle(pushed, 0 if in_turn else UNSETTLED - 1)
        self._write_line(fetched, self._touched(fetched.batch))
        head, rows, dense = self._parts(fetched.chunk, fetched.batch, gradients)
        confirms = self._pacing.settled(fetched.chunk.task, fetched.chunk.chunk)
        if following is not None and following.batch.examples:
            wish, need = self._wish(following), self._need(following)
            ticket = self._client.push(head, rows, dense, False, wish, need, confirms)
            following.ticket = ticket
        else:
            ticket = self._client.push(head, rows, dense, confirms=confirms)
        pushed.append(_Pushed(fetched, ticket, gradients.loss))

    def _parts(self, chunk: _Chunk, batch: PsBatch, gradients: Gradients) -> _Parts:
        """Return what a push of a chunk consists of."""
        step = self._pacing.step(chunk.task, chunk.chunk)
        stamp = (chunk.task, chunk.chunk)
        head = (stamp, self._low, chunk.roll_back, self._adapter.rate(step), step)
        share = np.float32(self._pacing.share(chunk.task, chunk.chunk))
        of_tables, of_variables = (
            slopes if share == 1 else [slope * share for slope in slopes]
            for slopes in (gradients.rows, gradients.dense)
        )
        rows = [(of, slope.data, True) for of, slope in zip(batch.batches, of_tables, strict=True)]
        return head, rows, [(variable, slope.data) for variable, slope in enumerate(of_variables)]

    def _write_line(self, fetched: _Fetched, slots: set[int]) -> None:
        """R29: before the first byte is given away."""
        if self._audit is not None:
            task, chunk = self._order.task(fetched.chunk.task), fetched.chunk
            self._audit.chunk(
                chunk.task, chunk.chunk, task.epoch, task.id, fetched.records, fetched.bad, slots
            )

    def _settle(self, pushed: deque[_Pushed], most: int) -> None:
        """Wait until so many chunks at most are not settled."""
        while pushed:
            first = pushed[0]
            if first.ticket is not None:
                patience = 0.0 if len(pushed) <= most else None
                end = self._end_of(first.ticket, first.fetched.chunk.roll_back, patience)
                if end is None:
                    return
                if end == "stale":
                    self._compute_again(first.fetched)
            pushed.popleft()
            self._advance(first)

    def _end_of(self, ticket: int, roll_back: int, patience: float | None) -> str | None:
        """Return how a push has ended, after at most `patience`."""
        if patience is None:
            return self._await_end(ticket, roll_back)
        end = self._client.settled(ticket, patience)
        if end == "rolled back":
            raise _RolledBack
        return end

    def _await_end(self, ticket: int, roll_back: int) -> str:
        self._beat(False)
        while (end := self._client.settled(ticket, _LOOK_SECONDS)) is None:
            self._look(roll_back)
        if end == "rolled back":
            raise _RolledBack
        return end

    def _compute_again(self, fetched: _Fetched) -> None:
        """Compute a chunk of which a part was too stale, until no part is: the slots that hold it say so, and take nothing.

        A part is stale, too, if its variable's first value is lost: it was seen at a server that was lost before another one had it (R11).
        """
        chunk, batch = fetched.chunk, fetched.batch
        _log.info("chunk %d of task %d was too stale, and is computed again", chunk.chunk, chunk.task)
        end = "stale"
        while end == "stale":
            ticket = self._client.pull(*self._wish(fetched, is_again=True))
            rows, _ = self._await_rows(ticket, chunk.roll_back)
            gradients = self._compute(fetched, rows)
            if gradients is None:
                # Its line says which slots it is in, and some of them hold it: the others get nothing of it, under its stamp.
                variables = self._adapter.catalog.variables
                gradients = Gradients(
                    0.0,
                    [np.zeros(variable.size, np.float32) for variable in variables],
                    [np.zeros_like(of_table) for of_table in rows],
                )
            end = self._await_end(self._client.push(*self._parts(chunk, batch, gradients)), chunk.roll_back)

    def _advance(self, settled: _Pushed) -> None:
        """Tell the master how far a task has come."""
        chunk = settled.fetched.chunk
        with self._news:
            lease = self._leases.get(chunk.task)
            if lease is None or lease.roll_back != chunk.roll_back:
                return
            lease.chunk = chunk.chunk + 1
            now = time.monotonic()
            if chunk.last:
                del self._leases[chunk.task]
                self._done[chunk.task] = chunk.roll_back
                self._told_at = now
                self._send(TaskDone(chunk.task, chunk.roll_back, settled.loss))
            elif now - self._told_at >= _PROGRESS_SECONDS:
                self._told_at = now
                self._send(Settled(chunk.task, chunk.chunk + 1, chunk.roll_back, settled.loss))

    # ------------------------------------------------------------------ the result

    def _write(self, wanted: WriteResult, roll_back: int) -> None:
        """Write the model as the servers have it, in the roll-back in which it was asked for."""
        if self._written:
            # What was written first was given up, and took the model apart.
            self._finish(Exit(EVICTED, "the result is asked for once more, by a new life of this worker"))
            raise _Over(Exit(EVICTED, "the result is asked for once more"))
        need = self._take_last(wanted.steps, roll_back)
        self._end_training(wanted.steps, writes=True)
        output, path = self._settings.output, ""
        if output is not None and wanted.steps:
            path = unpublished_path(output, wanted.steps, wanted.attempt)
        self._written = True

        def read(table: int, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
            return self._read(table, ids, roll_back, need)

        def listing(table: int, first: int, end: int) -> npt.NDArray[np.int64]:
            return self._listed(self._client.ask_ids(table, first, end, need), roll_back)

        try:
            digest = self._adapter.export(
                path, self._settings.output_format, ServerTableReader(self._adapter.catalog, read, listing)
            )
        except OSError as error:  # a full disk, say: another life, maybe elsewhere, tries once more
            assert output is not None, "without a path nothing is written"
            raise output_unwritable(output, error) from None
        with self._news:
            self._exported = Exported(ViewId(0), StateId(wanted.steps, wanted.attempt), path, digest)
            self._send(self._exported)

    def _take_last(self, steps: int, roll_back: int) -> Needed | None:
        """Take the variables as they are once all is trained; return what servers wait for before they show the model of so many steps."""
        need = self._pacing.result(steps)
        if need is not None:
            # The master says that so much is settled. Who told it so may be gone, and may have told no server.
            _, first, end, chunks = need
            self._confirm(roll_back, dict.fromkeys(range(first, end), chunks))
        self._await_rows(self._client.pull(None, [], self._variables, need), roll_back)
        if self._copy is not None:
            self._show(self._copy.pulled())
        return need

    def _end_training(self, steps: int, *, writes: bool) -> None:
        """Let callbacks know that training is over, once in the life of this process."""
        if not self._ended:
            self._ended = True
            self._adapter.end_training(steps, writes)

    def _end_aside(self, steps: int, roll_back: int) -> None:
        """End training while another worker writes the result; nobody waits for this one."""
        if self._adapter.acts_at_end and not self._ended and self._failure is None:
            self._take_last(steps, roll_back)
            self._end_training(steps, writes=False)

    def _end_late(self) -> None:
        """End training with the variables that are at hand if the job was finished before this worker came to it."""
        if not self._finished or not self._placed or self._failure is not None:
            return
        try:
            self._end_training(self._last_step, writes=False)
        except PROGRAM_ERRORS as error:
            # The result is there: nothing is gained by another life of this worker.
            _log.warning("a callback failed at the end of training: %s", program_error(error).traceback)

    def _read(
        self, table: int, ids: npt.NDArray[np.int64], roll_back: int, need: Needed | None
    ) -> npt.NDArray[np.float32]:
        batch = Batch(self._core, table, ids.data)
        (rows,), _ = self._await_rows(self._client.pull(None, [batch], [], need), roll_back)
        places = np.frombuffer(batch.inverse(), np.uint32)
        width = self._adapter.catalog.tables[table].width
        return rows.reshape(-1, width)[places]

    def _listed(self, ticket: int, roll_back: int) -> npt.NDArray[np.int64]:
        self._beat(False)
        while (ids := self._client.ids(ticket, _LOOK_SECONDS)) is None:
            self._look(roll_back)
        return np.frombuffer(ids, np.int64)

    def _note(self, kind: str, text: str) -> None:
        _log.info("%s: %s", kind, text)
        self._send(Note(kind, ViewId(0), self._steps, text))


def _is_finite(gradients: Gradients) -> bool:
    return math.isfinite(gradients.loss) and all(
        all_finite(values) for values in (*gradients.dense, *gradients.rows)
    )
