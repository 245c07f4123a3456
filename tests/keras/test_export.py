"""Exported models load in a plain Keras process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from elasticdl.keras.adapter import KerasAdapter
from tests.keras.conftest import records
from tests.keras.test_step import CONVOLUTION, DROPPING, train

Make = Callable[..., KerasAdapter]

PLAIN = """
import pathlib, sys
sys.modules["elasticdl"] = None  # any import of it fails
import keras, numpy as np, tensorflow as tf
room = pathlib.Path(sys.argv[1])
x = np.load(room / "in.npy")
functional = keras.models.load_model(room / "functional.keras")
dropping, subclassed = tf.saved_model.load(str(room / "dropping")), tf.saved_model.load(str(room / "subclassed.x"))
np.savez(
    room / "out.npz",
    functional=functional.predict(x, verbose=0),
    dropping=dropping.serve(x).numpy(),
    subclassed=subclassed.serve(x).numpy(),
)
"""

SUBCLASSED = """
class Model(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense, self.normalization = keras.layers.Dense(1), keras.layers.BatchNormalization()
    def call(self, inputs, training=False):
        return self.normalization(self.dense(inputs), training=training)
def custom_model():
    return Model()
"""


def test_a_plain_process_gets_the_same_predictions(adapter: Make, tmp_path: Path) -> None:
    room = tmp_path / "room"
    room.mkdir()
    expected = {}
    models = {"functional.keras": CONVOLUTION, "dropping": DROPPING, "subclassed.x": SUBCLASSED}
    for name, source in models.items():
        made = adapter(source)
        train([made], [records(8)], steps=3)
        digest = made.digest()
        made.export(str(room / name), "keras" if name.endswith(".keras") else "saved_model")
        assert made.digest() == digest
        features = made.convert(records(8)).data[0]
        expected[name] = made.model(features).numpy()
    assert sorted(entry.name for entry in room.iterdir()) == sorted(models)
    np.save(room / "in.npy", features.numpy())
    command = [sys.executable, "-c", PLAIN, str(room)]
    done = subprocess.run(command, timeout=250, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    with np.load(room / "out.npz") as predicted:
        for name, values in expected.items():
            np.testing.assert_allclose(predicted[name.partition(".")[0]], values, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["keras", "saved_model"])
def test_what_was_there_is_replaced(adapter: Make, tmp_path: Path, kind: str) -> None:
    made = adapter()
    path = tmp_path / "model.step-3.keras"
    made.export(str(path), kind)
    made.export(str(path), kind)
    assert path.exists()


def test_nothing_is_left_where_writing_fails(adapter: Make, tmp_path: Path) -> None:
    made = adapter()
    digest = made.digest()
    (tmp_path / "file").touch()
    before = sorted(tmp_path.iterdir())
    with pytest.raises(OSError):
        made.export(str(tmp_path / "file" / "model.keras"), "keras")
    assert sorted(tmp_path.iterdir()) == before
    assert made.digest() == digest
    train([made], [records(8)])


def test_missing_folders_are_made(adapter: Make, tmp_path: Path) -> None:
    adapter().export(str(tmp_path / "new" / "folder" / "model.keras"), "keras")
    assert (tmp_path / "new" / "folder" / "model.keras").is_file()


def test_averages_are_exported_and_training_goes_on_from_the_weights(adapter: Make, tmp_path: Path) -> None:
    import keras

    made = adapter("def optimizer():\n    return keras.optimizers.SGD(0.02, use_ema=True, ema_momentum=0.5)")
    train([made], [records(8)], steps=3)
    digest = made.digest()
    made.export(str(tmp_path / "model.keras"), "keras")
    assert made.digest() == digest
    exported = keras.models.load_model(tmp_path / "model.keras")
    averages = [v.numpy() for v in made.optimizer._model_variables_moving_average]
    for one, average, now in zip(exported.get_weights(), averages, made.model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, average)
        assert (one != now).any()


def test_the_hooks_of_the_end_run_before_the_export(adapter: Make, tmp_path: Path) -> None:
    import keras

    source = """
    class Last(keras.callbacks.Callback):
        def on_train_end(self, logs=None):
            self.model.layers[-1].kernel.assign([[1.0], [2.0], [3.0]])
    def callbacks():
        return [Last()]
    """
    made = adapter(source)
    digest = made.digest()
    made.end_training(0)
    assert made.digest() == digest
    for name in ("model", "again"):  # a second time if another view has to be the last one
        made.export(str(tmp_path / f"{name}.keras"), "keras")
        exported = keras.models.load_model(tmp_path / f"{name}.keras")
        np.testing.assert_array_equal(exported.get_weights()[0].ravel(), [1, 2, 3])
    assert made.digest() == digest
