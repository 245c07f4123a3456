"""MaxCompute by pyodps: a query is a job there, whose answer comes as Arrow; results go to a new table, which gets its name when
it is whole.

Keys are in MAXCOMPUTE_AK and MAXCOMPUTE_SK, the service in MAXCOMPUTE_ENDPOINT, as for its reader of tables.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pyarrow as pa

from elasticdl.data.readers.maxcompute import connected
from elasticdl.errors import BadSetting
from elasticdl.query.results import refuse_existing, refuse_view, written
from elasticdl.query.source import DatabaseRefused, Into, Params

_HINTS = {"odps.sql.type.system.odps2": "true", "odps.sql.allow.fullscan": "true"}
"""Of statements: all types, and tables of partitions as a whole."""
_ANSWERS = ("SELECT", "WITH", "FROM", "VALUES", "(")
_PLACE = re.compile(r"\[(\d+),(\d+)\]")
"""Of an error, as line and column from 1."""


class MaxComputeSource:
    """A project, for `Source`."""

    dialect = "hive"

    def __init__(self, url: str) -> None:
        """`url`: maxcompute://PROJECT. Raises BadSetting."""
        self._project = url.partition("://")[2].rstrip("/")
        if not self._project or "/" in self._project or "@" in self._project:
            raise BadSetting(
                "--database: name the project alone: maxcompute://PROJECT; its keys are in MAXCOMPUTE_AK and MAXCOMPUTE_SK"
            )
        self.name = f"maxcompute://{self._project}"
        self.client, self._raised = connected(self.name, self._project)

    def schema(self, select: str, params: Params = ()) -> pa.Schema:
        """Return names and types of the columns of a query: a job of its own, without rows. Raises DatabaseRefused."""
        before = "SELECT * FROM ("
        with (
            self._errors(select, len(before)),
            self._answer(f"{before}{select}\n) AS elasticdl LIMIT 0", params) as reader,
        ):
            return _schema(reader)

    def rows(self, select: str, params: Params = ()) -> Iterator[pa.RecordBatch]:
        """Run a query, and yield its rows. Raises DatabaseRefused."""
        with self._errors(select), self._answer(select, params) as reader:
            schema = _schema(reader)
            yield pa.RecordBatch.from_pylist([], schema)
            count = 0
            for batch in reader:
                count += batch.num_rows
                yield batch
            if count != reader.count:
                raise DatabaseRefused(self.name, f"{reader.count:,} rows were promised, and {count:,} came")

    def run(self, text: str, params: Params = ()) -> pa.Table | None:
        """Do what another statement says. Raises DatabaseRefused."""
        if text.lstrip().upper().startswith(_ANSWERS):
            return pa.Table.from_batches(self.rows(text, params))
        _refuse(params)
        with self._errors(text):
            self.execute(text)
        return None

    def check(self, table: str, mode: Into) -> None:
        """Raise BadSetting if results can't go to a table."""
        if mode is not Into.NEW:
            raise BadSetting(
                f"{self.name}: results go to a new table of MaxCompute; leave out predict.into='{mode}', and INSERT INTO the other table "
                "from there"
            )
        with self._errors():
            if not self.client.exist_table(table):
                return
            if self.client.get_table(table).is_virtual_view:
                raise refuse_view(table, self.name)
        raise refuse_existing(table, self.name)

    def comment(self, table: str) -> str:
        """Return the comment on a table. Raises DatabaseRefused."""
        with self._errors():
            there = self.client.exist_table(table)
            return str(self.client.get_table(table).comment or "") if there else ""

    def write(self, table: str, rows: Iterator[pa.RecordBatch], mode: Into, comment: str) -> int:
        """Write rows into a table that gets its name when it is whole. Raises what `Source.write` says."""
        self.check(table, mode)
        with self._errors():
            return written(_Target(self, table, comment), rows, mode, comment)

    def close(self) -> None:
        """Do nothing: each request is by itself."""

    def execute(self, text: str) -> Any:
        """Run a statement as a job, and wait for its end."""
        return self.client.execute_sql(text, hints=_HINTS)

    @contextmanager
    def _answer(self, select: str, params: Params) -> Iterator[Any]:
        _refuse(params)
        with self.execute(select).open_reader(tunnel=True, arrow=True, limit=False) as reader:
            yield reader

    @contextmanager
    def _errors(self, statement: str = "", before: int = 0) -> Iterator[None]:
        """Raise what the service says as our own errors; `before`: characters that were sent before the first line."""
        try:
            yield
        except self._raised as error:
            reason = " ".join(str(error).split())[:1000]
            raise DatabaseRefused(self.name, reason, place_of(reason, statement, before)) from error


