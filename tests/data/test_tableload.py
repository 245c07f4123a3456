"""Loads of Parquet files into new tables: all rows or none, once for ever."""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet
import pytest

from elasticdl.data.readers.patience import Patience
from elasticdl.data.writers import duckdbtables, sqlitetables, tableload
from elasticdl.data.writers.tableload import ROWS, TableLoad, check
from elasticdl.errors import BadData, BadSetting, Cancelled, JobFailed, StorageAway, Unwritable
from elasticdl.files.predictions import marked_draft_of
from elasticdl.spec.databases import OutputTable, table_of

RECORDS = ROWS + 10
"""Of which the first part has more than are inserted at a time."""
each = pytest.mark.parametrize("scheme", ["sqlite", "duckdb"])


@dataclass
class Waiting:
    """Patience whose clock knows only waiting; something may happen meanwhile."""

    meanwhile: Callable[[], object] = lambda: None
    now: float = 0.0
    notes: list[str] = field(default_factory=list)

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.meanwhile()

    def patience(self, seconds: float = 300) -> Patience:
        return Patience(
            seconds, lambda text, waits: self.notes.append(text), lambda: None, lambda: self.now, self.wait
        )


def table(scheme: str, tmp_path: Path, name: str = "predictions") -> OutputTable:
    found = table_of(f"{scheme}:///{tmp_path}/data.db?table={name}")
    assert found is not None
    return found


def predictions(first: int, end: int) -> pa.Table:
    numbers = list(range(first, end))
    nothing = [None if number == 3 else number / 2 for number in numbers]
    return pa.table(
        {
            "shard": pa.array(["it's one"] * len(numbers)),
            "record": pa.array(numbers, pa.int64()),
            "kept": pa.array([[f"{number}"] * (number % 3) for number in numbers]),
            "size": pa.array(nothing, pa.float32()),
            "raw": pa.array([b"\0\xff"] * len(numbers)),
            "long": pa.array([number % 2 == 0 for number in numbers]),
            "few": pa.array([number % 100 for number in numbers], pa.uint8()),
        }
    )


def vectors(first: int, end: int) -> pa.Table:
    """What predictions are with vectors and matrices, which files of SQLite have as columns."""
    count = end - first
    pairs = pa.array(
        [None if number == 3 else [number, 0.5] for number in range(first, end)], pa.list_(pa.float32(), 2)
    )
    squares = pa.array([[[1, 2], [3, number]] for number in range(first, end)])
    square = squares.cast(pa.list_(pa.list_(pa.int64(), 2), 2))
    return (
        predictions(first, end).append_column("pair", pairs).append_column("square", square.slice(0, count))
    )


def parts(tmp_path: Path, make: Callable[[int, int], pa.Table] = predictions) -> list[Path]:
    folder = tmp_path / "parts"
    folder.mkdir(exist_ok=True)
    paths = [folder / "part-00000000.parquet", folder / "part-00000001.parquet"]
    for path, first, end in zip(paths, (0, ROWS + 5), (ROWS + 5, RECORDS), strict=True):
        pyarrow.parquet.write_table(make(first, end), path)
    return paths


def answer(target: OutputTable, sql: str) -> list[tuple[Any, ...]]:
    if target.scheme == "sqlite":
        with contextlib.closing(sqlite3.connect(target.file)) as database:
            return database.execute(sql).fetchall()
    with duckdb.connect(target.file) as database:
        return list(database.execute(sql).fetchall())


def tables(target: OutputTable) -> set[str]:
    known = "sqlite_master WHERE type = 'table'" if target.scheme == "sqlite" else "duckdb_tables()"
    return {
        name
        for (name,) in answer(target, f"SELECT {'name' if 'sqlite' in known else 'table_name'} FROM {known}")
    }


def load(target: OutputTable, mark: str = "one", patience: Patience | None = None) -> TableLoad:
    return TableLoad(target, mark, patience or Waiting().patience())


# ---------------------------------------------------------------------- what is written


@each
def test_a_table_has_the_rows_of_the_files_in_their_order(scheme: str, tmp_path: Path) -> None:
    target = table(scheme, tmp_path)
    make = vectors if scheme == "duckdb" else predictions
    check(target)
    loading = load(target)
    loading.check_columns(make(0, 1).schema)
    loading.load(parts(tmp_path, make), RECORDS)
    wanted = make(0, RECORDS).to_pylist()
    found = answer(target, "SELECT * FROM predictions")
    if scheme == "sqlite":  # which has no lists and no truth values
        for row in wanted:
            row["kept"] = str(row["kept"]).replace("'", '"')
            row["long"] = int(row["long"])
    assert [list(row) for row in found] == [list(row.values()) for row in wanted]
    assert answer(target, "SELECT load_id, table_name, row_count FROM elasticdl_loads") == [
        ("one", "predictions", RECORDS)
    ]


