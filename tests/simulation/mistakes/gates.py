"""Mistakes of evaluations."""

from __future__ import annotations

from typing import Any

from elasticdl.control.protocol.frozen import replace
from elasticdl.control.protocol.messages import (
    AtGate,
    MetricValues,
    TaskLeased,
)
from elasticdl.control.protocol.view import MemberId, StateId, View
from elasticdl.master.allreduce.gates import Gates
from elasticdl.master.allreduce.machine import AllReduceMaster
from elasticdl.master.core.records import (
    EvaluatedRecord,
    Journal,
    Record,
)
from elasticdl.worker import events as to_member
from elasticdl.worker.allreduce.machine import Member
from tests.simulation.mistakes.mistaken import Mistaken
from tests.simulation.oracle import History
from tests.simulation.processes import Worker


class GateIgnored(Mistaken):
    """A member computes, contributes and commits although the gate of its state is closed."""

    class member_class(Member):
        __slots__ = ()

        def _is_closed(self) -> bool:
            return False


class GateSkippedByHealee(Mistaken):
    """A member that heals at a gate takes it for passed."""

    class member_class(Member):
        __slots__ = ()

        def _healed(self, event: to_member.Healed, out: Any) -> Member:
            return Member._healed(self, replace(event, passed=True), out)


class ZerosAtGate(Mistaken):
    """A joiner gives its zeros to a step that begins at a gate, and then waits for those who wait for it to pass."""

    class member_class(Member):
        __slots__ = ()

        def _may_contribute(self, view: View) -> bool:
            return Member._may_contribute(self, view) if self.whole else not self._owned(view)


class MetricsToldFirst(Mistaken):
    """Metrics are told before they are journalled."""

    class Hasty(Gates):
        __slots__ = ()

        def values_of(self, journal: Journal, state: StateId) -> MetricValues | None:
            evaluated = None if self.evaluation is None else self.evaluation.evaluated
            if evaluated is not None and evaluated.state == state:
                return evaluated.values
            return Gates.values_of(self, journal, state)

    def new_master(self) -> AllReduceMaster:
        return self.master_class(self.settings, gates=self.Hasty())


class MetricsNoCas(Mistaken):
    """Metrics are appended beside the journal's sequence."""

    def may_append(self, number: int, record: Record) -> bool:
        return isinstance(record, EvaluatedRecord) or super().may_append(number, record)


class MetricsByStep(Mistaken):
    """Metrics are known by the step, not by the state."""

    class ByStep(Gates):
        __slots__ = ()

        def values_of(self, journal: Journal, state: StateId) -> MetricValues | None:
            records = journal.evaluated.values()
            return next((record.values for record in records if record.state.step == state.step), None)

    def new_master(self) -> AllReduceMaster:
        return self.master_class(self.settings, gates=self.ByStep())


class MetricsAfterStop(Mistaken):
    """Metrics are journalled although the job is stopping."""

    class Late(Gates):
        __slots__ = ()

        def may_record(self, journal: Journal, state: StateId) -> bool:
            return state not in journal.evaluated

    def new_master(self) -> AllReduceMaster:
        return self.master_class(self.settings, gates=self.Late())


class ResultsByStep(Mistaken):
    """Results are known by the step, not by the state."""

    class ByStep(Gates):
        __slots__ = ()

        def in_view(self, view: View) -> Gates:
            del view
            evaluation = None if self.evaluation is None else self.evaluation.free_all()
            return replace(self, at=(), evaluation=evaluation)

        def arrived(self, now: float, journal: Journal, member: MemberId, said: AtGate, tasks: int) -> Gates:
            gates = Gates.arrived(self, now, journal, member, said, tasks)
            evaluation = gates.evaluation
            if evaluation is None or evaluation.state.step != said.state.step:
                return gates
            return replace(gates, evaluation=replace(evaluation, state=said.state))

        def _is_of(self, view: View | None, member: MemberId, state: StateId) -> bool:
            return self.evaluation is not None and self.evaluation.state.step == state.step

    def new_master(self) -> AllReduceMaster:
        return self.master_class(self.settings, gates=self.ByStep())


class ResultsSaidOnce(Mistaken):
    """A member does not repeat its results to a master that began later."""

    class member_class(Member):
        __slots__ = ()

        def _say_at_gate(self, view: View, out: Any) -> None:
            assert self.state is not None
            self._send(AtGate(view.id, self.state, self.metrics), out)

        def _lease(self, lease: TaskLeased, out: Any) -> Member:
            return self if self.gate.has(lease.task) else Member._lease(self, lease, out)


class NextReplacesFirst(Mistaken):
    """A member that learns what it is to do next at a gate forgets what it does."""

    class member_class(Member):
        __slots__ = ()

        def _lease(self, lease: TaskLeased, out: Any) -> Member:
            member = Member._lease(self, lease, out)
            return replace(member, gate=replace(member.gate, leases=member.gate.leases[-1:]))


class ExportBeforeGate(Mistaken):
    """The result is written before the gate of its state has been passed."""

    class member_class(Member):
        __slots__ = ()

        def _waits_to_export(self) -> bool:
            return False


class LocalMetrics(Mistaken):
    """Every member makes the metrics of the summed results for itself."""

    def carry_out(self, worker: Worker, instruction: Any) -> None:
        if isinstance(instruction, to_member.PassGate) and instruction.values is not None:
            name, value = instruction.values[0]
            own = value + len(worker.name) + self.workers.index(worker)
            instruction = replace(instruction, values=((name, own),))
        super().carry_out(worker, instruction)


class MetricsNotHealed(Mistaken):
    """What callbacks have had is no part of a state that is sent or saved."""

    def healed_history(self, history: History) -> History:
        del history
        return ()
