"""Memory of a step's sums on the model's device, and on the host, where the ring runs.

On a CUDA device what lies on the host is pinned: the bus reads and writes it, no processor copies it. On the CPU both are the same memory,
and nothing is copied.
"""

from __future__ import annotations

from typing import Any

import numpy.typing as npt
import torch


class HostCopy:
    """The flat accumulator `flat`, and `result`, into which the ring writes the sum of the group; both of `size` elements."""

    def __init__(self, size: int, kind: torch.dtype, device: torch.device, *, apart: bool = False) -> None:
        """Make both, all zeros. `apart`: the host has memory of its own on the CPU too, as in tests."""
        cuda = device.type == "cuda"
        self.flat = torch.zeros(size, dtype=kind, device=device)
        received = torch.zeros(size, dtype=kind, pin_memory=cuda)
        self._received = received
        self._host = torch.zeros(size, dtype=kind, pin_memory=cuda) if apart or cuda else self.flat
        self._sum = torch.zeros(size, dtype=kind, device=device) if apart or cuda else received
        self.result: npt.NDArray[Any] = received.numpy()

    def fetch(self) -> npt.NDArray[Any]:
        """Copy the accumulator to the host, and return it there."""
        if self._host is not self.flat:
            self._host.copy_(self.flat)
        host: npt.NDArray[Any] = self._host.numpy()
        return host

    def bring(self) -> torch.Tensor:
        """Copy the result to the device, and return it there; it is on its way, and may be overwritten after the device's next answer."""
        if self._sum is not self._received:
            self._sum.copy_(self._received, non_blocking=True)
        return self._sum
