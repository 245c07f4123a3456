"""The tasks that are done in a job with parameter servers."""

from __future__ import annotations

import bisect
from dataclasses import dataclass
from typing import NewType

TaskNumber = NewType("TaskNumber", int)
"""Place in the ledger, counted through all epochs: half of a push's stamp."""

FIRST = TaskNumber(0)


@dataclass(frozen=True, slots=True)
class Done:
    """The tasks that are done: all below `low`, and some above.

    Attributes:
        low: the first that is not done.
        above: those that are done beyond it, ascending.
    """

    low: TaskNumber = FIRST
    above: tuple[TaskNumber, ...] = ()

    def __contains__(self, task: object) -> bool:
        if not isinstance(task, int):
            return False
        at = bisect.bisect_left(self.above, task)
        return task < self.low or self.above[at : at + 1] == (task,)

    def with_task(self, task: TaskNumber) -> Done:
        """Return what is done when this task is, too."""
        if task in self:
            return self
        above = list(self.above)
        bisect.insort(above, task)
        low = self.low
        while above and above[0] == low:
            above.pop(0)
            low = TaskNumber(low + 1)
        return Done(low, tuple(above))

    def without(self, task: TaskNumber) -> Done:
        """Return what is done if this task is not."""
        if task not in self:
            return self
        beyond = (*range(task + 1, self.low), *self.above) if task < self.low else self.above
        return Done(min(self.low, task), tuple(TaskNumber(other) for other in beyond if other != task))

    def common(self, other: Done) -> Done:
        """Return the tasks that are done in both."""
        fewer, more = sorted((self, other), key=lambda one: one.low)
        both = Done(fewer.low)
        for task in fewer.above:
            if task in more:
                both = both.with_task(task)
        return both

    def count(self) -> int:
        """Return how many there are."""
        return self.low + len(self.above)