@pytest.mark.parametrize(
    ("scheme", "wanted"),
    [
        ("sqlite", "TEXT INTEGER TEXT REAL BLOB INTEGER INTEGER"),
        ("duckdb", "VARCHAR BIGINT VARCHAR[] FLOAT BLOB BOOLEAN UTINYINT FLOAT[] BIGINT[][]"),
    ],
)
def test_types_of_columns(scheme: str, wanted: str, tmp_path: Path) -> None:
    target = table(scheme, tmp_path)
    load(target).load(parts(tmp_path, vectors if scheme == "duckdb" else predictions), RECORDS)
    assert " ".join(row[2] for row in answer(target, "PRAGMA table_info('predictions')")) == wanted


@each
def test_names_are_whatever_they_are(scheme: str, tmp_path: Path) -> None:
    target = table(scheme, tmp_path, 'it%27s "1"; DROP TABLE x')
    load(target, "it's").load(parts(tmp_path), RECORDS)
    load(target, "it's").load(parts(tmp_path), RECORDS)
    assert tables(target) == {'it\'s "1"; DROP TABLE x', "elasticdl_loads"}


def test_a_table_of_a_schema(tmp_path: Path) -> None:
    target = table("duckdb", tmp_path, "results.predictions")
    with duckdb.connect(target.file) as database:
        database.execute("CREATE SCHEMA results; CREATE TABLE predictions (x INTEGER)")
    check(target)
    load(target).load(parts(tmp_path), RECORDS)
    load(target).load(parts(tmp_path), RECORDS)
    assert answer(target, "SELECT count(*) FROM results.predictions") == [(RECORDS,)]
    assert answer(target, "SELECT count(*) FROM results.elasticdl_loads") == [(1,)]


# ---------------------------------------------------------------------- once


@each
def test_a_load_that_was_committed_is_not_done_again(scheme: str, tmp_path: Path) -> None:
    target = table(scheme, tmp_path)
    load(target).load(parts(tmp_path), RECORDS)
    load(target).load(parts(tmp_path), RECORDS)
    assert answer(target, "SELECT count(*) FROM predictions") == [(RECORDS,)]
    with pytest.raises(BadSetting, match=r"--output: the table predictions of .* exists; .* or drop it"):
        load(target, "other").load(parts(tmp_path), RECORDS)
    load(table(scheme, tmp_path, "more"), "other").load(parts(tmp_path), RECORDS)
    assert len(answer(target, "SELECT * FROM elasticdl_loads")) == 2


