"""Where rows come from: URLs, open connections, data frames, files of a directory."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import duckdb
import pyarrow as pa
import pyarrow.parquet
import pytest

from elasticdl.errors import BadSetting
from elasticdl.query import grammar
from elasticdl.query.source import DatabaseRefused, Source, open_source
from elasticdl.query.statements import Native
from elasticdl.spec.readers import database_url


def read(source: Source, select: str) -> list[dict[str, object]]:
    return pa.Table.from_batches(source.rows(select)).to_pylist()


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Source]:
    (tmp_path / "people.csv").write_text("name,age\nAnn,31\nBob,\n")
    (tmp_path / "Pets.json").write_text('{"name": "Rex", "legs": 4}\n')
    pyarrow.parquet.write_table(pa.table({"a b": [1, 2]}), tmp_path / "年.parquet")
    (tmp_path / "broken.csv").write_bytes(b"\xff\xfe,\n\0")
    source = open_source(folder=tmp_path)
    yield source
    source.close()


def test_files_of_a_directory_are_tables(folder: Source) -> None:
    assert read(folder, "SELECT name, age FROM People") == [
        {"name": "Ann", "age": 31},
        {"name": "Bob", "age": None},
    ]
    assert read(folder, "WITH x AS (FROM pets) SELECT p.name FROM people p, x WHERE age > legs") == [
        {"name": "Ann"}
    ]
    assert read(folder, 'FROM "年"') == [{"a b": 1}, {"a b": 2}]
    assert folder.schema("SELECT age, age, name FROM people").names == ["age", "age", "name"]


@pytest.mark.parametrize("table", ["people", "PEOPLE", '"年"', "Pets"])
def test_files_are_looked_at_as_tables_are(folder: Source, table: str) -> None:
    name = table.strip('"')
    columns = folder.schema(f"FROM {table}").names
    folder.close()
    for text in ("DESCRIBE", "SUMMARIZE", "SHOW"):
        answer = folder.run(f"{text} {table}")
        assert answer is not None
        assert answer["column_name"].to_pylist() == columns
        folder.close()
    assert folder.schema(f"TABLE {table}").names == columns
    folder.close()
    plan = folder.run(f"EXPLAIN SELECT * FROM {table}")
    assert plan is not None
    for text in (f"DESCRIBE {name}s", f"SUMMARIZE {name}s", f"TABLE {name}s"):
        with pytest.raises(DatabaseRefused, match=f"Table with name {name}s does not exist"):
            folder.run(text)


@pytest.mark.parametrize("text", ["DESCRIBE poeple", "SELECT * FROM poeple"])
def test_a_file_that_may_be_meant(folder: Source, text: str) -> None:
    with pytest.raises(
        DatabaseRefused, match=r"Table with name poeple does not exist; did you mean people\?$"
    ) as caught:
        folder.run(text)
    assert caught.value.place == (14 if "SELECT" in text else None)


def test_a_statement_before_the_query(folder: Source) -> None:
    folder.run("CREATE TABLE adults AS FROM people WHERE age > 20")
    assert read(folder, "FROM adults") == [{"name": "Ann", "age": 31}]
    answer = folder.run("SELECT count(*) AS n FROM adults")
    assert answer is not None
    assert answer.to_pylist() == [{"n": 1}]


def test_two_files_of_one_name(folder: Source, tmp_path: Path) -> None:
    (tmp_path / "people.parquet").write_bytes(b"")
    with pytest.raises(
        BadSetting, match=r"people may be people\.csv and people\.parquet .*read_csv\('.*people\.csv'\)"
    ):
        folder.schema("FROM people")


def test_data_frames_are_tables(tmp_path: Path) -> None:
    people = pa.table({"name": ["Ann"]})
    with closing(open_source(tables={"people": people}, folder=tmp_path)) as source:
        assert read(source, "FROM people") == [{"name": "Ann"}]
        secret = people  # a name of this function is no table
        with pytest.raises(DatabaseRefused, match="Table with name secret does not exist"):
            source.schema("FROM secret")
        del secret
    with pytest.raises(
        BadSetting, match=r"data frames can be tables of DuckDB only; got 'people' beside sqlite:///x\.db"
    ):
        open_source("sqlite:///x.db", {"people": people})


@pytest.mark.parametrize(
    ("select", "place"),
    [
        ("SELECT nmae FROM people", 7),
        ("SELECT '年' AS x, nmae FROM people", 17),
        ("SELEC 1", 0),
        ("FROM nix", 5),
        ("SELECT 1 +", None),
    ],
)
def test_what_duckdb_refuses_and_where(folder: Source, select: str, place: int | None) -> None:
    with pytest.raises(DatabaseRefused) as caught:
        folder.schema(select)
    if place is not None:
        assert caught.value.place == place
    assert str(caught.value).startswith(f"{folder.name}: the database says: {caught.value.reason}")
    assert "{" not in caught.value.reason


def test_duckdb_fetches_no_extension(folder: Source) -> None:
    with pytest.raises(DatabaseRefused, match=r"httpfs|[Ee]xtension|HTTP"):
        folder.schema("SELECT * FROM read_csv('http://127.0.0.1:9/x.csv')")


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("duckdb:x.db", "duckdb:///x.db"),
        ("duckdb:/data/x.db", "duckdb:////data/x.db"),
        ("sqlite:a/x.db?mode=ro", "sqlite:///a/x.db?mode=ro"),
        ("duckdb:///x.db", "duckdb:///x.db"),
        ("duckdb://x.db", "duckdb://x.db"),  # refused with what to write
        ("duckdb:", "duckdb:"),
        ("postgresql:x", "postgresql:x"),
        ("s3://a/b:c", "s3://a/b:c"),
        ("x.db", "x.db"),
    ],
)
def test_a_file_after_one_colon(given: str, url: str) -> None:
    assert database_url(given) == url


def test_files_and_connections_of_duckdb(tmp_path: Path) -> None:
    file = tmp_path / "data.db"
    with duckdb.connect(str(file)) as database:
        database.execute("CREATE TABLE t AS SELECT 1 AS a")
    with closing(open_source(f"duckdb:///{file}")) as source:
        assert read(source, "FROM t") == [{"a": 1}]
        source.run("INSERT INTO t VALUES (2)")
        assert len(read(source, "FROM t")) == 2
    with duckdb.connect(str(file)) as database:
        source = open_source(database)
        assert len(read(source, "FROM t")) == 2
        with pytest.raises(DatabaseRefused, match="nix"):
            source.schema("FROM nix")
        source.close()
        assert database.execute("SELECT count(*) FROM t").fetchall() == [(2,)]


def test_a_file_of_duckdb_that_another_process_writes(tmp_path: Path) -> None:
    file = tmp_path / "data.db"
    hold, told = os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        with duckdb.connect(str(file)):
            os.write(told[1], b".")
            os.close(hold[1])
            os.read(hold[0], 1)
        os._exit(0)
    os.read(told[0], 1)
    try:
        with pytest.raises(
            BadSetting, match="is open in another process, which may be a shell or a notebook; close it there"
        ):
            open_source(f"duckdb:///{file}").schema("SELECT 1")
    finally:
        os.close(hold[1])
        os.waitpid(child, 0)


def test_sqlite(tmp_path: Path) -> None:
    file = tmp_path / "data.db"
    with closing(sqlite3.connect(file)) as database:
        database.execute("CREATE TABLE t (a, b)")
        database.execute("INSERT INTO t VALUES (1, 'x'), (2.5, NULL)")
        database.commit()
        given = open_source(database)
        assert read(given, "SELECT * FROM t") == [{"a": 1.0, "b": "x"}, {"a": 2.5, "b": None}]
        given.run("INSERT INTO t VALUES (3, 'y')")
        given.close()
        assert not database.in_transaction
    with closing(open_source(f"sqlite:///{file}")) as source:
        assert source.schema("SELECT a, a, b FROM t").names == ["a", "a", "b"]
        assert source.run("DELETE FROM t WHERE a = 1") is None
        assert len(read(source, "SELECT * FROM t")) == 2
        with pytest.raises(DatabaseRefused, match="no such table: nix"):
            source.schema("SELECT * FROM nix")


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("duckdb:///nix.db", r"duckdb:///nix\.db: there is no file nix\.db"),
        ("sqlite:///nix.db", r"sqlite:///nix\.db: there is no file nix\.db"),
        ("sqlite://", "there is no file"),
        (
            "gopher://me:secret@host/x",
            r"gopher://me:\*\*\*@host/x is no database that is known; give duckdb:///FILE",
        ),
    ],
)
def test_databases_that_are_refused(url: str, says: str) -> None:
    with pytest.raises(BadSetting, match=says) as caught:
        open_source(url)
    assert "secret" not in str(caught.value)


def test_an_object_that_is_no_connection() -> None:
    with pytest.raises(BadSetting, match="a SimpleNamespace is no database that is known"):
        open_source(SimpleNamespace())


def test_a_trigger_of_sqlite_is_sent_whole(tmp_path: Path) -> None:
    (tmp_path / "data.db").touch()
    script = """CREATE TABLE t (a); CREATE TABLE seen (a);
    CREATE TRIGGER r AFTER INSERT ON t BEGIN INSERT INTO seen VALUES (CASE WHEN NEW.a THEN 'x;' END); DELETE FROM t; END;
    INSERT INTO t VALUES (1)"""
    with closing(open_source(f"sqlite:///{tmp_path}/data.db")) as source:
        for statement in grammar.parse(script, source.dialect):
            assert isinstance(statement, Native)
            source.run(statement.text)
        assert read(source, "SELECT a, (SELECT count(*) FROM t) AS n FROM seen") == [{"a": "x;", "n": 0}]
