"""The callbacks of ElasticDL 0.2. Steps are those of the job, from 0, as they were."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from elasticdl.keras.earlier import keras_here

_Callback: Any = keras_here().callbacks.Callback


class LearningRateScheduler(_Callback):  # type: ignore[misc]  # Keras has no types
    """Sets the learning rate of each minibatch: `schedule(step)` of the job's steps so far."""

    def __init__(self, schedule: Callable[[int], Any]) -> None:
        super().__init__()
        self.schedule = schedule

    def rate_at(self, step: int) -> float:
        """Return the rate of a step. Raises ValueError if the schedule returns no rate."""
        rate = self.schedule(step)
        number = rate.numpy() if hasattr(rate, "numpy") else rate
        if not isinstance(number, float | np.floating | np.ndarray) or np.ndim(number):
            raise ValueError(f"the schedule returned {rate!r} for step {step}; expected a float")
        return float(number)

    def on_train_batch_begin(self, batch: int, logs: Mapping[str, float] | None = None) -> None:
        """Set the rate. Raises ValueError if the optimizer has none."""
        optimizer = self.model.optimizer
        if not hasattr(optimizer, "learning_rate"):
            raise ValueError("the optimizer has no learning_rate that could be set")
        optimizer.learning_rate = self.rate_at(self.params["global_step"])


class MaxStepsStopping(_Callback):  # type: ignore[misc]  # Keras has no types
    """Ends the training when the job has made more than so many steps; `--max_step` ends it after exactly so many."""

    def __init__(self, max_steps: int) -> None:
        super().__init__()
        self._most, self._before = max_steps, 0

    def set_completed_steps(self, steps: int) -> None:
        """Count steps that were made before this job."""
        self._before = steps

    def on_train_batch_end(self, batch: int, logs: Mapping[str, float] | None = None) -> None:
        """Ask for the end once there are more steps."""
        if self._before + self.params["global_step"] > self._most:
            self.model.stop_training = True


class SavedModelExporter(_Callback):  # type: ignore[misc]  # Keras has no types
    """Does nothing: a job writes its model itself, as a directory with `--output_format=saved_model`."""

    def __init__(self, *_: Any, **__: Any) -> None:
        super().__init__()
