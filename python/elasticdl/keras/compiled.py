"""A compiled function that has one signature."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from elasticdl.keras.controlflow import branches

_INLINE = "SINGLE_THREADED_EXECUTOR"
"""What runs a function's operations one after the other on one thread; it knows no branches and loops."""


class Compiled:
    """A `tf.function` that is traced once, when it is first called, and then called without looking for another trace.

    The search costs as much as a small model's whole step. Arguments are tensors, in the structure of the signature. A process that has
    one thread for each operation, and no GPU, runs all of a function's operations on one thread where the function allows it: to hand
    each of them over to another thread costs as much as a small one takes.
    """

    def __init__(
        self, function: Callable[..., Any], signature: tuple[Any, ...], jit_compile: bool = False
    ) -> None:
        self._function = tf.function(
            function, input_signature=signature, autograph=False, jit_compile=jit_compile or None
        )
        self._concrete: Any = None
        self._inline = not jit_compile and _computes_alone()

    def __call__(self, *arguments: Any) -> Any:
        """Run the function; the first call traces it, and raises what the traced Python code raises."""
        if self._concrete is None:
            self.trace()
        if not self._inline:
            return self._concrete(*arguments)
        with tf.experimental.function_executor_type(_INLINE):
            return self._concrete(*arguments)

    def trace(self) -> None:
        """Trace the function unless that has been done; raises what the traced Python code raises."""
        if self._concrete is None:
            self._concrete = self._function.get_concrete_function()
            self._inline = self._inline and not branches(self._concrete.graph)


def _computes_alone() -> bool:
    """Tell whether operations share no thread and no device: then none of them has to wait for another."""
    return (
        tf.config.threading.get_intra_op_parallelism_threads() == 1
        and not tf.config.list_physical_devices("GPU")
    )
