"""Looking for NaN and infinity in what was computed, cheaply."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from elasticdl._core import all_finite as all_finite_in_memory


def all_finite(values: npt.NDArray[Any]) -> bool:
    """Tell whether an array has no NaN and no infinity."""
    if values.dtype in (np.float32, np.float64) and values.flags.c_contiguous:
        return all_finite_in_memory(values.data)
    return bool(np.isfinite(values).all())
