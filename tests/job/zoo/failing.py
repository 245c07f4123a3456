"""The paced model with a mistake that shows once there is a file `fail`."""

import os
from pathlib import Path

from pace import Pace
from paced import custom_model, feed, optimizer

from elasticdl.reference import Callback

__all__ = ["callbacks", "custom_model", "feed", "optimizer"]


class Failure(Callback):
    def on_step_end(self, logs):
        if Path(os.environ["GO"]).with_name("fail").exists():
            raise ArithmeticError("the mistake of the user")


def callbacks():
    return [Pace(), Failure()]
