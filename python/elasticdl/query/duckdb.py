"""DuckDB: a file, memory, or an open connection; data frames that are given are tables.

One process at a time writes into a file of DuckDB, and no other one may read it then. So a file is opened for reading until a statement has
to write. No extension is fetched: other databases have packages of their own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import duckdb
import pyarrow as pa

from elasticdl.errors import BadSetting
from elasticdl.query.folderfiles import SERVERS, opened_server
from elasticdl.query.newfile import check_file, whole_or_none
from elasticdl.query.results import full_disk, is_full, refuse_existing, refuse_view, written
from elasticdl.query.source import ROWS, DatabaseRefused, Into, Params
from elasticdl.spec.databases import quoted, quoted_table, text, without_password
from elasticdl.spec.nearest import nearest
from elasticdl.spec.readers import database_file

SETTINGS: dict[str, Any] = {
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "python_enable_replacements": False,  # the names of our own variables are no tables
}
_INCOMING = "elasticdl_incoming"
_SERVER = re.compile(rf"\b({'|'.join(SERVERS)})://")

Missing = Callable[[str], str | None]
"""Returns what a table that does not exist is read from, as SQL has it; None if nothing is there."""


class DuckDBSource:
    """A database of DuckDB, for `Source`."""

    dialect = "duckdb"

    def __init__(
        self,
        database: object,
        tables: Mapping[str, object] | None = None,
        missing: Missing | None = None,
        known: Callable[[], Iterable[str]] = tuple,
        name: str = "",
        is_new: bool = False,
    ) -> None:
        """Connect nothing yet.

        Args:
            database: a URL, or a connection, which stays open.
            tables: data frames that are tables.
            missing: where tables that do not exist are read from.
            known: names of those that can be.
            name: of what it stands for.
            is_new: the first statement makes the file if it is not there.

        Raises BadSetting.
        """
        is_url = isinstance(database, str)
        self._given = None if is_url else database
        self._file = database_file(str(database)) if is_url else ""
        self.name = name or (without_password(str(database)) if is_url else "the connection to DuckDB")
        if self._file:
            check_file(self.name, self._file, self.dialect, is_new=is_new)
        self._tables = tables or {}
        self._missing = missing or (lambda name: None)
        self._known = known
        self._connection: Any = None
        self._may_write = False
        self._made: set[str] = set()

    def schema(self, select: str, params: Params = ()) -> pa.Schema:
        """Return names and types of the columns of a query. Raises DatabaseRefused."""
        with self._errors(select):
            answer = self._answer(select, params)
            types = answer.limit(0).to_arrow_table().schema.types
            return pa.schema(list(zip(answer.columns, types, strict=True)))

    def rows(self, select: str, params: Params = ()) -> Iterator[pa.RecordBatch]:
        """Run a query, and yield its rows. Raises DatabaseRefused."""
        with self._errors(select):
            answer = self._answer(select, params)
            reader = answer.to_arrow_reader(ROWS)
            names = list(answer.columns)  # Arrow has other ones if two are the same
            yield pa.RecordBatch.from_arrays(
                [pa.array([], kind) for kind in reader.schema.types], names=names
            )
            for batch in reader:
                yield pa.RecordBatch.from_arrays(batch.columns, names=names)

    def run(self, text: str, params: Params = ()) -> pa.Table | None:
        """Do what another statement says. Raises DatabaseRefused."""
        with self._errors(text), whole_or_none(self._file, self.close):
            self._connected(writing=True)
            answer = self._answer(text, params)
            return None if answer is None else answer.to_arrow_table()

    def check(self, table: str, mode: Into) -> None:
        """Raise BadSetting if results can't go to a table."""
        *above, _ = table.split(".")
        if above:
            wanted = f"lower({text(above[-1])}) IN (lower(schema_name), lower(catalog_name))"
            sql = f"SELECT count(*) FROM information_schema.schemata WHERE {wanted}"
            with self._errors(sql):
                ((count,),) = self._connected().execute(sql).fetchall()
            if not count:
                raise BadSetting(
                    f"there is no schema {above[-1]} in {self.name} for the table {table}; make it first, or name another table"
                )
        self.check_existing(table, mode)

    def check_existing(self, table: str, mode: Into) -> None:
        """Raise BadSetting if results can't go to a table because one of its name is there."""
        sql = f"SELECT table_type FROM information_schema.tables WHERE {_named(table)}"
        with self._errors(sql):
            kinds = [kind for (kind,) in self._connected().execute(sql).fetchall()]
        if any("VIEW" in kind for kind in kinds):
            raise refuse_view(table, self.name)
        if kinds and mode is Into.NEW:
            raise refuse_existing(table, self.name)

    def comment(self, table: str) -> str:
        """Return the comment on a table. Raises DatabaseRefused."""
        sql = f"SELECT table_comment FROM information_schema.tables WHERE {_named(table)}"
        with self._errors(sql):
            found = self._connected().execute(sql).fetchall()
        return str(found[0][0] or "") if found else ""

    def write(self, table: str, rows: Iterator[pa.RecordBatch], mode: Into, comment: str) -> int:
        """Write rows into a table in one transaction. Raises what `Source.write` says."""
        with self._errors("", table):
            target = _Target(self._connected(writing=True), table)
            self.check(table, mode)
            return written(target, rows, mode, comment)

    def close(self) -> None:
        """End the connection, unless it was given."""
        if self._connection is not None and self._given is None:
            self._connection.close()
        self._connection = None
        self._made.clear()

    def forget(self, table: str) -> None:
        """Let what stands for a table that was missing be looked for again."""
        for name in [one for one in self._made if one.lower() == table.lower()]:
            self._connected().execute(f"DROP VIEW IF EXISTS {quoted(name)}")
            self._made.remove(name)

    # ------------------------------------------------------------------ the connection

    def _connected(self, writing: bool = False) -> Any:
        if self._connection is not None and (self._may_write or not writing):
            return self._connection
        self.close()
        self._may_write = writing or not self._file
        if self._given is not None:
            self._connection = self._given
        elif self._file:
            self._connection = duckdb.connect(self._file, read_only=not writing, config=SETTINGS)
        else:
            self._connection = duckdb.connect(config=SETTINGS)
        for name, frame in self._tables.items():
            self._connection.register(name, frame)
        return self._connection

    def _answer(self, text: str, params: Params) -> Any:
        """Return what a statement gives, as a relation; tables that are missing are made of what stands for them."""
        while True:
            connection = self._connected()
            try:
                return connection.sql(text, params=params or None)
            except duckdb.Error as error:
                if "extension httpfs" in str(error) and _reach(connection, str(error)):
                    continue
                said = _explained(connection, text, params, error)
                name = _missing_name(said) if isinstance(error, duckdb.CatalogException) else ""
                origin = self._missing(name) if name and name not in self._made else None
                if origin is None:
                    near = nearest(name, self._known()) if name else ""
                    reason = (
                        f"Catalog Error: Table with name {name} does not exist{near}"
                        if near
                        else _reason(said)
                    )
                    raise DatabaseRefused(self.name, reason, _place(text, said)) from error
                _reach(connection, origin)
                connection.execute(f"CREATE TEMP VIEW {quoted(name)} AS SELECT * FROM {origin}")
                self._made.add(name)

    @contextmanager
    def _errors(self, statement: str, table: str = "") -> Iterator[None]:
        """Raise what DuckDB says as our own errors; `table`: into which rows are written."""
        try:
            yield
        except duckdb.Error as error:
            said = _said(error)
            reason = _reason(said)
            if "lock on file" in reason:
                raise BadSetting(
                    f"--database: {self.name} is open in another process, which may be a shell or a notebook; close it there, since DuckDB "
                    "lets one process at a time write"
                ) from error
            if table and is_full(reason):
                raise full_disk(table) from error
            raise DatabaseRefused(self.name, reason, _place(statement, said)) from error


