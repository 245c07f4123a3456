"""Ranges of blocks: each record once, no block split by a task, as few ranges as can be; and what follows from blocks for a job."""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticdl.data.plan.blocks import unsplit
from elasticdl.data.plan.ledger import Ledger
from elasticdl.data.plan.order import dealing_of, idle_for_blocks, tasks_of
from elasticdl.data.plan.shard import Shard
from elasticdl.errors import BadData, BadSetting
from elasticdl.spec.edge import build, from_arguments
from elasticdl.spec.jobspec import JobSpec


@given(st.lists(st.integers(0, 40), max_size=30), st.integers(1, 60))
def test_no_task_splits_a_block(blocks: list[int], at_least: int) -> None:
    per_task = max(at_least, *blocks, 1)
    ranges = unsplit(blocks, per_task)
    assert [start for start, _ in ranges] == list(accumulate((count for _, count in ranges), initial=0))[
        : len(ranges)
    ]
    assert sum(count for _, count in ranges) == sum(blocks)
    assert all(count for _, count in ranges)
    bounds = set(accumulate(blocks, initial=0))
    tasks = [
        (start + at, min(per_task, count - at)) for start, count in ranges for at in range(0, count, per_task)
    ]
    assert {start for start, _ in tasks} <= bounds
    # Two tasks in a row have more records than one may have, or a range ended for nothing.
    assert all(first + second > per_task for (_, first), (_, second) in pairwise(tasks))


@pytest.mark.parametrize(
    ("blocks", "per_task", "ranges"),
    [
        ([], 10, []),
        ([0, 0], 10, []),
        ([10, 10, 10, 4], 10, [(0, 34)]),
        ([5, 5, 5, 5, 3], 10, [(0, 23)]),
        ([6, 6, 4, 10], 10, [(0, 6), (6, 20)]),
        ([3, 10, 3], 10, [(0, 3), (3, 13)]),
    ],
)
def test_ranges(blocks: list[int], per_task: int, ranges: list[tuple[int, int]]) -> None:
    assert unsplit(blocks, per_task) == ranges


def spec(**settings: Any) -> JobSpec:
    return build(
        from_arguments({"model_def": "m.f", "training_data": "data", "minibatch_size": 10, **settings})
    )


def test_a_task_has_the_records_of_a_block_at_least() -> None:
    small, large = (Shard("a", 0, 1000, block) for block in (80, 81))
    assert dealing_of(spec(), (small,)).records_per_task == 80
    assert dealing_of(spec(), (small, large)).records_per_task == 81


def test_fewer_blocks_than_workers_are_mentioned() -> None:
    four = spec(num_workers="4")
    few = (Shard("a", 0, 300, 100),)
    assert (
        "blocks of up to 100 records, which no task splits: an epoch has 3 tasks, so 1 of 4 workers"
        in idle_for_blocks(four, few)
    )
    assert "1 task, so 3 of 4 workers" in idle_for_blocks(four, (Shard("a", 0, 100, 100),))
    assert idle_for_blocks(four, (Shard("a", 0, 400, 100),)) == ""
    # the settings, and not the blocks, make so few tasks
    assert idle_for_blocks(four, (Shard("a", 0, 80, 80),)) == ""


def test_a_task_of_too_many_minibatches_for_servers_is_refused() -> None:
    servers = spec(minibatch_size=2, num_ps_pods=1)
    longest = 2 * 65_534
    assert tasks_of(servers, (Shard("a", 0, longest, longest),)).chunks_per_task == 65_534
    with pytest.raises(
        BadSetting,
        match=r"has 65,535 minibatches, and .* can have 65,534; use larger minibatches, or files with smaller",
    ):
        tasks_of(servers, (Shard("a", 0, longest, longest + 1),))
    with pytest.raises(BadSetting, match="or a lower --num_minibatches_per_task"):
        tasks_of(spec(num_ps_pods=1, num_minibatches_per_task=65_535), (Shard("a", 0, 10),))


@pytest.mark.parametrize("block", [0, -1, 1 << 60])
def test_blocks_that_can_not_be_are_refused(block: int) -> None:
    with pytest.raises(BadData, match=f"shard 'a' has blocks of {block:,} records"):
        Ledger([Shard("a", 0, 10, block)], 10, 10, 0, False)
