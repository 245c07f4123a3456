"""Optimizers that a job does not know, and which train all the same."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook


class OtherOptimizers:
    """Finds an optimizer that is not the job's and steps for two batches.

    What it trains depends on which batches its worker has, and nobody else gets it. One that is made anew for each batch, as for an inner
    loop, depends on that batch only, and so may step as often as it likes.
    """

    def __init__(self, known: Sequence[torch.optim.Optimizer], refuse: Callable[[], None]) -> None:
        """`known`: the job's; `refuse`: raises."""
        self._known, self._refuse = known, weakref.WeakMethod(refuse)
        self._batches = 0
        self._thread = 0
        """Of the loop; other threads of this process may have loops of their own, and hooks are for all of them."""
        self._stepped = weakref.WeakKeyDictionary[torch.optim.Optimizer, int]()
        """Of each other one, the number of the batch for which it has stepped."""
        self._hook: Any = None

    def begin(self) -> None:
        """Take what steps from now on for one of the next batch."""
        self._batches += 1
        self._thread = threading.get_ident()
        if self._hook is None:
            self._hook = register_optimizer_step_pre_hook(self._look)

    def end(self) -> None:
        """Look no more: there is no batch any more."""
        if self._hook is not None:
            self._hook.remove()

    def _look(self, optimizer: torch.optim.Optimizer, arguments: Any, named: Any) -> None:
        refuse = self._refuse()
        if refuse is None:
            self.end()
        elif threading.get_ident() != self._thread or any(one is optimizer for one in self._known):
            return
        elif self._stepped.setdefault(optimizer, self._batches) != self._batches:
            refuse()
