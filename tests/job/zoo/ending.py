"""The iris model with a callback that says in a file of its process that training has ended."""

import os
from pathlib import Path

import keras
from paced import custom_model, feed, loss, optimizer

__all__ = ["callbacks", "custom_model", "feed", "loss", "optimizer"]


class Ending(keras.callbacks.Callback):
    def on_train_end(self, logs=None):
        said = "ended, and wrote" if self.params["writes"] else "ended"
        with (Path(os.environ["ENDINGS"]) / f"{os.getpid()}.ended").open("a") as file:
            file.write(f"{said}\n")


def callbacks():
    return [Ending()]
