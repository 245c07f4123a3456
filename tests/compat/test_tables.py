"""Readers and the writer of MaxCompute of ElasticDL 0.2, with a client that stands for pyodps and keeps tables in memory."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from elasticdl.compat import tables
from elasticdl.compat.readers import RecordIODataReader, TextDataReader
from elasticdl.data.plan.shard import Shard, Task
from elasticdl.data.readers.custom import open_custom_reader
from elasticdl.errors import BadData, BadSetting

KEYS = {"project": "shop", "access_id": "key", "access_key": "hidden", "endpoint": "http://service"}


class Rows(list[dict[str, Any]]):
    """Rows of a table as a reader has them."""

    @property
    def count(self) -> int:
        return len(self)


class Table:
    def __init__(self, columns: Sequence[tuple[str, str]]) -> None:
        simple = [SimpleNamespace(name=name, type=kind) for name, kind in columns]
        partition = SimpleNamespace(name="worker", type="STRING")
        self.table_schema = SimpleNamespace(columns=[*simple, partition], simple_columns=simple)
        self.partitions: dict[str | None, Rows] = {}
        self.failures = 0

    @contextmanager
    def open_reader(self, partition: str | None = None) -> Iterator[Rows]:
        if self.failures:
            self.failures -= 1
            raise OSError("the tunnel is closed")
        yield self.partitions[partition]

    @contextmanager
    def open_writer(self, partition: str, create_partition: bool) -> Iterator[SimpleNamespace]:
        assert create_partition
        names = [column.name for column in self.table_schema.simple_columns]
        rows = self.partitions.setdefault(partition, Rows())
        yield SimpleNamespace(
            write=lambda found: rows.extend(dict(zip(names, row, strict=True)) for row in found)
        )


@pytest.fixture
def shop(monkeypatch: pytest.MonkeyPatch) -> dict[str, Table]:
    """Tables by project and name."""
    found: dict[str, Table] = {}

    class Client:
        def __init__(
            self, access: str, key: str, project: str, endpoint: str | None, tunnel_endpoint: str | None
        ) -> None:
            assert (access, key, endpoint, tunnel_endpoint) == ("key", "hidden", "http://service", None)
            self._project = project

        def get_table(self, name: str) -> Table:
            return found[f"{self._project}.{name}"]

        def exist_table(self, name: str) -> bool:
            return f"{self._project}.{name}" in found

        def create_table(self, name: str, schema: tuple[str, str], if_not_exists: bool) -> None:
            assert schema[1] == "worker string"
            columns = [tuple(column.split()) for column in schema[0].split(", ")]
            found[f"{self._project}.{name}"] = Table(columns)  # type: ignore[arg-type]

    module = ModuleType("odps")
    module.ODPS = Client  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "odps", module)
    monkeypatch.setattr(tables, "_PAUSE", 0.0)
    sales = found["shop.sales"] = Table([("id", "BIGINT"), ("word", "STRING")])
    sales.partitions[None] = Rows({"id": one, "word": None if one == 3 else f"w{one}"} for one in range(25))
    return found


def test_a_job_reads_rows_as_texts(shop: dict[str, Table]) -> None:
    def custom_data_reader(data_origin: str, records_per_task: int | None = None, **params: Any) -> object:
        return tables.create_data_reader(data_origin, records_per_task, reader_type="ODPS", **KEYS, **params)

    reader = open_custom_reader(custom_data_reader, "sales", 10, {"columns": ["word", "id"]})
    assert reader.create_shards() == [("sales", 0, 10), ("sales", 10, 10), ("sales", 20, 5)]
    assert reader.read(Task(0, 0, Shard("sales", 0, 10), 0, 10), [3, 1]) == [["None", "3"], ["w1", "1"]]
    assert reader.metadata.column_names == ["word", "id"]
    assert reader.metadata.column_dtypes == {"word": "string", "id": "bigint"}


def test_a_function_parses_rows(shop: dict[str, Table]) -> None:
    reader = tables.ParallelODPSDataReader(lambda row: row[1].upper(), table="shop.sales", **KEYS)
    part = SimpleNamespace(start=0, end=2)
    assert [*reader.read_records(part)] == ["W0", "W1"]  # type: ignore[arg-type]
    assert reader.create_shards() == {"shop.sales": [(0, 25)]}


def test_workers_share_the_batches(shop: dict[str, Table]) -> None:
    reader = tables.ODPSReader(**KEYS, table="other.sales", columns=["id"])
    with pytest.raises(KeyError, match=r"other\.sales"):
        reader.get_table_size()
    reader = tables.ODPSReader(**KEYS, table="sales", columns=["id"], transform_fn=lambda row: row[0])
    first, second = ([*reader.to_iterator(2, worker, 4, cache_batch_count=2, limit=20)] for worker in (0, 1))
    assert first == [[0, 1, 2, 3], [4, 5, 6, 7], [16, 17, 18, 19]]
    assert second == [[8, 9, 10, 11], [12, 13, 14, 15]]
    shuffled = [*reader.to_iterator(1, 0, 5, epochs=2, shuffle=True)]
    assert sorted(one for batch in shuffled for one in batch) == sorted([*range(25)] * 2)
    with pytest.raises(ValueError, match="below num_workers"):
        next(reader.to_iterator(2, 2, 4))


def test_reads_are_tried_three_times(shop: dict[str, Table]) -> None:
    reader = tables.ODPSReader(**KEYS, table="sales")
    shop["shop.sales"].failures = 2
    assert reader.read_batch(1, 2) == [[1, "w1"]]
    shop["shop.sales"].failures = 3
    with pytest.raises(BadData, match=r"the table shop\.sales can't be read: the tunnel is closed"):
        reader.get_table_size()


def test_each_worker_writes_a_partition(shop: dict[str, Table]) -> None:
    with pytest.raises(ValueError, match="columns and column_types are needed"):
        tables.ODPSWriter(**KEYS, table="predicted").from_iterator(iter([[1, 0.5]]), 0)
    writer = tables.ODPSWriter(
        **KEYS, table="predicted", columns=["id", "p"], column_types=["bigint", "double"]
    )
    writer.from_iterator(iter([[1, 0.5], [2, 0.25]]), 0)
    tables.ODPSWriter(**KEYS, table="shop.predicted").from_iterator(iter([[[3, 0.0], [4, 1.0]]]), 1)
    assert shop["shop.predicted"].partitions == {
        "worker=0": [{"id": 1, "p": 0.5}, {"id": 2, "p": 0.25}],
        "worker=1": [{"id": 3, "p": 0.0}, {"id": 4, "p": 1.0}],
    }


def test_a_reader_is_made_by_type_environment_and_name(
    shop: dict[str, Table], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rows.csv").write_text("a\n")
    (tmp_path / "data").mkdir()
    (tmp_path / "data/data-00000").touch()
    for name in ("PROJECT", "AK", "SK", "ENDPOINT"):
        monkeypatch.delenv(f"MAXCOMPUTE_{name}", raising=False)
    assert isinstance(tables.create_data_reader(str(tmp_path / "rows.csv")), TextDataReader)
    assert isinstance(tables.create_data_reader(str(tmp_path / "data")), RecordIODataReader)
    with pytest.raises(
        BadSetting, match="needs project, access_id, access_key; the variables MAXCOMPUTE_PROJECT"
    ):
        tables.create_data_reader("sales", reader_type="ODPS")
    with pytest.raises(BadSetting, match="reader_type is one of CSV, ODPS, RecordIO; received 'x'"):
        tables.create_data_reader("sales", reader_type="x")
    for name, value in (("PROJECT", "shop"), ("AK", "key"), ("SK", "hidden"), ("ENDPOINT", "http://service")):
        monkeypatch.setenv(f"MAXCOMPUTE_{name}", value)
    assert tables.create_data_reader("sales").create_shards() == {"sales": [(0, 25)]}
    monkeypatch.setitem(sys.modules, "odps", None)
    with pytest.raises(BadSetting, match=r"pip install 'elasticdl\[maxcompute\]'"):
        tables.create_data_reader("sales").create_shards()
