"""A callback that says in a file of its process that training has ended, and whether it writes."""

import os
from pathlib import Path

from elasticdl.reference import Callback


class Ending(Callback):
    def on_train_end(self, step, writes):
        with (Path(os.environ["ENDINGS"]) / f"{os.getpid()}.ended").open("a") as file:
            file.write("ended, and wrote\n" if writes else "ended\n")


def callbacks():
    return [Ending()]
