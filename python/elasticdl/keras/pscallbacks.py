"""Keras callbacks of a worker with parameter servers: they hear of the beginning and of the end of training, in every worker.

Such workers have no steps in common: each computes minibatches of its own, at weights that others change meanwhile. So a callback with
a hook of steps or epochs is refused; the submission refuses it already where the model file's syntax tree shows it.
"""

from __future__ import annotations

from typing import Any

import keras

from elasticdl.errors import BadModel
from elasticdl.keras.callbacks import GroupCallbacks, overrides
from elasticdl.keras.stepcallbacks import OF_STEPS, why_refused


class PsCallbacks(GroupCallbacks):
    """The callbacks of one worker with parameter servers; there are no commits to tell them of."""

    def _check(self, callback: Any) -> None:
        if isinstance(callback, keras.callbacks.Callback) and overrides(callback, OF_STEPS):
            raise BadModel(f"{self._path}: {why_refused(type(callback).__name__)}")
        super()._check(callback)

    def end_at(self, step: int, writes: bool) -> None:
        """Run the hooks of the end of training, after so many steps of the job."""
        self._params["global_step"] = step
        self.writes = writes
        self.end()
