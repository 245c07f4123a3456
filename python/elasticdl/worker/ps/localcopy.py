"""A worker's own copy of the dense variables, in jobs that ask the servers for them with every N-th chunk only.

They are asked for while the chunk before is computed, as rows are, so what comes lacks that one's gradient. What the copy itself has
changed since is added to it: a worker always computes with all of its own chunks, and with others' up to the last look at the servers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from elasticdl._core import Catalog, LocalVariables

Weights = npt.NDArray[np.float32]


class LocalCopy:
    """Decides when the servers are asked, and keeps what came and what the worker has made of it."""

    def __init__(self, catalog: Catalog, variables: int, every: int) -> None:
        """`variables`: how many the catalog has; `every`: chunks from one with which they are asked for to the next, at least 2."""
        self._variables = range(variables)
        self._every = every
        self._left = self._roll_back = 0
        self._own = LocalVariables(catalog)
        self._pulled: dict[int, Weights] = {}
        self._then: dict[int, Weights] = {}
        """The own ones when they were asked for, of those that have not come since."""

    def ask(self, roll_back: int, at_once: bool = False) -> list[int]:
        """Return the variables to be asked for with one chunk more: all, or none; it is all with the first chunk of another roll-back.

        `at_once`: all, whenever they were asked for last.
        """
        if self._left and roll_back == self._roll_back and not at_once:
            self._left -= 1
            return []
        self._left, self._roll_back = self._every - 1, roll_back
        self._then = dict(self.weights())
        return list(self._variables)

    def take(self, variable: int, weights: Weights) -> None:
        """Take in a variable that has come. Those that servers have as they came last do not come again."""
        self._pulled[variable] = weights
        own, then = self._of(variable), self._then.pop(variable, None)
        if own is not None and then is not None:
            weights = weights + (own - then)
        self._own.take(variable, weights.data)

    def change(self, gradients: Sequence[Weights], rate: float) -> None:
        """Apply a chunk's gradients of all variables, or what is to be added to them."""
        self._own.change([(variable, slope.data) for variable, slope in enumerate(gradients)], rate)

    def weights(self) -> Iterator[tuple[int, Weights]]:
        """Yield the worker's own weights of each variable that has come."""
        for variable in self._variables:
            own = self._of(variable)
            if own is not None:
                yield variable, own

    def pulled(self) -> Iterator[tuple[int, Weights]]:
        """Yield each variable as it came last."""
        yield from self._pulled.items()

    def _of(self, variable: int) -> Weights | None:
        own = self._own.weights(variable)
        return None if own is None else np.frombuffer(own, np.float32)
