"""The end of a job with parameter servers: accounts, the result, and failures."""

from __future__ import annotations

from typing import Any

import pytest

from elasticdl.control.protocol.frozen import replace
from elasticdl.control.protocol.messages import (
    Failed,
    Finished,
    ProgramFailed,
)
from elasticdl.control.protocol.psmessages import (
    AccountsWanted,
    EndTraining,
    Holding,
    Leave,
    Settled,
    TaskDone,
    WriteResult,
)
from elasticdl.control.protocol.status import EventKind
from elasticdl.master.core import events
from elasticdl.master.core.done import TaskNumber
from elasticdl.master.core.records import (
    DoneRecord,
    FailedRecord,
    FinishedRecord,
)
from tests.master.psrig import Rig, accounts_of, result, train_all


def test_the_job_ends_when_all_is_done_accounted_for_and_written() -> None:
    rig = Rig()
    rig.start("worker-0-1")
    train_all(rig)
    assert rig.heard("ps-0-1", AccountsWanted) == [AccountsWanted()]
    (wanted,) = rig.heard("worker-0-1", WriteResult)
    assert wanted == WriteResult(20, 1)
    rig.say("worker-0-1", result(20, 1))
    rig.say("ps-0-1", accounts_of(rig, 0))
    assert not isinstance(rig.journal[-1], FinishedRecord)
    rig.say("ps-1-1", accounts_of(rig, 1))
    assert isinstance(rig.journal[-1], FinishedRecord)
    assert rig.heard("worker-0-1", Finished)
    assert rig.heard("ps-0-1", Finished)
    assert events.Publish(result(20, 1).path) in rig.out
    assert rig.master.work.has_used_all_data


def test_another_worker_writes_the_result_if_the_first_one_dies() -> None:
    rig = Rig()
    rig.start("worker-0-1")
    train_all(rig)
    rig.say("ps-0-1", accounts_of(rig, 0))
    rig.say("ps-1-1", accounts_of(rig, 1))
    rig.die("worker-0-1")
    (lost,) = rig.announced(EventKind.LOST)
    assert lost.text == (
        "worker-0-1 has ended: killed by SIGKILL; nothing is left to train, and another one writes the model"
    )
    rig.connect("worker-1-1")
    assert rig.heard("worker-1-1", WriteResult) == [WriteResult(20, 2)]
    rig.say("worker-1-1", result(20, 1))
    assert not isinstance(rig.journal[-1], FinishedRecord)
    rig.say("worker-1-1", result(20, 2))
    end = rig.journal[-1]
    assert isinstance(end, FinishedRecord)
    assert end.path == result(20, 2).path


def test_training_ends_in_the_workers_that_do_not_write() -> None:
    rig = Rig()
    rig.start("worker-0-1", "worker-1-1")
    rig.connect("worker-2-1")
    rig.finish("worker-0-1", *range(9))
    assert rig.heard("worker-1-1", EndTraining) == []
    rig.say("worker-2-1", Leave((), 0))
    rig.finish("worker-0-1", 9)
    assert rig.heard("worker-0-1", WriteResult) == [WriteResult(20, 1)]
    assert rig.heard("worker-1-1", EndTraining) == [EndTraining(20)]
    assert rig.heard("worker-0-1", EndTraining) == []
    assert rig.heard("worker-2-1", EndTraining) == []  # it has left
    rig.tick()
    assert rig.heard("worker-1-1", EndTraining) == []
    rig.connect("worker-3-1")
    assert rig.heard("worker-3-1", EndTraining) == [EndTraining(20)]


def test_a_worker_that_dies_at_the_end_keeps_nobody_from_it() -> None:
    rig = Rig()
    rig.start("worker-0-1", "worker-1-1", "worker-2-1")
    rig.finish("worker-0-1", *range(10))
    rig.say("ps-0-1", accounts_of(rig, 0))
    rig.say("ps-1-1", accounts_of(rig, 1))
    rig.die("worker-0-1")
    assert rig.heard("worker-1-1", WriteResult) == [WriteResult(20, 2)]
    assert EndTraining(20) in rig.heard("worker-2-1", EndTraining)
    rig.die("worker-2-1")
    rig.say("worker-1-1", result(20, 2))
    assert isinstance(rig.journal[-1], FinishedRecord)


def test_the_next_master_says_the_end_again_and_after_the_result_that_alone() -> None:
    rig = Rig()
    rig.start("worker-0-1", "worker-1-1")
    rig.finish("worker-0-1", *range(10))
    rig.begin()
    for name in ("ps-0-1", "ps-1-1"):
        rig.connect(name, server=int(name[3]))
    rig.connect("worker-0-1")
    rig.connect("worker-1-1")
    assert rig.heard("worker-1-1", EndTraining) == [EndTraining(20)]
    rig.say("ps-0-1", accounts_of(rig, 0))
    rig.say("ps-1-1", accounts_of(rig, 1))
    rig.say("worker-0-1", result(20, 1))
    rig.begin()
    rig.connect("worker-1-1")
    assert rig.heard("worker-1-1", Finished)
    assert rig.heard("worker-1-1", EndTraining) == []


