"""Barriers of jobs with parameter servers, compared with a walk over all tasks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticdl.data.plan.barriers import Barriers
from elasticdl.data.plan.evaluation import EvaluationPlan
from elasticdl.data.plan.ledger import Ledger
from elasticdl.data.plan.shard import Shard
from elasticdl.data.plan.tasks import ENDLESS, TaskOrder


def barriers_of(
    records: int,
    epochs: int,
    max_step: int,
    wave: int,
    every: int,
    at_epoch_end: bool,
    follows: bool = False,
    evaluates: bool = True,
) -> tuple[TaskOrder, Barriers]:
    plan = EvaluationPlan([Shard("v", 0, 8)], 4, every, at_epoch_end) if evaluates else None
    order = TaskOrder(Ledger([Shard("t", 0, records)], 8, 4, 0, True), epochs, max_step, wave, plan)
    return order, Barriers(order, follows=follows)


def walk(barriers: Barriers) -> list[int]:
    """Return all barriers, one after the other."""
    found, last = [], barriers.following(0)
    while last is not None:
        found.append(last)
        last = barriers.following(last)
    return found


@given(
    st.integers(1, 90),
    st.integers(1, 3),
    st.integers(0, 40),
    st.integers(1, 5),
    st.integers(0, 9),
    st.booleans(),
)
def test_barriers_are_the_first_tasks_or_waves_at_or_after_each_so_many_steps_and_of_epochs(
    records: int, epochs: int, max_step: int, wave: int, every: int, at_epoch_end: bool
) -> None:
    order, barriers = barriers_of(records, epochs, max_step, wave, every, at_epoch_end)
    starts = [number for number in range(order.total) if order.wave_of(number).start == number]
    expected, before = [], 0
    for number in (*starts[1:], order.total):
        steps = order.steps_before(number)
        reached = every > 0 and steps // every > before // every
        begins_epoch = at_epoch_end and number % order.ledger.num_tasks == 0
        if reached or begins_epoch or number == order.total:
            expected.append(number)
        before = steps
    assert walk(barriers) == expected
    assert [number for number in range(order.total + 2) if barriers.has(number)] == expected
    for number in range(order.total + 1):
        steps = order.steps_before(number)
        is_first = number == order.total or order.wave_of(number).start == number
        if is_first and steps:
            assert barriers.at_step(steps, order.total) == (number if number in expected else None)
            assert barriers.at_step(steps, number - 1) is None
    assert barriers.at_step(order.steps_before(order.total) + 1, order.total) is None
    assert barriers.at_step(0, order.total) is None


@pytest.mark.parametrize("wave", [1, 4])
def test_a_job_without_an_end_has_a_next_barrier(wave: int) -> None:
    order, barriers = barriers_of(80, 0, 0, wave, 0, False)
    assert order.total == ENDLESS
    assert barriers.following(7) == ENDLESS
    _, barriers = barriers_of(80, 0, 0, wave, 6, True)
    assert barriers.following(0) == (3 if wave == 1 else 10)
    assert barriers.following(1000) == (1002 if wave == 1 else 1010)
    assert barriers.at_step(1 << 62, 100) is None


@given(
    st.integers(1, 90), st.integers(1, 3), st.integers(0, 40), st.integers(1, 5), st.integers(0, 9), st.booleans()
)  # fmt: skip
def test_where_callbacks_follow_epochs_their_ends_are_barriers_too_and_others_are_evaluated_as_before(
    records: int, epochs: int, max_step: int, wave: int, every: int, at_epoch_end: bool
) -> None:
    known = records, epochs, max_step, wave, every, at_epoch_end
    order, without = barriers_of(*known)
    _, following = barriers_of(*known, follows=True)
    _, alone = barriers_of(*known, follows=True, evaluates=False)
    ends = [number for number in range(1, order.total + 1) if number % order.ledger.num_tasks == 0]
    assert walk(alone) == sorted({*ends, order.total})
    assert walk(following) == sorted({*walk(without), *ends})
    assert [one for one in walk(following) if following.evaluates(one)] == walk(without)
    assert not any(map(alone.evaluates, walk(alone)))
    for barrier in walk(following):
        epoch, ended = following.epoch(barrier)
        assert epoch == order.epoch(barrier - 1)
        assert ended == (barrier in ends and barrier - 1 not in order.partial)


def test_a_job_that_neither_evaluates_nor_has_callbacks_waits_nowhere() -> None:
    _, barriers = barriers_of(80, 2, 0, 1, 0, True, evaluates=False)
    assert walk(barriers) == []
