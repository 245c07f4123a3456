"""Tables that are files of a bucket, on a server of s3://: read by URL or as a folder, and written whole."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest
import s3fs

from elasticdl.errors import BadData, BadSetting, Unwritable
from elasticdl.query import results
from elasticdl.query.source import DatabaseRefused, Into, Source, open_source
from tests.s3server import S3Server, serving

from .test_results import COMMENT, WHOLE, batches


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    root = tmp_path_factory.mktemp("s3")
    (root / "bucket/data/deeper").mkdir(parents=True)
    (root / "bucket/data/people.csv").write_text("name,age\nAnn,31\nBob,\n")
    (root / "bucket/data/deeper/not.csv").write_text("a\n1\n")
    pyarrow.parquet.write_table(pa.table({"a b": [1, 2]}), root / "bucket/data/年.parquet")
    with serving(root) as found:
        yield found


@pytest.fixture(autouse=True)
def _keys(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    s3fs.S3FileSystem.clear_instance_cache()
    yield
    s3fs.S3FileSystem.clear_instance_cache()


def read(source: Source, select: str) -> list[dict[str, object]]:
    return pa.Table.from_batches(source.rows(select)).to_pylist()


def test_a_folder_of_a_bucket(tmp_path: Path) -> None:
    with closing(open_source("s3://bucket/data/")) as source:
        assert source.schema("FROM People").names == ["name", "age"]
        assert read(source, "SELECT p.name, y.* FROM people p, \"年\" y WHERE age > 30") == [
            {"name": "Ann", "a b": 1}, {"name": "Ann", "a b": 2}
        ]  # fmt: skip
        with pytest.raises(DatabaseRefused, match=r"Table with name [\"']?not[\"']? does not exist"):
            source.schema('FROM "not"')
        assert results.write(source, "result", batches(), Into.NEW, COMMENT) == len(WHOLE)
        with pytest.raises(BadSetting, match="the table result of the folder s3://bucket/data/ exists"):
            source.check("result", Into.NEW)
        results.write(source, "result", batches(1000), Into.APPEND, COMMENT)
        ids = [row["id"] for row in read(source, "SELECT id FROM result")]
        assert ids == [*WHOLE, *range(1000, 1000 + len(WHOLE))]
        results.write(source, "result", batches(2000), Into.REPLACE, COMMENT)
        assert read(source, "SELECT min(id) AS least, count(*) AS n FROM result") == [
            {"least": 2000, "n": len(WHOLE)}
        ]
        with pytest.raises(BadData, match=r"s3://bucket/data/result\.parquet has other columns"):
            results.write(
                source, "result", iter([pa.RecordBatch.from_pydict({"x": [1]})]), Into.APPEND, COMMENT
            )
    # a folder of this machine, and a database, read what a statement names
    with closing(open_source(folder=tmp_path)) as source:
        assert read(source, "SELECT count(*) AS n FROM 's3://bucket/data/*.parquet'") == [
            {"n": 2 + len(WHOLE)}
        ]
        source.run("COPY (SELECT 7 AS a) TO 's3://bucket/data/seven.parquet'")
        assert read(source, "FROM read_parquet('s3://bucket/data/seven.parquet')") == [{"a": 7}]


def test_what_is_not_there_and_what_is_denied(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with closing(open_source(folder=tmp_path)) as source, pytest.raises(DatabaseRefused) as caught:
        source.schema("FROM 's3://bucket/nix.parquet'")
    assert caught.value.reason
    with (
        closing(open_source("s3://nix/data")) as source,
        pytest.raises(Unwritable, match=r"can't be written to s3://nix/data/r\.parquet"),
    ):
        results.write(source, "r", batches(), Into.NEW, COMMENT)
    with pytest.raises(BadSetting, match=r"s3:// names no bucket; write s3://BUCKET/FOLDER"):
        open_source("s3://")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "other")
    s3fs.S3FileSystem.clear_instance_cache()
    with (
        closing(open_source("s3://bucket/data")) as source,
        pytest.raises(BadData, match=r"s3://bucket/data can't be read: .*"),
    ):
        source.schema("FROM people")
