"""What an adapter of Keras models does between steps, whatever Keras computes with: callbacks, the committed state, the result.

Adapters derive from it. `prepare` makes model and optimizer with all of their variables, and then calls `_keep`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from elasticdl.catalog.tablereader import TableReader
from elasticdl.checkpoint.stateimage import StateImage
from elasticdl.cluster.cluster import ProcessName
from elasticdl.keras.callbacks import GroupCallbacks
from elasticdl.keras.held import held
from elasticdl.keras.library import library_of
from elasticdl.keras.monitored import monitored
from elasticdl.spec.jobspec import JobSpec
from elasticdl.worker.contract.allreduce import GateLogs, StepLogs
from elasticdl.worker.contract.usermodel import UserModel
from elasticdl.worker.modelstate import ModelState


class BetweenSteps:
    """The part of `elasticdl.worker.contract.allreduce.Adapter` that has no chunks."""

    model: Any
    optimizer: Any
    _last: StateImage | None = None
    """The state as callbacks left it at the end of training; None if they have no say in it."""

    def _keep(self, user: UserModel, spec: JobSpec, process: ProcessName) -> None:
        """Make callbacks and what copies the state. Raises BadModel. `process`: the life of a worker; callbacks make a difference of it."""
        self._callbacks = GroupCallbacks(
            user.callbacks,
            self.model,
            self.optimizer,
            spec.num_epochs,
            user.path,
            process,
            monitored(user, spec),
        )
        kept, library = self._callbacks.best_weights(), library_of(self.model)
        self._state = ModelState(
            [*held(library.variables(self.model)), *held(library.optimizer_variables(self.optimizer)), *kept]
        )

    def _write(self, path: str, kind: str) -> None:
        """Write the model as it is."""
        raise NotImplementedError

    @property
    def writes(self) -> bool:
        """Return whether this member writes what callbacks write to files; exactly one member should."""
        return self._callbacks.writes

    @writes.setter
    def writes(self, value: bool) -> None:
        self._callbacks.writes = value

    def logs(self, logs: StepLogs) -> str | None:
        """Run callbacks after a commit; return a reason if they want the job to stop."""
        return self._callbacks.logs(logs)

    def gate(self, logs: GateLogs) -> str | None:
        """Run callbacks after an evaluation, and at the end of an epoch; return a reason if they want the job to stop."""
        return self._callbacks.gate(logs)

    def end_training(self, step: int) -> None:
        """Run what callbacks do at the end of training, on the weights that are exported; the committed state stays as it is."""
        self._callbacks.make_up()
        if not self._callbacks.act_at_end:
            return
        before = self.image()
        library_of(self.model).finalize(self.optimizer, self.model)
        self._callbacks.end()
        self._last = self.image()
        self._state.load(before)

    def image(self) -> StateImage:
        """Copy the committed state."""
        return self._state.image(self._callbacks.state())

    def describe_image(self) -> tuple[Mapping[str, Any], int]:
        """Return the `meta` of an image, and the bytes of its body."""
        return self._state.describe(self._callbacks.state())

    def image_part(self, first: int, end: int) -> npt.NDArray[np.uint8]:
        """Copy these bytes of an image's body."""
        return self._state.part(first, end)

    def load(self, image: StateImage) -> None:
        """Replace the state. Raises TransferFailed, with nothing replaced, if the image does not fit this model."""
        self._state.check(image)
        self._callbacks.restore(image.meta.get("callbacks", []))
        self._state.load(image)

    def digest(self) -> str:
        """Return a digest of the bits of model and optimizer (hexadecimal)."""
        return self._state.digest()

    def export(self, path: str, kind: str, tables: TableReader | None = None) -> str:
        """Write the model for plain users of Keras; the state stays as it is. Raises OSError with what was at `path` intact."""
        self._callbacks.make_up()  # the exporter before this one may have been lost after the end of training
        if path:
            self._write_final(path, kind)
        return self.digest()

    def _write_final(self, path: str, kind: str) -> None:
        before = self.image()
        attached = library_of(self.model).detach(self.model)
        try:
            if self._last is None:
                library_of(self.model).finalize(self.optimizer, self.model)
            else:
                self._state.load(self._last)
            self._write(path, kind)
        finally:
            if attached is not None:
                self.model.optimizer = attached
            self._state.load(before)
