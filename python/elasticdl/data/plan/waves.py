"""Steps of several gradients, and what has to be settled before each: the arithmetic of synchronous accumulation (A1, A2).

Whose gradients make a step follows from the numbers of tasks alone, so master, workers and servers agree on it without talking. Rule
numbers are those of the page on the protocol of parameter servers.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from functools import lru_cache

from elasticdl.data.plan.tasks import TaskOrder

WHOLE = 65535
"""Chunks of a task of which all are settled: more than any has, because a stamp's chunk is a number of 16 bits."""


@dataclass(frozen=True, slots=True)
class Need:
    """What has to be settled before a step's rows may be read.

    Attributes:
        number: of the step.
        first: first of the tasks that this is about.
        end: the task behind the last of them.
        chunks: how many chunks of each, at least; `WHOLE`: all.
    """

    number: int
    first: int
    end: int
    chunks: int


class Waves:
    """Which step each chunk is a part of; steps are numbered from 0 through all epochs."""

    def __init__(self, order: TaskOrder) -> None:
        self._order = order
        # Each chunk of a wave asks for the same.
        self._counts = lru_cache(maxsize=4)(self._find_counts)

    def tasks(self, task: int) -> range:
        """Return the tasks of the wave that a task is in."""
        return self._order.wave_of(task)

    def step(self, task: int, chunk: int) -> int:
        """Return the number of the step that a chunk is a part of."""
        return self._order.steps_before(task) + chunk

    def steps_before(self, task: int) -> int:
        """Return the steps of the waves before the one that a task is in; of the number behind the last task, of all."""
        return self._order.steps_before(task)

    def need(self, task: int, chunk: int, tolerance: int) -> Need:
        """Return what has to be settled before a chunk may be computed, with rows that lack so many of the steps before it at most."""
        number = max(0, self.step(task, chunk) - tolerance)
        tasks = self.tasks(task)
        while number < self.steps_before(tasks.start):
            tasks = self.tasks(tasks.start - 1)
        return self._need(number, tasks)

    def complete(self, steps: int) -> Need:
        """Return what has to be settled for so many steps to be complete."""
        # Each wave has a step at least.
        tasks = range(min(self._order.total, (steps + 1) * self._order.wave))
        last = bisect_right(tasks, steps, key=self.steps_before) - 1
        return self._need(steps, self.tasks(last)) if steps else Need(0, 0, 0, WHOLE)

    def _need(self, number: int, tasks: range) -> Need:
        """Return what comes before a step of a wave, or before the first one after it."""
        before = self.steps_before(tasks.start)
        if number > before:
            return Need(number, tasks.start, tasks.stop, number - before)
        if number:
            tasks = self.tasks(tasks.start - 1)
            return Need(number, tasks.start, tasks.stop, WHOLE)
        return Need(0, 0, 0, WHOLE)

    def share(self, task: int, chunk: int) -> float:
        """Return which part of its step's records a chunk has."""
        size = self._order.ledger.minibatch_size
        tasks = self.tasks(task)
        records = [min(size, max(0, count - chunk * size)) for count in self._counts(tasks)]
        return records[task - tasks.start] / sum(records)

    def _find_counts(self, tasks: range) -> list[int]:
        return [self._order.task(task).count for task in tasks]
