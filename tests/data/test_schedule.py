"""The schedule: waves, their cuts, the end of the data, and exact counts of records before a position."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticdl.data.plan.ledger import Ledger
from elasticdl.data.plan.order import schedule_of
from elasticdl.data.plan.schedule import Schedule, policy_lanes
from elasticdl.data.plan.shard import Position, Shard
from elasticdl.errors import BadSetting
from elasticdl.spec.jobspec import JobSpec

sizes = st.lists(st.integers(0, 30), min_size=1, max_size=5).filter(any)


@given(sizes, st.integers(1, 12), st.integers(1, 5), st.booleans(), st.integers(1, 3), st.data())
def test_all_steps_together_consume_every_record_of_each_epoch_once(
    counts: list[int], per_task: int, minibatch: int, shuffle: bool, epochs: int, data: st.DataObject
) -> None:
    shards = [Shard(f"s{i}", i, count) for i, count in enumerate(counts)]
    schedule = Schedule(Ledger(shards, per_task, minibatch, 5, shuffle), epochs, 0)
    lanes = st.integers(1, 7)
    position = schedule.start(data.draw(lanes))
    seen: Counter[tuple[int, str, int]] = Counter()
    done = 0
    while not schedule.ended(position, 0):
        assert 1 <= position.lanes <= schedule.ledger.num_tasks - position.first_task
        assert schedule.records_done(position) == done
        step = 0
        for lane in range(position.lanes):
            task = schedule.task(position, lane)
            chunk = schedule.ledger.chunk(task, position.chunk)
            step += len(chunk)
            seen.update((task.epoch, task.shard.name, int(record)) for record in chunk)
        assert step > 0
        wave_lanes = data.draw(lanes)
        after = schedule.advance(position, wave_lanes)
        assert after > position
        assert schedule.is_wave_start(after) == (after.chunk == 0 and after.lanes > 0)
        if schedule.is_wave_start(after):
            assert after.lanes == schedule.cut(after, wave_lanes)
        else:
            assert after.lanes in (position.lanes, 0)
        done += step
        if schedule.epoch_ended(position, after):
            assert done == schedule.ledger.num_records
            done = 0
        position = after
    assert position == Position(epochs, 0, 0, 0)
    assert seen == {
        (epoch, s.name, record): 1
        for epoch in range(epochs)
        for s in shards
        for record in range(s.start, s.start + s.count)
    }
    assert schedule.total_records == sum(counts) * epochs


def test_a_wave_of_unequal_tasks_literally() -> None:
    # Tasks of 4, 4, 1 and 2 records in chunks of 2.
    schedule = Schedule(Ledger([Shard("a", 0, 9), Shard("b", 0, 2)], 4, 2, 0, shuffle=False), 1, 0)
    positions = [schedule.start(3)]
    while not schedule.ended(positions[-1], 0):
        positions.append(schedule.advance(positions[-1], 3))
    assert positions == [
        Position(0, 0, 3, 0),
        Position(0, 0, 3, 1),
        Position(0, 3, 1, 0),
        Position(1, 0, 0, 0),
    ]
    assert [schedule.records_done(position) for position in positions] == [0, 5, 9, 0]
    assert len(schedule.ledger.chunk(schedule.task(positions[1], 2), 1)) == 0


def test_lanes_of_a_later_wave_change_nothing_in_the_middle_of_one() -> None:
    schedule = Schedule(Ledger([Shard("a", 0, 40)], 4, 2, 0, True), 2, 0)
    assert schedule.advance(Position(0, 0, 3, 0), 5) == Position(0, 0, 3, 1)
    assert schedule.advance(Position(0, 0, 3, 1), 5) == Position(0, 3, 5, 0)
    assert schedule.advance(Position(0, 8, 2, 1), 5) == Position(1, 0, 5, 0)


def test_endless_jobs_go_on() -> None:
    schedule = Schedule(Ledger([Shard("a", 0, 4)], 4, 4, 0, True), 0, 0)
    position = schedule.start(2)
    for epoch in range(100):
        assert position == Position(epoch, 0, 1, 0)
        assert not schedule.ended(position, epoch)
        position = schedule.advance(position, 2)
    assert schedule.total_records is None


def test_max_step_ends_training_at_the_step() -> None:
    schedule = Schedule(Ledger([Shard("a", 0, 100)], 4, 4, 0, True), 1, 7)
    position = schedule.start(1)
    assert not schedule.ended(position, 6)
    assert schedule.ended(position, 7)
    assert schedule.ended(position, 8)


def test_there_is_no_step_after_the_data() -> None:
    schedule = Schedule(Ledger([Shard("a", 0, 4)], 4, 4, 0, True), 1, 0)
    end = schedule.advance(schedule.start(1), 1)
    assert end == Position(1, 0, 0, 0)
    assert schedule.cut(end, 3) == 0
    assert not schedule.is_wave_start(end)
    with pytest.raises(ValueError, match="ended"):
        schedule.advance(end, 1)
    with pytest.raises(IndexError):
        schedule.task(end, 0)


def test_a_huge_epoch_is_walked_without_a_list() -> None:
    schedule = Schedule(Ledger([Shard("a", 0, 10**12 + 1), Shard("b", 0, 5)], 512, 64, 1, True), 1, 0)
    position = Position(0, 1_000_000_000, 4, 3)
    done = schedule.records_done(position)
    after = schedule.advance(position, 4)
    assert after == Position(0, 1_000_000_000, 4, 4)
    assert schedule.records_done(after) - done == 4 * 64
    assert abs(done - (1_000_000_000 * 512 + 3 * 64 * 4)) < 1024


@pytest.mark.parametrize(
    ("global_batch", "minibatch", "members", "lanes"),
    [(None, 64, 3, 3), (None, 64, 0, 1), (256, 64, 3, 4), (64, 64, 9, 1)],
)
def test_policy(global_batch: int | None, minibatch: int, members: int, lanes: int) -> None:
    assert policy_lanes(global_batch, minibatch, members) == lanes


@pytest.mark.parametrize("global_batch", [0, -64, 32, 100])
def test_a_global_batch_that_is_no_multiple_is_refused(global_batch: int) -> None:
    with pytest.raises(BadSetting, match=f"multiple of minibatch_size; got {global_batch}"):
        policy_lanes(global_batch, 64, 2)


def test_a_wave_without_lanes_is_refused() -> None:
    schedule = Schedule(Ledger([Shard("a", 0, 4)], 4, 4, 0, True), 1, 0)
    with pytest.raises(ValueError, match="at least one lane"):
        schedule.start(0)


@given(
    st.lists(st.integers(0, 30), min_size=1, max_size=4).filter(any),
    st.lists(st.integers(1, 5), min_size=1, max_size=40),
)
def test_whatever_a_job_comes_to_is_in_its_data(counts: list[int], lanes: list[int]) -> None:
    shards = [Shard(str(number), 0, count) for number, count in enumerate(counts)]
    schedule = Schedule(Ledger(shards, 4, 2, 0, True), 2, 0)
    position = schedule.start(lanes[0])
    for step, wave in enumerate(lanes):
        assert schedule.has(position)
        assert schedule.may_have(position, step)
        assert not schedule.may_have(position, step + 10**6)
        if schedule.ended(position, step):
            return
        for wrong in (
            replace(position, lanes=1 << 62),
            replace(position, lanes=0),
            replace(position, first_task=schedule.ledger.num_tasks),
            replace(position, chunk=2),
            replace(position, epoch=3),
            replace(position, epoch=-1),
        ):
            assert not schedule.has(wrong)
        position = schedule.advance(position, wave)


@pytest.mark.parametrize(
    ("settings", "most"),
    [
        ({"minibatch_size": 4, "num_minibatches_per_task": 2, "num_epochs": 3}, 3 * 5 * 2),
        (
            {"minibatch_size": 4, "num_minibatches_per_task": 2, "num_epochs": 3, "global_batch_size": 8},
            3 * 3 * 2,
        ),
    ],
)
def test_an_evaluation_that_would_never_come_is_refused(settings: dict[str, int], most: int) -> None:
    shards, validation = (Shard("a", 0, 39),), (Shard("b", 0, 4),)
    spec = JobSpec(model_def="a.b", training_data="a", validation_data="b", **settings)
    schedule_of(replace(spec, evaluation_steps=most), shards, validation)
    with pytest.raises(BadSetting, match=f"the data makes {most} steps at most"):
        schedule_of(replace(spec, evaluation_steps=most + 1), shards, validation)
    schedule_of(replace(spec, evaluation_steps=most + 1, num_epochs=0), shards, validation)
