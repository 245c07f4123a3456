"""The master's rules, literally: time and events in, instructions out."""

from __future__ import annotations

import pytest

from elasticdl.cluster.cluster import ProcessName, Role
from elasticdl.control.protocol.frozen import replace
from elasticdl.control.protocol.messages import (
    Acknowledged,
    Data,
    Evicted,
    Lost,
    NewView,
    NextView,
    Pending,
    Progress,
    Register,
    Released,
    Stop,
    Welcome,
    saved_as,
)
from elasticdl.control.protocol.status import EventKind
from elasticdl.control.protocol.view import MemberId, StateId, ViewId
from elasticdl.master.allreduce.machine import AllReduceMaster
from elasticdl.master.core.events import (
    Append,
    Appended,
    Beat,
    Check,
    Conflict,
    ConnectionLost,
    ConnectionOpened,
    DataFound,
    End,
    Heard,
    Instruction,
    JournalRead,
    Kill,
    Launched,
    ManifestWritten,
    Refuse,
    RoomLacking,
    ScaleAsked,
    StopAsked,
    Tell,
    Tick,
    WorkerEnded,
)
from elasticdl.master.core.records import (
    EpochRecord,
    LaunchedRecord,
    ShardsRecord,
    StoppingRecord,
    ViewRecord,
    WantedRecord,
)
from tests.master.grouprig import (
    FIRST,
    MIDDLE,
    S0,
    S1,
    SCHEDULE,
    SHARDS,
    SNAPSHOT,
    START,
    Control,
    group,
    name,
    part,
    report,
    settings,
)

# ------------------------------------------------------------------ the journal


def test_nothing_is_told_before_the_epoch_is_journalled() -> None:
    control = Control(EpochRecord(4))
    assert control.journal[-1] == EpochRecord(5)
    control.give(DataFound(SHARDS))
    assert control.journal[-1] == ShardsRecord(SHARDS)
    control.join("a")
    assert control.told("a") == [Welcome(5)]


def test_a_view_is_told_exactly_as_it_was_appended_and_not_before() -> None:
    control = Control()
    control.give(DataFound(SHARDS))
    control.join("a")
    control.hold = True
    control.join("b")
    (append,) = [i for i in control.said if isinstance(i, Append)]
    assert not any(isinstance(i, Tell) and isinstance(i.message, NewView) for i in control.said)
    # one append at a time, whatever else comes
    assert not any(isinstance(i, Append) for i in control.give(StopAsked(1, "x")))
    said = control.give(Appended(append.record))
    assert isinstance(append.record, ViewRecord)
    assert NewView(append.record.view) in control.told("a")
    assert NewView(append.record.view) in control.told("b")
    assert Append(append.number + 1, StoppingRecord("x")) in said


def test_a_conflict_ends_a_replaced_master() -> None:
    control = Control()
    (end,) = control.give(Conflict())
    assert isinstance(end, End)
    assert end.status == "replaced"
    assert control.give(Tick()) == []


def test_a_member_that_has_seen_a_higher_epoch_ends_a_replaced_master() -> None:
    control = Control()
    control.give(ConnectionOpened(1, MemberId("a"), "worker-0-0"))
    heard = Heard(1, Register(MemberId("a"), "worker-0-0", "unix:a", 9, report(0, None)))
    assert control.give(heard) == [Check(2)]  # its word alone ends no master
    assert control.give(heard) == []
    assert control.wait(5.0) == [Check(2)]
    (end,) = control.give(Conflict())
    assert isinstance(end, End)
    assert end.status == "replaced"


def test_a_restarted_master_tells_the_last_view_again() -> None:
    first = group("a", "b")
    control = Control(*first.journal)
    control.come_back("a", 501, 0, None)
    assert [i.message for i in control.said if isinstance(i, Tell)] == [
        Data(SHARDS),
        Welcome(2),
        NewView(first.view),
    ]


# ------------------------------------------------------------------ the first view


