"""The rooms of the model zoo train."""

from __future__ import annotations

import importlib
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf

from elasticdl.control.protocol.metricstates import combine
from elasticdl.keras.adapter import KerasAdapter
from elasticdl.keras.framework import FRAMEWORK
from tests.keras.conftest import ZOO, job
from tests.rows import FLIGHT_COLUMNS, clicks, flights


@pytest.fixture(scope="module")
def digits() -> list[bytes]:
    """Scikit-learn's 1,797 digits, enlarged to 28 × 28, as the records of the mnist room."""
    from sklearn import datasets

    data = datasets.load_digits()
    order = np.random.default_rng(0).permutation(len(data.target))
    return [
        _example(np.kron(data.images[i] / 16 * 255, np.ones((4, 4)))[2:30, 2:30], data.target[i])
        for i in order
    ]


def _example(image: np.ndarray, label: int) -> bytes:
    features = {
        "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[image.astype(np.uint8).tobytes()])),
        "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[int(label)])),
    }
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()


def train(model_def: str, records: list, epochs: int) -> KerasAdapter:
    spec = job(model_zoo=str(ZOO), model_def=model_def, minibatch_size=64)
    adapter = KerasAdapter(FRAMEWORK.load(spec), spec)
    adapter.prepare(records[:64])
    step = 0
    for epoch in range(epochs):
        order = np.random.default_rng(epoch).permutation(len(records))
        for start in range(0, len(order), 64):
            step += 1
            batch = adapter.convert([records[i] for i in order[start : start + 64]])
            result = adapter.compute(batch, step, 0)
            adapter.apply(np.array(adapter.accumulator()), result.examples)
    return adapter


def accuracy(adapter: KerasAdapter, records: list) -> float:
    evaluator = adapter.evaluator(None)
    evaluator.prepare(records[:64])
    evaluator.begin_task(0)
    evaluator.evaluate(evaluator.convert(records))
    values = evaluator.metric_values(combine(evaluator.catalog(), [evaluator.task_state()]))
    found = values["val_accuracy"]
    assert isinstance(found, float)
    return found


@pytest.mark.parametrize("model", ["mnist_functional_api", "mnist_subclass"])
def test_digits(digits: list[bytes], model: str) -> None:
    adapter = train(f"mnist.{model}.custom_model", digits[:1500], epochs=12)
    assert accuracy(adapter, digits[1500:]) >= 0.97


def test_iris() -> None:
    from sklearn import datasets

    data = datasets.load_iris()
    rows = [[*map(str, values), str(label)] for values, label in zip(data.data, data.target, strict=True)]
    order = np.random.default_rng(0).permutation(len(rows))
    rows = [rows[i] for i in order]
    adapter = train("iris.dnn_iris.custom_model", rows[:120], epochs=40)
    assert accuracy(adapter, rows[120:]) >= 0.9


@pytest.mark.parametrize("name", ["deepfm", "dcn", "wide_deep", "xdeepfm"])
def test_flights(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ZOO)
    keras.utils.set_random_seed(0)
    room = importlib.import_module(f"{name}.{name}_flights")
    metadata = SimpleNamespace(column_names=FLIGHT_COLUMNS)
    rows = tf.data.Dataset.from_tensor_slices(tf.constant(flights(400)))
    model = room.custom_model()
    model.compile(room.optimizer(lr=0.1), room.loss, metrics=[*room.eval_metrics_fn().values()])
    examples = room.feed(rows.batch(50), "training", metadata).cache()
    losses = model.fit(examples, epochs=30, verbose=0, shuffle=False).history["loss"]
    assert losses[-1] < 0.7 * losses[0]
    features = room.feed(rows.batch(400), "prediction", metadata)
    assert model.predict(features, verbose=0).shape == (400, 1)


def test_criteo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ZOO)
    keras.utils.set_random_seed(0)
    room = importlib.import_module("criteo.deepfm_criteo")
    rows = tf.data.Dataset.from_tensor_slices(tf.constant(clicks(400)))
    ((features, _),) = room.feed(rows.batch(2).take(1), "training", None)
    assert features["numbers"].shape == (2, 13)
    # an empty category of one column is not that of another, and what is equal in two rows has one id
    assert len(set(features["ids"][0].numpy().tolist())) == 26
    assert features["ids"][0, 25] == features["ids"][1, 25]
    model = room.custom_model(ids=5000, units=32)
    model.compile(room.optimizer(lr=0.1), room.loss)
    examples = room.feed(rows.batch(50), "training", None).cache()
    losses = model.fit(examples, epochs=8, verbose=0).history["loss"]
    assert losses[-1] < 0.7 * losses[0]
