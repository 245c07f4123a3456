"""What training has made of the tables, as the result of a job is written from it: in blocks, because tables may be larger than memory.

Where it comes from, servers or a checkpoint, is not known here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np
import numpy.typing as npt

BLOCK = 8 << 20
"""Bytes of the rows that are in hand together; on their way from a server they are there a few times."""


class TableReader(Protocol):
    """The tables of a catalog, by number."""

    def matrix(self, table: int, rows: int) -> Iterator[npt.NDArray[np.float32]]:
        """Yield the weights of the ids from 0 up to `rows`, in order, of shape [n, width]; what has not been trained is initial."""

    def trained(self, table: int) -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]]:
        """Yield the ids that have a row, each once, in no order, and their weights, of shapes [n] and [n, width]."""


def rows_of_block(width: int) -> int:
    """Return how many rows of `width` weights a block has."""
    return max(1, BLOCK // (4 * width))
