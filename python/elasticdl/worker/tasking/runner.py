"""The loop of a worker that evaluates or predicts: carries out what its state machine says; it decides nothing."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Protocol

from elasticdl.control.protocol.messages import MetricValues
from elasticdl.control.protocol.tasking import STATE
from elasticdl.errors import Cancelled
from elasticdl.worker.evaluating import Evaluating
from elasticdl.worker.events import ComputeMetrics, Evaluate, Exit, Send, WorkCancelled
from elasticdl.worker.notes import Sending, with_log_of_notes
from elasticdl.worker.raised import PROGRAM_ERRORS, program_error
from elasticdl.worker.settings import Beats
from elasticdl.worker.tasking.machine import (
    ChunkDone,
    DoChunk,
    LoadRows,
    MakeMetrics,
    MetricsMade,
    Outcome,
    RowsLoaded,
    TaskEvent,
    TaskMember,
    TaskWork,
)


class TaskDoer(Protocol):
    """What does tasks, minibatch by minibatch. All calls come from one thread, except `close`."""

    def do(self, task: int, chunk: int, following: int | None) -> bytes | None:
        """Do a minibatch, of which the first begins the task; return the task's result once all of it is done, else None.

        `following`: the task after it, if that is known.
        """

    def metrics(self, body: bytes) -> MetricValues:
        """Return the metrics of what all tasks have added up."""

    def load(self) -> None:
        """Put what all tasks have written into a table, once however often it is asked for."""

    def close(self) -> None:
        """Read no more; a `do` or `load` that waits ends with Cancelled."""


class EvaluationDoer:
    """Evaluates, for `TaskDoer`."""

    def __init__(self, evaluating: Evaluating) -> None:
        self._evaluating = evaluating

    def do(self, task: int, chunk: int, following: int | None) -> bytes | None:
        """Add a minibatch to its task's sums."""
        return self._evaluating.evaluate(Evaluate(STATE, task, chunk, following)).body

    def metrics(self, body: bytes) -> MetricValues:
        """Return the metrics of what all tasks have added up."""
        return self._evaluating.compute(ComputeMetrics(STATE, body)).values

    def load(self) -> None:
        """Do nothing: nothing is written."""

    def close(self) -> None:
        """Read no more."""
        self._evaluating.close()


class TaskInbox:
    """A worker's machine, and the work that it gives to one thread."""

    def __init__(
        self,
        member: TaskMember,
        heart: Beats,
        send: Sending,
        leaving: Callable[[Exit], None],
        close: Callable[[], None],
    ) -> None:
        """Take the machine of a worker that has done nothing.

        Args:
            member: the machine.
            heart: says what it has done.
            send: says the rest.
            leaving: is called at once when the process is to end, while the main thread may still be at work.
            close: is called then, too, so that what reads ends.
        """
        self._machine = member
        self._close = close
        self._heart = heart
        self._send = with_log_of_notes(send)
        self._leaving = leaving
        self._lock = threading.RLock()
        self._queue: queue.SimpleQueue[TaskWork | Exit] = queue.SimpleQueue()

    def feed(self, event: TaskEvent) -> None:
        """Give an event to the machine and carry out what can't wait; callable from every thread."""
        with self._lock:
            self._machine, instructions = self._machine.handle(event)
            for instruction in instructions:
                if isinstance(instruction, Send):
                    self._send(instruction.message)
                    continue
                if isinstance(instruction, Exit):
                    self._leaving(instruction)
                    self._close()
                self._queue.put(instruction)
            self._heart.set(*self._machine.beat)

    def take(self) -> TaskWork | Exit:
        """Wait for the next work."""
        return self._queue.get()


class TaskWorker:
    """One worker: its machine, and what does its tasks."""

    def __init__(
        self, member: TaskMember, doer: TaskDoer, heart: Beats, send: Sending, leaving: Callable[[Exit], None]
    ) -> None:
        """`leaving`: as of `TaskInbox`."""
        self._doer = doer
        self._inbox = TaskInbox(member, heart, send, leaving, doer.close)
        self.feed = self._inbox.feed

    def run(self) -> Exit:
        """Work until the machine says that this process ends; the caller's thread is the only one that touches the model."""
        while True:
            work = self._inbox.take()
            if isinstance(work, Exit):
                return work
            try:
                outcome = self._do(work)
            except Cancelled:
                outcome = WorkCancelled()
            except PROGRAM_ERRORS as error:  # the machine decides what it means (D10)
                outcome = program_error(error)
            self.feed(outcome)

    def _do(self, work: TaskWork) -> Outcome:
        match work:
            case DoChunk(_, task, chunk, following):
                return ChunkDone(task, chunk, self._doer.do(task, chunk, following))
            case MakeMetrics(body):
                return MetricsMade(self._doer.metrics(body))
            case LoadRows(task):
                self._doer.load()
                return RowsLoaded(task)
