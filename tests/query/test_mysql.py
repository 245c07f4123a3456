"""Rows from and results into a real server of MariaDB; what all databases have in common is in `test_results.py`."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pymysql
import pytest
import sqlalchemy

from elasticdl.errors import BadData, BadSetting, Unwritable
from elasticdl.query import grammar, mysqlwriting, results, snapshot
from elasticdl.query.source import DatabaseRefused, Into, Source, open_source
from elasticdl.query.statements import Native

from .mariadb import PASSWORD, Server
from .test_results import COMMENT, WHOLE, batches


@pytest.fixture
def source(mariadb: Server) -> Iterator[Source]:
    with closing(open_source(mariadb.url)) as found:
        yield found


def read(source: Source, select: str) -> list[dict[str, Any]]:
    return pa.Table.from_batches(source.rows(select)).to_pylist()


def tables(server: Server) -> list[str]:
    asked = "SELECT table_name FROM information_schema.tables WHERE table_schema = 'test' ORDER BY 1"
    return [name for (name,) in server.ask(asked)]


TYPES = {
    "b": ("BOOLEAN", "1", "bool", True),
    "bit1": ("BIT(1)", "1", "bool", True),
    "bits": ("BIT(9)", "258", "uint64", 258),
    "t": ("TINYINT", "-5", "int8", -5),
    "ut": ("TINYINT UNSIGNED", "200", "uint8", 200),
    "s": ("SMALLINT", "-5", "int16", -5),
    "y": ("YEAR", "1999", "int16", 1999),
    "m": ("MEDIUMINT UNSIGNED", "16000000", "uint32", 16_000_000),
    "i": ("INT", "-5", "int32", -5),
    "l": ("BIGINT", "-9007199254740993", "int64", -(2**53) - 1),
    "ul": ("BIGINT UNSIGNED", "18446744073709551615", "uint64", 2**64 - 1),
    "d": ("DECIMAL(9, 2)", "1.5", "decimal128(9, 2)", Decimal("1.50")),
    "dd": ("DECIMAL(65, 30)", "1.5", "double", 1.5),
    "f": ("FLOAT", "0.5", "float", 0.5),
    "g": ("DOUBLE", "0.1", "double", 0.1),
    "c": ("CHAR(3)", "'年'", "string", "年"),
    "v": ("VARCHAR(9) CHARACTER SET latin1", "'é'", "string", "é"),
    "tt": ("LONGTEXT", "'x'", "string", "x"),
    "e": ("ENUM('sad', 'ok')", "'ok'", "string", "ok"),
    "st": ("SET('a', 'b')", "'a,b'", "string", "a,b"),
    "j": ("JSON", "'[1]'", "string", "[1]"),
    "u": ("UUID", "'123e4567-e89b-12d3-a456-426614174000'", "string", "123e4567-e89b-12d3-a456-426614174000"),
    "bl": ("BLOB", "x'00ff'", "binary", b"\0\xff"),
    "vb": ("VARBINARY(9)", "x'00ff'", "binary", b"\0\xff"),
    "da": ("DATE", "'1970-01-02'", "date32[day]", datetime.date(1970, 1, 2)),
    "dt": ("DATETIME(3)", "'1970-01-02 00:00:01.5'", "timestamp[us]", datetime.datetime(1970, 1, 2, 0, 0, 1, 500_000)),
    "ts": ("TIMESTAMP", "'1980-01-02 03:04:05'", "timestamp[us]", datetime.datetime(1980, 1, 2, 3, 4, 5)),
    "ti": ("TIME(6)", "'01:00:00.5'", "time64[us]", datetime.time(1, 0, 0, 500_000)),
    "zero": ("DATE", "'0000-00-00'", "date32[day]", None),
    "年 `%`": ("INT", "NULL", "int32", None),
}  # fmt: skip


def test_types(mariadb: Server, source: Source) -> None:
    columns = ", ".join(f"{mysqlwriting.quoted(name)} {kind}" for name, (kind, *_) in TYPES.items())
    source.run("SET SESSION sql_mode = ''")
    source.run(f"CREATE TABLE t ({columns})")
    source.run(f"INSERT INTO t VALUES ({', '.join(value for _, value, *_ in TYPES.values())})")
    source.run("INSERT INTO t () VALUES ()")
    schema = source.schema("SELECT * FROM t")
    assert {one.name: str(one.type) for one in schema} == {
        name: kind for name, (_, _, kind, _) in TYPES.items()
    }
    first, second = read(source, "SELECT * FROM t")
    assert first == {name: value for name, (*_, value) in TYPES.items()}
    assert {*second.values()} == {None}
    assert source.schema("WITH x AS (SELECT NULL AS a) SELECT a, a FROM x LIMIT 3").names == ["a", "a"]


def test_a_snapshot(source: Source, tmp_path: Path) -> None:
    source.run("CREATE TABLE t AS SELECT seq AS id, seq / 4 AS price, seq = 5 AS five FROM seq_1_to_1000")
    source.run("CREATE TABLE flags (flag BOOLEAN)")
    source.run("INSERT INTO flags VALUES (0), (5)")
    got = snapshot.take(
        source, "SELECT * FROM t WHERE id > %s AND id %% 2 = 0", (100,), directory=tmp_path / "s", seed=1
    )
    assert got.rows == 450
    assert got.schema == source.schema("SELECT * FROM t WHERE id % 2 = 0")
    trained = pyarrow.parquet.read_table(got.training).to_pylist()
    assert {row["id"] / 4 - row["price"] for row in trained} == {0}
    flags = snapshot.take(source, "SELECT * FROM flags", directory=tmp_path / "flags", seed=1, training=False)
    assert pa.Table.from_batches(flags.selected()).to_pylist() == [{"flag": 0}, {"flag": 5}]
    source.run("CREATE TABLE times AS SELECT TIME '25:00:00' AS t")
    with pytest.raises(
        BadData,
        match=r"'t' has 1 day, 1:00:00, which is no time of a day; SELECT its seconds: TIME_TO_SEC\(`t`\)",
    ):
        read(source, "SELECT * FROM times")
    assert read(source, "SELECT 1 AS a") == [{"a": 1}]


@pytest.mark.parametrize(
    ("select", "says", "place"),
    [
        ("SELECT '年', nix FROM seq_1_to_3", "Unknown column 'nix' in", 12),
        ("SELEC 1", "You have an error in your SQL syntax", 0),
        ("SELECT 1,\n  FROM FROM seq_1_to_3 " + "x" * 90, "You have an error", 12),
        ("SELECT 1 +", "You have an error", 10),
        ("SELECT * FROM nix", "Table 'test.nix' doesn't exist", 14),
        ("SELECT nix(1)", "FUNCTION test.nix does not exist", 7),
        ("SELECT a.nix, 'nix' FROM (SELECT 1 AS b) AS a", "Unknown column 'a.nix' in", 7),
        ("SELECT nix FROM seq_1_to_3 WHERE nix = 2", "Unknown column 'nix' in", None),
    ],
)  # fmt: skip
def test_what_it_refuses_and_where(source: Source, select: str, says: str, place: int | None) -> None:
    for asked in (source.schema, lambda one: list(source.rows(one)), source.run):
        with pytest.raises(DatabaseRefused) as caught:
            asked(select)
        assert caught.value.reason.startswith(says)
        assert caught.value.place == place
    assert read(source, "SELECT 1 AS a") == [{"a": 1}]


def test_no_message_has_the_password(mariadb: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    host = f"localhost/test?unix_socket={mariadb.folder}/socket"
    with closing(
        open_source(
            f"mariadb+pymysql://me:{PASSWORD.replace('%', '%25').replace('@', '%40').replace('/', '%2F')}@{host}"
        )
    ) as right:
        assert read(right, "SELECT 1 AS a") == [{"a": 1}]
    monkeypatch.setenv("MYSQL_PWD", "very secret")
    for url in (
        f"mysql://me@{host}",
        f"mysql://me:very%20secret@{host}",
        "mysql://me:very%20secret@localhost/test?unix_socket=/nowhere",
        "mysql://me:very%20secret@localhost:port/test",
        "mysql://me:very%20secret@localhost/test?nix=1",
        "mysql://me@localhost/test?nix=1",
    ):
        with pytest.raises((DatabaseRefused, BadSetting)) as caught:
            open_source(url).schema("SELECT 1")
        assert "secret" not in f"{caught.value} {caught.value.__cause__}", caught.value


def test_tables_that_results_can_not_go_to(
    mariadb: Server, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    source.run("CREATE TABLE old (id INT) ENGINE=MyISAM")
    with pytest.raises(BadSetting, match=r"old of .* has the engine MyISAM, .*ALTER TABLE old ENGINE=InnoDB"):
        source.check("old", Into.APPEND)
    source.check("old", Into.REPLACE)
    with pytest.raises(BadSetting, match="has 65 characters, and those of MySQL have at most 64"):
        source.check("x" * 65, Into.NEW)
    with closing(open_source(mariadb.url.replace("/test?", "/?"))) as none:
        none.check("test.new", Into.NEW)
        with pytest.raises(BadSetting, match=r"has no database; .* before the table: database\.new"):
            none.check("new", Into.NEW)
    monkeypatch.setattr(mysqlwriting, "_PATIENCE", 0)
    with closing(mariadb.connect()) as other, other.cursor() as cursor:
        lock = mysqlwriting.MySQLTarget(source, "result", COMMENT)._lock  # type: ignore[arg-type]
        cursor.execute("SELECT GET_LOCK(%s, 0)", (lock,))
        with pytest.raises(BadSetting, match="another statement is writing the table result of"):
            results.write(source, "result", batches(), Into.NEW, COMMENT)
    assert tables(mariadb) == ["old"]


def test_values_that_do_not_fit_are_not_cut_off(mariadb: Server, source: Source) -> None:
    source.run("SET SESSION sql_mode = ''")
    source.run('CREATE TABLE small (id TINYINT, income VARCHAR(2), `p "ro"/b.` TEXT)')
    with pytest.raises(
        DatabaseRefused, match=r"Data too long for column 'income'|Out of range value for column 'id'"
    ):
        results.write(source, "small", batches(), Into.APPEND, COMMENT)
    assert read(source, "SELECT * FROM small") == []
    assert tables(mariadb) == ["small"]
    assert read(source, "SELECT @@sql_mode AS m") == [{"m": ""}]


def test_what_a_killed_writer_has_left(mariadb: Server, source: Source) -> None:
    target = mysqlwriting.MySQLTarget(source, "result", COMMENT)  # type: ignore[arg-type]
    mariadb.ask(f"CREATE TABLE {target._staging} (a INT)")
    mariadb.ask(f"CREATE TABLE {target._old} AS SELECT 7 AS id")  # a server ended between two renames
    with pytest.raises(BadSetting, match=r"the table result of .* exists"):
        results.write(source, "result", batches(), Into.NEW, COMMENT)
    assert tables(mariadb) == ["result"]
    assert read(source, "SELECT id FROM result") == [{"id": 7}]
    results.write(source, "result", batches(), Into.REPLACE, COMMENT)
    assert tables(mariadb) == ["result"]


def test_a_table_that_another_one_makes_meanwhile(mariadb: Server, source: Source) -> None:
    def slow() -> Iterator[pa.RecordBatch]:
        yield from batches()
        mariadb.ask("CREATE TABLE test.result (id INT)")

    with pytest.raises(DatabaseRefused, match="Table 'result' already exists"):
        results.write(source, "result", slow(), Into.NEW, COMMENT)
    assert tables(mariadb) == ["result"]
    assert read(source, "SELECT * FROM result") == []


def test_a_table_that_others_refer_to_is_put_back(mariadb: Server, source: Source) -> None:
    source.run("CREATE TABLE result (id INT PRIMARY KEY)")
    source.run("CREATE TABLE child (id INT REFERENCES result (id))")
    with pytest.raises(DatabaseRefused, match="foreign key"):
        results.write(source, "result", batches(), Into.REPLACE, COMMENT)
    assert tables(mariadb) == ["child", "result"]
    assert source.schema("SELECT * FROM result").names == ["id"]
    assert read(
        source,
        "SELECT referenced_table_name AS t FROM information_schema.key_column_usage WHERE table_name = 'child'",
    ) == [{"t": "result"}]


class Losing:
    """Ends a source's connection at its commit: before the server has done it, or after."""

    def __init__(self, source: Any, server: Server, after: bool) -> None:
        self._server, self._after = server, after
        self._connection = source.connected()
        self._query, self._commit = self._connection.query, self._connection.commit
        self._connection.query = self.query

    def query(self, sql: Any, unbuffered: bool = False) -> Any:
        if "RENAME TABLE" in str(sql):
            return self._lose(lambda: self._query(sql, unbuffered))
        if "DELETE FROM" in str(sql):
            self._connection.commit = lambda: self._lose(self._commit)
        return self._query(sql, unbuffered)

    def _lose(self, act: Any) -> Any:
        if self._after:
            act()
        self._server.ask("KILL %s", self._connection.thread_id())
        return act()


