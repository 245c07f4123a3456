"""Mistakes that the simulator must find: one rule is broken, everything else is real."""

from __future__ import annotations

from typing import Any

from elasticdl.control.protocol.frozen import replace
from elasticdl.control.protocol.messages import Evaluated
from elasticdl.control.protocol.tasking import NO_VIEW, STATE
from elasticdl.control.protocol.view import MemberId
from elasticdl.master.core.evaluation import Evaluation
from elasticdl.master.core.machine import Out
from elasticdl.master.core.records import FinishedRecord, Record
from elasticdl.master.tasking.machine import TaskMaster
from elasticdl.worker.tasking.machine import ChunkDone, TaskMember
from tests.simulation.oracle import Violation
from tests.simulation.tasks import schedules
from tests.simulation.tasks.world import World, number


class EndsEarly(World):
    """The job is finished although a task is not."""

    class master_class(TaskMaster):
        def _wanted_finish(self) -> Record | None:
            if self.evaluates or self.tasks is None or len(self.tasks.results) < self.tasks.tasks - 1:
                return super()._wanted_finish()
            return FinishedRecord(NO_VIEW, STATE, self.settings.draft, "", ())


class ResultsCountTwice(World):
    """A result that comes again is added once more."""

    class master_class(TaskMaster):
        def _take_result(self, now: float, link: Any, task: int, body: bytes) -> Any:
            known = None if self.tasks is None else self.tasks.results.get(task)
            if not self.evaluates or known is None or self.tasks is None or self.added_up is not None:
                return super()._take_result(now, link, task, body)
            twice = (number(known) + number(body)).to_bytes(8, "big")
            return replace(self, tasks=replace(self.tasks, results={**self.tasks.results, task: twice}))


class LeasesOfTheDeadStay(World):
    """What a lost worker was to do is leased for ever, and copied by nobody."""

    class master_class(TaskMaster):
        def _without(self, member: MemberId) -> Any:
            return replace(self, liveness=self.liveness.without(member))

        def _with_data(self, shards: Any, validation: Any) -> Any:
            master = super()._with_data(shards, validation)
            return replace(master, tasks=Alone(STATE, master.tasks.tasks, 0.0, kind=master.tasks.kind))


class Alone(Evaluation):
    def _may_copy(self, now: float, member: MemberId, held: Any) -> bool:
        return not held


class NextOfTheDeadStays(World):
    """Only the first of the tasks that a lost worker was to do goes to others."""

    class master_class(TaskMaster):
        def _with_data(self, shards: Any, validation: Any) -> Any:
            master = super()._with_data(shards, validation)
            return replace(master, tasks=HalfFreed(STATE, master.tasks.tasks, 0.0, kind=master.tasks.kind))


class HalfFreed(Alone):
    def free(self, member: MemberId) -> Evaluation:
        mine = [task for task, held in self.leases.items() if any(lease.member == member for lease in held)]
        kept = {task: held for task, held in self.leases.items() if task in mine[1:]}
        freed = super().free(member)
        return replace(freed, leases={**freed.leases, **kept})


class HangsAreForever(World):
    """A worker that hangs is neither replaced, nor are its tasks done by others."""

    class master_class(LeasesOfTheDeadStay.master_class):
        def _act(self, now: float, out: Out) -> Any:
            return self

        def _without(self, member: MemberId) -> Any:
            return TaskMaster._without(self, member)


class SaidBeforeWritten(World):
    """A worker says that a task is done when it begins its last minibatch."""

    def _do(self, worker: Any, kind: Any, task: int, chunk: int) -> None:
        if self.plan.predicts and chunk + 1 == self.tasks.num_chunks(task) and task not in self.files:
            self.later(0.5, lambda: self.files.add(task) if worker.alive else None)
            self.take(worker, ChunkDone(task, chunk, b""))
            return
        super()._do(worker, kind, task, chunk)


class MetricsOfItsOwn(World):
    """A worker makes metrics of what it has added up itself."""

    def _make(self, worker: Any, body: bytes) -> None:
        own = sum(number(result.body) for result in worker.machine.results)
        super()._make(worker, own.to_bytes(8, "big"))


