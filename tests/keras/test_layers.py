"""The layer of our own: any ids, dense, sparse or ragged, and combined as a plain computation says."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from elasticdl.catalog.catalog import InitialKind
from elasticdl.errors import BadData, BadModel
from elasticdl.keras import Embedding
from elasticdl.keras.adapter import KerasAdapter
from elasticdl.keras.psadapter import KerasPsAdapter
from elasticdl.spec.edge import build, from_arguments
from elasticdl.worker.contract.usermodel import UserModel
from tests.keras.test_psadapter import pulled

WIDTH = 3
RECORDS = [["5 -7 5", "0.5 2 1"], ["", ""], ["9000000000000000000 0", "1 3"], ["-7", "-1"]]
"""Ids with repetitions and of none, and their weights."""
RANKED = [5, -7, 5, 9000000000000000000, 0, -7]
OWNERS = [0, 0, 0, 2, 2, 3]
WEIGHTS = [0.5, 2, 1, 1, 3, -1]
PADDED = 4
"""Length of dense ids; 0 fills them up."""

Records = Sequence[Sequence[str]]


def sparse_feed(dataset: Any, mode: str, metadata: Any) -> Any:
    def parse(row: Any) -> Any:
        words = [tf.strings.split(row[place : place + 1]) for place in range(2)]
        ids, weights = (
            tf.sparse.reshape(tf.strings.to_number(one, dtype).to_sparse(), [-1])
            for one, dtype in zip(words, (tf.int64, tf.float32), strict=True)
        )
        return {"ids": ids, "weights": weights}, tf.ones([1])

    return dataset.map(parse)


def ragged_feed(dataset: Any, mode: str, metadata: Any) -> Any:
    def parse(row: Any) -> Any:
        return tf.strings.to_number(tf.strings.split(row[:1]), tf.int64), tf.ones([1])

    return dataset.map(parse)


def dense_feed(dataset: Any, mode: str, metadata: Any) -> Any:
    def parse(row: Any) -> Any:
        ids = tf.strings.to_number(tf.strings.split(row[:1]), tf.int64)
        return ids.to_tensor(shape=(1, PADDED))[0], tf.ones([1])

    return dataset.map(parse)


def reduced(labels: Any, predictions: Any) -> Any:
    return tf.reduce_mean(predictions)


def sgd() -> keras.optimizers.Optimizer:
    return keras.optimizers.SGD(0.1)


def adapter_of(
    model: Callable[[], keras.Model], feed: Any, records: Records = RECORDS, **settings: Any
) -> KerasPsAdapter:
    user = UserModel(Path("m.py"), model, {}, reduced, sgd, feed, None, None)
    given = {"model_def": "m.model", "training_data": "x", "num_ps_pods": 1, **settings}
    adapter = KerasPsAdapter(user, build(from_arguments(given)))
    adapter.prepare(records)
    return adapter


class Judged(keras.layers.Layer):
    """Gives outputs slopes that all differ."""

    def call(self, inputs: Any) -> Any:
        flat = tf.reshape(inputs, [tf.shape(inputs)[0], -1])
        return tf.reduce_sum(tf.square(flat) * tf.cast(1 + tf.range(tf.shape(flat)[1]), tf.float32), 1)

    def compute_output_spec(self, inputs: Any) -> Any:
        return keras.KerasTensor((inputs.shape[0],))


def matrix(ids: Sequence[int]) -> np.ndarray:
    """Return rows that differ, of the distinct ids in order."""
    return np.arange(len(ids) * WIDTH, dtype=np.float32).reshape(len(ids), WIDTH) / 7 + 1


def rows_and_slopes(adapter: KerasPsAdapter, records: Records) -> tuple[list[int], np.ndarray, float]:
    """Return the distinct ids in order, their rows' gradients, and the loss, of a chunk with `matrix` as rows."""
    batch = adapter.convert(records)
    ids = np.frombuffer(batch.batches[0].ids(), np.int64)
    order = np.argsort(ids)
    rows = np.empty((len(ids), WIDTH), np.float32)
    rows[order] = matrix(ids)
    found = adapter.compute(batch, [rows.reshape(-1)], 0, 0)
    return ids[order].tolist(), found.rows[0].reshape(-1, WIDTH)[order], found.loss


