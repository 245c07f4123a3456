"""The sums that a network begins with: what its first layers make of a row is a sum of what they make of each of its columns.

Where one column has other values, the sums change by what that column adds, and only what follows them is computed again. Of a thousand
columns that is a fraction of the work. Sums are kept in float64 and given to the network as float32, so rows with the same features have
the same outputs whichever values they had before. A cross network multiplies all features with each other and has no such sums.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf
from keras import ops

from elasticdl.tabular.features import PROBABILITIES, Plan
from elasticdl.tabular.idlayers import COMMON, IdLayer, Use, id_layers
from elasticdl.tabular.importance import has_sums
from elasticdl.tabular.inputs import number_columns
from elasticdl.tabular.models import combined, decoded, deep_of, machine_of, places_of_numbers

_BATCH = 8192
"""Rows of which what follows is computed at a time."""
_TOLERANCE = 1e-3
"""Between outputs computed from sums and those of the whole model, in probabilities or deviations of the label."""

Arrays = Mapping[str, npt.NDArray[Any]]


class Sums:
    """The sums of rows, and the outputs of a model where columns have the values of other rows."""

    def __init__(self, plan: Plan, part: Any, batches: Sequence[Mapping[str, Any]]) -> None:
        """Compute the sums of rows.

        Args:
            plan: of a network that begins with sums; columns that are crossed with others are not to be moved.
            part: its trained part.
            batches: features of the rows, some rows at a time.

        Raises ValueError if the model has other layers than those of the plan.
        """
        terms = _Terms(plan, part)
        first = keras.Model(part.inputs, terms.symbol)
        self._values = np.concatenate(
            [first([one[name.name] for name in part.inputs]).numpy() for one in batches]
        )
        """[rows, n], of which sums are made."""
        self._weights, self._of_squares = terms.weights, terms.of_squares
        self._places: dict[str, list[int]] = {}
        for place, column in enumerate(terms.columns):
            self._places.setdefault(column, []).append(place)
        self._sums = np.concatenate(
            [
                self._added(self._values[at : at + _BATCH], slice(None))
                for at in range(0, len(self._values), _BATCH)
            ]
        )
        self._sums += terms.bias
        self._last: tuple[str, npt.NDArray[np.float64]] | None = None
        rest = _rest(plan, part, self._sums.shape[1])
        self._rest = tf.function(lambda sums: rest(sums, training=False), reduce_retracing=True)

    def outputs(self, order: Mapping[str, npt.NDArray[np.int64]]) -> Arrays:
        """Return the model's outputs where columns have the values of other rows."""
        sums = self._sums
        for column, rows in order.items():
            added = self._added_by(column)
            moved = added[rows]
            moved -= added
            moved += sums
            sums = moved
        given = sums.astype(np.float32)
        found = [self._rest(tf.constant(given[at : at + _BATCH])) for at in range(0, len(given), _BATCH)]
        return {name: np.concatenate([one[name].numpy() for one in found]) for name in found[0]}

    def _added_by(self, column: str) -> npt.NDArray[np.float64]:
        """Return what a column adds to the sums; of the last one it is kept, as each is shuffled several times."""
        if self._last is None or self._last[0] != column:
            places = self._places.get(column, [])
            self._last = column, self._added(self._values[:, places], places)
        return self._last[1]

    def _added(self, values: npt.NDArray[Any], places: Any) -> npt.NDArray[np.float64]:
        """Return what values at some places add to the sums, [rows, sums]."""
        values = values.astype(np.float64)
        added: npt.NDArray[np.float64] = values @ self._weights[places]
        if self._of_squares is not None:
            added = added + values**2 @ self._of_squares[places]
        return added


def sums_of(plan: Plan, part: Any, batches: Sequence[Mapping[str, Any]], outputs: Arrays) -> Sums | None:
    """Return the sums of rows; None if the model has none, or is not the plan's.

    `outputs`: of the model for the rows, with which those that are computed from the sums are compared. Other arguments as of `Sums`.
    """
    if not has_sums(plan.network.kind):
        return None
    try:
        sums = Sums(plan, part, batches)
    except ValueError:  # Keras' for a layer that is not there, or has another shape
        return None
    name = PROBABILITIES if plan.label.classes else plan.label.column
    tolerance = _TOLERANCE * (1.0 if plan.label.classes else plan.label.deviation)
    is_same = np.allclose(sums.outputs({})[name], outputs[name], rtol=_TOLERANCE, atol=tolerance)
    return sums if is_same else None


