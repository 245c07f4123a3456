"""The room of the model zoo for PyTorch with parameter servers trains, with servers and without."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from elasticdl.spec import framework
from tests.rows import FLIGHT_COLUMNS, flights

from . import LIFE, job
from .servers import Worker, ps_adapter_of

torch = pytest.importorskip("torch", reason="make setup-torch")

ZOO = Path(__file__).parents[2] / "model_zoo"
EPOCHS, FULL = 25, 50


def test_flights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ZOO)
    settings = {"model_zoo": str(ZOO), "model_def": "deepfm.deepfm_flights_torch.custom_model"}
    found, metadata = framework.find("torch"), SimpleNamespace(column_names=FLIGHT_COLUMNS)
    file = found.load(job(**settings))
    user = replace(file, optimizer=lambda parameters: file.optimizer(parameters, lr=0.1))
    rows = flights(400)
    chunks = [rows[start : start + FULL] for start in range(0, len(rows), FULL)]
    assert user.feed(rows, "prediction", metadata)["ids"].shape == (400, 7)

    worker = Worker(ps_adapter_of(user, rows[:FULL], metadata, **settings))
    try:
        assert [table.name for table in worker.adapter.catalog.tables] == ["vectors", "weights"]
        losses = [np.mean([worker.train(chunk) for chunk in chunks]) for _ in range(EPOCHS)]
        assert losses[-1] < 0.7 * losses[0]
    finally:
        worker.close()
    alone = found.adapter(user, job(**settings), metadata, LIFE)
    alone.prepare(rows[:FULL])

    losses = []
    for _ in range(5):
        done = alone.compute(alone.convert(chunks[0]), 1, 0)
        alone.apply(np.array(alone.accumulator()), done.examples)
        losses.append(done.loss)
    assert losses[-1] < 0.95 * losses[0]
