"""The master's rules, literally: time and events in, instructions out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from elasticdl.cluster.cluster import ProcessName, Role
from elasticdl.control.protocol.messages import (
    Acknowledged,
    AtGate,
    Cut,
    Data,
    Evaluated,
    Evicted,
    Exported,
    Failed,
    Finished,
    GateOpen,
    Lost,
    NewView,
    NextView,
    Pending,
    ProgramFailed,
    Progress,
    Register,
    Released,
    Report,
    Saved,
    Stop,
    StopJob,
    TaskKind,
    TaskLeased,
    TaskResult,
    Welcome,
    saved_as,
    unsaved_as,
)
from elasticdl.control.protocol.status import EventKind
from elasticdl.control.protocol.view import MemberId, StateId, View, ViewId
from elasticdl.data.plan.evaluation import EvaluationPlan
from elasticdl.data.plan.ledger import Ledger
from elasticdl.data.plan.schedule import Schedule
from elasticdl.data.plan.shard import Position, Shard
from elasticdl.files.output import unpublished_path
from elasticdl.master.allreduce.machine import AllReduceMaster, Settings
from elasticdl.master.allreduce.steps import EXPORT_LIMITS
from elasticdl.master.core.events import (
    Announce,
    Append,
    Appended,
    Beat,
    Check,
    Conflict,
    ConnectionLost,
    ConnectionOpened,
    DataFound,
    End,
    GiveUp,
    Heard,
    Instruction,
    JournalRead,
    Kill,
    Launched,
    ManifestWritten,
    Publish,
    Published,
    Refuse,
    Reply,
    Scale,
    ScaleAsked,
    StopAsked,
    Tell,
    Tick,
    Unwritten,
    WorkerEnded,
    WriteGroupManifest,
)
from elasticdl.master.core.records import (
    EpochRecord,
    ErrorRecord,
    EvaluatedRecord,
    FailedRecord,
    FinishedRecord,
    LaunchedRecord,
    Record,
    ResumedStateRecord,
    ShardsRecord,
    SnapshotRecord,
    StoppingRecord,
    ViewRecord,
    WantedRecord,
    compact,
    read_journal,
)

SHARDS = (Shard("s", 0, 32),)
SCHEDULE = Schedule(Ledger(SHARDS, 2, 1, 0, shuffle=False), num_epochs=1, max_step=0)
START = SCHEDULE.start(2)
MIDDLE = SCHEDULE.advance(START, 2)
S0, S1 = StateId(0, 1), StateId(1, 1)
OUTPUT = Path("/results/model.keras")
RESULT = unpublished_path(OUTPUT, 1, 1)
SNAPSHOT = "/snapshots/checkpoint-1/manifest.json"


def settings(**changes: Any) -> Settings:
    plain = Settings(
        workers=2,
        minimum=1,
        relaunches=1,
        plan=lambda *_: SCHEDULE,
        policy_lanes=lambda _: 2,
        output=OUTPUT,
        snapshots=Path(SNAPSHOT).parents[1],
    )
    return replace(plain, **changes)


class Control:
    """A master under control: time moves by hand, the journal takes everything at once unless it is held."""

    def __init__(self, *records: Record, **changes: Any) -> None:
        self.master = AllReduceMaster(settings(**changes))
        self.now = 100.0
        self.journal: list[Record] = list(records)
        self.hold = False
        self.said: list[Instruction] = []
        self.give(JournalRead(tuple(records), len(records)))

    def give(self, *events: Any) -> list[Instruction]:
        """Give events; return all that they led to."""
        self.said = []
        for event in events:
            self.master, said = self.master.handle(self.now, event)
            self._carry_out(said)
        return self.said

    def _carry_out(self, said: tuple[Instruction, ...]) -> None:
        self.said += said
        for instruction in said:
            if isinstance(instruction, Append) and not self.hold:
                assert instruction.number == len(self.journal) + 1
                self.journal.append(instruction.record)
                self.master, more = self.master.handle(self.now, Appended(instruction.record))
                self._carry_out(more)

    def wait(self, seconds: float) -> list[Instruction]:
        self.now += seconds
        return self.give(Tick())

    def join(self, *names: str, draining: bool = False) -> None:
        for name in names:
            connection = ord(name)
            report = Report(ViewId(0), ViewId(0), None, None, frozenset(), draining)
            self.give(ConnectionOpened(connection, MemberId(name), f"worker-{connection}-0"))
            self.say(name, Register(MemberId(name), f"worker-{connection}-0", f"unix:{name}", 0, report))

    def come_back(
        self, name: str, connection: int, sealed: int, state: StateId | None, draining: bool = False
    ) -> list[Instruction]:
        """A member of an earlier life of the master connects."""
        who = f"worker-{ord(name)}-0"
        opened = ConnectionOpened(connection, MemberId(name), who)
        return self.give(
            opened,
            Heard(
                connection, Register(MemberId(name), who, f"unix:{name}", 1, report(sealed, state, draining))
            ),
        )

    def say(self, name: str, message: Any) -> list[Instruction]:
        return self.give(Heard(ord(name), message))

    def seal(
        self, name: str, state: StateId | None = S1, draining: bool = False, holds: Any = ()
    ) -> list[Instruction]:
        assert self.master.view is not None
        return self.say(
            name, NextView(replace(report(self.master.view.id, state, draining), holds=frozenset(holds)))
        )

    def told(self, name: str) -> list[Any]:
        return [i.message for i in self.said if isinstance(i, Tell) and i.connection == ord(name)]

    def announced(self, kind: EventKind) -> list[Announce]:
        return [i for i in self.said if isinstance(i, Announce) and i.kind == kind]

    @property
    def view(self) -> View:
        assert self.master.view is not None
        return self.master.view

    @property
    def members(self) -> list[str]:
        return [peer.id for peer in self.view.members]


def report(sealed: int, state: StateId | None = S1, draining: bool = False) -> Report:
    position = {0: START, 1: MIDDLE}.get(state.step, Position(1, 0, 0, 0)) if state else None
    return Report(ViewId(sealed), ViewId(sealed), state, position, frozenset(), draining)


def name(letter: str) -> str:
    return f"worker-{ord(letter)}-0"


def group(*letters: str, **changes: Any) -> Control:
    """A master whose first view has these members."""
    control = Control(workers=len(letters), **changes)
    control.give(DataFound(SHARDS))
    control.join(*letters)
    assert control.members == list(letters)
    return control


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


def part(rank: int = 0, members: int = 1, view: int = 1) -> Saved:
    """Return what a member says of its part of the state of step 1."""
    cut = Cut(ViewId(view), S1, False)
    path = f"/snapshots/.checkpoint-step-1-view-{view}.draft/part-{rank}"
    return Saved(cut, MIDDLE, path, rank, 1, members, 7, "head")


FIRST = Cut(ViewId(1), S1, False)
RECORD = SnapshotRecord(ViewId(1), S1, MIDDLE, SNAPSHOT, 1)


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


# ------------------------------------------------------------------ snapshots


def test_a_state_is_journalled_when_all_of_the_view_have_saved_it_and_the_manifest_is_written() -> None:
    control = group("a", "b")
    control.say("a", part(0, 2))
    assert control.said == []
    control.say("b", part(1, 2))
    (order,) = control.said
    files = tuple((part(rank, 2).path, 1, 7) for rank in range(2))
    assert order == WriteGroupManifest(1, Path("/snapshots"), FIRST, MIDDLE, "head", files)
    control.give(ManifestWritten(1, "", cut=FIRST))
    assert control.journal[-1] == RECORD
    assert control.told("a") == control.told("b") == [Acknowledged(saved_as(FIRST))]
    # the same one again, perhaps to another master, is acknowledged and not journalled again
    control.say("a", part(0, 2))
    assert control.said == [Tell(ord("a"), Acknowledged(saved_as(FIRST)))]


def test_what_the_view_has_not_saved_when_it_ends_is_given_up() -> None:
    control = group("a", "b")
    control.join("c")
    control.say("a", part(0, 2)), control.say("b", part(1, 2))
    for letter in "ab":
        control.seal(letter)
    assert "the group has changed" in control.announced(EventKind.UNSAVED)[0].text
    control.give(ManifestWritten(1, "", cut=FIRST))
    control.say("a", part(0, 2))
    assert control.said == []
    assert not any(isinstance(record, SnapshotRecord) for record in control.journal)


def test_a_part_that_can_not_be_written_gives_the_state_up_for_all() -> None:
    control = group("a", "b")
    control.say("a", part(0, 2))
    control.say("b", replace(part(1, 2), error="no space left"))
    assert "no space left" in control.announced(EventKind.UNSAVED)[0].text
    for letter in "ab":
        control.say(letter, part("ab".index(letter), 2))
        assert control.told(letter) == [Acknowledged(unsaved_as(FIRST))]


@pytest.mark.parametrize("changes", [{"head": "other"}, {"first": 2}, {"size": 3}, {"position": START}])
def test_parts_that_make_no_state_are_given_up(changes: dict[str, Any]) -> None:
    control = group("a", "b")
    control.say("a", part(0, 2))
    wrong = replace(part(1, 2), **changes)
    snapshots, _ = control.master.snapshots.reported(control.view, MemberId("b"), wrong)
    after, (said,) = snapshots.completed(control.master.journal)
    assert FIRST in after.spoilt
    assert isinstance(said, Announce)
    assert said.kind == EventKind.UNSAVED


def test_a_job_goes_on_from_a_checkpoint_before_anybody_begins_anew() -> None:
    path, state = "/earlier/checkpoint-4/manifest.json", StateId(5, 0)
    record = ResumedStateRecord(4, path, state, MIDDLE, False)
    control = Control(resume=lambda *_: record, highest=4, workers=1)
    control.give(DataFound(SHARDS))
    control.join("a")
    assert [type(one) for one in control.journal[-2:]] == [ResumedStateRecord, ViewRecord]
    assert (control.view.base, control.view.position, control.view.snapshot) == (state, MIDDLE, path)
    # another master finds it in the journal, and numbers go on
    other = Control(*control.journal)
    assert other.master.snapshots.number(other.master.journal) == 5
    assert read_journal(compact(control.journal)).resumed_state == record


def test_the_result_waits_for_the_last_checkpoint_and_not_for_ever() -> None:
    def end() -> Control:
        control = group("a", lasting=True)
        control.give(StopAsked(1, "enough"))
        control.seal("a", StateId(1, 1))
        view = control.view
        assert view.final
        control.say("a", Exported(view.id, S1, RESULT, "digest"))
        assert not any(isinstance(record, FinishedRecord) for record in control.journal)
        return control

    cut = Cut(ViewId(2), S1, False)
    control = end()
    control.say("a", part(view=2))
    control.give(ManifestWritten(1, "", cut=cut))
    assert [type(record) for record in control.journal[-2:]] == [SnapshotRecord, FinishedRecord]
    control = end()
    control.say("a", replace(part(view=2), error="no space left"))
    assert isinstance(control.journal[-1], FinishedRecord)
    control = end()
    control.now += EXPORT_LIMITS * control.master.settings.times.stall
    control.give(Tick(), Tick())
    assert isinstance(control.journal[-1], FinishedRecord)


# ------------------------------------------------------------------ the end


def final(control: Control) -> Exported:
    """Bring a group to its final view; return what the exporter reports."""
    control.give(StopAsked(5, "enough"))
    for letter in control.members:
        control.seal(letter)
    assert control.view.final
    return Exported(control.view.id, control.view.base, RESULT, "d", (("loss", 0.5),))


def test_a_stop_is_a_record_before_it_is_acknowledged() -> None:
    control = group("a", "b")
    control.hold = True
    said = control.give(StopAsked(5, "enough"))
    assert [type(i) for i in said] == [Append]
    said = control.give(Appended(StoppingRecord("enough")))
    assert any(isinstance(i, Reply) and i.request == 5 for i in said)
    assert Pending(ViewId(1)) in control.told("a")


def test_a_member_may_ask_for_the_stop() -> None:
    control = group("a", "b")
    control.say("a", StopJob("early stopping"))
    assert control.journal[-1] == StoppingRecord("early stopping")
    assert Acknowledged("stop_job") in control.told("a")
    control.say("b", StopJob("early stopping"))
    assert control.told("b") == [Acknowledged("stop_job")]


def test_every_view_after_a_stop_is_final_also_after_a_restart() -> None:
    control = group("a", "b")
    final(control)
    restarted = Control(*control.journal)
    restarted.come_back("a", 501, 2, S1)
    restarted.give(WorkerEnded(name("b"), "killed by SIGKILL"))
    assert restarted.view.id == 3
    assert restarted.view.final


def test_finished_is_journalled_then_published_and_told() -> None:
    control = group("a", "b")
    report = final(control)
    control.hold = True
    said = control.say("a", report)
    assert [type(i) for i in said] == [Append]
    record = FinishedRecord(ViewId(2), S1, RESULT, "d", (("loss", 0.5),))
    said = control.give(Appended(record))
    assert Publish(RESULT) in said
    assert [type(message) for message in control.told("a") + control.told("b")] == [Finished, Finished]
    control.give(Published())
    for letter in "ab":
        control.give(ConnectionLost(ord(letter)))
    assert not any(isinstance(i, End) for i in control.said)
    said = control.give(WorkerEnded(name("a"), "exit code 0"), WorkerEnded(name("b"), "exit code 0"))
    assert said == [End("finished", "enough", 0)]


def test_the_end_does_not_wait_for_ever() -> None:
    control = group("a")
    control.say("a", final(control))
    control.give(Published())
    assert control.wait(5.0) == [End("finished", "enough", 0)]


def test_any_master_that_reads_finished_publishes_again_and_appends_nothing() -> None:
    control = group("a")
    control.say("a", final(control))
    restarted = Control(*control.journal)
    assert Publish(RESULT) in restarted.said
    assert not any(isinstance(i, Append) for i in restarted.said)
    restarted.come_back("a", 501, 2, S1)
    assert any(isinstance(i, Tell) and isinstance(i.message, Finished) for i in restarted.said)


@pytest.mark.parametrize(
    "wrong",
    [{"view": ViewId(1)}, {"state": S0, "path": unpublished_path(OUTPUT, 0, 1)}],
    ids=["of another view", "of another state"],
)
def test_an_export_counts_only_for_the_base_of_the_current_view(wrong: dict[str, Any]) -> None:
    control = group("a", "b")
    report = final(control)
    assert control.say("a", replace(report, **wrong)) == []
    assert control.say("b", report) == []  # not the exporter
    assert not any(isinstance(record, FinishedRecord) for record in control.journal)


def test_a_draining_member_leaves_a_final_view_by_stop() -> None:
    control = group("a", "b")
    final(control)
    control.say(
        "a",
        Register(
            MemberId("a"), name("a"), "unix:a", 1, replace(report(1, S1), current=ViewId(2), draining=True)
        ),
    )
    assert control.told("b") == [Stop(ViewId(2))]
    control.seal("a", draining=True)
    control.seal("b")
    assert control.members == ["b"]
    assert control.view.final


def test_joiners_do_not_disturb_a_final_view() -> None:
    control = group("a", "b")
    report = final(control)
    control.join("c")
    assert control.told("a") == []
    control.say("a", report)
    assert [type(message) for message in control.told("c")] == [Finished]


def test_the_number_of_workers_survives_a_restart() -> None:
    control = group("a")
    said = control.give(ScaleAsked(3, 5))
    assert Scale(5) in said
    assert any(isinstance(i, Reply) and i.request == 3 for i in said)
    assert control.journal[-1] == WantedRecord(5)
    restarted = Control(*control.journal)
    assert restarted.said[0] == Scale(5)
    assert restarted.master.wanted == 5


# ------------------------------------------------------------------ failure


def error(kind: str = "program", signature: str = "ValueError at f") -> ProgramFailed:
    return ProgramFailed(kind, signature, "", "ValueError: no\n  File x")


def progressed(*letters: str, **changes: Any) -> Control:
    control = group(*letters, **changes)
    control.say(letters[0], Progress(ViewId(1), S1, MIDDLE, 0.5, 2))
    return control


def test_an_error_before_the_first_commit_fails_the_job() -> None:
    control = group("a", "b")
    control.hold = True
    said = control.say("a", error())
    assert not any(isinstance(i, Tell) and isinstance(i.message, Failed) for i in said)
    (append,) = [i for i in said if isinstance(i, Append)]
    assert isinstance(append.record, FailedRecord)
    assert append.record.traceback == "ValueError: no\n  File x"
    assert append.record.reason == f"{name('a')} failed before the first step was committed: ValueError: no"
    control.give(Appended(append.record))
    assert [type(message) for message in control.told("a") + control.told("b")] == [Failed, Failed]
    assert control.wait(5.0)[-1] == End("failed", append.record.reason, 1)


def test_a_step_that_only_the_failed_worker_knows_of_counts() -> None:
    control = group("a", "b")
    control.say("a", replace(error(), step=1))
    assert control.journal[-1] == ErrorRecord(name("a"), "ValueError at f")


def test_a_worker_may_fail_before_it_registers() -> None:
    control = Control()
    control.give(ConnectionOpened(1, MemberId("a"), "worker-0-0"), Heard(1, error("bad-input")))
    assert isinstance(control.journal[-1], FailedRecord)
    end = control.wait(5.0)[-1]
    assert isinstance(end, End)
    assert end.exit_code == 2


def test_later_errors_start_the_worker_once_more() -> None:
    control = progressed("a", "b")
    control.say("b", error())
    assert control.journal[-1] == ErrorRecord(name("b"), "ValueError at f")
    assert Acknowledged("failed") in control.told("b")
    assert Stop(ViewId(1)) in control.told("a")
    # repeated to a restarted master it is answered again and not counted twice
    restarted = Control(*control.journal)
    restarted.give(ConnectionOpened(9, MemberId("b"), name("b")), Heard(9, error()))
    assert Tell(9, Acknowledged("failed")) in restarted.said
    assert sum(isinstance(record, ErrorRecord) for record in restarted.journal) == 1
    control.seal("a")
    assert control.members == ["a"]


def test_the_same_error_in_a_second_life_fails_the_job() -> None:
    control = progressed("a", "b", relaunches=5)
    control.say("b", error())
    control.seal("a")
    control.give(ConnectionOpened(9, MemberId("b2"), f"worker-{ord('b')}-1"), Heard(9, error()))
    assert isinstance(control.journal[-1], FailedRecord)


@pytest.mark.parametrize(("relaunches", "fails"), [(0, True), (1, False)])
def test_errors_are_counted_per_worker(relaunches: int, fails: bool) -> None:
    control = progressed("a", "b", relaunches=relaunches)
    control.say("b", error(signature="one"))
    assert isinstance(control.journal[-1], FailedRecord) == fails
    if not fails:
        control.seal("a")
        control.give(
            ConnectionOpened(9, MemberId("b2"), f"worker-{ord('b')}-1"), Heard(9, error(signature="two"))
        )
        assert isinstance(control.journal[-1], FailedRecord)


@pytest.mark.parametrize("kind", ["bad-input", "nan", "storage"])
def test_errors_that_come_back_in_every_life_fail_the_job_at_once(kind: str) -> None:
    control = progressed("a", "b")
    control.say("b", error(kind))
    record = control.journal[-1]
    assert isinstance(record, FailedRecord)
    assert record.kind == kind


def test_an_evicted_members_error_counts_for_nothing() -> None:
    control = progressed("a", "b")
    control.give(WorkerEnded(name("b"), "wrong"))
    control.seal("a")
    control.give(ConnectionOpened(9, MemberId("b"), name("b")), Heard(9, error()))
    assert any(isinstance(i, Tell) and isinstance(i.message, Evicted) for i in control.said)
    assert not any(isinstance(record, FailedRecord | ErrorRecord) for record in control.journal)


def test_a_death_is_no_failure() -> None:
    control = group("a", "b")
    control.give(WorkerEnded(name("a"), "killed by SIGKILL"), WorkerEnded(name("b"), "killed by SIGKILL"))
    assert not any(isinstance(record, FailedRecord) for record in control.journal)


def test_the_shell_may_give_up() -> None:
    control = group("a")
    control.give(GiveUp("worker 0 crashed 3 times", "program", "worker-0-3"))
    assert control.journal[-1] == FailedRecord("worker 0 crashed 3 times", "program", "worker-0-3", "")


def test_nothing_follows_a_terminal_record() -> None:
    control = group("a")
    control.say("a", final(control))
    length = len(control.journal)
    control.say("a", error())
    control.give(StopAsked(8, "x"), ScaleAsked(9, 3), GiveUp("x", "lost"))
    assert len(control.journal) == length
    assert {i.request for i in control.said if isinstance(i, Reply)} == {8, 9}


FULL = "No space left on device: /state/journal"


@pytest.mark.parametrize(
    ("why", "asked"),
    [
        (GiveUp("the data can't be opened", "bad-input"), "the data can't be opened"),
        (StopAsked(7, "enough"), "enough"),
    ],
)
def test_a_job_that_trains_nothing_ends_without_its_journal(why: Any, asked: str) -> None:
    """Its first record can't be written, so the record of its end can't be, either; nobody learns a verdict."""
    master, _ = AllReduceMaster(settings()).handle(0.0, JournalRead((), 0))
    master, _ = master.handle(0.1, Unwritten(FULL))
    master, said = master.handle(0.2, why)
    assert said == (), "the journal may work again in a moment"
    master, said = master.handle(10.0, Tick())
    assert [type(one) for one in said] == [*([Reply] if isinstance(why, StopAsked) else []), Announce, End]
    end = said[-1]
    assert isinstance(end, End)
    assert (end.status, end.exit_code) == ("failed", 1)
    assert FULL in end.reason
    assert asked in end.reason
    assert master.handle(11.0, Tick())[1] == ()


def test_a_journal_that_works_again_in_time_has_the_end() -> None:
    master, said = AllReduceMaster(settings()).handle(0.0, JournalRead((), 0))
    (append,) = said
    assert isinstance(append, Append)
    master, _ = master.handle(0.1, Unwritten(FULL))
    master, _ = master.handle(0.2, GiveUp("no data", "bad-input"))
    master, said = master.handle(4.0, Appended(append.record))
    (end,) = [one for one in said if isinstance(one, Append)]
    assert isinstance(end.record, FailedRecord)
    master, _ = master.handle(4.1, Appended(end.record))
    assert master.stuck(60.0) == ""


def test_a_job_that_trains_waits_for_its_journal_and_says_so() -> None:
    control = group("a", "b")
    control.hold = True
    control.give(StopAsked(7, "enough"), Unwritten(FULL))
    said = control.wait(10)
    (reply,) = [one for one in said if isinstance(one, Reply)]
    assert reply.request == 7
    assert FULL in reply.text
    assert FULL in control.master.stuck(control.now)
    assert not any(isinstance(one, End | Tell) for one in said)
    (later,) = [one for one in control.give(StopAsked(8, "enough")) if isinstance(one, Reply)]
    assert (later.request, later.text) == (8, reply.text)
    stopping = control.master.appending
    assert stopping == StoppingRecord("enough")
    control.hold = False
    assert control.give(Appended(stopping))
    assert control.master.stuck(control.now) == ""


def test_who_wants_to_scale_hears_that_the_journal_is_waited_for() -> None:
    control = group("a", "b")
    control.hold = True
    control.give(ScaleAsked(7, 3), Unwritten(FULL))
    said = control.wait(10)
    (reply,) = [one for one in said if isinstance(one, Reply)]
    assert reply.request == 7
    assert FULL in reply.text
    assert not any(isinstance(one, Scale) for one in said)
    wanted = control.master.appending
    assert wanted == WantedRecord(3, None)
    control.hold = False
    said = control.give(Appended(wanted))
    assert Scale(3, None) in said
    assert 7 not in {one.request for one in said if isinstance(one, Reply)}


@pytest.mark.parametrize("asked", [StopAsked(7, "enough"), ScaleAsked(7, 3)])
def test_a_journal_that_hangs_without_an_error_is_said_to_be_waited_for(asked: Any) -> None:
    control = group("a", "b")
    control.hold = True
    control.give(asked)
    assert control.master.stuck(control.now + 4.9) == ""
    said = control.wait(10)
    (reply,) = [one for one in said if isinstance(one, Reply)]
    assert reply.request == 7
    assert "its storage does not answer" in reply.text
    assert "its storage does not answer" in control.master.stuck(control.now)
    assert not any(isinstance(one, End | Tell) for one in said)


def test_a_first_view_that_may_exist_is_waited_for() -> None:
    """Nobody knows whether it was written (J2): then a later master trains, and this one can't say how that ends."""
    control = Control(EpochRecord(1), ShardsRecord(SHARDS))
    control.hold = True
    control.join("a", "b")
    control.wait(100)
    assert isinstance(control.master.appending, ViewRecord)
    control.give(Unwritten(FULL), StopAsked(7, "enough"))
    said = control.wait(100)
    assert not any(isinstance(one, End) for one in said)


