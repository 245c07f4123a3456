"""Mistakes that the simulator must find: one rule is broken, everything else is real.

A mistake in a server is the core's (`ps/server/simulation.rs`), one in a master or a worker is a subclass here. Each has the seed of
a schedule that shows it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from elasticdl.control.protocol.frozen import replace
from elasticdl.control.protocol.messages import Evaluated, GateOpen, MemberMessage, TaskLeased, TaskResult
from elasticdl.control.protocol.psmessages import TaskDone
from elasticdl.control.protocol.view import MemberId, StateId, ViewId
from elasticdl.data.plan.tasks import TaskOrder
from elasticdl.data.plan.waves import WHOLE
from elasticdl.master.core.done import Done, TaskNumber
from elasticdl.master.core.evaluationresults import AddUp
from elasticdl.master.core.machine import Out
from elasticdl.master.core.records import CutRecord, Journal, Record
from elasticdl.master.ps.evaluations import Evaluations
from elasticdl.master.ps.machine import PsMaster
from elasticdl.master.ps.snapshots import Snapshots
from elasticdl.master.ps.work import Work
from elasticdl.worker.ps.evaluation import Evaluation
from elasticdl.worker.ps.events import Done as DoneWork
from elasticdl.worker.ps.events import PassBarrier, WriteLine
from elasticdl.worker.ps.machine import Flow, PsMember
from elasticdl.worker.ps.pacing import Needed
from elasticdl.worker.ps.passing import Passing
from tests.simulation.oracle import Violation
from tests.simulation.servers import schedules
from tests.simulation.servers.earlier import ROLL_BACK
from tests.simulation.servers.processes import Counting
from tests.simulation.servers.world import World


def server_that(mistake: str) -> type[World]:
    return type(mistake, (World,), {"server_mistake": mistake})


class OldDone(World):
    """ "Done" of a task that was begun before a roll-back counts (against rule R22)."""

    class master_class(PsMaster):
        def _take_done(self, now: float, connection: int, link: Any, done: TaskDone, out: Out) -> Any:
            late = replace(done, roll_back=self.journal.roll_back)
            return super()._take_done(now, connection, link, late, out)


class LeasedIsDone(World):
    """The watermark passes tasks that are leased (against rule R10)."""

    class Believing(Snapshots):
        def low(self, journal: Journal, work: Work) -> int:
            return work.leases.following

    def new_master(self) -> PsMaster:
        return replace(super().new_master(), snapshots=self.Believing())


class TrustsStreams(World):
    """What is sent to another server counts as accepted (against rule R4)."""

    trusts_streams = True


class NothingForWhatIsNoNumber(World):
    """A worker passes over a chunk whose gradient is no number, and its slots hear nothing of it (against rule R8)."""

    class worker_class(PsMember):
        def _computed(self, begun: Any, pushed: Any) -> Flow[Any]:
            found = yield from super()._computed(begun, pushed)
            if found is None or found.finite:
                return found
            yield from self._do(WriteLine(self._line(begun, idle=True)), DoneWork)
            return None


class EndsAgain(World):
    """A worker ends training each time that it hears of the end."""

    class worker_class(PsMember):
        def _end_training(self, steps: int, *, writes: bool) -> Flow[None]:
            self._ended = False
            return super()._end_training(steps, writes=writes)


class EndsInTimeOnly(World):
    """A worker that hears of the end with the verdict only does not end training."""

    class worker_class(PsMember):
        def _end_late(self) -> Flow[None]:
            yield from ()


class PassesOverHalf(World):
    """A worker passes over a chunk that some of its slots hold (against rule R8)."""

    class worker_class(PsMember):
        def _is_held(self, slots: frozenset[int], held: frozenset[int]) -> bool:
            return bool(slots & held)


class BarrierIgnored(World):
    """Tasks beyond a barrier are leased before it is evaluated (against rule B1)."""

    class Hasty(Work):
        def dealt(self, workers: Sequence[str], *, holds_back: bool) -> Work:
            leases = replace(self.leases, until=None).dealt(workers, self.reported.tasks)
            return replace(self, leases=replace(leases, until=self.leases.until))

    def new_master(self) -> PsMaster:
        return replace(super().new_master(), work=self.Hasty())


class EvaluatedEarly(World):
    """An evaluation begins while tasks before the barrier are computed (against rule B1)."""

    class Hasty(Work):
        def at_barrier(self, journal: Journal) -> StateId | None:
            leases = self.leases
            if (
                self.order is None
                or not journal.entries
                or leases.until is None
                or leases.low + 1 < leases.until
            ):
                return None
            return StateId(self.order.steps_before(leases.until), ViewId(leases.roll_back))

    def new_master(self) -> PsMaster:
        return replace(super().new_master(), work=self.Hasty())


class OpenedEarly(World):
    """Metrics open a barrier before they are journalled (against rule B3)."""

    class master_class(PsMaster):
        def _hear(self, now: float, connection: int, link: Any, message: MemberMessage, out: Out) -> Any:
            master = super()._hear(now, connection, link, message, out)
            if not isinstance(message, Evaluated) or master.evaluations.evaluation is None:
                return master
            return replace(master, work=replace(master.work, leases=replace(master.work.leases, until=None)))


class ResultsOfAnyState(World):
    """Results count whatever step they are of (against rule B3)."""

    class Believing(Evaluations):
        def heard(self, now: float, member: MemberId, result: TaskResult, add_up: AddUp) -> Evaluations:
            if self.evaluation is not None:
                result = replace(result, state=self.evaluation.state)
            return super().heard(now, member, result, add_up)

        def ended(self) -> Evaluations:
            return type(self)(self.metrics, self.able)

    def new_master(self) -> PsMaster:
        return replace(super().new_master(), evaluations=self.Believing())


class ResultsOfEarlier(World):
    """A worker answers with its result of an earlier barrier (against rule B3)."""

    class worker_class(PsMember):
        def __init__(self, *known: Any) -> None:
            super().__init__(*known)
            self._evaluation = self.Keeping()

        class Keeping(Evaluation):
            def opened(self, state: StateId) -> Evaluation:
                return self

            def leased(self, lease: TaskLeased) -> Evaluation:
                results = tuple(replace(result, state=lease.state) for result in self.results)
                return replace(self, leases=(*self.leases, lease), results=results)


class NextReplacesFirst(World):
    """A worker that learns what it is to evaluate next forgets what it evaluates."""

    class worker_class(PsMember):
        def __init__(self, *known: Any) -> None:
            super().__init__(*known)
            self._evaluation = self.Forgetting()

        class Forgetting(Evaluation):
            def leased(self, lease: TaskLeased) -> Evaluation:
                return replace(super().leased(lease), leases=(lease,))


class EvaluationsNotForgotten(World):
    """A barrier is passed once for ever, also if what is before it is trained once more (against rule B3)."""

    class master_class(PsMaster):
        def _appended(self, now: float, before: Journal, record: Record, out: Out) -> Any:
            journal = replace(self.journal, evaluated={**before.evaluated, **self.journal.evaluated})
            return super(type(self), replace(self, journal=journal))._appended(now, before, record, out)


class EvaluatesOwnVariables(World):
    """A worker evaluates with the variables of its last chunk (against rule B2)."""

    class worker_class(PsMember):
        def _take_last(self, steps: int, roll_back: int) -> Flow[Any]:
            yield from ()


class LeasedForEver(World):
    """What was leased to a worker that is lost is leased to nobody else."""

    class Keeping(Evaluations):
        def freed(self, member: MemberId) -> Evaluations:
            return self

        def ended(self) -> Evaluations:
            return type(self)(self.metrics, self.able)

    def new_master(self) -> PsMaster:
        return replace(super().new_master(), evaluations=self.Keeping())


class EndsUnevaluated(World):
    """The job ends with its last task (against rule B1)."""

    class Hasty(Work):
        def ends(self, journal: Journal) -> bool:
            return bool(journal.entries) and self.leases.is_over

    def new_master(self) -> PsMaster:
        return replace(super().new_master(), work=self.Hasty())


class PassesTheLastOnly(World):
    """A worker that joins passes the last barrier, and none before it (against rule B5)."""

    class worker_class(PsMember):
        def __init__(self, *known: Any) -> None:
            super().__init__(*known)
            self._passing = self.Hasty(self._settings.follows)

        class Hasty(Passing):
            def work(self) -> tuple[PassBarrier, tuple[StateId, ...]]:
                work, _ = Passing(self.follows, self.open[-1:]).work()
                return work, tuple(gate.state for gate in self.open)

            @property
            def is_behind(self) -> bool:
                states = [gate.state for gate in self.open]
                return self.follows and states[-1:] != list(self.passed[-1:])


class TrainsBeforePassing(World):
    """A worker begins what is leased beyond a barrier before its callbacks have passed that (against rule B5)."""

    class worker_class(PsMember):
        def _pass_barriers(self) -> Flow[None]:
            if next(self._tasks.following(), None) is None:
                yield from super()._pass_barriers()

        def _next(self) -> Any:
            passing, self._passing = self._passing, Passing()
            following = super()._next()
            self._passing = passing
            return following


class CallbacksNotRolledBack(World):
    """Callbacks keep what they have passed when a roll-back forgets it (against rule B5)."""

    class worker_class(PsMember):
        def __init__(self, *known: Any) -> None:
            super().__init__(*known)
            self._passing = self.Keeping(self._settings.follows)

        class Keeping(Passing):
            def rolled_back(self) -> Passing:
                return self


class PassedIsSaidOnce(World):
    """A worker does not say on another connection what its callbacks have passed (against rule B5)."""

    class worker_class(PsMember):
        def _enroll(self) -> None:
            passing, self._passing = self._passing, Passing()
            super()._enroll()
            self._passing = passing


class PassedIsNotSaidAgain(World):
    """A worker does not say in another roll-back what its callbacks have passed, if nothing of it is forgotten (against rule B5)."""

    class worker_class(PsMember):
        def _open_barrier(self, gate: GateOpen) -> None:
            self._passing = self._passing.opened(gate, self._tasks.roll_back)


class LeasesUnheard(World):
    """Tasks beyond a barrier are leased before callbacks have had their say (against rule B5)."""

    class Hasty(Work):
        def _until(self, order: TaskOrder, journal: Journal) -> TaskNumber | None:
            return self._beyond(order, journal)

    def new_master(self) -> PsMaster:
        return replace(super().new_master(), work=self.Hasty())


class EndIgnored(World):
    """A master goes on although callbacks want the end (against rule B5)."""

    class master_class(PsMaster):
        def _note_passed(self, state: StateId, stop: str, out: Any) -> Any:
            return super()._note_passed(state, "", out)


class EndKept(World):
    """A roll-back does not forget that callbacks wanted the end (against rule B5)."""

    class Keeping(Work):
        def rolled_back(self, position: Done, journal: Journal) -> Work:
            return replace(super().rolled_back(position, journal), ended_by=self.ended_by)

    def new_master(self) -> PsMaster:
        return replace(super().new_master(), work=self.Keeping())


class BestCutLate(World):
    """Tasks beyond the best barrier are begun before all slots are cut there, and the master takes what is cut (against rule B4)."""

    class Hasty(Snapshots):
        def holds_barrier(self, journal: Journal, work: Work) -> bool:
            return False

        def with_slots(self, *known: Any) -> Any:
            *before, cut = known
            sections = tuple(section._replace(until=0) for section in cut.sections)
            return super().with_slots(*before, replace(cut, sections=sections))

    def new_master(self) -> PsMaster:
        return replace(super().new_master(), snapshots=self.Hasty())


class AnyIsBest(World):
    """A snapshot that is due anyway counts as that of the best barrier (against rule B4)."""

    class Hasty(Snapshots):
        def wanted_cut(
            self, now: float, journal: Journal, work: Work, *, hears_more: bool
        ) -> CutRecord | None:
            cut = super().wanted_cut(now, journal, work, hears_more=hears_more)
            is_of_any = cut is not None and self.choice is not None
            return replace(cut, best=True) if cut is not None and is_of_any else cut

    def new_master(self) -> PsMaster:
        return replace(super().new_master(), snapshots=self.Hasty())


class BestNotCut(World):
    """The best barrier is passed as any other (against rule B4)."""

    class Careless(Snapshots):
        def _is_best_due(self, journal: Journal, work: Work) -> bool:
            return False

    def new_master(self) -> PsMaster:
        return replace(super().new_master(), snapshots=self.Careless())


class ForgetsTheEarlierJob(World):
    """A worker's callbacks pass no barrier of the job that this one continues (against rule B5)."""

    class worker_class(PsMember):
        def __init__(self, *known: Any) -> None:
            super().__init__(*known)
            self._passing = self.Careless(self._settings.follows)

        class Careless(Passing):
            def opened(self, gate: GateOpen, roll_back: int) -> Passing:
                of_earlier = roll_back > ROLL_BACK and gate.state.view <= ROLL_BACK
                return self if of_earlier else super().opened(gate, roll_back)


