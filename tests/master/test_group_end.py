"""How a synchronous job ends: by a stop, with its result, by a program error, without its journal."""

from __future__ import annotations

from typing import Any

import pytest

from elasticdl.control.protocol.frozen import replace
from elasticdl.control.protocol.messages import (
    Acknowledged,
    Evicted,
    Exported,
    Failed,
    Finished,
    Note,
    Pending,
    ProgramFailed,
    Progress,
    Register,
    Stop,
    StopJob,
)
from elasticdl.control.protocol.status import EventKind
from elasticdl.control.protocol.view import MemberId, ViewId
from elasticdl.files.output import unpublished_path
from elasticdl.master.allreduce.machine import AllReduceMaster
from elasticdl.master.core.events import (
    Announce,
    Append,
    Appended,
    ConnectionLost,
    ConnectionOpened,
    End,
    GiveUp,
    Heard,
    JournalRead,
    Publish,
    Published,
    Reply,
    Scale,
    ScaleAsked,
    StopAsked,
    Tell,
    Tick,
    Unwritten,
    WorkerEnded,
)
from elasticdl.master.core.records import (
    EpochRecord,
    ErrorRecord,
    FailedRecord,
    FinishedRecord,
    ShardsRecord,
    StoppingRecord,
    ViewRecord,
    WantedRecord,
)
from tests.master.grouprig import (
    MIDDLE,
    OUTPUT,
    RESULT,
    S0,
    S1,
    SHARDS,
    Control,
    group,
    name,
    report,
    settings,
)

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


@pytest.mark.parametrize("is_program", [False, True])
def test_other_bits_in_the_final_view_are_announced_and_fail_a_program(is_program: bool) -> None:
    for_loop = (lambda plan: settings()) if is_program else None
    control = group("a", "b", for_loop=for_loop)
    exported = final(control)
    step, view = control.view.base.step, control.view.id
    control.say("a", Note(EventKind.DIGEST, view, step, "aa"))
    control.say("b", Note(EventKind.DIGEST, ViewId(1), step, "bb"))  # said of another view
    control.say("b", Note(EventKind.DIGEST, view, step, "aa"))
    assert not control.announced(EventKind.DIVERGED)
    control.say("b", Note(EventKind.DIGEST, view, step, "bb"))
    (said,) = control.announced(EventKind.DIVERGED)
    assert said.text.startswith(f"{name('b')} ends with other parameters than {name('a')}, ")
    control.say("a", exported)
    (record,) = [one for one in control.journal if isinstance(one, FailedRecord | FinishedRecord)]
    assert isinstance(record, FailedRecord if is_program else FinishedRecord)


def test_other_bits_that_are_told_after_the_result_is_there_are_announced() -> None:
    control = group("a", "b", for_loop=lambda plan: settings())
    exported = final(control)
    control.say("a", Note(EventKind.DIGEST, control.view.id, control.view.base.step, "aa"))
    control.say("a", exported)
    control.say("b", Note(EventKind.DIGEST, control.view.id, control.view.base.step, "bb"))
    assert len(control.announced(EventKind.DIVERGED)) == 1
    assert not any(isinstance(one, FailedRecord) for one in control.journal)


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


@pytest.mark.parametrize(
    ("relaunches", "after"), [(0, ""), (1, f", after other program errors of worker {ord('b')} (1)")]
)
def test_errors_are_counted_per_worker(relaunches: int, after: str) -> None:
    control = progressed("a", "b", relaunches=relaunches)
    control.say("b", error(signature="one"))
    who = name("b")
    if relaunches:
        assert not isinstance(control.journal[-1], FailedRecord)
        control.seal("a")
        who = f"worker-{ord('b')}-1"
        control.give(ConnectionOpened(9, MemberId("b2"), who), Heard(9, error(signature="two")))
    record = control.journal[-1]
    assert isinstance(record, FailedRecord)
    assert record.reason == f"{who} failed{after}: ValueError: no"


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
    for second in range(1, 6):
        assert said == ()
        master, said = master.handle(second + 0.2, Tick())
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


def test_a_master_that_was_paused_finds_its_journals_answer_behind_other_events() -> None:
    """It was found by a schedule (seed 150898): the storage had answered, and the master ended without a verdict."""
    master, said = AllReduceMaster(settings()).handle(0.0, JournalRead((), 0))
    (append,) = said
    assert isinstance(append, Append)
    master, said = master.handle(60.0, GiveUp("no data", "bad-input"))
    assert said == ()
    # a tick that is overdue may come first, too
    master, said = master.handle(60.0, Tick())
    assert said == ()
    master, said = master.handle(60.0, Appended(append.record))
    (end,) = [one for one in said if isinstance(one, Append)]
    assert isinstance(end.record, FailedRecord)


def test_a_job_that_trains_waits_for_its_journal_and_says_so() -> None:
    control = group("a", "b")
    control.hold = True
    control.give(StopAsked(7, "enough"), Unwritten(FULL))
    said = control.wait_awake(10)
    (reply,) = [one for one in said if isinstance(one, Reply)]
    assert reply.request == 7
    assert FULL in reply.text
    assert FULL in control.master.stuck(control.now)
    assert not any(isinstance(one, End | Tell) for one in said)
    (later,) = [one for one in control.give(StopAsked(8, "enough"), Tick()) if isinstance(one, Reply)]
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
    said = control.wait_awake(10)
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
    said = control.wait_awake(10)
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
