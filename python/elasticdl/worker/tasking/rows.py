"""Predictions as the rows of a table: one for each record, with where that lies.

Numbers of one record are a column of numbers, vectors of one length a column of lists of that length; CSV has no lists, so there each
number of a vector is a column, `NAME_0`, `NAME_1`, ….
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

SHARD, RECORD = "shard", "record"
"""Columns that say which record a row is of."""


def table(
    shard: str,
    records: Sequence[int],
    good: Sequence[bool],
    kept: Mapping[str, npt.NDArray[Any]],
    predicted: Mapping[str, npt.NDArray[Any]],
    flat: bool,
) -> pa.Table:
    """Return the rows of a minibatch.

    Args:
        shard: name of the records' shard.
        records: their numbers in it.
        good: of each, whether it could be read; others have rows of nulls.
        kept: columns of the data, of the records that could be read.
        predicted: what the model gives, for the same.
        flat: vectors become several columns.
    """
    places = np.cumsum(good) - 1
    rows = pa.array([int(place) if ok else None for place, ok in zip(places, good, strict=True)], pa.int64())
    columns: dict[str, pa.Array] = {
        SHARD: pa.array([shard] * len(records), pa.string()),
        RECORD: pa.array(list(records), pa.int64()),
    }
    for name, array in {**kept, **predicted}.items():
        parts = _flattened(name, array) if flat else {name: array}
        columns |= {part: _column(values).take(rows) for part, values in parts.items()}
    return pa.table(columns)


def _flattened(name: str, array: npt.NDArray[Any]) -> dict[str, npt.NDArray[Any]]:
    """Return a column for each number of a record: one of itself, if there is only one."""
    matrix = array.reshape(len(array), math.prod(array.shape[1:]))
    if array.ndim == 1 or matrix.shape[1] == 1:
        return {name: matrix[:, 0]}
    return {f"{name}_{place}": matrix[:, place] for place in range(matrix.shape[1])}


def _column(array: npt.NDArray[Any]) -> pa.Array:
    if array.ndim > 1 and array.shape[-1] == 1 and array.size == len(array):
        array = array.reshape(len(array))
    if array.ndim == 1:
        return pa.array(array.tolist() if array.dtype == object else array)
    column = pa.array(np.ascontiguousarray(array).reshape(-1))
    for length in reversed(array.shape[1:]):
        column = pa.FixedSizeListArray.from_arrays(column, length)
    return column
