"""The trained part of a plan's model: features in, the label's value and probabilities of its classes out.

Numbers and embeddings of categories are what each of the networks starts with; `wide` is linear in them, `deep` is not.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import ops

from elasticdl.tabular.features import PROBABILITIES, IdFeature, Label, LabelKind, Plan
from elasticdl.tabular.idlayers import COMMON, IdLayer, Use, id_layers
from elasticdl.tabular.inputs import IDS, NONE, NUMBERS, UNKNOWN, id_columns, number_columns

_CROSSES = 2
"""Layers of the cross network of dcn."""


def trained_part(plan: Plan) -> Any:
    """Return the model that is trained, built: a functional one."""
    inputs = _inputs(plan)
    build = {"dnn": _dnn, "linear": _wide, "wide_deep": _wide_deep, "deepfm": _deepfm, "dcn": _dcn}
    return keras.Model(
        inputs, decoded(plan.label, build[plan.network.kind](plan, inputs, plan.label.units)), name="trained"
    )


def _inputs(plan: Plan) -> dict[str, Any]:
    found = {}
    numbers = len(number_columns(plan))
    if numbers:
        found[NUMBERS] = keras.Input((numbers,), name=NUMBERS)
    single = sum(not one.length for one in plan.ids)
    if single:
        found[IDS] = keras.Input((single,), dtype="int64", name=IDS)
    for one in id_columns(plan):
        if one.place is None:
            found[one.key] = keras.Input((one.feature.length,), dtype="int64", name=one.key)
    return found


def decoded(label: Label, logits: Any) -> dict[str, Any]:
    """Return the outputs for the logits [n, units], or the standardised number [n, 1]."""
    if not label.classes:
        scaled = keras.layers.Rescaling(label.deviation, label.mean)(logits)
        return {label.column: ops.squeeze(scaled, axis=1)}
    if len(label.classes) == 2:
        one = ops.sigmoid(logits)
        probabilities = ops.concatenate([1.0 - one, one], axis=1)
    else:
        probabilities = ops.softmax(logits, axis=1)
    return {label.column: _value(label, ops.argmax(probabilities, axis=1)), PROBABILITIES: probabilities}


def _value(label: Label, classes: Any) -> Any:
    """Return the values that numbers of classes stand for."""
    match label.kind:
        case LabelKind.TEXT:
            names = [str(one) for one in label.classes]
            lookup = keras.layers.StringLookup(
                vocabulary=names, num_oov_indices=0, oov_token=UNKNOWN, invert=True
            )
            return lookup(classes)
        case LabelKind.BOOLEAN:
            return ops.cast(classes, "bool")
    values = [int(one) for one in label.classes]
    lookup = keras.layers.IntegerLookup(vocabulary=values, num_oov_indices=0, oov_token=NONE, invert=True)
    found = lookup(ops.cast(classes, "int64"))
    return ops.cast(found, "float64") if label.kind is LabelKind.NUMBER else found


# ------------------------------------------------------------------ networks


def _dnn(plan: Plan, inputs: dict[str, Any], units: int) -> Any:
    return keras.layers.Dense(units, name="logits")(deep_of(plan, _joined(plan, inputs)))


def _wide_deep(plan: Plan, inputs: dict[str, Any], units: int) -> Any:
    return _wide(plan, inputs, units) + _dnn(plan, inputs, units)


def _wide(plan: Plan, inputs: dict[str, Any], units: int) -> Any:
    """Return a linear function of the features: a weight for each number and each id."""
    parts = []
    for layer in id_layers(plan, Use.WIDE):
        rows = _rows(layer, inputs, "zeros")
        parts.append(ops.sum(rows, axis=1) if len(layer.columns) > 1 else rows)
    numbers = _numbers(plan, inputs, "wide")
    if numbers is not None:
        parts.append(keras.layers.Dense(units, name="wide_numbers")(numbers))
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def _deepfm(plan: Plan, inputs: dict[str, Any], units: int) -> Any:
    """Return a factorisation machine beside a deep network on the same embeddings (Guo and others, "DeepFM", 2017).

    Numbers are fields, too: each has a vector, which it scales. With several classes the machine's sum of products has a weight for each.
    """
    fields = []
    for layer in id_layers(plan, Use.FIELD):
        rows = _rows(layer, inputs)
        fields.append(rows if len(layer.columns) > 1 else ops.expand_dims(rows, 1))
    numbers = _numbers(plan, inputs, "deep")
    if numbers is not None:
        vectors = keras.layers.EinsumDense(
            "bd,dw->bdw", output_shape=(numbers.shape[1], COMMON), name="field_numbers"
        )(numbers)
        fields.append(vectors)
    stacked = fields[0] if len(fields) == 1 else ops.concatenate(fields, axis=1)
    machine = machine_of(ops.sum(stacked, 1), ops.sum(ops.square(stacked), 1), units)
    flat = keras.layers.Flatten()(stacked)
    first = flat if numbers is None else ops.concatenate([flat, numbers], axis=1)
    deep = keras.layers.Dense(units, name="logits")(deep_of(plan, first))
    return _wide(plan, inputs, units) + machine + deep


def machine_of(total: Any, squares: Any, units: int) -> Any:
    """Return what a factorisation machine makes of all pairs of fields, of their sum and the sum of their squares: both [n, COMMON]."""
    # Half of (the square of the sum, less the sum of the squares) is the sum over all pairs.
    pairs = 0.5 * (ops.square(total) - squares)
    return ops.sum(pairs, 1, keepdims=True) if units == 1 else keras.layers.Dense(units, name="pairs")(pairs)


def _dcn(plan: Plan, inputs: dict[str, Any], units: int) -> Any:
    """Return a cross network beside a deep one (Wang and others, "DCN V2", 2021): x' = x0 * (W x + b) + x."""
    first = _joined(plan, inputs)
    crossed = first
    for layer in range(_CROSSES):
        crossed = first * keras.layers.Dense(first.shape[-1], name=f"cross_{layer}")(crossed) + crossed
    together = ops.concatenate([crossed, deep_of(plan, first)], axis=1)
    return keras.layers.Dense(units, name="logits")(together)