def expected(
    combiner: str, ids: Sequence[int], owners: Sequence[int], weights: Sequence[float], examples: int
) -> tuple[list[int], np.ndarray, float]:
    """Return the same by matrices alone: each example's sums are a matrix of weights times the rows."""
    distinct = sorted(set(ids))
    share = np.zeros((examples, len(distinct)), np.float32)
    for one, owner, weight in zip(ids, owners, weights, strict=True):
        share[owner, distinct.index(one)] += weight
    for owner in range(examples):
        own = np.array([w for w, o in zip(weights, owners, strict=True) if o == owner])
        if len(own) and combiner != "sum":
            share[owner] /= own.sum() if combiner == "mean" else np.sqrt(np.square(own).sum())
    scale = np.arange(1, WIDTH + 1)
    sums = share @ matrix(distinct)
    slopes = share.T @ (2 * sums * scale) / examples
    return distinct, slopes, float((np.square(sums) * scale).sum() / examples)


def compare(found: tuple[list[int], np.ndarray, float], wanted: tuple[list[int], np.ndarray, float]) -> None:
    assert found[0] == wanted[0]
    np.testing.assert_allclose(found[1], wanted[1], rtol=1e-4, atol=1e-5)
    assert found[2] == pytest.approx(wanted[2], rel=1e-4)


def judged(inputs: Any, features: Any, **settings: Any) -> keras.Model:
    rows = Embedding(WIDTH, name="rows", **settings)(features)
    return keras.Model(inputs, Judged()(rows))


@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
@pytest.mark.parametrize("weighted", [False, True])
def test_sparse_ids_are_combined(combiner: str, weighted: bool) -> None:
    def model() -> keras.Model:
        ids = keras.Input((None,), dtype="int64", sparse=True, name="ids")
        weights = keras.Input((None,), sparse=True, name="weights")
        layer = Embedding(WIDTH, combiner=combiner)
        rows = layer(ids, weights=weights) if weighted else layer(ids)
        return keras.Model({"ids": ids, "weights": weights}, Judged()(rows))

    adapter = adapter_of(model, sparse_feed)
    weights = WEIGHTS if weighted else [1.0] * len(RANKED)
    compare(rows_and_slopes(adapter, RECORDS), expected(combiner, RANKED, OWNERS, weights, 4))


