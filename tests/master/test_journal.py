"""The journal: durable, one writer per number, whatever is killed and whatever other masters write (J1 to J3)."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticdl.control.protocol.view import MemberId, Peer, StateId, View, ViewId
from elasticdl.data.plan.shard import Position
from elasticdl.errors import BadSetting, JobFailed, JournalConflict
from elasticdl.master.core.filepages import FilePages
from elasticdl.master.core.journal import Journal
from elasticdl.master.core.records import (
    EpochRecord,
    ErrorRecord,
    Record,
    ResumedStateRecord,
    SnapshotRecord,
    StoppingRecord,
    ViewRecord,
    WantedRecord,
    read_journal,
)


def view(number: int) -> ViewRecord:
    member = Peer(MemberId(f"{number:032x}"), f"worker-{number}-1", "unix:/a")
    return ViewRecord(
        View(ViewId(number), (member,), StateId(0, 1), Position(0, 0, 1, 0), (0,), (0,), 1, ("initial",))
    )


RECORDS: list[Record] = [
    EpochRecord(1),
    view(1),
    SnapshotRecord(ViewId(1), StateId(5, 1), Position(0, 5, 1, 0), "/s", 3, True),
    ResumedStateRecord(2, "/e", StateId(3, 0), Position(0, 3, 1, 0), False),
    view(2),
    EpochRecord(2),
    WantedRecord(3),
    ErrorRecord("worker-0-1", "ValueError at line 3"),
    StoppingRecord("interrupted"),
]


def test_what_is_appended_is_read_back(tmp_path: Path) -> None:
    journal = Journal(FilePages(tmp_path))
    assert journal.read() == ((), 0)
    for number, record in enumerate(RECORDS, 1):
        journal.append(number, record)
    assert Journal(FilePages(tmp_path)).read() == (tuple(RECORDS), len(RECORDS))
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        f"{number:06d}" for number in range(1, len(RECORDS) + 1)
    ]


def test_a_number_is_given_once(tmp_path: Path) -> None:
    Journal(FilePages(tmp_path)).append(1, EpochRecord(1))
    with pytest.raises(JournalConflict):
        Journal(FilePages(tmp_path)).append(1, EpochRecord(1))
    with pytest.raises(JournalConflict):
        Journal(FilePages(tmp_path)).append(3, EpochRecord(1))
    assert [Journal(FilePages(tmp_path)).has(number) for number in (1, 2)] == [True, False]


def test_a_record_of_unknown_outcome_is_recognised(tmp_path: Path) -> None:
    journal = Journal(FilePages(tmp_path))
    journal.append(1, EpochRecord(1))
    journal.append(1, EpochRecord(1))
    with pytest.raises(JournalConflict):
        journal.append(1, EpochRecord(2))


@pytest.mark.parametrize("step", ["open", "write", "fsync", "link"])
@pytest.mark.parametrize("failure", [errno.ENOSPC, errno.EIO])
def test_a_full_disk_leaves_nothing_and_a_repetition_succeeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, failure: int
) -> None:
    journal = Journal(FilePages(tmp_path))
    journal.append(1, EpochRecord(1))

    def refuse(*args: object, **kwargs: object) -> None:
        raise OSError(failure, os.strerror(failure))

    with monkeypatch.context() as patch:
        patch.setattr(os, step, refuse)
        with pytest.raises(OSError, match=os.strerror(failure)):
            journal.append(2, EpochRecord(2))
    assert Journal(FilePages(tmp_path)).read() == ((EpochRecord(1),), 1)
    journal.append(2, EpochRecord(2))
    assert Journal(FilePages(tmp_path)).read()[1] == 2
    assert {path.name for path in tmp_path.iterdir()} == {"000001", "000002"}


def test_a_short_write_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda descriptor, body: write(descriptor, bytes(body)[:7]))
        Journal(FilePages(tmp_path)).append(1, view(1))
    assert Journal(FilePages(tmp_path)).read() == ((view(1),), 1)


def test_a_full_file_system(tmp_path: Path) -> None:
    mount = tmp_path / "small"
    mount.mkdir()
    if (
        os.geteuid()
        or subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=64k", "none", mount], capture_output=True
        ).returncode
    ):
        pytest.skip("no right to mount a small file system here")
    try:
        journal = Journal(FilePages(mount))
        journal.append(1, EpochRecord(1))
        with contextlib.suppress(OSError), open(mount / "other", "wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        with pytest.raises(OSError, match="No space"):
            journal.append(2, view(1))
        assert Journal(FilePages(mount)).read() == ((EpochRecord(1),), 1)
        (mount / "other").unlink()
        journal.append(2, view(1))
        assert Journal(FilePages(mount)).read() == ((EpochRecord(1), view(1)), 2)
    finally:
        subprocess.run(["umount", "-l", mount], check=True)


def test_a_torn_draft_is_no_record(tmp_path: Path) -> None:
    Journal(FilePages(tmp_path)).append(1, EpochRecord(1))
    (tmp_path / ".000002.0123456789abcdef.draft").write_text('{"format": 1, "rec')
    journal = Journal(FilePages(tmp_path))
    assert journal.read() == ((EpochRecord(1),), 1)
    journal.tidy()
    assert [path.name for path in tmp_path.iterdir()] == ["000001"]


def test_another_format_is_refused_and_left_alone(tmp_path: Path) -> None:
    Journal(FilePages(tmp_path)).append(1, EpochRecord(1))
    (tmp_path / "000002").write_text(json.dumps({"format": 7, "record": {}}))
    with pytest.raises(BadSetting, match=r"format 7.*format 6"):
        Journal(FilePages(tmp_path)).read()
    assert (tmp_path / "000002").read_text() == json.dumps({"format": 7, "record": {}})


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"format": 6}', '{"format": 6, "record": {"type": "none"}}']
)
def test_damage_is_said(tmp_path: Path, content: str) -> None:
    Journal(FilePages(tmp_path)).append(1, EpochRecord(1))
    (tmp_path / "000002").write_text(content)
    with pytest.raises(JobFailed, match="damaged"):
        Journal(FilePages(tmp_path)).read()


def test_a_missing_record_is_said(tmp_path: Path) -> None:
    journal = Journal(FilePages(tmp_path))
    for number in (1, 2, 3):
        journal.append(number, EpochRecord(number))
    (tmp_path / "000002").unlink()
    with pytest.raises(JobFailed, match="record 2 of 3 is missing"):
        Journal(FilePages(tmp_path)).read()


@settings(max_examples=40)
@given(before=st.lists(st.sampled_from(RECORDS), min_size=1), between=st.lists(st.sampled_from(RECORDS)))
def test_compaction_says_the_same(
    tmp_path_factory: pytest.TempPathFactory, before: list[Record], between: list[Record]
) -> None:
    directory = tmp_path_factory.mktemp("journal")
    journal = Journal(FilePages(directory))
    for number, record in enumerate(before, 1):
        journal.append(number, record)
    journal.compact(len(before))
    for number, record in enumerate(between, len(before) + 2):
        journal.append(number, record)
    records, length = Journal(FilePages(directory)).read()
    assert length == len(before) + 1 + len(between)
    assert read_journal(records, length) == read_journal([*before, *between], length)
    again, length = journal.compact(length)
    assert Journal(FilePages(directory)).read() == (again, length)


def test_compaction_gives_no_number_back(tmp_path: Path) -> None:
    stale = Journal(FilePages(tmp_path))
    stale.append(1, EpochRecord(1))
    stale.append(2, view(1))
    newer = Journal(FilePages(tmp_path))
    newer.append(3, EpochRecord(2))
    newer.append(4, view(2))
    newer.compact(4)
    for number in (1, 2, 3, 4, 5):
        with pytest.raises(JournalConflict):
            stale.append(number, view(7))
    with pytest.raises(JournalConflict):
        stale.compact(2)


def test_reading_beside_a_compaction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = Journal(FilePages(tmp_path))
    for number, record in enumerate(RECORDS, 1):
        writer.append(number, record)
    expected = read_journal(RECORDS)
    reader = Journal(FilePages(tmp_path))
    numbers = Journal._numbers

    def compact_in_between(journal: Journal) -> list[int]:
        found = numbers(journal)
        if journal is reader and len(found) == len(RECORDS):
            writer.compact(len(RECORDS))
        return found

    monkeypatch.setattr(Journal, "_numbers", compact_in_between)
    records, length = reader.read()
    assert length == len(RECORDS) + 1
    assert read_journal(records, len(RECORDS)) == expected


APPENDER = """
import sys
from pathlib import Path
from elasticdl.errors import JournalConflict
from elasticdl.master.core.filepages import FilePages
from elasticdl.master.core.journal import Journal
from elasticdl.master.core.records import EpochRecord

