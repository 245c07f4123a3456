"""Where a job continues from a checkpoint, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from elasticdl.checkpoint.manifest import Barrier, Manifest
from elasticdl.control.protocol.frozen import replace
from elasticdl.control.protocol.psmessages import SlotSection
from elasticdl.control.protocol.view import StateId, ViewId
from elasticdl.data.plan.order import Dealing
from elasticdl.data.plan.shard import Shard
from elasticdl.data.plan.tasks import TaskOrder
from elasticdl.errors import BadSetting
from elasticdl.master.core.done import Done, TaskNumber
from elasticdl.master.core.records import ResumedRecord
from elasticdl.master.ps.resuming import Checkpoint, resume

DEALING = Dealing((Shard("data", 0, 80),), 1, True, 8, 4)
"""Ten tasks of two minibatches."""


def checkpoint(
    low: int, *above: int, until: int = 0, dealing: Dealing = DEALING, step: int = 0
) -> Checkpoint:
    section = SlotSection(0, 1, 0, 8, 1, 1, 0, until, 1, 1, "0" * 32)
    sections = ((Path("/c/checkpoint-5/x.slots"), section),)
    manifest = Manifest(5, "job-1", 0.0, low, above, 2, dealing, {"slots": 1, "rule": {}}, sections, step)
    return Checkpoint(Path("/c/checkpoint-5/manifest.json"), manifest)


def go_on(one: Checkpoint, dealing: Dealing = DEALING, epochs: int = 2, steps: int = 0) -> ResumedRecord:
    order = TaskOrder(dealing.ledger(), epochs, steps, max(1, dealing.grads_to_wait))
    return resume(one, order, dealing, 7)


def test_a_job_goes_on_at_the_position_in_the_next_roll_back() -> None:
    record = go_on(checkpoint(12, 14, 15, until=17))
    assert record.position == Done(TaskNumber(12), (TaskNumber(14), TaskNumber(15)))
    assert (record.number, record.roll_back, record.renumbered) == (7, 3, None)
    assert record.model == '{"rule":{},"slots":1}'


def test_in_the_middle_of_an_epoch_data_has_to_be_dealt_out_alike() -> None:
    other = replace(DEALING, seed=2, minibatch_size=2)
    with pytest.raises(BadSetting, match=r"middle of epoch 2.*seed \(1 and 2\), minibatch size \(4 and 2\)"):
        go_on(checkpoint(12), other)


def test_so_it_has_to_where_slots_hold_more_than_whole_epochs() -> None:
    other = replace(DEALING, seed=2)
    for one in (checkpoint(10, 12, until=10), checkpoint(10, until=11)):
        with pytest.raises(BadSetting, match="different here"):
            go_on(one, other)


def test_at_the_end_of_an_epoch_tasks_get_other_numbers() -> None:
    other = replace(DEALING, seed=2, records_per_task=40, shards=(Shard("data", 0, 90),))
    record = go_on(checkpoint(10, until=10), other)
    assert record.position == Done(TaskNumber(3))
    assert record.renumbered == 3


@pytest.mark.parametrize(
    ("one", "epochs", "steps"),
    [
        (checkpoint(20), 2, 0),
        (checkpoint(11), 1, 0),
        (checkpoint(8, 12), 1, 0),
        (checkpoint(12), 0, 20),
        (checkpoint(3, 9), 2, 10),
    ],
)
def test_a_job_without_anything_left_to_train_is_refused(one: Checkpoint, epochs: int, steps: int) -> None:
    with pytest.raises(
        BadSetting, match=r"nothing is left to train: .*`elasticdl export .*` writes its model"
    ):
        go_on(one, epochs=epochs, steps=steps)


def test_an_endless_job_goes_on() -> None:
    assert go_on(checkpoint(1000), epochs=0).position.low == 1000


SUMMED_UP = replace(DEALING, grads_to_wait=4)
"""Waves of four, four and two tasks; an epoch has six steps."""


def test_slots_go_on_at_the_step_of_the_checkpoint() -> None:
    record = go_on(checkpoint(4, dealing=SUMMED_UP, step=2), SUMMED_UP)
    assert (record.position, record.step, record.renumbered) == (Done(TaskNumber(4)), 2, None)
    # of a job that --max_step had ended after one more
    record = go_on(checkpoint(4, until=8, dealing=SUMMED_UP, step=3), SUMMED_UP, steps=5)
    assert (record.position, record.step) == (Done(TaskNumber(4)), 3)


def test_within_an_epoch_steps_have_to_be_the_same() -> None:
    summed_up, alone = "--use_async=false --grads_to_wait=4", "--use_async"
    for there, here, flags in (
        (SUMMED_UP, DEALING, f"{summed_up} and {alone}"),
        (DEALING, SUMMED_UP, f"{alone} and {summed_up}"),
    ):
        with pytest.raises(
            BadSetting, match=rf"different here.*: how many gradients make a step \({flags}\)\. Take these as"
        ):
            go_on(checkpoint(4, dealing=there), here)


def test_between_epochs_gradients_may_be_summed_up_from_then_on_or_no_longer() -> None:
    record = go_on(checkpoint(10, until=10), SUMMED_UP)
    assert (record.position, record.renumbered, record.step) == (Done(TaskNumber(10)), 10, 6)
    record = go_on(checkpoint(10, until=10, dealing=SUMMED_UP, step=6), DEALING)
    assert (record.position, record.renumbered, record.step) == (Done(TaskNumber(10)), 10, 0)


def test_steps_that_are_done_are_not_left_to_train() -> None:
    with pytest.raises(BadSetting, match="nothing is left to train"):
        go_on(checkpoint(4, until=8, dealing=SUMMED_UP, step=3), SUMMED_UP, steps=3)


def test_barriers_of_the_checkpoint_are_passed_and_so_is_the_last_epoch() -> None:
    values = (("val_loss", 0.5),)
    passed = (Barrier(10, 1, 5, 0, False, values), Barrier(20, 2, 10, 0, True, values))
    one = checkpoint(12)
    record = go_on(replace(one, manifest=replace(one.manifest, barriers=passed)))
    assert [(one.state, one.task, one.epoch, one.epoch_ended, one.values) for one in record.barriers] == [
        (StateId(10, ViewId(1)), 5, 0, False, values),
        (StateId(20, ViewId(2)), 10, 0, True, values),
    ]
    (ended,) = go_on(one).barriers  # of a job without evaluations and callbacks
    assert (ended.state, ended.task, ended.epoch, ended.epoch_ended, ended.values) == (
        StateId(20, ViewId(2)), 10, 0, True, (),
    )  # fmt: skip
    assert go_on(checkpoint(10, until=10)).barriers == ()  # callbacks hear of its end at once
    other = replace(DEALING, seed=2, records_per_task=40, shards=(Shard("data", 0, 90),))
    whole = checkpoint(10, until=10)
    record = go_on(replace(whole, manifest=replace(whole.manifest, barriers=passed)), other)
    assert [one.task for one in record.barriers] == [0, 3]
