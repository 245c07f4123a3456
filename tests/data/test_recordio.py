"""RecordIO: files written here and by hand, read in any order; and files that are wrong."""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticdl._core import RecordIOFile, crc32c
from elasticdl.data.plan.ledger import Ledger
from elasticdl.data.plan.shard import Shard, Task
from elasticdl.data.readers import recordiofiles
from elasticdl.data.readers.reader import Metadata, Reader, shards_of
from elasticdl.data.readers.recordfiles import open_reader
from elasticdl.data.readers.writing import Compressor, write_recordio
from elasticdl.errors import BadData, BadSetting

RECORDS = [f"record {i}".encode() for i in range(10)]


def framed(payload: bytes) -> bytes:
    """Return Snappy's framing format, of frames that are compressed and one that is not.

    Format: https://github.com/google/snappy/blob/main/framing_format.txt
    """

    def frame(kind: int, plain: bytes, content: bytes) -> bytes:
        crc = crc32c(plain)
        masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
        return struct.pack("<I", kind | len(content) + 4 << 8) + struct.pack("<I", masked) + content

    half = len(payload) // 2
    packed = pa.compress(payload[:half], codec="snappy", asbytes=True)
    return (
        b"\xff\x06\x00\x00sNaPpY"
        + frame(0, payload[:half], packed)
        + frame(1, payload[half:], payload[half:])
    )


PACKED = {Compressor.NONE: bytes, Compressor.SNAPPY: framed, Compressor.GZIP: gzip.compress}


def chunk(records: Sequence[bytes], compressor: Compressor = Compressor.SNAPPY) -> bytes:
    """Return a chunk that this project has not written."""
    packed = PACKED[compressor](b"".join(struct.pack("<I", len(record)) + record for record in records))
    return struct.pack("<5I", 0x01020304, zlib.crc32(packed), compressor, len(packed), len(records)) + packed


def opened(path: Path, tmp_path: Path, **more: Any) -> Reader:
    return open_reader(str(path), more.pop("params", {}), tmp_path / "job", **more)


def whole(reader: Reader) -> list[bytes]:
    found: list[bytes] = []
    for shard in filter(lambda one: one.count, shards_of(reader)):
        task = Task(0, 0, shard, shard.start, shard.start + shard.count)
        found += reader.read(task, range(task.start, task.end))  # type: ignore[arg-type]
    return found


@pytest.mark.parametrize("compressor", Compressor)
def test_files_of_other_writers(tmp_path: Path, compressor: Compressor) -> None:
    path = tmp_path / "data-00000"
    path.write_bytes(
        chunk(RECORDS[:4], compressor) + chunk([], compressor) + chunk([*RECORDS[4:], b""], compressor)
    )
    reader = opened(path, tmp_path)
    assert whole(reader) == [*RECORDS, b""]
    assert (reader.block, reader.metadata) == (7, Metadata())


@pytest.mark.parametrize("compressor", Compressor)
@given(records=st.lists(st.binary(max_size=50), min_size=1, max_size=30), longest=st.integers(51, 200))
def test_what_is_written_comes_out_again(
    tmp_path_factory: pytest.TempPathFactory, compressor: Compressor, records: list[bytes], longest: int
) -> None:
    tmp_path = tmp_path_factory.mktemp("recordio")
    path = tmp_path / "file"
    assert write_recordio(path, records, compressor, longest) == len(records)
    reader = opened(path, tmp_path, records_per_task=4)
    assert whole(reader) == records
    ledger = Ledger(shards_of(reader), max(4, reader.block), 3, 1, True)
    tasks = [ledger.task(0, place) for place in range(ledger.num_tasks)]
    numbers = [
        (task, ledger.chunk(task, number).tolist())
        for task in tasks
        for number in range(ledger.num_chunks(task))
    ]
    assert all(reader.read(task, some) == [records[one] for one in some] for task, some in numbers)
    starts = {0}
    for many in RecordIOFile(str(path)).chunks:
        starts.add(max(starts) + many)
    assert {task.start for task in tasks} <= starts


