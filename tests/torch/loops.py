"""Programs with loops, run in the test's own process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

import elasticdl.torch as edl
from elasticdl.torch import loop, runtime
from elasticdl.worker.contract.loop import Session

SEED = 5
runtime.start(1)


def data(records: int = 640) -> Any:
    """Return records of four features and one of three classes."""
    made = torch.Generator().manual_seed(1)
    features = torch.randn(records, 4, generator=made)
    return torch.utils.data.TensorDataset(features, (features.abs().sum(1) * 3).long() % 3)


class Network(torch.nn.Module):
    """With normalization by batches, so with buffers that change."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(4, 16),
            torch.nn.BatchNorm1d(16),
            torch.nn.GELU(),
            torch.nn.Dropout(dropout),
            torch.nn.Linear(16, 3),
        )

    def forward(self, rows: Any) -> Any:
        return self.layers(rows)


def network(dropout: float = 0.0) -> Network:
    """Return one that is the same each time."""
    torch.manual_seed(2)
    return Network(dropout)


@contextmanager
def job(session: Session | None = None, seed: int = SEED) -> Iterator[Any]:
    """Be a worker of a session, alone without one; nothing is left of it afterwards."""
    made = loop.begin(session, seed) if session is not None else edl.init(seed)
    try:
        yield made
    finally:
        made._finished = True
        made.passes.session.fail(AssertionError("the test ends"))


def same(one: Any, other: Any) -> bool:
    """Tell whether two modules have the same bits."""
    theirs = other.state_dict()
    return all(torch.equal(value, theirs[name]) for name, value in one.state_dict().items())


def order(plan: Any) -> Iterator[tuple[int, Any]]:
    """Yield the epoch and the records of each batch of one worker that is alone."""
    schedule = plan.schedule()
    for epoch in range(plan.num_epochs):
        for place in range(schedule.ledger.num_tasks):
            task = schedule.ledger.task(epoch, place)
            yield epoch, plan.records_of(epoch, schedule.ledger.chunk(task, 0))


def train(model: Any, optimizer: Any, loader: Any, after: Callable[[], None] = lambda: None) -> None:
    """The loop of any tutorial."""
    for features, labels in loader:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(features), labels).backward()
        optimizer.step()
        after()
