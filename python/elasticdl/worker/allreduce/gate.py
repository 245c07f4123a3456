"""The gate of a member's state: what is evaluated there, and whether it has been passed. Rule numbers are those of the protocol (G1 to G7).

All of it is about one state of the model, and goes with it.
"""

from __future__ import annotations

from dataclasses import dataclass

from elasticdl.control.protocol.frozen import replace
from elasticdl.control.protocol.messages import Evaluated, GateOpen, TaskKind, TaskLeased, TaskResult
from elasticdl.control.protocol.view import StateId, ViewId
from elasticdl.worker.events import ChunkEvaluated, ComputeMetrics, Evaluate, MetricsComputed, PassGate

NO_VIEW = ViewId(0)


@dataclass(frozen=True)  # no slots: see elasticdl.control.protocol.frozen
class StateGate:
    """The gate of one state, if that has one.

    Attributes:
        state: the state, None if blank.
        passed: callbacks have had its metrics.
        said: view in which the master was told, on this connection, that I am here; 0 = in none.
        opened: what the master said of it, until it has been passed.
        leases: the tasks that I am to do, in their order.
        begun: a task with some minibatches in its sums, and how many; they stay while the state does.
        results: of tasks.
        evaluated: metrics that I have made.
    """

    state: StateId | None = None
    passed: bool = False
    said: ViewId = NO_VIEW
    opened: GateOpen | None = None
    leases: tuple[TaskLeased, ...] = ()
    begun: tuple[int, int] | None = None
    results: tuple[TaskResult, ...] = ()
    evaluated: Evaluated | None = None

    # ------------------------------------------------------------------ what comes in

    def unsaid(self) -> StateGate:
        """Return what holds on a new connection: its master knows nothing of me."""
        return replace(self, said=NO_VIEW, leases=())

    def told(self, view: ViewId) -> StateGate:
        """Return what holds once the master was told that I am here, and what I have; what it leased before is leased anew."""
        return replace(self, said=view, leases=())

    def leased(self, lease: TaskLeased) -> StateGate:
        """Return what holds when the master leases a task, or metrics: then all tasks are done, by any worker."""
        if lease.state != self.state or self.passed:
            return self
        return replace(self, leases=(lease,) if lease.kind == TaskKind.METRICS else (*self.leases, lease))

    def open(self, message: GateOpen) -> StateGate:
        """Return what holds when the master opens a gate, perhaps that of another state."""
        return replace(self, opened=message) if message.state == self.state and not self.passed else self

    def has(self, task: int) -> TaskResult | None:
        """Return the result of a task, if it is here."""
        return next((result for result in self.results if result.task == task), None)

    # ------------------------------------------------------------------ work

    def work(self) -> Evaluate | ComputeMetrics | PassGate | None:
        """Return the next piece of work at this gate."""
        if self.state is None:
            return None
        if self.opened is not None:
            return PassGate(self.state, self.opened.values)
        if not self.leases:
            return None
        lease, *others = self.leases
        if lease.kind == TaskKind.METRICS:
            return ComputeMetrics(self.state, lease.body)
        chunk = self.begun[1] if self.begun is not None and self.begun[0] == lease.task else 0
        return Evaluate(self.state, lease.task, chunk, others[0].task if others else None)

    def with_chunk(self, event: ChunkEvaluated) -> StateGate:
        """Return what holds when a minibatch was evaluated."""
        if event.body is None:
            return replace(self, begun=(event.task, event.chunk + 1))
        result = TaskResult(event.state, event.task, event.body)
        return replace(self, begun=None, leases=self._without(event.task), results=(*self.results, result))

    def with_metrics(self, event: MetricsComputed) -> StateGate:
        """Return what holds when metrics were made."""
        return replace(self, leases=(), evaluated=Evaluated(event.state, event.values))

    def _without(self, task: int) -> tuple[TaskLeased, ...]:
        """Return the leases but for that of a task that is done."""
        return tuple(one for one in self.leases if one.kind != TaskKind.EVALUATE or one.task != task)


_BLANK = StateGate()


def gate_of(state: StateId) -> StateGate:
    """Return the gate of a state of which nothing is known; each step makes one, and a copy is cheaper than a new value."""
    return replace(_BLANK, state=state)
