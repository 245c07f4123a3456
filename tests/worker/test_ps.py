"""The loop of a worker with parameter servers: what it does at the end of training, with everything around it played."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from elasticdl.catalog.catalog import Initial, InitialKind, Table
from elasticdl.cluster.cluster import RELEASED
from elasticdl.control.protocol.messages import (
    Evicted,
    Exported,
    Failed,
    Finished,
    MasterMessage,
    MemberMessage,
    ProgramFailed,
    Released,
)
from elasticdl.control.protocol.psmessages import EndTraining, Placed, SlotEntry, WriteResult
from elasticdl.control.protocol.view import MemberId
from elasticdl.worker.events import Exit, Received
from elasticdl.worker.ps.machine import PsMember, PsMemberSettings
from elasticdl.worker.ps.pacing import Pacing
from elasticdl.worker.ps.runner import PsWorker
from elasticdl.worker.settings import LoopSettings
from elasticdl.worker.steprecorder import StepRecorder
from tests.simulation.servers.model import SLOTS, TEXT, Adapter, data, model

TASKS = 2
_, ORDER = data(TASKS)


class Played(Adapter):
    """A model that writes down what is done with it."""

    def __init__(self) -> None:
        super().__init__(model(TASKS))
        self.did: list[Any] = []
        self.at_end: Callable[[], None] = lambda: None

    def take(self, variable: int, value: Any) -> None:
        self.did.append("take")

    def end_training(self, steps: int, writes: bool) -> None:
        self.did.append((steps, writes))
        self.at_end()

    def export(self, path: str, kind: str, *reading: Any) -> str:
        self.did.append("export")
        return "digest"


class Rig:
    """A worker, its model, and the client of servers that answer unless they are gone."""

    def __init__(self, acts_at_end: bool = True) -> None:
        self.adapter = Played()
        self.said: list[MemberMessage] = []
        self.at_look: Callable[[], None] = lambda: None
        self.servers_are_there = True
        anything: Any = self
        known = PsMemberSettings(TEXT, acts_at_end, skips_nan=False, resumed=False)
        member = PsMember(MemberId("m"), "worker-0-0", ORDER, Pacing(ORDER, None, 0), known)
        settings = LoopSettings(1.0, "fail", None, "keras", None, 1)
        self.worker = PsWorker(
            member,
            anything.adapter,
            anything,
            anything,
            None,
            None,
            anything,
            self.send,
            settings,
            lambda end: None,
            StepRecorder(self.send),
        )
        self.tell(self.placed(0))

    def placed(self, roll_back: int) -> Placed:
        entries = tuple(SlotEntry(slot, 1 + roll_back, 1 + roll_back, 0, None, 0) for slot in range(SLOTS))
        return Placed((0,), ("unix:/ps",), entries, roll_back, "", None, TASKS)

    def tell(self, *messages: MasterMessage) -> None:
        for message in messages:
            self.worker.feed(Received(message))

    def run(self) -> Exit:
        return self.worker.run()

    def send(self, message: MemberMessage) -> bool:
        self.said.append(message)
        return True

    # ------------------------------------------------------------------ what the loop asks for

    def learn(self, *placement: Any) -> None: ...

    def forget(self) -> None: ...

    def set(self, *beat: int) -> None: ...

    def pull(self, *wish: Any, exact: bool = False) -> int:
        return 1

    def rows(self, ticket: int, timeout: float) -> Any:
        if self.servers_are_there:
            return [], [(0, np.zeros(ORDER.total, np.float32).data)], []
        self.at_look()
        return None

    def notice(self) -> tuple[list[int], bool]:
        return [], False


FINISHED = Finished("done")


def test_training_ends_with_the_weights_of_the_servers_while_another_worker_writes() -> None:
    rig = Rig()
    rig.adapter.at_end = lambda: rig.tell(EndTraining(8), FINISHED)
    rig.tell(EndTraining(7))
    assert rig.run() == Exit(0, "done")
    assert rig.adapter.did == ["take", (7, False)]


def test_training_ends_before_the_result_is_written() -> None:
    rig = Rig()
    rig.adapter.at_end = lambda: rig.tell(FINISHED)
    rig.tell(WriteResult(7, 1))
    assert rig.run() == Exit(0, "done")
    assert rig.adapter.did == ["take", (7, True), "export"]


def test_who_writes_because_another_one_died_does_not_end_again() -> None:
    rig = Rig()
    rig.adapter.at_end = lambda: rig.tell(WriteResult(7, 2), FINISHED)
    rig.tell(EndTraining(7))
    assert rig.run() == Exit(0, "done")
    assert [one for one in rig.adapter.did if one != "take"] == [(7, False), "export"]


def test_training_ends_if_the_result_was_there_first() -> None:
    rig = Rig()
    rig.tell(FINISHED)
    assert rig.run() == Exit(0, "done")
    assert rig.adapter.did == [(0, False)]


def test_servers_that_are_gone_do_not_keep_training_from_its_end() -> None:
    rig = Rig()
    rig.servers_are_there = False
    rig.at_look = lambda: rig.tell(FINISHED)
    rig.tell(EndTraining(7))
    assert rig.run() == Exit(0, "done")
    assert rig.adapter.did == [(7, False)]


def test_an_end_that_was_told_before_a_roll_back_is_none() -> None:
    rig = Rig()
    rig.tell(EndTraining(7), rig.placed(1), Failed("no"))
    assert rig.run() == Exit(1, "no")
    assert rig.adapter.did == []


@pytest.mark.parametrize("verdict", [Evicted("silent"), Failed("no")])
def test_who_is_not_there_at_the_end_has_none(verdict: MasterMessage) -> None:
    rig = Rig()
    rig.tell(verdict)
    rig.run()
    assert rig.adapter.did == []


def test_servers_are_not_asked_where_no_callback_waits_for_the_end() -> None:
    rig = Rig(acts_at_end=False)
    rig.servers_are_there = False
    rig.at_look = lambda: pytest.fail("asked")
    rig.tell(EndTraining(7), FINISHED)
    assert rig.run() == Exit(0, "done")


@pytest.mark.parametrize(
    ("told", "meanwhile", "failures"), [(EndTraining(7), (FINISHED,), 1), (FINISHED, (), 0)]
)
def test_a_callback_that_fails_at_the_end_is_an_error_of_the_program_unless_the_result_is_there(
    told: MasterMessage, meanwhile: tuple[MasterMessage, ...], failures: int
) -> None:
    rig = Rig()

    def fail() -> None:
        rig.tell(*meanwhile)
        raise RuntimeError("the user's callback fails")

    rig.adapter.at_end = fail
    rig.tell(told)
    assert rig.run() == Exit(0, "done")
    assert len([one for one in rig.said if isinstance(one, ProgramFailed)]) == failures
    assert len([one for one in rig.adapter.did if one != "take"]) == 1


def test_a_result_that_a_roll_back_has_made_void_is_given_up_while_it_is_read() -> None:
    rig = Rig()

    def export(path: str, kind: str, tables: Any) -> str:
        rig.servers_are_there = False
        rig.at_look = lambda: rig.tell(rig.placed(1), Released("bye"))
        next(tables.matrix(0, 4))
        pytest.fail("it has read rows that never came")

    rig.adapter.catalog.tables = (Table("ids", 4, Initial(InitialKind.CONSTANT, 0.0)),)
    rig.adapter.export = export  # type: ignore[method-assign]
    rig.tell(WriteResult(7, 1))
    assert rig.run() == Exit(RELEASED, "bye")
    assert not [one for one in rig.said if isinstance(one, ProgramFailed | Exported)]
