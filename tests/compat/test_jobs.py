"""A job of a model file of ElasticDL 0.2 is as elastic and as exact as the others; its model is evaluated, and its processor predicts."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from tests.job.conftest import Start, start  # noqa: F401  # a fixture
from tests.job.losing import survived

from .driving import rows

ZOO = Path(__file__).parent / "zoo"
RECORDS, EPOCHS = 120, 24


@pytest.fixture
def begin(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:  # noqa: F811
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "census").mkdir()
    head = ["age", "hours_per_week", "work_class", "education", "label"]
    lines = [head, *rows("census", RECORDS)]
    (tmp_path / "census/rows.csv").write_text("\n".join(map(",".join, lines)) + "\n")
    return functools.partial(
        start,
        environment={"GO": str(tmp_path / "go")},
        model_zoo=ZOO,
        model_def="census_paced.custom_model",
        framework="tf_keras",
        minibatch_size=8,
        num_minibatches_per_task=1,
    )


def test_a_job_survives_losses_and_its_model_is_evaluated_and_predicts(begin: Start, tmp_path: Path) -> None:
    job = begin(
        training_data=tmp_path / "census",
        num_workers=2,
        num_epochs=EPOCHS,
        global_batch_size=16,
        audit=tmp_path / "audit",
        output=tmp_path / "model.keras",
        witness_seconds=2,
    )
    survived(job, tmp_path, RECORDS, EPOCHS)

    trained = {"trained_model": tmp_path / "model.keras"}
    job = begin(command="evaluate", job_name="evaluating", validation_data=tmp_path / "census", **trained)
    assert 0.0 <= job.wait().succeeded().summary["metrics"]["val_auc"] <= 1.0
    begin(
        command="predict", job_name="predicting", prediction_data=tmp_path / "census", **trained
    ).wait().succeeded()
    found = [value for path in tmp_path.glob("predicted-*") for value in path.read_text().split()]
    assert len(found) == RECORDS
    assert all(0.0 <= float(value) <= 1.0 for value in found)
