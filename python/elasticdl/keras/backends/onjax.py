"""JAX for a Keras model: everything is a compiled function, of each number of examples another one.

Variables of Keras have the values between two steps, as callbacks, metrics and exports look there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import jax
import keras

from elasticdl.keras.backends.forward import Forward
from elasticdl.keras.backends.runtime import seed_python
from elasticdl.keras.internals import set_value
from elasticdl.worker.fedbatch import Batch
from elasticdl.worker.seeds import chunk_seeds


class JaxPrograms:
    """Implements `elasticdl.keras.backends.programs.Programs`."""

    def __init__(self, forward: Forward, optimizer: Any, seed: int) -> None:
        self._forward, self._optimizer = forward, optimizer
        self._constants: tuple[int, int] = tuple(chunk_seeds(seed, 0, 0, 1)[0].tolist())
        self._gradient = jax.jit(self._trace_gradient)
        self._update = jax.jit(self._trace_update)

    def gradient(self, batch: Batch, seeds: Sequence[Any]) -> tuple[float, list[Any], list[Any]]:
        """Return the mean loss of a batch, its gradients, and the changed variables after it."""
        loss, slopes, after = self._gradient(
            _values(self._forward.trained),
            _values(self._forward.others),
            _values(self._optimizer.variables),
            seeds,
            batch.features,
            batch.labels,
            batch.weights,
        )
        return float(loss), slopes, after

    def apply(self, slopes: Sequence[Any]) -> None:
        """Let the optimizer update."""
        trained, kept = self._forward.trained, self._optimizer.variables
        after = self._update(_values(trained), _values(kept), list(slopes))
        jax.block_until_ready(after)  # the arrays of `slopes` may be written again from now on
        for variable, value in zip((*trained, *kept), (*after[0], *after[1]), strict=True):
            set_value(variable, value)

    def compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a compiled function."""
        made: Callable[..., Any] = jax.jit(function)
        return made

    def without_gradients(self) -> AbstractContextManager[Any]:
        """Enter nothing: JAX keeps nothing unasked."""
        return nullcontext()

    # ------------------------------------------------------------------ traced

    def _trace_gradient(
        self,
        trained: Any,
        others: Any,
        kept: Any,
        seeds: Any,
        features: Any,
        labels: Any,
        weights: Any,
    ) -> tuple[Any, Any, Any]:
        # what a model draws from Python's generators while it is traced becomes a constant: the same in all workers
        seed_python(*self._constants)
        batch = Batch(0, features, labels, weights)

        def scaled(trained: Any) -> tuple[Any, Any]:
            loss, after = self._forward.training(trained, others, seeds, batch)
            mapping = zip(self._optimizer.variables, kept, strict=True)
            with keras.StatelessScope(state_mapping=list(mapping)):
                return self._optimizer.scale_loss(loss), (loss, after)

        (_, (loss, after)), slopes = jax.value_and_grad(scaled, has_aux=True)(trained)
        return loss, slopes, after

    def _trace_update(self, trained: Any, kept: Any, slopes: Any) -> Any:
        typed = [
            slope.astype(variable.dtype)
            for slope, variable in zip(slopes, self._forward.trained, strict=True)
        ]
        return self._optimizer.stateless_apply(kept, typed, trained)


def _values(variables: Sequence[Any]) -> list[Any]:
    return [variable.value for variable in variables]
