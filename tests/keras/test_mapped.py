"""A feed of whole chunks that only maps runs no dataset, and makes the same bits as one that does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from elasticdl.keras.feed import FeedPipeline
from elasticdl.worker.contract.records import Columns

NUMBERS = Columns(7, {"a": np.arange(7, dtype=np.int64), "b": np.arange(7, dtype=np.float32) / 3})


def divide(record: Any) -> Any:
    return {"x": tf.cast(record["a"], tf.float32) / 255.0, "y": record["b"] / 3.0}, record["a"]


def add(features: Any, labels: Any) -> Any:
    return {**features, "z": features["x"] + features["y"]}, labels + 1


def pipeline(feed: Callable[..., Any]) -> FeedPipeline:
    def of_chunks(dataset: Any, mode: str, metadata: Any) -> Any:
        return feed(dataset)

    of_chunks.whole_chunks = True  # type: ignore[attr-defined]
    return FeedPipeline(of_chunks, "training", None, Path("feed.py"))


def runs_dataset(made: FeedPipeline) -> bool:
    kinds = {operation.type for operation in made._traced._concrete.graph.get_operations()}
    return "DatasetToSingleElement" in kinds


def executors(made: FeedPipeline) -> set[bytes]:
    """Return with what the functions of maps are run."""
    operations = made._traced._concrete.graph.get_operations()
    return {one.get_attr("executor_type") for one in operations if one.type == "PartitionedCall"}


def test_maps_one_after_the_other_make_what_a_dataset_makes() -> None:
    maps, dataset = (
        pipeline(lambda data: data.map(divide).map(add, num_parallel_calls=2)),
        pipeline(lambda data: data.map(divide).map(add).prefetch(1)),
    )
    mine, other = maps(NUMBERS).data, dataset(NUMBERS).data
    assert (runs_dataset(maps), runs_dataset(dataset)) == (False, True)
    assert mine is not None
    tf.nest.assert_same_structure(mine, other)
    for one, same in zip(tf.nest.flatten(mine), tf.nest.flatten(other), strict=True):
        np.testing.assert_array_equal(one, same)
    assert mine[0]["x"].numpy().tolist() == (np.arange(7, dtype=np.float32) / np.float32(255)).tolist(), (
        "to the last bit"
    )


def branching(features: Any, labels: Any) -> Any:
    return {**features, "x": tf.cond(labels[0] < 1, lambda: features["x"], lambda: -features["x"])}, labels


def looping(features: Any, labels: Any) -> Any:
    return {**features, "x": tf.map_fn(tf.identity, features["x"])}, labels


@pytest.mark.parametrize("more", [branching, looping])
def test_control_flow_runs_in_the_pool_and_all_else_on_the_thread_that_calls(
    more: Callable[..., Any],
) -> None:
    simple = pipeline(lambda data: data.map(divide))
    made = pipeline(lambda data: data.map(divide).map(more))
    mine, other = made(NUMBERS).data, simple(NUMBERS).data
    assert (made._inline, simple._inline) == (False, True)
    assert executors(made) == {b""}
    assert executors(simple) == {b"SINGLE_THREADED_EXECUTOR"}
    assert not runs_dataset(made)
    assert mine is not None
    assert other is not None
    np.testing.assert_array_equal(mine[0]["x"], other[0]["x"])


def noisy(features: Any, labels: Any) -> Any:
    return tf.random.uniform([7], seed=3), labels


def in_python(features: Any, labels: Any) -> Any:
    return tf.ensure_shape(tf.py_function(lambda x: x, [features["x"]], tf.float32), [7]), labels


@pytest.mark.parametrize(
    "more",
    [lambda data: data.map(noisy), lambda data: data.map(in_python), lambda data: data.unbatch().batch(9)],
    ids=["a state", "Python", "no map"],
)
def test_what_could_see_a_difference_is_left_to_the_dataset(more: Callable[[Any], Any]) -> None:
    made = pipeline(lambda data: more(data.map(divide)))
    data = made(NUMBERS).data
    assert runs_dataset(made)
    assert data is not None
    assert data[1].numpy().tolist() == list(range(7))


def test_a_feed_that_changes_nothing() -> None:
    made = pipeline(lambda data: data.map(divide).map(lambda features, labels: (features, labels)))
    data = made(NUMBERS).data
    assert data is not None
    assert data[1].numpy().tolist() == list(range(7))
