"""Rows that count: each record adds one to the row of its id and one to a sum of all, so that what must be there in the end is known.

Whole numbers under plain SGD are exact in float32 whatever the order. A chunk takes a moment, of PACE seconds, until the file GO exists.
"""

import os
import time
from pathlib import Path

import keras
import tensorflow as tf

IDS, WIDTH = 3000, 2


def custom_model():
    ids = keras.Input((1,), dtype="int64", name="ids")
    ones = keras.Input((1,), name="ones")
    rows = keras.layers.Embedding(IDS, WIDTH, embeddings_initializer="zeros", name="rows")(ids)
    total = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros", name="total")(ones)
    return keras.Model(
        {"ids": ids, "ones": ones}, keras.layers.Concatenate()([keras.layers.Flatten()(rows), total])
    )


def loss(labels, predictions):
    with tf.control_dependencies([tf.numpy_function(_wait, [], [])]):
        return -tf.reduce_sum(predictions)


def squared(labels, predictions):
    """Depend on all that was learned before, unlike a count."""
    with tf.control_dependencies([tf.numpy_function(_wait, [], [])]):
        return tf.reduce_mean(tf.square(predictions - 3.0))


def _wait():
    if not Path(os.environ["GO"]).exists():
        time.sleep(float(os.environ.get("PACE", "0.02")))


def optimizer():
    return keras.optimizers.SGD(1.0)


def adagrad():
    return keras.optimizers.Adagrad(keras.optimizers.schedules.ExponentialDecay(0.1, 50, 0.5))


def totals():
    """Judge by the sum of all, which is the number of records that were trained, and by a metric of Keras."""

    def total(labels, predictions):
        return predictions[:, -1]

    return {"total": total, "error": keras.metrics.MeanAbsoluteError()}


def feed(dataset, mode, metadata):
    def parse(row):
        one = tf.ones([1])
        return {"ids": tf.strings.to_number(row[:1], tf.int64), "ones": one}, one

    return dataset.map(parse)
