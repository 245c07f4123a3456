"""The learning rate of a worker with parameter servers: it travels with each push, so it is a function of the step."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from pathlib import Path

import torch

from elasticdl.errors import BadModel
from elasticdl.torch.building import Schedule
from elasticdl.torch.psoptimizer import settings_of

Made = tuple[torch.optim.Optimizer, Schedule | None]


class Rates:
    """The rates of an optimizer and its schedule; callbacks may set `learning_rate` at barriers.

    Attributes:
        learning_rate: of all steps, or a function of the step if a schedule steps after each.
    """

    learning_rate: float | Callable[[int], float]

    def __init__(self, make: Callable[[], Made], decay: float, path: Path) -> None:
        """`make`: returns an optimizer that has done no step, and its schedule; `decay`: as `Described.rate_decay`."""
        self._make, self._decay, self._path = make, decay, path
        self.begin()

    def begin(self) -> None:
        """Begin before the first step, with a new optimizer."""
        self._optimizer, self._schedule = self._make()
        self._optimizer.step()  # of no gradient: else a schedule would warn that it steps first
        self._kept = self._settings()
        self._of_steps = array("d", [self._present()])
        by_step = self._schedule is not None and not self._schedule.by_epoch
        self.learning_rate = self._at if by_step else self._present()

    @property
    def follow_epochs(self) -> bool:
        """Tell whether the schedule steps at the ends of epochs."""
        return self._schedule is not None and self._schedule.by_epoch

    def end_epoch(self) -> None:
        """Step a schedule of epochs, from the rate that callbacks have left."""
        if self._schedule is None or not self._schedule.by_epoch or callable(self.learning_rate):
            return
        for group in self._optimizer.param_groups:
            group["lr"] = self.learning_rate
        self._step(self._schedule)
        self.learning_rate = self._present()

    def rate(self, step: int) -> float:
        """Return the learning rate of a step, counted from 0. Raises BadModel for a schedule of anything else than the rate."""
        rate = self.learning_rate
        found = rate(step) if callable(rate) else rate
        return float(found) / (1 + step * self._decay)

    def _at(self, step: int) -> float:
        assert self._schedule is not None, "asked of a schedule of steps only"
        while len(self._of_steps) <= step:
            self._step(self._schedule)
            self._of_steps.append(self._present())
        return self._of_steps[step]

    def _step(self, schedule: Schedule) -> None:
        schedule.scheduler.step()
        changed = self._settings()
        if changed != self._kept:
            key = next(key for key, value in changed.items() if value != self._kept.get(key))
            raise BadModel(
                f"{self._path}: the schedule changes {key}, and parameter servers have one value for the whole job, and one learning rate "
                "for all parameters; use a schedule of the rate alone (such as cycle_momentum=False)"
            )

    def _settings(self) -> dict[str, object]:
        """Return what a schedule must leave as it is: all but the rate, and that all groups have the same one."""
        first, *others = self._optimizer.param_groups
        rate = self._present()
        alike = all(float(group["lr"]) == rate for group in others)
        return {**settings_of(first), "lr": alike}

    def _present(self) -> float:
        return float(self._optimizer.param_groups[0]["lr"])
