"""Files of tables: Parquet, by row groups, and Arrow (Feather), by record batches.

What is decoded together is a block, and no task of training splits one; so a worker decodes what its tasks need, once, and picks records
from it in any order. Decoding is pyarrow's, on the thread that asks: how many threads a worker has is the job's to say.
"""

from __future__ import annotations

import io
import os
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet

from elasticdl._core import fingerprint
from elasticdl.data.plan.shard import Task
from elasticdl.data.readers.blocks import Blocks, Piece
from elasticdl.data.readers.files import Kind
from elasticdl.data.readers.reader import BadRecords, Metadata
from elasticdl.data.readers.records import Records
from elasticdl.data.readers.tables import Decoded, TableForm, TableParams, corrupt
from elasticdl.errors import BadData

_OPEN_FILES = 128


class TableFile(Protocol):
    """An open file of a table."""

    schema: pa.Schema
    blocks: Sequence[int]
    """Records of what is decoded together, in order."""

    def read(self, block: int, columns: Sequence[str]) -> pa.Table:
        """Decode these columns of a block. Raises pyarrow.ArrowException or OSError."""


class _ParquetFile:
    def __init__(self, source: str | io.RawIOBase) -> None:
        # On a server each read is a request: those of a row group are put together.
        on_server = not isinstance(source, str)
        self._file = pyarrow.parquet.ParquetFile(
            source, page_checksum_verification=True, pre_buffer=on_server
        )
        self.schema = self._file.schema_arrow
        metadata = self._file.metadata
        self.blocks: Sequence[int] = [
            metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)
        ]

    def read(self, block: int, columns: Sequence[str]) -> pa.Table:
        return self._file.read_row_group(block, columns=list(columns), use_threads=False)


class _ArrowFile:
    """A file whose batches are copied from it as they are, compressed or not: mapped, it could be cut under our feet."""

    def __init__(self, source: str | io.RawIOBase) -> None:
        self._source = pa.OSFile(source) if isinstance(source, str) else pa.PythonFile(source)
        whole = pa.ipc.open_file(self._source)
        self.schema = whole.schema
        # How many rows a batch has is said by its own head only; one column of it is enough to see that.
        widths = [_width(column.type) for column in self.schema]
        file = self._with_columns([widths.index(min(widths))]) if widths else whole
        self.blocks: Sequence[int] = [
            file.get_batch(batch).num_rows for batch in range(file.num_record_batches)
        ]

    def read(self, block: int, columns: Sequence[str]) -> pa.Table:
        places = sorted(self.schema.get_field_index(name) for name in columns)
        batch = self._with_columns(places).get_batch(block)
        batch.validate(full=True)  # its offsets are as they were in the file
        return pa.Table.from_batches([batch])

    def _with_columns(self, places: list[int]) -> pa.ipc.RecordBatchFileReader:
        options = pa.ipc.IpcReadOptions(use_threads=False, included_fields=places)
        return pa.ipc.open_file(self._source, options=options)


class Source(Protocol):
    """Where the bytes of a file of a table are."""

    def fingerprint(self) -> str:
        """Return what names its present content. Raises BadData."""

    def opened(self) -> str | io.RawIOBase:
        """Return its path, or a file of which any part can be read. Raises BadData or OSError."""


@dataclass(frozen=True, slots=True)
class LocalFile:
    """A file of this machine."""

    path: Path

    def fingerprint(self) -> str:
        """Return what names its present content. Raises BadData."""
        return fingerprint(str(self.path))

    def opened(self) -> str | io.RawIOBase:
        """Return its path."""
        return str(self.path)


def _width(kind: pa.DataType) -> int:
    """Return how many bits a value has, many if that is not fixed."""
    try:
        return int(kind.bit_width)
    except ValueError:
        return 1 << 20


