"""A compiled function that has one signature."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf


class Compiled:
    """A `tf.function` that is traced once, when it is first called, and then called without looking for another trace.

    The search costs as much as a small model's whole step. Arguments are tensors, in the structure of the signature.
    """

    def __init__(
        self, function: Callable[..., Any], signature: tuple[Any, ...], jit_compile: bool = False
    ) -> None:
        self._function = tf.function(
            function, input_signature=signature, autograph=False, jit_compile=jit_compile or None
        )
        self._concrete: Any = None

    def __call__(self, *arguments: Any) -> Any:
        """Run the function; the first call traces it, and raises what the traced Python code raises."""
        if self._concrete is None:
            self.trace()
        return self._concrete(*arguments)

    def trace(self) -> None:
        """Trace the function unless that has been done; raises what the traced Python code raises."""
        if self._concrete is None:
            self._concrete = self._function.get_concrete_function()
