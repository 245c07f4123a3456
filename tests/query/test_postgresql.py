"""Rows from and results into a real PostgreSQL server; skipped where Debian's package `postgresql` is not installed, a failure in CI."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from elasticdl.errors import BadData, BadSetting
from elasticdl.query import results, snapshot
from elasticdl.query.source import DatabaseRefused, Into, Source, open_source

pytest.importorskip("adbc_driver_postgresql.dbapi")

from tests.data.test_postgresql import PASSWORD, Server

from .test_results import BATCHES, COMMENT, ROWS, WHOLE, batches


@pytest.fixture(scope="module")
def running() -> Iterator[Server]:
    if not shutil.which("initdb") and not any(Path("/usr/lib/postgresql").glob("*/bin/initdb")):
        why = "there is no PostgreSQL here: make setup-databases"
        pytest.fail(why) if os.environ.get("CI") == "true" else pytest.skip(why)
    # not in pytest's own directory, into which the server's user can't look
    with tempfile.TemporaryDirectory(prefix="elasticdl-") as folder:
        server = Server(Path(folder))
        server.make()
        server.start()
        yield server
        server.stop()


@pytest.fixture
def server(running: Server, monkeypatch: pytest.MonkeyPatch) -> Server:
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    running.ask("DROP SCHEMA IF EXISTS public CASCADE")
    running.ask("CREATE SCHEMA public")
    return running


@pytest.fixture
def source(server: Server) -> Iterator[Source]:
    with closing(open_source(server.table().url)) as found:
        yield found


def read(source: Source, select: str) -> list[dict[str, Any]]:
    return pa.Table.from_batches(source.rows(select)).to_pylist()


def test_a_snapshot(server: Server, source: Source, tmp_path: Path) -> None:
    server.ask("CREATE TYPE mood AS ENUM ('sad', 'ok')")
    source.run(
        """CREATE TABLE t AS SELECT i AS id, (i / 4.0)::numeric(9, 2) AS price, i / 3.0 AS share, 'ok'::mood AS mood, NULL::int AS nothing,
        gen_random_uuid() AS u, timestamptz '1970-01-02 00:00+00' AS at, ARRAY[i, 2] AS pair, i AS "a/b", i AS "年", i AS "x""y"
        FROM generate_series(1, 1000) AS r(i)"""
    )
    schema = source.schema("SELECT * FROM t")
    assert list(map(str, schema.types))[:5] == ["int32", "decimal128(9, 2)", "double", "string", "int32"]
    got = snapshot.take(source, "SELECT * FROM t WHERE id > $1", (100,), directory=tmp_path / "s", seed=1)
    assert (got.rows, got.schema) == (900, schema)
    trained = pyarrow.parquet.read_table(got.training).to_pylist()
    assert {type(row["price"]) for row in trained} == {float}
    assert [{name: row[name] for name in ("price", "at", "pair", "年", "a/b", 'x"y', "mood")} for row in trained if row["id"] == 500] in (
        [],
        [{"price": 125.0, "at": 86400.0, "pair": [500, 2], "年": 500, "a/b": 500, 'x"y': 500, "mood": "ok"}],
    )  # fmt: skip


def test_a_decimal_that_is_not_a_number(source: Source) -> None:
    source.run("CREATE TABLE t AS SELECT 'NaN'::numeric(9, 2) AS d UNION ALL SELECT 1.5")
    first, *_ = sorted(read(source, "SELECT d FROM t"), key=lambda row: row["d"] == 1.5, reverse=True)
    assert first["d"] == 1.5


@pytest.mark.parametrize(
    ("select", "says", "place"),
    [
        ("SELECT '年', nix FROM generate_series(1, 2)", 'column "nix" does not exist', 12),
        ("SELEC 1", 'syntax error at or near "SELEC"', 0),
        ("SELECT * FROM nix", 'relation "nix" does not exist', 14),
    ],
)
def test_what_it_refuses_and_where(source: Source, select: str, says: str, place: int) -> None:
    for asked in (source.schema, lambda one: list(source.rows(one)), source.run):
        with pytest.raises(DatabaseRefused) as caught:
            asked(select)
        assert (caught.value.reason, caught.value.place) == (says, place)
    assert read(source, "SELECT 1 AS a") == [{"a": 1}]


def test_no_message_has_the_password(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PGPASSWORD")
    for url in (
        f"postgresql://me:very%20secret@/postgres?host={server.socket}",
        "postgresql://me:very%20secret@/postgres?host=/nowhere",
        "postgresql://me:very%20secret@[::1/postgres",
        "postgresql://me@/postgres?host=/nowhere&password=very%20secret&nix=1",
    ):
        with pytest.raises(DatabaseRefused) as caught:
            open_source(url).schema("SELECT 1")
        assert "secret" not in f"{caught.value} {caught.value.__cause__}", caught.value


@pytest.mark.parametrize("table", ["result", 'public.re"sult'])
def test_results(source: Source, table: str) -> None:
    place = ".".join('"' + part.replace('"', '""') + '"' for part in table.split("."))

    def ids() -> list[int]:
        return [row["id"] for row in read(source, f"SELECT id FROM {place} ORDER BY id")]

    assert results.write(source, table, batches(), Into.NEW, COMMENT) == BATCHES * ROWS
    assert read(source, f"SELECT obj_description('{place}'::regclass) AS c") == [{"c": COMMENT}]
    assert ids() == WHOLE
    with pytest.raises(BadSetting, match="exists, and results go to a new table"):
        results.write(source, table, batches(), Into.NEW, COMMENT)
    results.write(source, table, batches(1000), Into.APPEND, f"{COMMENT} of another run")
    assert len(ids()) == 2 * len(WHOLE)
    results.write(source, table, batches(2000), Into.REPLACE, COMMENT)
    assert ids() == list(range(2000, 2000 + len(WHOLE)))


def test_an_error_among_the_rows_changes_nothing(source: Source) -> None:
    def broken() -> Iterator[pa.RecordBatch]:
        yield from batches()
        raise KeyError

    for mode in Into:
        with pytest.raises(KeyError):
            results.write(source, "result", broken(), mode, COMMENT)
    source.check("result", Into.NEW)
    source.run("CREATE VIEW result AS SELECT 1 AS id")
    with pytest.raises(BadSetting, match="no table but a view"):
        source.check("result", Into.REPLACE)
    with pytest.raises(BadSetting, match="has 64 bytes, and PostgreSQL cuts off names after 63"):
        source.check("x" * 64, Into.NEW)


class Losing:
    """A connection that ends at its commit: before the server has done it, or after."""

    def __init__(self, connection: Any, server: Server, after: bool) -> None:
        self._connection, self._server, self._after = connection, server, after

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def commit(self) -> None:
        if self._after:
            self._connection.commit()
        self._server.ask(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND usename = 'me'"
        )
        self._connection.cursor().execute("SELECT 1")


@pytest.mark.parametrize("after", [False, True])
def test_a_lost_commit_is_told_by_the_comment(server: Server, source: Any, after: bool) -> None:
    source._connection = Losing(source.connect(), server, after)
    if after:
        assert results.write(source, "result", batches(), Into.NEW, COMMENT) == len(WHOLE)
    else:
        with pytest.raises(BadData, match="the database says"):
            results.write(source, "result", batches(), Into.NEW, COMMENT)
        assert results.write(source, "result", batches(), Into.NEW, COMMENT) == len(WHOLE)
    assert len(read(source, "SELECT id FROM result")) == len(WHOLE)


def test_of_two_that_append_the_same_the_second_waits_and_adds_nothing(
    server: Server, source: Source
) -> None:
    """As two pods do of which one seemed to be lost."""
    results.write(source, "result", batches(1000), Into.APPEND, "another")
    asked = (
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE 'LOCK TABLE%'"
    )

    def second() -> None:
        with closing(open_source(server.table().url)) as other:
            results.once(other, "result", batches, Into.APPEND, COMMENT)

    thread = threading.Thread(target=second)

    def first() -> Iterator[pa.RecordBatch]:
        for at, batch in enumerate(batches()):
            if at == 1:
                thread.start()
                while server.ask(asked) != [(1,)]:
                    assert thread.is_alive()
            yield batch

    results.once(source, "result", first, Into.APPEND, COMMENT)
    thread.join()
    assert len(read(source, "SELECT id FROM result")) == 2 * len(WHOLE)
    results.once(source, "result", batches, Into.APPEND, COMMENT)
    assert len(read(source, "SELECT id FROM result")) == 2 * len(WHOLE)


def test_types_that_it_has_not(source: Source) -> None:
    row = pa.RecordBatch.from_pydict(
        {
            "u": pa.array([2**32 - 1], pa.uint32()),
            "e": pa.array(["x"]).dictionary_encode(),
            "n": pa.nulls(1),
            "p": pa.array([[0.25, 0.75]], pa.list_(pa.float32())),
        }
    )
    results.write(source, "result", iter([row]), Into.NEW, COMMENT)
    assert read(source, "SELECT * FROM result") == [{"u": 2**32 - 1, "e": "x", "n": None, "p": [0.25, 0.75]}]
