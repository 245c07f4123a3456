"""The accumulator of a step: weighted gradients of the optimizer's parameters, and changes of the model's buffers.

A chunk of n examples weighs n / minibatch_size, and the commit multiplies by minibatch_size / N, N the examples of the step. So the step
of one worker with one full chunk has the bits of the plain loop: both factors are 1.

The flat accumulator has, one after the other: the gradient of each parameter; the changes of all float buffers twice, rounded and what the
rounding left, so that before + change has all bits of the value after a single chunk; the changes of all whole number buffers; and of each
parameter the weight of the chunks in which it had a gradient, as it has none at the commit if that is 0: no decay, no momentum.

It lies on the model's device. Neighbouring parameters make a bucket: when the backward pass has come to the last gradient of one, it is
added up and sent to the host, while the pass continues.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from elasticdl.errors import BadModel
from elasticdl.torch.hostcopy import BUCKET, HostCopy

LARGEST_BUFFER = 64 << 10
"""Bytes of a buffer that may change while the model trains; larger ones are constants."""
_WHOLE = 1e-3
"""How far from a whole number the mean change of one may be: sums of weights have rounding errors."""


class Gradients:
    """Adds up the chunks of one step. `dtype` is float32, or float64 if a parameter or a buffer that changes is."""

    def __init__(
        self,
        parameters: Sequence[torch.nn.Parameter],
        buffers: dict[str, torch.Tensor],
        full: int,
        path: Any,
        *,
        apart: bool = False,
    ) -> None:
        """Make the accumulator of a model, all of which is on one device.

        `buffers`: of the model by name; `full`: examples of a full chunk; `path`: of the model file; `apart`: as in `HostCopy`.
        """
        self._parameters, self._path, self._full = parameters, path, full
        changing = {
            name: one for name, one in buffers.items() if one.numel() * one.element_size() <= LARGEST_BUFFER
        }
        self._constants = {name: one for name, one in buffers.items() if name not in changing}
        self._floats = _Joined({name: one for name, one in changing.items() if one.is_floating_point()})
        self._whole = _Joined({name: one for name, one in changing.items() if not one.is_floating_point()})
        wide = any(one.dtype == torch.float64 for one in (*parameters, *changing.values()))
        self.dtype: npt.DTypeLike = np.float64 if wide else np.float32
        self._kind = torch.float64 if wide else torch.float32
        sizes = [one.numel() for one in parameters]
        self._pieces = [*sizes, self._floats.size, self._floats.size, self._whole.size, len(parameters)]
        self.size = sum(self._pieces)
        device = next((one.device for one in (*parameters, *changing.values())), torch.device("cpu"))
        self._copy = HostCopy(self.size, self._kind, device, apart=apart)
        self._host: npt.NDArray[Any] = self._copy.host.numpy()
        self._views = self._copy.flat.split(self._pieces)
        self._weights: npt.NDArray[Any] = np.zeros(len(parameters), self.dtype)
        """Of the chunks in which each parameter had a gradient: known here, without the device."""
        self._buckets = list(_buckets(sizes, BUCKET // self._copy.flat.element_size()))
        self._bucket_of = [
            number for number, (first, end) in enumerate(self._buckets) for _ in range(first, end)
        ]
        self._starts = np.cumsum([0, *self._pieces]).tolist()
        self._sent = [False] * len(self._buckets)
        self._buffers_sent = False
        self._weight: float | None = None
        """Of the chunk that is being computed; None between chunks."""
        self._hooked = [one.requires_grad for one in parameters]
        self._missing: list[int] = []
        for place, one in enumerate(parameters):
            if one.requires_grad:
                one.register_post_accumulate_grad_hook(partial(self._came, place))

    def zero(self) -> None:
        """Empty the accumulator."""
        self._copy.begin()
        self._copy.flat.zero_()
        self._weights[:] = 0
        self._sent = [False] * len(self._buckets)
        self._buffers_sent = False

    # ------------------------------------------------------------------ a chunk

    def begin(self, examples: int) -> None:
        """Begin a chunk: the parameters have no gradients, and buffers their committed values."""
        self._copy.begin()
        self._versions = {name: one._version for name, one in self._constants.items()}
        self._floats.keep()
        self._whole.keep()
        self._missing = [sum(self._hooked[first:end]) for first, end in self._buckets]
        self._weight = examples / self._full

    def _came(self, place: int, _: torch.Tensor) -> None:
        """Add and send a bucket when the backward pass has made its last gradient; called from autograd's thread."""
        if self._weight is None:  # a backward pass of somebody else
            return
        bucket = self._bucket_of[place]
        self._missing[bucket] -= 1
        if not self._missing[bucket]:
            self._add(bucket, self._weight)

    def _add(self, bucket: int, weight: float) -> None:
        first, end = self._buckets[bucket]
        places, slopes = [], []
        for place in range(first, end):
            slope = self._parameters[place].grad
            if slope is None:
                continue
            if slope.is_sparse:
                raise BadModel(
                    f"{self._path}: the gradient of a parameter {tuple(slope.shape)} is sparse; leave sparse=True out"
                )
            places.append(place)
            slopes.append(slope.reshape(-1).to(self._kind))
            self._parameters[place].grad = None
        if places:
            if (
                weight != 1
            ):  # rounded before they are added: by `alpha=` they would not be, and sums have other bits
                slopes = list(torch._foreach_mul(slopes, weight))
            torch._foreach_add_([self._views[place] for place in places], slopes)
            self._weights[places] += weight
        self._copy.send(self._starts[first], self._starts[end])
        self._sent[bucket] = True

    def end(self) -> None:
        """Add what is left of a chunk, and give buffers their committed values again. Raises BadModel for what workers can't agree on."""
        weight, self._weight = self._weight, None
        assert weight is not None, "a chunk was begun"
        for bucket, (first, end) in enumerate(self._buckets):
            if not self._sent[bucket] or any(one.grad is not None for one in self._parameters[first:end]):
                self._add(bucket, weight)
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
        self._send_buffers()
        for name, buffer in self._constants.items():
            if buffer._version != self._versions[name]:
                raise BadModel(
                    f"{self._path}: training changes the buffer {name!r} of {buffer.numel() * buffer.element_size():,} bytes; those of "
                    f"more than {LARGEST_BUFFER >> 10} KiB have to stay as they are: make it a parameter, or smaller"
                )

    def _send_buffers(self) -> None:
        first, end = self._starts[-5], self._starts[-2]
        if first < end:
            self._copy.send(first, end)
        self._buffers_sent = True

    # ------------------------------------------------------------------ a step

    def accumulator(self) -> memoryview:
        """Return its elements, in the memory of the host."""
        for bucket, (first, end) in enumerate(self._buckets):
            if not self._sent[bucket]:
                self._copy.send(self._starts[first], self._starts[end])
                self._sent[bucket] = True
        if not self._buffers_sent:
            self._send_buffers()
        self._copy.arrived()
        self._host[self._starts[-2] :] = self._weights
        return self._host.data

    def give(self, result: npt.NDArray[Any], examples: float) -> None:
        """Give the parameters the gradients of the step `result` / `examples`, and buffers their values after it. Raises BadModel."""
        factor = self._full / examples
        weights = result[self._starts[-2] :]
        self._check_whole(result[self._starts[-3] : self._starts[-2]].astype(np.float64) * factor)
        views = self._copy.back(result).split(self._pieces)
        places = [place for place, weight in enumerate(weights) if weight]
        slopes = [views[place].view(self._parameters[place].shape) for place in places]
        if factor != 1 and slopes:
            slopes = list(torch._foreach_mul(slopes, factor))
        for parameter in self._parameters:
            parameter.grad = None
        for place, slope in zip(places, slopes, strict=True):
            self._parameters[place].grad = slope.to(self._parameters[place].dtype)
        rounded, rest, whole = (one.to(torch.float64) * factor for one in views[-4:-1])
        self._floats.commit(rounded + rest)
        self._whole.commit(whole.round())

    def _check_whole(self, changes: npt.NDArray[Any]) -> None:
        start = 0
        for name, buffer in self._whole.buffers.items():
            change = changes[start : start + buffer.numel()]
            start += buffer.numel()
            if change.size and np.abs(change - np.round(change)).max() > _WHOLE:
                raise BadModel(
                    f"{self._path}: training changes the buffer {name!r}, which is of type {buffer.dtype}, by another number in each "
                    "chunk: workers can't agree on it; make it a float buffer"
                )


