"""PostgreSQL by ADBC: rows come and go as COPY in its binary form.

A password is in the URL, or is the client library's business (PGPASSWORD, ~/.pgpass); no message has it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import parse_qsl

import pyarrow as pa
from adbc_driver_postgresql import dbapi

from elasticdl.errors import BadSetting
from elasticdl.query.results import full_disk, is_full, refuse_existing, refuse_view, written
from elasticdl.query.source import DatabaseRefused, Into, Params
from elasticdl.spec.databases import passwords, quoted_table, text, with_parameters, without_password

_WAITING = {"connect_timeout": 10, "keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3}
"""Of the connection, in seconds: without them a server whose machine has gone is waited for for hours."""
_LONGEST = 63
"""Bytes of a name; the server cuts off the rest."""
_WIDER = {
    pa.int8(): pa.int16(),
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.int64(),
}


class PostgreSQLSource:
    """A database of PostgreSQL, for `Source`."""

    dialect = "postgres"

    def __init__(self, database: object) -> None:
        """`database`: a URL, or a connection of ADBC, which stays open."""
        is_url = isinstance(database, str)
        self._given = None if is_url else database
        self._url = str(database) if is_url else ""
        self._secrets = passwords(self._url)
        self.name = self._shown(without_password(self._url)) if is_url else "the connection to PostgreSQL"
        self._connection: Any = None

    def schema(self, select: str, params: Params = ()) -> pa.Schema:
        """Return names and types of the columns of a query. Raises DatabaseRefused."""
        with self._errors(), self._cursor() as cursor:
            answer = cursor.adbc_execute_schema(select)
            return pa.schema([(one.name, _type_of(one)) for one in answer])

    def rows(self, select: str, params: Params = ()) -> Iterator[pa.RecordBatch]:
        """Run a query, and yield its rows. Raises DatabaseRefused."""
        with self._errors(), self._cursor() as cursor:
            cursor.execute(select, params or None)
            reader = cursor.fetch_record_batch()
            schema = reader.schema
            yield _converted(
                pa.RecordBatch.from_arrays([pa.array([], one.type) for one in schema], schema=schema)
            )
            for batch in reader:
                yield _converted(batch)

    def run(self, text: str, params: Params = ()) -> pa.Table | None:
        """Do what another statement says, and commit it. Raises DatabaseRefused."""
        with self._errors(), self._cursor() as cursor:
            cursor.execute(text, params or None)
            answer = None
            if cursor.description:
                answer = pa.Table.from_batches(map(_converted, cursor.fetch_arrow_table().to_batches()))
            self._connected().commit()
            return answer

    def check(self, table: str, mode: Into) -> None:
        """Raise BadSetting if results can't go to a table."""
        for name in table.split("."):
            _check_length(name, "the name")
        with self._errors():
            kind = _kind(self._connected(), table)
        if kind is not None and kind not in "rp":
            raise refuse_view(table, self.name)
        if kind is not None and mode is Into.NEW:
            raise refuse_existing(table, self.name)

    def comment(self, table: str) -> str:
        """Return the comment on a table. Raises DatabaseRefused."""
        with self._errors(), self._cursor():
            return _comment(self._connected(), table)

    def write(self, table: str, rows: Iterator[pa.RecordBatch], mode: Into, comment: str) -> int:
        """Write rows into a table in one transaction. Raises what `Source.write` says."""
        self.check(table, mode)
        with self._errors(table):
            return written(_Target(self, table, comment), rows, mode, comment)

    def close(self) -> None:
        """End the connection, unless it was given."""
        if self._connection is not None and self._given is None:
            with suppress(dbapi.Error):
                self._connection.close()
        self._connection = None

    def _connected(self) -> Any:
        if self._connection is None:
            self._connection = self._given if self._given is not None else self.connect()
        return self._connection

    def connect(self) -> Any:
        """Connect to the server anew."""
        url, _, rest = self._url.partition("?")
        parameters = {**_WAITING, **dict(parse_qsl(rest, keep_blank_values=True))}
        return dbapi.connect(with_parameters(url, list(parameters.items())))

    def _shown(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text

    @contextmanager
    def _cursor(self) -> Iterator[Any]:
        """Yield a cursor, and end its transaction."""
        connection = self._connected()
        try:
            with connection.cursor() as cursor:
                yield cursor
        finally:
            with suppress(dbapi.Error):
                connection.rollback()

    @contextmanager
    def _errors(self, table: str = "") -> Iterator[None]:
        """Raise what PostgreSQL says as our own errors; `table`: into which rows are written."""
        try:
            yield
        except dbapi.Error as error:
            details = {key: value.decode(errors="replace") for key, value in error.details or ()}
            reason = " ".join((details.get(b"PG_DIAG_MESSAGE_PRIMARY") or str(error)).split())[:1000]
            reason = self._shown(reason)
            if table and is_full(reason):
                raise full_disk(table) from None
            position = details.get(b"PG_DIAG_STATEMENT_POSITION", "")
            # without the cause, which may quote the URL
            raise DatabaseRefused(
                self.name, reason, int(position) - 1 if position.isdecimal() else None
            ) from None


def _check_length(name: str, what: str) -> None:
    if len(name.encode()) > _LONGEST:
        raise BadSetting(
            f"{what} {name!r} has {len(name.encode())} bytes, and PostgreSQL cuts off names after {_LONGEST}; choose a shorter one"
        )


def _kind(connection: Any, table: str) -> str | None:
    """Return what a name stands for, as pg_class has it; None if nothing has it."""
    asked = (
        f"SELECT relkind::text FROM pg_catalog.pg_class WHERE oid = to_regclass({text(quoted_table(table))})"
    )
    with connection.cursor() as cursor:
        cursor.execute(asked)
        found = cursor.fetchall()
    return str(found[0][0]) if found else None


def _comment(connection: Any, table: str) -> str:
    """Return the comment on a table, empty if it has none or is not there."""
    asked = f"SELECT obj_description(to_regclass({text(quoted_table(table))}), 'pg_class')"
    with connection.cursor() as cursor:
        cursor.execute(asked)
        ((found,),) = cursor.fetchall()
        return str(found or "")


# ------------------------------------------------------------------ types


def _type_of(column: pa.Field) -> pa.DataType:
    """Return the type of a column as it is here: decimals that have digits are decimals, other ones floats."""
    kind = column.type
    about = column.metadata or {}
    if about.get(b"POSTGRESQL:type") == b"numeric":
        typmod = int(about.get(b"POSTGRESQL:typmod", b"-1")) - 4
        digits, scale = typmod >> 16 & 0xFFFF, typmod & 0x7FF
        return (
            pa.decimal128(digits, scale)
            if typmod >= 0 and 0 < digits <= 38 and scale <= digits
            else pa.float64()
        )
    if about.get(b"POSTGRESQL:type") == b"uuid":
        return pa.string()
    return kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind


def _converted(batch: pa.RecordBatch) -> pa.RecordBatch:
    columns = [
        _column(column, _type_of(one)) for column, one in zip(batch.columns, batch.schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _column(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if column.type.equals(kind):
        return column
    if pa.types.is_string(kind) and getattr(column.type, "extension_name", "") == "arrow.uuid":
        return pa.array([None if one is None else str(one) for one in column.to_pylist()], kind)
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    try:
        return column.cast(kind)
    except pa.ArrowInvalid:  # a decimal may be NaN
        return column.cast(pa.float64())


class _Target:
    """A table of PostgreSQL, for `Target`."""

    def __init__(self, source: PostgreSQLSource, table: str, comment: str) -> None:
        self._source = source
        self._connection = source._connected()
        self._table = table
        *schema, self._name = table.split(".")
        self._schema = schema[-1] if schema else None
        self._comment = comment

    def begin(self) -> None:
        self._connection.rollback()

    def start(self, schema: pa.Schema, mode: Into) -> int:
        for name in schema.names:
            _check_length(name, "the column")
        if mode is Into.REPLACE:
            self._run(f"DROP TABLE IF EXISTS {quoted_table(self._table)}")
        if mode is not Into.APPEND or _kind(self._connection, self._table) is None:
            self._ingest(schema.empty_table(), "create")
        else:
            # one writer at a time, which sees what the one before it has done; readers and other programs' writers go on
            self._run(f"LOCK TABLE {quoted_table(self._table)} IN SHARE UPDATE EXCLUSIVE MODE")
            if _comment(self._connection, self._table) == self._comment:
                raise BadSetting(f"the table {self._table} has these rows already")
        return self.count()

    def insert(self, rows: pa.RecordBatch) -> None:
        self._ingest(pa.Table.from_batches([rows]), "append")

    def count(self) -> int:
        with self._connection.cursor() as cursor:
            cursor.execute(f"SELECT count(*) FROM {quoted_table(self._table)}")
            ((count,),) = cursor.fetchall()
            return int(count)

    def mark(self, comment: str) -> None:
        self._run(f"COMMENT ON TABLE {quoted_table(self._table)} IS {text(comment)}")

    def commit(self) -> None:
        """Commit; if the answer is lost, the comment tells whether it was done."""
        try:
            self._connection.commit()
        except dbapi.Error:
            if self._source._given is not None or not self._was_committed():
                raise
            self._source.close()

    def rollback(self) -> None:
        try:
            self._connection.rollback()
        except dbapi.Error:  # the connection has gone, and the transaction with it
            self._source.close()

    def _was_committed(self) -> bool:
        with suppress(dbapi.Error):
            again = self._source.connect()
            try:
                return _comment(again, self._table) == self._comment
            finally:
                again.close()
        return False

    def _run(self, sql: str) -> None:
        with self._connection.cursor() as cursor:
            cursor.execute(sql)

    def _ingest(self, rows: pa.Table, mode: str) -> None:
        wider = pa.schema([(one.name, _WIDER.get(one.type, one.type)) for one in rows.schema])
        with self._connection.cursor() as cursor:
            cursor.adbc_ingest(self._name, rows.cast(wider), mode=mode, db_schema_name=self._schema)