class _Terms:
    """What the sums are made of.

    Attributes:
        symbol: of the values, [rows, n].
        columns: that each of the n is of; of crossed ones the first.
        weights: [n, sums].
        of_squares: weights of the values' squares; None if they are all 0.
        bias: of each sum.
    """

    def __init__(self, plan: Plan, part: Any) -> None:
        self._plan, self._part = plan, part
        kind, units = plan.network.kind, plan.label.units
        blocks: list[tuple[Any, list[str], int, npt.NDArray[Any]]] = []
        bias: list[npt.NDArray[Any]] = []
        width = 0
        if kind != "linear":
            first = part.get_layer("hidden_0" if plan.network.hidden_units else "logits")
            kernel, of_first = first.get_weights()
            columns = [column for layer in id_layers(plan, _DEEP[kind]) for column in _columns(layer)]
            numbers = self._numbers("deep")
            if kind == "deepfm":
                columns += [column for column in numbers for _ in range(COMMON)] + numbers
                vectors = len(columns) - len(numbers)
                each = np.zeros((len(columns), COMMON))
                each[:vectors] = np.tile(np.eye(COMMON), (vectors // COMMON, 1))
                kernel = np.concatenate([kernel, each, np.zeros_like(each)], axis=1)
            else:
                columns = numbers + columns
            bias += [of_first, np.zeros(kernel.shape[1] - len(of_first))]
            blocks.append((first.input, columns, 0, kernel))
            width = kernel.shape[1]
        if kind in ("linear", "wide_deep", "deepfm"):
            for layer in id_layers(plan, Use.WIDE):
                columns = _columns(layer)
                weights = np.tile(np.eye(units), (len(columns) // units, 1))
                blocks.append((self._rows(layer), columns, width, weights))
            of_wide = np.zeros(units)
            if numbers := self._numbers("wide"):
                layer = part.get_layer("wide_numbers")
                kernel, of_wide = layer.get_weights()
                blocks.append((layer.input, numbers, width, kernel))
            bias.append(of_wide)
        flat = [ops.reshape(symbol, (-1, len(columns))) for symbol, columns, _, _ in blocks]
        self.symbol = flat[0] if len(flat) == 1 else ops.concatenate(flat, axis=1)
        self.columns = [column for _, columns, _, _ in blocks for column in columns]
        self.bias = np.concatenate(bias)
        self.weights = np.zeros((len(self.columns), len(self.bias)))
        self.of_squares = np.zeros_like(self.weights) if kind == "deepfm" else None
        at = 0
        for _, columns, start, weights in blocks:
            self.weights[at : at + len(columns), start : start + weights.shape[1]] = weights
            at += len(columns)
        if self.of_squares is not None:
            sums = slice(width - 2 * COMMON, width - COMMON)
            self.of_squares[:, width - COMMON : width] = self.weights[:, sums]

    def _numbers(self, part: str) -> list[str]:
        every = number_columns(self._plan)
        return [every[place].column for place in places_of_numbers(self._plan, part)]

    def _rows(self, layer: IdLayer) -> Any:
        rows = self._part.get_layer(layer.name).output
        if not layer.is_list:
            return rows
        (first,) = layer.columns
        ids = next(one for one in self._part.inputs if one.name == first.key)
        return combined(first.feature, ids, rows)


_DEEP = {
    "dnn": Use.EMBEDDING,
    "wide_deep": Use.EMBEDDING,
    "deepfm": Use.FIELD,
}
"""The layers of ids that the first layer of a network's deep part has, by kind."""


def _columns(layer: IdLayer) -> list[str]:
    """Return the column of each number that a layer gives for a row."""
    found = []
    for one in layer.columns:
        size = layer.width
        if layer.use is Use.INDICATOR:
            size = one.feature.size - layer.is_list  # of a list the padding has none
        found += [one.feature.columns[0]] * size
    return found


def _rest(plan: Plan, part: Any, width: int) -> Any:
    """Return what follows the sums, with the trained weights."""
    kind, network, units = plan.network.kind, plan.network, plan.label.units
    sums = keras.Input((width,))
    parts = []
    if kind in ("linear", "wide_deep", "deepfm"):
        parts.append(sums[:, width - units :])
    if kind == "deepfm":
        end = width - units
        total, squares = sums[:, end - 2 * COMMON : end - COMMON], sums[:, end - COMMON : end]
        parts.append(machine_of(total, squares, units))
    if kind != "linear":
        first = sums[:, : network.hidden_units[0] if network.hidden_units else units]
        if network.hidden_units:
            hidden = deep_of(plan, keras.layers.Activation(network.activation)(first), 1)
            first = keras.layers.Dense(units, name="logits")(hidden)
        parts.append(first)
    logits = parts[0]
    for one in parts[1:]:
        logits = logits + one
    rest = keras.Model(sums, decoded(plan.label, logits))
    for layer in rest.layers:
        if layer.weights:
            layer.set_weights(part.get_layer(layer.name).get_weights())
    return rest
