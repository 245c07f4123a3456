"""Files on servers, by URLs."""

from __future__ import annotations

import gzip
import hashlib
import json
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet
import pytest

from elasticdl.data.plan.shard import Task
from elasticdl.data.readers.patience import Patience
from elasticdl.data.readers.reader import Reader, check_unchanged, shards_of
from elasticdl.data.readers.recordfiles import open_reader
from elasticdl.data.readers.records import Columns
from elasticdl.data.readers.writing import write_recordio, write_tfrecord
from elasticdl.errors import BadData, BadSetting, StorageAway
from tests.httpfiles import Files, serving

MANY = 6000


def table() -> pa.Table:
    return pa.table({"number": range(MANY), "word": [f"row {number}" for number in range(MANY)]})


def tfrecord(path: Path) -> None:
    write_tfrecord(path, (b"%d" % number * 20 for number in range(MANY)))


def csv(path: Path) -> None:
    path.write_text(
        "number,word\n" + "".join(f"{number},row {number} {'x' * 40}\n" for number in range(MANY))
    )


def jsonl(path: Path) -> None:
    path.write_text(
        "".join(json.dumps({"number": number, "word": "x" * 40}) + "\n" for number in range(MANY))
    )


def parquet(path: Path) -> None:
    pa.parquet.write_table(table(), path, row_group_size=500)


def arrow(path: Path) -> None:
    with pa.ipc.new_file(path, table().schema) as file:
        file.write_table(table(), max_chunksize=500)


def gzipped(path: Path) -> None:
    """Write 600 kB that can't be much smaller, in two members."""
    rows = [f"{number},{hashlib.blake2b(b'%d' % number).hexdigest()}\n".encode() for number in range(MANY)]
    half = MANY // 2
    path.write_bytes(gzip.compress(b"".join(rows[:half])) + gzip.compress(b"".join(rows[half:])))


def recordio(path: Path) -> None:
    write_recordio(path, [b"%20d" % number for number in range(MANY)], chunk=10_001)


Write = Callable[[Path], None]
each_kind = pytest.mark.parametrize(
    "write", [tfrecord, csv, jsonl, gzipped, parquet, arrow, recordio], ids=lambda write: write.__name__
)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Files]:
    (tmp_path / "served").mkdir()
    with serving(tmp_path / "served") as server:
        yield server


def opened(origin: str, tmp_path: Path, params: dict[str, Any] | None = None, **more: Any) -> Reader:
    return open_reader(origin, params or {}, tmp_path / "job", **more)


def read(reader: Reader, start: int, end: int, shard: int = 0) -> list[Any]:
    found = next(
        one for one in [shards_of(reader)[shard]] if one.start <= start and end <= one.start + one.count
    )
    records = reader.read(Task(0, 0, found, start, end), range(start, end))
    return list(zip(*records.arrays.values(), strict=True)) if isinstance(records, Columns) else list(records)


@each_kind
def test_the_same_records(tmp_path: Path, server: Files, write: Write) -> None:
    write(server.root / "data")
    local = opened(str(server.root / "data"), tmp_path)
    remote = opened(f"{server.url}/data", tmp_path)
    assert remote.metadata == local.metadata
    assert remote.block == local.block
    assert [(shard.name, shard.count) for shard in shards_of(remote)] == [(f"{server.url}/data", MANY)]
    for start in (0, 500, 3000, MANY - 500):
        assert read(remote, start, start + 500) == read(local, start, start + 500)


@pytest.mark.parametrize("write", [tfrecord, csv, jsonl], ids=lambda write: write.__name__)
def test_a_task_is_one_request_for_a_part(tmp_path: Path, server: Files, write: Write) -> None:
    write(server.root / "data")
    remote = opened(f"{server.url}/data", tmp_path)
    server.answered.clear()
    for _ in range(3):
        read(remote, 2000, 2100)
    (asked,) = [wanted for _, _, wanted in server.answered if wanted]
    first, _, last = asked.removeprefix("bytes=").partition("-")
    assert int(last) - int(first) < 150_000 < (server.root / "data").stat().st_size


def test_the_index_is_made_once(tmp_path: Path, server: Files) -> None:
    csv(server.root / "data")
    shards = shards_of(opened(f"{server.url}/data", tmp_path))
    server.answered.clear()
    check_unchanged(opened(f"{server.url}/data", tmp_path), shards)
    assert [wanted for _, _, wanted in server.answered if wanted] == ["bytes=0-4095"]


