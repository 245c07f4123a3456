"""A worker with a parameter server is plain PyTorch: the same model with torch.nn.Embedding, step by step, by each optimizer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from . import made_of
from .servers import Worker, ps_adapter_of

torch = pytest.importorskip("torch", reason="make setup-torch")

IDS, WIDTH, STEPS = 12, 3, 40
OF = torch.optim
OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "SGD": lambda p: OF.SGD(p, 0.1),
    "SGD, momentum, decay": lambda p: OF.SGD(p, 0.1, momentum=0.9, weight_decay=0.01),
    "SGD, nesterov": lambda p: OF.SGD(p, 0.1, momentum=0.9, nesterov=True),
    "Adagrad": lambda p: OF.Adagrad(p, 0.1),
    "Adagrad, all": lambda p: OF.Adagrad(p, 0.1, lr_decay=0.1, weight_decay=0.01, initial_accumulator_value=0.2, eps=0.01),
    "Adam": lambda p: OF.Adam(p, 0.01),
    "Adam, all": lambda p: OF.Adam(p, 0.01, (0.8, 0.9), eps=0.01, weight_decay=0.01, amsgrad=True),
    "AdamW": lambda p: OF.AdamW(p, 0.01, weight_decay=0.1),
    "RMSprop": lambda p: OF.RMSprop(p, 0.01),
    "RMSprop, all": lambda p: OF.RMSprop(p, 0.01, 0.9, 0.01, weight_decay=0.01, momentum=0.8, centered=True),
    "Adadelta": lambda p: OF.Adadelta(p, 1.0, weight_decay=0.01),
}  # fmt: skip


class Net(torch.nn.Module):
    """One table that two features are looked up in, and batch normalization."""

    def __init__(self, table: Any) -> None:
        super().__init__()
        self.table = table
        self.normal = torch.nn.BatchNorm1d(2 * WIDTH)
        self.dense = torch.nn.Linear(2 * WIDTH, 3)

    def forward(self, first: Any, second: Any) -> Any:
        rows = torch.cat([self.table(first), self.table(second)], 1)
        return self.dense(self.normal(rows))


def served() -> Any:
    from elasticdl.torch import Embedding

    return Net(Embedding(WIDTH, IDS, feature=("first", "second")))


def feed(records: Any, mode: str, metadata: Any) -> Any:
    rows = torch.tensor(records)
    return {"first": rows[:, 0], "second": rows[:, 1]}, rows[:, 2]


def chunks() -> Iterator[list[list[int]]]:
    """Chunks that look up all ids each: rows that are not touched stay as they are on servers, and move on by momentum in a matrix."""
    draw = np.random.default_rng(1)
    while True:
        ids = draw.integers(0, IDS, IDS)
        yield [[n, int(ids[n]), (n + int(ids[n])) % 3] for n in range(IDS)]


@pytest.fixture(params=OPTIMIZERS)
def optimizer(request: pytest.FixtureRequest) -> Callable[[Any], Any]:
    return OPTIMIZERS[request.param]


def test_steps_are_those_of_the_plain_loop(optimizer: Callable[[Any], Any]) -> None:
    user = made_of(served, optimizer, feed=feed)
    records = chunks()
    sample = next(records)
    worker = Worker(ps_adapter_of(user, sample, seed=3))
    try:
        plain = Net(torch.nn.Embedding(IDS, WIDTH))
        theirs = plain.state_dict()
        with torch.no_grad():
            theirs["table.weight"].copy_(torch.from_numpy(table_of(worker)))
            for described, value in zip(
                worker.adapter.catalog.variables, worker.adapter.first_values(), strict=True
            ):
                theirs[described.name].copy_(torch.from_numpy(value).view(described.shape))
        step = optimizer(plain.parameters())
        for _ in range(STEPS):
            chunk = next(records)
            features, labels = feed(chunk, "training", None)
            step.zero_grad()
            loss = user.loss(labels, plain(**features))
            loss.backward()
            step.step()
            assert worker.train(chunk) == pytest.approx(loss.item(), rel=1e-4)
        np.testing.assert_allclose(table_of(worker), theirs["table.weight"], rtol=2e-5, atol=2e-6)
        ours = dict(
            zip(
                [one.name for one in worker.adapter.catalog.variables],
                worker.adapter._tensors(),
                strict=True,
            )
        )
        assert ours.keys() == theirs.keys() - {"table.weight"}
        for name, value in ours.items():
            np.testing.assert_allclose(
                value.detach(), theirs[name].detach(), rtol=2e-5, atol=2e-6, err_msg=name
            )
        assert ours["normal.num_batches_tracked"] == STEPS
    finally:
        worker.close()


def test_each_optimizer_is_tried_and_documented() -> None:
    from elasticdl.torch.psoptimizer import RULES

    parameter = [torch.nn.Parameter(torch.ones(1))]
    assert {type(make(parameter)) for make in OPTIMIZERS.values()} == set(RULES)
    page = (Path(__file__).parents[2] / "docs" / "guides" / "pytorch.md").read_text(encoding="utf-8")
    assert [one.__name__ for one in RULES if f"`{one.__name__}`" not in page] == []


def table_of(worker: Worker) -> np.ndarray:
    return np.concatenate(list(worker.reader().matrix(0, IDS)))
