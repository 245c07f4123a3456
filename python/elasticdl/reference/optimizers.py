"""Optimizers in NumPy, by the formulas that the parameter servers have too (those of Keras 3)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from elasticdl.catalog.catalog import Rule

Rate = float | Callable[[int], float]
"""A learning rate, or the rate of a step, counted from 0."""


class Optimizer(ABC):
    """The base of optimizers. An optimizer holds no values: it is given them.

    Attributes:
        learning_rate: of each step; with parameter servers callbacks may set it at barriers.
    """

    slots: int
    """Arrays that it keeps for each parameter, of its shape, zero at first."""

    def __init__(self, rate: Rate) -> None:
        self.learning_rate = rate

    def rate(self, step: int) -> float:
        """Return the learning rate of a step."""
        rate = self.learning_rate
        return float(rate(step) if callable(rate) else rate)

    @abstractmethod
    def update(
        self,
        value: npt.NDArray[Any],
        gradient: npt.NDArray[Any],
        slots: Sequence[npt.NDArray[Any]],
        step: int,
    ) -> None:
        """Apply a gradient to a parameter in place; `step` is the number of steps before this one."""

    @abstractmethod
    def rule(self) -> Rule:
        """Return it in the words of the parameter servers."""


class SGD(Optimizer):
    """Gradient descent, with momentum if asked for."""

    def __init__(self, rate: Rate = 0.01, momentum: float = 0.0) -> None:
        super().__init__(rate)
        self._momentum = momentum
        self.slots = 1 if momentum else 0

    def update(
        self,
        value: npt.NDArray[Any],
        gradient: npt.NDArray[Any],
        slots: Sequence[npt.NDArray[Any]],
        step: int,
    ) -> None:
        """Apply a gradient in place."""
        change = -self.rate(step) * gradient
        if slots:
            slots[0][...] = self._momentum * slots[0] + change
            change = slots[0]
        value += change.astype(value.dtype)

    def rule(self) -> Rule:
        """Return it in the words of the parameter servers."""
        return Rule("sgd", {"momentum": self._momentum, "nesterov": 0.0})


class Adam(Optimizer):
    """Adam (Kingma and Ba, https://arxiv.org/abs/1412.6980, the form at the end of section 2)."""

    slots = 2

    def __init__(
        self, rate: Rate = 0.001, beta_1: float = 0.9, beta_2: float = 0.999, epsilon: float = 1e-7
    ) -> None:
        super().__init__(rate)
        self._beta_1, self._beta_2, self._epsilon = beta_1, beta_2, epsilon

    def update(
        self,
        value: npt.NDArray[Any],
        gradient: npt.NDArray[Any],
        slots: Sequence[npt.NDArray[Any]],
        step: int,
    ) -> None:
        """Apply a gradient in place."""
        mean, square = slots
        mean += (gradient - mean) * (1 - self._beta_1)
        square += (gradient * gradient - square) * (1 - self._beta_2)
        rate = self.rate(step) * (1 - self._beta_2 ** (step + 1)) ** 0.5 / (1 - self._beta_1 ** (step + 1))
        value -= (rate * mean / (np.sqrt(square) + self._epsilon)).astype(value.dtype)

    def rule(self) -> Rule:
        """Return it in the words of the parameter servers."""
        parameters = {
            "beta_1": self._beta_1,
            "beta_2": self._beta_2,
            "epsilon": self._epsilon,
            "amsgrad": 0.0,
        }
        return Rule("adam", parameters)
