"""What a master takes of what members say at a gate."""

from __future__ import annotations

from typing import Any

import pytest

from elasticdl.control.protocol.messages import (
    AtGate,
    Evaluated,
    GateOpen,
    TaskKind,
    TaskLeased,
    TaskResult,
)
from elasticdl.control.protocol.view import StateId, ViewId
from elasticdl.data.plan.evaluation import EvaluationPlan
from elasticdl.data.plan.schedule import Schedule
from elasticdl.data.plan.shard import Shard
from elasticdl.master.core.events import (
    Refuse,
)
from elasticdl.master.core.records import (
    EvaluatedRecord,
)
from tests.master.grouprig import S1, SCHEDULE, Control, group


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
