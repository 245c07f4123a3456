"""The row of all tasks: the same as the ledger's epochs one after the other, cut where `max_step` says."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticdl.data.plan.ledger import Ledger
from elasticdl.data.plan.shard import Shard
from elasticdl.data.plan.tasks import ENDLESS, TaskOrder

counts = st.lists(st.integers(0, 50), min_size=1, max_size=4).filter(any)


def order_of(counts: list[int], epochs: int, max_step: int, wave: int = 1) -> TaskOrder:
    shards = [Shard(f"s{index}", 0, count) for index, count in enumerate(counts)]
    return TaskOrder(Ledger(shards, 12, 4, 3, True), epochs, max_step, wave)


@given(counts, st.integers(1, 3), st.integers(0, 60), st.integers(1, 7))
def test_sums_are_those_of_the_tasks(counts: list[int], epochs: int, max_step: int, wave: int) -> None:
    order = order_of(counts, epochs, max_step, wave)
    steps = records = 0
    for number in range(order.total):
        tasks = order.wave_of(number)
        assert number in tasks
        assert len(tasks) == wave or tasks.stop % order.ledger.num_tasks == 0
        assert (order.steps_before(number), order.records_before(number)) == (steps, records)
        assert order.task(number).epoch == order.epoch(number)
        records += order.records(number)
        if number == tasks[-1]:
            steps += max(map(order.chunks, tasks))
    assert (order.steps_before(order.total), order.records_before(order.total)) == (steps, records)
    whole = order_of(counts, epochs, 0, wave)
    assert whole.records_before(whole.total) == whole.total_records == epochs * sum(counts)
    all_steps = whole.steps_before(whole.total)
    assert steps == (min(max_step, all_steps) if max_step else all_steps)
    assert order.is_cut() == (0 < max_step < all_steps)
    short = {task for task in range(order.total) if order.chunks(task) < whole.chunks(task)}
    assert set(order.partial) == (set(order.wave_of(order.total - 1)) if short else set())
    assert short <= set(order.partial)


def test_a_job_without_end() -> None:
    order = order_of([100], 0, 0)
    assert order.total == ENDLESS
    assert order.total_records is None
    assert order.task(10**9).epoch == 10**9 // order.ledger.num_tasks
    assert order.steps_before(10**9) == 10**9 // 9 * 25 + 3 * (10**9 % 9) - (2 if 10**9 % 9 > 8 else 0)
    with pytest.raises(IndexError):
        order_of([100], 1, 0).task(9)


def test_a_long_row_is_not_walked() -> None:
    shards = [Shard(f"s{index}", 0, 1_000_000_000) for index in range(100)]
    began = time.process_time()
    order = TaskOrder(Ledger(shards, 512, 64, 3, True), 5, 70_000_000, 8)
    assert order.steps_before(order.total) == 70_000_000
    assert order.total == 70_000_000  # waves of 8 steps and 8 tasks
    assert time.process_time() - began < 5