def test_the_first_view_waits_for_all_workers_or_for_the_gathering_time() -> None:
    control = Control(workers=3, minimum=2)
    control.give(DataFound(SHARDS))
    control.join("a")
    control.wait(11)
    assert control.master.view is None
    control.join("b")
    control.wait(0.0)
    assert control.members == ["a", "b"]


def test_the_first_view_waits_only_for_workers_that_have_room() -> None:
    control = Control(workers=4, minimum=1)
    control.give(DataFound(SHARDS))
    control.join("a")
    control.give(RoomLacking(2))
    assert control.master.view is None
    control.join("b")
    assert control.members == ["a", "b"]


def test_a_worker_that_gets_room_before_the_first_view_is_waited_for() -> None:
    control = Control(workers=2, minimum=1)
    control.give(DataFound(SHARDS))
    control.give(RoomLacking(1))
    control.give(RoomLacking(0))
    control.join("a")
    assert control.master.view is None
    control.join("b")
    assert control.members == ["a", "b"]


def test_workers_without_room_do_not_lower_the_minimum() -> None:
    control = Control(workers=3, minimum=2)
    control.give(DataFound(SHARDS))
    control.give(RoomLacking(2))
    control.join("a")
    control.wait(11)
    assert control.master.view is None


def test_a_group_below_its_minimum_waits() -> None:
    control = group("a", "b", minimum=2)
    control.give(WorkerEnded(name("b"), "killed by SIGKILL"))
    control.seal("a")
    control.wait(60)
    assert control.view.id == 1
    assert control.master.missing == 1
    control.join("c")
    assert control.members == ["a", "c"]
    assert control.master.missing == 0


def test_a_group_below_its_minimum_lets_go_of_who_drains_and_then_waits() -> None:
    control = group("a", "b", minimum=2)
    control.seal("b", draining=True)
    control.seal("a")
    assert control.members == ["a"]
    assert Pending(ViewId(2)) in control.told("a")
    control.seal("a")
    control.wait(60)
    assert control.view.id == 2
    control.join("c")
    assert control.members == ["a", "c"]


def test_a_group_below_its_minimum_may_still_be_stopped() -> None:
    control = group("a", "b", minimum=2)
    control.give(WorkerEnded(name("b"), "killed by SIGKILL"))
    control.seal("a")
    control.give(StopAsked(1, "enough"))
    assert control.members == ["a"]
    assert control.view.final


def test_a_stop_needs_no_more_than_one_of_those_who_come_anew() -> None:
    control = group("a", "b", minimum=2)
    control.give(WorkerEnded(name("a"), "killed by SIGKILL"), WorkerEnded(name("b"), "killed by SIGKILL"))
    control.give(StopAsked(1, "enough"))
    control.join("c")
    assert control.members == ["c"]
    assert control.view.final


def test_who_is_left_out_alive_does_not_keep_a_job_below_its_minimum_for_ever() -> None:
    control = group("a", "b", minimum=2)
    control.say("a", Lost(ViewId(1), 1, MemberId("b"), "deadline"))
    control.give(ConnectionLost(ord("b")))
    control.seal("a")
    assert control.members == ["a"]
    assert control.announced(EventKind.EVICTED)[0].worker == name("b")
    assert Pending(ViewId(2)) in control.told("a")
    control.seal("a")
    assert name("b") in {i.worker for i in control.wait(60) if isinstance(i, Kill)}
    assert control.view.id == 2
    control.join("c")
    assert control.members == ["a", "c"]


def test_a_master_that_waits_looks_for_another_one() -> None:
    control = Control(workers=2, minimum=2)
    control.give(DataFound(SHARDS))
    assert Check(len(control.journal) + 1) in control.wait(5.0)
    assert not any(isinstance(i, Check) for i in control.wait(1.0))
    assert Check(len(control.journal) + 1) in control.wait(5.0)
    control.join("a", "b")
    assert not any(isinstance(i, Check) for i in control.wait(10.0))


