"""A compiled function that has one signature."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf


class Compiled:
    """A `tf.function` that is traced once, when it is first called, and then called without looking for another trace.

    The search costs as much as a small model's whole step. Arguments are in the structure of the signature. If all are tensors, the trace
    gets them as they are; in public they are first bound to the signature and cast to what they are, which takes as long as the rest of
    a call. Types are compared by TensorFlow in either case, and shapes in neither.
    """

    def __init__(
        self, function: Callable[..., Any], signature: tuple[Any, ...], jit_compile: bool = False
    ) -> None:
        self._function = tf.function(
            function, input_signature=signature, autograph=False, jit_compile=jit_compile or None
        )
        self._signature = signature
        self._concrete: Any = None

    def __call__(self, *arguments: Any) -> Any:
        """Run the function; the first call traces it, and raises what the traced Python code raises.

        Raises TypeError or tf.errors.InvalidArgumentError for arguments of other types than the signature's.
        """
        if self._concrete is None:
            self.trace()
        concrete, tensors = self._concrete, self._tensors(arguments)
        if tensors is None:
            return concrete(*arguments)
        return concrete._call_flat(tensors, concrete.captured_inputs)

    def trace(self) -> None:
        """Trace the function unless that has been done; raises what the traced Python code raises."""
        if self._concrete is None:
            self._concrete = self._function.get_concrete_function()

    def _tensors(self, arguments: tuple[Any, ...]) -> list[Any] | None:
        """Return the arguments flat, in the order of the trace's inputs; None if they aren't tensors in the structure of the signature."""
        try:
            tf.nest.assert_same_structure(arguments, self._signature, expand_composites=True)
        except (TypeError, ValueError):
            return None
        flat: list[Any] = tf.nest.flatten(arguments, expand_composites=True)
        return flat if all(isinstance(one, tf.__internal__.EagerTensor) for one in flat) else None