class GoesOnWhereItWas(World):
    """A worker that gets a task anew continues at the minibatch where another task of it was."""

    class member_class(TaskMember):
        def _begin(self, chunk: int = 0) -> Any:
            return super()._begin(min(self.done, 1) if chunk == 0 and self.done else chunk)

    def _do(self, worker: Any, kind: Any, task: int, chunk: int) -> None:
        worker.sums.setdefault(task, 0)
        super()._do(worker, kind, task, min(chunk, self.tasks.num_chunks(task) - 1))


class MetricsBeforeAll(World):
    """Metrics are made of the results so far when half of them are there."""

    class master_class(TaskMaster):
        def _take_result(self, now: float, link: Any, task: int, body: bytes) -> Any:
            master = super()._take_result(now, link, task, body)
            tasks = master.tasks
            if (
                not self.evaluates
                or tasks is None
                or master.added_up is not None
                or 2 * len(tasks.results) < tasks.tasks
            ):
                return master
            return replace(master, added_up=self.settings.add_up("", list(tasks.results.values())))

        def _take_metrics(self, now: float, link: Any, said: Evaluated) -> Any:
            return replace(self, tasks=replace(self.tasks, evaluated=said))


class ReleasedAtWork(World):
    """A result of a worker that leaves counts for nothing, and its task is done by nobody."""

    class master_class(LeasesOfTheDeadStay.master_class):
        def _let_leave(self, link: Any, out: Out) -> Any:
            return (
                replace(self, liveness=self.liveness.leaves(link.member))
                if link.member in self.liveness.seen
                else self
            )

        def _verdict(self, link: Any) -> Any:
            seen = self.liveness.seen.get(link.member)
            return replace_busy(self)._super_verdict(link) if seen is not None else super()._verdict(link)

        def _super_verdict(self, link: Any) -> Any:
            return TaskMaster._verdict(self, link)


def replace_busy(master: Any) -> Any:
    return replace(master, tasks=None)


class LoadsEarly(World):
    """The rows are loaded although a task is not done."""

    class master_class(TaskMaster):
        def _lease_tasks(self, now: float, out: Out) -> Any:
            tasks = self.tasks
            if self.settings.table and tasks is not None and 0 < len(tasks.results) == tasks.tasks - 1:
                return self._lease_load(now, out)
            return super()._lease_tasks(now, out)


class MarkIsIgnored(World):
    """A loader does not look whether one before it has committed."""

    def _mark(self) -> None:
        pass


class MarkedBefore(World):
    """The mark is a transaction of its own, before that of the rows."""

    def _load(self, worker: Any, task: int) -> None:
        is_first = worker.alive and not worker.hangs and self.writer is None and not self.is_marked
        super()._load(worker, task)
        if is_first:
            self.is_marked = True


class LoaderIsBelieved(World):
    """A loader that has gone is thought to have done it."""

    class master_class(TaskMaster):
        def _freed(self, member: MemberId) -> Any:
            return replace(super()._freed(member), loaded=self.loaded or self.loader == member)


class EndsUnloaded(World):
    """The end is recorded when all tasks are done, and the load, which no record has, is forgotten with the master's memory."""

    class master_class(TaskMaster):
        def _wanted_finish(self) -> Record | None:
            if not self.settings.table or self.tasks is None or not self.tasks.is_whole:
                return super()._wanted_finish()
            return FinishedRecord(NO_VIEW, STATE, self.settings.draft, "", ())


MISTAKES: tuple[type[World], ...] = (
    EndsEarly, ResultsCountTwice, LeasesOfTheDeadStay, NextOfTheDeadStays, HangsAreForever, SaidBeforeWritten, MetricsOfItsOwn,
    GoesOnWhereItWas, MetricsBeforeAll, ReleasedAtWork, LoadsEarly, MarkIsIgnored, MarkedBefore, LoaderIsBelieved, EndsUnloaded,
)  # fmt: skip


def find(mistake: type[World], most: int) -> tuple[int, Violation] | None:
    """Return the first of so many schedules that shows a mistake, and how; None if none does."""
    for seed in range(most):
        try:
            schedules.run(seed, mistake)
        except Violation as violation:
            return seed, violation
    return None
