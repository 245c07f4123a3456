"""Looking for NaN and infinity in what was computed, cheaply."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


def all_finite(values: npt.NDArray[Any]) -> bool:
    """Tell whether an array has no NaN and no infinity."""
    # a sum of finite numbers is finite nearly always: the exact look is for the rest
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.isfinite(np.add.reduce(values)) or np.isfinite(values).all())
