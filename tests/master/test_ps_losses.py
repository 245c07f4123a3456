"""Losses in a job with parameter servers: who is suspected, what follows, and what people hear of it."""

from __future__ import annotations

import pytest

from elasticdl.control.protocol.messages import (
    Released,
)
from elasticdl.control.protocol.psmessages import (
    CopiesVoid,
    CopyOrdered,
    CopyReady,
    Enrolled,
    Holding,
    Leased,
    Leave,
    Placed,
    Settled,
    TaskDone,
    Unreached,
    Watermark,
)
from elasticdl.control.protocol.status import EventKind
from elasticdl.master.core import events
from elasticdl.master.core.entry import ServerId
from elasticdl.master.core.records import (
    PlacementRecord,
)
from elasticdl.master.core.witnesses import Times
from elasticdl.master.processes.observed import Processes
from elasticdl.master.processes.replicas import ReplicaSet
from elasticdl.master.reporting.history import EventHistory
from elasticdl.master.reporting.psstatusview import PsStatusView
from elasticdl.spec.edge import build, from_arguments
from tests.master.psrig import Rig, copied, member


def test_the_backup_of_a_lost_server_is_promoted_and_gets_a_backup() -> None:
    rig = Rig(servers=3)
    rig.start("worker-0-1")
    before = rig.master.journal.entries
    rig.told.clear()
    rig.die("ps-0-1")
    record = rig.journal[-1]
    assert isinstance(record, PlacementRecord)
    assert record.gone == (0,)
    for slot, entry in record.entries:
        old = before[slot]
        assert entry.primary == (old.backup if old.primary == 0 else old.primary)
        assert entry.backup is None
    (placed,) = rig.heard("worker-0-1", Placed)
    assert placed.servers == (1, 2)
    assert rig.heard("ps-1-1", CopiesVoid) == [CopiesVoid(0)]
    rig.tick()
    orders = [*rig.heard("ps-1-1", CopyOrdered), *rig.heard("ps-2-1", CopyOrdered)]
    assert {one.slot for one in orders} == {slot for slot, _ in record.entries}
    for one in orders:
        server = next(name for name in ("ps-1-1", "ps-2-1") if name != f"ps-{one.to}-1")
        rig.say(server, CopyReady(one.slot, one.term, one.to, one.hands_over))
    assert all(entry.backup is not None for entry in rig.master.journal.entries)
    rig.say("worker-0-1", Settled(0, 1, 0, 0.5))
    assert [one.worker for one in rig.announced(EventKind.RECOVERED)] == ["ps-0-1"]


@pytest.mark.parametrize("wakes_up", [True, False])
def test_a_server_that_hangs_with_the_last_copy_is_given_time(wakes_up: bool) -> None:
    rig = Rig(servers=3)
    rig.start("worker-0-1")
    rig.tick()
    rig.silent.add("ps-1-1")
    rig.die("ps-0-1")
    rig.tick(Times().stall - 5.0)
    assert rig.master.journal.roll_back == 0
    assert rig.master.liveness.awaited(rig.now, rig.master) == {1}
    assert rig.announced(EventKind.EVICTED) == []
    if wakes_up:
        rig.silent.clear()
    rig.tick(10.0)
    assert rig.master.journal.roll_back == (0 if wakes_up else 1)
    assert rig.master.liveness.awaited(rig.now, rig.master) == frozenset()


def test_a_server_that_hangs_is_left_out_at_once_if_all_it_has_is_elsewhere() -> None:
    rig = Rig(servers=3)
    rig.start("worker-0-1")
    rig.tick()
    rig.silent.add("ps-1-1")
    rig.tick(8.0)
    assert 1 not in rig.master.journal.servers
    assert rig.master.journal.roll_back == 0


