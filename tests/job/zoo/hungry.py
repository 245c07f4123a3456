"""The paced model; the worker that the file `hungry` names needs a gigabyte more than the others."""

import os
from pathlib import Path

from pace import Pace
from paced import custom_model, feed, optimizer

from elasticdl.reference import Callback

__all__ = ["callbacks", "custom_model", "feed", "optimizer"]


class Hunger(Callback):
    def __init__(self):
        self.eaten = b""

    def on_step_end(self, logs):
        file = Path(os.environ["GO"]).with_name("hungry")
        if not self.eaten and file.exists():
            name = os.environ["ELASTICDL_PROCESS"].rpartition("-")[0]
            if name == file.read_text():
                self.eaten = b"x" * 1_000_000_000


def callbacks():
    return [Pace(), Hunger()]
