"""A job of one worker is the plain loop with a Trainer over the same records in the same order, bit for bit, its result included."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import elasticdl
from elasticdl.data.plan.order import ledger_of
from elasticdl.data.plan.shard import Shard
from elasticdl.spec.edge import build, from_arguments

from . import FULL, records

ZOO = Path(__file__).parent / "zoo"
STEPS, EPOCHS = 200, 10
SEED = 7


def test_200_steps_of_a_job_are_those_of_the_plain_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import mxnet as mx

    from elasticdl.mxnet.runtime import seed_chunk
    from elasticdl.mxnet.state import MxnetState

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
    summary = elasticdl.train(**settings, output=tmp_path / "rows")
    assert summary["steps"] == STEPS

    from .zoo import rows

    seed_chunk(SEED, 0, 0)  # the weights that a model begins with are those of the job's seed
    with mx.name.NameManager():
        model = rows.custom_model()
    trainer = mx.gluon.Trainer(model.collect_params(), rows.optimizer(), kvstore=None)
    ledger = ledger_of(build(from_arguments(settings)), (Shard("rows.csv", 0, len(data)),))
    for epoch in range(EPOCHS):
        for place in range(ledger.num_tasks):
            task = ledger.task(epoch, place)
            for chunk in range(ledger.num_chunks(task)):
                features, labels = map(
                    mx.nd.array, rows.feed([data[n] for n in ledger.chunk(task, chunk)], "training", None)
                )
                with mx.autograd.record():
                    loss = rows.loss(model(features), labels)
                loss.backward()
                trainer.step(FULL)
    exported = mx.gluon.SymbolBlock.imports(
        str(tmp_path / "rows/model-symbol.json"), ["data"], str(tmp_path / "rows/model-0000.params")
    )
    written = {name: one.data().asnumpy() for name, one in exported.collect_params().items()}
    theirs = {name: one.data().asnumpy() for name, one in model.collect_params().items()}
    assert written.keys() == theirs.keys()
    for name, value in theirs.items():
        np.testing.assert_array_equal(written[name], value, err_msg=name)
    np.testing.assert_array_equal(exported(features).asnumpy(), model(features).asnumpy())
    assert summary["digest"] == MxnetState(model, 1, trainer._updaters[0], "rows.py").digest()