def test_a_recovery_lasts_from_the_last_step_before_the_loss_to_the_next_one() -> None:
    rig = Rig()
    rig.start("worker-0-1")
    # An accusation of long ago, of which nothing came, is no sign of what comes later.
    rig.say("worker-0-1", Unreached((0,)))
    rig.tick(4.0)
    rig.say("worker-0-1", Settled(0, 1, 0, 0.5))
    settled = rig.now
    rig.tick(0.5)
    rig.die("ps-0-1")
    rig.tick(1.0)
    rig.say("worker-0-1", Settled(0, 1, 0, 0.5))
    assert rig.announced(EventKind.RECOVERED) == []  # nothing new
    rig.tick(1.0)
    rig.say("worker-0-1", TaskDone(0, 0))
    (recovered,) = rig.announced(EventKind.RECOVERED)
    assert recovered.seconds == pytest.approx(rig.now - settled)
    assert "after the last step before the loss of ps-0-1 (killed by SIGKILL)" in recovered.text


def test_the_time_in_which_a_master_was_stopped_is_part_of_a_recovery() -> None:
    rig = Rig()
    rig.start("worker-0-1")
    rig.say("worker-0-1", Settled(0, 1, 0, 0.5))
    settled = rig.now
    rig.now += 10.0
    rig.say("worker-0-1", TaskDone(0, 0))  # said before it was stopped
    rig.die("ps-0-1")
    rig.tick(0.5)
    rig.say("worker-0-1", Settled(1, 1, 0, 0.5))
    (recovered,) = rig.announced(EventKind.RECOVERED)
    assert recovered.seconds == pytest.approx(rig.now - settled)


def test_a_master_that_comes_back_counts_a_recovery_from_its_return() -> None:
    rig = Rig()
    rig.start("worker-0-1")
    rig.say("worker-0-1", Settled(0, 1, 0, 0.5))
    rig.now += 5.0
    rig.begin()
    returned = rig.now
    rig.connect("ps-1-1", server=1)
    rig.connect("worker-0-1", (Holding(0, 1),))
    rig.die("ps-0-1")
    rig.tick(2.0)
    rig.say("worker-0-1", TaskDone(0, 0))
    (recovered,) = rig.announced(EventKind.RECOVERED)
    assert recovered.seconds == pytest.approx(rig.now - returned)
    assert "after the return of the master, which has found ps-0-1 lost" in recovered.text


def test_a_master_that_comes_back_tells_of_workers_that_were_lost_meanwhile() -> None:
    rig = Rig()
    rig.start("worker-0-1", "worker-1-1")
    rig.die("worker-1-1")
    rig.begin()
    returned = rig.now
    rig.die("worker-0-1")
    rig.die("worker-0-1")
    rig.die("worker-1-1")  # of which the master before has told
    assert [one.worker for one in rig.announced(EventKind.LOST)] == ["worker-0-1"]
    rig.connect("worker-0-2")
    rig.tick(2.0)
    rig.say("worker-0-2", Settled(0, 1, 0, 0.5))
    (recovered,) = rig.announced(EventKind.RECOVERED)
    assert (recovered.worker, recovered.seconds) == ("worker-0-1", pytest.approx(rig.now - returned))


def test_who_takes_part_is_journalled_once_and_a_server_is_no_worker() -> None:
    rig = Rig()
    rig.start("worker-0-1", "worker-1-1")
    assert rig.master.journal.workers == {"worker-0-1", "worker-1-1"}
    rig.say("worker-1-1", Leave((), 0))
    assert rig.master.journal.workers == {"worker-0-1"}
    rig.die("worker-0-1")
    assert rig.master.journal.workers == set()
    records = len(rig.journal)
    rig.tick(1.0)
    assert len(rig.journal) == records


def test_a_worker_that_was_left_out_is_killed_by_the_next_master() -> None:
    rig = Rig()
    rig.start("worker-0-1", "worker-1-1")
    rig.tick()
    rig.silent.add("worker-0-1")
    rig.tick(8.0)
    assert [one.worker for one in rig.announced(EventKind.EVICTED)] == ["worker-0-1"]
    rig.begin()
    rig.connect("worker-1-1")
    rig.tick(4.0)
    assert not [one for one in rig.out if isinstance(one, events.Kill)]
    rig.tick(2.0)
    assert [one.worker for one in rig.out if isinstance(one, events.Kill)] == ["worker-0-1"]
    rig.die("worker-0-1")
    rig.begin()
    rig.tick(10.0)
    assert not [one for one in rig.out if isinstance(one, events.Kill)]


