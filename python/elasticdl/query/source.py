"""Where rows come from and results go: `Source`, one for each kind of database, chosen by a URL or an open connection.

A source sends a statement as it is, and knows nothing of models. What a database refuses is `DatabaseRefused`, which knows the place in the
statement if the database told it. Packages of databases are imported when one of theirs is opened.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from elasticdl.errors import BadData, BadSetting
from elasticdl.spec.databases import without_password
from elasticdl.spec.readers import scheme_of

ROWS = 65_536
"""Of a batch at most: enough that Python's work for one is small, few enough for tables of a thousand columns."""

Params = Sequence[Any] | Mapping[str, Any]
"""Values that the database binds to the placeholders of a statement."""


class Into(StrEnum):
    """What becomes of a table that exists when results are written."""

    NEW = "new"
    """It is refused."""
    REPLACE = "replace"
    APPEND = "append"


class DatabaseRefused(BadData):
    """The database did not do what a statement says.

    Attributes:
        reason: what it said, without a password.
        place: the character of the statement that it named, from 0, if it did.
    """

    def __init__(self, name: str, reason: str, place: int | None = None) -> None:
        super().__init__(f"{name}: the database says: {reason}")
        self.reason = reason
        self.place = place


class Source(Protocol):
    """A database. Statements have placeholders as its own driver knows them."""

    dialect: str
    """The name of its SQL in sqlglot."""
    name: str
    """For messages, without a password."""

    def schema(self, select: str, params: Params = ()) -> pa.Schema:
        """Return names and types of the columns of a query, two of one name, too; a type is null if only rows would tell.

        Raises DatabaseRefused.
        """

    def rows(self, select: str, params: Params = ()) -> Iterator[pa.RecordBatch]:
        """Run a query once, and yield its rows in their order; a batch at least, and types may differ. Raises DatabaseRefused."""

    def run(self, text: str, params: Params = ()) -> pa.Table | None:
        """Do what another statement says, and commit it; return the rows of its answer if it has any. Raises DatabaseRefused."""

    def check(self, table: str, mode: Into) -> None:
        """Raise BadSetting if results can't go to a table because of what is there."""

    def comment(self, table: str) -> str:
        """Return what the last write of results left on a table, empty if nothing did or there is none. Raises DatabaseRefused."""

    def write(self, table: str, rows: Iterator[pa.RecordBatch], mode: Into, comment: str) -> int:
        """Write rows into a table in one transaction, and return their number: all of them are there, or nothing has changed.

        `table`: perhaps behind the name of a schema and a dot; `comment`: names this write and no other. Raises BadSetting as `check` does,
        DatabaseRefused, Unwritable, and what `rows` raises.
        """

    def close(self) -> None:
        """End the connection, unless it was given."""


def open_source(
    database: object = None,
    tables: Mapping[str, object] | None = None,
    folder: Path | None = None,
    *,
    is_new: bool = False,
) -> Source:
    """Return the source that a URL or an open connection names.

    Args:
        database: a URL such as `sqlite:///flights.db`, a connection of a driver that is open, or None: DuckDB in memory, in which the
            files NAME.csv, NAME.parquet and NAME.json of `folder` are tables; with `s3://BUCKET/FOLDER` those there.
        tables: data frames and Arrow tables that are tables of DuckDB.
        folder: the working directory if it is None.
        is_new: the first statement makes the file of a database of DuckDB or SQLite that is not there.

    Nothing is connected yet. Raises BadSetting.
    """
    if database is None or database == "":
        with _packages("SQL over files"):
            from elasticdl.query.folder import FolderSource
            from elasticdl.query.folderfiles import LocalFolder

            return FolderSource(LocalFolder(folder or Path()), tables)
    scheme = scheme_of(database) if isinstance(database, str) else _scheme_of_connection(database)
    if tables and scheme not in ("duckdb", "s3"):
        raise BadSetting(
            f"data frames can be tables of DuckDB only; got {', '.join(map(repr, tables))} beside {_shown(database)}. Write them into the "
            "database, or leave the database out"
        )
    with _packages(_shown(database)):
        match scheme:
            case "s3":
                from elasticdl.query.folder import FolderSource
                from elasticdl.query.folderfiles import RemoteFolder

                return FolderSource(RemoteFolder(str(database)), tables)
            case "duckdb":
                from elasticdl.query.duckdb import DuckDBSource

                return DuckDBSource(database, tables, is_new=is_new)
            case "sqlite":
                from elasticdl.query.dbapi import SQLiteSource

                return SQLiteSource(database, is_new)
            case "postgresql" | "postgres":
                from elasticdl.query.adbc import PostgreSQLSource

                return PostgreSQLSource(database)
            case "maxcompute" | "odps":
                from elasticdl.query.maxcompute import MaxComputeSource

                return MaxComputeSource(str(database))
            case "mysql" | "mariadb" | "mysql+pymysql" | "mariadb+pymysql":
                from elasticdl.query.mysql import MySQLSource

                return MySQLSource(database)
    raise BadSetting(f"--database: {_shown(database)} is no database that is known; {_KNOWN}")


_KNOWN = (
    "give duckdb:///FILE, sqlite:///FILE, postgresql://USER@HOST/DATABASE, mysql://USER@HOST/DATABASE, maxcompute://PROJECT or "
    "s3://BUCKET/FOLDER, or leave it out for files of this directory"
)


class _packages:
    """Say which packages a database needs, when one is missing."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, ImportError):
            raise BadSetting(
                f"{self._what} needs the package {error.name}: pip install 'elasticdl[sql]'"
            ) from None


def _scheme_of_connection(connection: object) -> str:
    """Return the scheme for an open connection, by the package that its class is of."""
    package = type(connection).__module__.split(".")[0]
    if package == "sqlalchemy":
        package = f"sqlalchemy+{getattr(getattr(connection, 'dialect', None), 'name', '')}"
    return _PACKAGES.get(package, package)


_PACKAGES = {
    "_duckdb": "duckdb",
    "sqlite3": "sqlite",
    "adbc_driver_manager": "postgresql",
    **dict.fromkeys(("pymysql", "sqlalchemy+mysql", "sqlalchemy+mariadb"), "mysql"),
}
"""Schemes, by the packages of open connections."""


def _shown(database: object) -> str:
    return without_password(database) if isinstance(database, str) else f"a {type(database).__qualname__}"
