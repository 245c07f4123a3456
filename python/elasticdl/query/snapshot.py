"""A query's rows as files that a job reads: asked once, so that all workers, and all their lives, have the same rows.

Rows stream to raw parts with the types that the database gave them. Then DuckDB gives all parts one type for each column and, for training,
shuffles by a hash of the row's number, since tables are often sorted, and sets rows apart for validation. Row groups are small: each is a
shard, of which tasks are cut, and to decode one for a task takes a millisecond or two.

A snapshot is whole or not there; rows are counted at each stage.
"""

from __future__ import annotations

import errno
import shutil
from base64 import b64decode, b64encode
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet

from elasticdl.errors import BadData, JobFailed, Unwritable
from elasticdl.files.permissions import PRIVATE_FOLDER
from elasticdl.job.progress import Progress
from elasticdl.query.columns import for_model, selected, unified
from elasticdl.query.duckdb import SETTINGS
from elasticdl.query.parts import RawParts, streamed
from elasticdl.query.results import is_full
from elasticdl.query.source import ROWS, Params, Source
from elasticdl.spec.databases import as_written, text

_LARGEST_GROUP, _SMALLEST_GROUP = 8192, 128
"""Rows of a row group."""
_GROUPS = 64
"""Row groups that a small table has at least, or no worker of many would have anything to do."""
_COPIED_GROUP = 2048
"""Rows of the smallest group that DuckDB writes by itself."""
FEWEST_TO_VALIDATE = 200
"""With fewer rows in all none is set apart: what so few say of a model is chance."""
_MEMORY = "2GB"
"""For the shuffle; what does not fit goes to the disk, beside the snapshot."""


