"""A job of one worker is the plain loop over the same records in the same order, bit for bit: model, optimizer and scheduler."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import elasticdl
from elasticdl.data.plan.order import ledger_of
from elasticdl.data.plan.shard import Shard
from elasticdl.spec.edge import build, from_arguments

from . import FULL, records

torch = pytest.importorskip("torch", reason="make setup-torch")

ZOO = Path(__file__).parent / "zoo"
STEPS, EPOCHS = 200, 10
SEED = 7


def test_200_steps_of_a_job_are_those_of_the_plain_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from elasticdl.torch.building import Schedule
    from elasticdl.torch.runtime import seed_chunk
    from elasticdl.torch.state import TorchState

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
    summary = elasticdl.train(**settings, output=tmp_path / "rows.pt")
    assert summary["steps"] == STEPS

    from .zoo import rows

    seed_chunk(SEED, 0, 0)  # the weights that a model begins with are those of the job's seed
    model = rows.custom_model()
    optimizer = rows.optimizer(model.parameters())
    scheduler = rows.lr_scheduler(optimizer)
    ledger = ledger_of(build(from_arguments(settings)), (Shard("rows.csv", 0, len(data)),))
    for epoch in range(EPOCHS):
        for place in range(ledger.num_tasks):
            task = ledger.task(epoch, place)
            for chunk in range(ledger.num_chunks(task)):
                features, labels = rows.feed([data[n] for n in ledger.chunk(task, chunk)], "training", None)
                optimizer.zero_grad()
                rows.loss(labels, model(features)).backward()
                optimizer.step()
                scheduler.step()
    written = torch.load(tmp_path / "rows.pt", weights_only=True)
    theirs = model.state_dict()
    assert written.keys() == theirs.keys()
    assert all(torch.equal(value, theirs[name]) for name, value in written.items())
    state = TorchState(model, optimizer, Schedule(scheduler, by_epoch=False), "rows.py")
    assert summary["digest"] == state.digest()