# ------------------------------------------------------------------ evaluation


def size_of_result(metrics: str) -> int:
    if not metrics.startswith("bytes "):
        raise ValueError(f"no catalog: {metrics}")
    return int(metrics.removeprefix("bytes "))


def at_gate() -> Control:
    """A group of two, of which one waits at the gate of its first step: each of two tasks has a result of four bytes."""
    plan = EvaluationPlan([Shard("v", 0, 8)], 4, 1, at_epoch_end=True)
    schedule = Schedule(SCHEDULE.ledger, SCHEDULE.num_epochs, 0, plan)
    control = group("a", "b", plan=lambda *_: schedule, result_size=size_of_result)
    control.say("a", AtGate(ViewId(1), S1, "bytes 4"))
    assert control.told("a") == [TaskLeased(TaskKind.EVALUATE, S1, 0, b"")]
    return control


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (TaskResult(S1, 0, b"123"), "3 bytes, and all have 4"),
        (TaskResult(S1, 2, b"1234"), "evaluation task 2"),
        (AtGate(ViewId(1), S1, "bytes 5"), "other metrics"),
        (AtGate(ViewId(1), StateId(2, 1), "[["), "can't be read: no catalog"),
        (AtGate(ViewId(2), StateId(2, 1), "bytes 4"), "view 2"),
        (Evaluated(StateId(1, 9), ()), "view 9"),
    ],
)
def test_what_no_member_can_say_of_an_evaluation_is_refused(said: Any, why: str) -> None:
    control = at_gate()
    (refused,) = (one for one in control.say("b", said) if isinstance(one, Refuse))
    assert why in refused.reason


def test_results_of_all_tasks_are_added_up_by_one_member_and_journalled_once() -> None:
    control = at_gate()
    control.say("b", AtGate(ViewId(1), S1, "bytes 4"))
    control.say("b", TaskResult(S1, 1, b"5678"))
    control.say("a", TaskResult(S1, 0, b"1234"))
    maker = "a" if control.told("a") else "b"
    assert control.told(maker) == [TaskLeased(TaskKind.METRICS, S1, 0, b"12345678")]
    values = (("val_loss", 0.5),)
    control.say(maker, Evaluated(S1, values))
    assert [record for record in control.journal if isinstance(record, EvaluatedRecord)] == [
        EvaluatedRecord(S1, values, 0.0)
    ]
    assert control.told("a") == control.told("b") == [GateOpen(S1, values)]
