"""Compiled functions: on one thread where they have no branches and loops, and right in any case."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from elasticdl.keras.compiled import Compiled
from elasticdl.keras.controlflow import branches

NUMBERS = (tf.TensorSpec([None], tf.float32),)


def plain(numbers: Any) -> Any:
    return tf.reduce_sum(numbers * 2.0)


def branch(numbers: Any) -> Any:
    return tf.cond(tf.size(numbers) > 2, lambda: tf.reduce_sum(numbers), lambda: -tf.reduce_sum(numbers))


def loop(numbers: Any) -> Any:
    return tf.while_loop(lambda total: total < 10.0, lambda total: [total + numbers[0]], [numbers[0]])[0]


def called(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a function that has another one inside a function of its own, as layers may."""
    inner = tf.function(function, input_signature=NUMBERS, autograph=False)
    return lambda numbers: inner(numbers) + 0.0


def feed(numbers: Any) -> Any:
    dataset = tf.data.Dataset.from_tensor_slices(numbers).map(branch_of_one).batch(4)
    return tf.reduce_sum(dataset.get_single_element())


def branch_of_one(number: Any) -> Any:
    return tf.cond(number > 1.5, lambda: number, lambda: 0.0)


@pytest.mark.parametrize(
    ("function", "result", "has_control_flow"),
    [
        (plain, 12.0, False),
        (branch, 6.0, True),
        (loop, 10.0, True),
        (called(plain), 12.0, False),
        (called(branch), 6.0, True),
        (called(loop), 10.0, True),
        (feed, 5.0, False),  # the dataset runs its functions itself
    ],
)
def test_a_function_gives_its_result_with_control_flow_and_without(
    function: Callable[[Any], Any], result: float, has_control_flow: bool
) -> None:
    compiled = Compiled(function, NUMBERS)
    for _ in range(2):
        assert float(compiled(tf.constant([1.0, 2.0, 3.0]))) == result
    assert branches(compiled._concrete.graph) is has_control_flow
    assert compiled._inline is not has_control_flow