def _reach(connection: Any, text: str) -> bool:
    """Let fsspec read the files of a server that a text names, for DuckDB needs an extension; tell whether that is new."""
    asked = _SERVER.search(text)
    if asked is None or connection.filesystem_is_registered(asked.group(1)):
        return False
    files, _ = opened_server(asked.group())
    connection.register_filesystem(files)
    return True


_EXPLAIN = "EXPLAIN "


def _explained(connection: Any, text: str, params: Params, error: Exception) -> Mapping[str, Any]:
    """Return what DuckDB says of a statement that it refused, with the place if it tells."""
    with suppress(duckdb.Error):
        connection.execute("SET errors_as_json = true")
        try:
            connection.execute(_EXPLAIN + text, params or None)
        except duckdb.Error as again:
            said = dict(_said(again))
            position = str(said.get("position", ""))
            if type(again) is type(error) and position.isdecimal():
                said["position"] = int(position) - len(_EXPLAIN)
                return said
        finally:
            connection.execute("RESET errors_as_json")
    return _said(error)


def _said(error: Exception) -> Mapping[str, Any]:
    """Return what DuckDB says, with the fields that it names itself if it was asked to."""
    start, brace, rest = str(error).partition("{")
    if brace:
        with suppress(ValueError):
            said = json.loads(brace + rest)
            if isinstance(said, dict) and "exception_message" in said:
                return {**said, "exception_message": f"{start}{said['exception_message']}"}
    return {"exception_message": str(error)}


