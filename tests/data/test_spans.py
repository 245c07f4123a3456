"""Bytes of a task that are kept for its next minibatches: read once, forgotten in time, and not believed once the file has changed."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from elasticdl._core import TFRecordFile
from elasticdl.data.plan.shard import Shard, Task
from elasticdl.data.readers import spans
from elasticdl.data.readers.files import Kind, make_index
from elasticdl.data.readers.reader import BadRecords, shards_of
from elasticdl.data.readers.recordfiles import open_reader
from elasticdl.data.readers.spans import Spans
from elasticdl.data.readers.writing import write_tfrecord
from elasticdl.errors import BadData

MANY = 64


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "data.tfrecord"
    write_tfrecord(path, (b"%d" % number * 100 for number in range(MANY)))
    return path


class Counted:
    """Reads spans, and counts them."""

    def __init__(self, path: Path, folder: Path) -> None:
        index = make_index(path, Kind.TFRECORD, ",", folder, None)
        self._file = TFRecordFile(str(path), str(index))
        self.read: list[tuple[int, int]] = []

    def __call__(self, first: int, end: int) -> spans.Span | None:
        self.read.append((first, end))
        return self._file.span(first, end)


def test_a_task_is_read_once_until_all_of_its_records_were_asked_for(path: Path, tmp_path: Path) -> None:
    kept, read = Spans(), Counted(path, tmp_path)
    for _ in range(4):
        assert kept.of("a", 0, 32, 8, read)
        assert kept.of("b", 0, 32, 8, read)
    assert read.read == [(0, 32)] * 2
    assert not kept._kept
    assert kept.of("a", 0, 32, 8, read)
    assert len(read.read) == 3


def test_only_who_wants_the_same_task_waits_while_it_is_read(path: Path, tmp_path: Path) -> None:
    kept, read = Spans(), Counted(path, tmp_path)
    begun, go = threading.Event(), threading.Event()

    def slow(first: int, end: int) -> spans.Span | None:
        begun.set()
        assert go.wait(30)
        return read(first, end)

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(kept.of, "a", 0, 32, 8, slow)
        assert begun.wait(30)
        second = pool.submit(kept.of, "a", 0, 32, 8, slow)
        assert kept.of("b", 0, 32, 8, read), "while the other one is read"
        go.set()
        assert first.result() is second.result()
    assert len(read.read) == 2


def test_what_is_not_worth_it_is_not_tried_again(path: Path, tmp_path: Path) -> None:
    kept, read = Spans(), Counted(path, tmp_path)
    for _ in range(2):
        assert kept.of("a", 0, 2 * MANY, 1, read) is None
    assert len(read.read) == 1


def test_what_is_kept_is_bounded(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, read = Spans(), Counted(path, tmp_path)
    first = kept.of("0", 0, 32, 1, read)
    assert first
    monkeypatch.setattr(spans, "KEPT", 3 * len(first))
    for name in "123":
        assert kept.of(name, 0, 32, 1, read)
    assert [name for name, _, _ in kept._kept] == ["1", "2", "3"]
    monkeypatch.setattr(spans, "KEPT", 0)
    assert kept.of("4", 0, 32, 1, read)
    assert not kept._kept


def rewritten(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content)
    os.utime(path, (1, 1))


def cut(path: Path) -> None:
    os.truncate(path, 500)


@pytest.mark.parametrize("change", [rewritten, cut])
def test_a_file_that_changes_within_a_task_is_noticed(
    path: Path, tmp_path: Path, change: Callable[[Path], None]
) -> None:
    reader = open_reader(str(path), {}, tmp_path / "job")
    (shard,) = shards_of(reader)
    assert reader.read(Task(0, 0, shard, 0, 32), [3]) == [b"3" * 100]
    change(path)
    with pytest.raises(BadData, match="has changed since it was indexed"):
        reader.read(Task(0, 0, shard, 0, 32), [4])


@pytest.mark.parametrize("name", ["tfrecord", "csv"])
def test_a_bad_record_is_told_with_its_minibatch_and_not_before(tmp_path: Path, name: str) -> None:
    path = tmp_path / f"data.{name}"
    good: Any
    if name == "csv":
        path.write_text("".join(f"{number},b\n" if number != 5 else "bad\n" for number in range(MANY)))
        good = [["4", "b"], ["6", "b"]]
    else:
        write_tfrecord(path, (b"%04d" % number for number in range(MANY)))
        content = bytearray(path.read_bytes())
        content[5 * 20 + 12] ^= 1
        path.write_bytes(content)
        good = [b"0004", b"0006"]
    policy = BadRecords(1)
    reader = open_reader(str(path), {}, tmp_path / "job", policy)
    task = Task(0, 0, Shard(str(path), 0, MANY), 0, 32)
    assert len(reader.read(task, range(8, 16))) == 8
    assert not policy.has_met(str(path), 5)
    assert reader.read(task, [4, 5, 6]) == good
    assert policy.has_met(str(path), 5)
    strict = open_reader(str(path), {}, tmp_path / "job")
    with pytest.raises(BadData, match=rf"record 5 of {path} \(counted from 0, (byte 100|line 6)\)"):
        strict.read(task, [4, 5])
