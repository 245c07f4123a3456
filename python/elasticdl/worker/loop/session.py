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

from elasticdl.cluster.cluster import RELEASED
from elasticdl.control.protocol.messages import FoundShards
from elasticdl.data.plan.loopplan import LoopPlan
from elasticdl.errors import BadModel, BadSetting, Cancelled
from elasticdl.worker.allreduce.machine import Member
from elasticdl.worker.allreduce.runner import AllReduceWorker
from elasticdl.worker.allreduce.snapshots import Saving
from elasticdl.worker.auditlog import AuditLog
from elasticdl.worker.contract.allreduce import ChunkResult
from elasticdl.worker.contract.loop import LoopBatch, LoopSource, LoopState
from elasticdl.worker.events import Exit
from elasticdl.worker.loop.adapter import LoopAdapter, adapter_of
from elasticdl.worker.loop.control import Left, LoopControl, Result, Taking
from elasticdl.worker.loop.ending import NO_RESULT
from elasticdl.worker.loop.patience import Patience
from elasticdl.worker.process import MemberProcess
from elasticdl.worker.raised import program_error
from elasticdl.worker.settings import LoopSettings

BETWEEN_EPOCHS = 10
"""How many times longer than a step a program may take between two epochs, and after the last one."""


class JobSession:
    """Implements `elasticdl.worker.contract.loop.Session`."""

    def __init__(self, process: MemberProcess, leaving: Callable[[Exit], None]) -> None:
        """Nothing is trained yet; `begin` follows. `leaving` is called at once when this process is out of its job."""
        self._process, self._leaving = process, leaving
        self._patience = Patience(process.heart.alive)
        between = BETWEEN_EPOCHS * process.spec.stall_seconds
        self._control = LoopControl(self._patience, process.recorder, between, self._leave)
        self._worker: AllReduceWorker | None = None
        self._adapter: LoopAdapter | None = None

    # ------------------------------------------------------------------ the program

    @property
    def steps(self) -> int:
        """Return the committed steps."""
        return self._control.steps

    @property
    def epoch(self) -> int:
        """Return the epoch of the next batch; the number of epochs at the end."""
        return self._control.epoch

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
            self._end(Exit(RELEASED, str(over)))
            raise Left(RELEASED) from None
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
            settings=LoopSettings(
                spec.silence_seconds,
                spec.on_nan.value,
                output,
                "",
                snapshots,
                short_gradients=spec.short_gradients,
            ),
            leaving=self._leaving,
            recorder=process.recorder,
        )
        self._control.worker = self._worker
        if spec.output and not state.has_result:
            process.warn(NO_RESULT)
        process.attach(self._worker.feed)

    def next(self) -> LoopBatch | None:
        """Return the next batch; None at the end of training. Raises Left if this process is out of its job."""
        return self._give_work(self._control.next())

    def step(self, result: ChunkResult) -> bool:
        """Give what was computed of the batch; return whether a step was committed. Raises Left if this process is out of its job."""
        return self._give_work(self._control.step(result))

    def stop(self, reason: str) -> None:
        """Ask for the end of training after the step under way."""
        self._control.stop(reason)

    def put_result_at(self, path: str) -> None:
        """Do nothing: `--output` says it."""

    def note(self, text: str) -> None:
        """Tell people, in the job's log."""
        self._process.kept.say(text)

    def long_operation(self, seconds: float) -> AbstractContextManager[None]:
        """Let what the program does meanwhile take so long without being taken for a worker that hangs."""
        return self._patience.during(seconds)

    def finish(self) -> int:
        """Carry out what follows the last step, until the job has ended; that training is not over is reported. Return the exit code."""
        if self._worker is None:
            return self.fail(
                BadModel("the program ended, and trained nothing: its loop never asked for a batch")
            )
        self._give_work(self._control.finish())
        return self._code()

    def fail(self, error: BaseException) -> int:
        """Tell the job that the program has failed, and wait until it knows; return the exit code."""
        if self._worker is None:
            self._patience.end()
            if self._control.left is None:
                self._end(self._process.report(program_error(error)))
            return self._code()
        self._give_work(self._control.fail(program_error(error, self._worker.describe_chunk())))
        return self._code()

    # ------------------------------------------------------------------ pieces

    def _give_work(self, taking: Taking[Result]) -> Result:
        """Give a call of the loop each piece of work that it takes, when there is one; return what it returns."""
        try:
            next(taking)
            while True:
                taking.send(self._running().take())
        except StopIteration as returned:
            result: Result = returned.value
            return result

    def _running(self) -> AllReduceWorker:
        assert self._worker is not None, "`begin` comes first"
        return self._worker

    def _code(self) -> int:
        assert self._control.left is not None, "this process has left"
        return self._control.left.code

    def _leave(self, ended: Exit) -> None:
        if self._worker is not None:
            self._worker.close()
        self._process.leave(ended)

    def _end(self, ended: Exit) -> None:
        self._control.left = ended
        self._leave(ended)
