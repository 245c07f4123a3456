"""Steps of several chunks: each chunk is part of one, a step needs all before it, and its gradient is the mean over its records."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticdl.data.plan.ledger import Ledger
from elasticdl.data.plan.shard import Shard
from elasticdl.data.plan.tasks import TaskOrder
from elasticdl.data.plan.waves import WHOLE, Need, Waves

counts = st.lists(st.integers(0, 50), min_size=1, max_size=4).filter(any)


def waves_of(counts: list[int], epochs: int, size: int, max_step: int = 0) -> tuple[TaskOrder, Waves]:
    shards = [Shard(f"s{index}", 0, count) for index, count in enumerate(counts)]
    order = TaskOrder(Ledger(shards, 12, 4, 3, True), epochs, max_step, size)
    return order, Waves(order)


def steps_of(order: TaskOrder, waves: Waves) -> list[set[tuple[int, int]]]:
    """Return the chunks of each step, found by walking all of them."""
    found: dict[int, set[tuple[int, int]]] = {}
    for task in range(order.total):
        for chunk in range(order.chunks(task)):
            found.setdefault(waves.step(task, chunk), set()).add((task, chunk))
    assert sorted(found) == list(range(len(found)))
    return [found[number] for number in sorted(found)]


@given(counts, st.integers(1, 3), st.integers(1, 7), st.integers(0, 40))
def test_a_step_is_a_chunk_of_each_task_of_a_wave(
    counts: list[int], epochs: int, size: int, max_step: int
) -> None:
    order, waves = waves_of(counts, epochs, size, max_step)
    steps = steps_of(order, waves)
    if max_step:
        assert len(steps) <= max_step
    for chunks in steps:
        tasks, (place,) = [task for task, _ in chunks], {chunk for _, chunk in chunks}
        assert len(chunks) <= size
        (wave,) = {waves.tasks(task) for task in tasks}
        assert {task for task in wave if order.chunks(task) > place} == set(tasks)
        assert sum(waves.share(*chunk) for chunk in chunks) == pytest.approx(1)
        shares = {waves.share(task, chunk) / _records(order, task, chunk) for task, chunk in chunks}
        assert max(shares) == pytest.approx(min(shares))


def _records(order: TaskOrder, task: int, chunk: int) -> int:
    return len(order.ledger.chunk(order.task(task), chunk))


@given(counts, st.integers(1, 3), st.integers(1, 7), st.integers(0, 9))
def test_a_step_needs_what_is_before_it(counts: list[int], epochs: int, size: int, tolerance: int) -> None:
    order, waves = waves_of(counts, epochs, size)
    steps = steps_of(order, waves)
    for number, chunks in enumerate(steps):
        for task, chunk in chunks:
            need = waves.need(task, chunk, tolerance)
            assert need.number == max(0, number - tolerance)
            # What is named are all chunks of the last wave that has any before that step.
            before = set().union(*steps[: need.number])
            last = waves.tasks(max(before)[0]) if before else range(0)
            assert range(need.first, need.end) == last
            named = {(one, at) for one in last for at in range(min(need.chunks, order.chunks(one)))}
            assert named == {one for one in before if one[0] in last}


def test_the_first_steps_of_two_waves() -> None:
    _, waves = waves_of([48], 1, 2)
    assert waves.need(1, 0, 0) == Need(0, 0, 0, WHOLE)
    assert waves.need(1, 2, 0) == Need(2, 0, 2, 2)
    assert waves.need(2, 0, 0) == Need(3, 0, 2, WHOLE)
    assert waves.need(2, 0, 1) == Need(2, 0, 2, 2)
    assert waves.need(3, 1, 9) == Need(0, 0, 0, WHOLE)
    assert waves.steps_before(4) == 6


def test_a_smaller_minibatch_has_a_smaller_share() -> None:
    _, waves = waves_of([12, 6], 1, 2)
    shares = {task: waves.share(task, 1) for task in (0, 1)}
    assert sorted(shares.values()) == pytest.approx([2 / 6, 4 / 6])


@given(counts, st.integers(1, 3), st.integers(1, 7), st.integers(0, 40))
def test_so_many_steps_are_complete_when_what_the_next_one_needs_is_settled(
    counts: list[int], epochs: int, size: int, max_step: int
) -> None:
    order, waves = waves_of(counts, epochs, size, max_step)
    steps = steps_of(order, waves)
    for number, chunks in enumerate(steps):
        task, chunk = min(chunks)
        assert waves.complete(number) == waves.need(task, chunk, 0)
    need = waves.complete(len(steps))
    assert need.number == len(steps)
    assert all(need.first <= task < need.end and chunk < need.chunks for task, chunk in steps[-1])
