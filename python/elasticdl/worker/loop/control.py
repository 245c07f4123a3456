"""Where control comes back to a program with a training loop, and what is done before: decisions without waiting, thread or connection.

Each call is a generator that yields whenever it needs the next piece of work, and is sent that. A session gives it what its worker's queue
has; the simulator gives it what its scheduler has, in any order that can be.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import NoReturn, Protocol, TypeVar

from elasticdl.worker.allreduce.runner import Chunk, Item
from elasticdl.worker.contract.allreduce import ChunkResult
from elasticdl.worker.contract.loop import LoopBatch
from elasticdl.worker.events import (
    Commit,
    Compute,
    Contribute,
    EndTraining,
    Event,
    Exit,
    ProgramError,
    StopRequested,
)
from elasticdl.worker.loop.ending import LEFT_EARLY
from elasticdl.worker.raised import PROGRAM_ERRORS, program_error
from elasticdl.worker.steprecorder import StepRecorder

Result = TypeVar("Result")
Taking = Generator[None, Item, Result]
"""A call that takes pieces of work, each when it yields."""


class Left(SystemExit):
    """This process is no longer part of its job: nothing more of the program runs, but what it does whenever it ends."""


class Carrier(Protocol):
    """What carries out pieces of work: an `AllReduceWorker`."""

    @property
    def epoch(self) -> int:
        """Return the epoch of the state that is in the model."""

    def describe_chunk(self) -> str:
        """Say which chunk is under way, for messages."""

    def stale(self, item: Item) -> bool:
        """Tell whether the item's view was sealed meanwhile."""

    def work(self, item: Item) -> None:
        """Do a piece of work, all but `Exit`."""

    def read_chunk(self, compute: Compute) -> Chunk | None:
        """Return the chunk to be computed; None, with the machine told, if there is nothing in it."""

    def computed(self, chunk: Chunk, result: ChunkResult) -> None:
        """Say that a chunk is in the accumulator."""

    def at_placeholder(self, *, computes: bool) -> None:
        """Say that the program computes a placeholder while others wait for what follows it, or no longer."""

    def apply(self, commit: Commit) -> str | None:
        """Commit a step; `applied` follows."""

    def applied(self, commit: Commit, reason: str | None) -> None:
        """Say that a step is committed: from now on others may get this state."""

    def feed(self, event: Event) -> None:
        """Give an event to the machine."""


class Waiting(Protocol):
    """Gives signs of life between steps: a `Patience`."""

    def begin(self, seconds: float) -> None:
        """Give signs of life for so long, or until `end`."""

    def end(self) -> None:
        """Give no more."""


