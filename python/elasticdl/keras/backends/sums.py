"""The accumulator of a step: weighted gradients of the trained variables, and changes of others.

A chunk of n examples weighs n / minibatch_size, and the commit multiplies by minibatch_size / N, N the examples of the step. Both are 1
with one worker and one full chunk, whose step is that of `train_on_batch`; then the library gets the very gradients that it made.

The flat accumulator has, one after the other: the gradient of each trained variable; the changes (`worker/changes.py`); and of each trained
variable the examples of the chunks in which it had a gradient, as it is not updated if that is 0: no decay, no momentum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import numpy.typing as npt

from elasticdl.keras.held import array_of
from elasticdl.worker.changes import Changes, Changing
from elasticdl.worker.finite import all_finite

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class _Chunk:
    """The only chunk so far, a full one: its gradients as the library made them, None where there is none, and its changes."""

    slopes: Sequence[Any]
    changes: Array


class Sums:
    """Adds up the chunks of one step. `dtype` is float32, or float64 if a variable is."""

    def __init__(self, trained: Sequence[Any], changed: Sequence[Any], full: int, path: Any) -> None:
        """`changed`: others that training changes; `full`: examples of a full chunk; `path`: of the model file."""
        self._full, self._changed = full, changed
        kinds = [keras.backend.standardize_dtype(one.dtype) for one in changed]
        real = [keras.backend.is_float_dtype(kind) for kind in kinds]
        wide = {keras.backend.standardize_dtype(one.dtype) for one in trained} | {
            kind for kind, is_real in zip(kinds, real, strict=True) if is_real
        }
        self.dtype: npt.DTypeLike = np.float64 if "float64" in wide else np.float32
        self._changes = Changes(
            [
                Changing(one.path, kind, _size(one), is_real)
                for one, kind, is_real in zip(changed, kinds, real, strict=True)
            ],
            self.dtype,
            path,
        )
        self._shapes = [tuple(one.shape) for one in trained]
        ends = np.cumsum([_size(one) for one in trained]).tolist()
        self._pieces = [slice(*ends) for ends in zip([0, *ends], ends, strict=False)]
        self._moved = slice(ends[-1], ends[-1] + self._changes.size)
        self._having = slice(self._moved.stop, self._moved.stop + len(trained))
        self.size: int = self._having.stop
        self.gradient_size: int = ends[-1]
        self._flat: Array = np.zeros(self.size, self.dtype)
        self._is_empty = True
        self._only: _Chunk | None = None
        self.result: Array = np.zeros(self.size, self.dtype)
        """Into which the ring writes the sum of a group."""
        self._taken: _Chunk | Array = self.result

    def zero(self) -> None:
        """Empty the accumulator."""
        self._only = None
        if not self._is_empty:
            self._flat[:] = 0
            self._is_empty = True

    # ------------------------------------------------------------------ a chunk

    def add(self, slopes: Sequence[Any], after: Sequence[Any], examples: int) -> None:
        """Add a chunk: its mean gradients, and the changed variables as it leaves them."""
        changes = self._changes.between(self._before(), [array_of(one) for one in after])
        if self._is_empty and self._only is None and examples == self._full:
            self._only = _Chunk(slopes, changes)
            return
        self._spread()
        self._add(_Chunk(slopes, changes), examples)

    def _add(self, chunk: _Chunk, examples: int) -> None:
        weight = np.asarray(examples / self._full, self.dtype)
        having = self._flat[self._having]
        for place, slope in enumerate(chunk.slopes):
            if slope is not None:
                self._flat[self._pieces[place]] += _weighed(self._of(slope), weight)
                having[place] += examples
        self._flat[self._moved] += _weighed(chunk.changes, weight)
        self._is_empty = False

    def _of(self, slope: Any) -> Array:
        return array_of(slope).reshape(-1).astype(self.dtype, copy=False)

    def _spread(self) -> None:
        """Write the only chunk so far into the flat accumulator."""
        if self._only is not None:
            only, self._only = self._only, None
            self._add(only, self._full)

    def _before(self) -> list[Array]:
        return [array_of(variable.value) for variable in self._changed]

    def accumulator(self) -> memoryview:
        """Return its elements."""
        self._spread()
        return self._flat.data

    # ------------------------------------------------------------------ a step

    def take(self, *, alone: bool) -> bool:
        """Take the sum of a step from `result`, or, of a worker that is alone, from the accumulator; return whether all of it is finite."""
        if alone and self._only is not None:
            self._taken = self._only
            parts = [self._of(slope) for slope in self._only.slopes if slope is not None]
            return all(all_finite(part) for part in (*parts, self._only.changes))
        # copied: the accumulator may be emptied before the sum is given
        self._taken = self._flat.copy() if alone else self.result
        return all_finite(self._taken)

    def give(self, examples: float) -> list[Any]:
        """Return the gradients of the sum that was taken / `examples`, None of variables that had none, and give others their values.

        Raises BadModel for what workers can't agree on.
        """
        factor = self._full / examples
        taken = self._taken
        changes = taken.changes if isinstance(taken, _Chunk) else taken[self._moved]
        for variable, value in zip(
            self._changed, self._changes.after(self._before(), changes, factor), strict=True
        ):
            if value is not None:
                variable.assign(value)
        if isinstance(taken, _Chunk):
            return list(taken.slopes)
        return [
            _weighed(taken[piece].reshape(shape), np.asarray(factor, self.dtype)) if has else None
            for piece, shape, has in zip(self._pieces, self._shapes, taken[self._having], strict=True)
        ]


def _size(variable: Any) -> int:
    return int(np.prod(tuple(variable.shape), dtype=np.int64))


def _weighed(values: Array, weight: Array) -> Array:
    return values if weight == 1 else values * weight