@each
def test_a_load_that_was_not_committed_has_changed_nothing(
    scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = table(scheme, tmp_path)
    module = sqlitetables if scheme == "sqlite" else duckdbtables

    def end(connection: object) -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr(module._Connection, "commit", end)
        with pytest.raises(ZeroDivisionError):
            load(target).load(parts(tmp_path), RECORDS)
    assert [path.name for path in tmp_path.iterdir()] == ["parts"], "there is not even an empty database"
    load(target).load(parts(tmp_path), RECORDS)
    assert answer(target, "SELECT count(*) FROM predictions") == [(RECORDS,)]


@each
@pytest.mark.parametrize("committed", [False, True])
def test_what_a_killed_loader_leaves_of_a_new_database_is_used(
    scheme: str, committed: bool, tmp_path: Path
) -> None:
    target, mark = table(scheme, tmp_path), "one"
    draft = marked_draft_of(Path(target.file), mark)
    begun = replace(target, url=f"{scheme}:///{draft}/data.db")
    draft.mkdir()
    if committed:
        load(begun).load(parts(tmp_path), RECORDS)
    else:
        program = (
            f"import {'sqlite3' if scheme == 'sqlite' else 'duckdb'} as it; c = it.connect({begun.file!r}); "
        )
        program += "c.execute('BEGIN'); c.execute('CREATE TABLE predictions (a INT)'); import os; os._exit(1)"
        subprocess.run([sys.executable, "-c", program], check=False)
    load(target, mark).load(parts(tmp_path), RECORDS)
    assert answer(target, "SELECT count(*) FROM predictions") == [(RECORDS,)]
    assert {path.name for path in tmp_path.iterdir()} == {"parts", "data.db"}


def test_a_database_that_somebody_makes_meanwhile_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = table("sqlite", tmp_path)

    class Late(sqlitetables._Connection):
        def commit(self) -> None:
            if not Path(target.file).exists():
                with contextlib.closing(sqlite3.connect(target.file)) as database:
                    database.execute("CREATE TABLE theirs (a)")
            super().commit()

    monkeypatch.setattr(sqlitetables, "_Connection", Late)
    load(target).load(parts(tmp_path), RECORDS)
    assert tables(target) == {"theirs", "predictions", "elasticdl_loads"}
    assert answer(target, "SELECT count(*) FROM predictions") == [(RECORDS,)]


def test_a_file_system_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(os, "link", refuse)
    target = table("sqlite", tmp_path)
    load(target).load(parts(tmp_path), RECORDS)
    assert {path.name for path in tmp_path.iterdir()} == {"parts", "data.db"}


@each
def test_a_load_that_is_cancelled(scheme: str, tmp_path: Path) -> None:
    target = table(scheme, tmp_path)
    loading = load(target)
    loading.cancel()
    with pytest.raises(Cancelled):
        loading.load(parts(tmp_path), RECORDS)
    assert not Path(target.file).exists()


# ---------------------------------------------------------------------- a database that another process writes to


@contextlib.contextmanager
def locked(target: OutputTable) -> Iterator[Callable[[], None]]:
    """Let another process, or another connection, write; yield what ends it."""
    if target.scheme == "sqlite":
        database = sqlite3.connect(target.file, isolation_level=None)
        database.execute("BEGIN IMMEDIATE")
        yield database.close
        database.close()
        return
    program = f"import duckdb; it = duckdb.connect({target.file!r}); print(flush=True); input()"
    other = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert other.stdout is not None
    other.stdout.readline()

    def end() -> None:
        other.communicate(b"\n", timeout=60)

    yield end
    if other.poll() is None:
        end()


@each
def test_a_database_that_another_process_writes_to_is_waited_for(scheme: str, tmp_path: Path) -> None:
    target = table(scheme, tmp_path)
    with locked(target) as end:
        waiting = Waiting()

        def meanwhile() -> None:
            if waiting.now > 20:
                waiting.meanwhile = lambda: None
                end()

        waiting.meanwhile = meanwhile
        load(target, patience=waiting.patience()).load(parts(tmp_path), RECORDS)
    assert answer(target, "SELECT count(*) FROM predictions") == [(RECORDS,)]
    assert waiting.notes[0].startswith(f"waiting for {target.name}, for 300 s at most: ")
    assert "lock" in waiting.notes[0]
    assert waiting.notes[1].startswith(f"{target.name} answers again, after ")


def test_a_database_that_goes_away_twice_in_a_long_load_is_waited_for_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, waiting, away = table("sqlite", tmp_path), Waiting(), [200.0, 200.0]
    until = 0.0
    busy = sqlite3.OperationalError("database is locked")
    busy.sqlite_errorcode = sqlite3.SQLITE_BUSY

    class Flaky(sqlitetables._Connection):
        def __init__(self, *known: Any) -> None:
            if waiting.now < until:
                raise busy
            super().__init__(*known)

        def insert(self, rows: pa.Table) -> None:
            waiting.now += 400
            super().insert(rows)

        def commit(self) -> None:
            nonlocal until
            if away:
                until = waiting.now + away.pop()
                raise busy
            super().commit()

    monkeypatch.setattr(sqlitetables, "_Connection", Flaky)
    load(target, patience=waiting.patience(300)).load(parts(tmp_path), RECORDS)
    assert answer(target, "SELECT count(*) FROM predictions") == [(RECORDS,)]
    assert [note.startswith("waiting for") for note in waiting.notes] == [True, False] * 2


def test_a_commit_that_takes_its_time_is_no_silence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    beats = threading.Semaphore(0)

    class Slow(sqlitetables._Connection):
        def commit(self) -> None:
            for _ in range(3):
                assert beats.acquire(timeout=60)
            super().commit()

    monkeypatch.setattr(sqlitetables, "_Connection", Slow)
    monkeypatch.setattr(tableload, "_SIGN_SECONDS", 0.01)
    target = table("sqlite", tmp_path)
    # for so long that all of it is longer than silence may be
    patience = Patience(0.001, alive=beats.release)
    load(target, patience=patience).load(parts(tmp_path), RECORDS)
    assert answer(target, "SELECT count(*) FROM predictions") == [(RECORDS,)]


@each
def test_a_database_that_another_process_keeps(scheme: str, tmp_path: Path) -> None:
    target = table(scheme, tmp_path)
    with locked(target):
        with pytest.raises(BadSetting, match=r"the database says: .*lock"):
            check(target)
        with pytest.raises(StorageAway, match=r"has not answered for 30 s .*lock.*--storage_seconds says"):
            load(target, patience=Waiting().patience(30)).load(parts(tmp_path), RECORDS)
        with pytest.raises(StorageAway):
            check(target, Waiting().patience(30))
    check(target)
    assert tables(target) == set()


# ---------------------------------------------------------------------- what is refused


@each
def test_looking_leaves_nothing_behind(scheme: str, tmp_path: Path) -> None:
    target = table(scheme, tmp_path)
    check(target)
    assert list(tmp_path.iterdir()) == []
    load(table(scheme, tmp_path, "there")).load(parts(tmp_path), RECORDS)
    check(target)
    check(target, Waiting().patience())
    assert tables(target) == {"there", "elasticdl_loads"}
    with pytest.raises(BadSetting, match=r"the table There of .* exists"):
        check(table(scheme, tmp_path, "There"))


@each
def test_what_is_no_database_and_lies_nowhere(scheme: str, tmp_path: Path) -> None:
    target = table(scheme, tmp_path)
    Path(target.file).write_text("hello\n" * 1000)
    with pytest.raises(BadSetting, match=r"--output: .*data.db.* the database says: .*database"):
        check(target)
    with pytest.raises(BadSetting, match="the database says"):
        load(target).load(parts(tmp_path), RECORDS)
    assert Path(target.file).read_text() == "hello\n" * 1000
    with pytest.raises(BadSetting, match=r"there is no directory .*nowhere"):
        check(table(scheme, tmp_path / "nowhere"))


@each
def test_a_schema_that_is_not_there(scheme: str, tmp_path: Path) -> None:
    load(table(scheme, tmp_path, "there")).load(parts(tmp_path), RECORDS)
    with pytest.raises(BadSetting, match=r"the database says: .*nowhere"):
        check(table(scheme, tmp_path, "nowhere.predictions"))


@pytest.mark.parametrize("package", ["duckdb", "adbc_driver_postgresql"])
def test_without_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, "elasticdl.data.writers.duckdbtables", raising=False)
    target = table("duckdb" if package == "duckdb" else "postgresql", tmp_path)
    with pytest.raises(BadSetting, match=rf"needs the package {package}: pip install 'elasticdl\[sql\]'"):
        check(target)


