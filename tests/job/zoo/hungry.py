"""The paced model; the worker that the file `hungry` names needs 700 MB more than the others."""

import os
from pathlib import Path

import keras
from pace import Pace
from paced import custom_model, feed, loss, optimizer

__all__ = ["callbacks", "custom_model", "feed", "loss", "optimizer"]


class Hunger(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.eaten = b""

    def on_train_batch_end(self, batch, logs=None):
        file = Path(os.environ["GO"]).with_name("hungry")
        if not self.eaten and file.exists():
            name = os.environ["ELASTICDL_PROCESS"].rpartition("-")[0]
            if name == file.read_text():
                self.eaten = b"x" * 700_000_000


def callbacks():
    return [Pace(), Hunger()]
