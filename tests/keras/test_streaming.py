"""Tables are written into Keras models in blocks: plain processes load them, and no table is ever in memory as a whole."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import keras
import numpy as np
import pytest
import tensorflow as tf

from elasticdl.catalog import tablereader as reader
from elasticdl.errors import BadModel
from elasticdl.keras import streaming
from tests.keras.test_psadapter import IDS, RECORDS, Own, adapter_of, functional, pulled

PLAIN = """
import sys
sys.modules["elasticdl"] = None  # any import of it fails
import keras, numpy as np, tensorflow as tf
for path in sys.argv[1:]:
    with np.load(f"{path}-in.npz") as features:
        features = {name: tf.constant(value) for name, value in features.items()}
    is_keras = path.endswith(".keras")
    model = keras.models.load_model(path) if is_keras else tf.saved_model.load(path)
    np.save(f"{path}-out.npy", (model if is_keras else model.serve)(features))
"""


def by_plain_process(features: Mapping[Path, Any]) -> list[Any]:
    """Return what exported models predict in a process that can't import elasticdl; features by the models' paths."""
    for path, given in features.items():
        np.savez(f"{path}-in.npz", **{key: value.numpy() for key, value in given.items()})
    command = [sys.executable, "-c", PLAIN, *map(str, features)]
    done = subprocess.run(command, timeout=250, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [np.load(f"{path}-out.npy") for path in features]


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table has blocks that do not divide it, and several slices of several blocks."""
    monkeypatch.setattr(reader, "BLOCK", 7 * 3 * 4)
    monkeypatch.setattr(streaming, "_SLICE", 2 * 7 * 3 * 4)


def predictions(adapter: Any, features: Any, tables: list[Any]) -> Any:
    """What a job's model predicts at the variables that the adapter has taken and these tables."""
    layers = {layer.name: table for layer, table in zip(adapter._step.layers, tables, strict=True)}

    class Whole:
        def look_up(self, layer: Any, ids: Any) -> Any:
            return tf.gather(layers[layer.name], ids)

    from elasticdl.keras.embedding import looking_up

    layout = adapter._step.layout
    for variable, place in zip((*layout.trained, *layout.changed), adapter._places, strict=True):
        variable.assign(adapter._dense[place].reshape(variable.shape))
    with looking_up(Whole()):
        return adapter.model(features, training=False).numpy()


def test_a_plain_process_gets_the_same_predictions(tmp_path: Path) -> None:
    given, expected = {}, []
    for model, name in ((functional, "functional.keras"), (functional, "functional"), (Own, "own")):
        adapter = adapter_of(model)
        tables = [
            np.random.default_rng(width).normal(size=(IDS, width)).astype(np.float32)
            for width in (table.width for table in adapter.catalog.tables)
        ]
        for variable, value in enumerate(adapter.first_values()):
            adapter.take(variable, value * 0.9 + 0.1)
        features = adapter.convert(RECORDS).data[0][0]
        expected.append(predictions(adapter, features, tables))
        rows = pulled(adapter, lambda table, ids, tables=tables: tables[table][ids])
        path = tmp_path / name
        assert adapter.export(str(path), "keras" if path.suffix else "saved_model", rows)
        given[path] = features
        assert {*tmp_path.iterdir()} == given.keys()
        if not path.suffix:  # slices, and nothing but files of variables
            assert len(list((path / "variables").iterdir())) > 5
    for found, wanted in zip(by_plain_process(given), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_a_layer_that_keras_does_not_save_is_refused(tmp_path: Path) -> None:
    hidden: list[Any] = []

    class Hiding(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            hidden[:] = [keras.layers.Embedding(IDS, 2, name="hidden")]
            self.dense = keras.layers.Dense(1)

        def call(self, inputs: Any) -> Any:
            return self.dense(hidden[0](inputs["second"])[:, 0])

    adapter = adapter_of(Hiding)
    rows = pulled(adapter, lambda _, ids: np.ones((len(ids), 2), np.float32))
    with pytest.raises(BadModel, match="the embedding hidden is not among what Keras saves"):
        adapter.export(str(tmp_path / "m.keras"), "keras", rows)
    assert list(tmp_path.iterdir()) == []


ROWS, WIDTH = 1 << 19, 128
"""A table of 256 MiB."""
MORE = 192 << 20
"""Bytes that a process may use to write it."""

BOUNDED = """
import resource, sys
from pathlib import Path
import keras, numpy as np
from tests.keras import test_streaming as test
from tests.keras.test_psadapter import adapter_of, pulled

def model():
    other = keras.Input((2,), dtype="int64", name="first")
    ids = keras.Input((1,), dtype="int32", name="second")
    rows = keras.layers.Embedding(test.ROWS, test.WIDTH)(ids)
    return keras.Model({"first": other, "second": ids}, keras.layers.Dense(1)(keras.layers.Flatten()(rows)))

adapters = [adapter_of(model), adapter_of(model)]
status = Path("/proc/self/status").read_text().splitlines()
used = next(int(line.split()[1]) << 10 for line in status if line.startswith("VmData"))
limit = used + test.MORE
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
try:
    np.ones((test.ROWS, test.WIDTH), np.float32)
except MemoryError:
    print("a table is too much")
for adapter, name, kind in zip(adapters, ("m.keras", "m"), ("keras", "saved_model")):
    rows = pulled(adapter, lambda _, ids: np.repeat(ids.astype(np.float32)[:, None], test.WIDTH, 1))
    adapter.export(f"{sys.argv[1]}/{name}", kind, rows)
    print("written as", kind)
"""


def test_a_table_larger_than_what_may_be_used_is_written(tmp_path: Path) -> None:
    command = [sys.executable, "-c", BOUNDED, str(tmp_path)]
    done = subprocess.run(command, timeout=300, capture_output=True, text=True, check=False)
    said = ["a table is too much", "written as keras", "written as saved_model"]
    assert done.stdout.splitlines() == said, done.stderr
    with zipfile.ZipFile(tmp_path / "m.keras") as archive:
        archive.extract("model.weights.h5", tmp_path)
    with h5py.File(tmp_path / "model.weights.h5") as file:
        matrix = file["layers/embedding/vars/0"]
        assert matrix.shape == (ROWS, WIDTH)
        np.testing.assert_array_equal(matrix[ROWS - 1], np.full(WIDTH, ROWS - 1, np.float32))
    sizes = [one.stat().st_size for one in (tmp_path / "m" / "variables").iterdir()]
    assert ROWS * WIDTH * 4 < sum(sizes) < ROWS * WIDTH * 4 + (1 << 20)


def test_names_of_a_sequential_model_that_was_not_called_stay() -> None:
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(1)])
    assert streaming.with_ascii_names(model) is model
