"""Writing the trained model for plain users of Flax: one .npz file, each variable by the keys on the way to it."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from elasticdl.jax.state import bits
from elasticdl.jax.step import Model
from elasticdl.worker.npzfile import write_npz

MODEL = "model/"
"""Begins the names of what an export has in the image of a state."""


def export(model: Model, path: str) -> None:
    """Write to exactly `path`; what was there is replaced at the end. Raises OSError with what was there intact."""
    parts = (model.parameters, model.others)
    write_npz(
        path,
        {name: plain(bits(one)) for part in parts for name, one in zip(part.names, part.arrays, strict=True)},
    )


def plain(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return an array in a type that NumPy itself has: bfloat16 and its like as float32, which has all of their bits."""
    return array if array.dtype.isbuiltin == 1 else array.astype(np.float32)
