"""Gradients and rows that travel as bfloat16: rounded once where they are sent, widened where they come in; all else keeps its bits."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ml_dtypes import bfloat16

from elasticdl import _core
from elasticdl._core import Batch, Listener, ParameterClient, ParameterServer
from elasticdl.catalog.catalog import Catalog, Initial, InitialKind, Rule, Table, Variable
from elasticdl.control.transport.keys import data_key

from .model import TOKEN

SLOTS, WIDTH, ROWS, LENGTH = 5, 3, 30, 7
SECONDS = 30.0
WEIGHTS, STATISTICS = 0, 1
Floats = npt.NDArray[np.float32]


def rounded(numbers: Floats) -> Floats:
    return numbers.astype(bfloat16).astype(np.float32)


class Servers:
    """One server under plain SGD, and a client for each choice of what is short."""

    def __init__(self) -> None:
        tables = [Table("rows", WIDTH, Initial(InitialKind.NORMAL, 0.0, 0.5))]
        variables = [Variable("weights", (LENGTH,)), Variable("statistics", (LENGTH,), adds=True)]
        rule = Rule("sgd", {"momentum": 0.0, "nesterov": 0.0})
        self.core: _core.Catalog = Catalog(3, tables, variables, rule, SLOTS).core()
        self.server = ParameterServer(Listener("tcp:127.0.0.1:0"), 0, TOKEN, self.core)
        entries = [(slot, 1, 1, 0, None, 0) for slot in range(SLOTS)]
        self.server.learn({}, entries, 0, 1 << 20)
        self.server.know({"worker"})
        self.clients: dict[tuple[bool, bool], ParameterClient] = {}
        self.task = 0
        for gradients in (False, True):
            for rows in (False, True):
                client = ParameterClient(
                    "worker", data_key(TOKEN), self.core, short_gradients=gradients, short_rows=rows
                )
                client.learn({0: self.server.address}, entries, 0)
                self.clients[gradients, rows] = client

    def close(self) -> None:
        for client in self.clients.values():
            client.close()
        self.server.close()

    def push(
        self,
        short: tuple[bool, bool],
        ids: npt.NDArray[np.int64],
        rows: Floats,
        dense: list[tuple[int, Floats]],
    ) -> None:
        client = self.clients[short]
        head = ((self.task, 0), 0, 0, 1.0, self.task)
        self.task += 1
        ticket = client.push(head, [(Batch(self.core, 0, ids), rows, False)], dense)
        assert client.settled(ticket, SECONDS) == "settled"

    def pull(self, short: tuple[bool, bool], *, exact: bool = False) -> Floats:
        """Return all rows as they come."""
        client, batch = self.clients[short], Batch(self.core, 0, np.arange(ROWS))
        found = client.rows(client.pull(None, [batch], [], exact=exact), SECONDS)
        assert found is not None
        rows = np.frombuffer(found[0][0], np.float32).reshape(-1, WIDTH)
        return rows[np.frombuffer(batch.inverse(), np.uint32)]

    def variables(self) -> list[Floats]:
        client = ParameterClient("worker", data_key(TOKEN), self.core, short_gradients=True, short_rows=True)
        client.learn({0: self.server.address}, [(slot, 1, 1, 0, None, 0) for slot in range(SLOTS)], 0)
        found = client.rows(client.pull(None, [], [WEIGHTS, STATISTICS]), SECONDS)
        client.close()
        assert found is not None
        values = dict(found[1])
        weights, statistics = values[WEIGHTS], values[STATISTICS]
        assert weights is not None
        assert statistics is not None
        return [np.frombuffer(one, np.float32) for one in (weights, statistics)]


@pytest.fixture
def servers() -> Iterator[Servers]:
    made = Servers()
    yield made
    made.close()


def first_values(servers: Servers, random: np.random.Generator) -> list[Floats]:
    """Give both variables their first values with a client of short gradients; return them."""
    first = [random.normal(size=LENGTH).astype(np.float32) for _ in range(2)]
    client = servers.clients[True, True]
    ticket = client.push((None, 0, 0, 0.0, 0), [], list(enumerate(first)), True)
    assert client.settled(ticket, SECONDS) == "settled"
    return first


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=st.lists(st.tuples(st.booleans(), st.booleans(), st.integers(0, 90)), min_size=1, max_size=4),
    seed=st.integers(0, 2**32),
)
def test_what_is_pushed_and_pulled_is_rounded_once(steps: list[tuple[bool, bool, int]], seed: int) -> None:
    random = np.random.default_rng(seed)
    servers = Servers()
    try:
        weights, statistics = first_values(servers, random)
        expected = servers.pull((False, False)).copy()
        for gradients, rows, count in steps:
            ids = random.integers(0, ROWS, count)
            slopes = random.normal(size=(count, WIDTH)).astype(np.float32)
            dense = [random.normal(size=LENGTH).astype(np.float32) for _ in range(2)]
            servers.push((gradients, rows), ids, slopes, list(enumerate(dense)))
            sums = np.zeros_like(expected)
            np.add.at(sums, ids, slopes)  # the worker adds up before it rounds
            touched = np.isin(np.arange(ROWS), ids)
            expected[touched] -= (rounded(sums) if gradients else sums)[touched]
            weights = weights - (rounded(dense[0]) if gradients else dense[0])
            statistics = statistics + dense[1]
            there = servers.pull((gradients, rows))
            np.testing.assert_array_equal(there, rounded(expected) if rows else expected)
            np.testing.assert_array_equal(servers.pull((gradients, rows), exact=True), expected)
        for found, known in zip(servers.variables(), (weights, statistics), strict=True):
            np.testing.assert_array_equal(found, known)
    finally:
        servers.close()


@pytest.mark.parametrize("number", [np.nan, np.inf, np.finfo(np.float32).max])
def test_a_short_gradient_that_is_not_finite_is_refused(servers: Servers, number: float) -> None:
    """Also the few float32 that bfloat16 has not, and that are rounded to infinity."""
    client, before = servers.clients[True, False], servers.pull((False, False))
    rows = np.zeros((4, WIDTH), np.float32)
    rows[2, 1] = number
    head = ((0, 0), 0, 0, 1.0, 0)
    ticket = client.push(head, [(Batch(servers.core, 0, np.arange(4)), rows, False)], [])
    with pytest.raises(ValueError, match=r"the gradient of row 2 of table rows holds (NaN|inf)"):
        client.settled(ticket, SECONDS)
    first_values(servers, np.random.default_rng(0))
    slope = np.full(LENGTH, number, np.float32)
    ticket = client.push(((1, 0), 0, 0, 1.0, 0), [], [(WEIGHTS, slope)])
    with pytest.raises(ValueError, match=r"the gradient of variable weights holds (NaN|inf)"):
        client.settled(ticket, SECONDS)
    np.testing.assert_array_equal(servers.pull((False, False)), before)
