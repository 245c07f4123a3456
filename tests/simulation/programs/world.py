"""A whole job of programs in one process: the real machines, and the real control of a loop around a generator.

What differs from the jobs of `tests/simulation/world.py` is the worker's thread. What the machine says waits in a queue until the
program comes back to its session; and a commit is over only when the program has done what follows it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from zlib import crc32

from elasticdl.control.protocol.view import INITIAL, SNAPSHOT, MemberId, StateId, View
from elasticdl.data.plan.shard import Position
from elasticdl.worker import events as to_member
from elasticdl.worker.allreduce.divergence import diverged, is_one, spread
from elasticdl.worker.allreduce.runner import Item, Load
from elasticdl.worker.loop.control import LoopControl
from tests.simulation.faults import Faults
from tests.simulation.oracle import History, Lineage, Oracle, Violation
from tests.simulation.processes import MasterProcess, Ring, Token, Worker
from tests.simulation.programs.plan import ProgramPlan
from tests.simulation.programs.program import Place, Program, ProgramWorker, Takes
from tests.simulation.world import World

LEAVE_SECONDS = 5.0
"""How long a process that is out of its job may take to end."""

Content = tuple[Lineage | None, History]
"""All that a program keeps: the state of its model, and what it did after each step."""


class ProgramOracle(Oracle):
    """What must hold in jobs of programs, too."""

    world: ProgramWorld

    def gates(self, lineage: Lineage) -> list[StateId]:
        """Return the states after which a program does something: each one that a step has made."""
        return [StateId(step, lineage[step]) for step in range(self.first + 1, len(lineage))]

    def image(self, worker: ProgramWorker, what: object) -> None:
        """An image is taken only between a commit's end and the next batch."""
        assert worker.program is not None
        place = worker.program.place
        if place in (Place.BODY, Place.AFTER):
            raise Violation(
                f"{worker.name} gives an image ({what}) while its program is in the {place.value}"
            )
        assert worker.lineage is not None
        self._has_passed(
            f"{worker.name}, which gives an image,", worker.lineage, worker.history, of_last=True
        )

    def committed(self, worker: Any, work: Any, ring: Any, position: Position) -> None:
        """Commits happen in `step` only, and of members that have the same."""
        if worker.program.place is not Place.STEP:
            raise Violation(
                f"{worker.name} commits step {work.state.step} in the {worker.program.place.value}"
            )
        contents = self.world.contents[(work.view, work.state.step)].values()
        if len({content for content in contents if content is not None}) > 1:
            raise Violation(f"step {work.state.step} is committed by members that hold {list(contents)}")
        super().committed(worker, work, ring, position)

    def given(self, commit: to_member.Commit) -> None:
        """A member may promise a state from the moment that its commit is given to the program; if it dies first nobody ever has it."""
        view, step = self.contents[commit.view], commit.state.step
        before = view.base if step == view.base.step + 1 else StateId(step - 1, view.id)
        self.states.setdefault(commit.state, (*self.states[before], view.id))

    def applied(self, worker: ProgramWorker, commit: to_member.Commit) -> None:
        """A commit is over when the program has done what follows it."""
        assert worker.lineage is not None
        self._has_passed(
            f"{worker.name}, for which step {commit.state.step} is over,",
            worker.lineage,
            worker.history,
            of_last=True,
        )

    def check_end(self) -> None:
        """Programs that have all asked for an end after a step come to it there."""
        super().check_end()
        plan = self.world.program_plan
        if self.result is not None and plan.stop_step and self.faultless:
            steps = len(self.result) - 1
            if steps > max(plan.stop_step, self.first + 1):
                raise Violation(
                    f"all programs stop after step {plan.stop_step}, and the result is of step {steps}"
                )


class ProgramFaults(Faults):
    """What goes wrong in programs, too."""

    _world: ProgramWorld

    def plan(self) -> None:
        """Let each fault of the plan happen at a random event."""
        super().plan()
        plan = self._world.program_plan
        for count, fault in (
            (plan.program_stops, self._stop_in_program),
            (plan.leaves, self._leave_loop),
            (plan.deviations, self._deviate),
        ):
            for _ in range(count):
                self._world.at_event(fault)

    def break_program(self) -> None:
        """Let a program raise an exception when it is at work next."""
        worker = self._program()
        if worker is not None:
            self._world.oracle.faultless = False
            self._world.oracle.erred = True
            worker.raises = True

    def wake(self, process: Worker | MasterProcess) -> None:
        """Let a process go on."""
        super().wake(process)
        if isinstance(process, ProgramWorker):
            self._world.advance(process)

    def _program(self) -> ProgramWorker | None:
        worker = self._someone()
        return worker if isinstance(worker, ProgramWorker) else None

    def _stop_in_program(self) -> None:
        worker = self._program()
        if worker is not None:
            worker.stops_at = self._world.random.choice((Place.BODY, Place.AFTER))

    def _leave_loop(self) -> None:
        worker = self._program()
        if worker is not None:
            self._world.oracle.erred = True
            self._world.oracle.faultless = False
            worker.leaves = True

    def _deviate(self) -> None:
        worker = self._program()
        if worker is not None:
            self._world.oracle.erred = True
            self._world.oracle.faultless = False
            worker.deviates = True


