"""Preprocessing layers: the earlier generation's literal values, dense, sparse and ragged, saved and loaded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elasticdl.keras import runtime

runtime.start(1)

import keras  # noqa: E402  # TensorFlow is imported with its settings first
import tensorflow as tf  # noqa: E402

from elasticdl.preprocessing import layers  # noqa: E402

NAN = float("nan")


def sparse(values: Any) -> Any:
    return tf.SparseTensor(
        [[place, place] for place in range(len(values))], values, [len(values), len(values) + 1]
    )


def ragged(values: Any) -> Any:
    return tf.RaggedTensor.from_row_lengths(values, [1, 0, len(values) - 1])


LITERAL: list[tuple[Callable[[], Any], list[Any], list[Any]]] = [
    (
        lambda: layers.LogRound(16, base=2),
        [1.2, 1.6, 0.2, 3.1, 100, 1e9, 0, -3, NAN],
        [0, 1, 0, 2, 7, 0, 0, 0, 0],
    ),
    (lambda: layers.LogRound(4, default_value=3), [1.0, np.e, np.e**2, 1e9, NAN], [0, 1, 2, 3, 3]),
    (lambda: layers.RoundIdentity(5), [1.2, 1.6, 0.2, 3.1, 4.9, 2.5, 3.5], [1, 2, 0, 3, 0, 2, 4]),
    (lambda: layers.RoundIdentity(5, 4), [-1.0, 5.0, NAN, 3.0], [4, 4, 4, 3]),
    (lambda: layers.ToNumber("float32", 1.5), ["", "2.5", "-3"], [1.5, 2.5, -3.0]),
    (lambda: layers.ToNumber(tf.int64, 7), ["", "2", "-3"], [7, 2, -3]),
    (lambda: layers.ToNumber("int32", 0), [1.7, 2.2], [1, 2]),
    (lambda: layers.IndexLookup(["b", "a"]), ["a", "b", "z"], [1, 0, 2]),
    (lambda: keras.layers.Hashing(3), ["A", "B", "C", "D", "E"], [1, 0, 1, 1, 2]),
    (lambda: keras.layers.Hashing(3), [1, 2], [0, 1]),
    (lambda: keras.layers.Discretization([0.0, 1.0, 2.0]), [-1.0, 0, 0.5, 1, 2, 3], [0, 1, 1, 2, 3, 3]),
    (lambda: keras.layers.Normalization(mean=3.0, variance=16.0), [3.0, 5.0, 7.0], [0.0, 0.5, 1.0]),
]


@pytest.mark.parametrize(("make", "values", "expected"), LITERAL)
def test_literal_values(make: Callable[[], Any], values: list[Any], expected: list[Any]) -> None:
    layer = make()
    assert np.asarray(layer(tf.constant(values))).tolist() == expected
    if not isinstance(layer, keras.layers.Normalization):
        assert np.asarray(layer(sparse(values)).values).tolist() == expected
    if type(layer).__module__ == layers.__name__:
        found = layer(ragged(values))
        assert found.flat_values.numpy().tolist() == expected
        assert found.row_lengths().numpy().tolist() == [1, 0, len(values) - 1]


def test_unknown_texts_are_behind_the_vocabulary(tmp_path: Path) -> None:
    (tmp_path / "words").write_text("b\na\n")
    layer = layers.IndexLookup(str(tmp_path / "words"), num_oov_tokens=3)
    assert layer.vocab_size() == 5
    found = layer(tf.constant([["b", "a"], ["x", "y"]])).numpy()
    assert found[0].tolist() == [0, 1]
    hashes = tf.strings.to_hash_bucket_fast(["x", "y"], 3).numpy()
    assert found[1].tolist() == (2 + hashes).tolist()


def test_forms() -> None:
    dense = tf.constant([["a", ""], ["", "b"]])
    assert layers.ToSparse()(dense).indices.numpy().tolist() == [[0, 0], [1, 1]]
    assert layers.ToSparse()(tf.constant([[1, -1], [-1, 0]])).values.numpy().tolist() == [1, 0]
    assert layers.ToSparse()(tf.constant([[1.0, 0.0]])).values.numpy().tolist() == [1.0]
    assert layers.ToSparse(ignore_value=5)(tf.constant([[5, -1]])).values.numpy().tolist() == [-1]
    assert layers.ToSparse()(tf.ragged.constant([["a"], ["", "b"]])).values.numpy().tolist() == [b"a", b"b"]
    kept = sparse([1, 2])
    assert layers.ToSparse()(kept) is kept
    assert layers.ToRagged()(tf.constant([["1,2"], [""], ["3"]])).to_list() == [[b"1", b"2"], [], [b"3"]]
    assert layers.ToRagged("|")(tf.constant(["a|b", "c"])).to_list() == [[b"a", b"b"], [b"c"]]
    assert layers.ToRagged()(tf.constant([[1, -1], [-1, -1]])).to_list() == [[1], []]
    assert layers.ToRagged()(tf.ragged.constant([[1.0, 0.0], [2.0]])).to_list() == [[1.0], [2.0]]


def test_concatenation_with_offsets() -> None:
    one, other = tf.constant([[1], [1]]), tf.constant([[2], [2]])
    assert layers.ConcatenateWithOffset([0, 10])([one, other]).numpy().tolist() == [[1, 12], [1, 12]]
    assert layers.ConcatenateWithOffset(None)([one, other]).numpy().tolist() == [[1, 2], [1, 2]]
    assert layers.ConcatenateWithOffset([3])(one) is one
    assert layers.ConcatenateWithOffset([0, 10])(
        [tf.ragged.constant([[1], []]), tf.ragged.constant([[2, 3], [4]])]
    ).to_list() == [[1, 12, 13], [14]]
    both = layers.ConcatenateWithOffset([0, 10])([sparse([1, 2]), sparse([3, 4])])
    assert tf.sparse.to_dense(both).numpy().tolist() == [[1, 0, 0, 13, 0, 0], [0, 2, 0, 0, 14, 0]]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: layers.IndexLookup(["a", "b", "a"]), "the vocabulary has 'a' twice"),
        (lambda: layers.IndexLookup(["a"], 0), "num_oov_tokens is 1 or more; got 0"),
        (lambda: layers.ToNumber("string", 0), "out_type is a type of numbers; got string"),
        (lambda: layers.ConcatenateWithOffset([1])([tf.constant([[1]])] * 2), "1 offsets for 2 inputs"),
    ],
)
def test_refusals(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_models_of_symbols_are_saved_and_loaded(tmp_path: Path) -> None:
    text, tags = (
        keras.Input((1,), dtype="string", name="text"),
        keras.Input((1,), dtype="string", name="tags"),
    )
    number = keras.Input((1,), name="number")
    lookup = layers.IndexLookup(["a", "b"], name="lookup")
    ids = layers.ConcatenateWithOffset([0, 3])([lookup(text), layers.LogRound(8, base=2.0)(number)])
    ids = layers.ConcatenateWithOffset([0, 11])(
        [ids, layers.RoundIdentity(4, 1)(layers.ToNumber("float32", 2)(text))]
    )
    parts = layers.ToRagged()(tags)
    model = keras.Model(
        {"text": text, "tags": tags, "number": number},
        {"ids": ids, "parts": lookup(parts), "present": layers.ToSparse()(tags)},
    )
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    given = {
        "text": tf.constant([[""], ["3"]]),
        "tags": tf.constant([["a,b,z"], [""]]),
        "number": tf.constant([[8.0], [1.0]]),
    }
    for one in (model, loaded):
        found = one(given)
        assert found["ids"].numpy().tolist() == [[2, 6, 13], [2, 3, 14]]
        assert found["parts"].to_list() == [[0, 1, 2], []]
        assert found["present"].values.numpy().tolist() == [b"a,b,z"]