def place_of(reason: str, statement: str, before: int = 0) -> int | None:
    """Return the character of a statement that an error names by line and column: `ODPS-0130071:[1,8] Semantic analysis exception`."""
    found = _PLACE.search(reason)
    if found is None or not statement:
        return None
    line, column = int(found.group(1)), int(found.group(2))
    starts = [0, *(match.end() for match in re.finditer("\n", statement))]
    if not 1 <= line <= len(starts):
        return None
    return max(0, starts[line - 1] + column - 1 - (before if line == 1 else 0))


def _refuse(params: Params) -> None:
    if params:
        raise BadSetting("MaxCompute binds no values; write them into the statement, and leave params out")


def _schema(reader: Any) -> pa.Schema:
    from odps.tunnel.io.types import odps_schema_to_arrow_schema

    return odps_schema_to_arrow_schema(reader.schema)


class _Target:
    """A new table, for `Target`. Two that write at once have staging tables of their own."""

    def __init__(self, source: MaxComputeSource, table: str, comment: str) -> None:
        self._source = source
        self._table = table
        self._comment = comment
        mark = hashlib.blake2b(f"{table} {comment}".encode(), digest_size=8).hexdigest()
        *schema, _ = table.split(".")
        self._staging = ".".join([*schema, f"elasticdl_staging_{mark}"])
        self._writer: Any = None

    def begin(self) -> None:
        pass  # there are no transactions

    def start(self, schema: pa.Schema, mode: Into) -> int:
        from odps.models import TableSchema

        columns = TableSchema.from_lists(schema.names, [_type_of(one) for one in schema.types])
        made = self._source.client.create_table(
            self._staging, table_schema=columns, comment=self._comment, hints=_HINTS
        )
        self._writer = made.open_writer(arrow=True)
        return 0

    def insert(self, rows: pa.RecordBatch) -> None:
        self._writer.write(rows)

    def count(self) -> int:
        """Let the service have all rows, and return how many it has."""
        self._writer.close()
        instance = self._source.execute(f"SELECT count(*) AS n FROM {self._staging}")
        with instance.open_reader(tunnel=True, arrow=True, limit=False) as reader:
            return int(next(iter(reader)).column(0)[0].as_py())

    def mark(self, comment: str) -> None:
        pass  # the staging table was made with it

    def commit(self) -> None:
        """Give the table its name; if the answer is lost, its comment tells whether it was done."""
        client = self._source.client
        try:
            client.get_table(self._staging).rename(self._table.split(".")[-1])
        except OSError:
            if not client.exist_table(self._table) or client.get_table(self._table).comment != self._comment:
                raise

    def rollback(self) -> None:
        with suppress(Exception):
            self._source.client.get_table(self._staging).drop(if_exists=True)


_TYPES = {
    pa.bool_(): "boolean",
    pa.int8(): "tinyint",
    pa.int16(): "smallint",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.uint8(): "smallint",
    pa.uint16(): "int",
    pa.uint32(): "bigint",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.large_string(): "string",
    pa.binary(): "binary",
    pa.date32(): "date",
}


def _type_of(kind: pa.DataType) -> str:
    """Return the name of a type there. Raises BadSetting for one that it has not."""
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if pa.types.is_timestamp(kind):
        return "timestamp"
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return f"array<{_type_of(kind.value_type)}>"
    if kind not in _TYPES:
        raise BadSetting(f"MaxCompute has no type for {kind}; CAST it in the SELECT")
    return _TYPES[kind]
