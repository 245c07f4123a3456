"""The loop of a worker with parameter servers: carries out what the worker's state machine says.

It decides nothing: every event goes to `machine.py`, every instruction comes from there. The main thread does the work, one piece at a
time; what can't wait (messages, what the client of the servers has to know) is done at once on whatever thread brought the event.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from typing import assert_never

import numpy as np
import numpy.typing as npt

from elasticdl._core import Batch, ParameterClient
from elasticdl.data.prefetch import ChunkSource
from elasticdl.errors import Cancelled
from elasticdl.worker.auditlog import PsAuditLog
from elasticdl.worker.contract.ps import PsAdapter
from elasticdl.worker.evaluating import Evaluating
from elasticdl.worker.events import (
    ChunkEvaluated,
    ComputeMetrics,
    Exit,
    MetricsComputed,
    Send,
    WorkCancelled,
)
from elasticdl.worker.notes import Sending, with_log_of_notes
from elasticdl.worker.ps.events import (
    AwaitEnd,
    AwaitRows,
    Compute,
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
    Immediate,
    Learn,
    Leaving,
    Line,
    Log,
    Outcome,
    PassBarrier,
    PsEvent,
    Pull,
    PullRows,
    PullVariables,
    Push,
    PushEnded,
    PushFirstValues,
    Started,
    StillWaiting,
    UseLast,
    Work,
    WriteLine,
    Written,
)
from elasticdl.worker.ps.exchange import Exchange
from elasticdl.worker.ps.machine import LOOK_SECONDS, PsMember
from elasticdl.worker.ps.pacing import Needed
from elasticdl.worker.ps.tablereader import ServerTableReader
from elasticdl.worker.raised import PROGRAM_ERRORS, program_error
from elasticdl.worker.result import written_result
from elasticdl.worker.settings import Beats, LoopSettings, value_of
from elasticdl.worker.steprecorder import StepRecorder

_log = logging.getLogger(__name__)
_PHASES: dict[type, str] = {
    Fetch: "read",
    Pull: "pull",
    PullRows: "pull",
    PullVariables: "pull",
    AwaitRows: "pull",
    Compute: "compute",
    Push: "push",
    PushFirstValues: "push",
    AwaitEnd: "settle",
    EvaluateChunk: "evaluate",
    FetchEvaluated: "evaluate",
    ComputeMetrics: "evaluate",
    PassBarrier: "callbacks",
}
"""What a profile calls the pieces of work."""


class PsWorker:
    """One worker with parameter servers: its machine, its model, its connections."""

    def __init__(
        self,
        member: PsMember,
        adapter: PsAdapter,
        client: ParameterClient,
        chunks: ChunkSource,
        evaluating: Evaluating | None,
        audit: PsAuditLog | None,
        heart: Beats,
        send: Sending,
        settings: LoopSettings,
        leaving: Callable[[Exit], None],
        recorder: StepRecorder,
    ) -> None:
        """`leaving` is called at once when the process is to end, while the main thread may still be at work.

        Without validation data nothing is `evaluating`.
        """
        self._machine = member
        self._adapter = adapter
        self._client = client
        self._exchange = Exchange(adapter, client, settings.get_model_steps)
        self._chunks = chunks
        self._evaluating = evaluating
        self._audit = audit
        self._heart = heart
        self._send = with_log_of_notes(send)
        self._settings = settings
        self._leaving = leaving
        self._recorder = recorder

        self._lock = threading.RLock()
        self._queue: queue.SimpleQueue[Work] = queue.SimpleQueue()
        self._is_given_up = False
        """The result that is being written is wanted no more."""

    # ------------------------------------------------------------------ events in

    def feed(self, event: PsEvent) -> None:
        """Give an event to the machine and carry out what can't wait; callable from every thread."""
        with self._lock:
            for instruction in self._machine.handle(time.monotonic(), event):
                if isinstance(instruction, Immediate):
                    self._carry_out(instruction)
                else:
                    self._queue.put(instruction)
            self._heart.set(*self._machine.beat)

    def _carry_out(self, instruction: Immediate) -> None:
        match instruction:
            case Send(message):
                self._send(message)
            case Learn(placed):
                addresses = dict(zip(placed.servers, placed.addresses, strict=True))
                self._client.learn(addresses, placed.entries, placed.roll_back)
            case Confirm(roll_back, low, tasks):
                self._client.confirm(roll_back, low, tasks)
            case Forget():
                self._client.forget()
            case GiveUp():
                self._is_given_up = True
            case Log(text, is_warning):
                _log.log(logging.WARNING if is_warning else logging.INFO, "%s", text)
            case Leaving(end):
                self._leaving(end)
            case _:
                assert_never(instruction)

    # ------------------------------------------------------------------ the main thread

    def run(self) -> Exit:
        """Work until the machine says that this process ends; the caller's thread is the only one that touches the model."""
        self.feed(Started())
        while True:
            work = self._queue.get()
            if isinstance(work, Exit):
                return work
            try:
                began = self._recorder.begin()
                outcome = self._work(work)
                self._recorder.end(_PHASES.get(type(work)) if began else None, began)
                if isinstance(work, Push):
                    self._recorder.end_step(work.step)
            except PROGRAM_ERRORS as error:  # the machine decides what it means (D10)
                outcome = program_error(error)
            self.feed(outcome)

    def _work(self, work: Work) -> Outcome:
        match work:
            case Fetch(keys):
                self._chunks.want(keys)
                return self._exchange.fetched(*self._chunks.get(keys[0]))
            case AwaitRows(ticket, seconds):
                found = self._client.rows(ticket, seconds)
                return self._still_waiting() if found is None else self._exchange.take(found)
            case AwaitEnd(ticket, seconds):
                how = self._client.settled(ticket, seconds)
                if how is None:
                    return self._still_waiting() if seconds else StillWaiting(())
                return PushEnded(how)
            case WriteLine(line):
                self._write_line(line)
                return Done()
            case Push():
                if work.line is not None:
                    self._write_line(work.line)
                return self._exchange.carry_out(work)
            case FetchEvaluated() | EvaluateChunk() | ComputeMetrics():
                return self._evaluate(work)
            case (
                Pull()
                | PullRows()
                | PullVariables()
                | PushFirstValues()
                | Compute()
                | UseLast()
                | PassBarrier()
                | EndTraining()
            ):
                return self._exchange.carry_out(work)
            case Export():
                return self._export(work)
            case Exit():
                raise AssertionError("it ends the main thread")
        assert_never(work)

    def _evaluate(
        self, work: FetchEvaluated | EvaluateChunk | ComputeMetrics
    ) -> Fetched | ChunkEvaluated | MetricsComputed:
        evaluating = self._evaluating
        assert evaluating is not None, "nothing is evaluated without validation data"
        match work:
            case FetchEvaluated(task, chunk, following):
                return self._exchange.fetched(0, 0, evaluating.fetch(task, chunk, following))
            case EvaluateChunk(state, task, chunk, batch, rows):
                return evaluating.add(state, task, chunk, batch, rows)
            case ComputeMetrics():
                made = evaluating.compute(work)
                if self._settings.checkpoint_best is not None:
                    value_of(self._settings.checkpoint_best, made.values)
                return made
        assert_never(work)

    def _still_waiting(self) -> StillWaiting:
        lost, _ = self._client.notice()
        return StillWaiting(tuple(lost))

    def _write_line(self, line: Line) -> None:
        if self._audit is not None:
            self._audit.chunk(
                line.number,
                line.chunk,
                line.epoch,
                line.task,
                line.records,
                line.bad,
                line.slots,
                idle=line.idle,
            )

    # ------------------------------------------------------------------ the result

    def _export(self, export: Export) -> Written | WorkCancelled:
        self._is_given_up = False

        def read(table: int, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
            return self._read(table, ids, export.need)

        def listing(table: int, first: int, end: int) -> npt.NDArray[np.int64]:
            return self._listed(self._client.ask_ids(table, first, end, export.need))

        reader = ServerTableReader(self._adapter.catalog, read, listing)
        try:
            with written_result(self._settings.output, export.steps, export.attempt) as path:
                return Written(path, self._adapter.export(path, self._settings.output_format, reader))
        except Cancelled:
            return WorkCancelled()

    def _read(self, table: int, ids: npt.NDArray[np.int64], need: Needed | None) -> npt.NDArray[np.float32]:
        batch = Batch(self._exchange.core, table, ids.data)
        ticket = self._client.pull(None, [batch], [], need, exact=True)
        while (found := self._client.rows(ticket, LOOK_SECONDS)) is None:
            self._look()
        (rows,) = self._exchange.take(found).rows
        return rows.reshape(-1, self._adapter.catalog.tables[table].width)[
            np.frombuffer(batch.inverse(), np.uint32)
        ]

    def _listed(self, ticket: int) -> npt.NDArray[np.int64]:
        while (ids := self._client.ids(ticket, LOOK_SECONDS)) is None:
            self._look()
        return np.frombuffer(ids, np.int64)

    def _look(self) -> None:
        """Let the machine know that servers are waited for; it may have given the result up."""
        self.feed(self._still_waiting())
        if self._is_given_up:
            raise Cancelled("the result is wanted no more")
