"""Files that are compressed as a whole: the same records as of files that are not."""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from elasticdl.data.plan.shard import Task
from elasticdl.data.readers import parts
from elasticdl.data.readers.madetables import MadeTables
from elasticdl.data.readers.reader import BadRecords, Reader, check_unchanged, shards_of
from elasticdl.data.readers.recordfiles import open_reader
from elasticdl.data.readers.records import Columns
from elasticdl.data.readers.writing import write_recordio, write_tfrecord
from elasticdl.errors import BadData, BadSetting

MANY = 5000


def tfrecord(path: Path, many: int = MANY) -> None:
    write_tfrecord(path, (b"%d" % number * (number % 40) for number in range(many)))


def csv(path: Path, many: int = MANY) -> None:
    rows = (f'{number},"line\n{number}, ""quoted""",{"x" * (number % 50)}\n' for number in range(many))
    path.write_text("number,text,more\n" + "".join(rows))


def plain_csv(path: Path, many: int = MANY) -> None:
    path.write_text(
        "".join(f"{number};{'x' * (number % 70)}\r\n" for number in range(many)).removesuffix("\r\n")
    )


def jsonl(path: Path, many: int = MANY) -> None:
    lines = (json.dumps({"number": number, "text": "x" * (number % 50)}) + "\n" for number in range(many))
    path.write_text("\n".join(lines))


Write = Callable[[Path], None]
each_kind = pytest.mark.parametrize(
    "write", [tfrecord, csv, plain_csv, jsonl], ids=lambda write: write.__name__
)
SUFFIXES = {tfrecord: "tfrecord", csv: "csv", plain_csv: "csv", jsonl: "jsonl"}
PARAMS = {plain_csv: {"delimiter": ";", "header": False}}


def packed(path: Path) -> Path:
    """Compress a file in two members, which is one content."""
    target = path.with_name(path.name + ".gz")
    content = path.read_bytes()
    half = len(content) // 2
    target.write_bytes(gzip.compress(content[:half]) + gzip.compress(content[half:]))
    return target


def both(tmp_path: Path, write: Write) -> tuple[Reader, Reader, Path]:
    path = tmp_path / f"data.{SUFFIXES[write]}"
    write(path)
    params = PARAMS.get(write, {})
    compressed = packed(path)
    return opened(path, tmp_path, params), opened(compressed, tmp_path, params), compressed


def opened(path: Path, tmp_path: Path, params: dict[str, Any] | None = None, **more: Any) -> Reader:
    return open_reader(str(path), params or {}, tmp_path / "job", **more)


def read(reader: Reader, start: int, end: int, *records: int) -> Any:
    (shard,) = shards_of(reader)
    found = reader.read(Task(0, 0, shard, start, end), records or range(start, end))
    return (
        {name: array.tolist() for name, array in found.arrays.items()}
        if isinstance(found, Columns)
        else found
    )


@each_kind
def test_the_same_records(tmp_path: Path, write: Write) -> None:
    plain, compressed, _ = both(tmp_path, write)
    assert compressed.metadata == plain.metadata
    assert (
        [shard.count for shard in shards_of(compressed)]
        == [shard.count for shard in shards_of(plain)]
        == [MANY]
    )
    assert read(compressed, 0, MANY) == read(plain, 0, MANY)
    for start in (0, 1, 63, 640, 1777, MANY - 100):
        assert read(compressed, start, start + 100) == read(plain, start, start + 100), start
        assert read(compressed, start, start + 100, start + 7, start + 2) == read(
            plain, start, start + 100, start + 7, start + 2
        )


