"""What training has made of the tables, pulled from the servers block by block."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from elasticdl.catalog.catalog import Catalog
from elasticdl.catalog.tablereader import rows_of_block

Ids = npt.NDArray[np.int64]
Read = Callable[[int, Ids], npt.NDArray[np.float32]]
List = Callable[[int, int, int], Ids]

_SLOTS = 8
"""Slots of which ids are listed together."""


class ServerTableReader:
    """Implements `elasticdl.catalog.tablereader.TableReader`."""

    def __init__(self, catalog: Catalog, read: Read, listing: List) -> None:
        """`read` pulls rows of a table by their ids, `listing` the ids of a table in slots from, to; what they raise goes through."""
        self._catalog = catalog
        self._read = read
        self._list = listing

    def matrix(self, table: int, rows: int) -> Iterator[npt.NDArray[np.float32]]:
        """Yield the weights of the ids from 0 up to `rows`: servers answer initial ones for what has not been trained."""
        many = rows_of_block(self._catalog.tables[table].width)
        for start in range(0, rows, many):
            yield self._read(table, np.arange(start, min(start + many, rows)))

    def trained(self, table: int) -> Iterator[tuple[Ids, npt.NDArray[np.float32]]]:
        """Yield the ids that servers have a row of, and their weights."""
        many, slots = rows_of_block(self._catalog.tables[table].width), self._catalog.slots
        for first in range(0, slots, _SLOTS):
            listed = self._list(table, first, min(first + _SLOTS, slots))
            for start in range(0, len(listed), many):
                ids = listed[start : start + many]
                yield ids, self._read(table, ids)