def test_a_worker_that_was_left_out_and_is_heard_of_again_is_killed_by_no_later_master() -> None:
    rig = Rig()
    rig.start("worker-0-1", "worker-1-1")
    rig.tick()
    rig.silent.add("worker-0-1")
    rig.tick(8.0)
    assert rig.master.journal.evicted == {"worker-0-1"}
    rig.event(events.Beat(member("worker-0-1"), 0, 0, 2, 0.0))
    rig.tick()
    assert (rig.master.journal.evicted, "worker-0-1" in rig.master.journal.workers) == (set(), True)


def test_people_see_how_many_slots_would_not_survive_another_loss() -> None:
    spec = build(from_arguments({"model_def": "m.model", "training_data": "x", "num_ps_pods": 2}))
    rig = Rig()
    rig.start("worker-0-1")

    def reason() -> str:
        forces = (ReplicaSet(2, 1), ReplicaSet(2, 1))
        return (
            PsStatusView(spec, rig.master, EventHistory(0.0), forces, Processes()).status("job", 1.0).reason
        )

    assert reason() == "1 worker and 2 parameter servers"
    rig.die("ps-0-1")
    rig.tick()
    assert reason() == "1 worker and 1 parameter server; 4 of 4 slots have no second copy yet"
    rig.connect("ps-0-2")
    copied(rig)
    assert reason() == "1 worker and 2 parameter servers"
    rig.say("ps-1-1", Leave((), 0))
    assert reason() == "1 worker and 2 parameter servers; 4 of 4 slots have no second copy yet"


def test_a_server_that_is_lost_while_it_leaves_is_not_said_to_be_empty() -> None:
    rig = Rig()
    rig.start("worker-0-1")
    rig.say("ps-0-1", Leave((), 0))
    rig.connect("ps-0-2")
    rig.die("ps-0-1")
    assert rig.announced(EventKind.DRAINED) == []
    assert [one.worker for one in rig.announced(EventKind.LOST)] == ["ps-0-1"]
    copied(rig)
    rig.say("worker-0-1", Settled(0, 1, 0, 0.5))
    assert [one.worker for one in rig.announced(EventKind.RECOVERED)] == ["ps-0-1"]


def test_two_witnesses_are_enough_against_a_server_and_one_that_broke_off_is_none() -> None:
    rig = Rig(servers=3)
    rig.start("worker-0-1")
    rig.say("worker-0-1", Unreached((1,)))
    rig.tick(3.0)
    assert 1 in rig.master.journal.servers
    rig.disconnect("ps-1-1")
    rig.say("worker-0-1", Unreached((1,)))
    assert 1 not in rig.master.journal.servers
    rig.tick(6.0)
    assert any(isinstance(one, events.Kill) and one.worker == "ps-1-1" for one in rig.out)


def test_a_roll_back_of_a_job_that_was_stopped_says_that_nothing_is_trained_once_more() -> None:
    rig = Rig(servers=2, replicas=1)
    rig.start("worker-0-1")
    rig.finish("worker-0-1", 0, 1)
    rig.event(events.StopAsked(1, "by hand"))
    rig.die("ps-0-1")
    rig.tick()
    (lost,) = (one for one in rig.announced(EventKind.LOST) if one.worker == "ps-0-1")
    assert lost.text.endswith("what was trained since then is lost, because the job was stopped")
    (rolled_back,) = rig.announced(EventKind.ROLLED_BACK)
    assert rolled_back.text == (
        "rolled back to step 0: 4 steps are not in the result, because the job was stopped"
    )


