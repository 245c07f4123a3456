"""The tasks of a program in a job, as one worker sees them; process and master are played by the test."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from elasticdl.cluster.cluster import FINISHED, RELEASED
from elasticdl.control.protocol.messages import (
    Acknowledged,
    Data,
    Failed,
    Finished,
    FoundShards,
    MasterMessage,
    MemberMessage,
    ProgramFailed,
    Released,
    TaskKind,
    TaskLeased,
    TaskResult,
)
from elasticdl.control.protocol.psmessages import Leave
from elasticdl.control.protocol.tasking import STATE
from elasticdl.control.protocol.view import MemberId
from elasticdl.data.plan.loopplan import LoopPlan
from elasticdl.errors import BadData, BadSetting, Cancelled
from elasticdl.files.predictions import draft_of, parts_of
from elasticdl.worker.events import Connected, DrainRequested, Exit, ProgramError, Received
from elasticdl.worker.loop.control import Left
from elasticdl.worker.shards.session import JobTasks
from elasticdl.worker.shards.source import Items, Numbers

KEY = b"key"


class Process:
    """What a `MemberProcess` is to a session."""

    def __init__(self, output: Path | None) -> None:
        self.id, self.name = MemberId("0" * 32), "worker-0-1"
        self.spec = SimpleNamespace(output="" if output is None else str(output))
        self.place = SimpleNamespace(key=lambda key: KEY)
        self.heart = SimpleNamespace(set=lambda *beat: None, alive=lambda: None)
        self.data: Future[Data] = Future()
        self.said: list[MemberMessage | ProgramError] = []
        self.left: list[int] = []

    def send(self, message: MemberMessage) -> bool:
        self.said.append(message)
        if isinstance(message, ProgramFailed):
            self.hear(Acknowledged("failed"))
        return True

    def found(self, found: FoundShards) -> None:
        self.send(found)

    def attach(self, feed: Any) -> None:
        self.feed = feed
        feed(Connected())

    def leave(self, ended: Exit) -> int:
        self.left.append(ended.code)
        return ended.code

    def report(self, error: ProgramError) -> Exit:
        self.said.append(error)
        return Exit(1, "")

    def hear(self, *messages: MasterMessage) -> None:
        for message in messages:
            self.feed(Received(message))

    def lease(self, *tasks: int) -> None:
        self.hear(*(TaskLeased(TaskKind.PROCESS, STATE, task, b"") for task in tasks))

    def done(self) -> list[int]:
        return [one.task for one in self.said if isinstance(one, TaskResult)]


class Rig:
    """A session that has 10 records in tasks of 3."""

    def __init__(self, output: Path | None = None, agreed: int = 3) -> None:
        self.process = Process(output)
        anything: Any = self.process
        self.session = JobTasks(anything, lambda ended: None)
        self.process.data.set_result(Data(Numbers(10).shards, (), LoopPlan(10, agreed, 1, shuffle=False)))

    def begin(self) -> Rig:
        self.session.begin(Numbers(10), 3)
        return self


def made(output: Path) -> Path:
    parts = parts_of(draft_of(output, KEY))
    parts.mkdir(parents=True)
    return parts


def test_a_task_is_done_at_the_next_turn_and_the_loop_ends_with_the_job() -> None:
    rig = Rig().begin()
    process, session = rig.process, rig.session
    assert process.said[0] == FoundShards(Numbers(10).shards, (), LoopPlan(10, 3, 1, shuffle=False))
    process.lease(1, 3)
    task = session.next()
    assert task is not None
    assert (task.number, list(task)) == (1, [3, 4, 5])
    assert process.done() == []
    task = session.next()
    assert task is not None
    assert (task.number, list(task)) == (3, [9])
    assert process.done() == [1]
    process.hear(Finished("the job is finished"))
    assert session.next() is None
    assert session.next() is None
    assert (session.finish(), process.left) == (FINISHED, [FINISHED])


def test_a_file_is_there_before_its_task_is_said_to_be_done(tmp_path: Path) -> None:
    parts = made(tmp_path / "out")
    rig = Rig(tmp_path / "out").begin()
    rig.process.lease(0, 1)
    task = rig.session.next()
    assert task is not None
    with task.output(".txt") as path:
        path.write_text("x")
    assert not list(parts.iterdir())
    assert rig.session.next() is not None
    assert [path.name for path in parts.iterdir()] == ["part-00000000.txt"]
    assert rig.process.done() == [0]


def test_tasks_whose_files_are_there_are_done(tmp_path: Path) -> None:
    """Their workers died together with the master that knew of it."""
    (made(tmp_path / "out") / "part-00000002.csv").touch()
    rig = Rig(tmp_path / "out").begin()
    rig.process.lease(2, 3)
    task = rig.session.next()
    assert task is not None
    assert task.number == 3
    assert rig.process.done() == [2]


def test_an_exception_is_told_with_its_task_whose_file_is_dropped(tmp_path: Path) -> None:
    parts = made(tmp_path / "out")
    rig = Rig(tmp_path / "out").begin()
    rig.process.lease(1)
    task = rig.session.next()
    assert task is not None
    Path(task.output()).write_text("half")
    assert rig.session.fail(ValueError("bad")) == 1
    (failed,) = (one for one in rig.process.said if isinstance(one, ProgramFailed))
    assert failed.chunk == "task 1: records 3 to 5 of 'records'"
    assert "ValueError: bad" in failed.traceback
    assert rig.process.done() == []
    assert [path for path in parts.parent.rglob("*") if path.is_file()] == []


def test_leaving_the_loop_early_is_an_error() -> None:
    rig = Rig().begin()
    rig.process.lease(1)
    assert rig.session.next() is not None
    assert rig.session.finish() == 1
    (failed,) = (one for one in rig.process.said if isinstance(one, ProgramFailed))
    assert "before all tasks were done" in failed.traceback


def test_a_worker_that_is_to_leave_finishes_its_task() -> None:
    rig = Rig().begin()
    rig.process.lease(1, 2)
    assert rig.session.next() is not None
    rig.process.feed(DrainRequested())
    assert Leave((), 0) not in rig.process.said
    rig.process.hear(Released("it has left"))
    with pytest.raises(Left) as left:
        rig.session.next()
    assert left.value.code == RELEASED
    assert rig.session.finish() == RELEASED


def test_nothing_of_the_program_runs_after_its_job_has_failed() -> None:
    rig = Rig().begin()
    rig.process.hear(Failed("another worker's program has failed"))
    with pytest.raises(Left) as left:
        rig.session.next()
    assert left.value.code == 1


def test_a_program_that_processes_something_else_is_refused() -> None:
    rig = Rig(agreed=4)
    with pytest.raises(BadSetting, match="processes other records") as refused:
        rig.begin()
    assert rig.session.fail(refused.value) == 1
    error = rig.process.said[-1]
    assert isinstance(error, ProgramError)
    assert error.kind == "bad-input"


@pytest.mark.parametrize("here", [["b.png", "a.png"], ["a.png", "c.png"], ("a.png", b"b.png")])
def test_a_list_of_other_items_is_refused(here: Any) -> None:
    """As every worker lists a folder for itself, in any order; the same list is taken."""
    rig = Rig()
    rig.process.data = Future()
    rig.process.data.set_result(Data(Items(["a.png", "b.png"]).shards, (), LoopPlan(2, 1, 1, shuffle=False)))
    with pytest.raises(BadData, match=r"in another order.*\. Sort what comes from a folder"):
        rig.session.begin(Items(here), 1)
    rig.session.begin(Items(("a.png", "b.png")), 1)


def test_a_job_that_ends_before_its_data_is_known() -> None:
    rig = Rig()
    rig.process.data = Future()
    rig.process.data.set_exception(Cancelled("it was stopped"))
    with pytest.raises(Left):
        rig.begin()


def test_a_program_that_asks_for_no_task() -> None:
    rig = Rig()
    assert rig.session.finish() == 1
    error = rig.process.said[-1]
    assert isinstance(error, ProgramError)
    assert "it never asked for a task" in error.traceback
