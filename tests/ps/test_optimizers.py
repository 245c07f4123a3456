"""The server's optimizers against Keras: the same gradients, step by step, on a dense variable and on rows of a table."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from elasticdl import _core
from elasticdl._core import Batch, Listener, ParameterClient, ParameterServer
from elasticdl.catalog.catalog import Catalog, Initial, InitialKind, Table, Variable
from elasticdl.control.transport.keys import data_key
from elasticdl.errors import BadModel
from elasticdl.keras.optimizer import _RULES, describe

TOKEN = b"0123456789abcdef0123456789abcdef"
SLOTS, WIDTH, ROWS, STEPS = 7, 5, 23, 40

OPTIMIZERS = {
    "sgd": keras.optimizers.SGD(0.1),
    "momentum": keras.optimizers.SGD(0.1, momentum=0.9),
    "nesterov": keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True),
    "adagrad": keras.optimizers.Adagrad(0.1),
    "adam": keras.optimizers.Adam(0.01),
    "amsgrad": keras.optimizers.Adam(0.01, amsgrad=True),
    "adamw": keras.optimizers.AdamW(0.01, weight_decay=0.02),
    "rmsprop": keras.optimizers.RMSprop(0.01),
    "rmsprop with momentum, centered": keras.optimizers.RMSprop(0.01, momentum=0.8, centered=True),
    "rmsprop, centered": keras.optimizers.RMSprop(0.01, centered=True),
    "adadelta": keras.optimizers.Adadelta(1.0),
    "ftrl": keras.optimizers.Ftrl(
        0.1,
        l1_regularization_strength=0.01,
        l2_regularization_strength=0.02,
        l2_shrinkage_regularization_strength=0.03,
        beta=0.1,
    ),
}


@dataclass
class Servers:
    """One server and one client, of a model with one table and one dense variable."""

    server: ParameterServer
    client: ParameterClient
    catalog: _core.Catalog

    def push(self, step: int, rate: float, ids: np.ndarray, rows: np.ndarray, dense: np.ndarray) -> None:
        batch = Batch(self.catalog, 0, ids)
        head = ((step, 0), 0, 0, rate, step)
        ticket = self.client.push(head, [(batch, rows, False)], [(0, dense)])
        assert self.client.settled(ticket, 10.0) == "settled"

    def table(self) -> np.ndarray:
        """Return all rows."""
        batch = Batch(self.catalog, 0, np.arange(ROWS))
        found = self.client.rows(self.client.pull(None, [batch], []), 10.0)
        assert found is not None
        rows = np.frombuffer(found[0][0], np.float32).reshape(-1, WIDTH)
        return rows[np.frombuffer(batch.inverse(), np.uint32)]

    def variable(self) -> np.ndarray:
        """Return the dense variable, which has changed since the last look."""
        found = self.client.rows(self.client.pull(None, [], [0]), 10.0)
        assert found is not None
        ((_, weights),) = found[1]
        assert weights is not None
        return np.frombuffer(weights, np.float32)


@pytest.fixture(params=OPTIMIZERS)
def case(request: pytest.FixtureRequest) -> Iterator[tuple[Any, Servers]]:
    given = OPTIMIZERS[request.param]
    tables = [Table("table", WIDTH, Initial(InitialKind.NORMAL, 0.0, 0.5))]
    catalog = Catalog(3, tables, [Variable("dense", (WIDTH,))], describe(given), SLOTS).core()
    server = ParameterServer(Listener("tcp:127.0.0.1:0"), 0, TOKEN, catalog)
    client = ParameterClient("worker", data_key(TOKEN), catalog)
    entries = [(slot, 1, 1, 0, None, 0) for slot in range(SLOTS)]
    server.learn({}, entries, 0, 1000)
    server.know({"worker"})
    client.learn({0: server.address}, entries, 0)
    yield type(given).from_config(given.get_config()), Servers(server, client, catalog)
    client.close()
    server.close()


def test_a_step_is_a_step_of_keras(case: tuple[Any, Servers]) -> None:
    optimizer, servers = case
    numbers = np.random.default_rng(5)
    first = numbers.normal(size=WIDTH).astype(np.float32)
    # Before there is a first value, a gradient's worker has to look again.
    early = servers.client.push(((0, 0), 0, 0, 1.0, 0), [], [(0, first)])
    assert servers.client.settled(early, 10.0) == "stale"
    head = (None, 0, 0, 0.0, 0)
    ticket = servers.client.push(head, [], [(0, first)], True)
    assert servers.client.settled(ticket, 10.0) == "settled"
    table, dense = keras.Variable(servers.table()), keras.Variable(first)
    optimizer.build([table, dense])
    for step in range(STEPS):
        # All rows, because those that are not touched do not decay here, and do in Keras; some of them several times.
        ids = np.concatenate([numbers.permutation(ROWS), numbers.integers(0, ROWS, 30)])
        rows = numbers.normal(size=(len(ids), WIDTH)).astype(np.float32)
        slope = numbers.normal(size=WIDTH).astype(np.float32)
        summed = np.zeros((ROWS, WIDTH), np.float32)
        np.add.at(summed, ids, rows)
        servers.push(step, float(optimizer.learning_rate), ids, rows, slope)
        optimizer.apply([keras.ops.convert_to_tensor(summed), keras.ops.convert_to_tensor(slope)])
        np.testing.assert_allclose(servers.table(), np.asarray(table), rtol=3e-5, atol=3e-6)
        np.testing.assert_allclose(servers.variable(), np.asarray(dense), rtol=3e-5, atol=3e-6)


def test_each_rule_is_tried_here_and_in_rust_and_documented() -> None:
    def text(path: str) -> str:
        return (Path(__file__).parents[2] / path).read_text(encoding="utf-8")

    variants = set(
        re.findall(r"^    (\w+) \{", text("rust/core/src/ps/memory/optimizer.rs").split("impl Rule")[0], re.M)
    )
    of_torch = set(
        re.findall(
            r"^    (\w+) \{", text("rust/core/src/ps/memory/torch.rs").split("impl TorchRule")[0], re.M
        )
    )
    tried = text("rust/core/src/ps/client/local.rs")
    assert variants == set(re.findall(r"\bRule::(\w+) \{", tried))
    assert of_torch == set(re.findall(r"\bTorchRule::(\w+) \{", tried))
    assert set(_RULES) == {type(optimizer).__name__ for optimizer in OPTIMIZERS.values()}
    names = {name for name, _ in _RULES.values()}
    assert names == {variant.lower() for variant in variants}
    table = text("docs/reference/checkpoint-format.md").split("| `rule.name` |")[1]
    documented = set(re.findall(r"^\| `(\w+)` \| \d", table, re.M))
    assert documented == names | {f"torch_{variant.lower()}" for variant in of_torch}
    page = text("docs/concepts/parameter-servers.md").lower()
    assert [name for name in _RULES if name.lower() not in page] == []


class Own(keras.optimizers.SGD):
    """It may compute anything."""


@pytest.mark.parametrize(
    ("optimizer", "said"),
    [
        (Own(), "parameter servers know the Keras optimizers SGD, .*; received .*Own"),
        (keras.optimizers.SGD(use_ema=True), "use_ema"),
        (keras.optimizers.SGD(gradient_accumulation_steps=2), "gradient_accumulation_steps"),
        (keras.optimizers.SGD(loss_scale_factor=2.0), "loss_scale_factor"),
    ],
)
def test_what_a_server_can_not_do_is_refused(optimizer: Any, said: str) -> None:
    with pytest.raises(BadModel, match=said):
        describe(optimizer)