@each
def test_columns_that_no_table_has(scheme: str, tmp_path: Path) -> None:
    loading = load(table(scheme, tmp_path))
    with pytest.raises(BadSetting, match="'size' and 'Size' are one name to databases"):
        loading.check_columns(pa.schema([("size", pa.int8()), ("Size", pa.int8())]))
    with pytest.raises(BadSetting, match=r"columns at most, and the predictions have 10,001; write files"):
        loading.check_columns(pa.schema([(f"a{number}", pa.int8()) for number in range(10_001)]))
    with pytest.raises(BadSetting, match="no column of a table has values of the type"):
        loading.check_columns(pa.schema([("a", pa.struct([("b", pa.int8())]))]))


def test_a_number_that_is_too_large_for_sqlite(tmp_path: Path) -> None:
    path = tmp_path / "part.parquet"
    pyarrow.parquet.write_table(pa.table({"a": pa.array([1 << 63], pa.uint64())}), path)
    with pytest.raises(BadData, match=r"does not take a value of the predictions: .*large"):
        load(table("sqlite", tmp_path)).load([path], 1)
    assert tables(table("sqlite", tmp_path)) == set()


@each
def test_parts_that_are_missing_or_lack_rows(scheme: str, tmp_path: Path) -> None:
    target = table(scheme, tmp_path)
    paths = parts(tmp_path)
    with pytest.raises(JobFailed, match=r"the parts have 4,106 rows for 4,107 records"):
        load(target).load(paths, RECORDS + 1)
    paths[1].write_bytes(paths[1].read_bytes()[:100])
    with pytest.raises(JobFailed, match=r"can't be read: .*part-00000001.parquet"):
        load(target).load(paths, RECORDS)
    for number in (1, 0):
        paths[number].unlink()
        with pytest.raises(JobFailed, match=rf"can't be read: .*part-0000000{number}.parquet"):
            load(target).load(paths, RECORDS)
    assert tables(target) == set()


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = table("sqlite", tmp_path)

    class Full(sqlitetables._Connection):
        def insert(self, rows: pa.Table) -> None:
            self.run("PRAGMA max_page_count = 8")  # what a full disk is to SQLite
            super().insert(rows)

    monkeypatch.setattr(sqlitetables, "_Connection", Full)
    with pytest.raises(
        Unwritable, match=r"predictions can't be written to .*: no space left on its disk; free some"
    ):
        load(target).load(parts(tmp_path), RECORDS)
    assert tables(target) == set()