class TableReader:
    """Reads records of Parquet or Arrow files.

    Attributes:
        metadata: names and types of the columns.
        fingerprints: of each file that has content.
        block: records of the largest row group or batch.
    """

    def __init__(
        self,
        kind: Kind,
        sources: Mapping[str, Source],
        params: TableParams,
        records_per_task: int,
        bad_records: BadRecords,
        empty: Sequence[str] = (),
    ) -> None:
        """Open the files that have content, by their names; `empty` names those without. Raises BadData or BadSetting."""
        self._kind = kind
        self._sources = sources
        self._bad_records = bad_records
        self._open: OrderedDict[str, TableFile] = OrderedDict()
        self.fingerprints: dict[str, str] = {}
        first, *others = sources
        file = self._add(first)
        blocks = {first: file.blocks}
        for path in others:
            other = self._add(path)
            _check_columns((first, file.schema), (path, other.schema))
            blocks[path] = other.blocks
        self._form = TableForm(file.schema, params, first)
        self.metadata: Metadata = self._form.metadata
        self._blocks = Blocks(blocks, empty, records_per_task, self._decode)
        self.block = self._blocks.largest

    def create_shards(self) -> list[tuple[str, int, int]]:
        """Return ranges of the files, each of which has whole blocks however it is cut in tasks."""
        return self._blocks.shards()

    def read(self, task: Task, records: Sequence[int]) -> Records:
        """Return `records` of the task's file in the order asked, without bad ones if the policy allows them.

        Raises BadData.
        """
        path = task.shard.name
        decoded = self._blocks.decoded(path, task.start, task.end)
        rows = np.asarray(records, np.int64) - task.start
        if decoded.bad:
            bad = [(task.start + row, decoded.bad[row]) for row in rows.tolist() if row in decoded.bad]
            self._bad_records.allow(path, [(number, corrupt(path, number, what)) for number, what in bad])
        return decoded.records(rows)

    def _decode(self, path: str, pieces: Sequence[Piece]) -> Decoded:
        file, parts = self._file(path), []
        for piece in pieces:
            with _errors(self._kind, path, f"{_WORDS[self._kind]} {piece.block} (counted from 0)"):
                table = file.read(piece.block, self._form.schema.names)
                if len(table) != piece.records:
                    raise pa.ArrowInvalid(f"it has {len(table):,} records instead of {piece.records:,}")
                parts.append(table.slice(piece.start, piece.end - piece.start))
        with _errors(self._kind, path):
            decoded = self._form.decoded(pa.concat_tables(parts))
        if self._sources[path].fingerprint() != self.fingerprints[path]:
            raise BadData(
                f"{path} has changed since it was opened; data must not change while a job runs, start the job again"
            )
        return decoded

    def _add(self, path: str) -> TableFile:
        """Open a file for the first time."""
        self.fingerprints[path] = self._sources[path].fingerprint()
        file = self._file(path)
        if any(records < 0 for records in file.blocks):
            raise _damaged(self._kind, path, "", ValueError("a block has fewer than no records"))
        return file

    def _file(self, path: str) -> TableFile:
        if path in self._open:
            self._open.move_to_end(path)
            return self._open[path]
        with _errors(self._kind, path):
            source = self._sources[path].opened()
            file: TableFile = _ParquetFile(source) if self._kind is Kind.PARQUET else _ArrowFile(source)
        self._open[path] = file
        if len(self._open) > _OPEN_FILES:
            self._open.popitem(last=False)
        return file


_WORDS = {Kind.PARQUET: "row group", Kind.ARROW: "record batch"}


@contextmanager
def _errors(kind: Kind, path: str, where: str = "") -> Iterator[None]:
    """Raise BadData for what pyarrow says about a file."""
    try:
        yield
    except OSError as error:
        if error.errno is not None:
            raise BadData(f"can't read {path}: {os.strerror(error.errno)}") from error
        raise _damaged(kind, path, where, error) from error
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise _damaged(kind, path, where, error) from error


def _damaged(kind: Kind, path: str, where: str, error: Exception) -> BadData:
    what = f"the {where} of {path} can't be read" if where else f"{path} can't be read as a file of {kind}"
    reason = " ".join(str(error).split()).rstrip(".")
    return BadData(f"{what}: {reason[:300]}; was it cut or damaged? Copy or write it again")


def _check_columns(first: tuple[str, pa.Schema], other: tuple[str, pa.Schema]) -> None:
    """Raise BadData unless two files have the same columns."""
    one, two = ({column.name: str(column.type) for column in schema} for _, schema in (first, other))
    if first[1].names == other[1].names and one == two:
        return
    for name in [*one, *two]:
        if one.get(name) != two.get(name):
            there, here = ((columns.get(name) or "missing")[:80] for columns in (one, two))
            raise BadData(
                f"files of one data set need the same columns, but {name!r} is {there} in {first[0]} and {here} in {other[0]}"
            )
    raise BadData(
        f"files of one data set need the same columns in the same order, but {first[0]} has {', '.join(first[1].names)} and "
        f"{other[0]} has {', '.join(other[1].names)}"
    )
