"""The ledger: every record of each epoch exactly once, in an order that never changes, whatever the sizes."""

from __future__ import annotations

import math
import time
import tracemalloc
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticdl.data.plan.ledger import Ledger, Permutation
from elasticdl.data.plan.shard import Shard
from elasticdl.errors import BadData, BadSetting

shards = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 40)), min_size=1, max_size=6).map(
    lambda sizes: [Shard(f"s{i}", start, count) for i, (start, count) in enumerate(sizes)]
)
filled_shards = shards.filter(lambda drawn: any(shard.count for shard in drawn))


def everything(drawn: list[Shard]) -> Counter[tuple[str, int]]:
    return Counter((s.name, record) for s in drawn for record in range(s.start, s.start + s.count))


@given(st.integers(1, 3000), st.integers(0, 2**40), st.integers(0, 5))
def test_permutation_is_a_bijection(size: int, seed: int, epoch: int) -> None:
    order = Permutation(size, seed, epoch)
    values = [order(i) for i in range(size)]
    assert sorted(values) == list(range(size))
    assert all(order.inverse(value) == i for i, value in enumerate(values))
    assert order.many(np.arange(size)).tolist() == values


@given(st.integers(1, 2**61), st.integers(), st.data())
def test_permutation_of_huge_sizes_goes_both_ways(size: int, seed: int, data: st.DataObject) -> None:
    order = Permutation(size, seed)
    index = data.draw(st.integers(0, size - 1))
    value = order(index)
    assert 0 <= value < size
    assert order.inverse(value) == index
    assert order.many(np.array([index])).tolist() == [value]


@pytest.mark.parametrize("size", [2, 3, 4, 5])
def test_permutation_reaches_every_order_about_equally_often(size: int) -> None:
    orders = math.factorial(size)
    seen = Counter(tuple(Permutation(size, key)(i) for i in range(size)) for key in range(100 * orders))
    assert len(seen) == orders
    assert min(seen.values()) > 40
    assert max(seen.values()) < 200


@given(filled_shards, st.integers(1, 25), st.integers(1, 12), st.integers(), st.booleans(), st.integers(0, 3))
def test_every_record_of_an_epoch_exactly_once(
    drawn: list[Shard], per_task: int, minibatch: int, seed: int, shuffle: bool, epoch: int
) -> None:
    ledger = Ledger(drawn, per_task, minibatch, seed, shuffle)
    seen: Counter[tuple[str, int]] = Counter()
    ids = set()
    before = 0
    for place in range(ledger.num_tasks):
        assert ledger.records_before(epoch, place) == before
        task = ledger.task(epoch, place)
        assert task == ledger.task_by_id(epoch, task.id)
        assert task.shard.start <= task.start < task.end <= task.shard.start + task.shard.count
        ids.add(task.id)
        before += task.count
        chunks = [ledger.chunk(task, j) for j in range(ledger.num_chunks(task))]
        assert all(len(chunk) == minibatch for chunk in chunks[:-1])
        assert 1 <= len(chunks[-1]) <= minibatch
        assert len(ledger.chunk(task, len(chunks))) == 0
        for chunk in chunks:
            assert chunk.dtype == np.int64
            seen.update((task.shard.name, int(record)) for record in chunk)
    assert seen == everything(drawn)
    assert ids == set(range(ledger.num_tasks))
    assert ledger.num_records == before == ledger.records_before(epoch, ledger.num_tasks)


def test_without_shuffle_the_order_is_that_of_the_data() -> None:
    ledger = Ledger([Shard("a", 0, 5), Shard("b", 10, 3)], 4, 2, seed=1, shuffle=False)
    order = [
        (ledger.task(0, p).shard.name, r)
        for p in range(ledger.num_tasks)
        for j in range(ledger.num_chunks(ledger.task(0, p)))
        for r in ledger.chunk(ledger.task(0, p), j).tolist()
    ]
    assert order == [("a", 0), ("a", 1), ("a", 2), ("a", 3), ("a", 4), ("b", 10), ("b", 11), ("b", 12)]


def test_seed_and_epoch_and_task_change_the_order() -> None:
    def order(seed: int, epoch: int) -> list[int]:
        ledger = Ledger([Shard("a", 0, 1000)], 10, 10, seed, shuffle=True)
        return [ledger.task(epoch, place).id for place in range(ledger.num_tasks)]

    assert order(1, 0) == order(1, 0)
    assert len({tuple(order(seed, epoch)) for seed in range(5) for epoch in range(5)}) == 25
    ledger = Ledger([Shard("a", 0, 1000)], 10, 10, 1, shuffle=True)
    inside = {
        tuple((ledger.chunk(task, 0) - task.start).tolist())
        for task in (ledger.task_by_id(0, id) for id in range(100))
    }
    assert len(inside) > 95


