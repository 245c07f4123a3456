"""What a custom training loop trains, as the worker of a group knows models; the program computes and commits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from elasticdl.catalog.tablereader import TableReader
from elasticdl.checkpoint.stateimage import StateImage
from elasticdl.worker.contract.allreduce import ChunkResult, DeviceSums, GateLogs, StepLogs
from elasticdl.worker.contract.evaluation import Evaluator
from elasticdl.worker.contract.loop import LoopState
from elasticdl.worker.contract.records import Records


class LoopAdapter:
    """Implements `Adapter` and `Compared` of `elasticdl.worker.contract.allreduce`; what only a model file has is never called.

    Attributes:
        writes: this worker writes files and tells people.
    """

    writes = False

    def __init__(self, state: LoopState) -> None:
        self.state = state
        self.size, self.gradient_size = state.size, state.gradient_size
        self.dtype = state.dtype

    def zero(self) -> None:
        """Empty the accumulator."""
        self.state.zero()

    def accumulator(self) -> memoryview:
        """Return the accumulator's bytes."""
        return self.state.accumulator()

    def apply(self, result: npt.NDArray[Any], examples: float) -> None:
        """Commit `result` / `examples`."""
        self.state.apply(result, examples)

    def image(self) -> StateImage:
        """Copy the committed state."""
        return self.state.image()

    def describe_image(self) -> tuple[Mapping[str, Any], int]:
        """Return the `meta` of an image, and the bytes of its body."""
        return self.state.describe_image()

    def image_part(self, first: int, end: int) -> npt.NDArray[np.uint8]:
        """Copy these bytes of an image's body."""
        return self.state.image_part(first, end)

    def load(self, image: StateImage) -> None:
        """Replace the state. Raises TransferFailed if the image does not fit."""
        self.state.load(image)

    def digest(self) -> str:
        """Return a digest of the state's bits (hexadecimal)."""
        return self.state.digest()

    def fingerprint(self, step: int) -> int:
        """Return a hash of what has to be equal in all members before this step."""
        return self.state.fingerprint(step)

    def export(self, path: str, kind: str, tables: TableReader | None = None) -> str:
        """Let the program write its result, in a form of its own; return the state's digest."""
        return self.state.export(path)

    def logs(self, logs: StepLogs) -> str | None:
        """Do nothing after a commit: the program does it itself."""
        return None

    def end_training(self, step: int) -> None:
        """Do nothing at the end of training: the program does it itself."""

    def prepare(self, sample: Records) -> None:
        """Never called: the program has built its model."""
        raise AssertionError("a custom training loop prepares by itself")

    def convert(self, records: Records) -> Any:
        """Never called: the program reads its records."""
        raise AssertionError("a custom training loop reads by itself")

    def compute(self, batch: Any, step: int, lane: int) -> ChunkResult:
        """Never called: the program computes."""
        raise AssertionError("a custom training loop computes by itself")

    def gate(self, logs: GateLogs) -> str | None:
        """Never called: the program evaluates."""
        raise AssertionError("a custom training loop evaluates by itself")

    def evaluator(self, metadata: Any) -> Evaluator:
        """Never called: the program evaluates."""
        raise AssertionError("a custom training loop evaluates by itself")


class DeviceLoopAdapter(LoopAdapter):
    """One whose state takes sums to its device: implements `DeviceSums`, too."""

    def __init__(self, state: LoopState, sums: DeviceSums) -> None:
        """`sums`: the state itself."""
        super().__init__(state)
        self._sums = sums
        self.result = sums.result

    def take(self, *, alone: bool) -> bool:
        """Take the sum of a step; return whether all of it is finite."""
        return self._sums.take(alone=alone)

    def commit(self, examples: float) -> None:
        """Commit the sum that was taken / `examples`."""
        self._sums.commit(examples)


def adapter_of(state: LoopState) -> LoopAdapter:
    """Return the adapter of a loop's state."""
    return DeviceLoopAdapter(state, state) if isinstance(state, DeviceSums) else LoopAdapter(state)
