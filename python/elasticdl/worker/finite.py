"""Looking for NaN and infinity in what was computed, cheaply."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from elasticdl import _core


def all_finite(values: npt.NDArray[Any]) -> bool:
    """Tell whether an array has no NaN and no infinity."""
    if values.dtype in (np.float32, np.float64) and values.flags.c_contiguous:
        return _core.all_finite(values)
    return bool(np.isfinite(values).all())
