"""The compiled functions of an asynchronous step: the ids that a minibatch looks up, and its gradients.

They keep nothing from chunk to chunk. Weights and rows go in, gradients of the mean loss and changes of statistics come out; no variable
of the model is read or written, so the model's own values only serve as its first ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from elasticdl.errors import BadModel
from elasticdl.keras.compiled import Compiled
from elasticdl.keras.embedding import Given, PsLayer, Recorded, looking_up
from elasticdl.keras.internals import clear_losses
from elasticdl.keras.library import library_of
from elasticdl.keras.loss import ChunkLoss


@dataclass(frozen=True, slots=True)
class Weights:
    """The dense variables of a model in one flat row.

    Attributes:
        trained: those that the loss depends on.
        changed: float ones that a chunk changes, such as statistics.
        fixed: the other trainable ones.
    """

    trained: tuple[Any, ...]
    changed: tuple[Any, ...]
    fixed: tuple[Any, ...]


class LookupTrace:
    """The compiled function of the ids that one call of a model looks up in its server-side layers."""

    def __init__(self, model: Any, features: Any, seeded: list[Any], training: bool) -> None:
        """`features`: their signature. `seeded`: states of the model's seed generators. Traces the model."""
        self._model, self._seeded, self._training = model, seeded, training
        self._recorded = Recorded()
        self._compiled = Compiled(self._trace, (features,))
        self._compiled.trace()

    @property
    def calls(self) -> list[PsLayer]:
        """Return the layer of each lookup, in their order."""
        return self._recorded.layers

    def ids(self, features: Any, layers: list[PsLayer]) -> list[tuple[int, npt.NDArray[np.int64]]]:
        """Return of each lookup its layer's place in `layers` and its ids, flat; may be called from several threads."""
        places = {id(layer): place for place, layer in enumerate(layers)}
        found = self._compiled(features)
        return [(places[id(layer)], ids.numpy()) for layer, ids in zip(self.calls, found, strict=True)]

    def given(self, layers: list[PsLayer], rows: list[Any], places: list[Any]) -> Given:
        """Return the answers to the lookups: `rows` are of each of `layers`, `places` of each lookup among them."""
        rows_of = {id(layer): of_table for layer, of_table in zip(layers, rows, strict=True)}
        return Given([(rows_of[id(layer)], at) for layer, at in zip(self.calls, places, strict=True)])

    def _trace(self, features: Any) -> list[Any]:
        self._recorded = Recorded()
        library = library_of(self._model)
        own = library.variables(self._model)
        mapping = [(variable, tf.convert_to_tensor(variable.value)) for variable in own]
        mapping += [(state, tf.zeros([2], tf.int64)) for state in self._seeded]
        with library.values(mapping), looking_up(self._recorded):
            self._model(features, training=self._training)
        return self._recorded.ids