@pytest.mark.parametrize("what", ["", "/", "/*.csv"])
def test_directories_and_globs(tmp_path: Path, what: str) -> None:
    files = fsspec.filesystem("memory")
    for name in ("a.csv", "b.csv", "_SUCCESS", "deeper/c.csv"):
        files.pipe(f"/data/{name}", b"x,y\n1,2\n" if name.endswith("csv") else b"")
    try:
        shards = shards_of(opened(f"memory://data{what}", tmp_path))
        assert [(shard.name, shard.count) for shard in shards] == [
            ("memory:///data/a.csv", 1),
            ("memory:///data/b.csv", 1),
        ]
    finally:
        files.rm("/data", recursive=True)


def test_a_directory_of_http(tmp_path: Path, server: Files) -> None:
    (server.root / "data").mkdir()
    csv(server.root / "data" / "1.csv")
    csv(server.root / "data" / "2.csv")
    shards = shards_of(opened(f"{server.url}/data/", tmp_path))
    assert [shard.count for shard in shards] == [MANY, MANY]


@pytest.mark.parametrize("name", ["csv", "gif"])
def test_sizes_are_asked_for_together(tmp_path: Path, server: Files, name: str) -> None:
    (server.root / "data").mkdir()
    for number in range(8):
        (server.root / "data" / f"{number}.{name}").write_bytes(
            b"GIF89a;" if name == "gif" else b"a,b\n1,2\n"
        )
    server.together = threading.Barrier(8, lambda: setattr(server, "together", None))
    assert sum(shard.count for shard in shards_of(opened(f"{server.url}/data/", tmp_path))) == 8
    assert server.together is None


def test_the_missing_one_of_many_files_is_named(tmp_path: Path, server: Files) -> None:
    (server.root / "data").mkdir()
    for number in range(3):
        (server.root / "data" / f"{number}.csv").write_text("a,b\n1,2\n")
    (server.root / "data" / "1.csv").unlink()
    (server.root / "data" / "1.csv").symlink_to("nowhere")
    with pytest.raises(BadData, match=rf"{server.url}/data/1.csv does not exist"):
        opened(f"{server.url}/data/", tmp_path)


def test_a_file_that_changes(tmp_path: Path, server: Files) -> None:
    csv(server.root / "data")
    remote = opened(f"{server.url}/data", tmp_path)
    shards = shards_of(remote)
    read(remote, 0, 10)
    content = (server.root / "data").read_bytes()
    (server.root / "data").write_bytes(content.replace(b"row 7", b"now 7"))
    with pytest.raises(BadData, match=r"data has changed since it was indexed"):
        read(remote, 10, 20)
    with pytest.raises(BadData, match=r"data has changed since the job began"):
        check_unchanged(opened(f"{server.url}/data", tmp_path / "later"), shards)


def test_a_server_that_comes_back(tmp_path: Path, server: Files) -> None:
    csv(server.root / "data")
    notes: list[tuple[str, bool]] = []

    def wait(_: float) -> None:
        assert server.refused.is_set()
        server.status = 0

    remote = opened(
        f"{server.url}/data", tmp_path, patience=Patience(60, lambda *note: notes.append(note), wait=wait)
    )
    server.status = 503
    assert len(read(remote, 0, 100)) == 100
    (waiting, waits), (answers, waits_no_more) = notes
    assert waiting.startswith(f"waiting for {server.url}/data, for 60 s at most: ")
    assert answers.startswith(f"{server.url}/data answers again")
    assert (waits, waits_no_more) == (True, False)


@each_kind
def test_a_server_that_stays_away(tmp_path: Path, server: Files, write: Write) -> None:
    write(server.root / "data")
    times = iter(range(0, 100_000, 40))
    patience = Patience(60, clock=lambda: next(times), wait=lambda _: None)
    remote = opened(f"{server.url}/data", tmp_path, patience=patience)
    server.status = 503
    with pytest.raises(StorageAway, match=rf"{server.url}/data has not answered for \d+ s"):
        read(remote, 0, 500)


def test_a_server_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(StorageAway, match="has not answered for"):
        opened("http://127.0.0.1:1/data", tmp_path, patience=Patience(0.01, wait=lambda _: None))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "has no records: the file is empty"),
        (gzip.compress(b"a,b\n" * 9000)[:-20], "data can't be decompressed .gzip."),
        (b"PAR1" + bytes(50), "data can't be read as a file of Parquet"),
        (b"a,b\n1,2,3\n4,5\n", None),
        (b"\xff\0\xff\0", "data is none of TFRecord"),
    ],
    # Not by their bytes: a compressed file has its time in it, and each process that collects tests would name it otherwise.
    ids=[
        "empty",
        "half a compressed file",
        "half a Parquet file",
        "a row of CSV with fewer fields",
        "no known format",
    ],
)
def test_files_that_are_wrong(tmp_path: Path, server: Files, content: bytes, message: str | None) -> None:
    (server.root / "data").write_bytes(content)
    if message is None:
        with pytest.raises(BadData, match=rf"record 0 of {server.url}/data \(counted from 0\) is corrupt"):
            read(opened(f"{server.url}/data", tmp_path), 0, 1)
        return
    with pytest.raises(BadData, match=message):
        opened(f"{server.url}/data", tmp_path)


