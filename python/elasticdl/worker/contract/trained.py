"""The Protocol that a framework implements for models that are trained: they are evaluated, or predict; the loop knows no framework."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy.typing as npt

from elasticdl.checkpoint.savedrows import SavedRows
from elasticdl.checkpoint.stateimage import StateImage
from elasticdl.worker.contract.evaluation import Evaluator
from elasticdl.worker.contract.records import Records

PREDICTION = "prediction"
"""Name of the only output of a model."""

Predictions = Mapping[str, npt.NDArray[Any]]
"""What a model gives for a chunk: of each output by its name, an array with the records along the first dimension."""


@dataclass(frozen=True, slots=True)
class GroupState:
    """The state that a checkpoint of a synchronous job has.

    Attributes:
        folder: of the checkpoint.
        image: what the adapter's `image` returned in that job.
    """

    folder: Path
    image: StateImage


Weights = Path | GroupState | SavedRows
"""Where the weights of a trained model are: what `export` wrote, the state of a group, or what parameter servers had."""


class TrainedModel(Protocol):
    """A model that was trained, with its weights. All calls come from one thread, except `convert`."""

    def prepare(self, sample: Records) -> None:
        """Build the model, take its weights, and try it on `sample`; called once, before anything else.

        From a state the model has the weights that `export` would have written at the end of a job in that state; rows of tables that are
        not in a checkpoint are initial. Raises BadModel (the weights are of another model, or can't be read) or BadData.
        """

    def evaluator(self, metadata: Any) -> Evaluator:
        """Return what evaluates this model, with nothing built yet; called once at most, after `prepare`."""

    def convert(self, records: Records) -> Any:
        """Run the user's `feed` with the mode "prediction" over one chunk. Raises BadData."""

    def predict(self, batch: Any, task: int, chunk: int) -> Predictions:
        """Return what the model gives, not in training mode; randomness is of (job seed, task, chunk)."""
