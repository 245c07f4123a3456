"""Tables of databases, and results of queries: SQLite, DuckDB, PostgreSQL.

Their rows have no numbers, so the master asks once, and makes a Parquet table that the job reads. It asks for nothing else, and changes
nothing.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import pyarrow as pa

from elasticdl.data.readers.files import Kind
from elasticdl.data.readers.madetables import ROWS, Made, MadeTable, MadeTables
from elasticdl.data.readers.reader import BadRecords, Reader, filled
from elasticdl.data.readers.tablefiles import TableReader
from elasticdl.data.readers.tables import table_params
from elasticdl.errors import BadData, BadSetting
from elasticdl.spec.databases import quoted, quoted_table, with_parameters, without_password
from elasticdl.spec.readers import database_file, scheme_of


@dataclass(frozen=True, slots=True)
class Query:
    """What a database is asked for.

    Attributes:
        url: of the database, without what is asked for.
        name: of the data, without a password.
        sql: the question.
    """

    url: str
    name: str
    sql: str


def query_of(origin: str, params: Mapping[str, Any]) -> Query:
    """Read a URL such as `sqlite:///flights.db?table=train`; `table` or `query` may be parameters, too. Raises BadSetting."""
    url, _, asked = origin.partition("?")
    others, said = [], {name: params[name] for name in ("table", "query") if name in params}
    for name, value in parse_qsl(asked, keep_blank_values=True):
        if name in ("table", "query"):
            said[name] = value
        else:
            others.append((name, value))
    name = without_password(url)
    if len(said) != 1 or not all(isinstance(value, str) and value.strip() for value in said.values()):
        raise BadSetting(
            f"--training_data: say which rows of {name} are meant, by a table or by a query: {name}?table=NAME, {name}?query=SELECT…, or "
            "one of them in --data_reader_params=\"query='SELECT …'\""
        )
    ((what, value),) = said.items()
    sql = value if what == "query" else f"SELECT * FROM {quoted_table(value)}"
    return Query(with_parameters(url, others), f"{name}?{what}={value}", sql)


def open_table_of(
    origin: str, params: Mapping[str, Any], tables: MadeTables, records_per_task: int, bad_records: BadRecords
) -> Reader:
    """Open the table that is made of a database's answer. Raises BadData or BadSetting."""
    query = query_of(origin, params)
    form = table_params({name: value for name, value in params.items() if name not in ("table", "query")})
    path = tables.once(query.name, {**params, "sql": query.sql}, lambda: _asked(query))
    reader = TableReader(Kind.PARQUET, {query.name: MadeTable(path)}, form, records_per_task, bad_records)
    return filled(query.name, reader, "the answer has no row")


def _asked(query: Query) -> Made:
    scheme = scheme_of(query.url)
    if scheme == "sqlite":
        batches = _errors(query, sqlite3.Error, _sqlite(query))
    elif scheme == "duckdb":
        batches = _duckdb(query)
    else:
        batches = _postgresql(query)
    first = next(batches)
    return Made(first.schema, _with(first, batches))


def _nothing(schema: pa.Schema) -> pa.RecordBatch:
    """Return no rows: the first batch says which columns there are."""
    return pa.record_batch([pa.array([], column.type) for column in schema], schema=schema)


def _with(first: pa.RecordBatch, others: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield first
    yield from others


def _errors(
    query: Query, kinds: type[Exception] | tuple[type[Exception], ...], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Raise BadData for what a database says."""
    try:
        yield from batches
    except kinds as error:
        reason = " ".join(str(error).split())
        raise BadData(
            f"{query.name}: the database says: {reason[:500]}; does `{query.sql[:200]}` work in its own shell?"
        ) from error


def _file(query: Query) -> Path:
    path = Path(database_file(query.url))
    if path == Path():
        raise BadSetting(f"{query.name} names no file; write its path behind three slashes: sqlite:///x.db")
    if not path.is_file():
        raise BadData(
            f"{query.name}: there is no file {path}; an absolute path has four slashes: {scheme_of(query.url)}:////data/x.db"
        )
    return path


def _missing(query: Query, package: str) -> BadSetting:
    return BadSetting(f"{query.name} needs the package {package}: pip install 'elasticdl[sql]'")


_TYPES = {"integer": pa.int64(), "real": pa.float64(), "text": pa.string(), "blob": pa.binary()}


def _sqlite(query: Query) -> Iterator[pa.RecordBatch]:
    """Ask SQLite, in which each value has a type of its own: those of a column have to be of one, or all be numbers."""
    with closing(sqlite3.connect(f"{_file(query).absolute().as_uri()}?mode=ro", uri=True)) as database:
        database.execute("BEGIN")  # both questions see the same
        names = [column[0] for column in database.execute(f"SELECT * FROM ({query.sql}) LIMIT 0").description]
        counts = [f"total(typeof({quoted(name)}) = '{kind}')" for name in names for kind in _TYPES]
        # A column twice in the answer has one name in the count, and is refused later.
        found = database.execute(f"SELECT {', '.join(counts)} FROM ({query.sql})").fetchone()
        kinds = [
            [kind for kind, many in zip(_TYPES, found[at::], strict=False) if many]
            for at in range(0, len(found), len(_TYPES))
        ]
        schema = pa.schema(
            [(name, _type_of(query, name, kind)) for name, kind in zip(names, kinds, strict=True)]
        )
        rows = database.execute(query.sql)
        yield _nothing(schema)
        while block := rows.fetchmany(ROWS):
            columns = zip(*block, strict=True)
            yield pa.record_batch(
                [pa.array(values, column.type) for values, column in zip(columns, schema, strict=True)],
                schema=schema,
            )


def _type_of(query: Query, name: str, kinds: list[str]) -> pa.DataType:
    if len(kinds) > 1 and set(kinds) != {"integer", "real"}:
        raise BadData(
            f"{query.name}: the column {name!r} has values of the types {' and '.join(kinds)}; choose one in a query: "
            f"CAST({quoted(name)} AS {kinds[0].upper()}) AS {quoted(name)}"
        )
    return _TYPES[kinds[-1]] if kinds else pa.string()


def _duckdb(query: Query) -> Iterator[pa.RecordBatch]:
    try:
        import duckdb
    except ImportError:
        raise _missing(query, "duckdb") from None

    def batches() -> Iterator[pa.RecordBatch]:
        file = str(_file(query)) if database_file(query.url) else ""
        with closing(duckdb.connect(file, read_only=True) if file else duckdb.connect()) as database:
            reader = database.sql(query.sql).to_arrow_reader(ROWS)
            yield _nothing(reader.schema)
            yield from reader

    return _errors(query, duckdb.Error, batches())


def _postgresql(query: Query) -> Iterator[pa.RecordBatch]:
    try:
        from adbc_driver_postgresql import dbapi
    except ImportError:
        raise _missing(query, "adbc_driver_postgresql") from None

    def batches() -> Iterator[pa.RecordBatch]:
        with closing(dbapi.connect(query.url)) as database, closing(database.cursor()) as cursor:
            cursor.execute(query.sql)
            reader = cursor.fetch_record_batch()
            yield _nothing(reader.schema)
            yield from reader

    return _errors(query, dbapi.Error, batches())
