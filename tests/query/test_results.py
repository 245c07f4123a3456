"""Results into tables: all rows or none, wherever the writer is killed."""

from __future__ import annotations

import os
import resource
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet
import pytest

from elasticdl.errors import BadData, BadSetting, JobFailed, Unwritable
from elasticdl.files import drafts
from elasticdl.query import dbapi, folder, mysql, mysqlwriting, results
from elasticdl.query import duckdb as duckdbsource
from elasticdl.query.source import Into, Source, open_source

from .mariadb import PASSWORD, Server

COMMENT = "income@20261126T113005123Z-ffff 3f2a it's */ one"
BATCHES = 3
ROWS = 40


def batches(first: int = 0) -> Iterator[pa.RecordBatch]:
    for at in range(BATCHES):
        ids = range(first + at * ROWS, first + (at + 1) * ROWS)
        columns = {
            "id": pa.array(ids),
            "income": pa.array([f"{one} €" if one % 2 else None for one in ids], pa.string()),
            'p "ro"/b.': pa.array([[0.25, 0.75]] * ROWS),
        }
        yield pa.RecordBatch.from_pydict(columns)


@dataclass
class Place:
    """A database, and how its rows are seen from outside."""

    kind: str
    path: Path

    def opened(self) -> Source:
        match self.kind:
            case "folder":
                return open_source(folder=self.path)
            case "mysql":
                return open_source(Server(self.path).url)
            case kind:
                return open_source(f"{kind}:///{self.path}/data.db")

    def make(self) -> None:
        if self.kind == "sqlite":
            sqlite3.connect(self.path / "data.db").execute("CREATE TABLE there (a)").connection.close()
        elif self.kind == "duckdb":
            duckdb.connect(str(self.path / "data.db")).execute("CREATE TABLE there (a INTEGER)").close()
        elif self.kind == "mysql":
            Server(self.path).ask("CREATE TABLE test.there (a INTEGER)")

    def ids(self, table: str = "result") -> list[int] | None:
        """Return the ids in a table, None if it is not there."""
        with closing(self.opened()) as source:
            try:
                source.check(table, Into.NEW)
            except BadSetting:
                return pa.Table.from_batches(source.rows(f"SELECT id FROM {table}"))["id"].to_pylist()
            return None

    def comment(self) -> str:
        match self.kind:
            case "folder":
                kept = pyarrow.parquet.read_metadata(self.path / "result.parquet").metadata
                return str(kept[b"elasticdl.comment"].decode())
            case "duckdb":
                asked = "SELECT comment FROM duckdb_tables() WHERE table_name = 'result'"
            case "mysql":
                asked = "SELECT table_comment FROM information_schema.tables WHERE table_name = 'result'"
            case _:
                asked = "SELECT sql FROM sqlite_master WHERE name = 'result'"
        with closing(self.opened()) as source:
            found = source.run(asked)
            assert found is not None
            return str(found.to_pylist()[0].popitem()[1])