def test_nothing_begins_before_the_data_is_known() -> None:
    control = Control(workers=1)
    control.join("a")
    assert control.master.view is None
    control.give(DataFound(SHARDS))
    assert control.members == ["a"]
    assert Data(SHARDS) in control.told("a")


# ------------------------------------------------------------------ joining, draining, dying


def test_joiners_wait_for_a_step_boundary() -> None:
    control = group("a", "b")
    control.join("c")
    assert control.told("a") == [Pending(ViewId(1))]
    control.seal("a")
    assert control.members == ["a", "b"]
    control.seal("b")
    assert control.members == ["a", "b", "c"]
    assert control.announced(EventKind.JOINED)[0].worker == name("c")


def test_a_dead_member_ends_the_view_at_once() -> None:
    control = group("a", "b")
    control.give(WorkerEnded(name("b"), "killed by SIGKILL"))
    assert control.told("a") == [Stop(ViewId(1))]
    control.seal("a")
    assert control.members == ["a"]
    (lost,) = control.announced(EventKind.LOST)
    assert lost.cause == "killed by SIGKILL"


def test_a_recovery_is_told_with_its_duration() -> None:
    control = group("a", "b")
    control.give(WorkerEnded(name("b"), "killed by SIGKILL"))
    control.seal("a")
    control.now += 0.25
    control.say("a", Progress(ViewId(2), StateId(2, 2), SCHEDULE.advance(MIDDLE, 2), 0.5, 4))
    (recovered,) = control.announced(EventKind.RECOVERED)
    assert (recovered.worker, recovered.step, recovered.cause) == (name("b"), 2, "killed by SIGKILL")
    assert recovered.seconds == pytest.approx(0.25)


def test_a_seal_waits_for_the_others() -> None:
    control = group("a", "b")
    control.seal("a")
    assert control.view.id == 1
    # at a boundary somebody may still wait for a transfer
    control.wait(1.0)
    assert control.told("b") == []
    control.wait(4.1)
    assert control.told("b") == [Stop(ViewId(1))]


def test_after_an_abort_the_others_get_a_moment_only() -> None:
    control = group("a", "b")
    control.say("a", Lost(ViewId(1), 1, MemberId("b"), "eof"))
    control.seal("a")
    assert control.told("b") == []
    control.wait(0.06)
    assert control.told("b") == [Stop(ViewId(1))]
    control.seal("b")
    assert control.members == ["a", "b"]


def test_two_witnesses_evict_at_once_and_one_alone_waits() -> None:
    control = group("a", "b", "c")
    control.give(ConnectionLost(ord("b")))
    control.wait(1.0)
    assert control.told("a") == []
    control.say("a", Lost(ViewId(1), 1, MemberId("b"), "eof"))
    assert Stop(ViewId(1)) in control.told("c")
    control.seal("a")
    control.seal("c")
    assert control.members == ["a", "c"]
    assert control.announced(EventKind.EVICTED)[0].worker == name("b")
    # what was left out on suspicion and does not end is killed
    assert next(i for i in control.wait(5.0) if isinstance(i, Kill)).worker == name("b")


def test_who_was_left_out_on_suspicion_is_killed_by_the_next_master_and_who_drained_is_not() -> None:
    control = group("a", "b", "c")
    control.say("c", NextView(replace(report(1), draining=True)))
    control.give(ConnectionLost(ord("b")))
    control.say("a", Lost(ViewId(1), 1, MemberId("b"), "eof"))
    control.wait(1.0)
    control.seal("a")
    assert control.members == ["a"]
    control = Control(*control.journal)
    control.come_back("a", 1, 1, S1)
    assert not [i for i in control.wait(4.9) if isinstance(i, Kill)]
    assert [i.worker for i in control.wait(0.1) if isinstance(i, Kill)] == [name("b")]


