"""A program that keeps nothing of its steps: `weights = weights - …` makes a new array, and `job.state` keeps the first one.

Nothing shows it until a worker joins: that one begins with what was never trained, and its gradients are wrong from then on.
"""

from __future__ import annotations

from elasticdl.errors import BadInput
from elasticdl.worker.loop.values import Values

_PATIENCE = 20
"""Steps in which nothing may change: some schedules begin with a rate of 0."""


class Kept:
    """Watches the first steps of a job until `job.state` changes."""

    def __init__(self, values: Values) -> None:
        """`values`: the program's."""
        self._values = values
        self._first = ""
        self._steps = 0
        self._watching = True

    def begin(self, step: int, *, moved: bool) -> None:
        """Take that a pass begins after `step` committed steps; `moved`: the last one had a gradient that is not 0.

        Raises BadInput if many steps have left no trace.
        """
        if not self._watching:
            return
        if not self._first:
            # Only from the very beginning: near the end of training the changes may be below what a float holds.
            self._watching = step == 0
            self._first = self._values.digest()
        elif moved:
            self._steps += 1
            self._watching = self._values.digest() == self._first
            if self._watching and self._steps >= _PATIENCE:
                raise BadInput(
                    f"nothing in job.state has changed in {self._steps} steps, so a worker that joins would begin with untrained values. "
                    "Change what is there: weights -= … and not weights = weights - …; or put it there again after each step, "
                    'job.state["weights"] = weights'
                )