journal = Journal(FilePages(Path(sys.argv[1])))
number = journal.read()[1] + 1
print("ready", flush=True)
sys.stdin.readline()
while number <= int(sys.argv[2]):
    try:
        journal.append(number, EpochRecord(int(sys.argv[3])))
        print(number, flush=True)
    except JournalConflict:
        pass
    number += 1
"""


def appender(directory: Path, last: int, epoch: int) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", APPENDER, directory, str(last), str(epoch)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def test_racing_masters_share_no_number(tmp_path: Path) -> None:
    processes = [appender(tmp_path, 60, epoch) for epoch in (1, 2, 3)]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    won = {
        epoch: list(map(int, process.communicate()[0].split())) for epoch, process in enumerate(processes, 1)
    }
    records, length = Journal(FilePages(tmp_path)).read()
    assert length == 60
    for epoch, numbers in won.items():
        assert [number for number, record in enumerate(records, 1) if record == EpochRecord(epoch)] == numbers


def test_a_kill_at_any_moment_loses_nothing_that_was_told(tmp_path: Path) -> None:
    chance = random.Random(7)
    told = 0
    for life in range(1, 9):
        process = appender(tmp_path, 100_000, life)
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("go\n")
        process.stdin.flush()
        for _ in range(chance.randrange(1, 12)):
            told = int(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
        # not `communicate`: it does not see what `readline` has read ahead
        told = max([told, *map(int, process.stdout.read().split())])
        process.wait()
        records, length = Journal(FilePages(tmp_path)).read()
        assert len(records) == length
        assert told <= length <= told + 1
