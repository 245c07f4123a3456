"""What an event costs a master: counted in instructions of the interpreter, which are the same on every machine."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any

import pytest

from elasticdl.control.protocol.messages import Register, Report
from elasticdl.control.protocol.psmessages import Enroll, FoundModel, Settled, TaskDone
from elasticdl.control.protocol.view import MemberId, ViewId
from elasticdl.data.plan.ledger import Ledger
from elasticdl.data.plan.schedule import Schedule
from elasticdl.data.plan.shard import Shard
from elasticdl.data.plan.tasks import TaskOrder
from elasticdl.master.allreduce import machine as allreduce
from elasticdl.master.allreduce.machine import AllReduceMaster
from elasticdl.master.core import machine as core
from elasticdl.master.core.events import (
    Append,
    Appended,
    Beat,
    ConnectionOpened,
    DataFound,
    Event,
    Heard,
    JournalRead,
    Tick,
)
from elasticdl.master.core.machine import MasterCore
from elasticdl.master.ps.machine import PsMaster
from elasticdl.master.ps.reported import BATCH_SECONDS
from elasticdl.master.ps.settings import Settings
from tests.master.models import model_of

SHARDS = (Shard("data", 0, 80_000),)
TIMES: dict[str, Any] = {"minimum": 1, "relaunches": 1}
LONG = 6.0
"""Seconds after the last record in which a master that waits looks whether it is still in charge."""


def ledger() -> Ledger:
    """Return a ledger of one job alone: it keeps what was looked up, which is no cheaper for more slots."""
    return Ledger(SHARDS, 8, 4, 1, False)


class Job:
    """A master whose journal takes everything at once."""

    def __init__(self, master: MasterCore) -> None:
        self.master = master
        self.now = 0.0
        self.connections = 0
        self.give(JournalRead((), 0), DataFound(SHARDS))

    def give(self, *events: Event) -> None:
        waiting = list(events)
        while waiting:
            self.master, said = self.master.handle(self.now, waiting.pop(0))
            waiting += [Appended(one.record) for one in said if isinstance(one, Append)]

    def connect(self, name: str, message: Any) -> int:
        self.connections += 1
        self.give(ConnectionOpened(self.connections, MemberId(name), name), Heard(self.connections, message))
        return self.connections

    def cost(self, *events: Event) -> int:
        """Return how many instructions the interpreter needs to take events."""
        return instructions(lambda: self.give(*events))


def instructions(call: Callable[[], None]) -> int:
    count = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal count
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return count


def with_servers(slots: int, replicas: int, wave: int) -> tuple[Job, int]:
    """Return a job that trains, with one worker's connection; `wave`: tasks whose gradients make steps together, 0: none do."""
    settings = Settings(
        workers=1,
        plan=lambda *_: TaskOrder(ledger(), 1, 0, max(1, wave)),
        servers=4,
        replicas=replicas,
        accumulates=wave > 0,
        **TIMES,
    )
    job = Job(PsMaster(settings))
    for name in (f"ps-{index}-1" for index in range(4)):
        job.connect(name, Enroll(MemberId(name), name, f"unix:/{name}", 0, None, (), 0, False))
    worker = MemberId("worker-0-1")
    connection = job.connect(worker, Enroll(worker, worker, "", 0, None, (), 0, False))
    job.give(Heard(connection, FoundModel(model_of(slots))))
    for name in (*(f"ps-{index}-1" for index in range(4)), worker):
        job.give(Beat(MemberId(name), 0, 0, 0, 0.0))
    assert len(job.master.journal.entries) == slots
    job.give(Tick())
    return job, connection


