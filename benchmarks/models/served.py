"""A model with next to no compute and one table on parameter servers; its learning rate writes down when each push begins.

A worker asks for the rate when it is about to push, with one earlier push unsettled at most: a server that does not answer shows as a gap.
"""

import os
import time
from pathlib import Path

import keras
import tensorflow as tf

IDS = 1 << 16
PACE = float(os.environ.get("ELASTICDL_PACE", "0"))


class Stamped(keras.optimizers.schedules.LearningRateSchedule):
    """A constant rate; the time of each question for it goes to a file of the process."""

    def __init__(self):
        self.file = None

    def __call__(self, step):
        if self.file is None:
            self.file = (Path(os.environ["ELASTICDL_STAMPS"]) / str(os.getpid())).open("w", buffering=1)
        if PACE:
            time.sleep(PACE)
        self.file.write(f"{time.time()}\n")
        return tf.constant(0.01)

    def get_config(self):
        return {}


def custom_model():
    ids = keras.Input((16,), dtype="int64", name="ids")
    vectors = keras.layers.Embedding(IDS, 16, name="vectors")(ids)
    return keras.Model(ids, keras.layers.Dense(1)(keras.layers.Flatten()(vectors)))


def loss(labels, predictions):
    return tf.reduce_mean(tf.square(predictions[:, 0] - labels))


def optimizer():
    return keras.optimizers.Adagrad(Stamped())


def feed(dataset, mode, metadata):
    def parse(record):
        values = tf.io.decode_raw(record, tf.float32)
        return tf.strings.to_hash_bucket_fast(tf.strings.as_string(values[:16]), IDS), values[16]

    return dataset.map(parse)
