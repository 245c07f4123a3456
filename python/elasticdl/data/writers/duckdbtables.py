"""Tables of DuckDB. One process at a time writes into its file; another one gets an error at once, and tries again."""

from __future__ import annotations

from typing import Any

import duckdb
import pyarrow as pa

from elasticdl.data.writers.database import named
from elasticdl.data.writers.duckdbtypes import TYPES
from elasticdl.spec.databases import OutputTable, text

_SETTINGS = {
    # Uncommitted rows go to the file from this size on, so more would buy nothing.
    "memory_limit": "256MB",
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
}


class DuckDB:
    """A file of DuckDB, for `Driver`."""

    errors: tuple[type[Exception], ...] = (duckdb.Error,)
    most_columns = 10_000

    def __init__(self, table: OutputTable) -> None:
        self._table = table

    def connect(self) -> _Connection:
        """Open the file, which is made if it is not there."""
        return _Connection(self._table)

    def column_type(self, kind: pa.DataType) -> str:
        """Return the type of a column."""
        if pa.types.is_list(kind):
            return f"{self.column_type(kind.value_type)}[]"
        return named(TYPES, kind)

    def finding(self, schema: str, name: str) -> str:
        """Return a question for a table or view."""
        within = f"lower({text(schema)})" if schema else "current_schema()"
        return (
            f"SELECT 1 FROM information_schema.tables WHERE lower(table_name) = lower({text(name)}) "
            f"AND lower(table_schema) = {within} AND table_catalog = current_database()"
        )

    def may_pass(self, error: Exception) -> bool:
        """Tell whether another process has the file open just now."""
        return isinstance(error, duckdb.IOException) and "lock on file" in str(error)


class _Connection:
    def __init__(self, table: OutputTable) -> None:
        self._quoted = table.quoted
        self._database = duckdb.connect(table.file, config=_SETTINGS)
        self.run("BEGIN TRANSACTION")

    def run(self, sql: str) -> list[tuple[Any, ...]]:
        """Do what a statement says; return the rows of its answer."""
        return list(self._database.execute(sql).fetchall())

    def insert(self, rows: pa.Table) -> None:
        """Add rows to the table."""
        self._database.register("elasticdl_rows", rows)
        self.run(f"INSERT INTO {self._quoted} SELECT * FROM elasticdl_rows")
        self._database.unregister("elasticdl_rows")

    def commit(self) -> None:
        """Make all of it last."""
        self.run("COMMIT")

    def close(self) -> None:
        """End the connection."""
        self._database.close()
