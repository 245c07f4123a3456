"""Jobs of PyTorch models are as elastic and as exact as the others, and their results are plain PyTorch's."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest

from tests.job.conftest import Start
from tests.job.losing import survived

from . import need_torch

ZOO = Path(__file__).parent / "zoo"
EPOCHS = 40
"""Of 120 flowers: 320 steps, which take their time until the faults are done."""


@pytest.fixture
def begin(start: Start, iris: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    need_torch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return functools.partial(
        start,
        environment={"GO": str(tmp_path / "go")},
        model_zoo=ZOO,
        model_def="flowers.custom_model",
        minibatch_size=8,
        num_minibatches_per_task=1,
    )


def test_a_job_survives_the_loss_of_workers_and_master_and_a_joiner(
    begin: Start, iris: Path, tmp_path: Path
) -> None:
    """Then plain PyTorch finds in the result what the job found, and a job predicts with it, exported."""
    job = begin(
        training_data=iris / "train",
        validation_data=iris / "train",
        num_workers=2,
        num_epochs=EPOCHS,
        global_batch_size=16,
        audit=tmp_path / "audit",
        output=tmp_path / "flowers.pt",
        witness_seconds=2,
    )
    summary = survived(job, tmp_path, 120, EPOCHS)

    import torch

    from .zoo import flowers

    model = flowers.custom_model().eval()
    model.load_state_dict(torch.load(tmp_path / "flowers.pt", weights_only=True))
    rows = [
        line.split(",")
        for path in sorted((iris / "train").iterdir())
        for line in path.read_text().splitlines()[1:]
    ]
    features, labels = flowers.feed(rows, "evaluation", None)
    outputs = model(features).detach()
    accuracy = float((outputs.argmax(1) == labels).double().mean())
    assert summary["metrics"]["val_accuracy"] == pytest.approx(accuracy)
    assert summary["metrics"]["val_loss"] == pytest.approx(float(flowers.loss(labels, outputs)), rel=1e-5)
    assert accuracy > 0.9

    batch = torch.export.Dim("batch")
    exported = torch.export.export(model, (features,), dynamic_shapes=({0: batch},))
    torch.export.save(exported, tmp_path / "flowers.pt2")
    job = begin(
        command="predict",
        job_name="predicting",
        num_workers=1,
        prediction_data=iris / "train",
        trained_model=tmp_path / "flowers.pt2",
        output=tmp_path / "predicted",
    )
    job.wait().succeeded()
    table = pyarrow.parquet.read_table(tmp_path / "predicted")
    predicted = np.stack(table["prediction"].to_numpy())
    np.testing.assert_allclose(predicted, outputs.numpy(), atol=1e-6)
