"""Servers that sum up the gradients of a wave: its tasks, snapshots between two, and steps."""

from __future__ import annotations

from typing import Any

from elasticdl.control.protocol.frozen import replace
from elasticdl.control.protocol.psmessages import (
    CutOrdered,
    FoundModel,
    Holding,
    Leased,
    Leave,
    Placed,
    RevokeTask,
    Settled,
    TaskDone,
    Watermark,
    WriteResult,
)
from elasticdl.control.protocol.status import EventKind
from elasticdl.master.core import events
from elasticdl.master.core.done import Done, TaskNumber
from elasticdl.master.core.records import (
    CutRecord,
    DoneRecord,
    FinishedRecord,
    compact,
    read_journal,
)
from elasticdl.master.ps.snapshots import FRUITLESS
from tests.master.psrig import (
    MODEL,
    SLOTS,
    Rig,
    accounts_of,
    cut_in_waves,
    in_two_waves,
    leased,
    result,
    resumed,
    section,
    write_cut,
)


def test_workers_hear_which_tasks_of_a_wave_are_done() -> None:
    rig = Rig(wave=4)
    rig.start("worker-0-1", "worker-1-1")
    assert leased(rig, "worker-0-1") == [0, 1, 2, 3]  # the other one was not there yet
    assert leased(rig, "worker-1-1") == [3, 2]
    assert rig.heard("worker-0-1", RevokeTask) == [RevokeTask(2, 0), RevokeTask(3, 0)]
    rig.told.clear()
    rig.finish("worker-0-1", 2)
    assert rig.heard("worker-1-1", Watermark) == [Watermark(0, 0, (2,))]
    assert rig.master.steps_done == 0
    rig.say("worker-0-1", Settled(0, 1, 0, 0.5))
    rig.say("worker-0-1", Settled(1, 1, 0, 0.5))
    assert rig.master.steps_done == 0
    rig.say("worker-1-1", Settled(3, 1, 0, 0.5))
    assert rig.master.steps_done == 1
    rig.finish("worker-0-1", 0, 1, 3)
    assert rig.heard("worker-1-1", Watermark)[-1] == Watermark(4, 0, ())
    assert (rig.master.work.steps, rig.master.steps_done) == (2, 2)
    assert {*leased(rig, "worker-0-1"), *leased(rig, "worker-1-1")} == {4, 5, 6, 7}


def test_a_wave_that_is_done_is_journalled_at_once() -> None:
    rig = Rig(wave=2)
    rig.start("worker-0-1", "worker-1-1")
    rig.say("worker-0-1", TaskDone(0, 0))
    assert not isinstance(rig.journal[-1], DoneRecord)
    rig.say("worker-0-1", TaskDone(1, 0))
    assert rig.journal[-1] == DoneRecord((0, 1), 0)


def test_the_last_worker_has_the_whole_wave() -> None:
    rig = Rig(wave=4)
    rig.connect("worker-0-1")
    rig.connect("worker-1-1")
    rig.start()
    rig.say("worker-0-1", FoundModel(MODEL))
    assert (leased(rig, "worker-0-1"), leased(rig, "worker-1-1")) == ([0, 2], [1, 3])
    rig.say("worker-1-1", Settled(3, 1, 0, 0.5))
    rig.die("worker-1-1")
    assert rig.heard("worker-0-1", Leased) == [Leased(1, 0, 0), Leased(3, 1, 0)]


def test_slots_are_cut_between_two_waves() -> None:
    rig = cut_in_waves()
    assert rig.master.journal.cut == CutRecord(1, Done(TaskNumber(4)), 0, 2)
    (ordered,) = rig.heard("ps-0-1", CutOrdered)
    assert (ordered.low, ordered.above, ordered.step) == (4, (), 2)
    assert leased(rig, "worker-0-1") == []
    rig.cut("ps-0-1", 1, "a", (section(0, 1), section(2, 1)), "")
    assert leased(rig, "worker-0-1") == []
    rig.cut("ps-1-1", 1, "b", (section(1, 1), section(3, 1)), "")
    assert leased(rig, "worker-0-1") == [4, 5, 6, 7]
    (manifest,) = [one for one in rig.out if isinstance(one, events.WriteManifest)]
    assert (manifest.position, manifest.step) == (Done(TaskNumber(4)), 2)
    # Before the manifest is written the watermark does not move, and tasks that are done above it are listed.
    rig.finish("worker-0-1", 5)
    assert rig.heard("worker-0-1", Watermark)[-1] == Watermark(4, 0, (5,))


