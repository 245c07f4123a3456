"""A trained model is that of the `.keras` file: it evaluates and predicts as Keras does, and other files are refused."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from elasticdl.control.protocol.metricstates import combine
from elasticdl.errors import BadData, BadModel
from elasticdl.keras.trained import KerasTrained
from elasticdl.spec.jobspec import JobKind
from tests.keras.conftest import records

Make = Callable[..., KerasTrained]

TWO = """
def custom_model():
    inputs = keras.Input((3,))
    hidden = keras.layers.Dropout(0.5)(keras.layers.Dense(4, activation="relu")(inputs))
    return keras.Model(inputs, {
        "class": keras.layers.Dense(3, activation="softmax", name="class")(hidden),
        "size": keras.layers.Dense(1, name="size")(hidden),
    })

loss = {"class": "mse", "size": "mse"}
"""
SUBCLASSED = """
class Net(keras.Model):
    def __init__(self):
        super().__init__()
        self.normal = keras.layers.BatchNormalization()
        self.last = keras.layers.Dense(2)

    def call(self, inputs, training=False):
        return self.last(self.normal(inputs, training=training))

def custom_model():
    return Net()
"""
NAMED_AS_KERAS_NAMES = """
class OptimizerGate(keras.layers.Layer):
    def build(self, shape):
        self.gate = self.add_weight(shape=(shape[-1],), name="gate")

    def call(self, inputs):
        return inputs * self.gate

def custom_model():
    inputs = keras.Input((3,))
    return keras.Model(inputs, keras.layers.Dense(1)(OptimizerGate()(inputs)))
"""
FEATURES_ONLY = """
def feed(dataset, mode, metadata):
    assert mode == "prediction"
    return dataset.map(lambda record: tf.strings.to_number(tf.strings.split(record, ","))[:3])
"""
SHUFFLED = """
def feed(dataset, mode, metadata):
    return dataset.map(lambda record: tf.strings.to_number(tf.strings.split(record, ","))[:3]).shuffle(9)
"""


@pytest.fixture
def make(model_file: Any, tmp_path: Path) -> Make:
    """Write the model of a source, with other weights than it begins with, and return a trained one of another source."""

    def make(source: str = "", of: str | None = None, kind: JobKind = JobKind.PREDICT) -> KerasTrained:
        path = tmp_path / "model.keras"
        data = "prediction_data" if kind is JobKind.PREDICT else "validation_data"
        settings = {
            "trained_model": str(path),
            data: "data",
            "output": "out" if kind is JobKind.PREDICT else "",
        }
        written, _ = model_file(source if of is None else of)
        model = written.model()
        model(np.zeros((1, 3), np.float32))
        random = np.random.default_rng(1)
        model.set_weights([random.uniform(0.1, 1.0, weight.shape) for weight in model.get_weights()])
        model.save(path)
        make.model = model  # type: ignore[attr-defined]
        user, spec = model_file(source, kind=kind, **settings)
        return KerasTrained(user, spec, None, path)

    return make


def features(chunk: list[bytes]) -> np.ndarray:
    return np.array([list(map(float, one.split(b",")[:3])) for one in chunk], np.float32)


@pytest.mark.parametrize(
    "source",
    ["", TWO, SUBCLASSED, NAMED_AS_KERAS_NAMES, FEATURES_ONLY],
    ids=["one", "two", "subclassed", "named", "features"],
)
def test_predictions_are_those_of_keras(make: Make, source: str) -> None:
    trained, chunk = make(source), records(10)
    trained.prepare(chunk[:4])
    found = trained.predict(trained.convert(chunk), 0, 0)
    wanted = make.model.predict(features(chunk), verbose=0)  # type: ignore[attr-defined]
    wanted = wanted if isinstance(wanted, dict) else {"prediction": wanted}
    assert list(found) == list(wanted)
    for name, values in wanted.items():
        assert np.allclose(found[name], values, rtol=1e-6, atol=1e-7), name
    again = trained.predict(trained.convert(chunk), 0, 0)
    assert all(np.array_equal(found[name], again[name]) for name in found)


def test_an_evaluation_is_that_of_keras(make: Make) -> None:
    trained, chunk = make("", kind=JobKind.EVALUATE), records(10)
    trained.prepare(chunk)
    evaluator = trained.evaluator(None)
    evaluator.prepare(chunk)
    evaluator.begin_task(0)
    evaluator.evaluate(evaluator.convert(chunk))
    values = evaluator.metric_values(combine(evaluator.catalog(), [evaluator.task_state()]))
    model = make.model  # type: ignore[attr-defined]
    model.compile(loss="mse")
    labels = np.array([[float(one.split(b",")[3])] for one in chunk], np.float32)
    assert values["val_loss"] == pytest.approx(model.evaluate(features(chunk), labels, verbose=0), rel=1e-6)


def test_a_file_of_another_model_is_refused(make: Make) -> None:
    with pytest.raises(BadModel, match=r"is of another model: it has 4 weights, and the model of .* has 36"):
        make(TWO, of="").prepare(records(4))
    same_count = """
def custom_model():
    inputs = keras.Input((3,))
    return keras.Model(inputs, keras.layers.Dense(1, use_bias=False)(keras.layers.Dense(1, use_bias=False)(inputs)))
"""
    with pytest.raises(BadModel, match=r"the weights of .*model\.keras do not fit the model of"):
        make("", of=same_count).prepare(records(4))


def test_a_damaged_file_is_refused(make: Make, tmp_path: Path) -> None:
    trained, path = make(), tmp_path / "model.keras"
    whole = path.read_bytes()
    for content in (b"", b"no archive", whole[: len(whole) // 2]):
        path.write_bytes(content)
        with pytest.raises(BadModel, match=r"model\.keras is no \.keras file, or is damaged"):
            trained.prepare(records(4))
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("other", "")
    with pytest.raises(BadModel, match=r"model\.keras is no \.keras file, or is damaged"):
        trained.prepare(records(4))


def test_a_feed_that_shuffles_predictions_is_refused(make: Make) -> None:
    with pytest.raises(BadData, match=r"feed shuffles in the mode 'prediction'"):
        make(SHUFFLED, of="").prepare(records(4))


def test_the_file_is_not_run(make: Make, tmp_path: Path) -> None:
    """A Lambda layer's code is in the file of a model that has one; weights are all that is read."""
    source = """
def custom_model():
    inputs = keras.Input((3,))
    return keras.Model(inputs, keras.layers.Dense(1)(inputs))
"""
    trained = make(source)
    path = tmp_path / "model.keras"
    with zipfile.ZipFile(path) as archive:
        weights = archive.read("model.weights.h5")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("config.json", '{"module": "os", "class_name": "system", "config": {}}')
        archive.writestr("metadata.json", "{}")
        archive.writestr("model.weights.h5", weights)
    trained.prepare(records(4))
    found = trained.predict(trained.convert(records(4)), 0, 0)["prediction"]
    assert np.allclose(found, make.model.predict(features(records(4)), verbose=0))  # type: ignore[attr-defined]
    assert isinstance(make.model, keras.Model)  # type: ignore[attr-defined]
