"""Jobs of Keras on JAX and PyTorch are as elastic and as exact as the others, and another backend reads their results."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.job.conftest import Start
from tests.job.losing import survived

from . import NEEDS

ZOO = Path(__file__).parent / "zoo"
EPOCHS = 40
"""Of 120 flowers: 320 steps, which take their time until the faults are done."""


@pytest.mark.parametrize("backend", NEEDS)
def test_a_job_survives_the_loss_of_workers_and_master_and_a_joiner(
    backend: str, start: Start, iris: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then Keras on TensorFlow evaluates the result, and finds what the job has found."""
    NEEDS[backend]()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    job = start(
        environment={"GO": str(tmp_path / "go"), "KERAS_BACKEND": backend},
        model_zoo=ZOO,
        model_def="flowers.custom_model",
        minibatch_size=8,
        num_minibatches_per_task=1,
        training_data=iris / "train",
        validation_data=iris / "train",
        num_workers=2,
        num_epochs=EPOCHS,
        global_batch_size=16,
        audit=tmp_path / "audit",
        output=tmp_path / "flowers.keras",
        witness_seconds=2,
    )
    summary = survived(job, tmp_path, 120, EPOCHS)
    assert summary["metrics"]["val_accuracy"] > 0.9

    import keras
    import numpy as np

    from .zoo import flowers

    model = keras.models.load_model(tmp_path / "flowers.keras")
    rows = [
        line.split(",")
        for path in sorted((iris / "train").iterdir())
        for line in path.read_text().splitlines()[1:]
    ]
    features, labels = flowers.feed(rows, "evaluation", None)
    accuracy = float(np.mean(model.predict(features, verbose=0).argmax(1) == labels))
    assert summary["metrics"]["val_accuracy"] == pytest.approx(accuracy)
