"""Results into a table of MySQL or MariaDB, where CREATE and DROP end a transaction: rows go into a staging table, which is renamed.

A new table, and one in the place of another, gets its name in one RENAME TABLE, after its rows were counted. Rows that are appended
go from the staging table into the other one in one transaction, which takes one row out of the staging table as well: that tells whether it
was done. What a killed writer leaves, the next one removes; a lock of the server keeps two of them apart, and ends with its connection.
"""

from __future__ import annotations

import hashlib
import json
import math
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa
import pymysql

from elasticdl.errors import BadSetting, JobFailed
from elasticdl.query.results import refuse_existing
from elasticdl.query.source import Into

_PATIENCE = 30
"""Seconds that a writer waits for the lock of another one, which may have been killed a moment ago."""


class Connected(Protocol):
    """What a target needs of its source."""

    name: str
    given: Any

    def connected(self) -> Any:
        """Return the connection."""

    def connect(self) -> Any:
        """Connect to the server anew."""

    def close(self) -> None:
        """End the connection, unless it was given."""


@dataclass(frozen=True, slots=True)
class There:
    """What is in the place of a table.

    Attributes:
        schema: the database that it is in.
        exists: something is.
        is_table: and no view.
        engine: of the table.
        transactions: the engine has them.
        comment: on the table.
    """

    schema: str
    exists: bool
    is_table: bool = False
    engine: str = ""
    transactions: bool = False
    comment: str = ""


@dataclass(frozen=True, slots=True)
class Name:
    """Of a table, and of the database that it is in; as text it is as SQL has it."""

    schema: str
    name: str

    def __str__(self) -> str:
        return f"{quoted(self.schema)}.{quoted(self.name)}"

    @property
    def bound(self) -> str:
        """Return it for a statement with values."""
        return str(self).replace("%", "%%")


def table_on(connection: Any, table: str) -> There | None:
    """Return what is in the place of a table, None if it is in no database. Raises what PyMySQL says."""
    *above, name = table.split(".")
    schema = ".".join(above) or _asked(connection, "SELECT DATABASE()")[0][0]
    return _found(connection, Name(schema, name)) if schema is not None else None


def _found(connection: Any, table: Name) -> There:
    rows = _asked(
        connection,
        "SELECT t.table_type, t.engine, e.transactions, t.table_comment FROM information_schema.tables AS t LEFT JOIN "
        "information_schema.engines AS e ON e.engine = t.engine WHERE t.table_schema = %s AND t.table_name = %s",
        (table.schema, table.name),
    )
    if not rows:
        return There(table.schema, False)
    ((kind, engine, transactions, comment),) = rows
    return There(table.schema, True, kind == "BASE TABLE", str(engine), transactions == "YES", str(comment))


def quoted(name: str) -> str:
    """Return a name as MySQL has it, whatever is in it."""
    return "`" + name.replace("`", "``") + "`"


