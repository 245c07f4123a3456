"""The rooms of the model zoo for parameter servers, each as a whole job."""

from __future__ import annotations

import csv
import importlib
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras
import pytest
import tensorflow as tf

from elasticdl.audit import audit
from tests.rows import clicks

from .conftest import Start, make

FLIGHTS = 4000
ZOO = Path(__file__).parents[2] / "model_zoo"


@pytest.fixture(scope="module")
def flights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with flights as CSV."""
    return make("flights", tmp_path_factory.mktemp("flights"), f"--rows={FLIGHTS}")


def loss_on(file: Path, model: Any) -> float:
    """Return a model's mean loss on flights, by plain Keras."""
    with file.open(encoding="utf-8", newline="") as text:
        names, *rows = csv.reader(text)
    sys.path.append(str(ZOO))
    try:
        feed = importlib.import_module("flights.columns").feed
    finally:
        sys.path.remove(str(ZOO))
    chunks = tf.data.Dataset.from_tensor_slices(tf.constant(rows)).batch(256)
    model.compile(loss="binary_crossentropy")
    examples = feed(chunks, "evaluation", SimpleNamespace(column_names=names))
    return float(model.evaluate(examples, verbose=0))


@pytest.mark.parametrize("name", ["dcn", "wide_deep", "xdeepfm"])
def test_flights(name: str, start: Start, flights: Path, tmp_path: Path) -> None:
    job = start(
        model_def=f"{name}.{name}_flights.custom_model",
        training_data=flights / "train",
        num_workers=1,
        num_ps_pods=2,
        output=tmp_path / "m.keras",
        audit=tmp_path / "audit",
    )
    summary = job.wait().succeeded().summary
    assert summary["records_trained"] == FLIGHTS * 9 / 10
    assert audit(tmp_path / "audit").complete
    model = keras.models.load_model(tmp_path / "m.keras")
    assert type(model.get_layer("vectors")) is keras.layers.Embedding
    # The loss of the last minibatch, which whoever was late computed, says little; that of who knows nothing is 0.69.
    assert loss_on(flights / "train" / "flights.csv", model) < 0.6


def test_clicks_have_rows_of_any_id(start: Start, tmp_path: Path) -> None:
    rows = clicks(2000)
    (tmp_path / "day_0").write_text("".join("\t".join(row) + "\n" for row in rows))
    settings = {
        "model_def": "criteo.deepfm_criteo.custom_model",
        "model_params": "units=32",
        "training_data": tmp_path / "day_0",
        "data_reader_params": r"delimiter='\t'",
        "num_workers": 1,
        "num_ps_pods": 2,
    }
    summary = start(**settings, audit=tmp_path / "audit").wait().succeeded().summary
    assert summary["records_trained"] == len(rows)
    assert audit(tmp_path / "audit").complete
    refused = start(**settings, output=tmp_path / "m.keras").wait()
    assert refused.code == 2
    assert "no matrix of a Keras model can hold its rows; write --output_format=parquet" in refused.err
