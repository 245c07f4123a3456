"""The plan of an evaluation: every record of the validation data once, in tasks that depend on nothing but the data."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticdl.data.plan.evaluation import MOST_TASKS, EvaluationPlan
from elasticdl.data.plan.ledger import Ledger
from elasticdl.data.plan.schedule import Schedule
from elasticdl.data.plan.shard import Position, Shard
from elasticdl.errors import BadData, BadSetting

sizes = st.lists(st.integers(0, 30), min_size=1, max_size=5).filter(any)


@given(sizes, st.integers(1, 12), st.integers(1, 7))
def test_all_tasks_together_have_every_record_once_in_the_order_of_the_data(
    counts: list[int], minibatch: int, most: int
) -> None:
    shards = [Shard(f"s{i}", 10 * i, count) for i, count in enumerate(counts)]
    plan = EvaluationPlan(shards, minibatch, 1, False, most_tasks=most)
    assert 1 <= plan.num_tasks <= most
    seen = []
    for task in range(plan.num_tasks):
        for chunk in range(plan.num_chunks(task)):
            part = plan.task_by_id(0, plan.number(task, chunk))
            assert 1 <= part.count <= minibatch
            seen += [(part.shard.name, record) for record in plan.chunk(part, 0).tolist()]
    assert seen == [(s.name, record) for s in shards for record in range(s.start, s.start + s.count)]


@pytest.mark.parametrize("bad", [Shard("a", -1, 4), Shard("a", 0, -4), Shard("a", 0, 4, 0)])
def test_numbers_that_no_shard_has_are_refused(bad: Shard) -> None:
    with pytest.raises(BadData, match="shard 'a'"):
        EvaluationPlan([Shard("b", 0, 9), bad], 4)


def test_there_are_so_many_tasks_at_most() -> None:
    plan = EvaluationPlan([Shard("big", 0, 10**9)], 32, 1, False)
    assert MOST_TASKS // 2 < plan.num_tasks <= MOST_TASKS


@pytest.mark.parametrize(
    ("records", "tasks"), [(7, 7), (64, 32), (128, 32), (256, 32), (2048, 256), (100_000, 1021)]
)
def test_tasks_are_of_several_minibatches_where_there_are_many(records: int, tasks: int) -> None:
    assert EvaluationPlan([Shard("v", 0, records)], 1).num_tasks == tasks


@pytest.mark.parametrize("task", [-1, 3])
def test_a_task_that_there_is_not_is_refused(task: int) -> None:
    plan = EvaluationPlan([Shard("a", 0, 9)], 4, 1, False)
    assert [plan.num_chunks(one) for one in range(3)] == [1, 1, 1]
    with pytest.raises(IndexError):
        plan.num_chunks(task)
    with pytest.raises(IndexError):
        plan.number(0, 1)
    with pytest.raises(IndexError):
        plan.task_by_id(0, task)


def test_nothing_to_evaluate_is_refused() -> None:
    with pytest.raises(BadData, match="2 shards, all empty"):
        EvaluationPlan([Shard("a", 0, 0), Shard("b", 0, 0)], 4, 1, False)
    with pytest.raises(BadSetting, match="minibatch"):
        EvaluationPlan([Shard("a", 0, 1)], 0, 1, False)


def schedule(every: int, at_epoch_end: bool, max_step: int = 0) -> Schedule:
    plan = EvaluationPlan([Shard("v", 0, 8)], 4, every, at_epoch_end)
    return Schedule(Ledger([Shard("t", 0, 24)], 8, 4, 0, False), 2, max_step, plan)


def gates(schedule: Schedule) -> list[int]:
    """Return the steps of one worker after which there is an evaluation."""
    position, step, found = schedule.start(1), 0, []
    while not schedule.ended(position, step):
        position, step = schedule.advance(position, 1), step + 1
        if schedule.is_gate(position, step):
            found.append(step)
    return found


@pytest.mark.parametrize(
    ("every", "at_epoch_end", "max_step", "wanted"),
    [
        (5, False, 0, [5, 10, 12]),
        (5, True, 0, [5, 6, 10, 12]),
        (0, True, 0, [6, 12]),
        (0, False, 0, [12]),
        (4, False, 7, [4, 7]),
    ],
)
def test_evaluations_follow_these_steps(
    every: int, at_epoch_end: bool, max_step: int, wanted: list[int]
) -> None:
    assert gates(schedule(every, at_epoch_end, max_step)) == wanted


def test_nothing_is_evaluated_before_the_first_step_or_without_validation_data() -> None:
    assert not schedule(1, True).is_gate(Position(0, 0, 1, 0), 0)
    plain = Schedule(Ledger([Shard("t", 0, 24)], 8, 4, 0, False), 2, 0)
    assert gates(plain) == []
