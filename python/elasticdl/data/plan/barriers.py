"""Where a job with parameter servers waits for an evaluation, and for its callbacks: the arithmetic of barriers (B1, B5).

A barrier is the number of a task: all tasks before it are trained, and none from it on is begun, before the model is evaluated. Barriers
are the first task, or the first of a wave, at or after each `evaluation_steps`, the first task of each epoch, and the end of the last one.
Where callbacks follow epochs the ends of epochs are barriers in any case, also if nothing is evaluated there. All of it follows from data,
settings and callbacks, so a master that comes later finds the same ones.
"""

from __future__ import annotations

from bisect import bisect_left

from elasticdl.data.plan.tasks import TaskOrder


class Barriers:
    """The barriers of a job."""

    def __init__(self, order: TaskOrder, *, follows: bool) -> None:
        """`follows`: callbacks follow epochs or evaluations."""
        self._order = order
        self._follows = follows

    def steps(self, barrier: int) -> int:
        """Return how many steps are made before a barrier."""
        return self._order.steps_before(barrier)

    def epoch(self, barrier: int) -> tuple[int, bool]:
        """Return the epoch of the last task before a barrier, and whether it ends there."""
        order = self._order
        ends = barrier % order.ledger.num_tasks == 0 and barrier - 1 not in order.partial
        return order.epoch(barrier - 1), ends

    def following(self, number: int) -> int | None:
        """Return the first barrier beyond the number of a task; None if there is none."""
        return self._following(number, ends_epochs=self._follows)

    def evaluates(self, barrier: int) -> bool:
        """Tell whether the model is evaluated at a barrier."""
        return self._following(barrier - 1, ends_epochs=False) == barrier

    def _following(self, number: int, *, ends_epochs: bool) -> int | None:
        order, plan = self._order, self._order.evaluation
        if number >= order.total or (plan is None and not ends_epochs):
            return None
        found = order.total
        if ends_epochs or (plan is not None and plan.at_epoch_end):
            found = min(found, (order.epoch(number) + 1) * order.ledger.num_tasks)
        if plan is not None and plan.every:
            steps = order.steps_before(number) // plan.every * plan.every + plan.every
            found = min(found, self._at(steps))
        return found

    def has(self, number: int) -> bool:
        """Tell whether the number of a task, or that behind the last one, is a barrier."""
        return 0 < number <= self._order.total and self.following(number - 1) == number

    def at_step(self, steps: int, last: int) -> int | None:
        """Return the barrier before which so many steps are made; None if there is none up to the number `last`."""
        number = bisect_left(range(last + 1), steps, key=self._order.steps_before)
        return number if number <= last and self.steps(number) == steps and self.has(number) else None

    def _at(self, steps: int) -> int:
        """Return the first number before which so many steps are made, or that behind the last task."""
        order = self._order
        # Each wave has a step at least.
        tasks = range(min(order.total, steps * order.wave) + 1)
        return min(order.total, bisect_left(tasks, steps, key=order.steps_before))
