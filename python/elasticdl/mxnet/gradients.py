"""The accumulator of a step: gradients of the trained parameters, and changes of what follows the data, such as running means.

A loss of one value per example is summed up by its backward pass. So gradients are sums over the examples, and the optimizer divides by N,
the examples of the step, as `Trainer.step(N)` does. Of a loss that is a mean, a chunk of n examples weighs n / minibatch_size, and the
commit multiplies by minibatch_size / N; changes are weighed so always. Both factors are 1 with one worker and one full chunk, whose step
has the bits of the plain loop.

The flat accumulator has, one after the other: the gradient of each parameter; the changes twice, rounded and what the rounding left, so
that before + change has all bits of the value after a single chunk; and of each parameter the examples of the chunks in which it had a
gradient, as it is not updated if that is 0: no decay, no momentum.

MXNet's arrays share the accumulator's memory, so gradients are added where they are, by MXNet's threads. A reader waits for them; nobody
else does, so that MXNet computes while the worker's own thread decides. The
gradients of a step's first chunk stay where the backward pass has written them, until something needs them in the accumulator: a second
chunk, whose backward pass writes there too, or the ring. A worker that is alone commits those of a single chunk as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import mxnet as mx
import numpy as np
import numpy.typing as npt

from elasticdl.errors import BadModel
from elasticdl.mxnet.internals import take_fresh
from elasticdl.mxnet.shared import in_numpy
from elasticdl.worker.finite import all_finite

LARGEST_CHANGING = 64 << 10
"""Bytes of a value without a gradient that may change while the model trains; larger ones are constants."""


@dataclass(frozen=True, slots=True)
class _First:
    """The first chunk of a step, outside the accumulator: places of the parameters that have a gradient, and what it is multiplied by."""

    places: Sequence[int]
    weight: float


class Gradients:
    """Adds up the chunks of one step. `dtype` is float32, or float64 if a parameter or a value that changes is."""

    def __init__(self, numbered: Mapping[int, Any], full: int, path: Any) -> None:
        """Make the accumulator of a model.

        `numbered`: its parameters, by the optimizer's numbers; `full`: examples of a full chunk; `path`: of the model file.
        """
        self._full, self._path = full, path
        self._numbers = [number for number, one in numbered.items() if one.grad_req != "null"]
        self._parameters = parameters = [numbered[number] for number in self._numbers]
        others = [one for one in numbered.values() if one.grad_req == "null"]
        self._changing = [
            one for one in others if _bytes(one) <= LARGEST_CHANGING and np.dtype(one.dtype).kind == "f"
        ]
        self._constants = [one for one in others if one not in self._changing]
        wide = any(np.dtype(one.dtype) == np.float64 for one in (*parameters, *self._changing))
        self.dtype: npt.DTypeLike = np.float64 if wide else np.float32
        self._ends = np.cumsum([_size(one) for one in parameters]).tolist()
        trained = self._ends[-1] if self._ends else 0
        followed = sum(map(_size, self._changing))
        pieces = np.cumsum([trained, followed, followed]).tolist()
        self._pieces = [
            slice(*ends) for ends in zip(pieces, [*pieces[1:], pieces[-1] + len(parameters)], strict=True)
        ]
        self.size: int = pieces[-1] + len(parameters)
        self.gradient_size = trained
        self._sum = np.zeros(self.size, self.dtype)
        """Parts of parameters have anything before they are written."""
        self.result: npt.NDArray[Any] = np.zeros(self.size, self.dtype)
        self._views, self._result_views = self._shared(self._sum), self._shared(self.result)
        self._first: _First | None = None
        self._chunks = 0
        self._taken: _First | None = None
        """The sum of a step, if it is that of its only chunk, as the backward pass has left it."""
        self._is_alone = False
        self.keep()

    def _shared(self, flat: npt.NDArray[Any]) -> list[Any]:
        """Return arrays of MXNet that share the memory of each parameter's part."""
        starts = [0, *self._ends]
        return [
            mx.nd.from_numpy(flat[start:end].reshape(one.shape), zero_copy=True)
            for one, start, end in zip(self._parameters, starts, self._ends, strict=False)
        ]

    def keep(self) -> None:
        """Copy the committed values of what changes, for all chunks until the next commit."""
        self._kept = [one.data().asnumpy() for one in self._changing]

    def zero(self) -> None:
        """Empty the accumulator."""
        self._first, self._chunks = None, 0
        self._sum[self._pieces[0].start :] = 0

    # ------------------------------------------------------------------ a chunk

    def begin(self) -> None:
        """Begin a chunk: no parameter has a gradient."""
        self._gather()
        for one in self._parameters:
            take_fresh(one.data())

    def end(self, examples: int, *, is_mean: bool) -> None:
        """Add a chunk, and give what changes its committed values again. `is_mean`: of the loss, else it is a sum."""
        weight = examples / self._full
        rounded, rest, having = (self._sum[piece] for piece in self._pieces)
        found = [place for place, one in enumerate(self._parameters) if take_fresh(one.data())]
        first = _First(found, weight if is_mean else 1.0)
        if not self._chunks:
            self._first = first
        else:
            self._clear(found)
            for place in found:
                self._views[place] += self._weighed_slope(place, first.weight)
        having[found] += examples
        self._chunks += 1
        start = 0
        for one, before in zip(self._changing, self._kept, strict=True):
            change = one.data().asnumpy().astype(np.float64) - before
            if change.any():
                near, part = change.astype(self.dtype), slice(start, start + change.size)
                rounded[part] += _weighed(near, weight).reshape(-1)
                rest[part] += _weighed((change - near).astype(self.dtype), weight).reshape(-1)
                one.set_data(mx.nd.array(before, dtype=before.dtype))
            start += before.size

    def _gather(self) -> None:
        """Copy the first chunk's gradients into the accumulator: the next backward pass writes where they are."""
        if self._first is None:
            return
        first, self._first = self._first, None
        for place in first.places:
            self._weighed_slope(place, first.weight).copyto(self._views[place])

    def _weighed_slope(self, place: int, weight: float) -> Any:
        slope = self._parameters[place].grad().astype(self.dtype, copy=False)
        return slope if weight == 1 else slope * weight

    def _clear(self, places: Iterable[int]) -> None:
        """Write zeros where parameters have had no gradient so far."""
        having = self._sum[self._pieces[-1]]
        for place in places:
            if not having[place]:
                self._views[place][:] = 0

    def check_constants(self, before: Sequence[npt.NDArray[Any]]) -> None:
        """Raise BadModel if one of the `constants` is another now."""
        for one, value in zip(self._constants, before, strict=True):
            if not np.array_equal(one.data().asnumpy(), value, equal_nan=True):
                raise BadModel(
                    f"{self._path}: training changes {one.name} of {_bytes(one):,} bytes and type {np.dtype(one.dtype)}, which has no "
                    f"gradient; such values may change if they are of floats and of {LARGEST_CHANGING >> 10} KiB at most"
                )

    def constants(self) -> list[npt.NDArray[Any]]:
        """Return the values that have to stay as they are."""
        return [one.data().asnumpy() for one in self._constants]

    # ------------------------------------------------------------------ a step

    def accumulator(self) -> memoryview:
        """Return its elements."""
        self._complete()
        return self._sum.data

    def _complete(self) -> None:
        """Let the accumulator have all that belongs to it."""
        self._gather()
        self._clear(range(len(self._parameters)))
        mx.nd.waitall()

    def take(self, *, alone: bool) -> bool:
        """Take the sum of a step from `result`, or, of a worker that is alone, from the accumulator; return whether all of it is finite."""
        first = self._first
        is_as_left = alone and first is not None and first.weight == 1
        self._is_alone, self._taken = alone, first if is_as_left else None
        if self._taken is not None:
            slopes = (in_numpy(self._parameters[place].grad()) for place in self._taken.places)
            return all(map(all_finite, slopes)) and all_finite(self._sum[self._pieces[0].start :])
        if alone:
            self._complete()
        return all_finite(self._sum if alone else self.result)

    def give(self, examples: float, update: Any, *, is_mean: bool) -> None:
        """Update parameters with the sum that was taken, and commit changes. `update`: an updater, called as a Trainer calls it."""
        flat, views = (self._sum, self._views) if self._is_alone else (self.result, self._result_views)
        rounded, rest, having = (flat[piece] for piece in self._pieces)
        factor = self._full / examples
        if self._taken is not None:
            # of a loss that is a mean, it is that of a full chunk: there is no factor
            places = list(self._taken.places)
            slopes = [self._parameters[place].grad() for place in places]
        else:
            places = np.flatnonzero(having).tolist()
            slopes = [views[place].astype(self._parameters[place].dtype, copy=False) for place in places]
            if is_mean and factor != 1:
                slopes = [slope * factor for slope in slopes]
        if places:
            values = [self._parameters[place].data() for place in places]
            update([self._numbers[place] for place in places], slopes, values)
        start = 0
        for one, before in zip(self._changing, self._kept, strict=True):
            part = slice(start, start + before.size)
            change = rounded[part].astype(np.float64) * factor + rest[part].astype(np.float64) * factor
            if change.any():
                after = (before + change.reshape(before.shape)).astype(before.dtype)
                one.set_data(mx.nd.array(after, dtype=after.dtype))
            start += before.size
        if self._taken is None:
            mx.nd.waitall()  # what was given is read no more
        self.keep()


def _size(parameter: Any) -> int:
    return int(np.prod(parameter.shape, dtype=np.int64))


def _bytes(parameter: Any) -> int:
    return _size(parameter) * int(np.dtype(parameter.dtype).itemsize)


def _weighed(values: npt.NDArray[Any], weight: float) -> npt.NDArray[Any]:
    return values if weight == 1 else values * values.dtype.type(weight)