class ProgramWorld(World):
    """One schedule of a job of programs."""

    worker_class = ProgramWorker
    oracle_class = ProgramOracle
    faults_class = ProgramFaults
    control_class: type[LoopControl] = LoopControl
    program_class: type[Program] = Program

    oracle: ProgramOracle

    def __init__(self, seed: int, plan: ProgramPlan, trace: Callable[[str], None] | None = None) -> None:
        self.program_plan = plan
        self.contents: dict[tuple[int, int], dict[MemberId, Content | None]] = {}
        """What the members of a ring hold that gave to it; None: it is not healed yet."""
        self.last: dict[StateId, Content] = {}
        """What members hold in a final view."""
        super().__init__(seed, plan, trace)

    # ------------------------------------------------------------------ the program's thread

    def advance(self, worker: ProgramWorker) -> None:
        """Let a program's thread run until it waits for something."""
        if worker.program is None:
            worker.program = self.program_class(self, worker)
        program = worker.program
        while (
            worker.status == "up"
            and worker.busy is None
            and not program.thread.gi_running
            and (worker.queue or not program.takes_work)
        ):
            item = worker.queue.popleft() if program.takes_work else None
            program.takes_work = False
            try:
                takes = program.thread.send(item)
            except StopIteration:
                worker.busy = "ended"
                return
            if takes is None:
                program.takes_work = True
            else:
                worker.busy = takes
                self._resume_after(worker, takes, self.delay(takes.kind))

    def _resume_after(self, worker: ProgramWorker, takes: Takes, delay: float) -> None:
        self.after(
            delay, f"{worker.name}: the program has done {takes.label}", lambda: self._resume(worker, takes)
        )

    def _resume(self, worker: ProgramWorker, takes: Takes) -> None:
        if not worker.lives or worker.stuck:
            return
        if worker.status == "paused":
            self._resume_after(worker, takes, 0.3 + self.delay("pause"))
            return
        worker.busy = None
        self.advance(worker)

    def feed(self, worker: Worker, event: Any) -> None:
        """Give an event to a machine; its program goes on if it waits for what the machine says then."""
        assert isinstance(worker, ProgramWorker)
        super().feed(worker, event)
        self.advance(worker)

    def carry_out(self, worker: Worker, instruction: Any) -> None:
        """Do at once what can't wait, and let the program's thread do the rest."""
        assert isinstance(worker, ProgramWorker)
        match instruction:
            case to_member.Send():
                super().carry_out(worker, instruction)
                return
            case to_member.CloseView():
                worker.cancelled = worker.numbers
                super().carry_out(worker, instruction)
                return
            case to_member.OpenView():
                worker.cancelled = worker.numbers
                super().carry_out(worker, instruction)
            case to_member.Commit():
                self.oracle.given(instruction)
            case to_member.Exit():
                self.after(LEAVE_SECONDS, f"{worker.name} has to go", lambda: self.exit(worker, instruction))
        worker.numbers += 1
        worker.queue.append(Item(worker.numbers, instruction))

    def do(self, worker: ProgramWorker, instruction: Any) -> None:
        """Do a piece of work on the program's thread."""
        super().carry_out(worker, instruction)

    def exit(self, worker: ProgramWorker, ended: to_member.Exit) -> None:
        """End a process."""
        if worker.lives:
            super().carry_out(worker, ended)

    def _come_back_now(self, worker: Worker, token: Token, version: int, outcome: Callable[[], Any]) -> None:
        assert isinstance(worker, ProgramWorker)
        super()._come_back_now(worker, token, version, outcome)
        if token.done and worker.busy is token:
            worker.busy = None
            self.advance(worker)

    # ------------------------------------------------------------------ work

    def begin_view(self, worker: ProgramWorker, view: View) -> None:
        """Compare what members hold that are at the end of a job."""
        rank = view.rank(worker.id)
        assert rank is not None
        if not view.final or view.sources[rank] is not None or self.program_plan.deviations:
            return
        content = (worker.lineage, worker.history)
        if self.last.setdefault(view.base, content) != content:
            raise Violation(f"{worker.name} ends with {content}, others with {self.last[view.base]}")

    def give_image(self, worker: ProgramWorker, instruction: Any) -> None:
        """Copy the state for others."""
        self.oracle.image(worker, type(instruction).__name__)
        self.do(worker, instruction)

    def applied(self, worker: ProgramWorker, commit: to_member.Commit, stop: str) -> None:
        """Tell the machine that a step is over."""
        self.oracle.applied(worker, commit)
        self.feed(worker, to_member.Applied(commit.state, stop))

    def healed(
        self, worker: Worker, work: to_member.Heal, content: Lineage, history: History
    ) -> to_member.Healed:
        """Take a state: what another member has sent is put in place by the program's thread, before any later work."""
        assert isinstance(worker, ProgramWorker)
        if work.source in (INITIAL, SNAPSHOT):
            return super().healed(worker, work, content, history)
        self.oracle.names(work.state, content, f"{worker.name} heals")
        worker.numbers += 1
        sent: Any = (content, history)
        worker.queue.append(Item(worker.numbers, Load(sent)))
        return to_member.Healed(work.view, work.state, work.position)

    def _contribute(self, worker: Worker, work: to_member.Contribute) -> None:
        content = None if work.blank else (worker.lineage, worker.history)
        self.contents.setdefault((work.view, work.step), {})[worker.id] = content
        super()._contribute(worker, work)

    def _complete_ring(self, ring: Ring, worker: Worker, token: Token) -> None:
        contents = self.contents[(ring.view.id, ring.step)].values()
        found = [
            spread(content is not None, 0 if content is None else crc32(repr(content).encode()) & 0xFFFFF)
            for content in contents
        ]
        if len(ring.view.members) > 1 and not is_one([sum(one) for one in zip(*found, strict=True)]):
            event = diverged(ring.step)
            self.come_back(worker, token, self.delay("ring"), "has found another state", lambda: event)
        else:
            super()._complete_ring(ring, worker, token)

    def _export(self, worker: Worker, work: to_member.Export) -> None:
        assert isinstance(worker, ProgramWorker)
        self.oracle.image(worker, "Export")
        super()._export(worker, work)
