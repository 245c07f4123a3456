"""MySQL and MariaDB: SQLAlchemy reads the URL, PyMySQL connects, sends statements and streams rows.

A password is in the URL or in MYSQL_PWD; no message has it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pyarrow as pa
import pymysql
from pymysql.constants import ER
from pymysql.cursors import Cursor, SSCursor
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from elasticdl.errors import BadSetting
from elasticdl.query.mysqltypes import batch_of, fields_of, schema_of
from elasticdl.query.mysqlwriting import MySQLTarget, table_on
from elasticdl.query.results import full_disk, is_full, refuse_existing, refuse_view, written
from elasticdl.query.source import ROWS, DatabaseRefused, Into, Params
from elasticdl.spec.databases import passwords, without_password

_PASSWORD = "MYSQL_PWD"
"""What MySQL's own programs read."""
_WAITING = {"connect_timeout": 10}
"""Of the connection, in seconds."""
_FULL = ((ER.DISK_FULL,), (ER.RECORD_FILE_FULL,))
_LONGEST = 64
"""Characters of a name."""


class MySQLSource:
    """A database of MySQL or MariaDB, for `Source`."""

    dialect = "mysql"

    def __init__(self, database: object) -> None:
        """`database`: a URL, or a connection of SQLAlchemy or PyMySQL, which stays open. Raises BadSetting."""
        is_url = isinstance(database, str)
        self._url = str(database) if is_url else ""
        self.name = without_password(self._url) if is_url else "the connection to MySQL"
        self._arguments = _arguments(self._url, self.name) if is_url else {}
        self._secrets = {*passwords(self._url), os.environ.get(_PASSWORD, "")} - {""}
        self.given = None if is_url else getattr(database, "connection", database)
        self._connection: Any = None

    def schema(self, select: str, params: Params = ()) -> pa.Schema:
        """Return names and types of the columns of a query. Raises DatabaseRefused."""
        with self._errors(select), self._cursor(Cursor) as limits:
            # of a query with a LIMIT of its own all rows come
            limits.execute("SET SESSION sql_select_limit = 0")
            try:
                with self._cursor(SSCursor) as cursor:
                    cursor.execute(select, params or None)
                    return schema_of(fields_of(cursor))
            finally:
                limits.execute("SET SESSION sql_select_limit = DEFAULT")

    def rows(self, select: str, params: Params = ()) -> Iterator[pa.RecordBatch]:
        """Run a query, and yield its rows as the server sends them. Raises DatabaseRefused, BadData."""
        with self._errors(select), self._cursor(SSCursor) as cursor:
            cursor.execute(select, params or None)
            fields = fields_of(cursor)
            yield batch_of(fields, ())
            while block := cursor.fetchmany(ROWS):
                yield batch_of(fields, block)

    def run(self, text: str, params: Params = ()) -> pa.Table | None:
        """Do what another statement says, and commit it. Raises DatabaseRefused."""
        with self._errors(text), self._cursor(Cursor) as cursor:
            cursor.execute(text, params or None)
            answer = None
            if cursor.description:
                answer = pa.Table.from_batches([batch_of(fields_of(cursor), cursor.fetchall())])
            self.connected().commit()
            return answer

    def check(self, table: str, mode: Into) -> None:
        """Raise BadSetting if results can't go to a table."""
        for name in table.split("."):
            if len(name) > _LONGEST:
                raise BadSetting(
                    f"the name {name!r} has {len(name)} characters, and those of MySQL have at most {_LONGEST}; choose a shorter one"
                )
        with self._errors():
            self._wake()
            there = table_on(self.connected(), table)
        if there is None:
            raise BadSetting(
                f"{self.name} has no database; name one there, behind a slash, or before the table: database.{table}"
            )
        if there.exists and not there.is_table:
            raise refuse_view(table, self.name)
        if there.exists and mode is Into.NEW:
            raise refuse_existing(table, self.name)
        if there.exists and mode is Into.APPEND and not there.transactions:
            raise BadSetting(
                f"the table {table} of {self.name} has the engine {there.engine}, which has no transactions, so rows can't be appended all "
                f"or none; ALTER TABLE {table} ENGINE=InnoDB, or name another table"
            )

    def comment(self, table: str) -> str:
        """Return the comment on a table. Raises DatabaseRefused."""
        with self._errors():
            self._wake()
            there = table_on(self.connected(), table)
        return there.comment if there is not None else ""

    def write(self, table: str, rows: Iterator[pa.RecordBatch], mode: Into, comment: str) -> int:
        """Write rows into a table that gets its name when it is whole. Raises what `Source.write` says."""
        self.check(table, mode)
        with self._errors(table=table):
            return written(MySQLTarget(self, table, comment), rows, mode, comment)

    def close(self) -> None:
        """End the connection, unless it was given."""
        if self._connection is not None and self.given is None:
            with suppress(pymysql.Error):
                self._connection.close()
        self._connection = None

    def connected(self) -> Any:
        """Return the connection, which is made if there is none. Raises BadSetting, and what PyMySQL says."""
        if self._connection is None:
            self._connection = (
                self.connect() if self.given is None else getattr(self.given, "driver_connection", self.given)
            )
        return self._connection

    def connect(self) -> Any:
        """Connect to the server anew. Raises as `connected`."""
        try:
            return pymysql.connect(**self._arguments)
        except (TypeError, ValueError) as error:  # parameters of the URL
            raise BadSetting(f"--database: {self.name}: {self._shown(str(error))}") from None
        except RuntimeError:
            raise BadSetting(
                f"{self.name} wants a password as MySQL 8 does, which needs the package cryptography: pip install 'elasticdl[sql]'"
            ) from None

    def _shown(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text

    @contextmanager
    def _cursor(self, kind: type[Any]) -> Iterator[Any]:
        """Yield a cursor, and end its transaction, which would keep others from changing the tables."""
        self._wake()
        connection = self.connected()
        cursor = connection.cursor(kind)
        try:
            yield cursor
        finally:
            with suppress(pymysql.Error):
                cursor.close()
                connection.rollback()

    def _wake(self) -> None:
        """Leave a connection that the server has ended, as it does after hours in which a model was trained."""
        if self._connection is not None and self.given is None:
            try:
                self._connection.ping()
            except pymysql.Error:
                self.close()

    @contextmanager
    def _errors(self, statement: str = "", table: str = "") -> Iterator[None]:
        """Raise what the server says as our own errors; `table`: into which rows are written."""
        try:
            yield
        except pymysql.Error as error:
            said = str(error.args[-1]) if error.args else ""
            reason = self._shown(" ".join(said.split())[:1000]) or "the connection has ended"
            if table and (error.args[:1] in _FULL or is_full(reason)):
                raise full_disk(table) from None
            # without the cause, which may quote the URL
            raise DatabaseRefused(self.name, reason, place_of(said, statement)) from None


def _arguments(url: str, name: str) -> dict[str, Any]:
    """Return what PyMySQL's `connect` gets of a URL. Raises BadSetting."""
    try:
        parsed = make_url(url).set(drivername="mysql+pymysql")
        _, found = parsed.get_dialect()().create_connect_args(parsed)
    except (ArgumentError, ValueError) as error:
        raise BadSetting(
            f"--database: {name} can't be read ({type(error).__name__}); write mysql://USER@HOST/DATABASE, and in a password %40 for @, "
            f"%2F for /, or put it into {_PASSWORD}"
        ) from None
    if "password" not in found and _PASSWORD in os.environ:
        found["password"] = os.environ[_PASSWORD]
    return {**_WAITING, **found, "charset": "utf8mb4"}


# ------------------------------------------------------------------ places of errors

_NEAR = re.compile(r"near '(.*)' at line (\d+)$", re.DOTALL)
_NAMED = re.compile(r"(?:Unknown column|Unknown table|Table|Column|FUNCTION) '?(?P<name>[^' ]+)'? ")
_CUT = "..."
"""Is behind what MariaDB has cut off."""


def place_of(said: str, statement: str) -> int | None:
    """Return the character of a statement that an error is about, if its words tell: they quote what is there."""
    if near := _NEAR.search(said):
        quoted, line = near.group(1), int(near.group(2))
        if statement.endswith(quoted):
            return len(statement) - len(quoted)
        places = [match.start() for match in re.finditer(re.escape(quoted.removesuffix(_CUT)), statement)]
        return _only([place for place in places if statement.count("\n", 0, place) + 1 == line])
    if named := _NAMED.match(said):
        whole = named.group("name")
        for name in (whole, whole.rpartition(".")[2]):
            places = [match.start() for match in re.finditer(rf"(?<!\w){re.escape(name)}(?!\w)", statement)]
            if places:
                return _only(places)
    return None


def _only(places: list[int]) -> int | None:
    return places[0] if len(places) == 1 else None
