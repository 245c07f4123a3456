"""The same flowers, predicted into a table by loaders that are killed: the first before it commits, the second after that.

The third one waits for the file LET.
"""

import os
import signal
import time
from pathlib import Path

from foretold import Petals, custom_model, eval_metrics_fn, feed, optimizer

from elasticdl.data.writers import duckdbtables

__all__ = ["Petals", "custom_model", "eval_metrics_fn", "feed", "optimizer"]

PLACE = Path(os.environ["KILLS"])


def end_at(moment):
    """End this process as the first to come to this moment; tell whether another one has."""
    try:
        (PLACE / moment).touch(exist_ok=False)
    except FileExistsError:
        return True
    os.kill(os.getpid(), signal.SIGKILL)
    return False


class Connection(duckdbtables._Connection):
    def __init__(self, table):
        while (PLACE / "after").exists() and not (PLACE / "let").exists():
            time.sleep(0.05)
        super().__init__(table)

    def commit(self):
        end_at("before")
        super().commit()
        end_at("after")


duckdbtables._Connection = Connection
