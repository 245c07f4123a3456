"""Jobs of model files of ElasticDL 0.2 are as elastic and as exact as others, with and without servers; what they trained is used."""

from __future__ import annotations

import functools
import os
import signal
from pathlib import Path

import pytest

from elasticdl.audit import audit
from tests.job.conftest import Start, start  # noqa: F401  # a fixture
from tests.job.losing import survived
from tests.job.test_faults import at_step, kill, training
from tests.job.test_ps import at, processes

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


def test_a_job_survives_losses_and_its_model_predicts(begin: Start, tmp_path: Path) -> None:
    """`driving.py` evaluates models of such jobs."""
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

    begin(
        command="predict",
        job_name="predicting",
        num_workers=1,
        prediction_data=tmp_path / "census",
        trained_model=tmp_path / "model.keras",
    ).wait().succeeded()
    found = [value for path in tmp_path.glob("predicted-*") for value in path.read_text().split()]
    assert len(found) == RECORDS
    assert all(0.0 <= float(value) <= 1.0 for value in found)


def test_rows_of_the_old_embedding_on_servers_survive_a_worker_and_a_server(
    begin: Start, tmp_path: Path
) -> None:
    """Nothing says which framework: the file has an optimizer that only Keras 2 has."""
    (tmp_path / "clicks").mkdir()
    lines = [["a", "b", "c", "label"], *rows("deepfm", RECORDS)]
    (tmp_path / "clicks/rows.csv").write_text("\n".join(map(",".join, lines)) + "\n")
    job = begin(
        model_def="deepfm_paced.custom_model",
        framework="auto",
        training_data=tmp_path / "clicks",
        validation_data=tmp_path / "clicks",
        num_workers=2,
        num_ps_pods=2,
        num_epochs=EPOCHS // 2,
        audit=tmp_path / "audit",
        output=tmp_path / "model.keras",
        witness_seconds=2,
    )
    at_step(job, 10, lambda status: kill(training(status)[-1]))
    at(job, 20, lambda status: os.kill(processes(status, "ps")[0], signal.SIGKILL))
    (tmp_path / "go").touch()
    summary = job.wait().succeeded().summary
    assert summary["members"]["lost"] == 1
    assert summary["servers"]["lost"] == 1
    assert summary["roll_backs"] == 0
    report = audit(tmp_path / "audit")
    assert report.complete
    assert report.records == report.trained == RECORDS * EPOCHS // 2
    assert summary["metrics"]["val_probs_auc"] > 0.9, "it knows nothing"
