"""When a snapshot of slots is begun, which slots count as written, and when it is given up."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from elasticdl.control.protocol.frozen import replace
from elasticdl.control.protocol.psmessages import CutOrdered, SlotsCut
from elasticdl.data.plan.waves import Waves
from elasticdl.master.core.done import Done, TaskNumber
from elasticdl.master.core.entry import Entry
from elasticdl.master.core.events import DropSnapshot, Instruction, ManifestWritten, Tell, WriteManifest
from elasticdl.master.core.records import CutRecord, Journal, SavedRecord
from elasticdl.master.ps.leases import Leases
from elasticdl.master.ps.link import Link
from elasticdl.master.ps.snapshots import (
    AGAIN_SECONDS,
    FRUITLESS,
    LAST_ATTEMPTS,
    LAST_SECONDS,
    LATER_SECONDS,
    Snapshots,
)
from elasticdl.master.ps.work import Work
from tests.master.pscore import A, B, placed
from tests.master.psrig import SHARDS, member, order, section

ENTRIES = (Entry(3, 2, A, B), Entry(1, 1, B, A))
SNAPSHOTS = Snapshots(directory="/snapshots", every=4)
ORDER = order(SHARDS, wave=2)


def done(low: int, *above: int) -> Done:
    return Done(TaskNumber(low), tuple(map(TaskNumber, above)))


def work(position: Done, *, in_waves: bool = False) -> Work:
    waves = Waves(ORDER) if in_waves else None
    return Work(order=ORDER, leases=Leases(ORDER.total, position, following=position.low, waves=waves))


def cutting(**said: Any) -> Journal:
    """Return a journal by which a snapshot is under way."""
    return placed(*ENTRIES, cut=CutRecord(1, done(4), 0), **said)


def write(
    snapshots: Snapshots, journal: Journal, slots: Iterable[tuple[int, int]], of: Work, until: int = 4
) -> tuple[Snapshots, list[Instruction]]:
    """Let the first server have written slots, of these primary epochs."""
    sections = tuple(section(slot, primary_epoch, until) for slot, primary_epoch in slots)
    said = SlotsCut(1, "/snapshots/a", sections, "")
    after, out = snapshots.with_slots(0.0, journal, of, A, "ps-0-1", said)
    return after, list(out)


def test_nobody_hears_of_more_than_the_snapshot_under_way_says() -> None:
    assert SNAPSHOTS.low(cutting(), work(done(6))) == 4
    assert replace(SNAPSHOTS, spoilt=1).low(cutting(), work(done(6))) == 6
    assert SNAPSHOTS.low(cutting(roll_back=1), work(done(6))) == 6


@pytest.mark.parametrize(("count", "is_due"), [(5, False), (6, True)])
def test_a_snapshot_is_begun_as_often_as_asked_for(count: int, is_due: bool) -> None:
    cut = CutRecord(1, done(1, 3), 0)
    journal = placed(*ENTRIES, cut=cut, saved=(SavedRecord(1, "/snapshots/1"), cut))
    begun = SNAPSHOTS.wanted_cut(0.0, journal, work(done(count)), hears_more=False)
    assert begun == (CutRecord(2, done(count), 0) if is_due else None)


def test_after_a_roll_back_tasks_count_from_the_snapshot_that_it_went_back_to() -> None:
    saved = SavedRecord(1, "/snapshots/1"), CutRecord(1, done(4), 0)
    journal = placed(*ENTRIES, cut=CutRecord(2, done(7), 0), saved=saved, roll_back=1)
    for count, is_due in ((7, False), (8, True)):
        begun = SNAPSHOTS.wanted_cut(0.0, journal, work(done(count)), hears_more=False)
        assert (begun is not None) == is_due


def test_what_could_not_be_written_is_tried_again_after_a_while() -> None:
    cut = CutRecord(2, done(4), 0)
    whole = placed(*ENTRIES, cut=cut, saved=(SavedRecord(2, "/snapshots/2"), cut))
    earlier = replace(SNAPSHOTS, spoilt=1)
    assert earlier.wanted_cut(2 * LATER_SECONDS, whole, work(done(5)), hears_more=False) is None
    spoilt, said = SNAPSHOTS.with_manifest(10.0, cutting(), work(done(5)), ManifestWritten(1, "", "full"))
    assert [one for one in said if isinstance(one, DropSnapshot)] == [DropSnapshot(1)]
    for later, is_due in ((LATER_SECONDS - 1, False), (LATER_SECONDS, True)):
        begun = spoilt.wanted_cut(10.0 + later, cutting(), work(done(5)), hears_more=False)
        assert (begun is not None) == is_due


def test_the_last_checkpoint_is_tried_a_few_times_and_no_more() -> None:
    snapshots, over = replace(SNAPSHOTS, lasting=True), work(done(ORDER.total))
    journal, now = placed(*ENTRIES), 0.0
    for number in range(1, LAST_ATTEMPTS + 1):
        assert not snapshots.is_kept(journal)
        cut = snapshots.wanted_cut(now, journal, over, hears_more=False)
        assert cut == CutRecord(number, done(ORDER.total), 0)
        journal = journal.with_record(cut)
        snapshots = snapshots.after_cut(journal, over, cut)
        assert not snapshots.is_kept(journal)  # it may come to its end
        snapshots, _ = snapshots.with_manifest(now, journal, over, ManifestWritten(number, "", "full"))
        assert snapshots.wanted_cut(now + LAST_SECONDS / 2, journal, over, hears_more=False) is None
        now += LAST_SECONDS
    assert snapshots.is_kept(journal)
    assert snapshots.wanted_cut(now, journal, over, hears_more=False) is None


def test_only_what_a_slot_s_primary_has_written_counts_and_the_first_of_it() -> None:
    first, _ = write(SNAPSHOTS, cutting(), [(0, 2), (1, 1)], work(done(4)))
    assert set(first.sections) == {0}  # the other one is another server's
    again, _ = write(first, cutting(), [(0, 2)], work(done(4)), until=5)
    assert again.sections == first.sections
    assert write(SNAPSHOTS, cutting(), [(0, 1)], work(done(4)))[0].sections == {}  # of before it took over


def test_a_slot_that_is_past_the_step_counts_only_when_nothing_is_trained_any_more() -> None:
    journal, between = cutting(), work(done(4), in_waves=True)
    assert write(SNAPSHOTS, journal, [(0, 2)], between, until=5)[0].sections == {}
    assert set(write(SNAPSHOTS, journal, [(0, 2)], between, until=4)[0].sections) == {0}
    over = work(done(ORDER.total), in_waves=True)
    assert set(write(SNAPSHOTS, journal, [(0, 2)], over, until=5)[0].sections) == {0}


@pytest.mark.parametrize("fruit", [False, True])
def test_a_wave_waits_for_slots_as_long_as_some_are_written(fruit: bool) -> None:
    snapshots, between = SNAPSHOTS, work(done(4), in_waves=True)
    said: list[Instruction] = []
    for time in range(FRUITLESS + fruit):
        slots = [(0, 2)] if fruit and time == FRUITLESS // 2 else []
        snapshots, out = write(snapshots, cutting(), slots, between)
        said += out
    assert bool(said) != fruit
    assert snapshots.holds_back(0.0, cutting(), between) == fruit


def test_the_next_wave_waits_for_slots_and_slots_for_workers_of_before_this_master() -> None:
    between, journal = work(done(4), in_waves=True), placed(*ENTRIES)
    assert SNAPSHOTS.holds_back(0.0, journal, between)
    assert not Snapshots(every=4).holds_back(0.0, journal, between)
    assert SNAPSHOTS.wanted_cut(0.0, journal, between, hears_more=True) is None
    assert SNAPSHOTS.wanted_cut(0.0, journal, between, hears_more=False) == CutRecord(1, done(4), 0, 4)
    within = work(done(4, 5), in_waves=True)  # the other task of their wave is not done
    assert SNAPSHOTS.wanted_cut(0.0, journal, within, hears_more=False) is None


def test_a_server_is_asked_again_after_a_time_and_only_for_what_is_missing() -> None:
    link, name = Link(member=member("ps-0-1"), name="ps-0-1"), "ps-0-1"
    journal = placed(Entry(3, 2, A, B), Entry(1, 1, A, B), cut=CutRecord(1, done(4), 0))
    snapshots, out = SNAPSHOTS, []
    for now in (0.0, AGAIN_SECONDS / 2, AGAIN_SECONDS):
        said: list[Instruction] = []
        link = snapshots.order_cut(now, journal, 7, link, A, said)
        messages = [one.message for one in said if isinstance(one, Tell)]
        out.append([one.slots for one in messages if isinstance(one, CutOrdered)])
        cut = SlotsCut(1, "/snapshots/a", (section(0, 2),), "")
        snapshots, _ = snapshots.with_slots(now, journal, work(done(4)), A, name, cut)
    assert out == [[(0, 1)], [], [(1,)]]


@pytest.mark.parametrize("ends", [False, True])
def test_a_manifest_is_written_once_and_says_what_is_begun_when_nobody_computes(ends: bool) -> None:
    journal = cutting(stopping="enough" if ends else None)
    of = work(done(4))
    of = replace(of, leases=replace(of.leases, returned={TaskNumber(5): 1}))
    one, _ = write(SNAPSHOTS, journal, [(0, 2)], of)
    assert one.completed(journal, of) == (one, ())
    both = replace(one, sections={**one.sections, 1: ("/snapshots/b", section(1, 1))})
    after, (manifest,) = both.completed(journal, of)
    assert isinstance(manifest, WriteManifest)
    assert manifest.begun == (((5, 1),) if ends else ())
    assert after.completed(journal, of) == (after, ())


def test_a_snapshot_that_was_given_up_meanwhile_is_not_journalled() -> None:
    of = work(done(4))
    written, _ = SNAPSHOTS.with_manifest(0.0, cutting(), of, ManifestWritten(1, "/snapshots/1/m"))
    assert written.wanted_saved(cutting()) == SavedRecord(1, "/snapshots/1/m")
    assert written.wanted_saved(cutting(roll_back=1)) is None
    later = cutting().with_record(CutRecord(2, done(4), 0))
    assert written.wanted_saved(later) is None


def test_a_master_takes_no_part_in_a_snapshot_that_another_one_has_begun() -> None:
    snapshots = SNAPSHOTS.without_inherited(3.0, cutting())
    assert snapshots.under_way(cutting()) is None
    assert snapshots.spoilt_at == 3.0