@pytest.mark.parametrize("mode", list(Into))
@pytest.mark.parametrize("after", [False, True])
def test_a_lost_commit_is_told_by_what_is_there(
    mariadb: Server, source: Any, mode: Into, after: bool
) -> None:
    before = [] if mode is Into.NEW else [0, 1]
    if before:
        results.write(source, "result", iter([next(batches()).slice(0, 2)]), Into.NEW, "before")
    Losing(source, mariadb, after)
    if after:
        assert results.write(source, "result", batches(), mode, COMMENT) == len(WHOLE)
    else:
        with pytest.raises(DatabaseRefused):
            results.write(source, "result", batches(), mode, COMMENT)
        assert (
            [row["id"] for row in read(source, "SELECT id FROM result")] == before
            if before
            else tables(mariadb) == []
        )
        assert results.write(source, "result", batches(), mode, COMMENT) == len(WHOLE)
    ids = [row["id"] for row in read(source, "SELECT id FROM result")]
    assert ids == ([*before, *WHOLE] if mode is Into.APPEND else WHOLE)
    assert tables(mariadb) == ["result"]
    assert mariadb.ask("SELECT table_comment FROM information_schema.tables WHERE table_name = 'result'") == [
        (COMMENT,)
    ]


def test_values_of_all_types_come_back(source: Source) -> None:
    row = pa.RecordBatch.from_pydict(
        {
            "100 % `sure`": pa.array([2**64 - 1], pa.uint64()),
            "e": pa.array(["it's\\ \0 年 😀"]).dictionary_encode(),
            "n": pa.nulls(1),
            "p": pa.array([[0.25, 0.75]], pa.list_(pa.float32())),
            "f": pa.array([0.1], pa.float32()),
            "nan": pa.array([float("nan")]),
            "d": pa.array([Decimal("1.50")], pa.decimal128(9, 2)),
            "t": pa.array([1_500_000], pa.timestamp("us", "Asia/Shanghai")),
            "c": pa.array([3_600_000_001], pa.time64("us")),
            "day": pa.array([1], pa.date32()),
            "x": pa.array([b"\0\xff"]),
            "b": pa.array([True]),
        }
    )
    assert results.write(source, "test.100 % `sure`", iter([row]), Into.NEW, COMMENT) == 1
    results.write(source, "100 % `sure`", iter([row]), Into.APPEND, COMMENT)
    found, again = read(source, "SELECT * FROM `100 % ``sure```")
    assert found == again == {
        "100 % `sure`": 2**64 - 1, "e": "it's\\ \0 年 😀", "n": None, "p": "[0.25, 0.75]", "f": pytest.approx(0.1), "nan": None,
        "d": Decimal("1.50"), "t": datetime.datetime(1970, 1, 1, 0, 0, 1, 500_000), "c": datetime.time(1, 0, 0, 1),
        "day": datetime.date(1970, 1, 2), "x": b"\0\xff", "b": True,
    }  # fmt: skip
    assert pa.array([found["f"]], pa.float32()).equals(row["f"])


