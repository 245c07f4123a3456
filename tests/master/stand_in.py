"""A worker without a framework: the real process, loop, member and data plane around a model of integers.

`STAND_IN_STEP` is the seconds that one chunk takes until the file `STAND_IN_GO` is there; `STAND_IN_FAULTS` says what goes wrong, as
JSON: process name → kind; one that is `held` is not ready before the file `let` is there.
"""

# ruff: noqa: E402
from __future__ import annotations

import hashlib
import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

signal.pthread_sigmask(
    signal.SIG_BLOCK, {signal.SIGTERM}
)  # as the worker does, before NumPy starts its threads

import numpy as np

from elasticdl.checkpoint.stateimage import StateImage
from elasticdl.errors import BadData
from elasticdl.job import worker
from elasticdl.worker.contract.allreduce import ChunkResult, StepLogs

SECONDS = float(os.environ["STAND_IN_STEP"])
GO = Path(os.environ["STAND_IN_GO"])
FAULT = json.loads(os.environ.get("STAND_IN_FAULTS", "{}")).get(os.environ["ELASTICDL_PROCESS"], "")
if FAULT == "hang at once":
    os.kill(os.getpid(), signal.SIGSTOP)


class Integers:
    """Adds up what it reads; integers make sums exact, so that every order of adding gives the same bits."""

    size = 64
    dtype = np.float64
    writes = False

    def __init__(self) -> None:
        self.state = np.zeros(self.size)
        self.sums = np.zeros(self.size)

    def prepare(self, sample: Any) -> None:
        if FAULT == "bad model":
            raise ValueError("the model can't be built")
        if FAULT == "bad data":
            raise BadData("feed returned nonsense")
        if FAULT == "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        if FAULT == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if FAULT == "hang":
            os.kill(os.getpid(), signal.SIGSTOP)
        if FAULT == "never ready":
            threading.Event().wait()
        while FAULT == "held" and not GO.with_name("let").exists():
            time.sleep(0.01)  # another process's file has no event

    def convert(self, records: Any) -> Any:
        return np.array([float(record) for record in records])

    def zero(self) -> None:
        self.sums[:] = 0

    def compute(self, batch: Any, step: int, lane: int) -> ChunkResult:
        if not GO.exists():
            time.sleep(SECONDS)
        if FAULT == "raise" and step > 5:
            raise RuntimeError(f"the user's program fails at step {step}")
        self.sums[step % self.size] += batch.sum()
        return ChunkResult(float(len(batch)), float(batch.sum()))

    def accumulator(self) -> memoryview:
        return memoryview(self.sums)

    def apply(self, result: Any, examples: float) -> None:
        self.state += result
        self.zero()

    def logs(self, logs: StepLogs) -> str | None:
        return None

    def image(self) -> StateImage:
        return StateImage({}, self.state.view(np.uint8).copy())

    def describe_image(self) -> tuple[dict[str, Any], int]:
        return {}, self.state.nbytes

    def image_part(self, first: int, end: int) -> Any:
        return self.state.view(np.uint8)[first:end].copy()

    def load(self, image: StateImage) -> None:
        self.state = np.frombuffer(image.body.tobytes()).copy()

    def digest(self) -> str:
        return hashlib.sha256(self.state.tobytes()).hexdigest()

    def end_training(self, step: int) -> None:
        pass

    def export(self, path: str, kind: str, tables: Any = None) -> str:
        if path:
            if FAULT == "no export":
                raise OSError(28, "No space left on device", path)
            Path(path).write_text(json.dumps({"sum": self.state.sum()}))
        return self.digest()


class Counted:
    """A user's reader: numbers, as many as its parameter says."""

    def __init__(self, data_origin: str, records_per_task: int | None = None, rows: int = 0) -> None:
        self.rows = rows

    def create_shards(self) -> list[tuple[str, int, int]]:
        return [("numbers", 0, self.rows)]

    def read_records(self, task: Any) -> Any:
        yield from (str(number).encode() for number in range(task.start, task.end))


class Process(worker.WorkerProcess):
    def _prepare(self) -> Any:
        readers = self._open_readers(
            Counted if "custom_data_reader" in (Path(self.spec.model_zoo) / "m.py").read_text() else None
        )
        return self._build(Integers(), readers, self._schedule(), "json", self.place)  # type: ignore[arg-type]


worker.WorkerProcess = Process  # type: ignore[misc]
worker.main()