# ---------------------------------------------------------------------- PostgreSQL, as far as it can be without a server


@pytest.fixture
def postgresql(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What a client of PostgreSQL is asked, which answers that there is nothing."""
    asked: list[object] = []

    class Cursor:
        def __enter__(self) -> Cursor:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def execute(self, sql: str) -> None:
            asked.append(sql)

        def fetchall(self) -> list[tuple[Any, ...]]:
            return []

        def adbc_ingest(self, name: str, rows: pa.Table, *, mode: str, db_schema_name: str | None) -> None:
            asked.append((name, mode, db_schema_name, rows.num_rows, rows.schema.field("few").type))

    class Client:
        def __init__(self, url: str) -> None:
            asked.append(url)

        def cursor(self) -> Cursor:
            return Cursor()

        def commit(self) -> None:
            asked.append("commit")

        def close(self) -> None:
            asked.append("close")

    driver = ModuleType("adbc_driver_postgresql.dbapi")
    driver.Error = sqlite3.Error  # type: ignore[attr-defined]
    driver.OperationalError = sqlite3.OperationalError  # type: ignore[attr-defined]
    driver.connect = Client  # type: ignore[attr-defined]
    package = ModuleType("adbc_driver_postgresql")
    package.dbapi = driver  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "adbc_driver_postgresql", package)
    return asked


def test_what_postgresql_is_asked(postgresql: list[object], tmp_path: Path) -> None:
    target = table_of(
        "postgresql://me@host/db?sslmode=require&table=a.b&connect_timeout=3&options=-c%20a%3Db"
    )
    assert target is not None
    load(target).load(parts(tmp_path), RECORDS)
    url, *asked = postgresql
    assert str(url).startswith("postgresql://me@host/db?connect_timeout=3&keepalives_idle=30&")
    assert str(url).endswith("&sslmode=require&options=-c%20a%3Db")
    assert asked[3].startswith('CREATE TABLE IF NOT EXISTS "a"."elasticdl_loads" (')  # type: ignore[attr-defined]
    assert asked[4] == (
        'CREATE TABLE "a"."b" ("shard" TEXT, "record" BIGINT, "kept" TEXT[], "size" REAL, "raw" BYTEA, "long" BOOLEAN, "few" SMALLINT)'
    )
    assert asked[5:8] == [("b", "append", "a", count, pa.int16()) for count in (ROWS, 5, 5)]
    assert asked[8].startswith("""INSERT INTO "a"."elasticdl_loads" VALUES ('one', 'a.b', 4106, '""")  # type: ignore[attr-defined]
    assert asked[9:] == ["commit", "close"]


def test_a_name_that_postgresql_would_cut_is_refused_before_anything_is_predicted(
    postgresql: list[object],
) -> None:
    target = table_of("postgresql://me@host/db?table=t")
    assert target is not None
    schema = pa.schema([("a" * 63, pa.int8()), ("ü" * 32, pa.int8())])
    with pytest.raises(BadSetting, match=r"the column 'ü+' has 64 bytes, and PostgreSQL cuts off names"):
        load(target).check_columns(schema)


def test_which_errors_of_postgresql_may_pass(postgresql: list[object], tmp_path: Path) -> None:
    from elasticdl.data.writers.postgresqltables import PostgreSQL

    class Failed(sqlite3.OperationalError):
        def __init__(self, text: str, sqlstate: str | None = None) -> None:
            super().__init__(text)
            self.sqlstate = sqlstate

    target = table_of("postgresql://me@host/db?table=b")
    assert target is not None
    may_pass = PostgreSQL(target).may_pass
    for passing in (
        Failed("connection refused"),
        Failed("terminating connection due to administrator command", "57P01"),
        Failed("canceling statement due to lock timeout", "55P03"),
        Failed("duplicate key value", "23505"),
    ):
        assert may_pass(passing), passing
    for lasting in (
        Failed('FATAL:  password authentication failed for user "me"'),
        Failed('FATAL:  database "dp" does not exist'),
        Failed("permission denied for schema public", "42501"),
        sqlite3.ProgrammingError("an error of the driver"),
    ):
        assert not may_pass(lasting), lasting


def test_postgresql_that_does_not_answer() -> None:
    pytest.importorskip("adbc_driver_postgresql")
    target = table_of("postgresql://me@127.0.0.1:1/db?table=t")
    assert target is not None
    with pytest.raises(
        BadSetting, match=r"--output: postgresql://me@127.0.0.1:1/db\?table=t: the database says"
    ):
        check(target)
    with pytest.raises(StorageAway):
        check(target, Waiting().patience(5))
