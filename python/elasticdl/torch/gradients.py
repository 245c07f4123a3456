"""The accumulator of a step: weighted gradients of the optimizer's parameters, and changes of the model's buffers.

A chunk of n examples weighs n / minibatch_size, and the commit multiplies by minibatch_size / N, N the examples of the step. So the step
of one worker with one full chunk has the bits of the plain loop: both factors are 1.

The flat accumulator has, one after the other: the gradient of each parameter; the changes of all float buffers twice, rounded and what the
rounding left, so that before + change has all bits of the value after a single chunk; the changes of all whole number buffers; and of each
parameter the weight of the chunks in which it had a gradient, as it has none at the commit if that is 0: no decay, no momentum.

It lies on the model's device. It goes to the host only where there is a group whose ring needs it: a worker that is alone commits it where
it lies. The gradients of a step's first chunk are not even copied into it, until something needs them there: a second chunk, the ring, or a
program that runs on with them. A worker that is alone commits those of a single chunk as the backward pass left them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from elasticdl.errors import BadModel
from elasticdl.torch.finite import are_finite
from elasticdl.torch.hostcopy import HostCopy

LARGEST_BUFFER = 64 << 10
"""Bytes of a buffer that may change while the model trains; larger ones are constants."""
_WHOLE = 1e-3
"""How far from a whole number the mean change of one may be: sums of weights have rounding errors."""


@dataclass(frozen=True, slots=True)
class _First:
    """The first chunk of a step, outside the accumulator.

    Attributes:
        places: of the parameters that have a gradient.
        slopes: their gradients, as the backward pass left them.
        weight: of the chunk.
        unknown: those of the gradients of which nobody knows yet that they are finite.
    """

    places: list[int]
    slopes: list[torch.Tensor]
    weight: float
    unknown: list[torch.Tensor]


class Gradients:
    """Adds up the chunks of one step.

    Attributes:
        dtype: float32, or float64 if a parameter or a buffer that changes is.
        as_left: the last step was committed with its gradients as the backward pass left them, and so may be the next one.
    """

    def __init__(
        self,
        parameters: Sequence[torch.nn.Parameter],
        buffers: dict[str, torch.Tensor],
        full: int,
        path: Any,
        *,
        averaged: Collection[str] = (),
        remedy: str = "make it a parameter, or smaller",
        apart: bool = False,
    ) -> None:
        """Make the accumulator of a model, all of which is on one device.

        `buffers`: of the model by name; `full`: examples of a full chunk; `path`: of the model file; `averaged`: large buffers that may
        change; `remedy`: for one that may not; `apart`: as in `HostCopy`.
        """
        self._parameters, self._path, self._full, self._remedy = parameters, path, full, remedy
        changing = {
            name: one
            for name, one in buffers.items()
            if one.numel() * one.element_size() <= LARGEST_BUFFER or name in averaged
        }
        self._constants = {name: one for name, one in buffers.items() if name not in changing}
        self._floats = _Joined({name: one for name, one in changing.items() if one.is_floating_point()})
        self._whole = _Joined({name: one for name, one in changing.items() if not one.is_floating_point()})
        wide = any(one.dtype == torch.float64 for one in (*parameters, *changing.values()))
        self.dtype: npt.DTypeLike = np.float64 if wide else np.float32
        self._kind = torch.float64 if wide else torch.float32
        sizes = [one.numel() for one in parameters]
        self._has_buffers = bool(self._floats.size or self._whole.size)
        self._pieces = [*sizes, self._floats.size, self._floats.size, self._whole.size, len(parameters)]
        self.size, self.gradient_size = sum(self._pieces), sum(sizes)
        device = next((one.device for one in (*parameters, *changing.values())), torch.device("cpu"))
        self._copy = HostCopy(self.size, self._kind, device, apart=apart)
        self._views = self._copy.flat.split(self._pieces)
        self._changes = self._copy.flat[sum(sizes) :]
        """What is not of a parameter; the parameters' pieces have anything before they are written."""
        self._first: _First | None = None
        self.as_left = False
        self._chunks = 0
        self._weights: npt.NDArray[Any] = np.zeros(len(parameters), self.dtype)
        """Of the chunks in which each parameter had a gradient: known here, without the device."""
        self._sum: torch.Tensor | None = self._copy.flat
        self._sum_weights = self._weights
        """Of the step: see `take`. Without a sum it is the first chunk."""

    @property
    def result(self) -> npt.NDArray[Any]:
        """Return the memory of the host for the sum of a group."""
        return self._copy.result

    def zero(self) -> None:
        """Empty the accumulator."""
        self._first, self._chunks = None, 0
        if self._has_buffers:
            self._changes.zero_()
        self._weights.fill(0)

    # ------------------------------------------------------------------ a chunk

    def begin(self) -> None:
        """Begin a chunk: the parameters have no gradients, and buffers their committed values."""
        self.gather()
        self._versions = {name: one._version for name, one in self._constants.items()}
        self._floats.keep()
        self._whole.keep()

    def drop(self) -> None:
        """Give up a chunk: the parameters have no gradients, and buffers their committed values again."""
        for parameter in self._parameters:
            parameter.grad = None
        self._floats.restore()
        self._whole.restore()

    def end(self, examples: float, finite: Collection[int] = ()) -> None:
        """Add a chunk, and give buffers their committed values again. Raises BadModel for what workers can't agree on.

        `finite`: the `id` of gradients that are known to be finite.
        """
        weight = examples / self._full
        places, slopes = [], []
        for place, parameter in enumerate(self._parameters):
            slope = parameter.grad
            if slope is None:
                continue
            if slope.is_sparse:
                raise BadModel(
                    f"{self._path}: the gradient of a parameter {tuple(slope.shape)} is sparse; leave sparse=True out"
                )
            places.append(place)
            slopes.append(slope)
            parameter.grad = None
        if not self._chunks:
            unknown = [one for one in slopes if id(one) not in finite] if finite else slopes
            self._first = _First(places, slopes, weight, unknown)
        elif places:
            self._clear(places)
            torch._foreach_add_([self._views[place] for place in places], self._flattened(slopes, weight))
        if len(places) == len(self._weights):
            self._weights += weight  # a fifth of what the choice of places takes
        else:
            self._weights[places] += weight
        self._chunks += 1
        if self._has_buffers:
            self._add_changes(weight)
        for name, buffer in self._constants.items():
            if buffer._version != self._versions[name]:
                raise BadModel(
                    f"{self._path}: training changes the buffer {name!r} of {buffer.numel() * buffer.element_size():,} bytes; those of "
                    f"more than {LARGEST_BUFFER >> 10} KiB have to stay as they are: {self._remedy}"
                )

    def _add_changes(self, weight: float) -> None:
        rounded, rest, whole = self._views[-4:-1]
        if self._floats.size:
            change = self._floats.change()
            near = change.to(self._kind)
            rounded.add_(_weighed(near, weight))
            rest.add_(_weighed((change - near.to(torch.float64)).to(self._kind), weight))
            self._floats.restore()
        if self._whole.size:
            whole.add_(_weighed(self._whole.change().to(self._kind), weight))
            self._whole.restore()

    def gather(self) -> None:
        """Copy the first chunk's gradients into the accumulator: their memory may change from now on."""
        if self._first is None:
            return
        first, self._first = self._first, None
        for place, slope in zip(first.places, self._flattened(first.slopes, first.weight), strict=True):
            self._views[place].copy_(slope)

    def _clear(self, places: Iterable[int]) -> None:
        """Write zeros where parameters have had no gradient so far."""
        for place in places:
            if not self._weights[place]:
                self._views[place].zero_()

    def _flattened(self, slopes: list[torch.Tensor], weight: float) -> list[torch.Tensor]:
        """Return gradients as the accumulator has them."""
        flat = [one.reshape(-1).to(self._kind) for one in slopes]
        # rounded before they are added: by `alpha=` they would not be
        return list(torch._foreach_mul(flat, weight)) if weight != 1 and flat else flat

    # ------------------------------------------------------------------ a step

    def accumulator(self) -> memoryview:
        """Return its elements, in the memory of the host."""
        self._complete()
        host = self._copy.fetch()
        host[self.size - len(self._weights) :] = self._weights
        return host.data

    def take(self, *, alone: bool) -> bool:
        """Take the sum of a step from `result`, or, of a worker that is alone, from the accumulator; return whether all of it is finite."""
        first = self._first
        self.as_left = alone and first is not None and first.weight == 1
        if self.as_left:
            assert first is not None
            self._sum, self._sum_weights = None, self._weights
            return are_finite([*first.unknown, self._changes] if self._has_buffers else first.unknown)
        if alone:
            self._complete()
        self._sum = self._copy.flat if alone else self._copy.bring()
        self._sum_weights = self._weights if alone else self.result[self.size - len(self._weights) :]
        return are_finite([self._sum])

    def _complete(self) -> None:
        """Let the accumulator have all that belongs to it."""
        self.gather()
        self._clear(range(len(self._parameters)))

    def give(self, examples: float) -> None:
        """Give the parameters the gradients of the sum that was taken / `examples`, and buffers their values after it. Raises BadModel."""
        factor = self._full / examples
        if self._has_buffers:
            changes = self._changes if self._sum is None else self._sum[-len(self._changes) :]
            rounded, rest, whole, _ = changes.split(self._pieces[-4:])
            whole = whole.to(torch.float64) * factor
            self._check_whole(whole)
        for parameter in self._parameters:
            parameter.grad = None
        for place, slope in self._slopes(factor):
            self._parameters[place].grad = slope
        if self._has_buffers:
            if self._floats.size:
                self._floats.commit(rounded.to(torch.float64) * factor + rest.to(torch.float64) * factor)
            if self._whole.size:
                self._whole.commit(whole.round())

    def _slopes(self, factor: float) -> Iterator[tuple[int, torch.Tensor]]:
        """Yield the gradients of the sum that was taken, and of which parameter each is; the sum's memory is used for it."""
        if self._sum is None:  # that of a full chunk, which is the step: there is no factor
            assert self._first is not None, "it was taken"
            yield from zip(self._first.places, self._first.slopes, strict=True)
            return
        slopes = self._sum[: -len(self._changes)]
        if factor != 1:
            slopes.mul_(factor)
        views = slopes.split(self._pieces[:-4])
        for place, (weight, parameter) in enumerate(zip(self._sum_weights, self._parameters, strict=True)):
            if weight:
                yield place, views[place].view(parameter.shape).to(parameter.dtype)

    def _check_whole(self, changes: torch.Tensor) -> None:
        wrong = (changes - changes.round()).abs() > _WHOLE
        if not wrong.any():  # so also without such buffers
            return
        for (name, buffer), one in zip(
            self._whole.buffers.items(), wrong.split(self._whole.sizes), strict=True
        ):
            if one.any():
                raise BadModel(
                    f"{self._path}: training changes the buffer {name!r}, which is of type {buffer.dtype}, by another number in each "
                    "chunk: workers can't agree on it; make it a float buffer"
                )


