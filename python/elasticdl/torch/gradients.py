"""The accumulator of a step: weighted gradients of the optimizer's parameters, and changes of the model's buffers.

A chunk of n examples weighs n / minibatch_size, and the commit multiplies by minibatch_size / N, N the examples of the step. So the step
of one worker with one full chunk has the bits of the plain loop: both factors are 1.

The flat accumulator has, one after the other: the gradient of each parameter; the change of each float buffer twice, rounded and what the
rounding left, so that before + change has all bits of the value after a single chunk; the change of each whole number buffer; and of each
parameter the weight of the chunks in which it had a gradient, as it has none at the commit if that is 0: no decay, no momentum.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from elasticdl.errors import BadModel

LARGEST_BUFFER = 64 << 10
"""Bytes of a buffer that may change while the model trains; larger ones are constants."""
_WHOLE = 1e-3
"""How far from a whole number the mean change of one may be: sums of weights have rounding errors."""


class Gradients:
    """Adds up the chunks of one step. `dtype` is float32, or float64 if a parameter or a buffer that changes is."""

    def __init__(self, parameters: Sequence[torch.nn.Parameter], buffers: dict[str, torch.Tensor], full: int, path: Any) -> None:
        """`buffers`: of the model by name; `full`: examples of a full chunk; `path`: of the model file."""
        self._parameters, self._path, self._full = parameters, path, full
        self._buffers = {name: one for name, one in buffers.items() if one.numel() * one.element_size() <= LARGEST_BUFFER}
        self._constants = {name: one for name, one in buffers.items() if name not in self._buffers}
        wide = any(one.dtype == torch.float64 for one in (*parameters, *self._buffers.values()))
        self.dtype: npt.DTypeLike = np.float64 if wide else np.float32
        self._kind = torch.float64 if wide else torch.float32
        pieces = [one.numel() for one in parameters]
        for one in self._buffers.values():
            pieces += [one.numel()] * (2 if one.is_floating_point() else 1)
        self._pieces = [*pieces, len(parameters)]
        self.size = sum(self._pieces)
        self._flat = np.zeros(self.size, self.dtype)
        self._views = list(torch.from_numpy(self._flat).split(self._pieces))

    def zero(self) -> None:
        """Empty the accumulator."""
        self._flat[:] = 0

    def committed(self) -> dict[str, torch.Tensor]:
        """Return copies of the buffers that may change, before a chunk is computed."""
        self._versions = {name: one._version for name, one in self._constants.items()}
        return {name: one.clone() for name, one in self._buffers.items()}

    def add(self, examples: int, before: dict[str, torch.Tensor]) -> None:
        """Add a chunk whose gradients are the parameters', and give buffers their committed values `before` it again.

        Raises BadModel for a change that workers can't agree on.
        """
        weight = examples / self._full
        place = 0
        for place, parameter in enumerate(self._parameters):
            slope = parameter.grad
            if slope is None:
                continue
            if slope.is_sparse:
                raise BadModel(f"{self._path}: the gradient of a parameter {tuple(parameter.shape)} is sparse; leave sparse=True out")
            self._views[place].add_(self._weighed(slope.reshape(-1), weight))
            self._views[-1][place] += weight
            parameter.grad = None
        place = len(self._parameters)
        for name, buffer in self._buffers.items():
            change = buffer.reshape(-1).to(torch.float64) - before[name].reshape(-1).to(torch.float64)
            rounded = change.to(self._kind)
            self._views[place].add_(self._weighed(rounded, weight))
            place += 1
            if buffer.is_floating_point():
                self._views[place].add_(self._weighed(change - rounded.to(torch.float64), weight))
                place += 1
            buffer.copy_(before[name])
        for name, buffer in self._constants.items():
            if buffer._version != self._versions[name]:
                raise BadModel(
                    f"{self._path}: training changes the buffer {name!r} of {buffer.numel() * buffer.element_size():,} bytes; those of more "
                    f"than {LARGEST_BUFFER >> 10} KiB have to stay as they are: make it a parameter, or smaller"
                )

    def _weighed(self, values: torch.Tensor, weight: float) -> torch.Tensor:
        """Return values times the weight, rounded before they are added: by `alpha=` they would not be, and sums have other bits."""
        values = values.to(self._kind)
        return values if weight == 1 else values * weight

    def accumulator(self) -> memoryview:
        """Return its elements."""
        return self._flat.data

    def give(self, result: npt.NDArray[Any], examples: float) -> None:
        """Give the parameters the gradients of the step `result` / `examples`, and buffers their values after it. Raises BadModel."""
        factor = self._full / examples
        views = torch.from_numpy(result if result.flags.writeable else result.copy()).split(self._pieces)
        for place, parameter in enumerate(self._parameters):
            if not views[-1][place]:
                parameter.grad = None
                continue
            slope = views[place].view(parameter.shape)
            parameter.grad = (slope if factor == 1 else slope * factor).to(parameter.dtype)
        place = len(self._parameters)
        for name, buffer in self._buffers.items():
            change = views[place].to(torch.float64) * factor
            place += 1
            if buffer.is_floating_point():
                change = change + views[place].to(torch.float64) * factor
                place += 1
            elif change.numel() and bool((change - change.round()).abs().max() > _WHOLE):
                raise BadModel(
                    f"{self._path}: training changes the buffer {name!r}, which is of type {buffer.dtype}, by another number in each chunk: "
                    "workers can't agree on it; make it a float buffer"
                )
            else:
                change = change.round()
            buffer.copy_((buffer.reshape(-1).to(torch.float64) + change).to(buffer.dtype).view(buffer.shape))
