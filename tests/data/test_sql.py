"""Tables of databases and results of queries."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import duckdb
import pyarrow as pa
import pytest

from elasticdl.data.plan.shard import Task
from elasticdl.data.readers.reader import BadRecords, Reader, check_unchanged, shards_of
from elasticdl.data.readers.recordfiles import open_reader
from elasticdl.data.readers.records import Columns
from elasticdl.errors import BadData, BadSetting

MANY = 10_000
SCHEMA = "CREATE TABLE train (number BIGINT, half DOUBLE, word TEXT)"


def rows(many: int = MANY) -> Iterator[tuple[int, float, str]]:
    return ((number, number / 2, f"row {number}") for number in range(many))


def sqlite(path: Path, many: int = MANY) -> str:
    with closing(sqlite3.connect(path)) as database:
        database.execute(SCHEMA)
        database.executemany("INSERT INTO train VALUES (?, ?, ?)", rows(many))
        database.commit()
    return f"sqlite:///{path}"


def duck(path: Path, many: int = MANY) -> str:
    with duckdb.connect(str(path)) as database:
        database.execute(SCHEMA)
        database.execute("INSERT INTO train SELECT i, i / 2, 'row ' || i FROM range(?) AS r(i)", [many])
    return f"duckdb:///{path}"


Write = Callable[..., str]
each = pytest.mark.parametrize("write", [sqlite, duck], ids=lambda write: write.__name__)


def opened(origin: str, tmp_path: Path, params: Mapping[str, Any] | None = None, **more: Any) -> Reader:
    return open_reader(origin, params or {}, tmp_path / "job", **more)


def read(reader: Reader) -> Any:
    found: list[Any] = []
    for shard in shards_of(reader):
        part = reader.read(
            Task(0, 0, shard, shard.start, shard.start + shard.count),
            range(shard.start, shard.start + shard.count),
        )
        found += zip(*part.arrays.values(), strict=True) if isinstance(part, Columns) else part
    return found


@each
def test_a_table(tmp_path: Path, write: Write) -> None:
    url = write(tmp_path / "data.db")
    reader = opened(f"{url}?table=train", tmp_path)
    assert reader.metadata.column_dtypes == {"number": "int64", "half": "float64", "word": "string"}
    assert read(reader) == list(rows())
    assert {shard.name for shard in shards_of(reader)} == {f"{url}?table=train"}
    assert reader.block == 4096


@each
def test_a_query(tmp_path: Path, write: Write) -> None:
    url = write(tmp_path / "data.db")
    query = "SELECT word, number + 1 AS more FROM train WHERE number % 2 = 0 ORDER BY number DESC"
    reader = opened(url, tmp_path, {"query": query})
    assert read(reader)[:2] == [("row 9998", 9999), ("row 9996", 9997)]
    in_url = opened(f"{url}?query={query.replace('%', '%25').replace('+', '%2B')}", tmp_path)
    assert read(in_url) == read(reader)


@each
def test_columns_and_rows_of_strings(tmp_path: Path, write: Write) -> None:
    url = write(tmp_path / "data.db", 3)
    reader = opened(f"{url}?table=train", tmp_path, {"columns": ["word", "number"], "rows": "strings"})
    assert read(reader) == [["row 0", "0"], ["row 1", "1"], ["row 2", "2"]]


@each
def test_the_database_is_asked_once(tmp_path: Path, write: Write) -> None:
    path = tmp_path / "data.db"
    url = f"{write(path)}?table=train"
    shards = shards_of(opened(url, tmp_path))
    path.unlink()
    write(path, 7)
    again = opened(url, tmp_path)
    check_unchanged(again, shards)
    assert len(read(again)) == MANY
    with pytest.raises(BadData, match="has changed since the job began"):
        check_unchanged(opened(url, tmp_path / "a pod of its own"), shards)


@each
def test_all_make_the_same_table(tmp_path: Path, write: Write) -> None:
    url = f"{write(tmp_path / 'data.db')}?table=train"
    check_unchanged(opened(url, tmp_path / "other"), shards_of(opened(url, tmp_path)))


def test_numbers_of_two_types_and_nulls_in_sqlite(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "data.db")) as database:
        database.execute("CREATE TABLE t (a, b, c, d)")
        database.executemany(
            "INSERT INTO t VALUES (?, ?, ?, ?)", [(1, None, b"x", None), (2.5, "y", b"z", None)]
        )
        database.commit()
    reader = opened(f"sqlite:///{tmp_path}/data.db?table=t", tmp_path)
    assert reader.metadata.column_dtypes == {"a": "float64", "b": "string", "c": "binary", "d": "string"}
    assert read(reader) == [(1.0, "", b"x", ""), (2.5, "y", b"z", "")]


def test_a_null_for_which_nothing_stands(tmp_path: Path) -> None:
    url = sqlite(tmp_path / "data.db", 3)
    with closing(sqlite3.connect(tmp_path / "data.db")) as database:
        database.execute("UPDATE train SET number = NULL WHERE half = 0.5")
        database.commit()
    with pytest.raises(
        BadData, match=rf"record 1 of {url}\?table=train .* is corrupt: its column 'number' is null"
    ):
        read(opened(f"{url}?table=train", tmp_path))
    assert len(read(opened(f"{url}?table=train", tmp_path, bad_records=BadRecords(1)))) == 2


def test_a_query_of_files_in_duckdb(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a,b\n1,x\n2,y\n")
    reader = opened("duckdb://", tmp_path, {"query": f"SELECT * FROM '{tmp_path}/a.csv'"})
    assert read(reader) == [(1, "x"), (2, "y")]


@pytest.mark.parametrize(
    ("url", "params", "message"),
    [
        ("{sqlite}", {}, "say which rows of .* are meant, by a table or by a query"),
        ("{sqlite}?table=train", {"query": "SELECT 1"}, "say which rows of"),
        ("{sqlite}?table=", {}, "say which rows of"),
        ("{sqlite}?table=train", {"header": True}, "a table has the parameters rows and columns; got header"),
        ("{sqlite}?table=train", {"columns": ["nub"]}, "has no column 'nub'"),
        (
            "mysql://host/db?table=x",
            {},
            "no reader of the name 'mysql' is installed.*one of sqlite, duckdb, postgresql",
        ),
        (
            "sqlite://x.db?table=t",
            {},
            "sqlite://x.db: a server would be .*relative, sqlite:///x.db, and four if it is absolute",
        ),
        ("duckdb://data/x.db?table=t", {}, "relative, duckdb:///data/x.db, and four"),
        ("sqlite://?table=t", {}, "names no file; write its path behind three slashes: sqlite:///x.db"),
    ],
)
def test_settings_that_are_wrong(tmp_path: Path, url: str, params: dict[str, Any], message: str) -> None:
    with pytest.raises(BadSetting, match=message):
        opened(url.format(sqlite=sqlite(tmp_path / "data.db", 2)), tmp_path, params)


@each
@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("table=tain", "the database says: .*tain"),
        ("query=SELEC 1", "the database says: .*does `SELEC 1` work in its own shell"),
        ("query=SELECT * FROM train WHERE number < 0", "has no records: the answer has no row"),
        ("query=DELETE FROM train", "the database says"),
    ],
)
def test_answers_that_are_wrong(tmp_path: Path, write: Write, asked: str, message: str) -> None:
    url = write(tmp_path / "data.db", 3)
    with pytest.raises(BadData, match=message):
        opened(f"{url}?{asked}", tmp_path)
    assert len(read(opened(f"{url}?table=train", tmp_path))) == 3


@pytest.mark.parametrize("scheme", ["sqlite", "duckdb"])
def test_files_that_are_no_databases(tmp_path: Path, scheme: str) -> None:
    with pytest.raises(BadData, match=r"there is no file .*nowhere.db; an absolute path has four slashes"):
        opened(f"{scheme}:///{tmp_path}/nowhere.db?table=train", tmp_path)
    assert not (tmp_path / "nowhere.db").exists()
    (tmp_path / "text.db").write_text("hello\n" * 1000)
    with pytest.raises(BadData, match="the database says"):
        opened(f"{scheme}:///{tmp_path}/text.db?table=train", tmp_path)


def test_a_column_of_several_types_in_sqlite(tmp_path: Path) -> None:
    url = sqlite(tmp_path / "data.db", 3)
    query = "SELECT CASE number WHEN 1 THEN 'x' ELSE 5 END AS mixed FROM train"
    with pytest.raises(
        BadData, match=r"the column 'mixed' has values of the types integer and text; choose one .*: CAST"
    ):
        opened(url, tmp_path, {"query": query})


@pytest.mark.parametrize(
    ("url", "package"),
    [("duckdb:///x.db?table=t", "duckdb"), ("postgresql://host/db?table=t", "adbc_driver_postgresql")],
)
def test_without_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str, package: str) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(BadSetting, match=rf"needs the package {package}: pip install 'elasticdl\[sql\]'"):
        opened(url, tmp_path)


# ------------------------------------------------------------------ PostgreSQL, as far as it can be without a server


def test_postgresql_that_does_not_answer(tmp_path: Path) -> None:
    pytest.importorskip("adbc_driver_postgresql")
    with pytest.raises(
        BadData, match=r"postgresql://me:\*\*\*@127.0.0.1:1/db\?table=t: the database says"
    ) as raised:
        opened("postgresql://me:secret@127.0.0.1:1/db?table=t&connect_timeout=5", tmp_path)
    assert "secret" not in str(raised.value)


def test_what_postgresql_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    answer = pa.table({"a": [1, 2]})
    cursor = SimpleNamespace(execute=asked.append, fetch_record_batch=answer.to_reader, close=lambda: None)
    driver = ModuleType("adbc_driver_postgresql.dbapi")
    driver.Error = Exception  # type: ignore[attr-defined]
    driver.connect = lambda url: (
        asked.append(url) or SimpleNamespace(cursor=lambda: cursor, close=lambda: None)
    )  # type: ignore[attr-defined, func-returns-value]
    package = ModuleType("adbc_driver_postgresql")
    package.dbapi = driver  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "adbc_driver_postgresql", package)
    reader = opened("postgresql://me@host/db?table=public.train&sslmode=require", tmp_path)
    assert read(reader) == [(1,), (2,)]
    assert asked == ["postgresql://me@host/db?sslmode=require", 'SELECT * FROM "public"."train"']


# ------------------------------------------------------------------ MaxCompute, with a stand-in for its client


class Session:
    """A download session: the rows as they were when it was opened."""

    opened: ClassVar[dict[str, list[dict[str, Any]]]] = {}

    def __init__(self, rows: list[dict[str, Any]], download_id: str | None) -> None:
        self.download_id = download_id or f"session-{len(self.opened)}"
        self._rows = self.opened.setdefault(self.download_id, list(rows))
        self.count = len(self._rows)

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def __getitem__(self, part: slice) -> list[dict[str, Any]]:
        return self._rows[part]


@pytest.fixture
def odps(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Rows of a partition of a table that a client finds."""
    found: list[dict[str, Any]] = [
        {"id": number, "word": None if number == 3 else f"w{number}"} for number in range(50)
    ]
    columns = [SimpleNamespace(name=name) for name in ("id", "word")]
    schema = SimpleNamespace(columns=[*columns, SimpleNamespace(name="ds")], simple_columns=columns)

    class Failed(Exception):
        pass

    def open_reader(
        partition: str | None, *, reopen: bool = False, download_id: str | None = None, columns: object = None
    ) -> Session:
        assert partition in (None, "ds=1"), partition
        return Session(found, download_id)

    class Client:
        def __init__(
            self, access: str, secret: str, project: str, endpoint: str, tunnel_endpoint: str | None
        ) -> None:
            assert (access, secret, endpoint, tunnel_endpoint) == ("key", "hidden", "http://service", None)
            self._project = project

        def get_table(self, name: str) -> SimpleNamespace:
            if (self._project, name) != ("shop", "sales"):
                raise Failed(f"table {name} was not found")
            return SimpleNamespace(table_schema=schema, open_reader=open_reader)

    module = ModuleType("odps")
    module.ODPS = Client  # type: ignore[attr-defined]
    module.errors = SimpleNamespace(BaseODPSError=Failed)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "odps", module)
    for name, value in (("AK", "key"), ("SK", "hidden"), ("ENDPOINT", "http://service")):
        monkeypatch.setenv(f"MAXCOMPUTE_{name}", value)
    return found


