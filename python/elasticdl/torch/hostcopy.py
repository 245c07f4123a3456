"""A flat tensor of a device and its copy in the memory of the host, which is what a ring takes and gives.

On a CUDA device the copy is pinned, and pieces go to and fro on a stream of their own: the first gradients are on their way while the
later ones are computed. On the CPU both are the same memory, and nothing is copied.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

BUCKET = 4 << 20
"""Bytes of a piece: large enough for the bus, small enough that the first is on its way soon."""


class HostCopy:
    """`flat`, which is computed with, and `host`, both of `size` elements."""

    def __init__(self, size: int, kind: torch.dtype, device: torch.device, *, apart: bool = False) -> None:
        """Make both, all zeros. `apart`: copy on the CPU too, as tests do."""
        self.flat = torch.zeros(size, dtype=kind, device=device)
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._device = device
        self.apart = apart or self._stream is not None
        self.host = (
            torch.zeros(size, dtype=kind, pin_memory=self._stream is not None) if self.apart else self.flat
        )
        self._bucket = max(1, BUCKET // self.flat.element_size())

    def begin(self) -> None:
        """Let what follows on the device wait until nothing is copied any more."""
        if self._stream is not None:
            torch.cuda.current_stream(self._device).wait_stream(self._stream)

    def send(self, first: int, end: int) -> None:
        """Copy elements to the host after the work that the device has been given; it does not wait for them."""
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(self._device))
            with torch.cuda.stream(self._stream):
                self.host[first:end].copy_(self.flat[first:end], non_blocking=True)
        elif self.apart:
            self.host[first:end].copy_(self.flat[first:end])

    def arrived(self) -> None:
        """Wait until what was sent is there."""
        if self._stream is not None:
            self._stream.synchronize()

    def back(self, result: npt.NDArray[Any]) -> torch.Tensor:
        """Return a result of the ring on the device: `flat`, or its own memory on the CPU. When this returns it may be overwritten."""
        given = torch.from_numpy(result if result.flags.writeable else np.array(result))
        if not self.apart:
            return given
        self.arrived()  # the last copy back, if nothing was sent since
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(self._device))
        for first in range(0, len(given), self._bucket):
            end = min(first + self._bucket, len(given))
            self.host[first:end].copy_(given[first:end])
            if self._stream is None:
                self.flat[first:end].copy_(self.host[first:end])
                continue
            with torch.cuda.stream(self._stream):
                self.flat[first:end].copy_(self.host[first:end], non_blocking=True)
        self.begin()
        return self.flat
