"""A convolutional network without dropout that writes its loss curve to the file in the environment variable CURVE.

Its activation is smooth. The group's size decides in which order sums are rounded, so curves part in the seventh
digit; behind ``relu`` a preactivation within rounding of zero can land on either side, and from there on the loss
differs by as much as 2e-3.
"""

import os
import time
from pathlib import Path

import keras
import tensorflow as tf


def custom_model():
    inputs = keras.Input((28, 28, 1))
    x = keras.layers.Conv2D(8, 3, strides=2, activation="tanh")(inputs)
    x = keras.layers.Flatten()(x)
    return keras.Model(inputs, keras.layers.Dense(10)(x))


def loss(labels, predictions):
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=predictions))


def feed(dataset, mode, metadata):
    features = {"image": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([], tf.int64)}

    def parse(record):
        example = tf.io.parse_single_example(record, features)
        pixels = tf.reshape(tf.io.decode_raw(example["image"], tf.uint8), [28, 28, 1])
        return tf.cast(pixels, tf.float32) / 255.0, example["label"]

    return dataset.map(parse)


def optimizer(lr=0.05):
    return keras.optimizers.SGD(lr, momentum=0.9)


class Curve(keras.callbacks.Callback):
    def __init__(self, path):
        super().__init__()
        self.path = path
        self.epoch = 0

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        with open(self.path, "a") as file:
            file.write(f"{self.epoch} {batch} {logs['loss']!r}\n")


class Pace(keras.callbacks.Callback):
    """Make each step as long as one of a larger model while the file in the environment variable GO is missing."""

    def __init__(self):
        super().__init__()
        self.last = None

    def on_train_batch_end(self, batch, logs=None):
        # A worker that joins replays the hooks of all steps so far, while the others wait: those take no time again.
        step = int(self.model.optimizer.iterations)
        if step != self.last and not Path(os.environ["GO"]).exists():
            time.sleep(0.2)
        self.last = step


def callbacks():
    return [Curve(os.environ["CURVE"]), Pace()]