def test_rows_of_maxcompute(odps: list[dict[str, Any]], tmp_path: Path) -> None:
    reader = opened("odps://shop/sales", tmp_path, {"partition": "ds=1"})
    (shard,) = shards_of(reader)
    assert shard.name.startswith("odps://shop/sales#session-")
    assert reader.metadata.column_dtypes == {"id": "string", "word": "string"}
    odps.clear()  # what the session sees stays
    again = opened("odps://shop/sales", tmp_path, {"partition": "ds=1"})
    check_unchanged(again, [shard])
    assert again.read(Task(0, 0, shard, 2, 10), [4, 2, 3]) == [["4", "w4"], ["2", "w2"], ["3", ""]]
    assert len(again.read(Task(0, 0, shard, 0, 50), range(50))) == 50


def test_columns_of_maxcompute(odps: list[dict[str, Any]], tmp_path: Path) -> None:
    reader = opened("maxcompute://shop/sales", tmp_path, {"columns": ["word"]})
    assert read(reader)[:2] == [["w0"], ["w1"]]


@pytest.mark.parametrize(
    ("url", "params", "error", "message"),
    [
        ("odps://shop/sale", {}, BadData, "odps://shop/sale: MaxCompute says: table sale was not found"),
        ("odps://sales", {}, BadSetting, "names no table of MaxCompute; write odps://PROJECT/TABLE"),
        ("odps://shop/sales", {"columns": ["x"]}, BadSetting, "has no column 'x'; it has id, word"),
        ("odps://shop/sales", {"partition": 1}, BadSetting, "partition is a text such as"),
        (
            "odps://shop/sales",
            {"table": "x"},
            BadSetting,
            "has the parameters partition and columns; got table",
        ),
    ],
)
def test_maxcompute_that_is_wrong(
    odps: list[dict[str, Any]],
    tmp_path: Path,
    url: str,
    params: dict[str, Any],
    error: type[Exception],
    message: str,
) -> None:
    with pytest.raises(error, match=message):
        opened(url, tmp_path, params)


def test_maxcompute_without_rows_keys_or_client(
    odps: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    odps.clear()
    with pytest.raises(BadData, match="has no records: the table or partition has no row"):
        shards_of(opened("odps://shop/sales", tmp_path))
    monkeypatch.delenv("MAXCOMPUTE_SK")
    with pytest.raises(
        BadSetting, match="needs the environment variable MAXCOMPUTE_SK; in pods, --populate_env_names"
    ):
        opened("odps://shop/sales", tmp_path)
    monkeypatch.setitem(sys.modules, "odps", None)
    with pytest.raises(BadSetting, match=r"needs the package pyodps: pip install 'elasticdl\[maxcompute\]'"):
        opened("odps://shop/sales", tmp_path)
