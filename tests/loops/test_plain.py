"""Custom loops with arrays, alone: the order of the data, sums of steps, and what is refused."""

from __future__ import annotations

import errno
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elasticdl.data.plan.loopplan import LoopPlan
from elasticdl.errors import BadInput
from elasticdl.worker.contract.loop import LoopBatch
from elasticdl.worker.loop.local import LocalSession
from elasticdl.worker.loop.plain import PlainJob
from elasticdl.worker.loop.result import written_by

DATA = np.random.default_rng(0).normal(size=(50, 4))
LABELS = DATA @ np.array([1.0, -2.0, 0.5, 3.0])


class Unreadable:
    """An array of a framework that NumPy can't read, such as MXNet's, with one element."""

    shape = (1,)

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        raise ValueError("setting an array element with a sequence")

    def asscalar(self) -> float:
        return 0.5


def gradient(weights: Any, rows: Any) -> Any:
    """Return the mean gradient of a linear regression."""
    return 2 * DATA[rows].T @ (DATA[rows] @ weights - LABELS[rows]) / len(rows)


def train(**settings: Any) -> tuple[Any, list[list[int]], PlainJob]:
    """Run the loop of the documentation; return its weights and batches."""
    job = PlainJob(LocalSession(), seed=7)
    weights = np.zeros(4)
    job.state["weights"] = weights
    batches = []
    for chunk in job.chunks(
        len(DATA), **{"batch_size": 8, "num_epochs": 3, "parameters": weights, **settings}
    ):
        batches.append(chunk.tolist())
        mean = job.step(gradient(weights, chunk))
        if mean is not None:
            weights -= 0.1 * mean
    return weights, batches, job


