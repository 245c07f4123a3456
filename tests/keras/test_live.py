"""What a model on live servers predicts, the model that a worker or a checkpoint gives predicts in a plain process."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

from elasticdl._core import Batch, Listener, ParameterClient, ParameterServer
from elasticdl.checkpoint.manifest import Manifest, write_manifest
from elasticdl.cli import run
from elasticdl.control.protocol.psmessages import SlotSection
from elasticdl.control.transport.keys import data_key
from elasticdl.data.plan.order import Dealing
from elasticdl.data.plan.shard import Shard
from elasticdl.keras.embedding import Given, looking_up
from elasticdl.keras.framework import FRAMEWORK
from elasticdl.keras.psadapter import KerasPsAdapter
from elasticdl.spec.edge import build, from_arguments
from elasticdl.worker.ps.tablereader import ServerTableReader
from tests.keras.test_streaming import by_plain_process

TOKEN = b"0123456789abcdef"
SECONDS = 30.0
IDS = 5000

ZOO = """
import keras, tensorflow as tf

def custom_model():
    ids = keras.Input((3,), dtype="int64", name="ids")
    deep = keras.layers.Embedding(5000, 4, name="deep")(ids)
    wide = keras.layers.Embedding(5000, 1, embeddings_initializer="zeros", name="wide")(ids)
    hidden = keras.layers.Dense(8, activation="relu")(keras.layers.Flatten()(deep))
    hidden = keras.layers.BatchNormalization()(hidden)
    return keras.Model({"ids": ids}, keras.layers.Dense(1)(hidden) + keras.layers.Flatten()(wide)[:, :1])

def loss(labels, predictions):
    return keras.losses.binary_crossentropy(labels, predictions, from_logits=True)

def optimizer():
    return keras.optimizers.Adagrad(0.1)

def feed(dataset, mode, metadata):
    def parse(row):
        numbers = tf.strings.to_number(row, tf.int64)
        return {"ids": numbers[:3]}, tf.cast(numbers[3:], tf.float32)
    return dataset.map(parse)
"""


def records(seed: int, count: int = 64) -> list[list[str]]:
    numbers = np.random.default_rng(seed).zipf(1.3, (count, 3)) % IDS
    return [[*map(str, row), str(sum(row) % 2)] for row in numbers.tolist()]


class Live:
    """Two servers and a worker's parts, in this process."""

    def __init__(self, zoo: Path) -> None:
        (zoo / "live.py").write_text(ZOO)
        given = {"model_zoo": zoo, "model_def": "live.custom_model", "training_data": "x", "num_ps_pods": 2}
        spec = build(from_arguments({**given, "embedding_threshold": 0}))
        self.adapter = KerasPsAdapter(FRAMEWORK.load(spec), spec)
        self.adapter.prepare(records(0))
        self.catalog, self.core = self.adapter.catalog, self.adapter.catalog.core()
        self.servers = [
            ParameterServer(Listener("tcp:127.0.0.1:0"), number, TOKEN, self.core) for number in (0, 1)
        ]
        addresses = {number: server.address for number, server in enumerate(self.servers)}
        entries = [(slot, 1, 1, slot % 2, None, 0) for slot in range(self.catalog.slots)]
        for server in self.servers:
            server.learn(addresses, entries, 0, 1000)
            server.know({"worker"})
        self.client = ParameterClient("worker", data_key(TOKEN), self.core)
        self.client.learn(addresses, entries, 0)
        self.variables = list(range(len(self.catalog.variables)))
        first = [(number, value.data) for number, value in enumerate(self.adapter.first_values())]
        self.settle(self.client.push((None, 0, 0, 0.0, 0), [], first, True))

    def close(self) -> None:
        self.client.close()
        for server in self.servers:
            server.close()

    def settle(self, ticket: int) -> None:
        assert self.client.settled(ticket, SECONDS) == "settled"

    def pull(self, batches: list[Batch], variables: list[int]) -> list[Any]:
        found = self.client.rows(self.client.pull(None, batches, variables), SECONDS)
        assert found is not None
        for variable, value in found[1]:
            assert value is not None
            self.adapter.take(variable, np.frombuffer(value, np.float32))
        return [np.frombuffer(one, np.float32) for one in found[0]]

    def train(self, task: int) -> None:
        chunk = self.adapter.convert(records(task))
        gradients = self.adapter.compute(chunk, self.pull(list(chunk.batches), self.variables), task, 0)
        rows = [
            (batch, slopes.data, True) for batch, slopes in zip(chunk.batches, gradients.rows, strict=True)
        ]
        head = ((task, 0), 0, 0, self.adapter.rate(task), task)
        dense = [(number, slope.data) for number, slope in enumerate(gradients.dense)]
        self.settle(self.client.push(head, rows, dense))

    def predict(self, lines: list[list[str]]) -> tuple[Any, Any]:
        """Return features, and what the model predicts with what the servers have now."""
        chunk = self.adapter.convert(lines)
        rows = self.pull(list(chunk.batches), self.variables)
        layout, places = self.adapter._step.layout, self.adapter._places
        for variable, place in zip((*layout.trained, *layout.changed), places, strict=True):
            variable.assign(self.adapter._dense[place].reshape(variable.shape))
        (features, _), at = chunk.data
        layers = self.adapter._step.layers
        given = [
            (tf.constant(row.reshape(-1, layer.output_dim)), where)
            for row, layer, where in zip(rows, layers, at, strict=True)
        ]
        with looking_up(Given(given)):
            return features, self.adapter.model(features, training=False).numpy()

    def reader(self) -> ServerTableReader:
        def listing(table: int, first: int, end: int) -> Any:
            ids = self.client.ids(self.client.ask_ids(table, first, end), SECONDS)
            assert ids is not None
            return np.frombuffer(ids, np.int64)

        return ServerTableReader(self.catalog, self.rows, listing)

    def rows(self, table: int, ids: Any) -> Any:
        batch = Batch(self.core, table, np.ascontiguousarray(ids).data)
        (rows,) = self.pull([batch], [])
        return rows.reshape(-1, self.catalog.tables[table].width)[np.frombuffer(batch.inverse(), np.uint32)]

    def checkpoint(self, folder: Path, tasks: int) -> None:
        folder.mkdir()
        sections = {}
        for number, server in enumerate(self.servers):
            path = folder / f"ps-{number}.slots"
            mine = [(slot, 1) for slot in range(number, self.catalog.slots, 2)]
            for slot, place, facts, proof in server.cut(str(path), mine, (tasks, []), 0):
                sections[slot] = (path, SlotSection(slot, 1, *place, *facts, *proof))
        dealing = Dealing((Shard("x", 0, 64 * tasks),), 0, False, 64, 64)
        ordered = tuple(sections[slot] for slot in range(self.catalog.slots))
        write_manifest(
            folder, Manifest(1, "live", 0.0, tasks, (), 0, dealing, self.catalog.to_json(), ordered)
        )


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    live = Live(tmp_path_factory.mktemp("zoo"))
    for task in range(20):
        live.train(task)
    yield live
    live.close()


