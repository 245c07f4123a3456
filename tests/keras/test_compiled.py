"""Compiled functions: arguments that fit go straight to the trace, in the order that it has them; others are cast, or refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from elasticdl.keras.compiled import Compiled

NUMBERS = tf.TensorSpec([None], tf.int64)
RAGGED = tf.RaggedTensorSpec([None, None], tf.int64)
NONE = tf.data.Dataset.from_tensors((0, None)).element_spec[1]


def compiled(*signature: Any) -> Compiled:
    """Return a function that gives back its arguments and the sum of a variable and 1."""
    variable = tf.Variable(2)
    return Compiled(lambda *arguments: (arguments, variable + 1), signature)


def test_arguments_are_in_their_places() -> None:
    """Dicts whose keys aren't sorted, ragged tensors and weights that are None."""
    function = compiled(
        ({"z": NUMBERS, "a": RAGGED, "m": (NUMBERS, NONE)}, NUMBERS), [NUMBERS, tf.TensorSpec([], tf.int64)]
    )
    given = (
        {
            "m": (tf.constant([5, 6, 7], tf.int64), None),
            "a": tf.ragged.constant([[1, 2], [], [3]], dtype=tf.int64),
            "z": tf.constant([8], tf.int64),
        },
        tf.constant([9, 10], tf.int64),
    )
    states = [tf.constant([11], tf.int64), tf.constant(12, tf.int64)]
    ((features, labels), (first, second)), sum_of = function(given, states)
    assert features["a"].to_list() == [[1, 2], [], [3]]
    assert features["z"].numpy().tolist() == [8]
    assert features["m"][0].numpy().tolist() == [5, 6, 7]
    assert features["m"][1] is None
    assert (labels.numpy().tolist(), first.numpy().tolist(), int(second)) == ([9, 10], [11], 12)
    assert int(sum_of) == 3


def test_what_fits_is_not_bound_again(monkeypatch: pytest.MonkeyPatch) -> None:
    function = compiled({"b": NUMBERS, "a": RAGGED}, NUMBERS)
    function.trace()
    monkeypatch.setattr(type(function._concrete), "_call_impl", None)
    numbers, ragged = tf.constant([1, 2], tf.int64), tf.ragged.constant([[1], [2, 3]], dtype=tf.int64)
    ((features, labels), _) = function({"a": ragged, "b": numbers}, numbers)
    assert features["a"].to_list() == [[1], [2, 3]]
    assert labels.numpy().tolist() == [1, 2]


def test_arrays_become_tensors() -> None:
    ((found,), _) = compiled(NUMBERS)(np.array([4, 5]))
    assert found.numpy().tolist() == [4, 5]


@pytest.mark.parametrize("given", [tf.constant([1.0]), None, "text", {"a": tf.constant([1], tf.int64)}])
def test_other_types_are_refused(given: Any) -> None:
    with pytest.raises((TypeError, tf.errors.InvalidArgumentError)):
        compiled(NUMBERS)(given)


def test_variables_are_read_at_each_call() -> None:
    variable = tf.Variable([1.0, 2.0])
    function = Compiled(lambda numbers: numbers + variable, (tf.TensorSpec([None], tf.float32),))
    assert function(tf.constant([1.0])).numpy().tolist() == [2.0, 3.0]
    variable.assign([5.0, 6.0])
    assert function(tf.constant([1.0])).numpy().tolist() == [6.0, 7.0]