def test_a_compressed_task_is_one_request_for_a_part(tmp_path: Path, server: Files) -> None:
    rows = (f"{number},{hashlib.blake2b(b'%d' % number).hexdigest()}\n" for number in range(20_000))
    (server.root / "data").write_bytes(gzip.compress("".join(rows).encode()))
    remote = opened(f"{server.url}/data", tmp_path)
    for start in (12_000, 12_100, 19_900):
        server.answered.clear()
        assert [row[0] for row in read(remote, start, start + 100)] == list(
            map(str, range(start, start + 100))
        )
        (asked,) = [wanted for _, _, wanted in server.answered if wanted] or ["bytes=0-0"]
        first, _, last = asked.removeprefix("bytes=").partition("-")
        assert int(last) - int(first) < (server.root / "data").stat().st_size * 0.7


def test_a_compressed_file_with_an_index_is_opened_by_its_beginning(tmp_path: Path, server: Files) -> None:
    gzipped(server.root / "data")
    opened(f"{server.url}/data", tmp_path)
    server.answered.clear()
    opened(f"{server.url}/data", tmp_path)
    parts = [wanted.removeprefix("bytes=").split("-") for _, _, wanted in server.answered if wanted]
    assert (
        0
        < sum(int(last) - int(first) + 1 for first, last in parts)
        < (server.root / "data").stat().st_size / 2
    )


def test_recordio_is_fetched_by_tasks(tmp_path: Path, server: Files) -> None:
    recordio(server.root / "data")
    remote = opened(f"{server.url}/data", tmp_path, records_per_task=1000)
    assert remote.block == 500
    server.answered.clear()
    assert read(remote, 2000, 3000) == [b"%20d" % number for number in range(2000, 3000)]
    assert len([wanted for _, _, wanted in server.answered if wanted]) == 1
    with pytest.raises(BadSetting, match="the RecordIO reader has no parameters"):
        opened(f"{server.url}/data", tmp_path, {"header": True})


def test_recordio_that_is_wrong(tmp_path: Path, server: Files) -> None:
    recordio(server.root / "data")
    content = bytearray((server.root / "data").read_bytes())
    url = f"{server.url}/data"
    content[-1] ^= 1
    (server.root / "data").write_bytes(content)
    reader = opened(url, tmp_path)
    assert len(read(reader, 0, 500)) == 500
    with pytest.raises(
        BadData,
        match=rf"record {MANY - 500} of {url} \(counted from 0\) is corrupt: the checksum of its chunk is wrong",
    ):
        read(reader, MANY - 500, MANY)
    (server.root / "data").write_bytes(content[:-1])
    with pytest.raises(BadData, match=f"{url} has changed"):
        read(reader, 500, 1000)
    with pytest.raises(BadData, match=f"{url} ends in the middle of record {MANY - 500}; the file was cut"):
        opened(url, tmp_path / "again")
    content[0] = 0
    (server.root / "data").rename(server.root / "data.recordio")
    (server.root / "data.recordio").write_bytes(content)
    with pytest.raises(BadData, match=rf"record 0 of {url}.recordio .* no chunk begins here"):
        opened(f"{url}.recordio", tmp_path)


def test_what_is_not_there(tmp_path: Path, server: Files) -> None:
    for url in (f"{server.url}/nowhere", "memory://nowhere", "memory://nowhere/*.csv"):
        with pytest.raises(BadData, match=r"does not exist|there is no file at"):
            opened(url, tmp_path)


def test_a_server_without_ranges(tmp_path: Path, server: Files) -> None:
    csv(server.root / "data")
    server.knows_ranges = False
    with pytest.raises(BadData, match="sends the whole file instead of a part"):
        opened(f"{server.url}/data", tmp_path)


def test_without_the_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(BadSetting, match=r"s3://bucket/x needs another package: .*s3fs"):
        opened("s3://bucket/x", tmp_path)
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(BadSetting, match=r"needs the package fsspec: pip install 'elasticdl\[remote\]'"):
        opened("s3://bucket/x", tmp_path)
