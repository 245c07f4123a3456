"""Tasks of a job with parameter servers: who has which, and when one counts as done."""

from __future__ import annotations

from elasticdl.control.protocol.psmessages import (
    Enroll,
    Enrolled,
    FoundModel,
    Holding,
    Leased,
    Leave,
    Placed,
    RevokeTask,
    Settled,
    TaskDone,
    Watermark,
)
from elasticdl.control.protocol.status import EventKind
from elasticdl.data.plan.shard import Shard
from elasticdl.master.core import events
from elasticdl.master.core.records import (
    DoneRecord,
)
from elasticdl.master.ps.machine import PsMaster
from elasticdl.master.ps.reported import BATCH, BATCH_SECONDS
from tests.master.psrig import MODEL, SHARDS, Rig, leased, member


def test_tasks_are_leased_once_servers_and_model_are_there() -> None:
    rig = Rig()
    rig.event(events.DataFound(SHARDS))
    rig.connect("worker-0-1")
    rig.say("worker-0-1", FoundModel(MODEL))
    rig.connect("ps-0-1")
    assert rig.heard("worker-0-1", Leased) == []
    rig.connect("ps-1-1")
    assert rig.heard("ps-0-1", Enrolled) == [Enrolled(1, 0)]
    assert rig.heard("ps-1-1", Enrolled) == [Enrolled(1, 1)]
    (placed,) = rig.heard("worker-0-1", Placed)
    assert placed.servers == (0, 1)
    assert placed.addresses == ("unix:/ps-0-1", "unix:/ps-1-1")
    assert [(entry.slot, entry.primary, entry.backup) for entry in placed.entries] == [
        (0, 0, 1), (1, 1, 0), (2, 0, 1), (3, 1, 0),
    ]  # fmt: skip
    assert rig.heard("worker-0-1", Leased) == [Leased(0, 0, 0), Leased(1, 0, 0)]


def test_slots_are_placed_once_the_data_is_known_whatever_a_worker_says_before() -> None:
    rig = Rig(replicas=1)
    for name in ("ps-0-1", "ps-1-1", "worker-0-1"):
        rig.connect(name)
    rig.say("worker-0-1", FoundModel(MODEL))
    rig.die("ps-0-1")
    rig.begin()
    rig.connect("ps-0-2")
    rig.connect("ps-1-1")
    rig.connect("worker-0-1")
    assert rig.heard("worker-0-1", Placed) == []
    rig.event(events.DataFound(SHARDS))
    assert len(rig.heard("worker-0-1", Placed)) == 1
    rig.tick(1.0)
    assert leased(rig, "worker-0-1") == [0, 1]


def test_low_follows_what_is_done_in_whatever_order() -> None:
    rig = Rig()
    rig.start("worker-0-1", "worker-1-1")
    rig.told.clear()
    rig.finish("worker-1-1", 2)
    assert rig.journal[-1] == DoneRecord((2,), 0)
    assert rig.heard("worker-1-1", RevokeTask) == [RevokeTask(2, 0)]
    assert rig.heard("worker-1-1", Leased) == [Leased(4, 0, 0)]
    assert rig.heard("worker-0-1", Watermark) == []
    rig.finish("worker-0-1", 0, 1)
    assert rig.heard("worker-0-1", Watermark) == [Watermark(3, 0, ())]
    assert rig.master.work.steps == 6


def test_a_worker_has_its_next_task_before_the_journal_says_that_one_is_done() -> None:
    rig = Rig()
    rig.start("worker-0-1", "worker-1-1")
    rig.told.clear()
    rig.say("worker-0-1", TaskDone(0, 0, 0.25))
    assert rig.told == [("worker-0-1", Leased(4, 0, 0))]
    rig.say("worker-0-1", TaskDone(0, 0))  # said once more, as long as no answer has come
    assert rig.told == [("worker-0-1", Leased(4, 0, 0))]
    assert not isinstance(rig.journal[-1], DoneRecord)
    rig.tick(BATCH_SECONDS + 0.1)
    assert rig.journal[-1] == DoneRecord((0,), 0)
    assert [lease.task for lease in rig.master.work.leases.held["worker-0-1"]] == [1, 4]


def test_a_master_that_has_not_taken_over_leases_nothing_when_a_task_is_done() -> None:
    rig = Rig()
    rig.start("worker-0-1")
    master, _ = PsMaster(rig.settings).handle(0.0, events.JournalRead(tuple(rig.journal), 3))
    enroll = Enroll(member("worker-0-1"), "worker-0-1", "", 1, None, (Holding(1, 0),), 0, False)
    said: list[events.Instruction] = []
    for event in (
        events.ConnectionOpened(1, member("worker-0-1"), "worker-0-1"),
        events.Heard(1, enroll),
        events.Heard(1, TaskDone(0, 0)),
    ):
        master, more = master.handle(5.0, event)
        said += more
    assert not [one for one in said if isinstance(one, events.Tell)]
    assert master.work.reported.tasks == (0,)


def test_a_task_that_is_done_says_what_its_last_chunk_would_have_said() -> None:
    rig = Rig()
    rig.start("worker-0-1")
    rig.say("worker-0-1", TaskDone(0, 0, 0.25))
    assert rig.master.work.loss == 0.25
    assert rig.master.steps_done == 1  # that it is two is for the journal to say
    (step,) = rig.announced(EventKind.STEP)
    assert step.text == "step 1, loss 0.25"
    rig.tick(BATCH_SECONDS + 0.1)
    assert rig.master.steps_done == 2
    rig.say("worker-0-1", TaskDone(0, 0))
    assert (rig.master.work.loss, rig.master.steps_done) == (0.25, 2)