def test_who_was_left_out_and_has_ended_is_killed_by_nobody() -> None:
    control = group("a", "b")
    control.say("a", Lost(ViewId(1), 1, MemberId("b"), "eof"))
    control.give(ConnectionLost(ord("b")))
    control.wait(1.0)
    control.seal("a")
    assert control.members == ["a"]
    control = Control(*control.journal)
    control.give(WorkerEnded(name("b"), "killed by SIGKILL"))
    assert not [i for i in control.wait(60.0) if isinstance(i, Kill)]


def test_names_that_are_in_use_are_journalled_once_and_after_all_else() -> None:
    lives = (ProcessName(Role.WORKER, 0, 1), ProcessName(Role.WORKER, 1, 1))
    control = Control()
    control.hold = True
    control.give(ScaleAsked(1, 3), Launched(lives[:1]), DataFound(SHARDS), Launched(lives))
    control.hold = False
    control.journal.append(WantedRecord(3))
    control.give(Appended(WantedRecord(3)))
    assert control.journal[2:] == [ShardsRecord(SHARDS), LaunchedRecord(lives)]
    later = Control(*control.journal)
    later.give(Launched(lives), Launched((ProcessName(Role.WORKER, 1, 2),)))
    assert [record for record in later.journal if isinstance(record, LaunchedRecord)] == [
        LaunchedRecord(lives),
        LaunchedRecord((ProcessName(Role.WORKER, 1, 2),)),
    ]


def test_missing_heartbeats_alone_wait_five_seconds() -> None:
    control = group("a", "b")
    for letter in "ab":
        control.give(Beat(MemberId(letter), 1, 1, 2, 0.0))
    control.now += 6.0
    control.give(Beat(MemberId("a"), 1, 1, 2, 0.0), Tick())
    assert control.told("a") == []
    control.now += 0.6
    control.give(Beat(MemberId("a"), 1, 1, 2, 0.0), Tick())
    assert control.told("a") == [Stop(ViewId(1))]


def test_who_contributes_to_every_step_is_not_dead_however_silent_towards_the_master() -> None:
    """As after a restart of the master that some members can't reach yet: the ring is over all of them."""
    control = group("a", "b", "c")
    control.give(ConnectionLost(ord("b")))
    for step in range(1, 40):
        control.now += 1.0
        control.give(Beat(MemberId("a"), 1, step, 2, 0.0), Tick())
    assert control.told("a") == []
    # now the steps have ended, and both silences count from the last contribution
    control.wait(3.0)
    assert control.told("a") == [Stop(ViewId(1))]


def test_nobody_is_suspected_by_a_new_master_that_nobody_has_found_yet() -> None:
    """Its address may have to get around: the first member that comes shows that it has, and the others have a grace from then on."""
    first = group("a", "b")
    control = Control(*first.journal)
    control.wait(60.0)
    control.come_back("a", 501, 0, None)
    stop = Tell(501, Stop(ViewId(1)))
    assert stop not in control.wait(9.0)
    assert stop in control.wait(2.0)


def test_a_step_that_others_speak_of_does_not_save_who_is_accused() -> None:
    control = group("a", "b", "c")
    control.give(ConnectionLost(ord("b")))
    for step in range(1, 10):
        control.now += 1.0
        control.give(Beat(MemberId("a"), 1, step, 2, 0.0), Tick())
    control.say("a", Lost(ViewId(1), 10, MemberId("b"), "eof"))
    assert Stop(ViewId(1)) in control.told("c")


def test_a_member_that_waits_for_others_does_not_stall() -> None:
    control = group("a", "b")
    for _ in range(30):
        control.now += 2.5
        # a works (odd) and makes no progress, b waits for it (even)
        control.give(Beat(MemberId("a"), 1, 1, 3, 0.0), Beat(MemberId("b"), 1, 1, 4, 0.0), Tick())
        if control.told("b"):
            break
    assert control.told("b") == [Stop(ViewId(1))]
    control.seal("b")
    assert control.members == ["b"]


