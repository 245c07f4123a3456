"""Snapshots and checkpoints of slots, and jobs that continue from one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from elasticdl.control.protocol.frozen import replace
from elasticdl.control.protocol.messages import (
    Failed,
)
from elasticdl.control.protocol.psmessages import (
    CutOrdered,
    Holding,
    Leased,
    Leave,
    Placed,
    Settled,
    Watermark,
)
from elasticdl.control.protocol.status import EventKind
from elasticdl.master.core import events
from elasticdl.master.core.done import Done, TaskNumber
from elasticdl.master.core.records import (
    CutRecord,
    FailedRecord,
    FinishedRecord,
    SavedRecord,
    compact,
    read_journal,
)
from elasticdl.spec.jobspec import PsRestore
from tests.master.psrig import SLOTS, Rig, end, resumed, section, write_cut


def test_a_snapshot_is_whole_when_all_slots_and_the_manifest_are_written() -> None:
    rig = Rig(servers=2, replicas=1, snapshots="/snapshots", checkpoint_steps=4)
    rig.start("worker-0-1")
    rig.finish("worker-0-1", 0, 1)
    assert CutRecord(1, Done(TaskNumber(2)), 0) in rig.journal
    assert rig.heard("ps-0-1", CutOrdered) == [
        CutOrdered(1, "/snapshots/.checkpoint-1.draft", (0, 2), (1, 1), 2, (), 0)
    ]
    assert rig.heard("ps-1-1", CutOrdered) == [
        CutOrdered(1, "/snapshots/.checkpoint-1.draft", (1, 3), (1, 1), 2, (), 0)
    ]
    rig.cut("ps-0-1", 1, "a", (section(0, 1), section(2, 1)), "")
    rig.cut("ps-1-1", 1, "b", (section(1, 1),), "")
    assert not any(isinstance(one, events.WriteManifest) for one in rig.out)
    rig.tick(1.2)  # slot 3 was left out
    assert rig.heard("ps-1-1", CutOrdered) == [
        CutOrdered(1, "/snapshots/.checkpoint-1.draft", (3,), (1,), 2, (), 0)
    ]
    rig.cut("ps-1-1", 1, "c", (section(3, 1),), "")
    (manifest,) = [one for one in rig.out if isinstance(one, events.WriteManifest)]
    assert [Path(file).name for file, _ in manifest.sections] == ["a", "b", "a", "c"]
    rig.event(events.ManifestWritten(1, "/snapshots/checkpoint-1/manifest.json"))
    assert SavedRecord(1, "/snapshots/checkpoint-1/manifest.json") in rig.journal
    assert [one.step for one in rig.announced(EventKind.SNAPSHOT)] == [4]
    # two tasks later a slot is lost: only these are done anew
    rig.finish("worker-0-1", 2, 3)
    rig.told.clear()
    rig.die("ps-0-1")
    (placed,) = rig.heard("worker-0-1", Placed)
    assert placed.snapshot == "/snapshots/checkpoint-1/manifest.json"
    assert rig.heard("worker-0-1", Watermark) == [Watermark(2, 1, ())]
    assert [lease.task for lease in rig.heard("worker-0-1", Leased)] == [2, 3]


def test_tasks_since_the_snapshot_may_be_left_as_they_are() -> None:
    rig = Rig(servers=2, replicas=1, snapshots="/snapshots", checkpoint_steps=4, restore=PsRestore.SKIP)
    rig.start("worker-0-1")
    rig.finish("worker-0-1", 0, 1)
    rig.cut("ps-0-1", 1, "a", (section(0, 1), section(2, 1)), "")
    rig.cut("ps-1-1", 1, "b", (section(1, 1), section(3, 1)), "")
    rig.event(events.ManifestWritten(1, "/snapshots/snapshot-1/manifest.json"))
    rig.finish("worker-0-1", 2, 3)
    rig.told.clear()
    rig.die("ps-0-1")
    (placed,) = rig.heard("worker-0-1", Placed)
    assert (placed.roll_back, placed.snapshot) == (1, "/snapshots/snapshot-1/manifest.json")
    assert [entry.slot for entry in placed.entries if entry.restored] == [0, 2]
    # what was under way begins anew, what was done stays done
    assert rig.heard("worker-0-1", Watermark) == [Watermark(4, 1, ())]
    assert [(one.task, one.chunk) for one in rig.heard("worker-0-1", Leased)] == [(4, 0), (5, 0)]
    (lost,) = rig.announced(EventKind.LOST)
    assert "what the tasks 2 to 3 have done to them is lost (--ps_restore=skip)" in lost.text
    assert [one.redone for one in rig.announced(EventKind.ROLLED_BACK)] == [0]
    assert rig.master.journal.done == Done(TaskNumber(4))


def test_a_job_may_fail_rather_than_lose_the_only_copy_of_a_slot() -> None:
    rig = Rig(servers=2, replicas=1, restore=PsRestore.STOP)
    rig.start("worker-0-1")
    rig.finish("worker-0-1", 0, 1)
    rig.die("ps-0-1")
    (failed,) = [record for record in rig.journal if isinstance(record, FailedRecord)]
    assert failed.kind == "lost"
    assert "ps-0-1 held the only copy of 2 of the model's 4 slots, and --ps_restore=stop" in failed.reason
    assert rig.heard("worker-0-1", Failed)


def test_a_roll_back_voids_the_snapshot_under_way() -> None:
    rig = Rig(servers=2, replicas=1, snapshots="/snapshots", checkpoint_steps=4)
    rig.start("worker-0-1")
    rig.finish("worker-0-1", 0, 1)
    rig.cut("ps-1-1", 1, "b", (section(1, 1), section(3, 1)), "")
    rig.die("ps-0-1")
    rig.cut("ps-1-1", 1, "c", (section(0, 2), section(2, 2)), "")
    assert not any(isinstance(one, events.WriteManifest) for one in rig.out)
    assert rig.master.journal.done.count() == 0
    rig.finish("worker-0-1", 0, 1)
    assert rig.master.journal.cut == CutRecord(2, Done(TaskNumber(2)), 1)


def test_a_snapshot_that_can_not_be_written_is_told_and_tried_again_later() -> None:
    rig = Rig(servers=2, replicas=1, snapshots="/snapshots", checkpoint_steps=4)
    rig.start("worker-0-1")
    rig.finish("worker-0-1", 0, 1)
    rig.cut("ps-1-1", 1, "b", (), "No space left on device")
    assert "No space left on device" in rig.announced(EventKind.UNSAVED)[0].text
    rig.finish("worker-0-1", 2)
    assert rig.master.journal.cut == CutRecord(1, Done(TaskNumber(2)), 0)
    rig.finish("worker-0-1", 3)
    assert rig.master.journal.cut == CutRecord(2, Done(TaskNumber(4)), 0)


def test_nobody_hears_of_a_higher_watermark_while_slots_are_cut() -> None:
    rig = Rig(snapshots="/checkpoints", checkpoint_steps=4)
    rig.start("worker-0-1")
    rig.finish("worker-0-1", 0, 1)
    rig.finish("worker-0-1", 2)
    assert rig.heard("worker-0-1", Watermark)[-1] == Watermark(2, 0, ())
    assert rig.master.work.leases.low == 3
    write_cut(rig)
    assert rig.heard("worker-0-1", Watermark) == [Watermark(3, 0, ())]


def test_the_watermark_rises_when_a_snapshot_is_given_up() -> None:
    rig = Rig(snapshots="/checkpoints", checkpoint_steps=4)
    rig.start("worker-0-1")
    rig.finish("worker-0-1", 0, 1)
    rig.finish("worker-0-1", 2)
    rig.heard("worker-0-1", Watermark)
    rig.cut("ps-1-1", 1, "b", (), "No space left on device")
    assert rig.heard("worker-0-1", Watermark) == [Watermark(3, 0, ())]


def test_a_master_that_comes_back_leaves_a_snapshot_that_was_begun() -> None:
    rig = Rig(snapshots="/checkpoints", checkpoint_steps=4)
    rig.start("worker-0-1")
    rig.finish("worker-0-1", 0, 1)
    rig.begin()
    rig.connect("ps-0-1", server=0)
    rig.connect("ps-1-1", server=1)
    rig.connect("worker-0-1")
    assert rig.heard("ps-0-1", CutOrdered) == []
    rig.tick(1.0)
    rig.finish("worker-0-1", 2, 3)
    assert rig.master.journal.cut == CutRecord(2, Done(TaskNumber(4)), 0)


def test_a_snapshot_that_failed_is_tried_again_after_a_while_even_if_little_is_trained() -> None:
    rig = Rig(snapshots="/checkpoints", checkpoint_steps=8)
    rig.start("worker-0-1")
    rig.finish("worker-0-1", 0, 1, 2, 3)
    rig.cut("ps-1-1", 1, "b", (), "No space left on device")
    assert events.DropSnapshot(1) in rig.out
    assert "tried again later" in rig.announced(EventKind.UNSAVED)[0].text
    rig.tick(50.0)
    assert rig.master.journal.cut == CutRecord(1, Done(TaskNumber(4)), 0)
    rig.tick(11.0)
    assert rig.master.journal.cut == CutRecord(2, Done(TaskNumber(4)), 0)


def test_the_job_s_end_waits_for_a_last_checkpoint() -> None:
    rig = Rig(snapshots="/checkpoints", checkpoint_steps=400)
    rig.start("worker-0-1")
    end(rig)
    assert rig.master.journal.cut == CutRecord(1, Done(TaskNumber(10)), 0)
    assert not isinstance(rig.journal[-1], FinishedRecord)
    write_cut(rig)
    assert isinstance(rig.journal[-1], FinishedRecord)


def test_the_job_ends_without_a_last_checkpoint_that_can_not_be_written() -> None:
    rig = Rig(snapshots="/checkpoints", checkpoint_steps=400)
    rig.start("worker-0-1")
    end(rig)
    for attempt in (1, 2, 3):
        assert rig.master.journal.cut == CutRecord(attempt, Done(TaskNumber(10)), 0)
        assert not isinstance(rig.journal[-1], FinishedRecord)
        rig.cut("ps-1-1", attempt, "b", (), "No space left on device")
        rig.tick(2.2)
    assert isinstance(rig.journal[-1], FinishedRecord)
    assert ["again" in one.text for one in rig.announced(EventKind.UNSAVED)] == [True, True, False]


def test_a_task_of_which_chunks_are_left_out_is_not_done_in_a_checkpoint() -> None:
    rig = Rig(snapshots="/checkpoints", checkpoint_steps=400, max_step=3)
    rig.start("worker-0-1")
    rig.finish("worker-0-1", 0, 1)
    assert rig.master.journal.cut == CutRecord(1, Done(TaskNumber(1)), 0)
    assert rig.heard("worker-0-1", Watermark)[-1] == Watermark(1, 0, ())
    assert rig.master.why_finished == "max_step 3 is reached"
    write_cut(rig)
    (manifest,) = [one for one in rig.out if isinstance(one, events.WriteManifest)]
    assert manifest.begun == ((1, 1),)


def test_the_last_checkpoint_tells_what_it_has_of_tasks_that_are_not_done() -> None:
    rig = Rig(snapshots="/checkpoints", checkpoint_steps=400)
    rig.start("worker-0-1")
    rig.finish("worker-0-1", 0)
    rig.say("worker-0-1", Settled(1, 1, 0, 0.5))
    rig.event(events.StopAsked(1, "enough"))
    rig.say("worker-0-1", Leave((Holding(1, 1),), 0))
    rig.tick()
    write_cut(rig)
    (manifest,) = [one for one in rig.out if isinstance(one, events.WriteManifest)]
    assert (manifest.position, manifest.begun) == (Done(TaskNumber(1)), ((1, 1),))


def test_a_job_goes_on_from_a_checkpoint() -> None:
    rig = Rig(snapshots="/checkpoints", checkpoint_steps=4, resumed=resumed())
    rig.start("worker-0-1")
    assert rig.journal[2] == resumed()
    (placed,) = rig.heard("ps-1-1", Placed)
    assert placed.snapshot == "/checkpoints/checkpoint-5/manifest.json"
    assert (placed.roll_back, placed.renumbered) == (3, None)
    assert [(entry.restored, entry.backup) for entry in placed.entries] == [(3, None)] * SLOTS
    assert rig.heard("worker-0-1", Leased) == [Leased(4, 0, 3), Leased(5, 0, 3)]
    assert (rig.master.work.steps, rig.master.work.records) == (10, 40)
    rig.finish("worker-0-1", 4)
    assert rig.master.journal.cut is not None
    assert rig.master.journal.cut.number == 7  # the next one is due two tasks after the checkpoint's
    rig.finish("worker-0-1", 5)
    assert rig.master.journal.cut == CutRecord(8, Done(TaskNumber(7)), 3)
    # and should a server be lost before it is whole, the first one counts
    rig.die("ps-0-1")
    rig.die("ps-1-1")
    rig.connect("ps-0-2")
    (placed,) = rig.heard("ps-0-2", Placed)
    assert (placed.snapshot, placed.roll_back) == ("/checkpoints/checkpoint-5/manifest.json", 5)  # two losses
    assert rig.master.journal.done == resumed().position


def test_other_numbers_of_tasks_hold_until_the_first_checkpoint_of_the_job_itself() -> None:
    rig = Rig(snapshots="/checkpoints", checkpoint_steps=4, resumed=resumed(TaskNumber(4)))
    rig.start("worker-0-1")
    assert [placed.renumbered for placed in rig.heard("ps-0-1", Placed)] == [4]
    rig.finish("worker-0-1", 4, 5)
    write_cut(rig)
    rig.die("ps-0-1")
    rig.die("ps-1-1")
    rig.connect("ps-0-2")
    (placed,) = rig.heard("ps-0-2", Placed)
    assert placed.snapshot == "/checkpoints/checkpoint-8/manifest.json"
    assert placed.renumbered is None


def test_a_job_that_went_on_is_the_same_after_its_master_came_back_and_compacted() -> None:
    rig = Rig(resumed=resumed())
    rig.start("worker-0-1")
    rig.finish("worker-0-1", 4)
    before: Any = rig.master.journal
    assert replace(read_journal(compact(rig.journal)), length=0) == replace(before, length=0)
    rig.settings = replace(rig.settings, resume=None)
    rig.begin()
    assert replace(rig.master.journal, length=0, epoch=0) == replace(before, length=0, epoch=0)
    assert rig.master.work.steps == 12