_MISSING = re.compile(r"Catalog Error: Table with name (.+) does not exist!")


def _missing_name(said: Mapping[str, Any]) -> str:
    """Return the name of the table that is missing; of TABLE, DESCRIBE, SUMMARIZE and EXPLAIN the sentence alone has it."""
    found = _MISSING.match(str(said["exception_message"]))
    return str(said.get("name", "")) or (found.group(1) if found else "")


def _reason(said: Mapping[str, Any]) -> str:
    return " ".join(str(said["exception_message"]).split())[:1000]


def _place(statement: str, said: Mapping[str, Any]) -> int | None:
    """Return the character that DuckDB names, which counts bytes."""
    position = str(said.get("position", ""))
    if not position.isdecimal() or not statement:
        return None
    return len(statement.encode()[: int(position)].decode(errors="ignore"))


def _named(table: str) -> str:
    """Return the condition for the rows of information_schema.tables that a name leads to."""
    *above, name = table.split(".")
    within = (
        f"lower({text(above[-1])}) IN (lower(table_schema), lower(table_catalog))"
        if above
        else "table_schema IN ('main', current_schema()) AND table_catalog IN ('temp', current_database())"
    )
    return f"lower(table_name) = lower({text(name)}) AND {within}"


class _Target:
    """A table of DuckDB, for `Target`."""

    def __init__(self, connection: Any, table: str) -> None:
        self._connection = connection
        self._place = quoted_table(table)

    def begin(self) -> None:
        self._connection.execute("BEGIN TRANSACTION")

    def start(self, schema: pa.Schema, mode: Into) -> int:
        if mode is Into.REPLACE:
            self._connection.execute(f"DROP TABLE IF EXISTS {self._place}")
        made = "TABLE IF NOT EXISTS" if mode is Into.APPEND else "TABLE"
        with self._incoming(schema.empty_table()):
            self._connection.execute(f"CREATE {made} {self._place} AS SELECT * FROM {_INCOMING}")
        return self.count()

    def insert(self, rows: pa.RecordBatch) -> None:
        with self._incoming(pa.Table.from_batches([rows])):
            self._connection.execute(f"INSERT INTO {self._place} BY NAME SELECT * FROM {_INCOMING}")

    def count(self) -> int:
        ((count,),) = self._connection.execute(f"SELECT count(*) FROM {self._place}").fetchall()
        return int(count)

    def mark(self, comment: str) -> None:
        self._connection.execute(f"COMMENT ON TABLE {self._place} IS {text(comment)}")

    def commit(self) -> None:
        self._connection.execute("COMMIT")

    def rollback(self) -> None:
        self._connection.execute("ROLLBACK")

    @contextmanager
    def _incoming(self, rows: pa.Table) -> Iterator[None]:
        self._connection.register(_INCOMING, rows)
        try:
            yield
        except BaseException:
            with suppress(duckdb.Error):  # the transaction has ended, and what is said of that would hide why
                self._connection.unregister(_INCOMING)
            raise
        self._connection.unregister(_INCOMING)
