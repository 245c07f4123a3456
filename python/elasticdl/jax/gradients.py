"""The accumulator of a step: weighted gradients of the parameters, and changes of the model's other variables.

A chunk of n examples weighs n / minibatch_size, and the commit multiplies by minibatch_size / N, N the examples of the step. So the step
of one worker with one full chunk has the bits of the plain loop: both factors are 1.

The flat accumulator has, one after the other: the gradient of each parameter; the changes (`worker/changes.py`). Gradients stay in JAX's
memory, as the program has returned them, until there is a second chunk or a group.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from elasticdl.jax.state import Leaves
from elasticdl.jax.step import may_change
from elasticdl.worker.changes import Changes, Changing
from elasticdl.worker.finite import all_finite

Array = npt.NDArray[Any]


class Gradients:
    """Adds up the chunks of one step. `dtype` is float32, or float64 if a parameter or a variable that may change is."""

    def __init__(self, parameters: Leaves, others: Leaves, full: int, path: Any) -> None:
        """`others`: variables that are no parameters; `full`: examples of a full chunk; `path`: of the model file."""
        self._others, self._full = others, full
        self._types = [one.dtype for one in parameters.arrays]
        self._shapes = [one.shape for one in parameters.arrays]
        self._small = [place for place, one in enumerate(others.arrays) if may_change(one)]
        variables = [
            Changing(others.names[place], str(one.dtype), one.size, _is_real(one))
            for place, one in ((place, others.arrays[place]) for place in self._small)
        ]
        real = [others.arrays[place] for place in self._small if _is_real(others.arrays[place])]
        wide = any(one == np.float64 for one in (*self._types, *(one.dtype for one in real)))
        self.dtype: npt.DTypeLike = np.float64 if wide else np.float32
        sizes = [one.size for one in parameters.arrays]
        self._bounds = np.cumsum(sizes).tolist()
        self._trained = self.gradient_size = sum(sizes)
        self._changing = Changes(variables, self.dtype, path)
        self.size = self._trained + self._changing.size
        self.result: Array = np.zeros(self.size, self.dtype)
        """Into which the ring writes the sum of a group."""
        self._taken: tuple[list[jax.Array], Array] | None = None
        """The sum of a step. The accumulator may be emptied before it is given: a joiner is healed between the two."""
        self._flatten = jax.jit(self._trace_flatten)
        self._split = jax.jit(self._trace_split)
        self._weigh = jax.jit(self._trace_weigh)
        self.zero()

    def zero(self) -> None:
        """Empty the accumulator."""
        self._slopes: list[jax.Array] | None = None
        """Weighted gradients of the only chunk so far."""
        self._changes: Array = np.zeros(self.size - self._trained, self.dtype)
        self._flat: Array | None = None
        """All of it, once it was asked for or there are several chunks."""

    # ------------------------------------------------------------------ a chunk

    def add(self, slopes: list[jax.Array], after: Sequence[jax.Array], examples: float) -> None:
        """Add a chunk: its mean gradients, and the other variables as it leaves them."""
        weight = examples / self._full
        if weight != 1:  # rounded before they are added
            slopes = self._weigh(slopes, np.asarray(weight, self.dtype))
        moved = self._changing.between(self._before(), [np.asarray(after[place]) for place in self._small])
        changes = moved * np.asarray(weight, self.dtype)
        if self._slopes is None and self._flat is None:
            self._slopes, self._changes = slopes, changes
            return
        total = np.array(self._whole_sum())
        total += np.asarray(self._flatten(slopes, changes))
        self._flat, self._slopes = total, None

    def _before(self) -> list[Array]:
        return [np.asarray(self._others.arrays[place]) for place in self._small]

    def _whole_sum(self) -> Array:
        if self._flat is None:
            if self._slopes is None:
                self._flat = np.zeros(self.size, self.dtype)
            else:
                self._flat = np.asarray(self._flatten(self._slopes, self._changes))  # JAX's memory
        return self._flat

    def accumulator(self) -> memoryview:
        """Return its elements."""
        return self._whole_sum().data

    # ------------------------------------------------------------------ a step

    def take(self, *, alone: bool) -> bool:
        """Take the sum of a step from `result`, or, of a worker that is alone, from the accumulator; return whether all of it is finite."""
        if alone and self._slopes is not None:
            self._taken = self._slopes, self._changes
            # looked at where they lie: in a quarter of the time of JAX's own look
            return all(all_finite(np.asarray(one)) for one in self._slopes) and all_finite(self._changes)
        flat = self._whole_sum() if alone else self.result
        slopes = self._split(flat[: self._trained])
        jax.block_until_ready(slopes)  # the next ring writes into `result`
        self._taken = slopes, flat[self._trained :]
        return all_finite(flat)

    def give(self, examples: float) -> list[jax.Array]:
        """Return the gradients of the sum that was taken / `examples`, and give the other variables their values after it.

        Raises BadModel for what workers can't agree on.
        """
        assert self._taken is not None, "a sum is taken before it is given"
        slopes, changes = self._taken
        factor = self._full / examples
        after = self._changing.after(self._before(), changes, factor)
        for place, value in zip(self._small, after, strict=True):
            if value is not None:
                self._others.arrays[place] = jnp.array(value, copy=True)
        if factor != 1:
            slopes = self._weigh(slopes, np.asarray(factor, self.dtype))
        return [
            one if one.dtype == kind else one.astype(kind)
            for one, kind in zip(slopes, self._types, strict=True)
        ]

    # ------------------------------------------------------------------ traced

    def _trace_flatten(self, slopes: Sequence[jax.Array], changes: jax.Array) -> jax.Array:
        return jnp.concatenate([*(one.reshape(-1).astype(self.dtype) for one in slopes), changes])

    def _trace_split(self, flat: jax.Array) -> list[jax.Array]:
        parts = jnp.split(flat, self._bounds[:-1])
        return [one.reshape(shape) for one, shape in zip(parts, self._shapes, strict=True)]

    def _trace_weigh(self, slopes: Sequence[jax.Array], weight: jax.Array) -> list[jax.Array]:
        return [one.astype(self.dtype) * weight for one in slopes]


def _is_real(array: jax.Array) -> bool:
    return bool(jnp.issubdtype(array.dtype, jnp.floating))
