"""Arrays are looked at for NaN and infinity, whatever their type and strides."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from elasticdl import _core
from elasticdl.worker.finite import all_finite


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("size", [1, 255, 20_001])
def test_one_number_is_found(kind: npt.DTypeLike, size: int, wrong: float) -> None:
    largest: Any = np.finfo(kind).max
    values = np.full((2, size), largest, kind)
    values.flags.writeable = False
    assert all_finite(values)
    for place in (0, size // 2, size - 1):
        changed = values.copy()
        changed[1, place] = wrong
        assert not all_finite(changed)
        assert not all_finite(changed.T)
        assert all_finite(changed[:, :0])


def test_the_core_takes_no_other_arrays() -> None:
    with pytest.raises(TypeError, match="items of the format"):
        _core.all_finite(np.zeros(3, np.int32).data)
    with pytest.raises(ValueError, match="values must be C-contiguous"):
        _core.all_finite(np.zeros((3, 4), np.float32).T.data)
