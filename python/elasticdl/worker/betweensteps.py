"""What adapters do between steps where the library has no callbacks of its own: hooks after commits, and the committed state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from elasticdl.checkpoint.stateimage import StateImage
from elasticdl.worker.contract.allreduce import GateLogs, StepLogs
from elasticdl.worker.hooks import Callbacks


class CommittedState(Protocol):
    """Copies the state of a model and its optimizer out and in; a `ModelState` is one."""

    def image(self) -> StateImage:
        """Copy the state."""

    def describe(self) -> tuple[Mapping[str, Any], int]:
        """Return the `meta` of an image, and the bytes of its body."""

    def part(self, first: int, end: int) -> npt.NDArray[np.uint8]:
        """Copy these bytes of an image's body."""

    def load(self, image: StateImage) -> None:
        """Replace the state. Raises TransferFailed, with nothing replaced, if the image does not fit."""

    def digest(self) -> str:
        """Return a digest of the state's bits (hexadecimal)."""


class BetweenSteps:
    """The part of `elasticdl.worker.contract.allreduce.Adapter` that has no chunks.

    Adapters derive from it, and make `_callbacks` and `_state` in `prepare`. Such callbacks keep nothing that is given to other workers.
    """

    writes = False
    _callbacks: Callbacks
    _state: CommittedState

    def logs(self, logs: StepLogs) -> str | None:
        """Run callbacks after a commit; return a reason if they want the job to stop."""
        return self._callbacks.logs(logs)

    def gate(self, logs: GateLogs) -> str | None:
        """Run callbacks after an evaluation, and at the end of an epoch; return a reason if they want the job to stop."""
        return self._callbacks.gate(logs)

    def end_training(self, step: int) -> None:
        """Run what callbacks do at the end of training, after so many steps."""
        self._callbacks.end(step, self.writes)

    def image(self) -> StateImage:
        """Copy the committed state."""
        return self._state.image()

    def describe_image(self) -> tuple[Mapping[str, Any], int]:
        """Return the `meta` of an image, and the bytes of its body."""
        return self._state.describe()

    def image_part(self, first: int, end: int) -> npt.NDArray[np.uint8]:
        """Copy these bytes of an image's body."""
        return self._state.part(first, end)

    def load(self, image: StateImage) -> None:
        """Replace the state. Raises TransferFailed, with nothing replaced, if the image does not fit this model."""
        self._state.load(image)

    def digest(self) -> str:
        """Return a digest of the state's bits (hexadecimal)."""
        return self._state.digest()