class _Joined:
    """Buffers of a model, computed with as one: a kernel for all of them, not some for each."""

    def __init__(self, buffers: dict[str, torch.Tensor]) -> None:
        self.buffers = buffers
        self.size = sum(one.numel() for one in buffers.values())
        self._kept = [torch.empty_like(one) for one in buffers.values()]

    def keep(self) -> None:
        """Copy the committed values."""
        if self._kept:
            torch._foreach_copy_(self._kept, list(self.buffers.values()))

    def change(self) -> torch.Tensor:
        """Return how far the values are from those that were kept, as float64."""
        return _flat(list(self.buffers.values())) - _flat(self._kept)

    def restore(self) -> None:
        """Give buffers the values that were kept."""
        torch._foreach_copy_(list(self.buffers.values()), self._kept)

    def commit(self, change: torch.Tensor) -> None:
        """Add a change of all of them, float64."""
        if not self.size:
            return
        after = (_flat(list(self.buffers.values())) + change).split([one.numel() for one in self._kept])
        for buffer, value in zip(self.buffers.values(), after, strict=True):
            buffer.copy_(value.view(buffer.shape))


def _flat(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.cat([one.detach().reshape(-1) for one in tensors]).to(torch.float64)


def _weighed(values: torch.Tensor, weight: float) -> torch.Tensor:
    return values if weight == 1 else values * weight


def _buckets(sizes: Sequence[int], most: int) -> Iterator[tuple[int, int]]:
    """Yield first and end of the places of each bucket: neighbours of `most` elements together, or a single larger one."""
    first, held = 0, 0
    for place, size in enumerate(sizes):
        if place > first and held + size > most:
            yield first, place
            first, held = place, 0
        held += size
    if sizes:
        yield first, len(sizes)
