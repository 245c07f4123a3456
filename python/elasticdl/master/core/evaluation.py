"""One evaluation of a state, or the predictions of one: its tasks, who does them, and what has come back. Pure; time is an argument.

A task's first result counts: results of equal states have equal bits. All of it is memory that may be lost at any moment, because members
repeat their results, and what died with a member is computed again.
"""

from __future__ import annotations

import itertools
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from elasticdl.control.protocol.frozen import replace
from elasticdl.control.protocol.messages import Evaluated, TaskKind, TaskLeased
from elasticdl.control.protocol.view import MemberId, StateId

HELD = 2
"""Tasks that a member holds at most: one that it does, and the next, whose records it reads meanwhile."""
COPIES = 2
"""Members that may do the same task at a time: the second one if the first takes long."""
LONG = 3.0
"""Medians of what tasks take, after which an idle member gets a copy of one."""


@dataclass(frozen=True, slots=True)
class Lease:
    """A task that a member is to do.

    Attributes:
        member: who.
        since: when it was leased, or when the member was done with what it had before.
    """

    member: MemberId
    since: float


@dataclass(frozen=True)  # no slots: see elasticdl.control.protocol.frozen
class Evaluation:
    """The evaluation of one state.

    Attributes:
        state: which.
        tasks: how many there are.
        began_at: when.
        metrics: what the result of each consists of, as text.
        results: of tasks.
        leases: of tasks without a result.
        makers: who makes metrics of all results, or loads what all tasks have written.
        took: seconds of tasks that are done.
        evaluated: the metrics, until they are journalled.
        kind: what tasks are.
    """

    state: StateId
    tasks: int
    began_at: float
    metrics: str = ""
    results: Mapping[int, bytes] = field(default_factory=dict)
    leases: Mapping[int, tuple[Lease, ...]] = field(default_factory=dict)
    makers: tuple[Lease, ...] = ()
    took: tuple[float, ...] = ()
    evaluated: Evaluated | None = None
    kind: TaskKind = TaskKind.EVALUATE

    @property
    def is_whole(self) -> bool:
        """Tell whether every task has a result."""
        return len(self.results) == self.tasks

    # ------------------------------------------------------------------ what comes in

    def with_result(self, now: float, member: MemberId, task: int, body: bytes) -> Evaluation:
        """Return what holds when a task's result comes; the first one counts. Who has said it begins the next one that it holds."""
        took = tuple(now - lease.since for lease in self.leases.get(task, ()) if lease.member == member)
        leases = {
            number: tuple(Lease(member, now) if lease.member == member else lease for lease in held)
            for number, held in self.leases.items()
            if number != task
        }
        results = self.results if task in self.results else {**self.results, task: body}
        return replace(self, results=results, leases=leases, took=(*self.took, *took))

    def with_metrics(self, evaluated: Evaluated) -> Evaluation:
        """Return what holds when somebody has made metrics; the first ones count."""
        return self if self.evaluated is not None or not self.is_whole else replace(self, evaluated=evaluated)

    def free(self, member: MemberId) -> Evaluation:
        """Return what holds when a member says anew what it has: nothing is leased to it."""
        leases = {
            task: left
            for task, held in self.leases.items()
            if (left := tuple(lease for lease in held if lease.member != member))
        }
        makers = tuple(lease for lease in self.makers if lease.member != member)
        return replace(self, leases=leases, makers=makers)

    def free_all(self) -> Evaluation:
        """Return what holds in another group: nothing is leased, and results stay."""
        return replace(self, leases={}, makers=())

    # ------------------------------------------------------------------ decisions

    def dealt(
        self, now: float, members: Sequence[MemberId], sharing: int, body: bytes | None
    ) -> tuple[Evaluation, list[tuple[MemberId, TaskLeased]]]:
        """Return what holds when each member has as many tasks as it may, and what was leased to whom.

        A first task goes to everybody before a second one to anybody, and the last tasks are for who has nothing.

        Args:
            now: the time.
            members: those that can be told of a task.
            sharing: members that do tasks, or soon will.
            body: what all tasks have added up, None before all have.
        """
        held = Counter(lease.member for lease in self._held())
        evaluation, dealt = self, list[tuple[MemberId, TaskLeased]]()
        for most in range(HELD):
            for member in members:
                if held[member] != most:
                    continue
                leased = evaluation._following(sharing) if most else evaluation.next_for(now, member, body)
                if leased is None:
                    break  # there is nothing, for nobody that has as little
                evaluation = evaluation.with_lease(now, member, leased)
                held[member] += 1
                dealt.append((member, leased))
        return evaluation, dealt

    def next_for(self, now: float, member: MemberId, body: bytes | None) -> TaskLeased | None:
        """Return what an idle member is to do, None if nothing; `body`: what all tasks have added up, None before all have.

        It is a task that nobody does, or else one that somebody has had for long.
        """
        if body is not None:
            if self.evaluated is not None or not self._may_copy(now, member, self.makers):
                return None
            return TaskLeased(TaskKind.METRICS, self.state, 0, body)
        free = self._free()
        if free is None:
            copied = (task for task, held in self.leases.items() if self._may_copy(now, member, held))
            free = next(copied, None)
        return None if free is None else TaskLeased(self.kind, self.state, free, b"")

    def _following(self, sharing: int) -> TaskLeased | None:
        """Return what a member does after its task, None where so few are left that others would have to wait for it."""
        left = self.tasks - len(self.results) - len(self.leases)
        free = self._free() if left >= sharing else None
        return None if free is None else TaskLeased(self.kind, self.state, free, b"")

    def load_for(self) -> TaskLeased | None:
        """Return the load of what all tasks have written, None if somebody does it: there is no second one."""
        return None if self.makers else TaskLeased(TaskKind.LOAD, self.state, self.tasks, b"")

    def with_lease(self, now: float, member: MemberId, leased: TaskLeased) -> Evaluation:
        """Return what holds when a task is leased."""
        lease = Lease(member, now)
        if leased.kind in (TaskKind.METRICS, TaskKind.LOAD):
            return replace(self, makers=(*self.makers, lease))
        held = self.leases.get(leased.task, ())
        return replace(self, leases={**self.leases, leased.task: (*held, lease)})

    def is_busy(self, member: MemberId) -> bool:
        """Tell whether something is leased to a member."""
        return any(lease.member == member for lease in self._held())

    def busy(self) -> frozenset[MemberId]:
        """Return the members to whom something is leased."""
        return frozenset(lease.member for lease in self._held())

    def _held(self) -> Iterator[Lease]:
        return itertools.chain(*self.leases.values(), self.makers)

    def _free(self) -> int | None:
        """Return the first task that nobody does, or has done."""
        if len(self.results) + len(self.leases) >= self.tasks:
            return None
        return next(
            task for task in range(self.tasks) if task not in self.results and task not in self.leases
        )

    def _may_copy(self, now: float, member: MemberId, held: tuple[Lease, ...]) -> bool:
        """Tell whether one more member may do what some have under way."""
        if not held:
            return True
        if len(held) >= COPIES or not self.took or any(lease.member == member for lease in held):
            return False
        return now - held[0].since >= LONG * statistics.median(self.took)