def test_a_slot_without_any_copy_begins_anew_and_so_do_the_tasks() -> None:
    rig = Rig(servers=2, replicas=1)
    rig.start("worker-0-1")
    rig.finish("worker-0-1", 0, 1)
    rig.told.clear()
    rig.die("ps-0-1")
    (placed,) = rig.heard("worker-0-1", Placed)
    assert placed.roll_back == 1
    assert [(entry.primary, entry.restored) for entry in placed.entries] == [(1, 1), (1, 1)]
    assert rig.heard("worker-0-1", Watermark) == [Watermark(0, 1, ())]
    assert rig.heard("worker-0-1", Leased) == [Leased(0, 0, 1), Leased(1, 0, 1)]
    (rolled_back,) = rig.announced(EventKind.ROLLED_BACK)
    assert rolled_back.text == "rolled back to step 0: 4 steps will be recomputed"
    assert rolled_back.redone == 4
    # what was begun before does not count
    rig.say("worker-0-1", TaskDone(2, 0))
    rig.tick()
    assert rig.master.journal.done.count() == 0
    # nor does its worker have it now
    rig.finish("worker-0-1", 0)
    assert rig.heard("worker-0-1", Leased) == [Leased(2, 0, 1)]


def test_the_only_server_s_successor_takes_all_slots() -> None:
    rig = Rig(servers=1, replicas=1)
    rig.start("worker-0-1")
    rig.die("ps-0-1")
    assert rig.master.journal.roll_back == 0
    rig.connect("ps-0-2")
    assert rig.master.journal.roll_back == 1
    assert {entry.primary for entry in rig.master.journal.entries} == {1}


def test_a_master_that_comes_back_asks_nobody_to_begin_anew() -> None:
    rig = Rig()
    rig.start("worker-0-1")
    rig.finish("worker-0-1", 0)
    rig.begin()
    rig.connect("ps-0-1", server=0)
    rig.connect("ps-1-1", server=1)
    rig.connect("worker-0-1", (Holding(1, 1), Holding(2, 0)))
    assert rig.heard("ps-0-1", Enrolled) == [Enrolled(2, 0)]
    rig.tick(1.0)
    assert rig.heard("worker-0-1", Leased) == []
    assert rig.master.work.leases.begun() == {1: 1, 2: 0}
    assert rig.master.work.steps == 2
    rig.connect("worker-1-1")
    assert [lease.task for lease in rig.heard("worker-1-1", Leased)] == [3, 4]


def test_copies_to_a_server_that_was_lost_without_a_master_are_void() -> None:
    rig = Rig(servers=3)
    rig.start("worker-0-1")
    rig.connect("ps-3-1")
    copied(rig)
    slot, entry = next((slot, one) for slot, one in enumerate(rig.master.journal.entries) if one.primary == 0)
    other = next(ServerId(one) for one in (1, 2) if one != entry.backup)
    rig.die("ps-3-1")
    rig.begin()
    rig.connect("ps-0-1", server=0)
    assert CopiesVoid(3) in rig.heard("ps-0-1", CopiesVoid)
    entry = rig.master.journal.entries[slot]
    # Everything was at the receiver, and that is gone: the server waits until the copy is void.
    rig.say("ps-0-1", CopyReady(slot, entry.term, 3, False))
    assert rig.master.journal.entries[slot] == entry.with_backup(entry.backup)
    # One that is there counts, whichever master ordered it.
    rig.say("ps-0-1", CopyReady(slot, entry.term + 1, other, False))
    assert rig.master.journal.entries[slot] == entry.with_backup(None).with_backup(other)


def test_a_server_that_leaves_while_there_is_no_master_is_emptied() -> None:
    rig = Rig(servers=3)
    rig.start("worker-0-1")
    rig.begin()
    for server in range(3):
        rig.connect(f"ps-{server}-1", server=server, leaving=server == 2)
    assert [one.worker for one in rig.announced(EventKind.LEAVING)] == ["ps-2-1"]
    copied(rig)
    assert rig.heard("ps-2-1", Released) == [Released("it is empty")]


def test_a_server_that_counts_as_lost_may_not_come_back() -> None:
    rig = Rig(servers=3)
    rig.start("worker-0-1")
    rig.disconnect("ps-1-1")
    rig.tick(7.0)
    assert 1 not in rig.master.journal.servers
    rig.connect("ps-1-1", server=1)
    assert [type(message).__name__ for name, message in rig.told if name == "ps-1-1"][-1] == "Evicted"
