"""A worker that evaluates or predicts knows the task after the one that it does, and reads its records meanwhile."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from elasticdl.control.protocol.messages import TaskKind, TaskLeased, TaskResult
from elasticdl.control.protocol.tasking import STATE
from elasticdl.control.protocol.view import MemberId, StateId, ViewId
from elasticdl.data.plan.onepass import OnePass
from elasticdl.data.plan.shard import Shard
from elasticdl.data.prefetch import ChunkSource
from elasticdl.worker.allreduce.gate import StateGate
from elasticdl.worker.events import (
    ChunkEvaluated,
    ComputeMetrics,
    Connected,
    Disconnected,
    Evaluate,
    Received,
    Send,
    WorkCancelled,
)
from elasticdl.worker.tasking.machine import ChunkDone, DoChunk, MakeMetrics, TaskEvent, TaskMember

PLAN = OnePass([Shard("data", 0, 50)], 10, 2)
"""Tasks of 2, 2 and 1 minibatches."""
METRICS = TaskLeased(TaskKind.METRICS, STATE, 0, b"sums")


def task(number: int, state: StateId = STATE) -> TaskLeased:
    return TaskLeased(TaskKind.EVALUATE, state, number, b"")


class Rig:
    """A worker, and what it was told to do last."""

    def __init__(self) -> None:
        self.member = TaskMember(MemberId("m"), "worker-0-1", "a sum")
        self.did: list[Any] = []

    def take(self, *events: TaskEvent) -> list[Any]:
        self.did = []
        for event in events:
            self.member, out = self.member.handle(event)
            self.did += out
        return self.did


def test_minibatches_of_the_next_task_follow_those_of_a_task() -> None:
    assert PLAN.keys(0, 1, None, 4) == [(0, 1, 0)]
    assert PLAN.keys(0, 1, 2, 4) == [(0, 1, 0), (0, 4, 0)]
    assert PLAN.keys(0, 0, 1, 3) == [(0, 0, 0), (0, 1, 0), (0, 2, 0)]
    with pytest.raises(IndexError):
        PLAN.keys(0, 0, 3, 4)


def test_the_next_task_is_read_while_the_last_minibatch_of_one_is_done() -> None:
    read = {number: threading.Event() for number in range(5)}

    def read_one(one: Any, records: list[int]) -> list[int]:
        read[one.id].set()
        return records

    reader: Any = SimpleNamespace(read=read_one)
    source = ChunkSource(reader, PLAN, lambda records: records, 4)
    source.want(keys := PLAN.keys(0, 1, 1, 4))
    assert source.get(keys[0])[0] == 10
    assert all(read[number].wait(30) for number in (2, 3)), "both minibatches of task 1"
    source.close()


def test_tasks_are_done_in_their_order_and_the_next_one_without_a_word_of_the_master() -> None:
    rig = Rig()
    assert rig.take(Received(task(3))) == [DoChunk(TaskKind.EVALUATE, 3, 0, None)]
    assert rig.take(Received(task(5))) == []
    assert rig.take(ChunkDone(3, 0, None)) == [DoChunk(TaskKind.EVALUATE, 3, 1, 5)]
    result = TaskResult(STATE, 3, b"three")
    assert rig.take(ChunkDone(3, 1, b"three")) == [Send(result), DoChunk(TaskKind.EVALUATE, 5, 0, None)]
    assert rig.take(Received(task(3)), ChunkDone(5, 0, b"five"))[-1] == Send(result), "as it knows it"


def test_a_new_connection_forgets_both_tasks() -> None:
    rig = Rig()
    rig.take(Received(task(3)), Received(task(5)))
    rig.take(Disconnected(), Connected())
    assert rig.take(ChunkDone(3, 0, None)) == []
    assert rig.take(Received(task(6))) == [DoChunk(TaskKind.EVALUATE, 6, 0, None)]


def test_metrics_are_made_at_once_although_somebody_else_was_faster_with_both_tasks() -> None:
    rig = Rig()
    rig.take(Received(task(3)), Received(task(5)))
    assert rig.take(Received(METRICS)) == []
    assert rig.take(ChunkDone(3, 0, None)) == [MakeMetrics(b"sums")]


def test_at_a_gate_the_next_task_begins_when_the_first_is_done() -> None:
    state = StateId(4, ViewId(2))
    gate = StateGate(state).leased(task(3, state)).leased(task(5, state))
    assert gate.work() == Evaluate(state, 3, 0, 5)
    gate = gate.with_chunk(ChunkEvaluated(state, 3, 0, None))
    assert gate.work() == Evaluate(state, 3, 1, 5)
    gate = gate.with_chunk(ChunkEvaluated(state, 3, 1, b"x"))
    assert gate.work() == Evaluate(state, 5, 0, None)
    assert gate.leased(TaskLeased(TaskKind.METRICS, state, 0, b"y")).work() == ComputeMetrics(state, b"y")
    assert gate.told(ViewId(3)).work() is None, "it is leased anew"
    assert gate.leased(task(6, StateId(4, ViewId(1)))) == gate, "of another state"


def test_a_cancelled_minibatch_is_done_again_before_the_next_task() -> None:
    rig = Rig()
    rig.take(Received(task(3)), Received(task(5)))
    assert rig.take(WorkCancelled()) == [DoChunk(TaskKind.EVALUATE, 3, 0, 5)]
