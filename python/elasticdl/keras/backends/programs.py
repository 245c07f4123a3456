"""What a library does for a model: gradients, updates, and running a function of tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import keras

from elasticdl.keras.backends.forward import Forward
from elasticdl.worker.fedbatch import Batch


class Programs(Protocol):
    """One library's."""

    def gradient(self, batch: Batch, seeds: Sequence[Any]) -> tuple[float, list[Any], list[Any]]:
        """Return the mean loss of a batch, its gradients by the trained variables, and the changed variables after it; all are tensors.

        A gradient is None if the loss does not depend on the variable, and the library says so.
        """

    def apply(self, slopes: Sequence[Any]) -> None:
        """Let the optimizer update with gradients: arrays, or None for a variable that is left as it is."""

    def compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function of trees of arrays that computes the same, without gradients."""

    def without_gradients(self) -> AbstractContextManager[Any]:
        """Enter where nothing is kept for gradients."""


def make_programs(forward: Forward, optimizer: Any, seed: int) -> Programs:
    """Return the programs of the library that Keras computes with here. `seed`: of the job."""
    if keras.backend.backend() == "jax":
        from elasticdl.keras.backends.onjax import JaxPrograms

        return JaxPrograms(forward, optimizer, seed)
    from elasticdl.keras.backends.ontorch import TorchPrograms

    return TorchPrograms(forward, optimizer)
