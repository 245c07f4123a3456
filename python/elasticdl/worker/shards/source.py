"""What a program processes: numbers, a sequence, or records in files; opened by every worker, which finds the same."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from elasticdl.data.plan.loopplan import SHARD
from elasticdl.data.plan.shard import Shard, Task
from elasticdl.errors import BadData, BadSetting

if TYPE_CHECKING:
    from elasticdl.data.readers.patience import Patience
    from elasticdl.data.readers.reader import Reader

OTHER_ITEMS = (
    "elasticdl.shards: this worker's list has other items than that of the job's first worker, or has them in another order; every worker "
    "needs the same list. Sort what comes from a folder: os.listdir() and glob() return names in any order"
)


class Source(Protocol):
    """Records that can be read by their numbers."""

    @property
    def shards(self) -> tuple[Shard, ...]:
        """Return where they are."""

    def read(self, task: Task) -> Iterable[Any]:
        """Return the records of a task. Raises BadData."""

    def columns(self, task: Task) -> Mapping[str, Any]:
        """Return the records of a task as arrays by column. Raises BadData, BadSetting if records have no columns."""

    def check(self, shards: Sequence[Shard]) -> None:
        """Check that these shards, which the job knows, have the same content here. Raises BadData."""


@dataclass(frozen=True, slots=True)
class Room:
    """What reading files needs.

    Attributes:
        folder: for indexes.
        patience: with storage that does not answer.
    """

    folder: Path
    patience: Patience


class Numbers:
    """The records of a program that reads them itself, by their numbers."""

    def __init__(self, count: int, fingerprint: str = "") -> None:
        self.shards = (Shard(SHARD, 0, count, fingerprint=fingerprint),)

    def read(self, task: Task) -> Iterable[Any]:
        """Return numbers."""
        return range(task.start, task.end)

    def columns(self, task: Task) -> Mapping[str, Any]:
        """Refuse. Raises BadSetting."""
        raise BadSetting("task.columns: the records are no rows of a table; name files of one as the source")

    def check(self, shards: Sequence[Shard]) -> None:
        """Compare the fingerprints of items; numbers have none."""
        if [one.fingerprint for one in shards] != [one.fingerprint for one in self.shards]:
            raise BadData(OTHER_ITEMS)


class Items(Numbers):
    """The items of a sequence. Those of lists and tuples have a fingerprint; others may be slow to read, or change when they are read."""

    def __init__(self, items: Any) -> None:
        super().__init__(len(items), fingerprint_of(items) if isinstance(items, list | tuple) else "")
        self._items = items

    def read(self, task: Task) -> Iterable[Any]:
        """Return items, each when it is asked for."""
        return (self._items[place] for place in range(task.start, task.end))


class Files:
    """Records in files, by the readers that jobs with a model file have."""

    def __init__(self, reader: Reader) -> None:
        from elasticdl.data.readers.reader import shards_of

        self._reader = reader
        self.shards = shards_of(reader)

    def read(self, task: Task) -> Iterable[Any]:
        """Return records: bytes, rows of strings, or dictionaries from column to value."""
        from elasticdl.data.readers.records import Columns

        records = self._reader.read(task, list(range(task.start, task.end)))
        return _rows(records.arrays, len(records)) if isinstance(records, Columns) else records

    def columns(self, task: Task) -> Mapping[str, Any]:
        """Return columns; those of rows of strings are text, by the names that their file has for them."""
        from elasticdl.data.readers.records import Columns

        records = self._reader.read(task, list(range(task.start, task.end)))
        if isinstance(records, Columns):
            return records.arrays
        names = tuple(getattr(self._reader.metadata, "column_names", ()))
        if not names:
            raise BadSetting(
                "task.columns: the records have no columns with names; a CSV file has them with the parameter header=True"
            )
        return {name: np.array([row[place] for row in records], object) for place, name in enumerate(names)}

    def check(self, shards: Sequence[Shard]) -> None:
        """Compare the fingerprints of files."""
        from elasticdl.data.readers.reader import check_unchanged

        check_unchanged(self._reader, shards)


def fingerprint_of(items: Sequence[Any]) -> str:
    """Return a digest of names, numbers and bytes, in their order; of other items only their types are known to be the same everywhere."""
    total = hashlib.blake2b(digest_size=8)
    for one in items:
        total.update(_mark(one))
    return total.hexdigest()


def _mark(item: Any) -> bytes:
    if isinstance(item, list | tuple):
        return b"[" + b"".join(map(_mark, item)) + b"]"
    if isinstance(item, int):
        return hex(item).encode() + b","
    if item is None or isinstance(item, str | bytes | float | os.PathLike):
        return repr(item).encode() + b","
    return type(item).__qualname__.encode() + b","


def _rows(arrays: Mapping[str, Any], count: int) -> Iterator[dict[str, Any]]:
    for place in range(count):
        yield {name: array[place] for name, array in arrays.items()}


def open_source(source: Any, records_per_task: int, params: Mapping[str, Any], room: Room) -> Source:
    """Open what a program names.

    Args:
        source: a number of records, a sequence, or a path or URL of what readers read.
        records_per_task: of a full task.
        params: of the reader.
        room: what that needs.

    Raises BadSetting for anything else, BadData for data that can't be read.
    """
    if isinstance(source, str | os.PathLike):
        from elasticdl.data.readers.recordfiles import open_reader

        origin = os.fspath(source)
        patience = room.patience
        return Files(
            open_reader(origin, params, room.folder, records_per_task=records_per_task, patience=patience)
        )
    if params:
        raise BadSetting(
            "elasticdl.shards: reader_params is for files, whose path is the source; leave it out"
        )
    if isinstance(source, Integral) and not isinstance(source, bool):
        if source < 1:
            raise BadSetting(f"elasticdl.shards: there are no records: the source is the number {source}")
        return Numbers(int(source))
    if hasattr(source, "__len__") and hasattr(source, "__getitem__") and not isinstance(source, Mapping):
        if not len(source):
            raise BadSetting("elasticdl.shards: there are no records: the source is empty")
        return Items(source)
    raise BadSetting(
        "elasticdl.shards: the source is a number of records, a sequence with a length, or a path; received "
        f"{type(source).__name__}"
    )