def work(control: Control, seconds: float, **beats: tuple[int, int]) -> None:
    """Let time pass in which members send heartbeats, each with its view and progress (odd: at work)."""
    until = control.now + seconds
    while control.now < until:
        control.now += 2.5
        control.give(
            *(Beat(MemberId(who), view, 1, progress, 0.0) for who, (view, progress) in beats.items()), Tick()
        )


def test_who_answers_but_hangs_in_its_work_gets_one_more_view_at_most() -> None:
    control = group("a", "b", "c")
    work(control, 62.5, a=(1, 3), b=(1, 4), c=(1, 4))
    assert control.told("b") == [Stop(ViewId(1))]
    for member in "abc":
        control.seal(member)
    assert control.members == ["a", "b", "c"]
    # a has not even begun with the second view: its work is still that of the first
    work(control, 57.5, a=(1, 3), b=(2, 4), c=(2, 4))
    assert control.told("b") == []
    work(control, 2.5, a=(1, 3), b=(2, 4), c=(2, 4))
    assert control.told("b") == [Stop(ViewId(2))]
    for member in "abc":
        control.seal(member)
    assert control.members == ["b", "c"]
    assert "makes no progress" in control.view.reason


def test_who_comes_out_of_long_work_stays() -> None:
    control = group("a", "b")
    work(control, 62.5, a=(1, 3), b=(1, 4))
    control.seal("a")
    control.seal("b")
    work(control, 57.5, a=(1, 3), b=(2, 4))
    work(control, 57.5, a=(2, 5), b=(2, 4))
    assert control.told("b") == []
    assert control.members == ["a", "b"]


def test_the_last_that_holds_the_state_stays_even_if_it_hangs() -> None:
    control = group("a")
    work(control, 62.5, a=(1, 3))
    control.seal("a")
    assert control.view.id == 2
    work(control, 62.5, a=(1, 3))
    control.seal("a")
    work(control, 600, a=(1, 3))
    assert control.view.id == 2
    work(control, 2.5, a=(1, 4))
    assert control.view.id == 3


@pytest.mark.parametrize("is_stopped", [False, True], ids=["it trains", "somebody has stopped it"])
def test_a_job_that_is_stopped_waits_for_a_last_worker_that_hangs_twice_as_long_at_most(
    is_stopped: bool,
) -> None:
    """Its state is given up then: nobody could end the job in another way than by killing it."""
    control, killed = group("a"), []
    if is_stopped:
        control.give(StopAsked(1, "stopped"))
        assert control.journal[-1] == StoppingRecord("stopped")
    began = control.now
    while control.now < began + 1000:
        work(control, 2.5, a=(1, 3))
        killed += [(control.now - began, one.worker) for one in control.said if isinstance(one, Kill)]
    assert killed[:1] == ([(122.5, name("a"))] if is_stopped else [])


def test_a_result_may_take_long_to_write() -> None:
    control = group("a", "b")
    control.seal("a", StateId(2, 1))
    control.seal("b", StateId(2, 1))
    assert control.view.final
    work(control, 595, a=(2, 5), b=(2, 4))
    assert control.view.id == 2
    assert control.told("b") == []
    work(control, 7.5, a=(2, 5), b=(2, 4))
    assert control.told("b") == [Stop(ViewId(2))]


def test_who_seals_is_not_suspected_any_more() -> None:
    control = group("a", "b", "c")
    control.give(ConnectionLost(ord("b")))
    control.say("a", Lost(ViewId(1), 1, MemberId("b"), "eof"))
    control.come_back("b", 507, 1, S1)
    control.seal("a")
    control.seal("c")
    assert control.members == ["a", "b", "c"]


