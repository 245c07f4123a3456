"""Keras callbacks of a worker with parameter servers: they hear of epochs and evaluations at barriers, and of the end of training.

Workers have no steps in common: each computes minibatches of its own, at weights that others change meanwhile. But at a barrier the journal
says the same to all of them (B5), so each runs the hooks of epochs there, and has the learning rate that they set in all that it pushes
afterwards. A callback with a hook of batches is refused; the submission refuses it already where the model file's syntax tree shows it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from elasticdl.errors import BadModel
from elasticdl.keras.bestweights import keeps_weights
from elasticdl.keras.callbacks import GroupCallbacks, overrides
from elasticdl.keras.library import callbacks_of
from elasticdl.keras.saves import Write
from elasticdl.keras.stepcallbacks import BEST_WEIGHTS, OF_BATCHES, OF_EPOCHS, is_refused, why_refused


class PsCallbacks(GroupCallbacks):
    """The callbacks of one worker with parameter servers; there are no commits to tell them of."""

    def _check(self, callback: Any) -> None:
        name, classes = type(callback).__name__, [one.__name__ for one in type(callback).__mro__]
        if isinstance(callback, callbacks_of(callback).Callback):
            if is_refused(classes) or (overrides(callback, OF_BATCHES) and not hasattr(callback, "rate_at")):
                raise BadModel(f"{self._path}: {why_refused(name, classes)}")
            if keeps_weights(callback):
                raise BadModel(f"{self._path}: {name}: {BEST_WEIGHTS}")
        super()._check(callback)

    def _check_monitored(self, callback: Any, name: str) -> None:
        if getattr(callback, "monitor", None) == "loss":
            raise BadModel(
                f"{self._path}: the callback {name} monitors 'loss', and with parameter servers nobody knows the loss of all minibatches; "
                "let it monitor val_loss, with --validation_data"
            )
        super()._check_monitored(callback, name)

    def _begin(self, writing: bool) -> None:
        # at epochs no worker is the one that writes, also not before the first one
        super()._begin(writing=False)

    def _skipping(self, hook: str, writing: bool) -> Callable[[Write], None] | None:
        """Keep nothing for a later writer: the weights of a barrier are on the servers, and change."""
        return None if writing else lambda write: None

    def rate_at(self, step: int) -> float | None:
        """Return the learning rate that a callback has for a step, None if there is none that does.

        Of its hooks of batches nobody hears here: the rate goes to the servers with each push.
        """
        for callback in reversed(self._callbacks):
            if hasattr(callback, "rate_at"):
                return float(callback.rate_at(step))
        return None

    @property
    def follow_epochs(self) -> bool:
        """Tell whether a callback does anything at barriers."""
        return any(overrides(callback, OF_EPOCHS) for callback in self._callbacks)

    def begin_again(self) -> None:
        """Make the callbacks anew, if they have passed any barrier."""
        self.restore([])

    def end_at(self, step: int, writes: bool) -> None:
        """Run the hooks of the end of training, after so many steps of the job."""
        self._params["global_step"] = step
        self.writes = writes
        self.end()