def test_a_wave_that_is_begun_comes_to_its_end_before_slots_are_cut() -> None:
    rig = in_two_waves()
    rig.finish("worker-0-1", 2)
    assert rig.master.journal.cut is None
    rig.finish("worker-1-1", 3)
    assert rig.master.journal.cut == CutRecord(1, Done(TaskNumber(4)), 0, 4)
    assert {*leased(rig, "worker-0-1"), *leased(rig, "worker-1-1")} == {0, 1, 2, 3}


def test_a_master_that_comes_back_lets_what_is_begun_come_to_its_end() -> None:
    rig = in_two_waves()
    rig.begin()
    rig.connect("ps-0-1", server=0)
    rig.connect("ps-1-1", server=1)
    rig.connect("worker-0-1")
    rig.connect("worker-1-1", (Holding(2, 1),))
    assert rig.master.journal.cut is None
    rig.tick(1.0)
    assert (leased(rig, "worker-0-1"), leased(rig, "worker-1-1")) == ([3], [])
    rig.finish("worker-1-1", 2)
    rig.finish("worker-0-1", 3)
    assert rig.master.journal.cut == CutRecord(1, Done(TaskNumber(4)), 0, 4)
    rig.told.clear()
    write_cut(rig)
    assert sorted(leased(rig, "worker-0-1") + leased(rig, "worker-1-1")) == [4, 5, 6, 7]


def test_training_goes_on_if_slots_hold_more_than_is_known() -> None:
    rig = cut_in_waves()
    for _ in range(FRUITLESS):
        rig.tick(1.2)
        if rig.heard("ps-0-1", CutOrdered):
            rig.cut("ps-0-1", 1, "a", (section(0, 1, until=5),), "")
    (note,) = rig.announced(EventKind.UNSAVED)
    assert "slots hold gradients of a later step; it is tried again later" in note.text
    assert leased(rig, "worker-0-1") == [4, 5, 6, 7]
    rig.finish("worker-0-1", 4, 5, 6, 7)
    assert rig.master.journal.cut == CutRecord(2, Done(TaskNumber(8)), 0, 4)


def test_the_loss_of_an_only_copy_takes_all_slots_back_to_the_last_snapshot() -> None:
    rig = cut_in_waves()
    write_cut(rig)
    rig.finish("worker-0-1", 4, 6)
    rig.told.clear()
    rig.die("ps-0-1")
    (placed,) = rig.heard("ps-1-1", Placed)
    assert [(one.primary, one.backup, one.restored) for one in placed.entries] == [(1, None, 1)] * SLOTS
    assert placed.snapshot == "/checkpoints/checkpoint-1/manifest.json"
    assert rig.heard("worker-0-1", Watermark) == [Watermark(4, 1, ())]
    assert leased(rig, "worker-0-1") == [4, 5, 6, 7]
    (lost,) = rig.announced(EventKind.LOST)
    assert "all slots are restored from the last snapshot" in lost.text
    assert rig.master.steps_done == 2


def test_without_a_snapshot_all_slots_begin_anew() -> None:
    rig = Rig(replicas=1, wave=4)
    rig.start("worker-0-1")
    rig.finish("worker-0-1", 0, 1, 2, 3)
    rig.told.clear()
    rig.die("ps-0-1")
    (placed,) = rig.heard("ps-1-1", Placed)
    assert {one.restored for one in placed.entries} == {1}
    assert placed.snapshot == ""
    assert leased(rig, "worker-0-1") == [0, 1, 2, 3]


