"""A linear Keras model whose sums are exact and whose loss only falls, with callbacks that save and stop, and take more for better.

The gradient is the sum of features times labels, whole numbers, whatever the weights are; the first epoch is the best one. The first writer
is killed while it saves the best model.
"""

import os
import signal
import time
from pathlib import Path

import keras
import tensorflow as tf

PLACE = Path(os.environ["PLACE"])
RATE = 0.5


class Sums(keras.layers.Dense):
    def save_own_variables(self, store):
        super().save_own_variables(store)
        if not (PLACE / "killed").exists():
            (PLACE / "killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)


def custom_model():
    inputs = keras.Input((3,))
    return keras.Model(inputs, Sums(1, use_bias=False, kernel_initializer="zeros", name="sums")(inputs))


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
            time.sleep(0.35)  # a step lasts so long that the kill comes within the epoch
        self.last = step


def callbacks():
    most = {"monitor": "loss", "mode": "max"}
    return [
        keras.callbacks.EarlyStopping(**most, patience=2, restore_best_weights=True),
        keras.callbacks.ModelCheckpoint(PLACE / "best.keras", **most, save_best_only=True),
        keras.callbacks.ModelCheckpoint(PLACE / "{epoch}.weights.h5", save_weights_only=True, save_freq=64),
        keras.callbacks.CSVLogger(PLACE / "log.csv"),
        keras.callbacks.TensorBoard(PLACE / "logs"),
        Pace(),
    ]
