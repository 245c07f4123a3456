"""Where a job with parameter servers waits for an evaluation: the arithmetic of barriers (B1).

A barrier is the number of a task: all tasks before it are trained, and none from it on is begun, before the model is evaluated. Barriers
are the first task, or the first of a wave, at or after each `evaluation_steps`, the first task of each epoch, and the end of the last one.
All of it follows from data and settings, so a master that comes later finds the same ones.
"""

from __future__ import annotations

from bisect import bisect_left

from elasticdl.data.plan.evaluation import EvaluationPlan
from elasticdl.data.plan.tasks import TaskOrder


class Barriers:
    """The barriers of a job.

    Attributes:
        plan: what is evaluated at each of them.
    """

    def __init__(self, order: TaskOrder, plan: EvaluationPlan) -> None:
        self._order = order
        self.plan = plan

    def steps(self, barrier: int) -> int:
        """Return how many steps are made before a barrier."""
        return self._order.steps_before(barrier)

    def following(self, number: int) -> int | None:
        """Return the first barrier beyond the number of a task; None if there is none."""
        order = self._order
        if number >= order.total:
            return None
        found = order.total
        if self.plan.at_epoch_end:
            found = min(found, (order.epoch(number) + 1) * order.ledger.num_tasks)
        if self.plan.every:
            steps = order.steps_before(number) // self.plan.every * self.plan.every + self.plan.every
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