def row_group(rows: int) -> int:
    """Return how many rows a group has, of which no task is less: a power of two."""
    fitting = 1 << max(rows // _GROUPS, 1).bit_length() - 1
    return min(max(fitting, _SMALLEST_GROUP), _LARGEST_GROUP)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Files of a query's rows.

    Attributes:
        directory: all of it, for this user alone.
        training: a directory with the rows that are trained on, or predicted.
        validation: one with those set apart, None if none are.
        schema: the columns with the types that the database gave them; what is in the files, `columns.for_model` says.
        rows: that the database gave.
        training_rows: how many of them are in `training`.
        validation_rows: how many are in `validation`.
    """

    directory: Path
    training: Path
    validation: Path | None
    schema: pa.Schema
    rows: int
    training_rows: int
    validation_rows: int

    def to_json(self) -> dict[str, Any]:
        """Return what is known of the files, as JSON has it."""
        return {
            "directory": str(self.directory),
            "validates": self.validation is not None,
            "schema": b64encode(self.schema.serialize().to_pybytes()).decode(),
            "rows": self.rows,
            "training_rows": self.training_rows,
            "validation_rows": self.validation_rows,
        }

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Snapshot:
        """Read what `to_json` wrote."""
        directory = Path(body["directory"])
        return cls(
            directory,
            directory / "training",
            directory / "validation" if body["validates"] else None,
            pa.ipc.read_schema(pa.BufferReader(b64decode(body["schema"]))),
            body["rows"],
            body["training_rows"],
            body["validation_rows"],
        )

    def selected(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a snapshot for prediction as the database gave them, in its order; a batch at least."""
        schema = pa.schema(
            [(one.name, pa.string() if pa.types.is_null(one.type) else one.type) for one in self.schema]
        )
        yield pa.RecordBatch.from_pylist([], schema)
        with closing(duckdb.connect(config=SETTINGS)) as database:
            for part in sorted((self.directory / "raw").iterdir()):
                there = pyarrow.parquet.read_schema(part).types
                columns = map(selected, self.schema.names, there, self.schema.types)
                asked = f"SELECT {', '.join(columns)} FROM read_parquet({text(str(part))})"
                for batch in database.sql(asked).to_arrow_reader(ROWS):
                    yield batch.cast(schema)


def take(
    source: Source,
    select: str,
    params: Params = (),
    *,
    directory: Path,
    seed: int,
    label: str | None = None,
    fraction: float = 0.1,
    training: bool = True,
    numbers: Collection[str] = (),
) -> Snapshot:
    """Run a query once, and keep its rows in a new directory.

    Args:
        source: the database.
        select: the query, as it is sent.
        params: values for its placeholders.
        directory: made here; nothing is left of it after an error.
        seed: of the shuffle.
        label: the column that no row may lack.
        fraction: of the rows, which are set apart for validation.
        training: shuffle, and set rows apart; otherwise they stay in their order.
        numbers: names of columns that were numbers in the training, if these are rows for a model.

    Raises BadData, DatabaseRefused, Unwritable, JobFailed.
    """
    with _room(directory):
        raw_directory = directory / "raw"
        raw_directory.mkdir(PRIVATE_FOLDER)
        batches = _Counted(source.rows(select, params))
        with Progress("rows read", None, ask=lambda: batches.rows):
            raw = streamed(iter(batches), raw_directory)
        if not raw.rows:
            raise BadData("the SELECT gives no rows")
        if label is not None:
            _check_label(raw, label)
        names = raw.schemas[0].names
        kinds = [unified(name, [part.types[at] for part in raw.schemas]) for at, name in enumerate(names)]
        schema = pa.schema(list(zip(names, kinds, strict=True)))
        apart = int(raw.rows * fraction + 0.5) if training and raw.rows >= FEWEST_TO_VALIDATE else 0
        if apart == raw.rows:
            raise BadData(
                f"validation.fraction={fraction} sets all {raw.rows:,} rows apart, and leaves none to train on; make it smaller"
            )
        with closing(_opened(directory / "spill")) as database:
            rows = _Rows(database, raw, schema, seed, numbers)
            with Progress(
                "rows shuffled and written" if training else "rows written", raw.rows, ask=rows.written
            ):
                validated, trained = (
                    rows.parted(directory, apart) if training else (0, rows.all(directory / "training"))
                )
        shutil.rmtree(directory / "spill", ignore_errors=True)
        if trained + validated != raw.rows:
            raise JobFailed(
                f"the database gave {raw.rows:,} rows, and the snapshot has {trained:,} + {validated:,}; is the disk in order? "
                f"({directory.parent})"
            )
        if training:
            shutil.rmtree(raw_directory)
        apart_directory = directory / "validation" if apart else None
        return Snapshot(
            directory, directory / "training", apart_directory, schema, raw.rows, trained, validated
        )


@contextmanager
def _room(directory: Path) -> Iterator[None]:
    """Make the directory, and remove it after an error. Raises Unwritable for what the disk does not take."""
    try:
        directory.mkdir(PRIVATE_FOLDER, parents=True)
        yield
    except BaseException as error:
        shutil.rmtree(directory, ignore_errors=True)
        what = f"the rows of the SELECT can't be written to {directory.parent}"
        then = "try again, or name another place: --store"
        if isinstance(error, duckdb.Error) and is_full(str(error)):
            full = OSError(errno.ENOSPC, "no space left on its disk")
            raise Unwritable(what, full, then) from error
        if isinstance(error, OSError):
            raise Unwritable(what, error, then) from error
        raise


def _opened(spill: Path) -> Any:
    database = duckdb.connect(config={**SETTINGS, "memory_limit": _MEMORY})
    database.execute(f"SET temp_directory = {text(str(spill))}")
    database.execute("SET enable_progress_bar = true")  # or it does not tell how far a query is
    database.execute("SET enable_progress_bar_print = false")
    return database


def _check_label(raw: RawParts, label: str) -> None:
    nulls = raw.nulls.get(label)
    if nulls is None:
        raise BadData(f"the SELECT gives no column {label!r}; it gives {', '.join(raw.nulls)}"[:1000])
    if nulls == raw.rows:
        raise BadData(f"no row has a value of the label {label}: the column is null in all {raw.rows:,} rows")
    if nulls:
        raise BadData(
            f"{nulls:,} of {raw.rows:,} rows have no {label}; add WHERE {as_written(label)} IS NOT NULL, or predict those"
        )


def _shown(schema: pa.Schema) -> str:
    return ", ".join(f"{one.name} ({one.type})" for one in schema)


class _Counted:
    """Batches of a query, and how many rows there have been."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches = batches
        self.rows = 0

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for batch in self._batches:
            yield batch
            self.rows += batch.num_rows


class _Rows:
    """The rows of all parts as one view of DuckDB, each with its number from 0."""

    def __init__(
        self, database: Any, raw: RawParts, schema: pa.Schema, seed: int, numbers: Collection[str]
    ) -> None:
        """Raises BadData if a model takes none of the columns."""
        self._database = database
        self._count = raw.rows
        self._written = self._under_way = 0
        names = schema.names
        number = "elasticdl_row"
        while number in map(str.lower, names):
            number += "_"
        self._number = number
        self._hash = f"hash({number}, {seed})"
        found = (
            for_model(name, kind, raw.nulls[name] > 0, name in raw.inner_nulls, is_number=name in numbers)
            for name, kind in zip(names, schema.types, strict=True)
        )
        self._columns = [column for column in found if column is not None]
        if not self._columns:
            raise BadData(f"a model takes none of the columns of the SELECT: {_shown(schema)}"[:1000])
        parts, before = [], 0
        for file, there, count in zip(raw.files, raw.schemas, raw.counts, strict=True):
            columns = ", ".join(map(selected, names, there.types, schema.types))
            parts.append(
                f"SELECT file_row_number + {before} AS {number}, {columns} FROM read_parquet({text(str(file))}, file_row_number = true)"
            )
            before += count
        self._from = " UNION ALL ".join(parts)

    def parted(self, directory: Path, apart: int) -> tuple[int, int]:
        """Write all rows shuffled, so many of them `apart`, and return the numbers of these and of the others."""
        order = f"ORDER BY {self._hash}"
        if not apart:
            return 0, self._copied(directory / "training", order, self._count)
        first = self._hash_after(apart)
        validated = self._copied(directory / "validation", f"WHERE {self._hash} < {first} {order}", apart)
        others = self._count - apart
        return validated, self._copied(
            directory / "training", f"WHERE {self._hash} >= {first} {order}", others
        )

    def all(self, directory: Path) -> int:
        """Write all rows in their order."""
        return self._copied(directory, "", self._count)

    def written(self) -> int:
        """Return about how many rows are in their files, while another thread writes them."""
        percent = max(0.0, self._database.query_progress())
        return self._written + int(self._under_way * percent / 100)

    def _hash_after(self, apart: int) -> int:
        """Return the hash that so many rows are below; two of 64 bits are the same once in millions of tables."""
        ((first,),) = self._database.execute(
            f"SELECT {self._hash} AS first FROM range({self._count}) AS numbers({self._number}) ORDER BY first LIMIT 1 OFFSET {apart}"
        ).fetchall()
        return int(first)

    def _copied(self, directory: Path, tail: str, expected: int) -> int:
        directory.mkdir(PRIVATE_FOLDER)
        self._under_way = expected
        rows = self._to_file(directory / "rows.parquet", tail)
        self._written, self._under_way = self._written + rows, 0
        return rows

    def _to_file(self, file: Path, tail: str) -> int:
        group = row_group(self._count)
        asked = f"SELECT {', '.join(self._columns)} FROM ({self._from}) {tail}"
        if group < _COPIED_GROUP:
            rows = self._database.sql(asked).to_arrow_table()
            pyarrow.parquet.write_table(rows, file, row_group_size=group)
            return int(rows.num_rows)
        ((count,),) = self._database.execute(
            f"COPY ({asked}) TO {text(str(file))} (FORMAT parquet, ROW_GROUP_SIZE {group})"
        ).fetchall()
        return int(count)
