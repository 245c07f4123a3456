"""How a model is evaluated whose weights live on parameter servers: variables and rows go in with each chunk.

A model may look up other rows outside of training than in it, and `feed` may give other features, so its lookups are traced again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from elasticdl.errors import BadModel
from elasticdl.keras.embedding import looking_up
from elasticdl.keras.feed import Batch
from elasticdl.keras.psstep import LookupTrace, PsStep
from elasticdl.worker.contract.ps import PsBatch

Rows = Sequence[npt.NDArray[np.float32]]
IdsOf = Callable[[Any], list[tuple[int, npt.NDArray[np.int64]]]]


class WeightsOnServers:
    """Implements `elasticdl.keras.evaluation.Forward`."""

    def __init__(
        self,
        path: Path,
        model: Any,
        step: PsStep,
        looked_up: Callable[[Batch, IdsOf], PsBatch],
        dense: Callable[[], npt.NDArray[np.float32]],
    ) -> None:
        """Trace nothing yet.

        Args:
            path: of the model file, for messages.
            model: built.
            step: of its training.
            looked_up: looks up the ids of a batch.
            dense: returns the flat row of the variables taken.
        """
        self._path, self._model, self._step = path, model, step
        self._looked_up, self._dense = looked_up, dense
        self.seeded = step.seeded

    def trace(self, features: Any) -> None:
        """Trace the lookups. Raises BadModel for one of rows that training does not know."""
        self._lookups = LookupTrace(self._model, features, self.seeded, training=False)
        trained = {id(layer) for layer in self._step.layers}
        for layer in self._lookups.calls:
            if id(layer) not in trained:
                raise BadModel(
                    f"{self._path}: the embedding {layer.name} is looked up in evaluation only, so its rows are not trained; let training "
                    "look it up, too"
                )

    def converted(self, batch: Batch) -> PsBatch:
        """Look up the ids of a batch. Raises BadData."""
        return self._looked_up(batch, lambda features: self._lookups.ids(features, self._step.layers))

    def any_rows(self, converted: PsBatch) -> Rows:
        """Return rows that are all different, so that metrics see different examples."""
        random = np.random.default_rng(0)
        return [
            random.uniform(-1.0, 1.0, len(ids) * layer.output_dim).astype(np.float32)
            for ids, layer in zip(converted.batches, self._step.layers, strict=True)
        ]

    def arguments(self, converted: PsBatch, rows: Rows) -> tuple[Any, Any]:
        """Return the batch's data; the places of its ids, variables and rows are given."""
        data, places = converted.data
        return data, (places, tf.constant(self._dense()), self._step.matrices(rows))

    def signature(self) -> Any:
        """Return the signature of places, variables and rows."""
        return (
            [tf.TensorSpec([None], tf.int32) for _ in self._lookups.calls],
            tf.TensorSpec([len(self._dense())], tf.float32),
            [tf.TensorSpec([None, layer.output_dim], tf.float32) for layer in self._step.layers],
        )

    @contextmanager
    def weights(self, given: Any) -> Iterator[list[tuple[Any, Any]]]:
        """Let layers look up the rows given, and variables have the values given."""
        places, dense, rows = given
        with looking_up(self._lookups.given(self._step.layers, rows, places)):
            yield list(zip(self._step.variables, self._step.values(dense), strict=True))