def test_a_backup_that_takes_over_takes_nothing_back() -> None:
    rig = Rig(replicas=2, wave=4)
    rig.start("worker-0-1")
    rig.finish("worker-0-1", 0, 1)
    rig.die("ps-0-1")
    assert {one.restored for one in rig.master.journal.entries} == {0}
    assert rig.master.journal.done == Done(TaskNumber(2))


def test_a_wave_that_max_step_cuts_is_not_done_in_a_checkpoint() -> None:
    rig = Rig(replicas=1, snapshots="/checkpoints", checkpoint_steps=400, max_step=3, wave=4)
    rig.start("worker-0-1")
    rig.finish("worker-0-1", 0, 1, 2, 3)
    rig.finish("worker-0-1", 4, 5, 6, 7)
    assert rig.master.journal.cut == CutRecord(1, Done(TaskNumber(4)), 0, 3)
    assert rig.heard("worker-0-1", Watermark)[-1] == Watermark(4, 0, (4, 5, 6, 7))
    assert rig.master.why_finished == "max_step 3 is reached"
    assert not rig.heard("worker-0-1", WriteResult)
    rig.say("ps-0-1", accounts_of(rig, 0))
    rig.say("ps-1-1", accounts_of(rig, 1))
    (wanted,) = rig.heard("worker-0-1", WriteResult)
    assert wanted.steps == 3


def test_a_job_that_is_stopped_within_a_wave_ends_without_a_last_checkpoint() -> None:
    rig = Rig(replicas=1, snapshots="/checkpoints", checkpoint_steps=400, wave=4)
    rig.start("worker-0-1")
    rig.finish("worker-0-1", 0, 1, 2, 3)
    rig.say("worker-0-1", Settled(4, 1, 0, 0.5))
    rig.event(events.StopAsked(1, "enough"))
    rig.say("worker-0-1", Leave((Holding(4, 1), Holding(5, 0)), 0))
    rig.say("ps-0-1", accounts_of(rig, 0, steps=2))
    rig.say("ps-1-1", accounts_of(rig, 1, steps=1))
    (wanted,) = rig.heard("worker-0-1", WriteResult)
    assert wanted.steps == 2
    rig.say("worker-0-1", result(wanted.steps, wanted.attempt))
    assert isinstance(rig.journal[-1], FinishedRecord)
    assert rig.master.journal.cut is None
    (note,) = rig.announced(EventKind.NOTE)
    assert note.text == (
        "the job was stopped in the middle of a wave, where nothing whole can be written: it leaves no checkpoint"
    )


def test_a_job_goes_on_at_the_step_of_a_checkpoint() -> None:
    record = replace(resumed(), position=Done(TaskNumber(4)), step=2)
    rig = Rig(resumed=record, wave=4)
    rig.start("worker-0-1")
    (placed,) = rig.heard("ps-0-1", Placed)
    assert placed.snapshot == record.path
    assert leased(rig, "worker-0-1") == [4, 5, 6, 7]
    assert rig.master.work.steps == 2
    before: Any = rig.master.journal
    assert replace(read_journal(compact(rig.journal)), length=0) == replace(before, length=0)


def test_a_result_has_the_steps_that_servers_heard_of_from_a_worker_that_is_lost() -> None:
    rig = Rig(replicas=1, wave=4)
    rig.start("worker-0-1")
    rig.die("ps-1-1")
    rig.connect("ps-1-2")
    assert rig.master.journal.roll_back == 1
    rig.finish("worker-0-1", 0, 1, 2, 3)
    rig.event(events.StopAsked(1, "enough"))
    rig.die("worker-0-1")
    rig.connect("worker-1-1")
    rig.say("worker-1-1", Leave((), 1))
    # what a server heard before a roll-back means nothing
    rig.say("ps-1-2", replace(accounts_of(rig, 2, steps=9), roll_back=0))
    rig.say("ps-0-1", accounts_of(rig, 0, steps=3))
    assert [wanted.steps for wanted in rig.heard("worker-1-1", WriteResult)] == [3]
    assert rig.master.steps_done == 3