@pytest.fixture(params=["duckdb", "sqlite", "folder", "mysql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    server = request.param == "mysql"
    found = Place(request.param, request.getfixturevalue("mariadb").folder if server else tmp_path)
    found.make()
    return found


def write(place: Place, mode: Into = Into.NEW, first: int = 0) -> int:
    with closing(place.opened()) as source:
        return results.write(source, "result", batches(first), mode, COMMENT)


WHOLE = list(range(BATCHES * ROWS))


def test_rows_and_a_comment(place: Place) -> None:
    assert write(place) == BATCHES * ROWS
    assert place.ids() == WHOLE
    comment = COMMENT.replace("*/", "* /" if place.kind == "sqlite" else "*/")
    assert comment in place.comment()
    with closing(place.opened()) as source:
        assert (source.comment("none"), source.comment("result")) == ("", comment)
        first = pa.Table.from_batches(source.rows("SELECT * FROM result")).to_pylist()[0]
    vector = "[0.25, 0.75]" if place.kind in ("sqlite", "mysql") else [0.25, 0.75]
    assert first == {"id": 0, "income": None, 'p "ro"/b.': vector}


def test_a_table_that_exists(place: Place) -> None:
    write(place)
    with pytest.raises(
        BadSetting, match=r"the table result of .* exists, .*say WITH predict\.into='replace' or 'append'"
    ):
        write(place)
    assert place.ids() == WHOLE
    write(place, Into.APPEND, 1000)
    assert place.ids() == [*WHOLE, *range(1000, 1000 + len(WHOLE))]
    write(place, Into.REPLACE, 2000)
    assert place.ids() == list(range(2000, 2000 + len(WHOLE)))


def test_a_new_table_may_be_replaced_and_appended_to(place: Place) -> None:
    write(place, Into.APPEND)
    assert place.ids() == WHOLE
    with closing(place.opened()) as source:
        results.write(source, "other", batches(), Into.REPLACE, COMMENT)
    assert place.ids("other") == WHOLE


@pytest.mark.parametrize("mode", list(Into))
def test_an_error_among_the_rows_changes_nothing(place: Place, mode: Into) -> None:
    def broken() -> Iterator[pa.RecordBatch]:
        yield from batches(500)
        raise KeyError("a part is missing")

    before = None
    if mode is not Into.NEW:
        write(place)
        before = WHOLE
    with closing(place.opened()) as source:
        with pytest.raises(KeyError):
            results.write(source, "result", broken(), mode, COMMENT)
        # the connection goes on
        assert results.write(source, "after", batches(), Into.NEW, COMMENT) == len(WHOLE)
    assert place.ids() == before


def test_other_columns_are_not_appended(place: Place) -> None:
    write(place)
    with closing(place.opened()) as source, pytest.raises(BadData) as caught:
        results.write(source, "result", iter([pa.RecordBatch.from_pydict({"x": [1]})]), Into.APPEND, COMMENT)
    assert place.ids() == WHOLE
    reason = {
        "duckdb": 'Table "result" does not have a column with name "x"',
        "sqlite": "no column named x",
        "mysql": "Unknown column 'x'",
        "folder": "has other columns than the results",
    }[place.kind]
    assert reason in str(caught.value)


def test_a_connection_of_duckdb_serves_after_rows_that_were_refused(tmp_path: Path) -> None:
    with duckdb.connect(str(tmp_path / "data.db")) as connection, closing(open_source(connection)) as source:
        connection.execute("CREATE TABLE there (a INTEGER)")
        row = pa.RecordBatch.from_pydict({"b": [1]})
        with pytest.raises(BadData, match='does not have a column with name "b"'):
            results.write(source, "there", iter([row]), Into.APPEND, COMMENT)
        assert results.write(source, "result", iter([row]), Into.NEW, COMMENT) == 1
        assert connection.execute("SHOW TABLES").fetchall() == [("result",), ("there",)]


def test_a_schema_that_duckdb_has_not(tmp_path: Path) -> None:
    with duckdb.connect() as connection, closing(open_source(connection)) as source:
        connection.execute("CREATE SCHEMA own")
        for table in ("own.t", "OWN.t", "memory.t", "memory.own.t"):
            source.check(table, Into.NEW)
        with pytest.raises(
            BadSetting, match=r"^there is no schema nosuch in .* for the table nosuch\.t; make it"
        ):
            source.check("nosuch.t", Into.NEW)


def test_no_rows_make_an_empty_table(place: Place) -> None:
    with closing(place.opened()) as source:
        assert results.write(source, "result", iter([next(batches()).slice(0, 0)]), Into.NEW, COMMENT) == 0
    assert place.ids() == []


def test_a_view_is_no_table(place: Place) -> None:
    if place.kind == "folder":
        pytest.skip("files are no views")
    with closing(place.opened()) as source:
        source.run("CREATE VIEW result AS SELECT * FROM there")
        for mode in Into:
            with pytest.raises(BadSetting, match=r"result of .* is no table but a view"):
                results.write(source, "result", batches(), mode, COMMENT)


class Writers:
    """A process that forks itself for each write; it has imported all that is needed, and never opened a database: those have threads."""

    def __init__(self) -> None:
        line = [sys.executable, "-c", f"from {__name__} import *; fork_writers()"]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            line,
            stdin=pipe,
            stdout=pipe,
            text=True,
            cwd=Path(__file__).parents[2],
            env={**os.environ, "MYSQL_PWD": PASSWORD},
        )

    def write(self, place: Place, mode: Into, point: int = -1) -> int:
        """Write, and return how many lines of those that write were run; the writer was killed at line `point`, if that is given."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(place.kind, place.path, mode, point, file=self._process.stdin, flush=True)
        lines = int(self._process.stdout.readline())
        assert lines == point or point < 0 < lines
        return lines

    def close(self) -> None:
        self._process.communicate()


def fork_writers() -> None:
    list(batches())  # the first ones import Pandas, which each writer would do for itself
    for line in sys.stdin:
        kind, path, mode, point = line.split()
        child = os.fork()
        if not child:
            counter = Counter(int(point))
            sys.settrace(counter.seen)
            write(Place(kind, Path(path)), Into(mode))
            sys.settrace(None)
            print(counter.lines, flush=True)
            os._exit(0)
        if ended := os.waitpid(child, 0)[1]:
            print(point if ended == signal.SIGKILL else "-1", flush=True)


WRITING = (
    *(module.__file__ for module in (dbapi, duckdbsource, folder, mysql, mysqlwriting, results)),
    drafts.__file__,
)


class Counter:
    """Counts lines of those that write, and kills this process before it runs number `point`, from 0."""

    def __init__(self, point: int) -> None:
        self.lines = 0
        self._point = point

    def seen(self, frame: FrameType, event: str, arg: Any) -> Any:
        if frame.f_code.co_filename not in WRITING:
            return None
        if event == "line":
            if self.lines == self._point:
                os.kill(os.getpid(), signal.SIGKILL)
            self.lines += 1
        return self.seen


def check_kills(place: Place, writers: Writers, mode: Into, parts: int) -> None:
    """Kill a writer at points that are spread over its work, more of them near its end."""
    before = None if mode is Into.NEW else [1]
    after = [1, *WHOLE] if mode is Into.APPEND else WHOLE

    def begin() -> None:
        if before is None:
            if place.ids() is not None:
                remove(place)
        else:
            with closing(place.opened()) as source:
                results.write(source, "result", iter([next(batches()).slice(1, 1)]), Into.REPLACE, "before")

    begin()
    lines = writers.write(place, mode)
    assert place.ids() == after
    found = set()
    for point in [
        *(lines * part // parts for part in range(1, parts)),
        *range(lines - 3 * parts, lines, 3),
        lines - 1,
    ]:
        begin()
        writers.write(place, mode, point)
        ids = place.ids()
        assert ids in (before, after), f"killed at line {point} of {lines}"
        found.add(ids == after)
    assert False in found
    # a new file gets its name in the last line; what else writes has lines after the commit
    assert True in found or (place.kind, mode) == ("folder", Into.NEW)


@pytest.fixture(scope="module")
def writers() -> Iterator[Writers]:
    with closing(Writers()) as found:
        yield found


def test_a_kill_at_each_point_leaves_all_or_nothing(place: Place, writers: Writers) -> None:
    for mode, parts in ((Into.NEW, 5), (Into.REPLACE, 2), (Into.APPEND, 2)):
        check_kills(place, writers, mode, parts)


def remove(place: Place) -> None:
    if place.kind == "folder":
        (place.path / "result.parquet").unlink()
    else:
        with closing(place.opened()) as source:
            source.run("DROP TABLE result")


def test_types_that_sqlite_has_not(tmp_path: Path) -> None:
    place = Place("sqlite", tmp_path)
    place.make()
    row = pa.RecordBatch.from_pydict(
        {
            "d": pa.array([Decimal("123456789012.34")]),
            "t": pa.array([0], pa.timestamp("us")),
            "b": pa.array([True]),
            "n": pa.nulls(1),
            "e": pa.array(["x"]).dictionary_encode(),
        }
    )
    with closing(place.opened()) as source:
        results.write(source, "result", iter([row]), Into.NEW, COMMENT)
        found = pa.Table.from_batches(source.rows("SELECT *, typeof(d) AS k FROM result")).to_pylist()
        assert found == [
            {"d": 123456789012.34, "t": "1970-01-01 00:00:00", "b": 1, "n": None, "e": "x", "k": "real"}
        ]
        large = pa.RecordBatch.from_pydict({"d": pa.array([2**64 - 1], pa.uint64())})
        with pytest.raises(BadData, match="no integers of more than 64 bits"):
            results.write(source, "large", iter([large]), Into.NEW, COMMENT)
        source.check("large", Into.NEW)


def test_a_wrong_count_is_undone(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    if place.kind == "folder":
        pytest.skip("a file has the rows that were written")
    for target in ("duckdb._Target", "dbapi._Target", "mysqlwriting.MySQLTarget"):
        monkeypatch.setattr(f"elasticdl.query.{target}.count", lambda target: 7)
    with pytest.raises(
        JobFailed, match="the table has 7 rows after 120 were written to 7: nothing is changed"
    ):
        write(place)
    assert place.ids() is None


def test_results_wait_for_a_file_that_another_process_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A whole job has made them, and a query's five seconds of patience would throw them away."""
    monkeypatch.setattr("sqlite3.connect", partial(sqlite3.connect, timeout=0))
    holder = sqlite3.connect(tmp_path / "data.db", isolation_level=None, check_same_thread=False)
    holder.execute("BEGIN EXCLUSIVE")
    source = open_source(f"sqlite:///{tmp_path}/data.db")
    with pytest.raises(BadSetting, match="is being written by another process"):
        source.schema("SELECT * FROM sqlite_master")
    release = threading.Timer(0.2, holder.rollback)
    release.start()
    assert source.write("results", batches(), Into.NEW, COMMENT) == BATCHES * ROWS
    release.join()
    source.close()
    holder.close()


def test_a_full_disk(place: Place) -> None:
    if place.kind == "mysql":
        pytest.skip("the server's disk is another process's")

    def many() -> Iterator[pa.RecordBatch]:
        for _ in range(50):
            yield pa.RecordBatch.from_pydict({"id": pa.array(os.urandom(32).hex() for _ in range(2000))})

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 18, before[1]))
    try:
        with closing(place.opened()) as source, pytest.raises(Unwritable):
            results.write(source, "result", many(), Into.NEW, COMMENT)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert place.ids() is None
