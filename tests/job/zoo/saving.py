"""The linear Keras model of `stopping` with callbacks that write files; the first writer is killed while it saves the best model."""

import os
import signal
from pathlib import Path

import keras
from stopping import Pace, feed, loss, optimizer

__all__ = ["callbacks", "custom_model", "feed", "loss", "optimizer"]

PLACE = Path(os.environ["PLACE"])


class Sums(keras.layers.Dense):
    def save_own_variables(self, store):
        super().save_own_variables(store)
        if not (PLACE / "killed").exists():
            (PLACE / "killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)


def custom_model():
    inputs = keras.Input((3,))
    return keras.Model(inputs, Sums(1, use_bias=False, kernel_initializer="zeros", name="sums")(inputs))


def callbacks():
    # the loss only falls: with mode="max" the first epoch is the best one
    return [
        keras.callbacks.ModelCheckpoint(
            PLACE / "best.keras", monitor="loss", mode="max", save_best_only=True
        ),
        keras.callbacks.ModelCheckpoint(PLACE / "{epoch}.weights.h5", save_weights_only=True, save_freq=64),
        keras.callbacks.CSVLogger(PLACE / "log.csv"),
        keras.callbacks.TensorBoard(PLACE / "logs"),
        Pace(),
    ]
