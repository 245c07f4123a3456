"""What a worker with parameter servers evaluates at a barrier, and has found there, until the metrics are journalled (B2, B3). Pure.

All of it is of one state, and is dropped with it: results of a step before a roll-back mean nothing afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from elasticdl.control.protocol.frozen import replace
from elasticdl.control.protocol.messages import Evaluated, MetricValues, TaskKind, TaskLeased, TaskResult
from elasticdl.control.protocol.view import StateId


@dataclass(frozen=True)  # no slots: see elasticdl.control.protocol.frozen
class Evaluation:
    """The evaluation of one state, as far as this worker has a part in it.

    Attributes:
        leases: what it is to do, in order.
        results: of tasks.
        evaluated: metrics that it has made.
        over: the state whose metrics were journalled last.
    """

    leases: tuple[TaskLeased, ...] = ()
    results: tuple[TaskResult, ...] = ()
    evaluated: Evaluated | None = None
    over: StateId | None = None

    def leased(self, lease: TaskLeased) -> Evaluation:
        """Return what holds when the master leases a task; what is of another state is dropped.

        Metrics are leased when all tasks are done, by any worker.
        """
        kept = tuple(result for result in self.results if result.state == lease.state)
        made = self.evaluated if self.evaluated is not None and self.evaluated.state == lease.state else None
        before = () if lease.kind == TaskKind.METRICS else self.leases
        leases = (*(one for one in before if one.state == lease.state), lease)
        return replace(self, leases=leases, results=kept, evaluated=made)

    def unsaid(self) -> Evaluation:
        """Return what holds on a new connection: its master leases anew."""
        return replace(self, leases=())

    def opened(self, state: StateId) -> Evaluation:
        """Return what holds when the metrics of a state are journalled; on a new connection those of earlier ones come again."""
        is_mine = any(
            one is not None and one.state == state for one in (*self.leases, self.evaluated, *self.results)
        )
        return Evaluation(over=state) if is_mine else replace(self, over=state)

    def known(self, lease: TaskLeased) -> Evaluated | TaskResult | None:
        """Return what answers a lease at once, because it was done before."""
        if lease.kind == TaskKind.METRICS:
            return self.evaluated
        return next((result for result in self.results if result.task == lease.task), None)

    def said(self) -> Iterator[Evaluated | TaskResult]:
        """Yield what is said on each connection: the next master has none of it."""
        yield from self.results
        if self.evaluated is not None:
            yield self.evaluated

    def with_result(self, lease: TaskLeased, result: TaskResult) -> Evaluation:
        """Return what holds when a task is done."""
        return replace(self.without(lease), results=(*self.results, result))

    def with_metrics(self, lease: TaskLeased, values: MetricValues) -> Evaluation:
        """Return what holds when metrics are made."""
        return replace(self.without(lease), evaluated=Evaluated(lease.state, values))

    def without(self, lease: TaskLeased) -> Evaluation:
        """Return what holds when a lease is answered."""
        return replace(self, leases=tuple(one for one in self.leases if one != lease))