class MySQLTarget:
    """A table, for `Target`."""

    def __init__(self, source: Connected, table: str, comment: str) -> None:
        """Raises what PyMySQL says."""
        self._source = source
        self._connection = source.connected()
        self._comment = comment
        self._table = table
        there = table_on(self._connection, table)
        schema, name = there.schema if there is not None else "", table.split(".")[-1]
        mark = hashlib.blake2b(f"{schema}.{name}".encode(), digest_size=8).hexdigest()
        self._lock = f"elasticdl_{mark}"
        self._place = Name(schema, name)
        self._staging = Name(schema, f"elasticdl_staging_{mark}")
        self._old = Name(schema, f"elasticdl_old_{mark}")
        self._columns = ""
        self._insert = ""
        self._mode = Into.NEW
        self._sql_mode: object = None

    def begin(self) -> None:
        """Take the lock, and remove what a killed writer has left. Raises BadSetting if another one writes."""
        if not _locked(self._connection, self._lock):
            raise BadSetting(
                f"another statement is writing the table {self._table} of {self._source.name}; wait for it, or end it, and try again"
            )
        # values that do not fit are refused, and not cut off
        self._sql_mode = _asked(self._connection, "SELECT @@SESSION.sql_mode")[0][0]
        self._run("SET SESSION sql_mode = %s", f"{self._sql_mode},STRICT_ALL_TABLES")
        if self._there(self._old).exists and not self._there(self._place).exists:
            self._run(f"RENAME TABLE {self._old} TO {self._place}")  # a server ended between two renames
        self._run(f"DROP TABLE IF EXISTS {self._staging}, {self._old}")

    def start(self, schema: pa.Schema, mode: Into) -> int:
        """Make the staging table."""
        self._mode = mode
        if mode is Into.NEW and self._there(self._place).exists:
            raise refuse_existing(self._table, self._source.name)
        self._columns = ", ".join(map(quoted, schema.names))
        self._insert = f"INSERT INTO {self._staging.bound} VALUES ({', '.join(['%s'] * len(schema))})"
        columns = ", ".join(f"{quoted(one.name)} {_type_of(one.type)} NULL" for one in schema)
        made = f"({columns}) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4".replace("%", "%%")
        self._run(f"CREATE TABLE {self._staging.bound} {made} COMMENT=%s", self._comment)
        return self.count()

    def insert(self, rows: pa.RecordBatch) -> None:
        """Add rows to it."""
        columns = [_values(column) for column in rows.columns]
        with self._connection.cursor() as cursor:
            cursor.executemany(self._insert, [*zip(*columns, strict=True)])
        self._connection.commit()

    def count(self) -> int:
        """Return how many rows it has."""
        return int(_asked(self._connection, f"SELECT count(*) FROM {self._staging}")[0][0])

    def mark(self, comment: str) -> None:
        """Do nothing: the staging table was made with the comment."""

    def commit(self) -> None:
        """Give the rows their place; if an answer is lost, what is there tells whether it was done."""
        count = self.count()
        there = self._there(self._place).exists
        try:
            if not there or self._mode is Into.NEW:
                self._run(f"RENAME TABLE {self._staging} TO {self._place}")
            elif self._mode is Into.APPEND:
                self._append(count)
            else:
                self._run(f"RENAME TABLE {self._place} TO {self._old}, {self._staging} TO {self._place}")
        except pymysql.Error:
            if self._source.given is not None or not self._was_done(count if there else None):
                raise
        if there and self._mode is Into.REPLACE:
            self._drop_old()
        if there and self._mode is Into.APPEND:
            with suppress(pymysql.Error):  # the rows are there
                self._run(f"DROP TABLE IF EXISTS {self._staging}")
                self._run(f"ALTER TABLE {self._place.bound} COMMENT=%s", self._comment)
        self._end()

    def rollback(self) -> None:
        """Remove the staging table; if the connection has gone, the next writer does."""
        try:
            self._connection.rollback()
            self._run(f"DROP TABLE IF EXISTS {self._staging}")
            self._end()
        except pymysql.Error:
            self._source.close()

    def _append(self, count: int) -> None:
        self._connection.begin()
        with self._connection.cursor() as cursor:
            added = cursor.execute(
                f"INSERT INTO {self._place} ({self._columns}) SELECT {self._columns} FROM {self._staging}"
            )
            if added != count:
                raise JobFailed(
                    f"{added:,} of {count:,} rows were added to the table {self._table}: nothing is changed; try again"
                )
            cursor.execute(f"DELETE FROM {self._staging} LIMIT 1")
        self._connection.commit()

    def _was_done(self, appended: int | None) -> bool:
        """Tell after a lost answer whether rows have their place; `appended`: so many, None if a table was renamed.

        The lock says that the server has ended what it did for the connection that is lost. Raises JobFailed if it does not answer.
        """
        self._source.close()
        with suppress(pymysql.Error):
            self._connection = self._source.connected()
            if _locked(self._connection, self._lock):
                if appended is None or self._mode is not Into.APPEND:
                    return self._there(self._place).comment == self._comment
                mine = self._there(self._staging).comment == self._comment
                return mine and self.count() == appended - 1
        raise JobFailed(
            f"the connection to {self._source.name} was lost when the table {self._table} was to get its rows, and the server does not "
            "answer again: look there whether it has them"
        )

    def _drop_old(self) -> None:
        """Remove the table that was replaced; if it can't be, for a foreign key for example, put it back. Raises what PyMySQL says."""
        try:
            self._run(f"DROP TABLE {self._old}")
        except pymysql.Error:
            self._run(f"RENAME TABLE {self._place} TO {self._staging}, {self._old} TO {self._place}")
            raise

    def _end(self) -> None:
        if self._sql_mode is not None:
            self._run("SET SESSION sql_mode = %s", self._sql_mode)
        self._run("SELECT RELEASE_LOCK(%s)", self._lock)

    def _there(self, table: Name) -> There:
        return _found(self._connection, table)

    def _run(self, sql: str, *values: object) -> None:
        _asked(self._connection, sql, values)


def _asked(connection: Any, sql: str, values: tuple[object, ...] = ()) -> list[tuple[Any, ...]]:
    with connection.cursor(pymysql.cursors.Cursor) as cursor:
        cursor.execute(sql, values or None)
        return list(cursor.fetchall())


def _locked(connection: Any, name: str) -> bool:
    return _asked(connection, "SELECT GET_LOCK(%s, %s)", (name, _PATIENCE)) == [(1,)]


# ------------------------------------------------------------------ types

_TYPES = {
    pa.bool_(): "BOOLEAN",
    pa.int8(): "TINYINT",
    pa.int16(): "SMALLINT",
    pa.int32(): "INT",
    pa.int64(): "BIGINT",
    pa.uint8(): "TINYINT UNSIGNED",
    pa.uint16(): "SMALLINT UNSIGNED",
    pa.uint32(): "INT UNSIGNED",
    pa.uint64(): "BIGINT UNSIGNED",
    pa.float16(): "DOUBLE",
    pa.float32(): "DOUBLE",  # what a FLOAT sends has lost digits
    pa.float64(): "DOUBLE",
    pa.binary(): "LONGBLOB",
    pa.large_binary(): "LONGBLOB",
    pa.date32(): "DATE",
    pa.date64(): "DATE",
}
_SCALE = 30
"""Digits behind the point of a DECIMAL at most."""


def _type_of(kind: pa.DataType) -> str:
    if pa.types.is_decimal(kind) and 0 <= kind.scale <= _SCALE:
        return f"DECIMAL({kind.precision}, {kind.scale})"
    if pa.types.is_timestamp(kind):
        return "DATETIME(6)"
    return "TIME(6)" if pa.types.is_time(kind) else _TYPES.get(kind, "LONGTEXT")


def _values(column: pa.Array) -> list[Any]:
    """Return values as PyMySQL takes them: times of no zone, those of one as UTC; lists as JSON; what is not a number is null."""
    kind = column.type
    if pa.types.is_timestamp(kind):
        return list(column.cast(pa.timestamp("us"), safe=False).to_pylist())
    if pa.types.is_time(kind):
        return list(column.cast(pa.time64("us"), safe=False).to_pylist())
    values: list[Any] = column.to_pylist()
    if pa.types.is_floating(kind):
        return [None if one is None or math.isnan(one) else one for one in values]
    if pa.types.is_nested(kind):
        return [None if one is None else json.dumps(one, ensure_ascii=False, default=str) for one in values]
    return values
