"""TensorFlow's ParameterServerStrategy: plain loops with a ClusterCoordinator, driven line by line; not part of the package.

Started by `benchmarks/servers.py`, once for each task of a cluster. The chief reads orders as lines of JSON and answers each with the
seconds that it took. Optimizers of Keras 3 don't know this strategy, so the sparse and dense Adagrad operations of TensorFlow are called
on the variables, which run where these are: on the server. The tables are plain variables; rows are looked up by distinct ids.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "model_zoo"))

import numpy as np
import tensorflow as tf

RATE, EPSILON, ACCUMULATOR = 0.02, 1e-7, 0.1
"""Adagrad, with the defaults of Keras."""
DEEP = (64, 32)

Order = Callable[[int], None]
"""Runs so many steps on all workers together, to their end."""


class Weights:
    """A variable with Adagrad's sums, both on the server."""

    def __init__(self, first: Any) -> None:
        """Make the variable with its first value."""
        self.variable = tf.Variable(first)
        self.sums = tf.Variable(tf.fill(first.shape, ACCUMULATOR))

    def push(self, slopes: Any) -> None:
        """Apply the gradient of the whole variable."""
        tf.raw_ops.ResourceApplyAdagradV2(
            var=self.variable.handle, accum=self.sums.handle, lr=RATE, epsilon=EPSILON, grad=slopes
        )

    def pull_rows(self, ids: Any) -> Any:
        """Look up rows."""
        return tf.nn.embedding_lookup(self.variable, ids)

    def push_rows(self, ids: Any, slopes: Any) -> None:
        """Apply the gradients of distinct rows."""
        tf.raw_ops.ResourceSparseApplyAdagradV2(
            var=self.variable.handle,
            accum=self.sums.handle,
            lr=RATE,
            epsilon=EPSILON,
            grad=slopes,
            indices=ids,
        )


def rows_orders(strategy: Any, coordinator: Any, pool: Path, count: int, width: int) -> dict[str, Order]:
    """Return orders that push and pull rows of one table by the ids of a file of minibatches, of shape [minibatches, ids]."""
    with strategy.scope():
        table = Weights(tf.random.uniform((count, width), -0.05, 0.05))

    def minibatches() -> Any:
        return tf.data.Dataset.from_tensor_slices(np.load(pool)).repeat()

    data = iter(coordinator.create_per_worker_dataset(minibatches))

    def step(iterator: Any, pulls: bool, pushes: bool) -> Any:
        ids = tf.unique(next(iterator)).y
        total = tf.reduce_sum(table.pull_rows(ids)) if pulls else 0.0
        if pushes:
            table.push_rows(ids, tf.fill((tf.size(ids), width), 0.01))
        return total

    def order(pulls: bool, pushes: bool) -> Order:
        compiled = tf.function(lambda iterator: step(iterator, pulls, pushes))
        return scheduled(coordinator, compiled, data)

    return {"both": order(True, True), "push": order(False, True), "pull": order(True, False)}


def flights_orders(strategy: Any, coordinator: Any, path: Path, batch: int) -> dict[str, Order]:
    """Return the order to train DeepFM of the model zoo, in plain TensorFlow."""
    from flights.columns import FIELDS, IDS, SCALES, feed

    width = 16
    with strategy.scope():
        vectors = Weights(tf.random.uniform((IDS, width), -0.05, 0.05))
        linear = Weights(tf.zeros((IDS, 1)))
        sizes = [FIELDS * width + len(SCALES), *DEEP]
        glorot = tf.initializers.GlorotUniform()
        kernels = [Weights(glorot(shape)) for shape in itertools.pairwise(sizes)]
        biases = [Weights(tf.zeros(size)) for size in DEEP]
        last, offset = Weights(glorot((FIELDS + width + DEEP[-1], 1))), Weights(tf.zeros(1))

    def examples() -> Any:
        with path.open(encoding="utf-8", newline="") as file:
            names, *rows = csv.reader(file)
        batches = tf.data.Dataset.from_tensor_slices(tf.constant(rows)).repeat().batch(batch)
        return feed(batches, "training", SimpleNamespace(column_names=names)).prefetch(tf.data.AUTOTUNE)

    data = iter(coordinator.create_per_worker_dataset(examples))
    dense = [*kernels, *biases, last, offset]

    @tf.function  # type: ignore[untyped-decorator]
    def step(iterator: Any) -> Any:
        features, labels = next(iterator)
        found = tf.unique(tf.reshape(features["ids"], [-1]))
        tables = [table.pull_rows(found.y) for table in (vectors, linear)]
        values = [tf.convert_to_tensor(one.variable) for one in dense]
        with tf.GradientTape() as tape:
            tape.watch([*tables, *values])
            looked = [tf.reshape(tf.gather(rows, found.idx), (-1, FIELDS, rows.shape[1])) for rows in tables]
            pairs = 0.5 * (tf.square(tf.reduce_sum(looked[0], 1)) - tf.reduce_sum(tf.square(looked[0]), 1))
            deep = tf.concat([tf.reshape(looked[0], (-1, FIELDS * width)), features["numbers"]], 1)
            for kernel, bias in zip(values[: len(DEEP)], values[len(DEEP) : 2 * len(DEEP)], strict=True):
                deep = tf.nn.relu(deep @ kernel + bias)
            together = tf.concat([tf.reshape(looked[1], (-1, FIELDS)), pairs, deep], 1)
            logits = together @ values[-2] + values[-1]
            loss = tf.reduce_mean(
                tf.nn.sigmoid_cross_entropy_with_logits(tf.reshape(labels, (-1, 1)), logits)
            )
        slopes = tape.gradient(loss, [*tables, *values])
        for table, slope in zip((vectors, linear), slopes, strict=False):
            table.push_rows(found.y, tf.convert_to_tensor(slope))
        for one, slope in zip(dense, slopes[2:], strict=True):
            one.push(slope)
        return loss

    return {"train": scheduled(coordinator, step, data)}


def scheduled(coordinator: Any, function: Any, data: Any) -> Order:
    """Return an order that gives calls of a function to whichever worker is free."""

    def order(steps: int) -> None:
        for _ in range(steps):
            coordinator.schedule(function, args=(data,))
        coordinator.join()

    return order


def main() -> None:
    """Be one task of the cluster."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--cluster", type=json.loads)
    parser.add_argument("--task")
    parser.add_argument("--ids", type=Path)
    parser.add_argument("--rows", type=int)
    parser.add_argument("--width", type=int)
    parser.add_argument("--flights", type=Path)
    parser.add_argument("--batch", type=int)
    args = parser.parse_args()
    spec = tf.train.ClusterSpec(args.cluster)
    job, _, index = args.task.partition(":")
    if job != "chief":
        tf.distribute.Server(spec, job_name=job, task_index=int(index), protocol="grpc").join()
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(spec, rpc_layer="grpc")
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    orders = {
        **rows_orders(strategy, coordinator, args.ids, args.rows, args.width),
        **flights_orders(strategy, coordinator, args.flights, args.batch),
    }
    print(json.dumps({"orders": list(orders)}), flush=True)
    for line in sys.stdin:
        wanted = json.loads(line)
        began = time.perf_counter()
        orders[wanted["what"]](wanted["steps"])
        print(json.dumps({"seconds": time.perf_counter() - began}), flush=True)
    os._exit(0)  # servers that are killed meanwhile must not hold up the end


if __name__ == "__main__":
    main()
