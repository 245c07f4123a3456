"""What a reader gives: the records of a chunk, one by one or as columns.

Columns are arrays of NumPy and not Arrow's: every framework takes those as they are, each knows types and shapes, and picking 64 records
of them copies numbers only. A chunk is never large, so nothing is gained by keeping it in Arrow's form.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # masters open data and read no record
    import numpy.typing as npt


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """Records of a table, column by column.

    Attributes:
        count: number of records, of which there is at least one.
        arrays: of each column by its name, an array with the records along the first dimension: numbers or truth values of shape [count],
            objects (`str` or `bytes`) of shape [count], vectors of one length n of shape [count, n]. Vectors of different lengths are
            objects of shape [count], each an array of one dimension; of two, if they are vectors of vectors of one length.
    """

    count: int
    arrays: Mapping[str, npt.NDArray[Any]]

    def __len__(self) -> int:
        return self.count


Records = Sequence[Any] | Columns
"""Raw records of one chunk: bytes each, lists of strings (rows of text), or columns."""


def picked(records: Records, indices: Sequence[int]) -> Records:
    """Return these of the records, in this order."""
    if not isinstance(records, Columns):
        return [records[index] for index in indices]
    rows = list(indices)
    return Columns(len(rows), {name: array[rows] for name, array in records.arrays.items()})