@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
def test_ragged_ids_are_combined(combiner: str) -> None:
    class Own(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.rows = Embedding(WIDTH, combiner=combiner)
            self.judged = Judged()

        def call(self, inputs: Any, training: bool = False) -> Any:
            rows = self.rows(inputs)
            return self.judged(rows.to_tensor() if isinstance(rows, tf.RaggedTensor) else rows)

    adapter = adapter_of(Own, ragged_feed)
    compare(rows_and_slopes(adapter, RECORDS), expected(combiner, RANKED, OWNERS, [1.0] * len(RANKED), 4))


@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
@pytest.mark.parametrize("mask_zero", [False, True])
def test_dense_ids_are_combined_without_their_padding(combiner: str, mask_zero: bool) -> None:
    def model() -> keras.Model:
        ids = keras.Input((PADDED,), dtype="int64")
        return judged(ids, ids, combiner=combiner, mask_zero=mask_zero)

    adapter = adapter_of(model, dense_feed)
    ids, owners = RANKED, OWNERS
    if mask_zero:
        pairs = [(one, owner) for one, owner in zip(RANKED, OWNERS, strict=True) if one]
    else:
        missing = [(0, owner) for owner in range(4) for _ in range(PADDED - OWNERS.count(owner))]
        pairs = [*zip(RANKED, OWNERS, strict=True), *missing]
    ids, owners = zip(*pairs, strict=True)
    compare(rows_and_slopes(adapter, RECORDS), expected(combiner, ids, owners, [1.0] * len(ids), 4))


def test_a_chunk_without_any_id() -> None:
    def model() -> keras.Model:
        ids = keras.Input((None,), dtype="int64", sparse=True, name="ids")
        weights = keras.Input((None,), sparse=True, name="weights")
        return judged({"ids": ids, "weights": weights}, ids, combiner="mean")

    adapter = adapter_of(model, sparse_feed)
    ids, slopes, loss = rows_and_slopes(adapter, [["", ""], ["", ""]])
    assert ids == []
    assert slopes.shape == (0, WIDTH)
    assert loss == 0


def test_one_table_is_looked_up_twice_with_and_without_a_range() -> None:
    def model() -> keras.Model:
        ids = keras.Input((PADDED,), dtype="int64")
        rows, sized = Embedding(WIDTH, name="rows"), Embedding(2, input_dim=1 << 63, name="sized")
        parts = [rows(ids[:, :2]), rows(ids[:, 2:]), sized(ids[:, :1] * 0)]
        return keras.Model(
            ids, Judged()(keras.layers.Concatenate()([keras.layers.Flatten()(p) for p in parts]))
        )

    adapter = adapter_of(model, dense_feed)
    tables = {table.name: place for place, table in enumerate(adapter.catalog.tables)}
    assert tables.keys() == {"rows", "sized"}
    assert adapter.catalog.tables[tables["rows"]].initial.kind is InitialKind.UNIFORM
    batch = adapter.convert(RECORDS)
    ids = {name: np.frombuffer(batch.batches[place].ids(), np.int64) for name, place in tables.items()}
    assert sorted(ids["rows"]) == sorted(set(RANKED))
    assert ids["sized"].tolist() == [0]


def test_the_upper_half_of_uint64_is_ids_too() -> None:
    def feed(dataset: Any, mode: str, metadata: Any) -> Any:
        def parse(row: Any) -> Any:
            return tf.bitcast(tf.strings.to_number(row, tf.int64), tf.uint64), tf.ones([1])

        return dataset.map(parse)

    def model() -> keras.Model:
        ids = keras.Input((2,), dtype="uint64")
        return judged(ids, ids)

    adapter = adapter_of(model, feed, [["-1", "3"]])
    ids = np.frombuffer(adapter.convert([["-1", "3"]]).batches[0].ids(), np.uint64)
    assert sorted(ids.tolist()) == [3, (1 << 64) - 1]


def test_rows_of_ragged_ids_and_the_mask_of_dense_ones() -> None:
    layer = Embedding(2, input_dim=4, embeddings_initializer="ones", mask_zero=True)
    ragged = layer(tf.ragged.constant([[1, 2], [3]], dtype=tf.int64))
    assert ragged.to_list() == [[[1.0, 1.0], [1.0, 1.0]], [[1.0, 1.0]]]
    assert layer.compute_mask(tf.constant([[0, 3]])).numpy().tolist() == [[False, True]]


@pytest.mark.parametrize("combiner", [None, "sum", "mean", "sqrtn"])
def test_with_a_range_it_is_plain_keras(combiner: str | None, tmp_path: Path) -> None:
    ids = keras.Input((2,), dtype="int64")
    layer = Embedding(3, input_dim=5, combiner=combiner)
    model = keras.Model(ids, layer(ids))
    (table,) = layer.get_weights()
    data = np.array([[4, 4], [0, 1]])
    rows = {
        None: lambda found: found,
        "sum": lambda found: found.sum(1),
        "mean": lambda found: found.mean(1),
        "sqrtn": lambda found: found.sum(1) / np.sqrt(2),
    }[combiner](table[data])
    np.testing.assert_allclose(model(data).numpy(), rows, rtol=1e-6)
    assert model.output_shape == (None, *rows.shape[1:])
    model.save(tmp_path / "m.keras")
    loaded = keras.models.load_model(tmp_path / "m.keras")
    np.testing.assert_array_equal(loaded(data).numpy(), model(data).numpy())


def test_padding_is_masked_on_the_servers_too() -> None:
    def model() -> keras.Model:
        ids = keras.Input((PADDED,), dtype="int64")
        rows = Embedding(WIDTH, mask_zero=True)(ids)
        return keras.Model(ids, Judged()(keras.layers.GlobalAveragePooling1D()(rows)))

    records = [one for one in RECORDS if one[0]]
    ids, slopes, _ = rows_and_slopes(adapter_of(model, dense_feed, records), records)
    assert ids == [-7, 0, 5, 9000000000000000000]
    assert slopes.any(1).tolist() == [True, False, True, True]


def test_combining_is_exact_in_half_precision() -> None:
    layer = Embedding(1, input_dim=2, embeddings_initializer="ones", combiner="mean", dtype="mixed_float16")
    (mean,) = layer(tf.ones([1, 5000], tf.int64)).numpy()
    assert mean.dtype == np.float16
    assert mean == 1


def test_a_batch_of_ragged_ids_of_two_dimensions() -> None:
    layer = Embedding(2, input_dim=4, embeddings_initializer="ones", combiner="sum")
    ids = tf.ragged.constant([[[1, 2], []], [[3]]], dtype=tf.int64)
    assert layer(ids).to_list() == [[[2.0, 2.0], [0.0, 0.0]], [[1.0, 1.0]]]
    sparse = tf.sparse.from_dense(tf.constant([[[1, 2], [0, 0]], [[3, 0], [0, 0]]], tf.int64))
    assert layer(sparse)[..., 0].numpy().tolist() == [[2.0, 0.0], [1.0, 0.0]]


def test_without_servers_a_table_of_any_range_is_refused() -> None:
    with pytest.raises(BadModel, match=r"train it with --num_ps_pods, or give it input_dim"):
        Embedding(3, name="rows")(np.array([[1]]))


def test_the_exported_model_needs_a_range(tmp_path: Path) -> None:
    def unbounded() -> keras.Model:
        ids = keras.Input((PADDED,), dtype="int64")
        return judged(ids, ids)

    with pytest.raises(
        BadModel, match="the embedding rows has ids of any range, so no matrix of a Keras model"
    ):
        adapter_of(unbounded, dense_feed, output=str(tmp_path / "m.keras"))
    assert adapter_of(unbounded, dense_feed).export("", "keras", lambda table, ids: pytest.fail("listed"))


def test_a_saved_model_needs_nothing_of_ours(tmp_path: Path) -> None:
    def model() -> keras.Model:
        ids = keras.Input((PADDED,), dtype="int64")
        return keras.Model(ids, Embedding(WIDTH, input_dim=4, combiner="sum")(ids))

    adapter = adapter_of(model, dense_feed, [["1 2", ""]])
    ones = pulled(adapter, lambda _, ids: np.ones((len(ids), WIDTH), np.float32))
    adapter.export(str(tmp_path / "m"), "saved_model", ones)
    code = (
        "import tensorflow as tf; m = tf.saved_model.load('m'); "
        "print(m.serve(tf.constant([[0, 1, 2, 3]], tf.int64)).numpy().tolist())"
    )
    run = subprocess.run(
        [sys.executable, "-I", "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert run.stdout == "[[4.0, 4.0, 4.0]]\n", run.stderr


@pytest.mark.parametrize("combiner", [None, "mean"])
def test_the_exported_model(combiner: str | None, tmp_path: Path) -> None:
    records = [["1 2", ""], ["3 3", ""]]
    table = np.arange(4 * WIDTH, dtype=np.float32).reshape(4, WIDTH)

    def model() -> keras.Model:
        ids = keras.Input((PADDED,), dtype="int64")
        rows = Embedding(WIDTH, input_dim=4, combiner=combiner, name="rows")(ids)
        return keras.Model(ids, keras.layers.Dense(1)(keras.layers.Flatten()(rows)))

    adapter = adapter_of(model, dense_feed, records, output=str(tmp_path / "m.keras"))
    with pytest.raises(BadData, match=r"the embedding rows has the ids 0 to 3, received -7"):
        adapter.convert(RECORDS)
    adapter.export(str(tmp_path / "m.keras"), "keras", pulled(adapter, lambda _, ids: table[ids]))
    loaded = keras.models.load_model(tmp_path / "m.keras")
    assert type(loaded.get_layer("rows")) is (keras.layers.Embedding if combiner is None else Embedding)
    np.testing.assert_array_equal(loaded.get_layer("rows").get_weights()[0], table)
    data = np.array([[1, 2, 0, 3]])
    kernel, bias = loaded.get_layer("dense").get_weights()
    rows = table[data[0]]
    flat = rows.reshape(1, -1) if combiner is None else rows.mean(0, keepdims=True)
    np.testing.assert_allclose(loaded(data).numpy(), flat @ kernel + bias, rtol=1e-5)


def test_what_it_can_not_do_is_refused() -> None:
    with pytest.raises(BadModel, match="combiner is None, sum, mean, sqrtn; received 'max'"):
        Embedding(3, combiner="max")
    with pytest.raises(BadModel, match="has no combiner, which sparse ids need"):
        Embedding(3, input_dim=4)(tf.sparse.from_dense(tf.constant([[1, 2]])))
    with pytest.raises(BadModel, match="takes integers as ids; received float32"):
        Embedding(3, input_dim=4)(tf.constant([[1.0]]))

    def scaled() -> keras.Model:
        ids = keras.Input((PADDED,), dtype="int64")
        return judged(ids, ids, embeddings_initializer="glorot_uniform")

    with pytest.raises(BadModel, match="its initial weights depend on how many there are; give it input_dim"):
        adapter_of(scaled, dense_feed)


def test_without_servers_sparse_ids_train_a_matrix() -> None:
    def model() -> keras.Model:
        ids = keras.Input((None,), dtype="int64", sparse=True, name="ids")
        weights = keras.Input((None,), sparse=True, name="weights")
        return judged({"ids": ids, "weights": weights}, ids, input_dim=10, combiner="sum")

    user = UserModel(Path("m.py"), model, {}, reduced, sgd, sparse_feed, None, None)
    adapter = KerasAdapter(user, build(from_arguments({"model_def": "m.model", "training_data": "x"})))
    records = [["3 3 9", "1 1 1"], ["", ""]]
    adapter.prepare(records)
    (table,) = adapter.model.get_weights()
    result = adapter.compute(adapter.convert(records), 1, 0)
    adapter.apply(np.array(adapter.accumulator()), result.examples)
    (trained,) = adapter.model.get_weights()
    assert np.flatnonzero((trained != table).any(1)).tolist() == [3, 9]
