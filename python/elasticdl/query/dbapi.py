"""Databases behind Python's DB-API: SQLite by Python's own driver.

Its values have types of their own, so types are those of the values of a batch, and two batches may differ.
"""

from __future__ import annotations

import errno
import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from elasticdl.errors import BadData, BadSetting, Unwritable
from elasticdl.query.columns import array_of
from elasticdl.query.newfile import check_file, whole_or_none
from elasticdl.query.results import full_disk, is_full, refuse_existing, refuse_view, written
from elasticdl.query.source import ROWS, DatabaseRefused, Into, Params
from elasticdl.spec.databases import quoted, quoted_table, without_password
from elasticdl.spec.readers import database_file

_LOOKED_AT = 100
"""Rows from which types are inferred before a query is run as a whole."""
_LOCK_MILLISECONDS = 60_000
"""How long a file may be locked by another process when results are written to it."""


def batch_of(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> pa.RecordBatch:
    """Return rows as a batch, with the types of their values. Raises BadData."""
    columns = list(zip(*rows, strict=True)) or [()] * len(names)
    arrays = [array_of(name, values) for name, values in zip(names, columns, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names=list(names))


class SQLiteSource:
    """A file of SQLite, for `Source`."""

    dialect = "sqlite"

    def __init__(self, database: object, is_new: bool = False) -> None:
        """`database`: a URL, or a connection, which stays open; `is_new`: the first statement makes the file if it is not there.

        Raises BadSetting.
        """
        is_url = isinstance(database, str)
        self._given = None if is_url else database
        self._file = database_file(str(database)) if is_url else ""
        self.name = without_password(str(database)) if is_url else "the connection to SQLite"
        if is_url:
            check_file(self.name, self._file, self.dialect, is_new=is_new)
        self._connection: Any = None

    def schema(self, select: str, params: Params = ()) -> pa.Schema:
        """Return names of the columns of a query, and types of its first values. Raises DatabaseRefused."""
        with self._errors():
            cursor = self._ask(select, params)
            schema = batch_of(_names(cursor), cursor.fetchmany(_LOOKED_AT)).schema
            cursor.close()
            return schema

    def rows(self, select: str, params: Params = ()) -> Iterator[pa.RecordBatch]:
        """Run a query, and yield its rows. Raises DatabaseRefused, BadData."""
        with self._errors():
            cursor = self._ask(select, params)
            names = _names(cursor)
            yield batch_of(names, cursor.fetchmany(ROWS))
            while block := cursor.fetchmany(ROWS):
                yield batch_of(names, block)

    def run(self, text: str, params: Params = ()) -> pa.Table | None:
        """Do what another statement says. Raises DatabaseRefused."""
        with self._errors(), whole_or_none(self._file, self.close):
            cursor = self._ask(text, params, mode="rwc")
            if cursor.description is None:
                if self._given is not None:
                    self._connected().commit()
                return None
            return pa.Table.from_batches([batch_of(_names(cursor), cursor.fetchall())])

    def check(self, table: str, mode: Into) -> None:
        """Raise BadSetting if results can't go to a table."""
        kinds = [kind for kind, _ in self._described(table)]
        if "view" in kinds:
            raise refuse_view(table, self.name)
        if kinds and mode is Into.NEW:
            raise refuse_existing(table, self.name)

    def comment(self, table: str) -> str:
        """Return the comment in the statement that made a table: nothing is kept of appending to it. Raises DatabaseRefused."""
        for _, statement in self._described(table):
            _, _, rest = statement.partition("/* ")
            return rest.partition(" */")[0]
        return ""

    def _described(self, table: str) -> list[tuple[str, str]]:
        *above, name = table.split(".")
        master = f"{quoted(above[-1])}.sqlite_master" if above else "sqlite_master"
        asked = f"SELECT type, sql FROM {master} WHERE lower(name) = lower(?) AND type <> 'index'"
        with self._errors():
            return [(str(kind), str(sql)) for kind, sql in self._ask(asked, (name,))]

    def write(self, table: str, rows: Iterator[pa.RecordBatch], mode: Into, comment: str) -> int:
        """Write rows into a table in one transaction. Raises what `Source.write` says."""
        with self._errors(table):
            if self._given is None:
                # What a whole job has made is worth a longer wait than a query is.
                self._connected().execute(f"PRAGMA busy_timeout = {_LOCK_MILLISECONDS}")
            self.check(table, mode)
            return written(_Target(self._connected(), table, comment), rows, mode, comment)

    def close(self) -> None:
        """End the connection, unless it was given."""
        if self._connection is not None and self._given is None:
            self._connection.close()
        self._connection = None

    def _connected(self, mode: str = "rw") -> Any:
        if self._connection is None:
            uri = f"{Path(self._file).absolute().as_uri()}?mode={mode}"
            self._connection = self._given or sqlite3.connect(uri, uri=True, isolation_level=None)
        return self._connection

    def _ask(self, text: str, params: Params, mode: str = "rw") -> Any:
        """Send a statement; `mode`: of the file, `rwc` makes one that is not there."""
        cursor = self._connected(mode).cursor()
        cursor.row_factory = None
        return cursor.execute(text, params)

    @contextmanager
    def _errors(self, table: str = "") -> Iterator[None]:
        """Raise what SQLite says as our own errors; `table`: into which rows are written."""
        try:
            yield
        except sqlite3.Error as error:
            reason = " ".join(str(error).split())[:1000]
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                raise BadSetting(
                    f"--database: {self.name} is being written by another process; wait for it, or end it, and try again"
                ) from error
            if table and is_full(reason):
                raise full_disk(table) from error
            if table and code == sqlite3.SQLITE_IOERR:
                disk = OSError(errno.EIO, reason)
                raise Unwritable(f"the table {table} can't be written", disk, "try again") from error
            raise DatabaseRefused(self.name, reason) from error
        except OverflowError as error:
            raise BadData(
                f"{self.name}: SQLite has no integers of more than 64 bits; CAST them to TEXT in the SELECT"
            ) from error


def _names(cursor: Any) -> list[str]:
    return [column[0] for column in cursor.description or ()]


_TYPES = {
    pa.bool_(): "INTEGER",
    **dict.fromkeys((pa.int8(), pa.int16(), pa.int32(), pa.int64()), "INTEGER"),
    **dict.fromkeys((pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()), "INTEGER"),
    pa.float32(): "REAL",
    pa.float64(): "REAL",
    pa.binary(): "BLOB",
    pa.string(): "TEXT",
}


def _type_of(kind: pa.DataType) -> str:
    return "NUMERIC" if pa.types.is_decimal(kind) else _TYPES.get(kind, "TEXT")


def _value(value: Any) -> Any:
    """Return a value of a type that SQLite has not: lists are JSON, dates and times as its own functions write them."""
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, list | dict | tuple):
        return json.dumps(value, ensure_ascii=False, default=str)
    return value.isoformat(" ") if isinstance(value, datetime) else str(value)


class _Target:
    """A table of SQLite, for `Target`. It has no comments on tables, but keeps those in the statement that made one."""

    def __init__(self, connection: sqlite3.Connection, table: str, comment: str) -> None:
        self._connection = connection
        self._place = quoted_table(table)
        self._comment = comment.replace("*/", "* /")
        self._columns = ""

    def begin(self) -> None:
        self._connection.execute("BEGIN IMMEDIATE")

    def start(self, schema: pa.Schema, mode: Into) -> int:
        if mode is Into.REPLACE:
            self._connection.execute(f"DROP TABLE IF EXISTS {self._place}")
        made = "TABLE IF NOT EXISTS" if mode is Into.APPEND else "TABLE"
        columns = ", ".join(f"{quoted(column.name)} {_type_of(column.type)}" for column in schema)
        self._connection.execute(f"CREATE {made} {self._place} /* {self._comment} */ ({columns})")
        self._columns = f"({', '.join(map(quoted, schema.names))}) VALUES ({', '.join('?' * len(schema))})"
        return self.count()

    def insert(self, rows: pa.RecordBatch) -> None:
        columns = [
            [*map(_value, column.to_pylist())] if column.type not in _TYPES else column.to_pylist()
            for column in rows.columns
        ]
        self._connection.executemany(f"INSERT INTO {self._place} {self._columns}", zip(*columns, strict=True))

    def count(self) -> int:
        ((count,),) = self._connection.execute(f"SELECT count(*) FROM {self._place}").fetchall()
        return int(count)

    def mark(self, comment: str) -> None:
        pass  # it is in the statement

    def commit(self) -> None:
        self._connection.execute("COMMIT")

    def rollback(self) -> None:
        self._connection.execute("ROLLBACK")
