"""A model with next to no compute, each of whose chunks takes a fixed time instead; when it did is written to a file of the worker."""

import os
import time
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf


class Pace:
    """Take the time of one chunk, and write down which it was, and from when to when."""

    def __init__(self):
        self.file = None

    def __call__(self, number):
        if self.file is None:  # every worker tries the step once before it joins
            self.file = (Path(os.environ["CHUNKS"]) / os.environ["ELASTICDL_PROCESS"]).open("w", buffering=1)
            return np.float32(0)
        began = time.time()
        time.sleep(float(os.environ["CHUNK_SECONDS"]))
        self.file.write(f"{int(number)} {began:.4f} {time.time():.4f}\n")
        return np.float32(0)


pace = Pace()


def custom_model():
    inputs = keras.Input((1,))
    return keras.Model(inputs, keras.layers.Dense(1)(inputs))


def loss(labels, predictions):
    paused = tf.ensure_shape(tf.numpy_function(pace, [labels[0]], tf.float32), [])
    return tf.reduce_mean(tf.square(predictions)) + tf.stop_gradient(paused)


def optimizer():
    return keras.optimizers.SGD(0.01)


def feed(dataset, mode, metadata):
    return dataset.map(lambda row: (tf.ones([1]), tf.strings.to_number(row[0], tf.float64)))
