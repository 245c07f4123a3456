"""What is tested in a process whose Keras computes with JAX or PyTorch, which KERAS_BACKEND says; `test_processes.py` makes it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elasticdl.errors import BadData, BadModel
from elasticdl.spec import framework
from elasticdl.spec.jobspec import JobKind, JobSpec
from elasticdl.worker.contract.allreduce import Adapter, DeviceSums
from elasticdl.worker.contract.framework import Framework
from elasticdl.worker.contract.usermodel import UserModel
from elasticdl.worker.seeds import chunk_seeds
from tests.modelfiles import FULL, LIFE, commit, job_of, records

BACKEND = os.environ["KERAS_BACKEND"]
NAME = f"keras_{BACKEND}"
ZOO = Path(__file__).parent / "zoo"
STEPS = 60
ROUNDING = {"torch": 0.0, "jax": 1e-5}
"""How far weights may be from those of plain Keras: on JAX it compiles gradient and update as one program, which rounds otherwise."""


@pytest.fixture(scope="module", autouse=True)
def started() -> Framework:
    found: Framework = framework.find(NAME)
    found.start(1)
    return found


def job(**settings: Any) -> JobSpec:
    return job_of(NAME, **{"model_zoo": str(ZOO), "model_def": "flowers.custom_model", **settings})


@pytest.fixture
def user(started: Framework) -> UserModel:
    return started.load(job())


def adapter_of(user: UserModel, **settings: Any) -> Adapter:
    made: Adapter = framework.find(NAME).adapter(user, job(**settings), None, LIFE)
    made.prepare(records(FULL))
    return made


def plain_of(model: Callable[[], Any], user: UserModel) -> Any:
    """Return a compiled model as an adapter begins with it. Its first batch, which draws from its seeds to build it, is forgotten."""
    import keras

    keras.utils.clear_session()
    keras.utils.set_random_seed(7)
    plain = model()
    plain.compile(user.optimizer(), lambda labels, outputs: keras.ops.mean(user.loss(labels, outputs)))
    plain.optimizer.build(plain.trainable_variables)
    kept = [(one, np.array(one.numpy())) for one in (*plain.variables, *plain.optimizer.variables)]
    plain.train_on_batch(*user.feed(records(FULL), "training", None))
    for variable, value in kept:
        variable.assign(value)
    return plain


def test_steps_of_one_worker_are_those_of_train_on_batch_and_tensorflow_is_not_imported(
    user: UserModel, tmp_path: Path
) -> None:
    """With batch statistics, dropout and a schedule; then plain Keras loads the result, and a job predicts the same."""
    import keras

    from elasticdl.keras.backends.runtime import seed_python
    from elasticdl.keras.internals import seed_states

    made = adapter_of(user)
    assert isinstance(made, DeviceSums)
    made.compute(made.convert(records(FULL)), 0, 0)
    assert "tensorflow" not in sys.modules
    plain = plain_of(user.model, user)
    states = seed_states(plain)
    for step in range(STEPS):
        raw = records(FULL, step)
        seeds = chunk_seeds(7, step, 0, len(states))
        for state, seed in zip(states, seeds, strict=True):
            state.assign(seed)
        seed_python(*seeds[0].tolist())  # dropout of Keras on PyTorch draws from PyTorch's own generator
        plain.train_on_batch(*user.feed(raw, "training", None))
        made.zero()
        examples = made.compute(made.convert(raw), step, 0).examples
        assert made.take(alone=True)
        made.commit(examples)

    made.export(str(tmp_path / "model.keras"), "keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    for mine, theirs in zip(loaded.weights, plain.weights, strict=True):
        np.testing.assert_allclose(mine.numpy(), theirs.numpy(), ROUNDING[BACKEND], 0, err_msg=theirs.path)

    sample = records(FULL)
    spec = replace(job(), kind=JobKind.PREDICT, trained_model=str(tmp_path / "model.keras"))
    trained = framework.find(NAME).trained(user, spec, None, tmp_path / "model.keras")
    trained.prepare(sample)
    features = user.feed(sample, "prediction", None)
    np.testing.assert_allclose(
        trained.predict(trained.convert(sample), 0, 0)["prediction"],
        keras.ops.convert_to_numpy(plain(features, training=False)),
        rtol=1e-5,
        atol=1e-5,
    )


def test_sums_of_unequal_chunks_are_the_step_on_all_of_their_records(user: UserModel) -> None:
    """Without batch statistics and dropout, whose values depend on the chunk."""
    import keras

    def model() -> Any:
        return keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, "tanh"), keras.layers.Dense(3)])

    quiet = replace(user, model=model, callbacks=None, optimizer=lambda: keras.optimizers.SGD(0.1, 0.9))
    one, two = adapter_of(quiet), adapter_of(quiet)
    for step in range(3):
        rows = records(13, step)
        commit([one, two], [rows[:8], rows[8:]], step)
    plain = plain_of(model, quiet)
    for step in range(3):
        plain.train_on_batch(*user.feed(records(13, step), "training", None))
    for mine, theirs in zip(one.model.weights, plain.weights, strict=True):  # type: ignore[attr-defined]
        np.testing.assert_allclose(mine.numpy(), theirs.numpy(), rtol=1e-5, atol=1e-6)


def test_a_variable_without_a_gradient_and_one_of_whole_numbers(user: UserModel) -> None:
    import keras

    class Counted(keras.Model):
        def __init__(self, by: int) -> None:
            super().__init__()
            self.last, self.by = keras.layers.Dense(3), by
            self.seen = self.add_weight(shape=(), dtype="int32", trainable=False, initializer="zeros")
            self.unused = self.add_weight(shape=(2,), initializer="ones", name="unused")

        def call(self, inputs: Any, training: bool = False) -> Any:
            if training:
                rows = keras.ops.cast(keras.ops.sum(keras.ops.abs(inputs)) * 100, "int32")
                self.seen.assign(self.seen + (rows if not self.by else self.by))
            return self.last(inputs)

    counted = adapter_of(replace(user, model=lambda: Counted(2), callbacks=None))
    commit([counted], [records(8), records(5, 8)], 0)
    model: Any = counted.model  # type: ignore[attr-defined]
    assert int(model.seen.numpy()) == 2
    np.testing.assert_array_equal(model.unused.numpy(), [1, 1])
    other = adapter_of(replace(user, model=lambda: Counted(0), callbacks=None))
    with pytest.raises(
        BadModel, match=r"training changes the variable .*int32, by another number in each chunk"
    ):
        commit([other], [records(8), records(8, 8)], 0)


def test_the_buffers_of_pytorch_modules_are_refused(user: UserModel) -> None:
    if BACKEND != "torch":
        pytest.skip("there are none in JAX")
    import keras
    import torch

    def model() -> Any:
        return keras.Sequential(
            [
                keras.Input((4,)),
                keras.layers.TorchModuleWrapper(torch.nn.BatchNorm1d(4), output_shape=(None, 4)),
                keras.layers.Dense(3),
            ]
        )

    with pytest.raises(BadModel, match=r"with the buffer '.*running_mean' .*--framework=torch"):
        adapter_of(replace(user, model=model, callbacks=None))


@pytest.mark.parametrize(
    ("feed", "said"),
    [
        (lambda records, mode, metadata: np.zeros((8, 4)), "feed returned a ndarray; feed returns .features, labels"),
        (lambda records, mode, metadata: (np.zeros((8, 3)), np.zeros(8, int)), "the model failed on the first records"),
        (lambda records, mode, metadata: (np.array([["x"]] * 8), np.zeros(8)), "which is none of numbers"),
    ],
)  # fmt: skip
def test_what_does_not_fit_says_what_feed_gave(user: UserModel, feed: Callable[..., Any], said: str) -> None:
    with pytest.raises((BadData, BadModel), match=said):
        adapter_of(replace(user, feed=feed))


def test_a_feed_of_datasets_gives_the_same_model(user: UserModel) -> None:
    """Last, as it imports TensorFlow."""

    def feed(dataset: Any, mode: str, metadata: Any) -> Any:
        import tensorflow as tf

        return dataset.map(
            lambda row: (tf.strings.to_number(row[:4]), tf.strings.to_number(row[4], tf.int64))
        )

    arrays, datasets = adapter_of(user), adapter_of(replace(user, feed=feed))
    for made in (arrays, datasets):
        commit([made], [records(8), records(5, 8)], 0)
    assert arrays.digest() == datasets.digest()
