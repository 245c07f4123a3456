"""When a process has ended each of its steps, and what it has spent on them: what programs and model files of benchmarks write down."""

from __future__ import annotations

import json
import os
import statistics
import time
from pathlib import Path

from elasticdl.worker.contract.allreduce import StepLogs
from elasticdl.worker.hooks import Callback

WARM = 20
"""Steps that are not counted."""


class Moments:
    """The moments of one process."""

    def __init__(self) -> None:
        self._ends: list[float] = []
        self._spent = 0.0

    def end_step(self) -> None:
        """Note the end of a step."""
        self._ends.append(time.perf_counter())
        if len(self._ends) == WARM:
            self._spent = time.process_time()

    def write(self) -> None:
        """Write the median seconds of a step, and the seconds of one processor of a step, to the file that the environment names."""
        spent = (time.process_time() - self._spent) / (len(self._ends) - WARM)
        taken = [
            after - before for before, after in zip(self._ends[WARM - 1 :], self._ends[WARM:], strict=False)
        ]
        Path(os.environ["MOMENTS"]).write_text(json.dumps([statistics.median(taken), spent]))


class Measuring(Callback):
    """Writes the moments of a job's one worker."""

    def __init__(self) -> None:
        self._moments = Moments()

    def on_step_end(self, logs: StepLogs) -> None:
        """Note the end of a step."""
        self._moments.end_step()

    def on_train_end(self, step: int, writes: bool) -> None:
        """Write them."""
        self._moments.write()