def test_each_epoch_has_each_record_once_in_an_order_of_its_own() -> None:
    _, batches, job = train()
    assert [len(batch) for batch in batches] == [8, 8, 8, 8, 8, 8, 2] * 3
    epochs = [[one for batch in batches[first : first + 7] for one in batch] for first in (0, 7, 14)]
    assert all(sorted(epoch) == list(range(50)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]
    assert (job.steps, job.epoch) == (21, 3)
    assert train()[1] == batches
    assert train(shuffle=False)[1][:2] == [list(range(8)), list(range(8, 16))]


def test_full_batches_have_the_bits_of_the_plain_loop() -> None:
    weights, batches, _ = train(batch_size=10)
    plain = np.zeros(4)
    for batch in batches:
        plain -= 0.1 * gradient(plain, np.array(batch))
    assert weights.tobytes() == plain.tobytes()


def test_a_step_of_several_batches_is_one_of_their_records() -> None:
    weights, batches, job = train(batch_size=5, global_batch_size=10, shuffle=False)
    together, whole, _ = train(batch_size=10, shuffle=False)
    assert len(batches) == 2 * len(whole)
    assert job.steps == len(whole)
    np.testing.assert_allclose(weights, together, rtol=1e-12)


def test_max_step_and_stop_end_training() -> None:
    assert len(train(max_step=5)[1]) == 5
    job = PlainJob(LocalSession())
    seen = 0
    for _ in job.chunks(50, 10, num_epochs=0, parameters=[np.zeros(1)]):
        seen += 1
        job.step([np.ones(1)])
        if job.steps == 12:
            job.stop("enough")
    assert seen == 12


def test_seeds_are_those_of_the_place_of_a_batch() -> None:
    def seeds() -> list[int]:
        job = PlainJob(LocalSession(), seed=3)
        found = []
        for _ in job.chunks(40, 10, global_batch_size=20, parameters=np.zeros(1)):
            found.append(job.chunk_seed)
            job.step(np.zeros(1))
        return found

    assert seeds() == seeds()
    assert len(set(seeds())) == 4


class Scripted(LocalSession):
    """Alone, but its second batch is a placeholder."""

    def next(self) -> LoopBatch | None:
        batch = super().next()
        return (
            None
            if batch is None
            else LoopBatch(batch.epoch, batch.step, batch.lane, 0, None)
            if batch.step == 1
            else batch
        )


def test_what_is_computed_of_a_placeholder_is_dropped() -> None:
    job = PlainJob(Scripted())
    means = []
    for chunk in job.chunks(30, 10, parameters=np.zeros(2), shuffle=False):
        assert len(chunk) == 10
        means.append(job.step(np.full(2, float(chunk.sum()))))
        assert job.committed
    assert [None if mean is None else mean.tolist() for mean in means] == [[45.0, 45.0], None, [245.0, 245.0]]


def test_trees_of_gradients_come_back_as_trees() -> None:
    job = PlainJob(LocalSession())
    parameters = {
        "a": [np.zeros((2, 2), np.float32)],
        "b": (np.zeros(3, np.float32), np.zeros((), np.float32)),
    }
    for _ in job.chunks(4, 4, parameters=parameters):
        mean = job.step({"b": (np.arange(3), 5), "a": [np.eye(2)]})
        assert mean["a"][0].tolist() == [[1, 0], [0, 1]]
        assert isinstance(mean["b"], tuple)
        assert mean["b"][0].dtype == np.float32
        assert float(mean["b"][1]) == 5


def test_a_loss_may_be_an_array_of_one_element() -> None:
    for loss in (np.ones(1), np.float32(1), Unreadable()):
        job = PlainJob(LocalSession())
        for _ in job.chunks(8, 4, parameters=np.zeros(1)):
            assert job.step(np.ones(1), loss=loss) is not None


def test_parameters_that_can_not_be_read_are_refused_by_name() -> None:
    with pytest.raises(BadInput, match=re.escape("job.chunks(parameters=...): NumPy can't read a")):
        next(PlainJob(LocalSession()).chunks(8, 4, parameters=[Unreadable()]))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"gradients": {"a": np.zeros(2)}}, "the gradients are a [2]; expected those of the parameters, one array of shape [1]"),
        ({"gradients": None}, "the gradients are a NoneType; expected"),
        ({"examples": -1}, "job.step(examples=-1): the weight of a batch is a number from 0 on"),
        ({"examples": float("nan")}, "job.step(examples=nan): the weight"),
        ({"loss": np.ones(4)}, "job.step(loss=…): expected the mean loss of the batch, one number; got an array of shape [4]"),
        ({"loss": "low"}, "one number; got 'low'"),
        ({"gradients": Unreadable()}, "job.step: NumPy can't read a tests.loops.test_plain.Unreadable; give arrays of NumPy"),
    ],
)  # fmt: skip
def test_what_a_step_can_not_take(given: dict[str, Any], message: str) -> None:
    job = PlainJob(LocalSession())
    for _ in job.chunks(8, 4, parameters=np.zeros(1)):
        with pytest.raises(BadInput, match=re.escape(message)):
            job.step(**{"gradients": np.zeros(1), **given})
        break


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"parameters": np.zeros(4, int)}, "floating-point"),
        ({"parameters": {}}, "floating-point"),
        ({"batch_size": 8, "global_batch_size": 12}, "multiple"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        train(**settings)


def test_a_result_that_is_no_function_is_refused_before_training() -> None:
    job = PlainJob(LocalSession())
    with pytest.raises(
        BadInput, match="expected a function that writes to the path that it is given; got a ndarray"
    ):
        job.result(np.zeros(2), "made.npy")  # type: ignore[arg-type]  # this is what is refused


def test_an_error_of_another_file_than_the_result_is_the_programs(tmp_path: Path) -> None:
    def full(path: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(RuntimeError, match=r"job\.result: .*No such file or directory"):
        written_by(lambda path: (tmp_path / "none" / "rates.txt").read_text(), str(tmp_path / "result"))
    for write in (full, lambda path: Path(path, "inside").write_text("")):
        with pytest.raises(OSError, match=r"No space|No such file"):
            written_by(write, str(tmp_path / "result"))
    assert not [*tmp_path.iterdir()]


def test_a_loop_that_leaves_steps_out_is_refused() -> None:
    job = PlainJob(LocalSession())
    with pytest.raises(BadInput, match=r"not followed by job\.step"):
        for _ in job.chunks(50, 10, parameters=np.zeros(1)):
            pass
    job = PlainJob(LocalSession())
    with pytest.raises(BadInput, match="follows a batch"):
        job.step(np.zeros(1))
    for _ in job.chunks(50, 10, parameters=np.zeros(1)):
        with pytest.raises(
            BadInput,
            match=r"gradients are one array of shape \[2\]; expected those of the parameters, one array of shape \[1\]",
        ):
            job.step(np.zeros(2))
        break


@pytest.mark.parametrize("named", [True, False])
def test_a_program_that_keeps_nothing_of_its_steps_is_refused(named: bool) -> None:
    job = PlainJob(LocalSession())
    weights = np.zeros(4)
    if named:
        job.state["weights"] = weights
    batches = job.chunks(50, 10, num_epochs=9, parameters=weights)
    for _ in range(20):
        weights = weights - 0.01 * job.step(gradient(weights, next(batches)))
    with pytest.raises(BadInput, match=r"nothing in job\.state has changed in 20 steps"):
        next(batches)


@pytest.mark.parametrize(
    ("first", "gradient_of", "change"),
    [(0, 1.0, 25), (0, 0.0, 99), (30, 1.0, 99)],
    ids=["late", "nothing to learn", "joined near the end"],
)
def test_a_state_may_stay_for_a_while(first: int, gradient_of: float, change: int) -> None:
    class Later(LocalSession):
        def next(self) -> LoopBatch | None:
            batch = super().next()
            return batch and replace(batch, step=batch.step + first)

    job = PlainJob(Later())
    job.state["weights"] = weights = np.zeros(1)
    for _ in job.chunks(400, 10, parameters=weights):
        mean = job.step(np.full(1, gradient_of if job.steps > 15 else 0.0))
        if job.steps == change:
            weights -= mean
    assert job.steps == 40


def test_plans_that_differ_say_where() -> None:
    plan = LoopPlan(50, 8, 3, True)
    assert plan.differences(plan) == ""
    assert plan.differences(LoopPlan(60, 8, 3, False)) == "records (50 and 60), shuffle (True and False)"
