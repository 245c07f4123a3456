"""A model as a function of its variables: the loss of a chunk while it trains, what metrics see, what it predicts.

Everything runs in a stateless scope, where variables have the values that they are given and what is assigned goes nowhere else. It is the
same for JAX, which traces it, and for PyTorch, which runs it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy.typing as npt

from elasticdl.errors import BadModel
from elasticdl.keras.internals import clear_losses, seed_states
from elasticdl.keras.loss import ChunkLoss
from elasticdl.keras.metricvalues import Seen, widest
from elasticdl.worker.fedbatch import Batch
from elasticdl.worker.seeds import chunk_seeds


class Forward:
    """Calls one model.

    Attributes:
        trained: variables that gradients are taken by.
        others: variables that are neither trained nor states of seed generators.
        path: of the model file.
        changed: places of those among the others that training changes; known after the first chunk.
    """

    def __init__(self, model: Any, loss: Any, where: str, path: Any) -> None:
        """`loss`: the user's; `where` names it in messages; `path`: of the model file."""
        self._model, self.path = model, path
        self._loss = ChunkLoss(loss, where)
        self._seeded = seed_states(model)
        known = {id(state) for state in self._seeded}
        self.trained = list(model.trainable_variables)
        self.others = [one for one in model.non_trainable_variables if id(one) not in known]
        self.changed: list[int] | None = None

    def seeds(self, seed: int, first: int, second: int) -> list[npt.NDArray[Any]]:
        """Return the states of the seed generators for one chunk, at a place that two numbers say."""
        made = chunk_seeds(seed, first, second, len(self._seeded))
        return [
            row.astype(keras.backend.standardize_dtype(state.dtype))
            for row, state in zip(made, self._seeded, strict=True)
        ]

    def training(
        self, trained: Sequence[Any], others: Sequence[Any], seeds: Sequence[Any], batch: Batch
    ) -> tuple[Any, list[Any]]:
        """Return the mean loss, layers' own included, and the changed ones of the others after it. Raises BadModel."""
        mapping = [
            *zip(self.trained, trained, strict=True),
            *zip(self.others, others, strict=True),
            *self._seeds(seeds),
        ]
        with keras.StatelessScope(state_mapping=mapping, collect_losses=True) as scope:
            predictions = self._model(batch.features, training=True)
            loss = self._loss(batch.labels, predictions, batch.weights)
            for own in self._model.losses:
                loss = loss + keras.ops.sum(own)
        clear_losses(self._model)
        after = [scope.get_current_value(variable) for variable in self.others]
        changed = [
            place
            for place, (new, old) in enumerate(zip(after, others, strict=True))
            if new is not None and new is not old
        ]
        self.changed = changed if self.changed is None else self.changed
        if unknown := set(changed) - set(self.changed):
            raise BadModel(
                f"{self.path}: training changes {self.others[min(unknown)].path!r} in some chunks only; workers can't agree on it"
            )
        return loss, [others[place] if after[place] is None else after[place] for place in self.changed]

    def seen(self, values: Sequence[Any], seeds: Sequence[Any], batch: Batch, examples: Any) -> Seen:
        """Return what metrics see of a chunk, the model not in training mode; `values`: of all of its variables."""
        with self._stateless(values, seeds):
            predictions = self._model(batch.features, training=False)
            mean = keras.ops.cast(self._loss(batch.labels, predictions, batch.weights), widest())
            for own in self._model.losses:
                mean = mean + keras.ops.cast(keras.ops.sum(own), widest())
        clear_losses(self._model)
        return Seen(batch.labels, predictions, batch.weights, mean, examples)

    def outputs(self, values: Sequence[Any], seeds: Sequence[Any], features: Any) -> Any:
        """Return what the model gives, not in training mode."""
        with self._stateless(values, seeds):
            outputs = self._model(features, training=False)
        clear_losses(self._model)
        return outputs

    def values(self) -> list[Any]:
        """Return the present values of all variables."""
        return [variable.value for variable in self._model.variables]

    def _stateless(self, values: Sequence[Any], seeds: Sequence[Any]) -> Any:
        mapping = [*zip(self._model.variables, values, strict=True), *self._seeds(seeds)]
        return keras.StatelessScope(state_mapping=mapping, collect_losses=True)

    def _seeds(self, seeds: Sequence[Any]) -> list[tuple[Any, Any]]:
        return [
            (state, keras.ops.convert_to_tensor(value, state.dtype))
            for state, value in zip(self._seeded, seeds, strict=True)
        ]


def tensors(batch: Batch) -> Batch:
    """Return a batch of the backend's tensors."""
    return batch.changed(
        lambda tree: None if tree is None else keras.tree.map_structure(keras.ops.convert_to_tensor, tree)
    )
