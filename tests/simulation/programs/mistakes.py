"""Mistakes of a loop's session, or of what carries out its work, that the simulator must find; each breaks one rule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from elasticdl.control.protocol.frozen import replace
from elasticdl.worker import events as to_member
from elasticdl.worker.contract.allreduce import ChunkResult
from elasticdl.worker.contract.loop import LoopBatch
from elasticdl.worker.loop.control import LoopControl, Taking
from tests.simulation.oracle import Lineage, Violation
from tests.simulation.processes import Ring, Token, Worker
from tests.simulation.programs import schedules
from tests.simulation.programs.plan import ProgramPlan
from tests.simulation.programs.program import Program, ProgramWorker
from tests.simulation.programs.world import ProgramOracle, ProgramWorld
from tests.simulation.world import World


class AppliedAtCommit(ProgramWorld):
    """The machine hears that a step is over when it is committed, before the program has done what follows."""

    class control_class(LoopControl):
        def step(self, result: ChunkResult) -> Taking[bool]:
            committed = yield from super().step(result)
            self._settle()
            return committed


class ImageInMidStep(ProgramWorld):
    """`step` works on until there is something to compute: a state is copied before the program has done what follows the step."""

    class control_class(LoopControl):
        def step(self, result: ChunkResult) -> Taking[bool]:
            committed = yield from super().step(result)
            self._settle()
            while committed:
                item = yield from self._take()
                match item.instruction:
                    case to_member.TakePart() | to_member.ServeState() | to_member.OpenView():
                        self._running().work(item)
                    case _:
                        self._held = item
                        break
            return committed

    class oracle_class(ProgramOracle):
        def applied(self, *_: object) -> None:
            """That the step is over is said too early, too; what comes of it is looked for."""


class PlaceholderCounted(ProgramWorld):
    """The gradient of a placeholder is added."""

    class program_class(Program):
        def add(self, batch: LoopBatch, base: Lineage | None) -> int:
            assert base is not None
            if batch.batch is None:
                self.worker.accumulator.append((batch.lane, (batch.epoch, 0, 0), base))
            return super().add(batch, base)


class ChunkDropped(ProgramWorld):
    """What was computed for a step is dropped when the group changes, though it is to be kept."""

    def carry_out(self, worker: Worker, instruction: Any) -> None:
        super().carry_out(worker, instruction)
        if isinstance(instruction, to_member.OpenView):
            worker.accumulator = []


class OthersChunkDropped(ProgramWorld):
    """A chunk of another worker that comes in `step` is taken, and never given to the program."""

    class control_class(LoopControl):
        def step(self, result: ChunkResult) -> Taking[bool]:
            committed = yield from super().step(result)
            if self._held is not None and isinstance(self._held.instruction, to_member.Compute):
                self._held = None
            return committed


class ScheduleWithoutCommit(ProgramWorld):
    """A program does what belongs to a step after each batch."""

    class program_class(Program):
        def after(self, *, committed: bool) -> None:
            self.note()


class CommitInNext(ProgramWorld):
    """A step in which a worker has no batch is committed without a pass of its loop's body."""

    class control_class(LoopControl):
        in_next = False

        def next(self) -> Taking[LoopBatch | None]:
            self.in_next = True
            batch = yield from super().next()
            self.in_next = False
            return batch

        def _take(self) -> Taking[Any]:
            item = yield from super()._take()
            if not (self.in_next and isinstance(item.instruction, to_member.Commit)):
                return item
            self._apply(self._running(), item.instruction)
            self._settle()
            return (yield from self._take())


class NotCompared(ProgramWorld):
    """Members do not compare what they hold."""

    def _complete_ring(self, ring: Ring, worker: Worker, token: Token) -> None:
        World._complete_ring(self, ring, worker, token)


class PlaceholderWaits(ProgramWorld):
    """A worker that computes a placeholder seems to wait for others, also when its program hangs."""

    class control_class(LoopControl):
        def _give(self, batch: LoopBatch) -> LoopBatch:
            if batch.batch is None:
                self._running().at_placeholder(computes=False)
            return super()._give(batch)


class StopForgotten(ProgramWorld):
    """A wish to stop that was said while a step was committed is forgotten."""

    class control_class(LoopControl):
        def _settle(self) -> None:
            if self._commit is not None:
                self._reason = ""
            super()._settle()


class StopAfterPromise(ProgramWorld):
    """The wish to stop is said when the step is over, and may come after the promise to leave the view."""

    def applied(self, worker: ProgramWorker, commit: to_member.Commit, stop: str) -> None:
        super().applied(worker, commit, "")
        if stop:
            self.feed(worker, to_member.StopRequested(stop))


class CancelsForEver(ProgramWorld):
    """From some step on a worker answers each batch as if it had been cancelled: views follow each other until the job fails (D11)."""

    after_steps = 2

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.oracle.erred, self.oracle.faultless = True, False

    class control_class(LoopControl):
        def _take(self) -> Taking[Any]:
            item = yield from super()._take()
            if (
                isinstance(item.instruction, to_member.Compute)
                and item.instruction.step > CancelsForEver.after_steps
            ):
                self._running().feed(to_member.WorkCancelled())
                return (yield from self._take())
            return item


MISTAKES: tuple[type[ProgramWorld], ...] = (
    AppliedAtCommit, ImageInMidStep, PlaceholderCounted, ChunkDropped, OthersChunkDropped, ScheduleWithoutCommit, CommitInNext,
    NotCompared, StopForgotten, StopAfterPromise,
    PlaceholderWaits,
)  # fmt: skip

_LOSES: dict[str, int] = {"kills": 2, "glitches": 2}
FOCUS: dict[str, Callable[[ProgramPlan], ProgramPlan]] = {
    "ChunkDropped": lambda plan: replace(plan, lanes=4, **_LOSES),
    "OthersChunkDropped": lambda plan: replace(plan, lanes=3, **_LOSES),
    "NotCompared": lambda plan: replace(
        plan, workers=3, deviations=1, checkpoint_steps=100, lasting=False, span=100
    ),
    "PlaceholderWaits": lambda plan: ProgramPlan(workers=3, lanes=1, tasks=9, chunks=1, stuck=1, span=250),
    "StopForgotten": lambda plan: ProgramPlan(workers=2, chunks=1, stop_step=2, joins=plan.joins),
    "StopAfterPromise": lambda plan: ProgramPlan(
        workers=2, chunks=1, stop_step=2, joins=2, span=60, minimum=1
    ),
    "ImageInMidStep": lambda plan: replace(plan, checkpoint_steps=1),
}
"""What makes a mistake likely to show, if the ordinary schedules do not."""


def find(world: type[ProgramWorld], count: int) -> tuple[int, str] | None:
    """Return the seed of the first schedule that shows the mistake, and how; None if none of them does."""
    focus = FOCUS.get(world.__name__, lambda plan: plan)
    for seed in range(count):
        try:
            world(seed, focus(schedules.plan_of(seed))).run()
        except Violation as violation:
            return seed, str(violation)
    return None