def test_the_order_is_the_same_for_ever() -> None:
    """Golden values: a resumed job, and every old audit, depend on them. Never change them."""
    ledger = Ledger([Shard("a", 0, 20), Shard("b", 3, 6)], 4, 3, seed=42, shuffle=True)
    assert [[ledger.task(epoch, place).id for place in range(7)] for epoch in range(2)] == GOLDEN_TASKS
    assert [ledger.chunk(ledger.task_by_id(1, 5), j).tolist() for j in range(3)] == GOLDEN_CHUNKS
    huge = Ledger([Shard("a", 0, 10**15)], 512, 64, seed=-7, shuffle=True)
    assert huge.task(3, 123_456_789).start == GOLDEN_START
    assert huge.chunk(huge.task(3, 123_456_789), 7)[:3].tolist() == GOLDEN_RECORDS


@pytest.mark.parametrize("minibatch", [1, 64, 1000, 5000])
def test_the_order_of_a_task_does_not_depend_on_how_it_is_asked_for(minibatch: int) -> None:
    ledger = Ledger([Shard("a", 10, 9001)], 9001, minibatch, seed=5, shuffle=True)
    task = ledger.task(2, 0)
    last = ledger.num_chunks(task) - 1
    asked = {j: ledger.chunk(task, j).tolist() for j in (last, *range(last + 1))}
    order = Permutation(9001, 5, 2, 0)
    assert [record for j in range(last + 1) for record in asked[j]] == [10 + order(i) for i in range(9001)]
    assert ledger.chunk(task, last + 1).tolist() == ledger.chunk(task, last + 100).tolist() == []


def test_what_is_kept_of_an_order_can_not_be_changed() -> None:
    ledger = Ledger([Shard("a", 0, 100)], 100, 10, seed=5, shuffle=True)
    with pytest.raises(ValueError, match="read-only"):
        ledger.chunk(ledger.task(0, 0), 0)[0] = 7


def test_a_billion_records_need_no_list() -> None:
    shards = [Shard(f"part-{i}", 0, 10**9 // 16 + i) for i in range(16)]
    tracemalloc.start()
    started = time.perf_counter()
    ledger = Ledger(shards, 512, 64, seed=3, shuffle=True)
    for place in range(0, ledger.num_tasks, ledger.num_tasks // 100):
        task = ledger.task(1, place)
        assert len(ledger.chunk(task, 0)) == min(64, task.count)
        ledger.records_before(1, place)
    seconds = time.perf_counter() - started
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 500_000  # with what is kept of the last tasks; the list would take a hundred times as much
    assert seconds < 5  # a list of the two million tasks alone would take longer


@pytest.mark.parametrize(("per_task", "minibatch"), [(0, 1), (1, 0), (-1, 4)])
def test_sizes_below_one_are_refused(per_task: int, minibatch: int) -> None:
    with pytest.raises(BadSetting, match="at least 1 record"):
        Ledger([Shard("a", 0, 5)], per_task, minibatch, 0, True)


@pytest.mark.parametrize("empty", [[], [Shard("a", 0, 0)]])
def test_no_record_at_all_is_refused(empty: list[Shard]) -> None:
    with pytest.raises(BadData, match="no records"):
        Ledger(empty, 4, 2, 0, True)


@pytest.mark.parametrize("bad", [Shard("a", -1, 5), Shard("a", 0, -5)])
def test_negative_counts_are_refused(bad: Shard) -> None:
    with pytest.raises(BadData, match="negative"):
        Ledger([Shard("b", 0, 10), bad], 4, 2, 0, True)


@pytest.mark.parametrize("place", [-1, 2])
def test_a_place_outside_is_refused(place: int) -> None:
    ledger = Ledger([Shard("a", 0, 8)], 4, 2, 0, True)
    with pytest.raises(IndexError):
        ledger.task(0, place)
    with pytest.raises(IndexError):
        ledger.task_by_id(0, place)


GOLDEN_TASKS = [[3, 1, 5, 4, 2, 0, 6], [6, 5, 0, 1, 2, 3, 4]]
GOLDEN_CHUNKS = [[4, 6, 3], [5], []]
GOLDEN_START = 589822664209920
GOLDEN_RECORDS = [589822664210232, 589822664210157, 589822664210194]