@each_kind
def test_only_a_part_is_fetched(tmp_path: Path, write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    from elasticdl.data.readers.gzipfiles import GzipSource

    fetched: list[int] = []
    part = GzipSource.part

    def counted(self: GzipSource, start: int, end: int) -> bytes:
        fetched.append(end - start)
        return part(self, start, end)

    _, compressed, path = both(tmp_path, write)
    monkeypatch.setattr(GzipSource, "part", counted)
    read(compressed, 2000, 2050)
    read(compressed, 2000, 2050)
    (size,) = fetched
    assert size < 2 * parts.PART + 10_000 < len(gzip.decompress(path.read_bytes()))


def test_the_index_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, compressed, path = both(tmp_path, csv)
    shards = shards_of(compressed)
    monkeypatch.setattr(parts.Cutter, "parts", lambda *_: pytest.fail("read once more"))
    again = opened(path, tmp_path)
    check_unchanged(again, shards)
    assert read(again, 7, 9) == read(compressed, 7, 9)


def test_no_part_is_left_when_a_reader_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, compressed, _ = both(tmp_path, csv)
    assert read(compressed, 0, 100) == read(plain, 0, 100)
    (folder,) = (tmp_path / "job").glob("parts-*")
    assert not list(folder.iterdir())
    monkeypatch.setattr(parts, "_IN_MEMORY", 0)
    for start in range(100, MANY, 100):
        assert read(compressed, start, start + 100) == read(plain, start, start + 100)
    assert len(list(folder.glob("*.part"))) == 8
    del compressed
    assert not folder.exists()


def test_directories_and_empty_files(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    for number in range(3):
        plain = tmp_path / f"{number}.csv"
        csv(plain, number)
        (tmp_path / "data" / f"{number}.csv.gz").write_bytes(
            gzip.compress(plain.read_bytes() if number else b"")
        )
    assert [shard.count for shard in shards_of(opened(tmp_path / "data", tmp_path))] == [1, 2, 0]


def test_a_corrupt_record(tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    rows = [f"{number},x{'y' * 80}\n" for number in range(MANY)]
    rows[3000] = "1,2,3\n"
    path.write_text("".join(rows))
    compressed = packed(path)
    said: list[str] = []
    reader = opened(compressed, tmp_path, {"header": False})
    message = rf"record 3000 of {compressed} \(counted from 0\) is corrupt"
    with pytest.raises(BadData, match=message):
        read(reader, 2900, 3100)
    policy = BadRecords(1, lambda what: not said.append(what))
    assert len(read(opened(compressed, tmp_path, {"header": False}, bad_records=policy), 3000, 3100)) == 99
    assert len(said) == 1
    assert f"record 3000 of {compressed}" in said[0]


def test_a_corrupt_tfrecord(tmp_path: Path) -> None:
    path = tmp_path / "data"
    write_tfrecord(str(path), (bytes(1000) for _ in range(500)))
    content = bytearray(path.read_bytes())
    content[300 * 1016 + 50] = 1
    path.write_bytes(content)
    compressed = packed(path)
    with pytest.raises(BadData, match=rf"record 300 of {compressed} \(counted from 0\) is corrupt"):
        read(opened(compressed, tmp_path), 200, 400)
    content[300 * 1016 + 2] = 1
    path.write_bytes(content)
    with pytest.raises(
        BadData, match=rf"{packed(path)} is corrupt behind record \d+ .* has another checksum; copy it again"
    ):
        opened(packed(path), tmp_path / "more")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (gzip.compress(b"a,b\n" * 9000, mtime=0)[:-20], "can't be decompressed .*was it cut or damaged"),
        (
            gzip.compress(b"a,b\n" * 90, mtime=0)[:8] + b"zzzzzzzzzz",
            "can't be decompressed .*was it cut or damaged",
        ),
        (
            gzip.compress(gzip.compress(b"a,b\n", mtime=0), mtime=0),
            "is compressed .gzip. twice; unpack it: gunzip data.csv.gz",
        ),
        (gzip.compress(b"PAR1" + bytes(100), mtime=0), "is Parquet, compressed .gzip. as a whole"),
        (gzip.compress(b"", mtime=0), "has no records: the file is empty"),
        (gzip.compress(b"\xff\0\xff", mtime=0), "is none of TFRecord, RecordIO"),
        (gzip.compress(b'a,"b\n' + b"c" * 100, mtime=0), "is a quote never closed"),
        (b"BZh91AY", "is compressed .bzip2.*: bunzip2 data.csv.gz"),
        (b"\xfd7zXZ\0", "is compressed .xz.*: unxz data.csv.gz"),
        (b"\x28\xb5\x2f\xfd", "is compressed .Zstandard.*: unzstd data.csv.gz"),
    ],
)
def test_files_that_are_wrong(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "data.csv.gz"
    path.write_bytes(content)
    if message.startswith("is none"):
        path = path.rename(tmp_path / "data.gz")
    with pytest.raises(BadData, match=message):
        opened(path, tmp_path)


def test_a_tfrecord_that_was_cut_before_it_was_compressed(tmp_path: Path) -> None:
    tfrecord(tmp_path / "data")
    (tmp_path / "data").write_bytes((tmp_path / "data").read_bytes()[:-5])
    with pytest.raises(
        BadData, match=rf"data.gz ends in the middle of record {MANY - 1}; the file was cut, copy it again"
    ):
        opened(packed(tmp_path / "data"), tmp_path)


def test_kinds_and_compression_are_not_mixed(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    csv(tmp_path / "data" / "a.csv")
    packed(tmp_path / "data" / "a.csv")
    with pytest.raises(BadData, match=r"mixes files that are compressed \(gzip\) and others, such as a.csv"):
        opened(tmp_path / "data", tmp_path)
    (tmp_path / "data" / "a.csv").unlink()
    jsonl(tmp_path / "b.jsonl")
    packed(tmp_path / "b.jsonl").rename(tmp_path / "data" / "b.jsonl.gz")
    with pytest.raises(BadData, match=r"mixes kinds: a.csv.gz is CSV, b.jsonl.gz is JSON lines"):
        opened(tmp_path / "data", tmp_path)


def test_recordio_is_compressed_inside(tmp_path: Path) -> None:
    write_recordio(str(tmp_path / "data"), [b"x"])
    with pytest.raises(BadData, match=r"is RecordIO, compressed \(gzip\) as a whole; .*: gunzip data.gz"):
        opened(packed(tmp_path / "data"), tmp_path)


def test_a_file_that_changes(tmp_path: Path) -> None:
    _, compressed, path = both(tmp_path, csv)
    read(compressed, 0, 10)
    path.write_bytes(gzip.compress(b"1,2\n" * 10))
    with pytest.raises(BadData, match="has changed since it was indexed"):
        read(compressed, 10, 20)


def test_without_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    csv(tmp_path / "data.csv")
    monkeypatch.setitem(sys.modules, "indexed_gzip", None)
    with pytest.raises(
        BadSetting, match=r"needs the package indexed_gzip: pip install 'elasticdl\[gzip\]', or gunzip it"
    ):
        opened(packed(tmp_path / "data.csv"), tmp_path)


def test_points_that_take_too_much_for_each_pod(tmp_path: Path) -> None:
    csv(tmp_path / "data.csv")
    with pytest.raises(BadData, match="--data_cache"):
        opened(packed(tmp_path / "data.csv"), tmp_path, made=MadeTables(tmp_path / "cache", 10))