@pytest.mark.parametrize(("replicas", "wave"), [(1, 0), (2, 0), (2, 2)])
def test_an_event_costs_the_same_however_many_slots_there_are(replicas: int, wave: int) -> None:
    costs = []
    for slots in (16, 16, 1024):  # the first time it is found out, and kept, what messages consist of
        job, connection = with_servers(slots, replicas, wave)
        events: dict[str, tuple[Event, ...]] = {
            "time": (Tick(),),
            "a chunk": (Heard(connection, Settled(0, 1, 0, 0.5)),),
            "a task": (Heard(connection, TaskDone(0, 0)),),
            "a record": (Tick(),),
            "a beat": (Beat(MemberId("ps-0-1"), 0, 0, 0, 0.0), Tick()),
        }
        cost = {}
        for what, given in events.items():
            job.now += BATCH_SECONDS
            cost[what] = job.cost(*given)
        costs.append(cost)
        assert isinstance(job.master, PsMaster)
        assert 0 in job.master.journal.done
    assert costs[1] == costs[2]


def test_a_worker_that_enrolls_is_news_to_servers_and_to_no_other_worker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job, _ = with_servers(16, replicas=2, wave=0)
    looked_at: set[int] = set()
    tell_one = PsMaster._tell_one

    def look(self: PsMaster, now: float, connection: int, *others: Any) -> Any:
        looked_at.add(connection)
        return tell_one(self, now, connection, *others)

    monkeypatch.setattr(PsMaster, "_tell_one", look)
    for name in map(MemberId, ("worker-1-1", "worker-2-1")):
        looked_at.clear()
        new = job.connect(name, Enroll(name, name, "", 0, None, (), 0, False))
    servers = {connection for connection, link in job.master.links.items() if link.is_server}
    assert looked_at == servers | {new}


def begin(number: int, later: float = 0.0, members: int = 0) -> int:
    """Return what it costs when so many workers register.

    Args:
        number: how many.
        later: seconds from one to the next.
        members: of a group that trains already; 0: they begin together, and all are needed.
    """
    schedule = Schedule(ledger(), num_epochs=1, max_step=0)
    settings = allreduce.Settings(
        workers=members or number,
        minimum=members or number,
        relaunches=1,
        plan=lambda *_: schedule,
        policy_lanes=lambda members: members,
    )
    job = Job(AllReduceMaster(settings))
    blank = Report(ViewId(0), ViewId(0), None, None, frozenset(), False)

    def register(names: Iterable[str]) -> None:
        for name in map(MemberId, names):
            job.connect(name, Register(name, name, f"unix:/{name}", 0, blank))
            job.now += later

    register(f"worker-{index}-1" for index in range(members))
    job.now += LONG
    job.give(*(Beat(MemberId(f"worker-{index}-1"), 1, 1, 1, 0.0) for index in range(members)))
    cost = instructions(lambda: register(f"worker-{members + index}-1" for index in range(number)))
    master = job.master
    assert isinstance(master, AllReduceMaster)
    assert master.journal.view is not None
    assert len(master.journal.view.members) == (members or number)
    assert len(master.liveness.joiners(master)) == (number if members else 0)
    return cost


@pytest.mark.parametrize("how", [{}, {"later": 0.2}, {"members": 1}], ids=["together", "slowly", "later"])
def test_workers_that_join_cost_as_much_each_however_many_there_are(how: dict[str, Any]) -> None:
    assert begin(200, **how) < 2.5 * begin(100, **how)


def test_nobody_waits_for_what_others_must_hear(monkeypatch: pytest.MonkeyPatch) -> None:
    """What one connection is told at once and all others at the next tick, all are told by then."""
    told: list[int] = []
    monkeypatch.setattr(
        core.MasterCore,
        "_tell",
        lambda self, connection, message, out: told.append(connection),
    )
    job = Job(
        AllReduceMaster(
            allreduce.Settings(
                workers=2, plan=lambda *_: Schedule(ledger(), 1, 0), policy_lanes=lambda _: 1, **TIMES
            )
        )
    )
    blank = Report(ViewId(0), ViewId(0), None, None, frozenset(), False)
    for name in map(MemberId, ("worker-0-1", "worker-1-1")):
        job.connect(name, Register(name, name, f"unix:/{name}", 0, blank))
    told.clear()
    joiner = MemberId("worker-2-1")
    job.connect(joiner, Register(joiner, joiner, "unix:/c", 0, blank))
    assert {1, 2} <= set(told)  # somebody joins: the others stop at the next step boundary