def of_parquet(folder: Path) -> dict[str, dict[int, list[float]]]:
    found = {}
    for path in sorted((folder / "tables").iterdir()):
        table = pq.read_table(path)
        name = json.loads(table.schema.metadata[b"elasticdl"])["name"]
        ids, rows = table["id"].to_pylist(), table["weights"].to_pylist()
        assert len(set(ids)) == len(ids)
        found[name] = dict(zip(ids, rows, strict=True))
    return found


def test_exported_models_predict_as_live_servers_do(live: Live, tmp_path: Path) -> None:
    tasks = 20
    live.checkpoint(tmp_path / "checkpoint", tasks)
    features, expected = live.predict(records(99, 500))
    assert np.std(expected) > 0.02
    trained = {int(one) for task in range(tasks) for row in records(task) for one in row[:3]}
    assert len(trained) < IDS / 2  # ids among those predicted for have their initial weights
    dense = {one.name for one in live.catalog.variables}

    live.adapter.export(str(tmp_path / "learnt"), "parquet", live.reader())
    tables = of_parquet(tmp_path / "learnt")
    variables = pq.read_table(tmp_path / "learnt" / "variables.parquet").to_pylist()
    assert {one["name"] for one in variables} == dense
    for number, table in enumerate(live.catalog.tables):
        assert tables[table.name].keys() == trained
        ids = np.array(sorted(trained))
        rows = np.array([tables[table.name][id] for id in ids.tolist()], np.float32)
        np.testing.assert_array_equal(rows, live.rows(number, ids))

    model = ["--model_zoo", str(Path(live.adapter._user.path).parent), "--model_def", "live.custom_model"]
    command = ["export", str(tmp_path / "checkpoint"), "--output"]
    assert run([*command, str(tmp_path / "c"), "--output_format=parquet"]) == 0
    assert of_parquet(tmp_path / "c") == tables
    restored = tmp_path / "restored.keras"
    assert run([*command, str(restored), *model, "--embedding_threshold=0"]) == 0

    live.adapter.export(str(tmp_path / "m.keras"), "keras", live.reader())
    for found in by_plain_process({tmp_path / "m.keras": features, restored: features}):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    weights = [keras.models.load_model(path).get_weights() for path in (tmp_path / "m.keras", restored)]
    for one, other in zip(*weights, strict=True):
        np.testing.assert_array_equal(one, other)


def test_another_model_is_refused(live: Live, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    live.checkpoint(tmp_path / "checkpoint", 20)
    model = ["--model_zoo", str(Path(live.adapter._user.path).parent), "--model_def", "live.custom_model"]
    command = ["export", str(tmp_path / "checkpoint"), f"--output={tmp_path / 'm.keras'}"]
    assert run([*command, *model]) == 2
    assert "the checkpoint has the tables deep, wide, and the model none" in capsys.readouterr().err
    slots = tmp_path / "checkpoint" / "ps-0.slots"
    content = bytearray(slots.read_bytes())
    content[len(content) // 2] ^= 1
    slots.write_bytes(content)
    assert run([*command, *model, "--embedding_threshold=0"]) == 2
    assert "its checksum differs" in capsys.readouterr().err
    assert run(["export", str(tmp_path), f"--output={tmp_path / 'm'}", "--output_format=parquet"]) == 2
    assert sorted(one.name for one in tmp_path.iterdir()) == ["checkpoint"]