def test_what_comes_late_on_an_old_connection_changes_nothing() -> None:
    control = group("a", "b")
    control.come_back("a", 500, 0, None)
    # the end of the old stream is handled by another thread, after the beginning of the new one
    control.say("a", Register(MemberId("a"), name("a"), "unix:a", 1, report(0, None)))
    control.say("a", NextView(report(1)))
    control.give(ConnectionLost(ord("a")))
    assert control.master.liveness.seen[MemberId("a")].connection == 500
    assert control.master.liveness.seen[MemberId("a")].report.sealed == 0


def test_a_view_is_not_replaced_while_all_its_members_are_only_suspected() -> None:
    control = group("a", "b")
    control.give(ConnectionLost(ord("a")), ConnectionLost(ord("b")))
    control.wait(60.0)
    assert control.wait(60.0) == [
        Check(4)
    ]  # the master may be the one that is cut off, and looks whether it is
    control.join("c", "d")
    assert control.members == ["a", "b"]
    control.wait(5.0)
    # their ends would be the proof that is missing
    assert [i.worker for i in control.wait(60.0) if isinstance(i, Kill)] == [name("a"), name("b")]
    control.give(WorkerEnded(name("a"), "killed by SIGKILL"))
    assert control.members == ["a", "b"]
    assert [i.worker for i in control.wait(60.0) if isinstance(i, Kill)] == [name("b")]
    control.give(WorkerEnded(name("b"), "killed by SIGKILL"))
    assert control.members == ["c", "d"]
    assert control.view.base == StateId(0, 2)


def test_the_last_holders_of_a_state_are_not_given_up_on_suspicion() -> None:
    control = group("a")
    control.join("b")
    control.seal("a")
    assert control.members == ["a", "b"]
    control.give(ConnectionLost(ord("a")))
    control.seal("b", state=None)
    control.wait(60.0)
    assert control.view.id == 2
    control.give(WorkerEnded(name("a"), "killed by SIGKILL"))
    assert control.members == ["b"]


def killed(said: list[Instruction]) -> list[str]:
    return [one.worker for one in said if isinstance(one, Kill)]


def test_the_last_holder_that_hangs_is_killed_if_the_others_of_its_view_wait_for_it() -> None:
    control = group("a")
    control.join("b")
    control.seal("a")
    control.give(ConnectionLost(ord("a")))
    control.seal("b", state=None)
    assert killed(control.wait(60.0)) == []
    assert killed(control.wait(60.0)) == [name("a")]


def test_a_member_that_hangs_since_before_this_master_began_is_killed_if_others_have_come() -> None:
    before = group("a")
    control = Control(*before.journal)
    assert killed(control.wait(600.0)) == [], "this master may be the one that is cut off"
    control.join("b")
    control.wait(5.0)
    control.wait(60.0)
    assert killed(control.wait(60.0)) == [name("a")]


def test_a_master_that_may_be_late_refuses_nobody() -> None:
    """Another master has appended view 2, and its member comes here, before this one finds out."""
    journal = group("a").journal
    control = Control()
    control.master = AllReduceMaster(settings())
    control.hold = True
    control.give(JournalRead(tuple(journal), len(journal)))
    said = control.come_back("a", 500, 2, S1)
    assert not [one for one in said if isinstance(one, Refuse)]
    assert [one.status for one in control.give(Conflict()) if isinstance(one, End)] == ["replaced"]
    control = Control(*journal)
    assert [one for one in control.come_back("a", 500, 2, S1) if isinstance(one, Refuse)]


def test_a_member_that_has_not_healed_yet_may_be_given_up() -> None:
    control = group("a", "b")  # a makes the weights, and hangs
    control.give(ConnectionLost(ord("a")))
    control.seal("b", state=None)
    control.wait(60.0)
    assert control.members == ["b"]
    control = group("a", "b")
    control.say("a", Progress(ViewId(1), S0, START, None, 0))  # it has made them
    control.give(ConnectionLost(ord("a")))
    control.seal("b", state=None)
    control.wait(60.0)
    assert control.members == ["a", "b"]
    assert control.view.id == 1


