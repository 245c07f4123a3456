"""Tables of PostgreSQL, by ADBC: rows go as COPY in its binary form. Passwords are the client library's business, in no argument here."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl

import pyarrow as pa

from elasticdl.data.writers.database import named
from elasticdl.spec.databases import OutputTable, text, with_parameters

_WAITING = {"connect_timeout": 10, "keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3}
"""Of the connection, in seconds: without them a server whose machine has gone is waited for for hours."""
_LOCK_SECONDS = 10
"""For which one statement waits for the load of a process that is ending; then it is tried again."""
_PASSING = ("08", "40", "53", "55P03", "57P", "23505", "42P07")
"""Begin the codes of what another try may change: connections, conflicts, resources, locks, shutdowns, and what another load makes at the
same time. https://www.postgresql.org/docs/current/errcodes-appendix.html"""
_LASTING = ("password", "authentication", "does not exist", "permission", "pg_hba.conf", "invalid")
"""Are in what the client library says, without a code, of a connection that no other try makes."""
_WIDER = {
    pa.int8(): pa.int16(),
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.int64(),
}
_TYPES = {
    pa.bool_(): "BOOLEAN",
    pa.int16(): "SMALLINT",
    pa.int32(): "INTEGER",
    pa.int64(): "BIGINT",
    pa.float32(): "REAL",
    pa.float64(): "DOUBLE PRECISION",
    pa.string(): "TEXT",
    pa.binary(): "BYTEA",
}


class PostgreSQL:
    """A database of PostgreSQL, for `Driver`."""

    most_columns = 1600

    def __init__(self, table: OutputTable) -> None:
        from adbc_driver_postgresql import dbapi  # which imports pandas

        self.errors: tuple[type[Exception], ...] = (dbapi.Error,)
        self._dbapi = dbapi
        self._table = table

    def connect(self) -> _Connection:
        """Connect to the server."""
        return _Connection(self._dbapi, self._table)

    def column_type(self, kind: pa.DataType) -> str:
        """Return the type of a column; an array has any number of dimensions."""
        if pa.types.is_list(kind):
            return f"{self.column_type(kind.value_type).removesuffix('[]')}[]"
        return named(_TYPES, _wider(kind))

    def finding(self, schema: str, name: str) -> str:
        """Return a question for a table or view."""
        within = text(schema) if schema else "current_schema()"
        return (
            "SELECT 1 FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace "
            f"WHERE c.relname = {text(name)} AND n.nspname = {within}"
        )

    def may_pass(self, error: Exception) -> bool:
        """Tell whether another try may succeed."""
        code = (getattr(error, "sqlstate", None) or "").strip("\0")
        if code:
            return code.startswith(_PASSING)
        return isinstance(error, self._dbapi.OperationalError) and not any(
            word in str(error) for word in _LASTING
        )


class _Connection:
    def __init__(self, dbapi: Any, table: OutputTable) -> None:
        *schema, self._name = table.table.split(".")
        self._schema = schema[-1] if schema else None
        url, _, rest = table.url.partition("?")
        parameters = {**_WAITING, **dict(parse_qsl(rest, keep_blank_values=True))}
        self._database = dbapi.connect(with_parameters(url, list(parameters.items())))
        try:
            self.run(f"SET LOCAL lock_timeout = '{_LOCK_SECONDS}s'")
        except dbapi.Error:
            self._database.close()
            raise

    def run(self, sql: str) -> list[tuple[Any, ...]]:
        """Do what a statement says; return the rows of its answer."""
        with self._database.cursor() as cursor:
            cursor.execute(sql)
            return list(cursor.fetchall()) if sql.startswith("SELECT") else []

    def insert(self, rows: pa.Table) -> None:
        """Add rows to the table."""
        flat = pa.table([_flat(column.combine_chunks()) for column in rows.columns], names=rows.column_names)
        rows = flat.cast(pa.schema([(column.name, _wider(column.type)) for column in flat.schema]))
        with self._database.cursor() as cursor:
            cursor.adbc_ingest(self._name, rows, mode="append", db_schema_name=self._schema)

    def commit(self) -> None:
        """Make all of it last."""
        self._database.commit()

    def close(self) -> None:
        """End the connection."""
        self._database.close()


def _flat(column: pa.Array) -> pa.Array:
    """Return lists of lists as lists, the values of one after those of the other: the driver writes arrays of one dimension."""
    while pa.types.is_list(column.type) and pa.types.is_list(column.type.value_type):
        inner = column.values
        ends = inner.offsets.take(column.offsets)
        column = pa.ListArray.from_arrays(ends, inner.values, mask=column.is_null())
    return column


def _wider(kind: pa.DataType) -> pa.DataType:
    """Return the type of PostgreSQL that has all values of another one."""
    if pa.types.is_list(kind):
        return pa.list_(_wider(kind.value_type))
    return _WIDER.get(kind, kind)
