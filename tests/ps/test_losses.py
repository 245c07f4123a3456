"""Servers are killed, added and sent away while a worker pushes: what was acknowledged is there exactly once."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from elasticdl import _core
from elasticdl._core import Batch, ParameterClient

from .fleet import Fleet
from .model import ROWS, WIDTH, catalog


class Trainer:
    """Pushes whole numbers and keeps account of them."""

    def __init__(self, fleet: Fleet) -> None:
        self.client: ParameterClient = fleet.client("worker")
        self.catalog: _core.Catalog = catalog().core()
        self.expected = np.zeros((ROWS, WIDTH), np.float32)
        self.bias = np.zeros(WIDTH, np.float32)
        self.task = 0
        self.open: list[int] = []
        self._numbers = np.random.default_rng(7)
        ticket = self.client.push((None, 0, 0, 0.0, 0), [], [(0, self.bias)], True)
        assert self.client.settled(ticket, 30.0) == "settled"

    def push(self, *, unsettled: int = 2) -> None:
        """Push one chunk, and wait until only so many are not settled."""
        ids = self._numbers.integers(0, ROWS, 200)
        rows = self._numbers.integers(-3, 4, (200, WIDTH)).astype(np.float32)
        bias = self._numbers.integers(-3, 4, WIDTH).astype(np.float32)
        batch = Batch(self.catalog, 0, ids)
        head = ((self.task, 0), 0, 0, 1.0, self.task)
        self.open.append(self.client.push(head, [(batch, rows, False)], [(0, bias)]))
        np.subtract.at(self.expected, ids, rows)
        self.bias -= bias
        self.task += 1
        self.settle(unsettled)

    def go_on(self) -> None:
        """Push if not too much is open; slots about to be handed over wait for the master, which is this thread."""
        if len(self.open) < 20:
            self.push(unsettled=20)
        while self.open and self.client.settled(self.open[0], 0.0) == "settled":
            self.open.pop(0)

    def settle(self, unsettled: int = 0) -> None:
        """Wait for acknowledgements."""
        while len(self.open) > unsettled:
            assert self.client.settled(self.open.pop(0), 30.0) == "settled"

    def check(self) -> None:
        """Compare what is there with what was acknowledged."""
        self.settle()
        batch = Batch(self.catalog, 0, np.arange(ROWS))
        found = self.client.rows(self.client.pull(None, [batch], [0]), 30.0)
        assert found is not None
        ((rows,), ((_, bias),), _) = found
        there = np.frombuffer(rows, np.float32).reshape(-1, WIDTH)[np.frombuffer(batch.inverse(), np.uint32)]
        np.testing.assert_array_equal(there, self.expected)
        assert bias is not None
        np.testing.assert_array_equal(np.frombuffer(bias, np.float32), self.bias)


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    fleet = Fleet(3, replicas=2)
    yield fleet
    fleet.close()


@pytest.mark.timeout(120)
def test_servers_are_killed_one_after_the_other(fleet: Fleet) -> None:
    trainer = Trainer(fleet)
    for _ in range(6):
        for _ in range(10):
            trainer.push()
        # Two chunks are under way when it dies.
        fleet.kill(min(fleet.processes))
        for _ in range(5):
            trainer.push()
        fleet.add()
        fleet.settle(trainer.go_on)
        trainer.check()


@pytest.mark.timeout(120)
def test_servers_come_and_go_while_a_worker_pushes(fleet: Fleet) -> None:
    trainer = Trainer(fleet)
    for _ in range(3):
        fleet.add()
        fleet.settle(trainer.go_on)
        fleet.leaving = {min(fleet.processes)}
        fleet.settle(trainer.go_on)
        trainer.check()
    assert len(fleet.processes) == 3


@pytest.mark.timeout(120)
def test_a_chunk_that_is_pushed_again_counts_once(fleet: Fleet) -> None:
    trainer = Trainer(fleet)
    trainer.push(unsettled=0)
    again = fleet.client("another worker")
    batch = Batch(trainer.catalog, 0, np.arange(ROWS))
    rows = np.ones((ROWS, WIDTH), np.float32)
    # Other rows than the chunk has: only the slots that the chunk has not touched take them, which a real one never does.
    ticket = again.push(((0, 0), 0, 0, 1.0, 0), [(batch, rows, False)], [(0, np.ones(WIDTH, np.float32))])
    assert again.settled(ticket, 30.0) == "settled"
    found = again.rows(again.pull((0, 0), [batch], [0]), 30.0)
    assert found is not None
    assert len(found[2]) == 64
    ((_, bias),) = found[1]
    assert bias is not None
    np.testing.assert_array_equal(np.frombuffer(bias, np.float32), trainer.bias)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_a_gradient_that_is_no_number_is_refused(fleet: Fleet, number: float) -> None:
    trainer = Trainer(fleet)
    batch = Batch(trainer.catalog, 0, np.arange(4))
    rows = np.full((4, WIDTH), number, np.float32)
    ticket = trainer.client.push(((0, 0), 0, 0, 1.0, 0), [(batch, rows, False)], [])
    with pytest.raises(ValueError, match=r"the gradient of row [0-3] of table rows holds (NaN|inf)"):
        trainer.client.settled(ticket, 30.0)
    trainer.task = 1
    trainer.push()
    trainer.check()
