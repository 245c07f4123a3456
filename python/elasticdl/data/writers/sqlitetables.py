"""Tables of SQLite. It has no lists: those of one length come as columns, and others are written as JSON."""

from __future__ import annotations

import json
import sqlite3
from typing import Any

import pyarrow as pa

from elasticdl.data.writers.database import named
from elasticdl.spec.databases import OutputTable, quoted, text

_INTEGERS = (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())
_TYPES = {
    pa.bool_(): "INTEGER",
    **dict.fromkeys(_INTEGERS, "INTEGER"),
    pa.float32(): "REAL",
    pa.float64(): "REAL",
    pa.string(): "TEXT",
    pa.binary(): "BLOB",
}


class SQLite:
    """A file of SQLite, for `Driver`."""

    errors: tuple[type[Exception], ...] = (sqlite3.Error,)
    most_columns = 2000

    def __init__(self, table: OutputTable) -> None:
        self._table = table

    def connect(self) -> _Connection:
        """Open the file, which is made if it is not there."""
        return _Connection(self._table)

    def column_type(self, kind: pa.DataType) -> str:
        """Return the type of a column."""
        return "TEXT" if pa.types.is_list(kind) else named(_TYPES, kind)

    def finding(self, schema: str, name: str) -> str:
        """Return a question for a table or view."""
        master = f"{quoted(schema)}.sqlite_master" if schema else "sqlite_master"
        return f"SELECT 1 FROM {master} WHERE lower(name) = lower({text(name)})"

    def may_pass(self, error: Exception) -> bool:
        """Tell whether another process writes just now."""
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        return code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


class _Connection:
    def __init__(self, table: OutputTable) -> None:
        self._quoted = table.quoted
        # the patience with other writers is ours: an open connection may hold them up
        self._database = sqlite3.connect(table.file, timeout=0, isolation_level=None)
        try:
            self._database.execute("BEGIN IMMEDIATE")
        except sqlite3.Error:
            self._database.close()
            raise

    def run(self, sql: str) -> list[tuple[Any, ...]]:
        """Do what a statement says; return the rows of its answer."""
        return self._database.execute(sql).fetchall()

    def insert(self, rows: pa.Table) -> None:
        """Add rows to the table."""
        columns = [
            [None if value is None else json.dumps(value) for value in column.to_pylist()]
            if pa.types.is_list(column.type)
            else column.to_pylist()
            for column in rows.columns
        ]
        places = ", ".join("?" * len(columns))
        self._database.executemany(
            f"INSERT INTO {self._quoted} VALUES ({places})", zip(*columns, strict=True)
        )

    def commit(self) -> None:
        """Make all of it last."""
        self._database.execute("COMMIT")

    def close(self) -> None:
        """End the connection."""
        self._database.close()