class NoLineOfWhatIsHeld(World):
    """A worker passes over what slots hold from an earlier job, and says so to no auditor (against rule R29)."""

    class worker_class(PsMember):
        def __init__(self, *known: Any) -> None:
            *others, settings = known
            super().__init__(*others, replace(settings, resumed=False))


class ReadsWithoutWaiting(World):
    """A worker does not wait for the steps before its own (against rule A2)."""

    class pacing_class(Counting):
        def need(self, task: int, chunk: int) -> Needed | None:
            return None


class ConfirmsTooMuch(World):
    """A worker confirms all of a task with the first chunk that is settled (against rule A3)."""

    class pacing_class(Counting):
        def settled(self, task: int, chunk: int) -> int:
            return WHOLE if self.accumulates else 0


MISTAKES: tuple[tuple[type[World], int, str], ...] = (
    (server_that("held early"), 18, "chunk"),
    (server_that("acknowledged early"), 0, "chunk"),
    (server_that("receiver not required"), 44, "chunk"),
    (server_that("no freeze"), 133, "chunk"),
    (server_that("copy without stamps"), 1, "chunk|account"),
    (server_that("takes older epoch"), 3, "chunk"),
    (server_that("refuses newer epoch"), 276, "does not end"),
    (server_that("reads early"), 41985, "computes chunk"),
    (TrustsStreams, 0, "chunk"),
    (OldDone, 220, "chunk"),
    (LeasedIsDone, 0, "tells low"),
    (PassesOverHalf, 9, "chunk"),
    (NothingForWhatIsNoNumber, 2, "account"),
    (EndsAgain, 0, "training has ended 2 times"),
    (BarrierIgnored, 1, "leases task"),
    (EvaluatedEarly, 1, "at no such barrier|evaluation at task|evaluation of|does not end"),
    (OpenedEarly, 1, "leases task|pushes task"),
    (ResultsOfAnyState, 95, "has seen"),
    (ResultsOfEarlier, 1, "has seen"),
    (NextReplacesFirst, 54, "does not end"),
    (EvaluationsNotForgotten, 165, "leases task|evaluation of|trains task"),
    (EvaluatesOwnVariables, 1, "has seen"),
    (LeasedForEver, 7, "does not end"),
    (EndsUnevaluated, 1, "not evaluated"),
    (EndsInTimeOnly, 44, "training has ended 0 times"),
    (PassesTheLastOnly, 218, "trains task"),
    (TrainsBeforePassing, 121, "trains task"),
    (CallbacksNotRolledBack, 9, "trains task"),
    (PassedIsSaidOnce, 108, "does not end"),
    (PassedIsNotSaidAgain, 1470, "does not end"),
    (LeasesUnheard, 37, "callbacks end the job"),
    (EndIgnored, 15, "callbacks end the job"),
    (EndKept, 329, "the job has ended"),
    (BestCutLate, 30, "the best snapshot"),
    (AnyIsBest, 15, "the best snapshot|kept as the best"),
    (BestNotCut, 86, "has no snapshot"),
    (ForgetsTheEarlierJob, 132, "trains task"),
    (NoLineOfWhatIsHeld, 104, "no audit line"),
    (ReadsWithoutWaiting, 6, "sees of slots"),
    (ConfirmsTooMuch, 69, "sees of slots"),
)
"""Each with a seed that shows it, and what is violated."""


def find(mistake: type[World], first: int, count: int) -> tuple[int, Violation] | None:
    """Return the first seed from `first` on with which a mistake shows, and what is violated."""
    for seed in range(first, first + count):
        try:
            schedules.run(seed, mistake)
        except Violation as violation:
            return seed, violation
    return None