class PsStep:
    """One model's compiled step. All calls but `ids` from one thread."""

    def __init__(
        self, model: Any, optimizer: Any, loss: ChunkLoss, spec: tuple[Any, ...], path: Path
    ) -> None:
        """`spec`: the signature of a batch with an unknown number of examples. Traces the model twice.

        Raises BadModel for what can't be trained so.
        """
        self._model = model
        self._optimizer = optimizer
        self._loss = loss
        self._path = path
        self._library = library = library_of(model)
        self._seeded = library.seed_states(model)
        known = {id(state) for state in self._seeded}
        every = (*library.trainable(model), *library.fixed(model))
        unseeded = [variable for variable in every if id(variable) not in known]
        self._constants = [variable for variable in unseeded if not _is_float(variable)]
        self._variables = [variable for variable in unseeded if _is_float(variable)]
        for variable in self._variables:
            if variable.dtype != "float32":
                raise BadModel(
                    f"{path}: {variable.path!r} is of type {variable.dtype}; parameter servers hold float32 only"
                )
        self._spec = spec
        self._ids = LookupTrace(model, spec[0], self._seeded, training=True)
        self.layers = list({id(layer): layer for layer in self._ids.calls}.values())
        """Server-side layers, in the order in which they are called first."""
        self._layout: Weights | None = None
        self._first = [np.asarray(variable.value) for variable in self._variables]
        dense = tf.TensorSpec([sum(value.size for value in self._first)], tf.float32)
        rows = [tf.TensorSpec([None, layer.output_dim], tf.float32) for layer in self.layers]
        places = [tf.TensorSpec([None], tf.int32) for _ in self._ids.calls]
        seeds = tf.TensorSpec([len(self._seeded), 2], tf.int64)
        self._compute = Compiled(self._trace_compute, (spec, dense, rows, places, seeds))
        self._compute.trace()

    @property
    def generators(self) -> int:
        """Return the number of seed generators in the model."""
        return len(self._seeded)

    @property
    def seeded(self) -> list[Any]:
        """Return the states of the model's seed generators."""
        return self._seeded

    @property
    def variables(self) -> list[Any]:
        """Return all dense variables, in the order of the flat row."""
        return self._variables

    @property
    def layout(self) -> Weights:
        """Return which variables do what."""
        assert self._layout is not None, "traced when this was made"
        return self._layout

    def ids(self, features: Any) -> list[tuple[int, npt.NDArray[np.int64]]]:
        """Return of each lookup its layer's place in `layers` and its ids, flat; may be called from another thread."""
        return self._ids.ids(features, self.layers)

    def matrices(self, rows: Sequence[npt.NDArray[np.float32]]) -> list[Any]:
        """Return the flat rows of each table as tensors of shape [n, width]."""
        widths = [layer.output_dim for layer in self.layers]
        return [tf.constant(row.reshape(-1, width)) for row, width in zip(rows, widths, strict=True)]

    def first(self) -> npt.NDArray[np.float32]:
        """Return the flat row of the model's first weights."""
        flat = [np.asarray(value, np.float32).reshape(-1) for value in self._first]
        return np.concatenate(flat) if flat else np.zeros(0, np.float32)

    def compute(
        self,
        data: tuple[Any, ...],
        dense: npt.NDArray[np.float32],
        rows: list[Any],
        places: list[Any],
        seeds: npt.NDArray[np.int64],
    ) -> tuple[Any, list[Any], list[Any]]:
        """Return the mean loss, gradients and changes of `layout.trained` and `layout.changed`, and the rows' gradients."""
        loss, parts, slopes = self._compute(data, tf.constant(dense), rows, places, tf.constant(seeds))
        return loss, parts, slopes

    def values(self, dense: Any) -> list[Any]:
        """Return the values of `variables` in a flat row, as tensors."""
        sizes = [value.size for value in self._first]
        flat = tf.split(dense, sizes) if sizes else []
        return [
            tf.cast(tf.reshape(part, value.shape), variable.dtype)
            for part, value, variable in zip(flat, self._first, self._variables, strict=True)
        ]

    # ------------------------------------------------------------------ traced

    def _trace_compute(
        self, data: tuple[Any, ...], dense: Any, rows: list[Any], places: list[Any], seeds: Any
    ) -> tuple[Any, list[Any], list[Any]]:
        features, labels, weights = (*data, None) if len(data) == 2 else data
        values = self.values(dense)
        constants = [tf.convert_to_tensor(variable.value) for variable in self._constants]
        mapping = [
            *zip(self._variables, values, strict=True),
            *zip(self._constants, constants, strict=True),
            *((state, seeds[index]) for index, state in enumerate(self._seeded)),
        ]
        given = self._ids.given(self.layers, rows, places)
        trainable = [
            value for variable, value in zip(self._variables, values, strict=True) if variable.trainable
        ]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch([*trainable, *rows])
            with (
                self._library.values(mapping) as scope,
                looking_up(given),
            ):
                predictions = self._model(features, training=True)
                loss = tf.cast(self._loss(labels, predictions, weights), tf.float32)
                for own in self._model.losses:
                    loss = loss + tf.cast(tf.reduce_sum(own), tf.float32)
        slopes = tape.gradient(loss, [*trainable, *rows])
        clear_losses(self._model)
        found = [None if slope is None else tf.convert_to_tensor(slope) for slope in slopes]
        clipped = self._library.clip(self._optimizer, found)
        for variable, before in zip(self._constants, constants, strict=True):
            if scope.get_current_value(variable) is not before:
                raise BadModel(
                    f"{self._path}: training changes {variable.path!r}, which is of type {before.dtype.name}: workers can't agree on "
                    "it; make it a float variable, or leave it unchanged while training"
                )
        of_rows = [
            tf.zeros_like(row) if slope is None else slope
            for row, slope in zip(rows, clipped[len(trainable) :], strict=True)
        ]
        return loss, self._parts(values, clipped[: len(trainable)], scope), of_rows

    def _parts(self, values: list[Any], slopes: list[Any], scope: Any) -> list[Any]:
        trained: list[Any] = []
        fixed: list[Any] = []
        changed: list[Any] = []
        parts: list[Any] = []
        changes: list[Any] = []
        following = iter(slopes)
        for variable, before in zip(self._variables, values, strict=True):
            if variable.trainable:
                slope = next(following)
                (fixed if slope is None else trained).append(variable)
                parts += [] if slope is None else [tf.reshape(tf.cast(slope, tf.float32), [-1])]
                continue
            after = scope.get_current_value(variable)
            if after is None or after is before:
                continue
            changed.append(variable)
            changes.append(tf.reshape(tf.cast(after - before, tf.float32), [-1]))
        if not trained and not self.layers:
            raise BadModel(f"{self._path}: the loss does not depend on any trainable variable of the model")
        self._layout = Weights(tuple(trained), tuple(changed), tuple(fixed))
        return [*parts, *changes]


def _is_float(variable: Any) -> bool:
    return bool(tf.as_dtype(variable.dtype).is_floating)
