"""The paced model with a mistake that shows once there is a file `fail`."""

import os
from pathlib import Path

import keras
from pace import Pace
from paced import custom_model, feed, loss, optimizer

__all__ = ["callbacks", "custom_model", "feed", "loss", "optimizer"]


class Failure(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if Path(os.environ["GO"]).with_name("fail").exists():
            raise ArithmeticError("the mistake of the user")


def callbacks():
    return [Pace(), Failure()]