def deep_of(plan: Plan, features: Any, first: int = 0) -> Any:
    """Return what the layers of a network make of features, from the layer of this place on."""
    for place, units in enumerate(plan.network.hidden_units[first:], first):
        features = keras.layers.Dense(units, activation=plan.network.activation, name=f"hidden_{place}")(
            features
        )
        if plan.network.dropout:
            features = keras.layers.Dropout(plan.network.dropout, name=f"dropout_{place}")(features)
    return features


def _joined(plan: Plan, inputs: dict[str, Any]) -> Any:
    """Return all features side by side."""
    numbers = _numbers(plan, inputs, "deep")
    parts = [] if numbers is None else [numbers]
    for layer in id_layers(plan, Use.EMBEDDING):
        if layer.use is Use.INDICATOR:
            parts.append(_indicator(layer, inputs))
        else:
            rows = _rows(layer, inputs)
            parts.append(keras.layers.Flatten()(rows) if len(layer.columns) > 1 else rows)
    return parts[0] if len(parts) == 1 else ops.concatenate(parts, axis=1)


def _numbers(plan: Plan, inputs: dict[str, Any], part: str) -> Any:
    """Return the numbers that a part gets; None if it gets none."""
    wanted = places_of_numbers(plan, part)
    if not wanted:
        return None
    numbers = inputs[NUMBERS]
    return numbers if len(wanted) == numbers.shape[1] else ops.take(numbers, wanted, axis=1)


def places_of_numbers(plan: Plan, part: str) -> list[int]:
    """Return the columns of the matrix of numbers that a part gets."""
    return [place for place, one in enumerate(number_columns(plan)) if one.part in ("", part)]


def _rows(layer: IdLayer, inputs: dict[str, Any], initializer: str = "uniform") -> Any:
    """Return the weights of a layer's ids: [n, width], or [n, columns, width] of several columns."""
    (first, *others) = layer.columns
    if others:
        # matrices of several columns have the rows of one after those of the other
        ids = ops.take(inputs[IDS], layer.places, axis=1) + np.array(layer.offsets, np.int64)
    else:
        ids = inputs[first.key] if first.place is None else inputs[first.key][:, first.place]
    rows = keras.layers.Embedding(
        sum(layer.sizes), layer.width, embeddings_initializer=initializer, name=layer.name
    )(ids)
    return combined(first.feature, ids, rows) if first.place is None else rows


def _indicator(layer: IdLayer, inputs: dict[str, Any]) -> Any:
    """Return ones where an id is there, [n, ids of all columns]."""
    (first, *_) = layer.columns
    if first.place is None:
        encoded = keras.layers.CategoryEncoding(first.feature.size, output_mode="multi_hot", name=layer.name)(
            inputs[first.key]
        )
        return encoded[:, 1:]
    places, ids = (
        np.repeat(layer.places, layer.sizes),
        np.concatenate([np.arange(size) for size in layer.sizes]),
    )
    there = ops.equal(ops.take(inputs[IDS], places, axis=1), ids)
    return keras.layers.Identity(name=layer.name)(ops.cast(there, "float32"))


def combined(feature: IdFeature, ids: Any, rows: Any) -> Any:
    """Combine the rows of the ids that are there, [n, length, width]."""
    there = ops.cast(ops.expand_dims(ops.not_equal(ids, 0), -1), rows.dtype)
    total = ops.sum(rows * there, axis=1)
    count = ops.maximum(ops.sum(there, axis=1), 1.0)
    match feature.combiner:
        case "sum":
            return total
        case "sqrtn":
            return total / ops.sqrt(count)
    return total / count
