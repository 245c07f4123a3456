"""The journal in an object of the cluster: compare-and-set on its version, whatever happens to a request on its way."""

from __future__ import annotations

import contextlib
import random

import pytest

from elasticdl.control.protocol.view import MemberId, Peer, StateId, View, ViewId
from elasticdl.data.plan.shard import Position, Shard
from elasticdl.errors import JobFailed, JournalConflict
from elasticdl.master.core.journal import Journal
from elasticdl.master.core.objectpages import SIZE_LIMIT, ObjectPages
from elasticdl.master.core.records import (
    EpochRecord,
    FailedRecord,
    Record,
    ShardsRecord,
    ViewRecord,
    WantedRecord,
    read_journal,
)

from .shelf import Shelf, Wire


def journal(shelf: Shelf) -> Journal:
    return Journal(ObjectPages(shelf, "ConfigMap job-journal"))


def test_what_is_appended_is_read_back() -> None:
    shelf = Shelf()
    records: list[Record] = [EpochRecord(1), WantedRecord(3), EpochRecord(2)]
    writer = journal(shelf)
    for number, record in enumerate(records, 1):
        writer.append(number, record)
    assert journal(shelf).read() == (tuple(records), 3)


def test_a_change_by_somebody_else_is_no_conflict() -> None:
    shelf = Shelf()
    writer = journal(shelf)
    writer.append(1, EpochRecord(1))
    shelf.replace({**shelf.texts, "note": "from kubectl"}, str(shelf.version))
    writer.append(2, EpochRecord(2))
    assert journal(shelf).read()[1] == 2


def test_two_masters_never_both_append() -> None:
    shelf = Shelf()
    old, new = journal(shelf), journal(shelf)
    old.append(1, EpochRecord(1))
    new.read()
    new.append(2, EpochRecord(2))
    with pytest.raises(JournalConflict):
        old.append(2, EpochRecord(2))
    with pytest.raises(JournalConflict):
        old.append(4, EpochRecord(2))


@pytest.mark.parametrize("seed", range(40))
def test_two_masters_over_bad_wires(seed: int) -> None:
    """Whoever repeats until there is an answer: each number is acknowledged to exactly one of them, with its own record."""
    shelf, draw = Shelf(), random.Random(seed)
    masters = {name: Journal(ObjectPages(Wire(shelf, seed + name), "journal")) for name in (1000, 2000)}
    acknowledged = []
    for number in range(1, 13):
        undecided = [*masters]
        while undecided:
            name = draw.choice(undecided)
            try:
                masters[name].append(number, WantedRecord(name + number))
            except OSError:
                continue
            except JournalConflict:
                undecided.remove(name)
            else:
                undecided.remove(name)
                acknowledged.append((number, WantedRecord(name + number)))
    records, length = journal(shelf).read()
    assert length == 12
    assert acknowledged == [*enumerate(records, 1)]


def test_compaction_gives_no_number_back_and_frees_the_room() -> None:
    shelf = Shelf()
    stale, newer = journal(shelf), journal(shelf)
    for number in range(1, 101):
        newer.append(number, WantedRecord(number))
    before = sum(map(len, shelf.texts.values()))
    kept, length = newer.compact(100)
    assert sum(map(len, shelf.texts.values())) < before / 10
    assert journal(shelf).read() == (kept, length)
    assert read_journal(kept, length).wanted == 100
    for number in (1, 50, 100, 101):
        with pytest.raises(JournalConflict):
            stale.append(number, WantedRecord(7))
    newer.append(102, WantedRecord(5))
    records, length = journal(shelf).read()
    assert (read_journal(records, length).wanted, length) == (5, 102)


def test_a_journal_that_does_not_fit_says_so_and_stays() -> None:
    shelf = Shelf()
    writer = journal(shelf)
    writer.append(1, EpochRecord(1))
    many = tuple(Shard(f"/data/file-{number:06d}" + "x" * 80, 0, 10) for number in range(10_000))
    with pytest.raises(JobFailed, match="larger than"):
        writer.append(2, ShardsRecord(many))
    assert journal(shelf).read() == ((EpochRecord(1),), 1)


def test_views_of_many_members_fit() -> None:
    """A thousand changes of a group of 64 stay below the limit, and no record is missing."""
    shelf = Shelf()
    members = tuple(
        Peer(MemberId(f"{number:032x}"), f"worker-{number}-1", f"tcp:10.200.1.{number}:41234")
        for number in range(64)
    )
    slots = tuple(range(64))
    writer = journal(shelf)
    for number in range(1, 1001):
        view = View(
            ViewId(number), members, StateId(number, number), Position(0, 0, 64, 0), slots, slots, 1, ()
        )
        writer.append(number, ViewRecord(view))
        assert writer.has(number)
        assert not writer.has(number + 1)
    assert sum(map(len, shelf.texts.values())) < SIZE_LIMIT
    records, length = journal(shelf).read()
    assert read_journal(records, length).view == view
    assert length > 1000


@pytest.mark.parametrize("seed", range(20))
def test_a_compaction_that_fails_half_way_is_taken_up_again(seed: int) -> None:
    shelf = Shelf()
    writer = journal(Wire(shelf, seed))
    texts = ["x" * 50_000 + str(number) for number in range(1, 31)]
    for number, text in enumerate(texts, 1):
        while True:
            with contextlib.suppress(OSError):
                writer.append(number, FailedRecord(text))
                break
    _, length = journal(shelf).read()
    assert length > len(texts)
    assert len(shelf.texts) < len(texts)
