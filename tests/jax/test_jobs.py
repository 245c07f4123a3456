"""Jobs of JAX model files are as elastic and as exact as the others, and their results are plain Flax's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from elasticdl.spec import framework
from tests.job.conftest import Start
from tests.job.losing import survived

from . import made_of, need_jax
from .test_export import predict

ZOO = Path(__file__).parent / "zoo"
EPOCHS = 40
"""Of 120 flowers: 320 steps, which take their time until the faults are done."""


def test_a_job_survives_the_loss_of_workers_and_master_and_a_joiner(
    start: Start, iris: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then the model with the result's weights gives what the job has found."""
    need_jax()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    job = start(
        environment={"GO": str(tmp_path / "go")},
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
        output=tmp_path / "flowers.npz",
        witness_seconds=2,
    )
    summary = survived(job, tmp_path, 120, EPOCHS)

    framework.find("jax").start(1)
    from .zoo import flowers

    rows = [
        line.split(",")
        for path in sorted((iris / "train").iterdir())
        for line in path.read_text().splitlines()[1:]
    ]
    _, labels = flowers.feed(rows, "evaluation", None)
    outputs = predict(made_of(flowers.custom_model, feed=flowers.feed), tmp_path / "flowers.npz", rows)
    accuracy = float(np.mean(outputs.argmax(1) == labels))
    assert summary["metrics"]["val_accuracy"] == pytest.approx(accuracy)
    assert summary["metrics"]["val_loss"] == pytest.approx(
        float(flowers.loss(labels, outputs).mean()), rel=1e-5
    )
    assert accuracy > 0.9
