"""PyTorch for a Keras model: everything runs as it is written, and variables are changed where they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import keras
import torch

from elasticdl.errors import BadModel
from elasticdl.keras.backends.forward import Forward, tensors
from elasticdl.keras.backends.runtime import seed_python
from elasticdl.worker.fedbatch import Batch


class TorchPrograms:
    """Implements `elasticdl.keras.backends.programs.Programs`."""

    def __init__(self, forward: Forward, optimizer: Any) -> None:
        self._forward, self._optimizer = forward, optimizer

    def gradient(self, batch: Batch, seeds: Sequence[Any]) -> tuple[float, list[Any], list[Any]]:
        """Return the mean loss of a batch, its gradients, and the changed variables after it."""
        seed_python(*(int(number) for number in seeds[0]))
        trained = [variable.value for variable in self._forward.trained]
        others = [variable.value for variable in self._forward.others]
        loss, after = self._forward.training(trained, others, seeds, tensors(batch))
        if not loss.requires_grad:
            raise BadModel(
                f"{self._forward.path}: the loss does not depend on any trainable variable of the model"
            )
        slopes = torch.autograd.grad(self._optimizer.scale_loss(loss), trained, allow_unused=True)
        return float(loss.detach()), list(slopes), [one.detach() for one in after]

    def apply(self, slopes: Sequence[Any]) -> None:
        """Let the optimizer update."""
        typed = [
            None if slope is None else keras.ops.convert_to_tensor(slope, variable.dtype)
            for slope, variable in zip(slopes, self._forward.trained, strict=True)
        ]
        with torch.no_grad():
            self._optimizer.apply(typed, self._forward.trained)

    def compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function, which takes arrays, too."""

        def run(*arguments: Any) -> Any:
            with self.without_gradients():
                return function(*keras.tree.map_structure(_tensor, arguments))

        return run

    def without_gradients(self) -> AbstractContextManager[Any]:
        """Enter where PyTorch keeps nothing."""
        entered: AbstractContextManager[Any] = torch.no_grad()
        return entered


def _tensor(one: Any) -> Any:
    return None if one is None else keras.ops.convert_to_tensor(one)
