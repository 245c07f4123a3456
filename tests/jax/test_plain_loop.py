"""A job of one worker is the plain `nnx.jit` loop over the same records in the same order, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import elasticdl
from elasticdl.data.plan.order import ledger_of
from elasticdl.data.plan.shard import Shard
from elasticdl.spec import framework
from elasticdl.spec.edge import build, from_arguments
from elasticdl.worker.seeds import chunk_seeds

from . import FULL, need_jax, records

ZOO = Path(__file__).parent / "zoo"
STEPS, EPOCHS = 200, 10
SEED = 7


def test_200_steps_of_a_job_are_those_of_the_plain_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need_jax()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    data = records(STEPS // EPOCHS * FULL)
    (tmp_path / "rows.csv").write_text("\n".join(["a,b,c,d,label", *map(",".join, data)]) + "\n")
    settings: dict[str, Any] = {
        "model_zoo": str(ZOO),
        "model_def": "rows.custom_model",
        "training_data": str(tmp_path / "rows.csv"),
        "minibatch_size": FULL,
        "num_minibatches_per_task": 3,  # a task of each epoch is shorter
        "num_epochs": EPOCHS,
        "seed": SEED,
        "distribution_strategy": "Local",
        "threads_per_worker": 1,
    }
    summary = elasticdl.train(**settings, output=tmp_path / "rows.npz")
    assert summary["steps"] == STEPS

    framework.find("jax").start(1)
    from flax import nnx

    from .zoo import rows

    # the weights that a model begins with are those of the job's seed
    model = rows.custom_model(nnx.Rngs(int(chunk_seeds(SEED, 0, 0, 1)[0][0])))
    model.train()
    optimizer = nnx.Optimizer(model, rows.optimizer(), wrt=nnx.Param)

    @nnx.jit
    def step(model: Any, optimizer: Any, features: Any, labels: Any) -> None:
        gradient = nnx.grad(lambda model: rows.loss(labels, model(features)))(model)
        optimizer.update(model, gradient)

    ledger = ledger_of(build(from_arguments(settings)), (Shard("rows.csv", 0, len(data)),))
    for epoch in range(EPOCHS):
        for place in range(ledger.num_tasks):
            task = ledger.task(epoch, place)
            for chunk in range(ledger.num_chunks(task)):
                raw = [data[n] for n in ledger.chunk(task, chunk)]
                step(model, optimizer, *rows.feed(raw, "training", None))
    theirs = nnx.to_flat_state(nnx.state(model, nnx.Not(nnx.RngState)))
    with np.load(tmp_path / "rows.npz") as written:
        assert set(written.files) == {"/".join(map(str, path)) for path, _ in theirs}
        for path, variable in theirs:
            np.testing.assert_array_equal(written["/".join(map(str, path))], variable.get_value(), str(path))
