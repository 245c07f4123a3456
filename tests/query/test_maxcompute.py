"""Rows from and results into MaxCompute; DuckDB stands in for the service, and pyodps' own types are used."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from elasticdl.errors import BadSetting, JobFailed
from elasticdl.query import results, snapshot
from elasticdl.query.source import DatabaseRefused, Into, Source, open_source

from .test_results import COMMENT, WHOLE


def odps() -> Any:
    """Return PyODPS: not imported before it is needed, because that takes seconds and each process that runs tests collects all of them."""
    return importlib.import_module("odps")


_NAMES = {
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.float64(): "double",
    pa.string(): "string",
    pa.list_(pa.float64()): "array<double>",
}


class Reader:
    """An answer's rows."""

    def __init__(self, rows: pa.Table) -> None:
        self._rows = rows
        self.count = rows.num_rows
        self.schema = odps().models.TableSchema.from_lists(
            rows.column_names, [_NAMES[kind] for kind in rows.schema.types]
        )

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None: ...

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return iter(self._rows.to_batches(max_chunksize=100))


class Service:
    """A project, for `odps.ODPS`.

    Attributes:
        lost: what is done in answer to the next RENAME is not told.
        short: rows that answers lack.
    """

    lost = False
    short = 0

    def __init__(self, *_: object, **__: object) -> None:
        self.database = duckdb.connect()
        self.comments: dict[str, str] = {}

    def execute_sql(self, text: str, hints: object) -> Any:
        try:
            answer = self.database.sql(text)
        except duckdb.Error as error:
            at = text.index("nix") + 1
            raise odps().errors.ODPSError(
                f"ODPS-0130071:[1,{at}] Semantic analysis exception - {error}"
            ) from None
        rows = answer.to_arrow_table() if answer is not None else pa.table({"none": pa.array([], pa.int32())})
        reader = Reader(rows)
        reader.count += self.short
        return SimpleNamespace(open_reader=lambda tunnel, arrow, limit: reader)

    def tables(self) -> dict[str, str]:
        return dict(
            self.database.execute("SELECT table_name, table_type FROM information_schema.tables").fetchall()
        )

    def exist_table(self, name: str) -> bool:
        return name in self.tables()

    def create_table(self, name: str, table_schema: Any, comment: str, hints: object) -> Any:
        self.comments[name] = comment
        columns = re.sub(
            "(?i)array<(.*)>",
            r"\1[]",
            ", ".join(f'"{one.name}" {one.type}' for one in table_schema.columns),
        )
        self.database.execute(f"CREATE TABLE {name} ({columns})")
        return self.get_table(name)

    def get_table(self, name: str) -> Any:
        return SimpleNamespace(
            is_virtual_view=self.tables()[name] == "VIEW",
            comment=self.comments.get(name, ""),
            rename=lambda new: self._rename(name, new),
            drop=lambda if_exists: self.database.execute(f"DROP TABLE IF EXISTS {name}"),
            open_writer=lambda arrow: SimpleNamespace(
                write=lambda rows: self.database.from_arrow(pa.Table.from_batches([rows])).insert_into(name),
                close=lambda: None,
            ),
        )

    def _rename(self, name: str, new: str) -> None:
        self.database.execute(f"ALTER TABLE {name} RENAME TO {new}")
        self.comments[new] = self.comments.pop(name)
        if self.lost:
            raise ConnectionResetError("gone")


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setattr(odps(), "ODPS", Service)
    for name, value in (("AK", "key"), ("SK", "hidden"), ("ENDPOINT", "http://service")):
        monkeypatch.setenv(f"MAXCOMPUTE_{name}", value)
    with closing(open_source("maxcompute://shop")) as found:
        yield found


def batches() -> Iterator[pa.RecordBatch]:
    for at in range(0, len(WHOLE), 40):
        yield pa.RecordBatch.from_pydict({"id": pa.array(WHOLE[at : at + 40]), "p": pa.array([[0.25]] * 40)})


def test_rows(source: Any, tmp_path: Path) -> None:
    source.run(
        "CREATE TABLE sales AS SELECT i AS id, i / 2 AS half, 'w' || i AS word FROM range(1000) AS r(i)"
    )
    assert str(source.schema("SELECT * FROM sales")) == "id: int64\nhalf: double\nword: string"
    got = snapshot.take(source, "SELECT * FROM sales WHERE id >= 100", directory=tmp_path / "s", seed=1)
    assert got.rows == 900
    assert source.run("SELECT count(*) AS n FROM sales").to_pylist() == [{"n": 1000}]
    assert [batch.num_rows for batch in source.rows("SELECT id FROM sales LIMIT 0")] == [0]
    source.client.short = 1
    with pytest.raises(DatabaseRefused, match="1,001 rows were promised, and 1,000 came"):
        list(source.rows("SELECT * FROM sales"))


def test_what_it_refuses_and_where(source: Source) -> None:
    for asked in (source.schema, lambda one: list(source.rows(one)), source.run):
        with pytest.raises(DatabaseRefused, match="Semantic analysis exception") as caught:
            asked("SELECT nix FROM (SELECT 1 AS a)")
        assert caught.value.place == 7
    with pytest.raises(BadSetting, match="MaxCompute binds no values"):
        source.schema("SELECT ?", (1,))
    for url in ("maxcompute://", "maxcompute://key:hidden@shop", "odps://shop/sales"):
        with pytest.raises(BadSetting, match=r"name the project alone: maxcompute://PROJECT") as refused:
            open_source(url)
        assert "hidden" not in str(refused.value)


def test_results(source: Any) -> None:
    assert results.write(source, "result", batches(), Into.NEW, COMMENT) == len(WHOLE)
    assert source.run("SELECT id FROM result ORDER BY id")["id"].to_pylist() == WHOLE
    assert source.client.comments == {"result": COMMENT}
    with pytest.raises(BadSetting, match="the table result of maxcompute://shop exists"):
        source.check("result", Into.NEW)
    with pytest.raises(
        BadSetting, match=r"results go to a new table of MaxCompute; leave out predict\.into='append'"
    ):
        source.check("result", Into.APPEND)
    source.run("CREATE VIEW seen AS SELECT 1 AS a")
    with pytest.raises(BadSetting, match="no table but a view"):
        source.check("seen", Into.NEW)


def test_an_error_among_the_rows_leaves_nothing(source: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> Iterator[pa.RecordBatch]:
        yield from batches()
        raise KeyError

    with pytest.raises(KeyError):
        results.write(source, "result", broken(), Into.NEW, COMMENT)
    monkeypatch.setattr("elasticdl.query.maxcompute._Target.count", lambda target: 7)
    with pytest.raises(JobFailed, match="the table has 7 rows after 120 were written to 0"):
        results.write(source, "result", batches(), Into.NEW, COMMENT)
    assert source.client.tables() == {}


def test_a_lost_rename_is_told_by_the_comment(source: Any) -> None:
    source.client.lost = True
    assert results.write(source, "result", batches(), Into.NEW, COMMENT) == len(WHOLE)
    assert list(source.client.tables()) == ["result"]
