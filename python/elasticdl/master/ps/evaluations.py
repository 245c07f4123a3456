"""What is evaluated at the barrier that a job with parameter servers is at, and by whom (B1 to B3). Pure; time is an argument.

Which barrier that is follows from the tasks that are done (`work.py`). Here is only what is known of its evaluation, all of which may be
lost at any moment: workers repeat their results, and the metrics count once they are journalled. Where only callbacks wait for the end of
an epoch, its record has no metrics (B5).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from elasticdl.control.protocol.frozen import replace
from elasticdl.control.protocol.messages import Evaluated, TaskLeased, TaskResult
from elasticdl.control.protocol.view import MemberId
from elasticdl.master.core.evaluation import HELD, Evaluation
from elasticdl.master.core.evaluationresults import AddUp
from elasticdl.master.core.records import EvaluatedRecord, Journal
from elasticdl.master.ps.work import Work


@dataclass(frozen=True)  # no slots: see elasticdl.control.protocol.frozen
class Evaluations:
    """The evaluation at the present barrier.

    Attributes:
        metrics: what the result of a task consists of, as text; empty until a worker has said it.
        able: workers that have said it.
        evaluation: of the state at the barrier, None while the job is at none.
        added_up: what all its tasks have added up.
        leased: what each worker is to do, in order; only those that have something.
    """

    metrics: str = ""
    able: frozenset[MemberId] = frozenset()
    evaluation: Evaluation | None = None
    added_up: bytes | None = None
    leased: Mapping[MemberId, tuple[TaskLeased, ...]] = field(default_factory=dict)

    # ------------------------------------------------------------------ what comes in

    def found(self, member: MemberId, metrics: str) -> Evaluations:
        """Return what holds when a worker says what a result consists of."""
        return replace(self, metrics=metrics, able=self.able | {member})

    def heard(self, now: float, member: MemberId, result: TaskResult, add_up: AddUp) -> Evaluations:
        """Return what holds when a worker has done a task: results of another step, or of before a roll-back, count for nothing (B3)."""
        evaluation = self.evaluation
        if evaluation is None or result.state != evaluation.state:
            return self
        held = evaluation.leases.get(result.task, ())
        evaluation = evaluation.with_result(now, member, result.task, result.body)
        after = replace(self, evaluation=evaluation)
        for lease in held:
            after = after._with(
                lease.member, tuple(one for one in self.leased[lease.member] if one.task != result.task)
            )
        if evaluation.is_whole and self.added_up is None:
            results = [evaluation.results[task] for task in range(evaluation.tasks)]
            return replace(after, added_up=add_up(evaluation.metrics, results))
        return after

    def evaluated(self, member: MemberId, said: Evaluated) -> Evaluations:
        """Return what holds when a worker has made the metrics."""
        if self.evaluation is None or said.state != self.evaluation.state:
            return self
        return replace(self.freed(member), evaluation=self.evaluation.free(member).with_metrics(said))

    def freed(self, member: MemberId) -> Evaluations:
        """Return what holds when a worker is gone, or says anew what it has: nothing is leased to it."""
        if member not in self.leased or self.evaluation is None:
            return self
        return replace(self, evaluation=self.evaluation.free(member))._with(member, ())

    def ended(self) -> Evaluations:
        """Return what holds when metrics are journalled, or the job is rolled back: what is under way counts for nothing any more."""
        return Evaluations(self.metrics, self.able)

    def _with(self, member: MemberId, leased: tuple[TaskLeased, ...]) -> Evaluations:
        others = {other: theirs for other, theirs in self.leased.items() if other != member}
        return replace(self, leased={**others, member: leased} if leased else others)

    # ------------------------------------------------------------------ decisions

    def begun(self, now: float, journal: Journal, work: Work) -> Evaluations:
        """Return what holds once the job is at a barrier: its evaluation begins (B1). Never after `stopping`."""
        state = work.at_barrier(journal)
        if state is None or self.evaluation is not None or not self.metrics or journal.stopping is not None:
            return self
        assert work.order is not None, "a barrier is one of the job's tasks"
        if work.order.evaluation is None or not work.barriers.evaluates(work.leases.low):
            return self  # its record follows at once
        tasks = work.order.evaluation.num_tasks
        return replace(self, evaluation=Evaluation(state, tasks, now, self.metrics), added_up=None, leased={})

    def may_take(self, member: MemberId) -> bool:
        """Tell whether a worker may be given something to do, now or next."""
        return member in self.able and len(self.leased.get(member, ())) < HELD

    def dealt(self, now: float, members: Sequence[MemberId]) -> Evaluations:
        """Return what holds when each of these workers has something to do, and something next, as long as there is something."""
        if self.evaluation is None or not members:
            return self
        sharing = len(self.leased.keys() | set(members))
        evaluation, dealt = self.evaluation.dealt(now, members, sharing, self.added_up)
        after = replace(self, evaluation=evaluation) if dealt else self
        for member, leased in dealt:
            after = after._with(member, (*after.leased.get(member, ()), leased))
        return after

    def record(self, now: float, journal: Journal, work: Work) -> EvaluatedRecord | None:
        """Return what should be journalled of the evaluation (B3): once per state for ever, and never after `stopping`."""
        evaluation, state = self.evaluation, work.at_barrier(journal)
        if state is None or journal.stopping is not None:
            return None
        barrier = work.leases.low
        where = (barrier, *work.barriers.epoch(barrier))
        if not work.barriers.evaluates(barrier):
            return EvaluatedRecord(state, (), 0.0, *where)
        if evaluation is None or evaluation.evaluated is None or evaluation.state != state:
            return None
        return EvaluatedRecord(state, evaluation.evaluated.values, now - evaluation.began_at, *where)