class LoopControl:
    """The passes of one program's loop.

    Attributes:
        worker: does the work, once the loop has begun.
        steps: committed steps.
        epoch: of the next batch; the number of epochs at the end.
        left: how this process has left its job.
    """

    def __init__(
        self, waiting: Waiting, recorder: StepRecorder, between: float, leave: Callable[[Exit], None]
    ) -> None:
        """`between`: seconds that a program may take between two epochs, and after the last; `leave` is called once, at the end."""
        self.worker: Carrier | None = None
        self.steps = self.epoch = 0
        self.left: Exit | None = None
        self._waiting, self._recorder, self._between, self._leave = waiting, recorder, between, leave
        self._held: Item | None = None
        """Work that the program has to do first, or that follows its pass."""
        self._chunk: Chunk | None = None
        """What the program computes now; None while that is a placeholder, or nothing."""
        self._computes = False
        self._began = 0
        self._commit: Commit | None = None
        """A step that was committed, and that the program has not come back from."""
        self._reason = ""
        """Why the program wants training to end, until that has been said."""
        self._trained = False
        """Training is over, and this process has the final state."""

    def next(self) -> Taking[LoopBatch | None]:
        """Return the next batch; None at the end of training. Raises Left if this process is out of its job."""
        worker = self._running()
        self._waiting.end()
        self._settle()
        while not self._trained:
            item = yield from self._take()
            match item.instruction:
                case Exit():
                    self._exit(item.instruction)
                case EndTraining():
                    worker.work(item)
                    self._trained = True
                    self._waiting.begin(self._between)
                case Compute() if not worker.stale(item):
                    self._chunk = worker.read_chunk(item.instruction)
                    if self._chunk is not None:
                        work = item.instruction
                        at = work.position.epoch, work.step - 1
                        return self._give(LoopBatch(*at, work.lane, self._chunk.records, self._chunk.batch))
                case Contribute(blank=False) if not worker.stale(item):
                    self._held = item
                    worker.at_placeholder(computes=True)
                    return self._give(LoopBatch(worker.epoch, item.instruction.step - 1, 0, 0, None))
                case Commit():
                    self._held, after = item, item.instruction
                    epoch = after.position.epoch - after.epoch_ended
                    return self._give(LoopBatch(epoch, after.state.step - 1, 0, 0, None))
                case _:
                    worker.work(item)
        return None

    def step(self, result: ChunkResult) -> Taking[bool]:
        """Give what was computed of the batch; return whether a step was committed. Raises Left if this process is out of its job."""
        worker = self._running()
        assert self._computes, "a step follows a batch"
        self._computes = False
        self._recorder.end("compute", self._began)
        if self._chunk is not None:
            chunk, self._chunk = self._chunk, None
            worker.computed(chunk, result)
        elif self._held is not None:
            worker.at_placeholder(computes=False)
        while True:
            item = yield from self._take()
            match item.instruction:
                case Exit():
                    self._exit(item.instruction)
                case Commit():
                    self._apply(worker, item.instruction)
                    return True
                case Compute() | EndTraining() if not worker.stale(item):
                    self._held = item
                    return False
                case _:
                    worker.work(item)

    def stop(self, reason: str) -> None:
        """Ask for the end of training after the step under way."""
        self._reason = self._reason or reason

    def finish(self) -> Taking[None]:
        """Do what follows the last step, until this process has left its job; that training is not over is reported."""
        worker = self._running()
        self._waiting.end()
        if not self._trained:
            yield from self.fail(_left_early(self.steps, worker.describe_chunk()))
        while self.left is None:
            item = yield from self._take()
            if isinstance(item.instruction, Exit):
                self._end(item.instruction)
                break
            try:
                worker.work(item)
            except PROGRAM_ERRORS as error:
                worker.feed(program_error(error))

    def fail(self, error: ProgramError) -> Taking[None]:
        """Tell the job that the program has failed, and wait until it knows: what is not the end of this process is no longer done."""
        self._waiting.end()
        if self.left is None:
            self._running().feed(error)
        while self.left is None:
            item = yield from self._take()
            if isinstance(item.instruction, Exit):
                self._end(item.instruction)

    # ------------------------------------------------------------------ pieces

    def _running(self) -> Carrier:
        assert self.worker is not None, "`begin` comes first"
        return self.worker

    def _take(self) -> Taking[Item]:
        if self._held is not None:
            item, self._held = self._held, None
            return item
        return (yield)

    def _give(self, batch: LoopBatch) -> LoopBatch:
        """Let the program compute a batch; where it is counts, whatever state came from others meanwhile."""
        self.steps, self.epoch = batch.step, batch.epoch
        self._computes = True
        self._began = self._recorder.begin()
        return batch

    def _apply(self, worker: Carrier, commit: Commit) -> None:
        began = self._recorder.begin()
        worker.apply(commit)
        self._recorder.end("apply", began)
        self._recorder.end_step(commit.state.step)
        self._commit = commit
        self.steps, self.epoch = commit.state.step, commit.position.epoch
        if commit.epoch_ended:
            self._waiting.begin(self._between)

    def _settle(self) -> None:
        """Let the last step be over, with all that the program has done since."""
        commit, self._commit = self._commit, None
        reason, self._reason = self._reason, ""
        if commit is not None:
            self._running().applied(commit, reason or None)
        elif reason:
            self._running().feed(StopRequested(reason))

    def _exit(self, ended: Exit) -> NoReturn:
        self._end(ended)
        raise Left(ended.code)

    def _end(self, ended: Exit) -> None:
        self.left = ended
        self._leave(ended)


def _left_early(steps: int, chunk: str) -> ProgramError:
    text = LEFT_EARLY.format(steps=steps)
    return ProgramError("program", "left its loop", chunk, text)
