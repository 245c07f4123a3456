"""A program with a training loop, as a generator: it yields for the next piece of work, or to let time pass."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

from elasticdl.control.protocol.view import INITIAL, SNAPSHOT, StateId
from elasticdl.worker import events as to_member
from elasticdl.worker.allreduce.runner import Chunk, Item, Load
from elasticdl.worker.contract.allreduce import ChunkResult
from elasticdl.worker.contract.loop import LoopBatch
from elasticdl.worker.loop.control import Left
from elasticdl.worker.raised import program_error
from elasticdl.worker.steprecorder import StepRecorder
from tests.simulation.oracle import Chunk as Numbered
from tests.simulation.oracle import Lineage, Violation
from tests.simulation.processes import Worker

if TYPE_CHECKING:
    from tests.simulation.programs.world import ProgramWorld


class Place(Enum):
    """Where a program's thread is."""

    NEXT = "next"
    BODY = "body"
    STEP = "step"
    AFTER = "after"
    END = "end"


@dataclass(frozen=True)
class Takes:
    """The program does something that takes time."""

    kind: str
    label: str


@dataclass(eq=False)
class ProgramWorker(Worker):
    """A process whose main thread is a program's."""

    queue: deque[Item] = field(default_factory=deque)
    """What the machine has said and the program's thread has not taken."""
    numbers: int = 0
    cancelled: int = 0
    """Work with a number up to this one is given up."""
    program: Program | None = None
    busy: object = None
    """What the program's thread waits for, or does."""
    raises: bool = False
    leaves: bool = False
    deviates: bool = False
    stops_at: Place | None = None
    """Where the program calls `job.stop`."""
    at_placeholder: bool = False

    @property
    def beat(self) -> tuple[int, int, int]:
        view, step, progress = self.machine.beat
        return view, step, progress | self.at_placeholder


class Raised(Exception):
    """Of a program."""


class Program:
    """The thread of a program: a pass over its loop's body for each batch, and something after each committed step.

    What it does after a step goes into `history` of its worker, under the state that the step made.
    """

    def __init__(self, world: ProgramWorld, worker: ProgramWorker) -> None:
        self.world, self.worker = world, worker
        self.place = Place.NEXT
        waiting = Silence()
        recorder = StepRecorder(lambda _: None)
        self.control = world.control_class(waiting, recorder, 0.0, self._leave)
        self.control.worker = Carrier(world, worker)
        self.thread = self.run()
        self.takes_work = False

    def run(self) -> Generator[Takes | None, Any, None]:
        """Run the loop; it is sent a piece of work where it yields None."""
        control, worker = self.control, self.worker
        try:
            while (batch := (yield from control.next())) is not None:
                base = worker.lineage
                yield from self._be_in(Place.BODY, "compute")
                self._maybe_raise()
                if worker.lineage != base:
                    raise Violation(f"{worker.name} gets {worker.lineage} while it computes with {base}")
                self.place = Place.STEP
                records = self.add(batch, base)
                committed = yield from control.step(ChunkResult(float(records), 0.0))
                yield from self._be_in(Place.AFTER, "apply")
                self._maybe_raise()
                self.after(committed=committed)
                if worker.leaves:
                    break
                self.place = Place.NEXT
            self.place = Place.END
            yield from control.finish()
        except Left:
            return
        except Raised as error:
            self.place = Place.END
            yield from control.fail(program_error(error))

    def add(self, batch: LoopBatch, base: Lineage | None) -> int:
        """Add the gradient of a batch to the accumulator; return its records."""
        if batch.batch is None:
            return 0
        assert base is not None
        chunk: Numbered = batch.batch
        self.worker.accumulator.append((batch.lane, chunk, base))
        return batch.records

    def after(self, *, committed: bool) -> None:
        """Do what follows a pass: with a commit it is part of the state."""
        if committed:
            self.note()

    def note(self) -> None:
        """Do what follows a step."""
        worker = self.worker
        assert worker.lineage is not None
        state = StateId(len(worker.lineage) - 1, worker.lineage[-1])
        values = ((worker.name, 1.0),) if worker.deviates else None
        worker.deviates = False
        worker.history = (*worker.history, (state, values))
        stop_step = self.world.program_plan.stop_step
        if 0 < stop_step <= self.control.steps:
            self.control.stop("so many steps")

    def _be_in(self, place: Place, kind: str) -> Generator[Takes | None, Any, None]:
        self.place = place
        yield Takes(kind, place.value)
        if self.worker.stops_at is place:
            self.worker.stops_at = None
            self.control.stop("asked by one program")

    def _maybe_raise(self) -> None:
        if self.worker.raises:
            self.worker.raises = False
            raise Raised(self.world.random.choice(("A", "B", "C")))

    def _leave(self, ended: to_member.Exit) -> None:
        self.world.exit(self.worker, ended)


class Silence:
    """Implements `Waiting` of `elasticdl.worker.loop.control`."""

    def begin(self, seconds: float) -> None:
        """Do nothing."""

    def end(self) -> None:
        """Do nothing."""


class Carrier:
    """Implements `Carrier` of `elasticdl.worker.loop.control`: what an `AllReduceWorker` does with pieces of work."""

    def __init__(self, world: ProgramWorld, worker: ProgramWorker) -> None:
        self._world, self._worker = world, worker

    @property
    def epoch(self) -> int:
        return 0 if self._worker.position is None else self._worker.position.epoch

    def describe_chunk(self) -> str:
        return ""

    def stale(self, item: Item) -> bool:
        return item.number <= self._worker.cancelled

    def work(self, item: Item) -> None:
        world, worker, instruction = self._world, self._worker, item.instruction
        match instruction:
            case Load(content):
                saved: Any = content
                worker.lineage, worker.history = saved
                worker.accumulator = []
            case to_member.OpenView(view):
                world.begin_view(worker, view)
            case to_member.ServeState():
                if not self.stale(item):
                    world.give_image(worker, instruction)
            case to_member.TakePart():
                world.give_image(worker, instruction)
            case to_member.EndTraining():
                world.do(worker, instruction)
            case to_member.Heal() | to_member.Compute() | to_member.Contribute() | to_member.Export():
                if self.stale(item):
                    world.feed(worker, to_member.WorkCancelled())
                    return
                world.do(worker, instruction)
                if isinstance(instruction, to_member.Contribute | to_member.Export):
                    worker.busy = worker.token
                elif isinstance(instruction, to_member.Heal) and instruction.source in (INITIAL, SNAPSHOT):
                    worker.busy = worker.heal
            case _:
                raise Violation(f"{worker.name} carries out {instruction} outside of a step")

    def read_chunk(self, compute: to_member.Compute) -> Chunk | None:
        task = self._world.schedule.task(compute.position, compute.lane)
        chunk = compute.position.chunk
        records = self._world.oracle.records(task, chunk)
        return Chunk(compute, records, 0, (task.epoch, task.id, chunk))

    def computed(self, chunk: Chunk, result: ChunkResult) -> None:
        worker = self._worker
        worker.late = worker.late or not worker.machine.active
        event = to_member.ChunkComputed(chunk.compute.lane, chunk.records, result.examples, result.loss)
        self._world.feed(worker, event)

    def at_placeholder(self, *, computes: bool) -> None:
        self._worker.at_placeholder = computes

    def apply(self, commit: to_member.Commit) -> None:
        self._world.apply(self._worker, commit)

    def applied(self, commit: to_member.Commit, reason: str | None) -> None:
        self._world.applied(self._worker, commit, reason or "")

    def feed(self, event: to_member.Event) -> None:
        self._world.feed(self._worker, event)
