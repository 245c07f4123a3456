"""The row of all tasks: the same as the ledger's epochs one after the other, cut where `max_step` says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticdl.data.ledger import Ledger
from elasticdl.data.shard import Shard
from elasticdl.data.tasks import ENDLESS, TaskOrder

counts = st.lists(st.integers(0, 50), min_size=1, max_size=4).filter(any)


def order_of(counts: list[int], epochs: int, max_step: int) -> TaskOrder:
    shards = [Shard(f"s{index}", 0, count) for index, count in enumerate(counts)]
    return TaskOrder(Ledger(shards, 12, 4, 3, True), epochs, max_step)


@given(counts, st.integers(1, 3), st.integers(0, 60))
def test_sums_are_those_of_the_tasks(counts: list[int], epochs: int, max_step: int) -> None:
    order = order_of(counts, epochs, max_step)
    chunks = records = 0
    for number in range(order.total):
        assert (order.chunks_before(number), order.records_before(number)) == (chunks, records)
        assert order.task(number).epoch == order.epoch(number)
        chunks += order.chunks(number)
        records += order.records(number)
    assert (order.chunks_before(order.total), order.records_before(order.total)) == (chunks, records)
    whole = order_of(counts, epochs, 0)
    assert whole.records_before(whole.total) == whole.total_records == epochs * sum(counts)
    all_chunks = whole.chunks_before(whole.total)
    assert chunks == (min(max_step, all_chunks) if max_step else all_chunks)
    assert order.is_cut() == (0 < max_step < all_chunks)
    last = order.total - 1
    assert (order.partial is None) == (order.chunks(last) == order.ledger.num_chunks(order.task(last)))
    assert order.partial in (None, last)


def test_a_job_without_end() -> None:
    order = order_of([100], 0, 0)
    assert order.total == ENDLESS
    assert order.total_records is None
    assert order.task(10**9).epoch == 10**9 // order.ledger.num_tasks
    with pytest.raises(IndexError):
        order_of([100], 1, 0).task(9)
