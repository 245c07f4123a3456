"""What differs from one database to the next when rows are written into a new table of it: `Driver`; the rest is SQL for all of them.

A driver is found by the URL, and its package is imported then. What loads are is in `tableload.py`.
"""

from __future__ import annotations

from typing import Any, Protocol

import pyarrow as pa

from elasticdl.errors import BadSetting
from elasticdl.spec.databases import OutputTable


class Connection(Protocol):
    """A connection with a transaction under way. Errors are the driver's."""

    def run(self, sql: str) -> list[tuple[Any, ...]]:
        """Do what a statement says; return the rows of its answer."""

    def insert(self, rows: pa.Table) -> None:
        """Add rows to the table."""

    def commit(self) -> None:
        """Make all of it last."""

    def close(self) -> None:
        """End the connection; what is not committed has not been."""


class Driver(Protocol):
    """A kind of database."""

    errors: tuple[type[Exception], ...]
    """What its package raises."""
    most_columns: int
    """Of a table."""

    def connect(self) -> Connection:
        """Open the database, and begin a transaction that may write."""

    def column_type(self, kind: pa.DataType) -> str:
        """Return how SQL calls the type of a column; `kind`: as of `plain`."""

    def finding(self, schema: str, name: str) -> str:
        """Return a question to which the answer has a row if there is a table or view of this name; `schema` may be empty."""

    def may_pass(self, error: Exception) -> bool:
        """Tell whether another try may succeed."""


def driver_of(table: OutputTable) -> Driver:
    """Return what writes into a database. Raises BadSetting if its package is missing."""
    try:
        match table.scheme:
            case "sqlite":
                from elasticdl.data.writers.sqlitetables import SQLite

                return SQLite(table)
            case "duckdb":
                from elasticdl.data.writers.duckdbtables import DuckDB

                return DuckDB(table)
            case _:
                from elasticdl.data.writers.postgresqltables import PostgreSQL

                return PostgreSQL(table)
    except ImportError as error:
        raise BadSetting(
            f"--output: {table.name} needs the package {error.name}: pip install 'elasticdl[sql]'"
        ) from None


def plain(kind: pa.DataType) -> pa.DataType:
    """Return the type with which a column is written: lists of one length are lists, and what has no type is text."""
    if pa.types.is_fixed_size_list(kind) or pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(plain(kind.value_type))
    if pa.types.is_null(kind) or pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_large_binary(kind):
        return pa.binary()
    return pa.float32() if pa.types.is_float16(kind) else kind


def named(types: dict[pa.DataType, str], kind: pa.DataType) -> str:
    """Return the name of a type of values. Raises BadSetting for one that no database takes."""
    if kind not in types:
        raise BadSetting(
            f"--output: no column of a table has values of the type {kind}; write files instead: --output=DIRECTORY"
        )
    return types[kind]
