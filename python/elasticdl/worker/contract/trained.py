"""The Protocol that a framework implements for models that are trained: they are evaluated, or predict; the loop knows no framework."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy.typing as npt

from elasticdl.worker.contract.evaluation import Evaluator
from elasticdl.worker.contract.records import Records

PREDICTION = "prediction"
"""Name of the only output of a model."""

Predictions = Mapping[str, npt.NDArray[Any]]
"""What a model gives for a chunk: of each output by its name, an array with the records along the first dimension."""


class TrainedModel(Protocol):
    """The model of a file that `export` wrote, with its weights. All calls come from one thread, except `convert`."""

    def prepare(self, sample: Records) -> None:
        """Build the model, take its weights from the file, and try it on `sample`; called once, before anything else.

        Raises BadModel (the file is of another model, or can't be read) or BadData.
        """

    def evaluator(self, metadata: Any) -> Evaluator:
        """Return what evaluates this model, with nothing built yet; called once at most, after `prepare`."""

    def convert(self, records: Records) -> Any:
        """Run the user's `feed` with the mode "prediction" over one chunk. Raises BadData."""

    def predict(self, batch: Any, task: int, chunk: int) -> Predictions:
        """Return what the model gives, not in training mode; randomness is of (job seed, task, chunk)."""
