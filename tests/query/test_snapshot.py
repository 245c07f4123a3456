"""A query's rows as files: once, counted, shuffled, of one type for each column."""

from __future__ import annotations

import datetime
import io
import resource
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from elasticdl.data.readers.recordfiles import open_reader
from elasticdl.errors import BadData, JobFailed, Unwritable
from elasticdl.query import check, snapshot
from elasticdl.query.snapshot import Snapshot, row_group
from elasticdl.query.source import Source, open_source

MANY = 20_000


def taken(source: Source, select: str, tmp_path: Path, **more: Any) -> Snapshot:
    return snapshot.take(source, select, directory=tmp_path / "snapshot", seed=7, **more)


def rows(directory: Path) -> pa.Table:
    return pyarrow.parquet.read_table(directory)


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Source]:
    source = open_source(folder=tmp_path)
    yield source
    source.close()


def test_a_shuffled_snapshot(memory: Source, tmp_path: Path) -> None:
    got = taken(memory, f"SELECT i AS id, i % 3 AS label FROM range({MANY}) AS r(i)", tmp_path, label="label")
    assert got.validation is not None
    assert (got.rows, got.training_rows, got.validation_rows) == (MANY, MANY * 9 // 10, MANY // 10)
    trained, validated = (rows(path)["id"].to_pylist() for path in (got.training, got.validation))
    assert sorted(trained + validated) == list(range(MANY))
    assert trained != sorted(trained)
    # each eighth of the file has rows of all of the table
    assert max(trained[: MANY // 8]) > MANY * 0.95
    (file,) = got.training.iterdir()
    groups = pyarrow.parquet.ParquetFile(file).metadata
    assert [groups.row_group(at).num_rows for at in range(groups.num_row_groups)] == [256] * 70 + [80]
    assert {path.name for path in got.directory.iterdir()} == {"training", "validation"}
    assert got.directory.stat().st_mode & 0o777 == 0o700


def test_how_far_it_is_stands_in_a_terminal(
    memory: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stderr", seen := Terminal())
    taken(memory, f"SELECT i FROM range({MANY}) AS r(i)", tmp_path)
    assert f"{MANY:,} rows read" in seen.getvalue()
    assert f"{MANY:,} of {MANY:,} rows shuffled and written" in seen.getvalue()


def test_row_groups_of_a_large_table(memory: Source, tmp_path: Path) -> None:
    got = taken(memory, "SELECT i FROM range(600_000) AS r(i)", tmp_path)
    (file,) = got.training.iterdir()
    groups = pyarrow.parquet.ParquetFile(file).metadata
    sizes = [groups.row_group(at).num_rows for at in range(groups.num_row_groups)]
    assert sizes == [8192] * (540_000 // 8192) + [540_000 % 8192]


def test_how_many_rows_a_group_has() -> None:
    found = [row_group(rows) for rows in (1, 8191, 8192, 20_000, 131_071, 131_072, 10_000_000)]
    assert found == [128, 128, 128, 256, 1024, 2048, 8192]


def test_the_order_depends_on_the_seed_alone(memory: Source, tmp_path: Path) -> None:
    query = "SELECT i FROM range(5000) AS r(i)"
    found = [
        rows(snapshot.take(memory, query, directory=tmp_path / str(at), seed=seed).training)["i"].to_pylist()
        for at, seed in enumerate((1, 1, 2))
    ]
    assert found[0] == found[1] != found[2]
    assert sorted(found[0]) != sorted(found[2])  # others are set apart


def test_few_rows_are_all_trained(memory: Source, tmp_path: Path) -> None:
    got = taken(memory, "FROM range(199)", tmp_path)
    assert (got.validation, got.training_rows, got.validation_rows) == (None, 199, 0)


def test_a_fraction(memory: Source, tmp_path: Path) -> None:
    got = taken(memory, "FROM range(1000)", tmp_path, fraction=0.25)
    assert (got.training_rows, got.validation_rows) == (750, 250)
    none = snapshot.take(memory, "FROM range(1000)", directory=tmp_path / "none", seed=1, fraction=0)
    assert (none.validation, none.training_rows) == (None, 1000)


def test_a_fraction_leaves_a_row_to_train_on(memory: Source, tmp_path: Path) -> None:
    with pytest.raises(
        BadData,
        match=r"^validation\.fraction=0\.999 sets all 300 rows apart, and leaves none to train on; make",
    ):
        taken(memory, "FROM range(300)", tmp_path, fraction=0.999)
    assert not (tmp_path / "snapshot").exists()
    got = taken(memory, "FROM range(300)", tmp_path, fraction=0.998)
    assert (got.training_rows, got.validation_rows) == (1, 299)


def test_rows_to_predict_stay_in_their_order(memory: Source, tmp_path: Path) -> None:
    select = f"SELECT {MANY} - i AS id, date '2020-01-01' + i::INTEGER AS day, 1.5::DECIMAL(9, 2) AS price FROM range({MANY}) AS r(i)"
    got = taken(memory, select, tmp_path, training=False)
    assert (got.rows, got.training_rows, got.validation) == (MANY, MANY, None)
    assert rows(got.training)["id"].to_pylist() == list(range(MANY, 0, -1))
    original = pa.Table.from_batches(got.selected())
    assert original["id"].to_pylist() == list(range(MANY, 0, -1))
    assert original["price"].type == pa.decimal128(9, 2)
    assert original["day"][1].as_py() == datetime.date(2020, 1, 2)


def test_types_for_a_model(memory: Source, tmp_path: Path) -> None:
    memory.run("CREATE TYPE size AS ENUM ('small', 'large')")
    memory.run(
        """CREATE TABLE t AS SELECT * FROM (VALUES
        (1, true, 1, 1.5::DECIMAL(9,2), 'x', DATE '1970-01-02', TIMESTAMP '1970-01-01 00:00:01.5',
         TIMESTAMPTZ '1970-01-01 00:00:02+00', TIME '01:00', 'small'::size, [1, 2], [1, NULL],
         ['a', NULL], [0.5::FLOAT], {'a': 1}, 'y'::BLOB, uuid()),
        (2, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)) AS v(
        i, b, n, d, s, day, stamp, zoned, clock, e, ints, holes, words, floats, st, bl, u)"""
    )
    got = taken(memory, "FROM t", tmp_path, training=False)
    found = rows(got.training).to_pydict()
    assert {name: values[0] for name, values in found.items() if name != "u"} == {
        "i": 1,
        "b": 1.0,
        "n": 1.0,
        "d": 1.5,
        "s": "x",
        "day": 86400.0,
        "stamp": 1.5,
        "zoned": 2.0,
        "clock": 3600.0,
        "e": "small",
        "ints": [1, 2],
        "holes": [1.0, None],
        "words": ["a", None],
        "floats": [0.5],
    }
    assert [found[name][1] for name in ("b", "n", "day", "s", "ints", "floats")] == [
        None,
        None,
        None,
        None,
        [],
        [],
    ]
    assert {"st", "bl"} <= {*got.schema.names} - {*found}
    reader = open_reader(str(got.training), {}, tmp_path / "job")
    assert reader.metadata.column_dtypes["n"] == "float64"
    original = pa.Table.from_batches(got.selected())
    assert original.schema == got.schema
    assert original["st"].to_pylist() == [{"a": 1}, None]
    assert original["zoned"][0].as_py() == datetime.datetime(1970, 1, 1, 0, 0, 2, tzinfo=datetime.UTC)


def test_odd_names_and_a_thousand_columns(memory: Source, tmp_path: Path) -> None:
    names = ["年龄", 'a"b', "a.b", "a/b", "it's", "elasticdl_row", "select", "a b", "é"]
    columns = ", ".join(f'{at} AS "{name.replace(chr(34), chr(34) * 2)}"' for at, name in enumerate(names))
    more = ", ".join(f"i + {at} AS c{at}" for at in range(1000))
    got = taken(memory, f"SELECT {columns}, {more} FROM range(300) AS r(i)", tmp_path)
    found = rows(got.training)
    assert found.column_names[: len(names)] == names == got.schema.names[: len(names)]
    assert [found[name][0].as_py() for name in names] == list(range(len(names)))
    assert found.num_columns == len(names) + 1000


@pytest.mark.parametrize(
    ("select", "label", "says"),
    [
        ("SELECT 1 AS a WHERE false", None, "the SELECT gives no rows"),
        (
            "SELECT 1 AS a, 2 AS a",
            None,
            "two columns of the name 'a'; give one of them another name: AS \"a_2\"",
        ),
        ('SELECT 1 AS a, 2 AS "A"', None, "two columns of the name 'A' \\(beside 'a': capitals"),
        (
            "SELECT nullif(i % 3, 0) AS income FROM range(9) AS r(i)",
            "income",
            "3 of 9 rows have no income; add WHERE income IS NOT NULL",
        ),
        (
            "SELECT NULL AS income FROM range(9)",
            "income",
            "no row has a value of the label income: the column is null in all 9 rows",
        ),
        ("SELECT 1 AS a", "income", "gives no column 'income'; it gives a"),
        ("SELECT INTERVAL 1 DAY AS a", None, "the column 'a' is an interval, which no model takes"),
        ("SELECT {'a': 1} AS a", None, "a model takes none of the columns of the SELECT: a \\(struct"),
        ("SELECT x FROM nix", None, "Table with name nix does not exist"),
        ("SELECT 1 / CAST(i || 'x' AS INTEGER) FROM range(9) AS r(i)", None, "Could not convert string"),
    ],
)
def test_nothing_is_left_of_what_is_refused(
    memory: Source, tmp_path: Path, select: str, label: str | None, says: str
) -> None:
    with pytest.raises(BadData, match=says):
        taken(memory, select, tmp_path, label=label)
    assert not (tmp_path / "snapshot").exists()


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[Callable[[str, list[tuple[Any, ...]]], Source]]:
    opened = []

    def filled(columns: str, values: list[tuple[Any, ...]]) -> Source:
        with closing(sqlite3.connect(tmp_path / "data.db")) as database:
            database.execute(f"CREATE TABLE t ({columns})")
            database.executemany(f"INSERT INTO t VALUES ({', '.join('?' * len(values[0]))})", values)
            database.commit()
        opened.append(open_source(f"sqlite:///{tmp_path}/data.db"))
        return opened[-1]

    yield filled
    for source in opened:
        source.close()


def test_types_of_sqlite_that_change_on_the_way(
    sqlite: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elasticdl.query.dbapi.ROWS", 3)
    values = [
        (None, 1, 1, None),
        (None, 2, 2, None),
        (None, 3, 3, None),
        (1, 2.5, "x", None),
        (2, 4, 1e20, None),
        (3, 2**53 + 1, 0.1, None),
        (4, None, 7, None),
    ]
    got = taken(sqlite("a, b, c, d", values), "SELECT * FROM t", tmp_path, training=False)
    assert list(map(str, got.schema.types)) == ["int64", "double", "string", "null"]
    original = pa.Table.from_batches(got.selected()).to_pydict()
    assert original["a"] == [None, None, None, 1, 2, 3, 4]
    assert original["b"] == [1, 2, 3, 2.5, 4, float(2**53), None]
    assert original["c"] == ["1", "2", "3", "x", "1e+20", "0.1", "7"]
    assert original["d"] == [None] * 7
    assert rows(got.training)["a"].type == pa.float64()


def test_a_column_of_nulls_is_what_it_was_in_the_training(sqlite: Any, tmp_path: Path) -> None:
    got = taken(
        sqlite("a, b, c", [(None, None, 1)]),
        "SELECT * FROM t",
        tmp_path,
        training=False,
        numbers=check.numbers({"a": "number", "b": "text", "c": "integer"}),
    )
    found = rows(got.training)
    assert [found[name].type for name in "abc"] == [pa.float64(), pa.string(), pa.int64()]
    assert found.to_pylist() == [{"a": None, "b": None, "c": 1}]


def test_values_without_a_common_type(sqlite: Any, tmp_path: Path) -> None:
    source = sqlite("a", [(1,), (b"x",)])
    with pytest.raises(
        BadData, match=r"the column 'a' has values of the types bytes and int, .*CAST\(\"a\" AS"
    ):
        taken(source, "SELECT * FROM t", tmp_path)
    assert not (tmp_path / "snapshot").exists()


def test_bound_values(sqlite: Any, memory: Source, tmp_path: Path) -> None:
    source = sqlite("a", [(at,) for at in range(9)])
    got = snapshot.take(source, "SELECT a FROM t WHERE a >= ?", (5,), directory=tmp_path / "one", seed=1)
    assert got.rows == 4
    got = snapshot.take(
        memory,
        "SELECT i FROM range(9) AS r(i) WHERE i < $most",
        {"most": 2},
        directory=tmp_path / "two",
        seed=1,
    )
    assert got.rows == 2


def test_a_lost_row_fails_the_snapshot(
    memory: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def losing(batches: Iterator[pa.RecordBatch], directory: Path) -> Any:
        raw = streamed(batches, directory)
        whole = pyarrow.parquet.read_table(raw.files[0])
        pyarrow.parquet.write_table(whole.slice(1), raw.files[0])
        return raw

    streamed = snapshot.streamed
    monkeypatch.setattr(snapshot, "streamed", losing)
    with pytest.raises(JobFailed, match="the database gave 1,000 rows, and the snapshot has 899"):
        taken(memory, "FROM range(1000)", tmp_path)
    assert not (tmp_path / "snapshot").exists()


def test_a_full_disk(memory: Source, tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 18, before[1]))
    try:
        with pytest.raises(
            Unwritable,
            match=r"the rows of the SELECT can't be written to .*try again, or name another place: --store",
        ):
            taken(memory, "SELECT uuid() AS a, uuid() AS b FROM range(100000)", tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not (tmp_path / "snapshot").exists()