def test_many_tasks_are_journalled_before_the_time_of_a_batch_is_over() -> None:
    rig = Rig()
    rig.shards = (Shard("data", 0, 8 * 4 * BATCH),)
    rig.start("worker-0-1")
    for task in range(BATCH - 1):
        rig.say("worker-0-1", TaskDone(task, 0))
    assert not isinstance(rig.journal[-1], DoneRecord)
    rig.say("worker-0-1", TaskDone(BATCH - 1, 0))
    assert rig.journal[-1] == DoneRecord(tuple(range(BATCH)), 0)


def test_a_task_costs_two_messages_and_what_a_batch_of_them_does() -> None:
    rig = Rig()
    rig.shards = (Shard("data", 0, 8 * 200),)
    rig.start("worker-0-1", "worker-1-1")
    records, seconds = len(rig.journal), rig.now
    rig.told.clear()
    said = 0
    while said < 100:
        for name in ("worker-0-1", "worker-1-1"):
            mine = [
                one.task
                for one in rig.master.work.leases.held[name]
                if one.task not in rig.master.work.reported.tasks
            ]
            rig.say(name, TaskDone(mine[0], 0, 0.5))
            said += 1
        rig.tick(0.1)
    batches = len(rig.journal) - records
    assert batches <= (rig.now - seconds) / BATCH_SECONDS
    assert len([one for one in rig.told if isinstance(one[1], Leased)]) == said
    assert len(rig.told) <= said + 2 * batches + 2 * batches  # a watermark, and a task beyond it


def test_a_lost_worker_s_tasks_go_on_where_it_was() -> None:
    rig = Rig()
    rig.start("worker-0-1")
    rig.say("worker-0-1", Settled(0, 1, 0, 0.5))
    rig.told.clear()
    rig.die("worker-0-1")
    rig.connect("worker-1-1")
    assert rig.heard("worker-1-1", Leased) == [Leased(0, 1, 0), Leased(1, 0, 0)]
    assert [one.worker for one in rig.announced(EventKind.LOST)] == ["worker-0-1"]


def test_a_task_that_is_not_known_to_be_done_goes_on_at_its_last_chunk() -> None:
    rig = Rig()
    rig.start("worker-0-1")
    rig.say("worker-0-1", Settled(0, 2, 0, 0.5))
    rig.die("worker-0-1")
    rig.connect("worker-1-1")
    assert rig.heard("worker-1-1", Leased)[0] == Leased(0, 1, 0)


def test_words_that_arrive_after_a_worker_s_end_hold_no_tasks() -> None:
    rig = Rig()
    rig.start("worker-0-1")
    rig.die("worker-0-1")
    rig.connect("worker-0-1", (Holding(0, 1), Holding(1, 0)))
    rig.disconnect("worker-0-1")
    rig.connect("worker-1-1")
    assert rig.heard("worker-1-1", Leased) == [Leased(0, 0, 0), Leased(1, 0, 0)]


def test_a_worker_that_hangs_is_left_out_and_killed() -> None:
    rig = Rig()
    rig.start("worker-0-1")
    rig.tick()
    rig.silent.add("worker-0-1")
    rig.tick(8.0)
    assert [one.worker for one in rig.announced(EventKind.EVICTED)] == ["worker-0-1"]
    rig.tick(6.0)
    assert any(isinstance(one, events.Kill) and one.worker == "worker-0-1" for one in rig.out)
    rig.connect("worker-1-1")
    assert [lease.task for lease in rig.heard("worker-1-1", Leased)] == [0, 1]


def test_done_is_taken_from_whoever_says_it() -> None:
    rig = Rig()
    rig.start("worker-0-1")
    rig.disconnect("worker-0-1")
    rig.tick(12.0)
    rig.connect("worker-1-1")
    rig.connect("worker-0-1")
    rig.finish("worker-0-1", 0)
    assert 0 in rig.master.journal.done
    assert rig.heard("worker-1-1", Watermark)[-1] == Watermark(1, 0, ())


def test_done_of_before_a_roll_back_is_nothing_to_the_next_master_either() -> None:
    rig = Rig(servers=2, replicas=1)
    rig.start("worker-0-1")
    rig.die("ps-0-1")
    rig.begin()
    rig.connect("worker-0-1")
    for data_is_found in (False, True):
        rig.say("worker-0-1", TaskDone(0, 0))
        rig.now += 1
        rig.tick()
        assert not any(isinstance(record, DoneRecord) for record in rig.journal)
        if not data_is_found:
            rig.event(events.DataFound(SHARDS))


def test_a_worker_that_leaves_says_nothing_of_after_a_roll_back_that_it_has_not_heard_of() -> None:
    rig = Rig(servers=2, replicas=1)
    rig.start("worker-0-1", "worker-1-1")
    rig.die("ps-0-1")
    rig.told.clear()
    rig.say("worker-0-1", Leave((Holding(0, 1), Holding(1, 1)), 0))
    rig.finish("worker-1-1", 2, 3)
    leased = rig.heard("worker-1-1", Leased)
    assert {(0, 0), (1, 0)} <= {(one.task, one.chunk) for one in leased}
    assert rig.master.journal.roll_back == 1