def test_open_connections(mariadb: Server) -> None:
    given = mariadb.connect()
    given.select_db("test")
    engine = sqlalchemy.create_engine(
        "mysql+pymysql://", creator=lambda: given, poolclass=sqlalchemy.StaticPool
    )
    with closing(given), engine.connect() as connection:
        for table, opened in (("one", given), ("two", connection)):
            with closing(open_source(opened)) as source:
                assert results.write(source, table, batches(), Into.NEW, COMMENT) == len(WHOLE)
                assert len(read(source, f"SELECT id FROM {table}")) == len(WHOLE)
        assert connection.exec_driver_sql("SELECT count(*) FROM two").scalar() == len(WHOLE)
    with (
        sqlalchemy.create_engine("sqlite://").connect() as other,
        pytest.raises(BadSetting, match="no database that is known"),
    ):
        open_source(other)


def test_a_connection_that_the_server_has_ended_meanwhile(mariadb: Server, source: Any) -> None:
    for asked in (lambda: source.check("result", Into.NEW), lambda: read(source, "SELECT 1 AS a")):
        mariadb.ask("KILL %s", source.connected().thread_id())
        asked()


def test_a_full_disk(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(target: object, rows: object) -> None:
        raise pymysql.OperationalError(1114, "The table 'result' is full")

    monkeypatch.setattr(mysqlwriting.MySQLTarget, "insert", full)
    with pytest.raises(Unwritable, match="the table result can't be written"):
        results.write(source, "result", batches(), Into.NEW, COMMENT)


def test_a_body_is_sent_whole(source: Source) -> None:
    script = """
    CREATE TABLE t (a INT); CREATE TABLE seen (a INT);
    CREATE TRIGGER r BEFORE INSERT ON t FOR EACH ROW BEGIN
        IF NEW.a < 0 THEN SET NEW.a = IF(NEW.a < -9, 9, 0); END IF;
        INSERT INTO seen VALUES (CASE WHEN NEW.a = 0 THEN 1 ELSE NEW.a END);
    END;
    INSERT INTO t VALUES (-3), (5)"""
    for statement in grammar.parse(script, source.dialect):
        assert isinstance(statement, Native)
        source.run(statement.text)
    assert read(source, "SELECT * FROM seen") == [{"a": 1}, {"a": 5}]