def test_training_that_begins_anew_after_its_end_ends_again_for_those_who_had_none() -> None:
    rig = Rig(replicas=1)
    rig.start("worker-0-1", "worker-1-1")
    rig.finish("worker-0-1", *range(10))
    rig.heard("worker-1-1", EndTraining)
    rig.die("ps-0-1")
    assert not rig.master.ends
    assert rig.heard("worker-1-1", EndTraining) == []
    rig.finish("worker-0-1", *range(10))
    assert rig.heard("worker-1-1", EndTraining) == [EndTraining(20)]


def test_a_stopped_job_writes_what_there_is_when_nobody_computes() -> None:
    rig = Rig()
    rig.start("worker-0-1", "worker-1-1")
    rig.say("worker-0-1", Settled(0, 1, 0, 0.5))
    rig.event(events.StopAsked(1, "enough"))
    assert rig.heard("worker-0-1", WriteResult) == []
    rig.say("worker-0-1", Leave((Holding(0, 1), Holding(1, 0)), 0))
    assert not rig.master.ends
    rig.say("worker-1-1", Leave((), 0))
    assert rig.heard("worker-0-1", WriteResult) == [WriteResult(1, 1)]


def test_a_stopped_job_writes_when_what_is_reported_is_journalled() -> None:
    rig = Rig()
    rig.start("worker-0-1", "worker-1-1")
    rig.event(events.StopAsked(1, "enough"))
    rig.say("worker-1-1", Leave((), 0))
    rig.say("worker-0-1", TaskDone(0, 0))
    assert rig.journal[-1] == DoneRecord((0,), 0)  # nobody waits for a batch then
    assert rig.heard("worker-0-1", WriteResult) == []
    rig.say("worker-0-1", Leave((Holding(1, 0),), 0))
    order = rig.master.work.order
    assert order is not None
    assert rig.heard("worker-0-1", WriteResult) == [WriteResult(order.chunks(TaskNumber(0)), 1)]


def test_an_error_of_the_program_fails_the_job_before_its_first_step() -> None:
    rig = Rig()
    rig.start("worker-0-1")
    rig.say("worker-0-1", ProgramFailed("program", "ValueError at m.py", "", "ValueError: no"))
    assert isinstance(rig.journal[-1], FailedRecord)
    assert rig.heard("worker-0-1", Failed)


def test_what_a_worker_failed_with_is_said_of_its_end() -> None:
    rig = Rig()
    rig.start("worker-0-1", "worker-1-1")
    rig.finish("worker-0-1", 0)
    rig.say("worker-0-1", ProgramFailed("program", "ValueError at m.py", "", "ValueError: no", 2))
    rig.die("worker-0-1")
    rig.die("worker-1-1")
    assert [lost.text for lost in rig.announced(EventKind.LOST)] == [
        "worker-0-1 is lost: it failed (ValueError at m.py); others continue with its tasks",
        "worker-1-1 is lost: killed by SIGKILL; its next life continues with its tasks",
    ]


@pytest.mark.parametrize("where", ["worker-0-2", "worker-1-1"])
def test_the_same_error_again_fails_the_job_and_says_who_had_it_before(where: str) -> None:
    rig = Rig()
    rig.start("worker-0-1", "worker-1-1")
    rig.finish("worker-0-1", 0)
    rig.say("worker-0-1", ProgramFailed("program", "ValueError at m.py", "", "ValueError: no", 2))
    rig.die("worker-0-1")
    if where not in rig.connections:
        rig.connect(where)
    rig.say(where, ProgramFailed("program", "ValueError at m.py", "", "ValueError: no", 2))
    end = rig.journal[-1]
    assert isinstance(end, FailedRecord)
    assert end.reason == f"{where} failed with the error that worker-0-1 had before: ValueError: no"


def test_what_cannot_be_written_is_all_that_is_said_when_it_fails_the_job() -> None:
    rig = Rig()
    rig.start("worker-0-1", "worker-1-1")
    rig.finish("worker-0-1", 0)
    full = ProgramFailed("unwritable", "no space", "", "no space; free some", 2)
    rig.say("worker-0-1", full)
    assert not isinstance(rig.journal[-1], FailedRecord)
    rig.say("worker-1-1", full)
    end = rig.journal[-1]
    assert isinstance(end, FailedRecord)
    assert end.reason == "no space; free some"


def test_the_same_numbers_come_of_the_journal_alone() -> None:
    rig = Rig(servers=3)
    rig.start("worker-0-1")
    rig.finish("worker-0-1", 1)
    rig.die("ps-2-1")
    before: Any = rig.master.journal
    rig.begin()
    assert replace(rig.master.journal, length=0, epoch=0) == replace(before, length=0, epoch=0)
    assert rig.master.work.steps == 2
