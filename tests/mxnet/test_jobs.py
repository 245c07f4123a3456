"""Jobs of MXNet models are as elastic and as exact as the others, and their results are plain MXNet's."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest

from tests.job.conftest import Start
from tests.job.losing import survived
from tests.loops.test_jobs import survive

ZOO = Path(__file__).parent / "zoo"
FLOWERS, EPOCHS = 120, 24
"""192 steps, which take their time until the faults are done."""


@pytest.fixture
def rows(tmp_path: Path) -> list[list[str]]:
    """Write `flowers/rows.csv`: three kinds that four lengths tell apart, mostly."""
    draw = np.random.default_rng(5)
    kinds = np.arange(FLOWERS) % 3
    lengths = draw.normal(kinds[:, None] * [1.0, -0.5, 2.0, 0.5], 0.5, (FLOWERS, 4))
    (tmp_path / "flowers").mkdir()
    found = [[*(f"{one:.3f}" for one in row), str(kind)] for row, kind in zip(lengths, kinds, strict=True)]
    (tmp_path / "flowers/rows.csv").write_text("\n".join(["a,b,c,d,kind", *map(",".join, found)]) + "\n")
    return found


@pytest.fixture
def begin(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
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
    begin: Start, rows: list[list[str]], tmp_path: Path
) -> None:
    """Then plain MXNet finds in the result what the job found, and a job predicts with it."""
    job = begin(
        training_data=tmp_path / "flowers",
        validation_data=tmp_path / "flowers",
        num_workers=2,
        num_epochs=EPOCHS,
        global_batch_size=16,
        audit=tmp_path / "audit",
        output=tmp_path / "trained",
        witness_seconds=2,
    )
    summary = survived(job, tmp_path, FLOWERS, EPOCHS)

    import mxnet as mx

    from .zoo import flowers

    model = mx.gluon.SymbolBlock.imports(
        str(tmp_path / "trained/model-symbol.json"), ["data"], str(tmp_path / "trained/model-0000.params")
    )
    features, labels = map(mx.nd.array, flowers.feed(rows, "evaluation", None))
    outputs = model(features)
    accuracy = float((outputs.argmax(axis=1) == labels).mean().asscalar())
    loss = float(flowers.loss(outputs, labels).mean().asscalar())
    assert summary["metrics"]["val_accuracy"] == pytest.approx(accuracy)
    assert summary["metrics"]["val_loss"] == pytest.approx(loss, rel=1e-5)
    assert summary["metrics"]["val_top2"] >= accuracy > 0.9

    job = begin(
        command="predict",
        job_name="predicting",
        prediction_data=tmp_path / "flowers",
        trained_model=tmp_path / "trained",
        output=tmp_path / "predicted",
    )
    job.wait().succeeded()
    table = pyarrow.parquet.read_table(tmp_path / "predicted")
    predicted = np.stack(table["prediction"].to_numpy())
    np.testing.assert_allclose(predicted, outputs.asnumpy(), atol=1e-5)


def test_a_loop_survives_every_loss_and_gives_the_bits_of_the_program_alone(
    start: Start, rows: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of Gluon, with a schedule and dropout, by the arrays that any framework has."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    survive("flowers_mxnet", start, tmp_path / "flowers/rows.csv", tmp_path)