def test_a_chunk_ends_before_it_is_too_long(tmp_path: Path) -> None:
    write_recordio(tmp_path / "file", [b"x" * 30, b"y" * 30, b"z" * 40, b""], chunk=70)
    assert RecordIOFile(str(tmp_path / "file")).chunks == [2, 2]
    with pytest.raises(
        BadData, match=r"record 1 \(counted from 0\) has 70 bytes; a chunk of other has less than 70"
    ):
        write_recordio(tmp_path / "other", [b"x", b"y" * 70], chunk=70)
    assert not (tmp_path / "other").exists()


def test_the_head_of_a_chunk(tmp_path: Path) -> None:
    write_recordio(tmp_path / "file", [b"one", b""], Compressor.NONE)
    payload = bytes.fromhex("03000000") + b"one" + bytes(4)
    assert (tmp_path / "file").read_bytes() == (
        bytes.fromhex("04030201") + struct.pack("<4I", zlib.crc32(payload), 0, 11, 2) + payload
    )


def test_files_of_a_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recordiofiles, "_OPEN_FILES", 2)
    (tmp_path / "data").mkdir()
    for number in range(5):
        write_recordio(tmp_path / "data" / f"data-{number:05}", RECORDS[2 * number : 2 * number + 2])
    (tmp_path / "data" / "data-00005").touch()
    reader = opened(tmp_path / "data", tmp_path)
    assert [count for _, _, count in reader.create_shards()] == [2] * 5 + [0]
    assert whole(reader) == RECORDS


def refused(path: Path, tmp_path: Path, **more: Any) -> str:
    with pytest.raises((BadData, BadSetting)) as caught:
        whole(opened(path, tmp_path, **more))
    return str(caught.value)


def test_files_that_are_wrong(tmp_path: Path) -> None:
    path = tmp_path / "file"
    content = chunk(RECORDS[:4]) + chunk(RECORDS[4:])
    second = len(chunk(RECORDS[:4]))
    path.write_bytes(content[:-1])
    assert f"{path} ends in the middle of record 4: the record begins at byte {second}" in refused(
        path, tmp_path
    )
    path.write_bytes(content[: second + 10])
    assert "needs 20 bytes, but only 10 are left; the file was cut" in refused(path, tmp_path)
    path.write_bytes(content[:second] + b"x" + content[second + 1 :])
    assert (
        f"record 4 of {path} (counted from 0, chunk at byte {second}) is corrupt: no chunk begins here"
        in refused(path, tmp_path)
    )
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert "is corrupt: the checksum of its chunk is wrong" in refused(path, tmp_path)
    path.write_bytes(content[: second + 8] + b"\x03" + content[second + 9 :])
    assert "is corrupt: its chunk is compressed in a way that is not known" in refused(path, tmp_path)
    path.write_bytes(content[: second + 16] + b"\x07" + content[second + 17 :])
    assert "is corrupt: its chunk has not the records that its head says" in refused(path, tmp_path)
    path.write_bytes(chunk([]))
    assert refused(path, tmp_path) == f"{path} has no records: its chunks are empty"
    path = tmp_path / "text.recordio"
    path.write_text("this is no RecordIO file")
    assert "no chunk begins here" in refused(path, tmp_path)
    path.write_bytes(content)
    assert "the RecordIO reader has no parameters; data_reader_params gives header" in refused(
        path, tmp_path, params={"header": True}
    )


def test_a_file_that_changes_and_records_that_there_are_not(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_recordio(path, RECORDS)
    reader = opened(path, tmp_path)
    with pytest.raises(BadData, match="has 10 records; record 10"):
        reader.read(Task(0, 0, Shard(str(path), 0, 11), 0, 11), [10])
    with pytest.raises(BadData, match="no data file other"):
        reader.read(Task(0, 0, Shard("other", 0, 5), 0, 5), [0])
    with path.open("ab") as file:
        file.write(chunk(RECORDS))
    with pytest.raises(BadData, match="has changed"):
        whole(reader)
