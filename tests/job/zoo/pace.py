"""Steps that take their time until a test says go: what it waits for meanwhile, such as the start of a worker, takes moments."""

import os
import time
from pathlib import Path

from elasticdl.reference import Callback

SECONDS = 0.2


class Pace(Callback):
    """Make each step as long as one of a larger model while the file in the environment variable GO is missing."""

    def on_step_end(self, logs):
        if not Path(os.environ["GO"]).exists():
            time.sleep(SECONDS)
