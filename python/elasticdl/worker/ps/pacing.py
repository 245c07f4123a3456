"""At which step of training a chunk counts, and what it has to wait for: each for itself, or together with the others of its step.

Pure arithmetic. Rule numbers are those of the page on the protocol of parameter servers.
"""

from __future__ import annotations

from elasticdl.data.plan.tasks import TaskOrder
from elasticdl.data.plan.waves import WHOLE, Need, Waves

Needed = tuple[int, int, int, int]
"""A `Need` as the core takes it."""


class Pacing:
    """The steps of a job."""

    def __init__(self, order: TaskOrder, waves: Waves | None, tolerance: int) -> None:
        """Without waves each chunk is a step of its own; `tolerance`: steps that the rows of a chunk may lack."""
        self._order = order
        self._waves = waves
        self._tolerance = tolerance

    @property
    def accumulates(self) -> bool:
        """Tell whether servers keep the gradients of a step until all of them are settled (A2, A3)."""
        return self._waves is not None

    def step(self, task: int, chunk: int) -> int:
        """Return the number of a chunk's step, the same in any worker."""
        if self._waves is None:
            return task * self._order.chunks_per_task + chunk
        return self._waves.step(task, chunk)

    def share(self, task: int, chunk: int) -> float:
        """Return which part of its step's records a chunk has."""
        return 1.0 if self._waves is None else self._waves.share(task, chunk)

    def need(self, task: int, chunk: int) -> Needed | None:
        """Return what is settled before rows for a chunk come; None if they come at once."""
        return None if self._waves is None else _needed(self._waves.need(task, chunk, self._tolerance))

    def settled(self, task: int, chunk: int) -> int:
        """Return how many chunks of a task are settled when this one is, 0 if nobody waits for that."""
        if self._waves is None:
            return 0
        return WHOLE if chunk + 1 == self._order.chunks(task) else chunk + 1

    def result(self, steps: int) -> Needed | None:
        """Return what is settled before the model of so many steps can be read."""
        return None if self._waves is None else _needed(self._waves.complete(steps))


def _needed(need: Need) -> Needed:
    return need.number, need.first, need.end, need.chunks
