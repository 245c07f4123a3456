"""A model with next to no compute, whose optimizer writes the time of every committed step: what is left is the group's own work."""

import os
import time
from pathlib import Path

import keras
import tensorflow as tf

FEATURES = 16
PACE = float(os.environ.get("ELASTICDL_PACE", "0"))
"""Seconds by which a step is made longer where nothing is measured: the processors are not this job's alone."""
COMPUTE = float(os.environ.get("ELASTICDL_COMPUTE", "0"))
"""Seconds that a minibatch's predictions take beyond what they need, without a processor: as if each worker had a machine."""


class Stamping(keras.optimizers.SGD):
    """Write the time of each commit of this process, in the compiled step.

    A callback would do, but one that follows batches is called again for each earlier step in a worker that joins, while the others wait.
    """

    def apply(self, grads, trainable_variables=None):
        stamps = Path(os.environ["ELASTICDL_STAMPS"]) / str(os.getpid())
        tf.print(tf.strings.as_string(tf.timestamp(), precision=6), output_stream=f"file://{stamps}")
        if PACE:
            tf.numpy_function(lambda: time.sleep(PACE), [], [])
        super().apply(grads, trainable_variables)


class Computing(keras.layers.Layer):
    """Give what it is given, after a while."""

    supports_jit = False

    def call(self, values):
        def later(given):
            time.sleep(COMPUTE)  # what a step takes is what kills are compared with
            return given

        given = tf.numpy_function(later, [values], values.dtype)
        given.set_shape(values.shape)
        return given


def custom_model():
    inputs = keras.Input((FEATURES,), name="x")
    return keras.Model(inputs, keras.layers.Dense(1)(Computing()(inputs) if COMPUTE else inputs))


def loss(labels, predictions):
    return tf.reduce_mean(tf.square(predictions[:, 0] - labels))


def optimizer():
    return Stamping(0.01)


def feed(dataset, mode, metadata):
    def parse(record):
        values = tf.io.decode_raw(record, tf.float32)
        return values[:FEATURES], values[FEATURES]

    return dataset.map(parse)