class _Joined:
    """Buffers of a model, computed with as one: a kernel for all of them, not some for each."""

    def __init__(self, buffers: dict[str, torch.Tensor]) -> None:
        self.buffers = buffers
        self.sizes = [one.numel() for one in buffers.values()]
        self.size = sum(self.sizes)
        self._kept = [torch.empty_like(one) for one in buffers.values()]

    def keep(self) -> None:
        """Copy the committed values."""
        if self._kept:
            torch._foreach_copy_(self._kept, list(self.buffers.values()))

    def change(self) -> torch.Tensor:
        """Return how far the values are from those that were kept, as float64; an infinite one that stays, as in masks, is not."""
        now, kept = _flat(list(self.buffers.values())), _flat(self._kept)
        return torch.where(now == kept, 0.0, now - kept)

    def restore(self) -> None:
        """Give buffers the values that were kept."""
        if self._kept:
            torch._foreach_copy_(list(self.buffers.values()), self._kept)

    def commit(self, change: torch.Tensor) -> None:
        """Add a change of all of them, float64."""
        after = (_flat(list(self.buffers.values())) + change).split(self.sizes)
        for buffer, value in zip(self.buffers.values(), after, strict=True):
            buffer.copy_(value.view(buffer.shape))


def _flat(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.cat([one.detach().reshape(-1) for one in tensors]).to(torch.float64)


def _weighed(values: torch.Tensor, weight: float) -> torch.Tensor:
    return values if weight == 1 else values * weight
