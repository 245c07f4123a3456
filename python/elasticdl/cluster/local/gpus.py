"""Which GPU a worker on this machine uses: they take turns, so that several workers on a machine with several GPUs use all of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

VARIABLE = "CUDA_VISIBLE_DEVICES"
_DRIVER = Path("/proc/driver/nvidia/gpus")
"""Has a directory for each GPU that NVIDIA's driver serves."""


def count() -> int:
    """Return how many GPUs this machine has, 0 without a driver."""
    try:
        return len(list(_DRIVER.iterdir()))
    except OSError:
        return 0


def visible_to(index: int, environment: Mapping[str, str], found: int) -> str | None:
    """Return the value of CUDA_VISIBLE_DEVICES for a worker, None if it stays as it is.

    Args:
        index: number of the worker.
        environment: of the job; where it names devices already, workers take turns with those.
        found: GPUs of the machine.
    """
    named = environment.get(VARIABLE)
    devices = list(map(str, range(found))) if named is None else [one.strip() for one in named.split(",")]
    return devices[index % len(devices)] if len(devices) > 1 else None
