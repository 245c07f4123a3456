"""Who is at the gate of the group's state, and what is evaluated there; each decision with its reason. Rule numbers: G1 to G7, D1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from elasticdl.control.protocol.frozen import replace
from elasticdl.control.protocol.messages import AtGate, Evaluated, MetricValues, TaskLeased, TaskResult
from elasticdl.control.protocol.view import MemberId, StateId, View
from elasticdl.master.allreduce.liveness import Liveness
from elasticdl.master.core.evaluation import Evaluation
from elasticdl.master.core.evaluationresults import AddUp
from elasticdl.master.core.machine import MasterCore
from elasticdl.master.core.records import EvaluatedRecord, Journal


@dataclass(frozen=True)  # no slots: see elasticdl.control.protocol.frozen
class Gates:
    """The gate that members of the current view are at.

    Attributes:
        at: of the current view, who is at which state's gate, in the order in which they came.
        evaluation: of one state, None while none is under way.
        added_up: what all its tasks have added up.
    """

    at: Mapping[MemberId, StateId] = field(default_factory=dict)
    evaluation: Evaluation | None = None
    added_up: bytes | None = None

    # ------------------------------------------------------------------ what comes in

    def arrived(self, now: float, journal: Journal, member: MemberId, said: AtGate, tasks: int) -> Gates:
        """Return what holds when a member of the current view is at a gate; `tasks`: of its evaluation.

        States of one view follow each other, so a later one ends the evaluation of the one before.
        """
        view, evaluation = journal.view, self.evaluation
        if view is None or said.view != view.id or view.rank(member) is None:
            return self
        at = dict(self.at)
        at.pop(member, None)  # who says so again is the last
        at[member] = said.state
        if evaluation is not None and evaluation.state.step >= said.state.step:
            return replace(self, at=at, evaluation=evaluation.free(member))
        begins = self.may_record(journal, said.state)
        evaluation = Evaluation(said.state, tasks, now, said.metrics) if begins else None
        return replace(self, at=at, evaluation=evaluation, added_up=None)

    def heard(
        self, now: float, view: View | None, member: MemberId, result: TaskResult, add_up: AddUp
    ) -> Gates:
        """Return what holds when a member of the current view has done a task: results of other states count for nothing."""
        evaluation = self.evaluation
        if (
            evaluation is None
            or not self._is_of(view, member, result.state)
            or result.task >= evaluation.tasks
        ):
            return self
        evaluation = evaluation.with_result(now, member, result.task, result.body)
        if evaluation.is_whole and self.added_up is None:
            results = [evaluation.results[task] for task in range(evaluation.tasks)]
            return replace(self, evaluation=evaluation, added_up=add_up(evaluation.metrics, results))
        return replace(self, evaluation=evaluation)

    def evaluated(self, view: View | None, member: MemberId, said: Evaluated) -> Gates:
        """Return what holds when a member of the current view has made the metrics."""
        evaluation = self.evaluation
        if evaluation is None or not self._is_of(view, member, said.state):
            return self
        return replace(self, evaluation=evaluation.free(member).with_metrics(said))

    def _is_of(self, view: View | None, member: MemberId, state: StateId) -> bool:
        """G4: only what members of the current view say of exactly this state counts."""
        is_here = view is not None and view.rank(member) is not None
        return is_here and self.evaluation is not None and self.evaluation.state == state

    def in_view(self, view: View) -> Gates:
        """Return what holds when a view begins: what was evaluated of its base stays."""
        if self.evaluation is None or self.evaluation.state != view.base:
            return replace(self, at={}, evaluation=None, added_up=None)
        return replace(self, at={}, evaluation=self.evaluation.free_all())

    def journalled(self, record: EvaluatedRecord) -> Gates:
        """Return what holds when metrics are journalled."""
        if self.evaluation is None or self.evaluation.state != record.state:
            return self
        return replace(self, evaluation=None, added_up=None)

    # ------------------------------------------------------------------ decisions

    def record(self, now: float, core: MasterCore) -> EvaluatedRecord | None:
        """G4: return what should be journalled of the evaluation; once per state for ever, and never after `stopping`."""
        evaluation, journal = self.evaluation, core.journal
        if (
            evaluation is None
            or evaluation.evaluated is None
            or not self.may_record(journal, evaluation.state)
        ):
            return None
        made = evaluation.evaluated
        return EvaluatedRecord(made.state, made.values, now - evaluation.began_at)

    def may_record(self, journal: Journal, state: StateId) -> bool:
        """G4: tell whether metrics of a state may still be journalled."""
        return journal.stopping is None and state not in journal.evaluated

    def values_of(self, journal: Journal, state: StateId) -> MetricValues | None:
        """Return the journalled metrics of a state, None if there are none."""
        record = journal.evaluated.get(state)
        return None if record is None else record.values

    def all_at(self, view: View) -> StateId | None:
        """Return the state at whose gate all members of a view are, None if some are not."""
        if len(self.at) < len(view.members):
            return None
        states = set(self.at.values())
        return states.pop() if len(states) == 1 else None

    def parts(self, core: MasterCore, liveness: Liveness, view: View) -> str | None:
        """G6: return why a group that waits at a closed gate is to seal now: no ring can carry a flag."""
        state = None if view.final else self.all_at(view)
        if state is None or self.values_of(core.journal, state) is not None:
            return None
        if core.journal.stopping is not None:
            return "the job is stopping"
        if liveness.has_joiner(core):
            return "somebody joins"
        draining = [seen.report.draining for seen in liveness.present(core, view)]
        return "somebody drains" if any(draining) and not all(draining) else None

    def evaluates(self, member: MemberId) -> bool:
        """Tell whether a member waits at the gate of the state that is evaluated, or works on that."""
        return self.evaluation is not None and self.at.get(member) == self.evaluation.state

    def dealt(
        self, now: float, journal: Journal, members: Sequence[MemberId]
    ) -> tuple[Gates, list[tuple[MemberId, TaskLeased]]]:
        """Lease tasks to members of the current view that are at the gate, as long as there are some; return what to whom."""
        evaluation, view = self.evaluation, journal.view
        if evaluation is None or view is None or not self.may_record(journal, evaluation.state):
            return self, []
        here = [member for member in members if self.at.get(member) == evaluation.state]
        evaluation, dealt = evaluation.dealt(now, here, len(view.members), self.added_up)
        return (replace(self, evaluation=evaluation) if dealt else self), dealt
