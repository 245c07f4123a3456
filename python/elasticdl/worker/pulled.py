"""What training has made of the tables, pulled from the servers block by block."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from elasticdl.ps.catalog import Catalog
from elasticdl.ps.learnt import rows_of_block

Read = Callable[[int, npt.NDArray[np.int64]], npt.NDArray[np.float32]]


class Pulled:
    """Implements `elasticdl.ps.learnt.Learnt`."""

    def __init__(self, catalog: Catalog, read: Read) -> None:
        """`read` pulls rows of a table by their ids; what it raises goes through."""
        self._catalog = catalog
        self._read = read

    def matrix(self, table: int, rows: int) -> Iterator[npt.NDArray[np.float32]]:
        """Yield the weights of the ids from 0 up to `rows`: servers answer initial ones for what has not been trained."""
        many = rows_of_block(self._catalog.tables[table].width)
        for start in range(0, rows, many):
            yield self._read(table, np.arange(start, min(start + many, rows)))
