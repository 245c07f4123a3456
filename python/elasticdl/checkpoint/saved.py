"""What a checkpoint has of tables and variables, without servers and without the optimizer's state, within bounded memory.

A slot has rows of ids that lie anywhere in a table. So rows are sorted first into files beside what is being written, each of as many ids
as a block has, and a block is then put together from one of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from elasticdl.catalog.catalog import Catalog
from elasticdl.catalog.tablereader import rows_of_block
from elasticdl.checkpoint.manifest import Manifest
from elasticdl.errors import BadData

if TYPE_CHECKING:
    from elasticdl._core import Catalog as CoreCatalog

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]

_HELD = 32 << 20
"""Bytes of rows that are sorted together."""


def core_of(manifest: Manifest, catalog: Catalog) -> CoreCatalog:
    """Return the model of a checkpoint as the core takes it. Raises BadData for one that it does not know."""
    try:
        return catalog.core()
    except ValueError as error:
        folder = manifest.sections[0][0].parent
        raise BadData(f"{folder}: the checkpoint's model can't be used: {error}") from None


def contents(
    manifest: Manifest, core: CoreCatalog
) -> Iterator[tuple[list[tuple[Ids, Floats]], dict[int, Floats]]]:
    """Yield of each slot the ids that have a row and their weights, flat, table by table, and the variables that have a value, flat.

    Raises BadData if a slot is damaged.
    """
    for file, section in manifest.sections:
        place = (section.offset, section.length, section.crc)
        try:
            tables, variables = core.read_slot(str(file), section.slot, place)
        except ValueError as error:
            raise BadData(f"the checkpoint can't be read: {error}") from None
        yield (
            [(np.frombuffer(ids, np.int64), np.frombuffer(rows, np.float32)) for ids, rows in tables],
            {variable: np.frombuffer(value, np.float32) for variable, value in variables},
        )


def check_values(catalog: Catalog, values: Collection[int], checkpoint: str) -> None:
    """Look whether all variables have a value. Raises BadData."""
    missing = [one.name for number, one in enumerate(catalog.variables) if number not in values]
    if missing:
        raise BadData(
            f"{checkpoint}: the checkpoint has no value of {', '.join(missing)}: nothing had been trained"
        )


class Saved:
    """Implements `elasticdl.catalog.tablereader.TableReader`."""

    def __init__(self, manifest: Manifest, room: Path, rows: Mapping[int, int]) -> None:
        """Read all slots once. Raises BadData if one is damaged, or a table has ids beyond its matrix; OSError for a full disk.

        Args:
            manifest: of the checkpoint.
            room: an empty directory for as much as the rows take.
            rows: of those tables that will be read as a matrix, how many it has.
        """
        self.catalog = Catalog.from_json(manifest.model)
        self.values: dict[int, Floats] = {}
        """Of variables that have one, by number, flat."""
        self._core = core_of(manifest, self.catalog)
        self._room = room
        self._rows = rows
        self._held: dict[int, list[npt.NDArray[np.void]]] = {}
        self._bytes = 0
        for tables, variables in contents(manifest, self._core):
            self.values.update(variables)
            for table, (ids, weights) in enumerate(tables):
                self._take(table, ids, weights)
        self._sort()

    def matrix(self, table: int, rows: int) -> Iterator[Floats]:
        """Yield the weights of the ids from 0 up to `rows`."""
        width = self.catalog.tables[table].width
        many = rows_of_block(width)
        for start in range(0, rows, many):
            ids = np.arange(start, min(start + many, rows))
            block = np.frombuffer(self._core.initial(table, ids.data), np.float32).reshape(-1, width)
            path = self._path(table, start // many)
            if path.exists():
                trained = np.fromfile(path, self._type(table))
                block[trained["id"] - start] = trained["weights"]
            yield block

    def trained(self, table: int) -> Iterator[tuple[Ids, Floats]]:
        """Yield the ids that have a row and their weights."""
        many, kind = rows_of_block(self.catalog.tables[table].width), self._type(table)
        for path in sorted(self._room.glob(f"{table}-*")):
            with open(path, "rb") as file:
                while len(trained := np.fromfile(file, kind, many)):
                    yield np.ascontiguousarray(trained["id"]), np.ascontiguousarray(trained["weights"])

    def _type(self, table: int) -> np.dtype[np.void]:
        return np.dtype([("id", np.int64), ("weights", np.float32, (self.catalog.tables[table].width,))])

    def _path(self, table: int, number: int) -> Path:
        return self._room / f"{table}-{number}"

    def _take(self, table: int, ids: Ids, weights: Floats) -> None:
        if not len(ids):
            return
        most = self._rows.get(table)
        if most is not None and not 0 <= ids.min() <= ids.max() < most:
            raise BadData(
                f"the checkpoint has the ids {ids.min()} to {ids.max()} in the table {self.catalog.tables[table].name}, and the model's "
                f"embedding 0 to {most - 1}; is it the model that was trained?"
            )
        rows = np.empty(len(ids), self._type(table))
        rows["id"], rows["weights"] = ids, weights.reshape(len(ids), -1)
        self._held.setdefault(table, []).append(rows)
        self._bytes += rows.nbytes
        if self._bytes >= _HELD:
            self._sort()

    def _sort(self) -> None:
        """Append what is held to the files where it belongs."""
        for table, held in self._held.items():
            rows = np.concatenate(held)
            many = rows_of_block(self.catalog.tables[table].width)
            numbers = rows["id"] // many if table in self._rows else np.zeros(len(rows), np.int64)
            order = np.argsort(numbers, kind="stable")
            ends = np.flatnonzero(np.diff(numbers[order])) + 1
            for group in np.split(order, ends):
                with open(self._path(table, int(numbers[group[0]])), "ab") as file:
                    rows[group].tofile(file)
        self._held.clear()
        self._bytes = 0