def test_a_report_stays_true_when_its_member_has_died_since() -> None:
    control = group("a", "b")
    control.seal("a")
    control.give(WorkerEnded(name("a"), "killed by SIGKILL"), ConnectionLost(ord("b")))
    control.join("c", "d")
    # b neither sealed nor is it proven dead; it holds the last state
    control.wait(60.0)
    assert control.view.id == 1
    control.come_back("b", 507, 1, S0)
    assert control.members[0] == "b"
    assert control.view.base == S0


def test_a_draining_member_is_released_by_the_view_that_leaves_it_out() -> None:
    control = group("a", "b")
    control.say("a", Register(MemberId("a"), name("a"), "unix:a", 1, report(0, None, draining=True)))
    assert control.told("b") == [Pending(ViewId(1))]
    control.seal("a", draining=True)
    assert control.told("a") == []
    control.seal("b")
    assert control.members == ["b"]
    assert [type(message) for message in control.told("a")] == [Released]
    assert control.announced(EventKind.DRAINED)[0].worker == name("a")


def test_the_last_member_is_released_when_its_state_is_the_snapshot() -> None:
    control = group("a")
    control.say("a", part())
    control.give(ManifestWritten(1, "", cut=FIRST))
    assert control.told("a") == [Acknowledged(saved_as(FIRST))]
    control.seal("a", draining=True)
    assert [type(message) for message in control.told("a")] == [Released]
    assert control.view.id == 1
    control.give(WorkerEnded(name("a"), "exit code 0"))
    control.join("b")
    assert control.view.base == S1
    assert control.view.snapshot == SNAPSHOT


def test_the_last_member_is_released_once_a_view_has_left_out_the_others_that_live() -> None:
    """Here the one that holds the newest state, as the same connection has broken twice."""
    control = group("a", "b")
    control.say("a", part(0, 2)), control.say("b", part(1, 2))
    control.give(ManifestWritten(1, "", cut=FIRST))
    for drains in (False, True):
        control.say("b", Lost(control.view.id, 2, MemberId("a"), "eof"))
        control.seal("a", StateId(2, 1)), control.seal("b", draining=drains)
    assert control.members == ["b"]
    assert [type(message) for message in control.told("a")] == [Evicted]
    control.seal("b", draining=True)
    assert [type(message) for message in control.told("b")] == [Released]


def test_the_last_member_is_not_released_without_a_snapshot_of_its_state() -> None:
    control = group("a")
    control.seal("a", draining=True)
    assert control.told("a") == [NewView(control.view), Pending(ViewId(2))]
    assert control.members == ["a"]


def test_an_evicted_member_is_evicted_for_ever() -> None:
    control = group("a", "b")
    control.give(WorkerEnded(name("b"), "wrong")), control.seal("a")
    control.come_back("b", 507, 1, S1)
    assert [type(i.message) for i in control.said if isinstance(i, Tell)] == [Data, Evicted]
    restarted = Control(*control.journal)
    restarted.come_back("b", 507, 1, S1)
    assert any(isinstance(i, Tell) and isinstance(i.message, Evicted) for i in restarted.said)


def test_the_same_broken_link_twice_costs_the_younger_one() -> None:
    control = group("a", "b", "c")
    for _ in range(2):
        number = control.view.id
        control.say("a", Lost(number, 1, MemberId("b"), "eof"))
        control.say("b", Lost(number, 1, MemberId("a"), "eof"))
        for letter in "abc":
            control.seal(letter)
    assert control.members == ["a", "c"]
    assert [type(message) for message in control.told("b")] == [Evicted]


def test_another_broken_link_costs_nobody() -> None:
    control = group("a", "b", "c")
    for first, second in ("ab", "bc"):
        number = control.view.id
        control.say(first, Lost(number, 1, MemberId(second), "eof"))
        for letter in "abc":
            control.seal(letter)
    assert control.members == ["a", "b", "c"]
