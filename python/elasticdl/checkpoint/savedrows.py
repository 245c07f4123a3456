"""Rows of a checkpoint of servers, looked up by their ids in bounded memory, however large the tables are.

Slots have their rows in no order. So each slot is read once, and its rows are sorted, by a number that follows from the id, into files of
this process. These have no name: nothing is left of them however the process ends. And the checkpoint is not needed any more, which a job
that is still training may remove. The files are mapped: the system keeps in memory what is looked up often, and gives it away when memory
is short.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np
import numpy.typing as npt

from elasticdl.catalog.catalog import Catalog
from elasticdl.checkpoint.manifest import Manifest
from elasticdl.checkpoint.saved import check_values, contents, core_of
from elasticdl.errors import Unwritable

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]
Keys = npt.NDArray[np.uint64]

_HELD = 32 << 20
"""Bytes of rows that are written together."""
_SORTED = 32 << 20
"""Bytes of rows that are sorted together, as far as parts are even."""
_MOST_PARTS = 1 << 16
_FACTOR = np.uint64(0x9E3779B97F4A7C15)
"""Odd, so that each id has a key of its own; ids that follow one another have keys far apart, so parts are even."""


class _Sorted(NamedTuple):
    """The rows of a table, in the order of their keys; `weights`: of shape [n, width]."""

    keys: Keys
    weights: Floats


class SavedRows:
    """What a checkpoint of servers has of a model, without the optimizer's state."""

    def __init__(self, manifest: Manifest, room: Path) -> None:
        """Read all slots once. Raises BadData if one is damaged or a variable has no value, Unwritable for a full disk.

        Args:
            manifest: of the checkpoint.
            room: a folder on a disk that has room for the rows twice, and later once.
        """
        self.folder = manifest.sections[0][0].parent
        self.catalog = Catalog.from_json(manifest.model)
        self.values: dict[int, Floats] = {}
        """Of all variables, by number, flat."""
        self._core = core_of(manifest, self.catalog)
        rows = sum(section.rows for _, section in manifest.sections)
        try:
            room.mkdir(parents=True, exist_ok=True)
            spools = [_Spool(table.width, rows, room) for table in self.catalog.tables]
            for tables, variables in contents(manifest, self._core):
                self.values.update(variables)
                for spool, (ids, weights) in zip(spools, tables, strict=True):
                    spool.take(ids, weights)
            self._tables = [spool.sorted() for spool in spools]
        except OSError as error:
            raise Unwritable(
                f"the rows of {self.folder} can't be written to {room}, where they are looked up",
                error,
                "start the job again",
            ) from error
        check_values(self.catalog, self.values, str(self.folder))

    def rows(self, table: int, ids: Ids) -> Floats:
        """Return the weights of ids, of shape [n, width]; those of an id without a row are initial, as servers answer and exports have."""
        keys, weights = self._tables[table]
        found = np.empty((len(ids), self.catalog.tables[table].width), np.float32)
        wanted = _keys(ids)
        order = np.argsort(wanted)  # pages are visited in one direction
        places = np.searchsorted(keys, wanted[order])
        there = np.zeros(len(ids), np.bool_)
        if len(keys):
            there = keys[np.minimum(places, len(keys) - 1)] == wanted[order]
        found[order[there]] = weights[places[there]]
        missing = order[~there]
        if len(missing):
            initial = self._core.initial(table, np.ascontiguousarray(ids[missing]).data)
            found[missing] = np.frombuffer(initial, np.float32).reshape(len(missing), -1)
        return found


class _Spool:
    """The rows of a table on their way into order: first into parts of neighbouring keys, then each part is sorted."""

    def __init__(self, width: int, rows: int, room: Path) -> None:
        """`rows`: as many as there are at most."""
        self._kind = np.dtype([("key", np.uint64), ("weights", np.float32, (width,))])
        self._width, self._room = width, room
        self._parts = min(_MOST_PARTS, max(1, -(-rows * self._kind.itemsize // _SORTED)))
        self._file = _nameless(room)
        self._pieces: list[list[tuple[int, int]]] = [[] for _ in range(self._parts)]
        """Of each part, where its rows lie in the file: the first one's number, and how many."""
        self._written = 0
        self._held: list[npt.NDArray[np.void]] = []
        self._bytes = 0

    def take(self, ids: Ids, weights: Floats) -> None:
        """Take some rows."""
        if not len(ids):
            return
        rows = np.empty(len(ids), self._kind)
        rows["key"], rows["weights"] = _keys(ids), weights.reshape(len(ids), self._width)
        self._held.append(rows)
        self._bytes += rows.nbytes
        if self._bytes >= _HELD:
            self._write()

    def _write(self) -> None:
        rows = np.concatenate(self._held)
        # the upper 16 bits are enough for as many parts, and the product does not overflow
        numbers = (rows["key"] >> np.uint64(48)) * np.uint64(self._parts) >> np.uint64(16)
        order = np.argsort(numbers, kind="stable")
        rows[order].tofile(self._file)
        ends = np.searchsorted(numbers[order], np.arange(self._parts + 1, dtype=np.uint64)).tolist()
        for pieces, first, end in zip(self._pieces, ends, ends[1:], strict=False):
            if first < end:
                pieces.append((self._written + first, end - first))
        self._written += len(rows)
        self._held, self._bytes = [], 0

    def sorted(self) -> _Sorted:
        """Return all rows in order; nothing may be taken afterwards."""
        if self._held:
            self._write()
        keys, weights = _nameless(self._room), _nameless(self._room)
        for pieces in self._pieces:
            if not pieces:
                continue
            part = np.concatenate([self._piece(first, count) for first, count in pieces])
            part = part[np.argsort(part["key"])]
            np.ascontiguousarray(part["key"]).tofile(keys)
            np.ascontiguousarray(part["weights"]).tofile(weights)
        self._file.close()
        if not self._written:
            return _Sorted(np.empty(0, np.uint64), np.empty((0, self._width), np.float32))
        return _Sorted(
            np.memmap(keys, np.uint64, "r", shape=(self._written,)),
            np.memmap(weights, np.float32, "r", shape=(self._written, self._width)),
        )

    def _piece(self, first: int, count: int) -> npt.NDArray[np.void]:
        self._file.seek(first * self._kind.itemsize)
        return np.fromfile(self._file, self._kind, count)


def _nameless(room: Path) -> IO[bytes]:
    return tempfile.TemporaryFile(dir=room)


def _keys(ids: Ids) -> Keys:
    return ids.view(np.uint64) * _FACTOR
