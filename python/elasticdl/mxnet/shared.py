"""MXNet's memory as NumPy sees it, without a copy."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


def in_numpy(array: Any) -> npt.NDArray[Any]:
    """Wait for an array of MXNet, and return its memory, which the next operation on it may change."""
    return np.from_dlpack(_Exchanged(array.to_dlpack_for_read()))


class _Exchanged:
    """What NumPy asks for memory: MXNet is older than this protocol, and gives only the capsule."""

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __dlpack__(self, *, stream: Any = None) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0  # the host
