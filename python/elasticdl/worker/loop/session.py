"""The session of a custom training loop in a job of several processes: the worker's loop, turned inside out.

The program's thread does what a worker's main thread does, in `next` and in `step`; other threads bring events, as in every worker. Two
things differ from a worker with a model file. A batch is computed by the program, between `next` and `step`. And a commit is over only at
the following `next`: what the program does after a step, for example with a schedule, belongs to that step, and nobody gets the state
before.

A worker that has no batch in a step runs the loop's body all the same, on a placeholder, so that every commit ends one pass of it in
every worker.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NoReturn

from elasticdl.cluster.cluster import RELEASED
from elasticdl.control.protocol.messages import FoundShards
from elasticdl.data.plan.loopplan import LoopPlan
from elasticdl.errors import BadModel, BadSetting, Cancelled
from elasticdl.worker.allreduce.machine import Member
from elasticdl.worker.allreduce.runner import AllReduceWorker, Chunk, Item
from elasticdl.worker.allreduce.snapshots import Saving
from elasticdl.worker.auditlog import AuditLog
from elasticdl.worker.contract.allreduce import ChunkResult
from elasticdl.worker.contract.loop import LoopBatch, LoopSource, LoopState
from elasticdl.worker.events import (
    Commit,
    Compute,
    Contribute,
    EndTraining,
    Exit,
    ProgramError,
    StopRequested,
)
from elasticdl.worker.loop.adapter import LoopAdapter, adapter_of
from elasticdl.worker.loop.ending import LEFT_EARLY, NO_RESULT
from elasticdl.worker.loop.patience import Patience
from elasticdl.worker.process import MemberProcess
from elasticdl.worker.raised import PROGRAM_ERRORS, program_error
from elasticdl.worker.settings import LoopSettings

BETWEEN_EPOCHS = 10
"""How many times longer than a step a program may take between two epochs, and after the last one."""


class Left(SystemExit):
    """This process is no longer part of its job: nothing more of the program runs, but what it does whenever it ends."""


class JobSession:
    """Implements `elasticdl.worker.contract.loop.Session`."""

    def __init__(self, process: MemberProcess, leaving: Callable[[Exit], None]) -> None:
        """Nothing is trained yet; `begin` follows. `leaving` is called at once when this process is out of its job."""
        self._process, self._leaving = process, leaving
        self._patience = Patience(process.heart.alive)
        self._worker: AllReduceWorker | None = None
        self._adapter: LoopAdapter | None = None
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
        self._steps = 0
        self._epoch = 0
        self._trained = False
        """Training is over, and this process has the final state."""
        self._left: Exit | None = None

    # ------------------------------------------------------------------ the program

    @property
    def steps(self) -> int:
        """Return the committed steps."""
        return self._steps

    @property
    def epoch(self) -> int:
        """Return the epoch of the next batch; the number of epochs at the end."""
        return self._epoch

    @property
    def is_writer(self) -> bool:
        """Tell whether this process writes files and tells people: one does."""
        return self._adapter is not None and self._adapter.writes

    def begin(self, plan: LoopPlan, state: LoopState, source: LoopSource) -> None:
        """Say what is trained, on what, and take part. Raises BadInput for unusable data, or if the job has another plan."""
        schedule = plan.schedule()
        process, spec = self._process, self._process.spec
        process.found(FoundShards(plan.shards(), (), plan))
        try:
            agreed = process.data.result().plan
        except Cancelled as over:  # the job ended before its data was known
            self._leave(Exit(RELEASED, str(over)))
        assert agreed is not None, "masters of such jobs take no data without a plan"
        if differences := plan.differences(agreed):
            raise BadSetting(
                f"this worker's program reads other data than the job: {differences}; all workers must run the same program"
            )
        endpoint, snapshots = process.endpoint(), process.place.snapshots(spec)
        saving = None if snapshots is None else Saving(spec.checkpoint_steps, bool(spec.checkpoint_dir))
        output = Path(spec.output) if spec.output else None
        self._adapter = adapter_of(state)
        self._worker = AllReduceWorker(
            member=Member(process.id, process.name, endpoint.address, schedule, saving),
            adapter=self._adapter,
            endpoint=endpoint,
            chunks=source,
            evaluating=None,
            schedule=schedule,
            audit=AuditLog(Path(spec.audit), process.name, process.id, process.note) if spec.audit else None,
            heart=process.heart,
            send=process.send,
            settings=LoopSettings(spec.silence_seconds, spec.on_nan.value, output, "", snapshots),
            leaving=self._leaving,
            recorder=process.recorder,
        )
        if spec.output and not state.has_result:
            process.warn(NO_RESULT)
        process.attach(self._worker.feed)

    def next(self) -> LoopBatch | None:
        """Return the next batch; None at the end of training. Raises Left if this process is out of its job."""
        worker = self._running()
        self._patience.end()
        self._settle()
        while not self._trained:
            item = self._take()
            match item.instruction:
                case Exit():
                    self._leave(item.instruction)
                case EndTraining():
                    worker.work(item)
                    self._trained = True
                    self._patience.begin(BETWEEN_EPOCHS * self._process.spec.stall_seconds)
                case Compute() if not worker.stale(item):
                    self._chunk = worker.read_chunk(item.instruction)
                    if self._chunk is not None:
                        work = item.instruction
                        at = work.position.epoch, work.step - 1
                        return self._give(LoopBatch(*at, work.lane, self._chunk.records, self._chunk.batch))
                case Contribute(blank=False) if not worker.stale(item):
                    self._held = item
                    return self._give(LoopBatch(worker.epoch, item.instruction.step - 1, 0, 0, None))
                case Commit():
                    self._held, after = item, item.instruction
                    epoch = after.position.epoch - after.epoch_ended
                    return self._give(LoopBatch(epoch, after.state.step - 1, 0, 0, None))
                case _:
                    worker.work(item)
        return None

    def step(self, result: ChunkResult) -> bool:
        """Give what was computed of the batch; return whether a step was committed. Raises Left if this process is out of its job."""
        worker, recorder = self._running(), self._process.recorder
        assert self._computes, "a step follows a batch"
        self._computes = False
        recorder.end("compute", self._began)
        if self._chunk is not None:
            chunk, self._chunk = self._chunk, None
            worker.computed(chunk, result)
        while True:
            item = self._take()
            match item.instruction:
                case Exit():
                    self._leave(item.instruction)
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

    def put_result_at(self, path: str) -> None:
        """Do nothing: `--output` says it."""

    def note(self, text: str) -> None:
        """Tell people, in the job's log."""
        self._process.note(text)

    def long_operation(self, seconds: float) -> AbstractContextManager[None]:
        """Let what the program does meanwhile take so long without being taken for a worker that hangs."""
        return self._patience.during(seconds)

    def finish(self) -> int:
        """Carry out what follows the last step, until the job has ended; that training is not over is reported. Return the exit code."""
        self._patience.end()
        if self._worker is None:
            return self.fail(
                BadModel("the program ended, and trained nothing: its loop never asked for a batch")
            )
        if not self._trained:
            return self._fail(_left_early(self._steps, self._worker.describe_chunk()))
        while self._left is None:
            item = self._take()
            if isinstance(item.instruction, Exit):
                self._end(item.instruction)
                break
            try:
                self._worker.work(item)
            except PROGRAM_ERRORS as error:
                self._worker.feed(program_error(error))
        return self._code()

    def fail(self, error: BaseException) -> int:
        """Tell the job that the program has failed, and wait until it knows; return the exit code."""
        return self._fail(program_error(error, "" if self._worker is None else self._worker.describe_chunk()))

    def _fail(self, error: ProgramError) -> int:
        self._patience.end()
        if self._left is None and self._worker is None:
            self._end(self._process.report(error))
        elif self._left is None and self._worker is not None:
            self._worker.feed(error)
        while self._left is None:  # what is not the end of this process is no longer done
            item = self._take()
            if isinstance(item.instruction, Exit):
                self._end(item.instruction)
        return self._code()

    def _code(self) -> int:
        assert self._left is not None, "this process has left"
        return self._left.code

    # ------------------------------------------------------------------ pieces

    def _running(self) -> AllReduceWorker:
        assert self._worker is not None, "`begin` comes first"
        return self._worker

    def _take(self) -> Item:
        if self._held is not None:
            item, self._held = self._held, None
            return item
        return self._running().take()

    def _give(self, batch: LoopBatch) -> LoopBatch:
        """Let the program compute a batch; where it is counts, whatever state came from others meanwhile."""
        self._steps, self._epoch = batch.step, batch.epoch
        self._computes = True
        self._began = self._process.recorder.begin()
        return batch

    def _apply(self, worker: AllReduceWorker, commit: Commit) -> None:
        recorder = self._process.recorder
        began = recorder.begin()
        worker.apply(commit)
        recorder.end("apply", began)
        recorder.end_step(commit.state.step)
        self._commit = commit
        self._steps, self._epoch = commit.state.step, commit.position.epoch
        if commit.epoch_ended:
            self._patience.begin(BETWEEN_EPOCHS * self._process.spec.stall_seconds)

    def _settle(self) -> None:
        """Let the last step be over, with all that the program has done since."""
        commit, self._commit = self._commit, None
        reason, self._reason = self._reason, ""
        if commit is not None:
            self._running().applied(commit, reason or None)
        elif reason:
            self._running().feed(StopRequested(reason))

    def _leave(self, ended: Exit) -> NoReturn:
        self._end(ended)
        raise Left(ended.code)

    def _end(self, ended: Exit) -> None:
        if self._worker is not None:
            self._worker.close()
        self._left = ended
        self._process.leave(ended)


def _left_early(steps: int, chunk: str) -> ProgramError:
    text = LEFT_EARLY.format(steps=steps)
    return ProgramError("program", "left its loop", chunk, text)
