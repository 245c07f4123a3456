"""What adapters do with the sum of a step where it may stay on the device: the calls of `DeviceSums`, and `apply` made of them."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt


class Sums(Protocol):
    """Adds up the chunks of one step.

    Attributes:
        size: elements of the accumulator.
        gradient_size: how many of them, the first ones, are gradients.
        dtype: of them.
    """

    size: int
    gradient_size: int
    dtype: npt.DTypeLike

    @property
    def result(self) -> npt.NDArray[Any]:
        """Return what the ring writes the sum of a group into."""

    def zero(self) -> None:
        """Empty the accumulator."""

    def accumulator(self) -> memoryview:
        """Return its elements."""

    def take(self, *, alone: bool) -> bool:
        """Take the sum of a step from `result`, or, of a worker that is alone, from the accumulator; return whether all of it is finite."""


class StepSums:
    """A part of `elasticdl.worker.contract.allreduce.Adapter`, and all of `DeviceSums`.

    Adapters derive from it, and call `_sum_with` in `prepare`. What a chunk adds, and what a commit does, is theirs.
    """

    def _sum_with(self, sums: Sums) -> None:
        """Take what adds up chunks."""
        self._sums = sums
        self.dtype, self.size, self.result = sums.dtype, sums.size, sums.result
        self.gradient_size = sums.gradient_size

    def zero(self) -> None:
        """Empty the accumulator."""
        self._sums.zero()

    def accumulator(self) -> memoryview:
        """Return the accumulator's elements, valid until the next `compute` or `zero`."""
        return self._sums.accumulator()

    def apply(self, result: npt.NDArray[Any], examples: float) -> None:
        """Commit `result` / `examples`; the accumulator becomes empty."""
        np.copyto(self.result, result)
        self.take(alone=False)
        self.commit(examples)

    def take(self, *, alone: bool) -> bool:
        """Take the sum that is in `result`, or, of a member that is alone, the accumulator; return whether all of it is finite."""
        return self._sums.take(alone=alone)

    def commit(self, examples: float) -> None:
        """Commit the sum that was taken / `examples`; the accumulator becomes empty."""
        raise NotImplementedError
