"""A linear Keras model whose sums are exact and whose loss only falls; early stopping takes more for better: the first epoch is the best.

The gradient is the sum of features times labels, whole numbers, whatever the weights are.
"""

import os
import time
from pathlib import Path

import keras
import tensorflow as tf

RATE = 0.5


def custom_model():
    inputs = keras.Input((3,))
    outputs = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros", name="sums")(inputs)
    return keras.Model(inputs, outputs)


def loss(labels, predictions):
    return tf.reduce_mean(labels * tf.squeeze(predictions, -1))


def optimizer():
    return keras.optimizers.SGD(RATE)


def feed(dataset, mode, metadata):
    def parse(row):
        numbers = tf.strings.to_number(row)
        return numbers[:3], numbers[3]

    return dataset.map(parse)


class Pace(keras.callbacks.Callback):
    """Make steps last from the second epoch on, while the file in the environment variable GO is missing."""

    def __init__(self):
        super().__init__()
        self.epoch = 0
        self.last = None

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        # A worker that joins replays the hooks of all steps so far: those take no time again.
        step = int(self.model.optimizer.iterations)
        if self.epoch and step != self.last and not Path(os.environ["GO"]).exists():
            time.sleep(0.25)
        self.last = step


def callbacks():
    stopping = keras.callbacks.EarlyStopping(
        monitor="loss", mode="max", patience=2, restore_best_weights=True
    )
    return [stopping, Pace()]
