"""What a model's predictions depend on: by shuffling a column at a time, or, of our own models, by gradients for each row.

Shuffling is of Breiman, "Random forests", 2001; gradients are integrated as by Sundararajan and others, "Axiomatic attribution for deep
networks", 2017. Both need only the exported model, and of integrated gradients the plan that it was made of.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from elasticdl.errors import BadData
from elasticdl.tabular.features import Label, Plan

if TYPE_CHECKING:
    import pyarrow as pa

Arrays = Mapping[str, npt.NDArray[Any]]
MODEL = "model.keras"
"""In the directory of a model."""
SHUFFLES = 5
STEPS = 256
"""Of the integral: its sum is within 1 % of the difference then."""
_PROBABILITIES = "probabilities"


@dataclass(frozen=True, slots=True)
class Importance:
    """What a column is worth.

    Attributes:
        feature: the column.
        importance: how much worse the metric gets without it, the mean over shuffles.
        stddev: over shuffles.
    """

    feature: str
    importance: float
    stddev: float


# ------------------------------------------------------------------ shuffling


def permutation(
    directory: Path, plan: Plan, rows: pa.Table, *, seed: int = 0, shuffles: int = SHUFFLES
) -> list[Importance]:
    """Return how much the main metric loses when a column is shuffled, the most important column first.

    Args:
        directory: of a model, with `model.keras`.
        plan: that it was made of.
        rows: with the columns of the plan's inputs and the label, as a snapshot has them.
        seed: of the shuffles.
        shuffles: of each column.

    Raises BadData if the metric can't be computed of these rows.
    """
    labels = rows.column(plan.label.column).to_numpy(zero_copy_only=False)
    return shuffled(_predictor(directory / MODEL), columns_of(plan, rows), labels, plan.label, seed, shuffles)


def shuffled(
    predict: Callable[[Arrays], Arrays],
    columns: Arrays,
    labels: npt.NDArray[Any],
    label: Label,
    seed: int = 0,
    shuffles: int = SHUFFLES,
) -> list[Importance]:
    """Return the importance of columns of any model: `predict` gives its outputs for columns. Raises what `permutation` raises."""
    return permuted(
        lambda changed: score(label, predict({**columns, **changed}), labels), columns, seed, shuffles
    )


def permuted(
    worth: Callable[[Arrays], float], columns: Arrays, seed: int = 0, shuffles: int = SHUFFLES
) -> list[Importance]:
    """Return how much less a model is worth when one of these columns is shuffled, the most important column first.

    `worth`: returns it with some columns in place of the rows' own. Raises what that raises.
    """
    best = worth({})
    found = []
    for place, (name, values) in enumerate(columns.items()):
        losses = []
        for shuffle in range(shuffles):
            order = np.random.default_rng([seed, place, shuffle]).permutation(len(values))
            losses.append(best - worth({name: values[order]}))
        found.append(Importance(name, float(np.mean(losses)), float(np.std(losses))))
    return sorted(found, key=lambda one: (-one.importance, one.feature))


def score(label: Label, outputs: Arrays, labels: npt.NDArray[Any]) -> float:
    """Return the main metric of predictions. Raises BadData if all rows have the same label."""
    if not label.classes:
        errors = outputs[label.column].astype(np.float64).reshape(-1) - labels.astype(np.float64)
        spread = float(np.var(labels.astype(np.float64)))
        if not spread:
            raise BadData(f"all rows have the same {label.column}; choose rows with several values of it")
        return float(1.0 - np.mean(errors**2) / spread)
    if len(label.classes) > 2:
        return float(np.mean(_texts(outputs[label.column]) == _texts(labels)))
    positive = _texts(labels) == _texts(np.array([_typed(label, label.classes[1], labels)]))
    return _auc(label, outputs[_PROBABILITIES][:, 1], positive)


def _typed(label: Label, value: Any, labels: npt.NDArray[Any]) -> Any:
    return bool(value) if labels.dtype == bool else value


def _texts(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return np.array(
        [one.decode() if isinstance(one, bytes) else str(one) for one in values.reshape(-1).tolist()]
    )


def _auc(label: Label, scores: npt.NDArray[Any], positive: npt.NDArray[np.bool_]) -> float:
    """Return the area under the ROC curve, from ranks; ties have the mean of theirs."""
    yes, no = int(positive.sum()), int((~positive).sum())
    if not yes or not no:
        raise BadData(f"all rows have the same {label.column}; choose rows with both values of it")
    _, places, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[places]
    return float((ranks[positive].sum() - yes * (yes + 1) / 2) / (yes * no))


def columns_of(plan: Plan, rows: pa.Table) -> Arrays:
    """Return the columns of a table as an exported model takes them."""
    from elasticdl.tabular import inputs

    chunk = {one.column: _tensor(rows.column(one.column)) for one in plan.inputs}
    return {name: one.numpy() for name, one in inputs.columns_of(plan, chunk).items()}


def _tensor(column: pa.ChunkedArray) -> Any:
    import pyarrow as pa
    import tensorflow as tf

    kind = column.type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        values = tf.string if pa.types.is_string(kind.value_type) else tf.float64
        return tf.ragged.constant(column.to_pylist(), dtype=values, ragged_rank=1)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return tf.constant(column.fill_null("").to_pylist(), tf.string)
    return tf.constant(column.cast(pa.float64()).to_numpy(), tf.float64)


def _predictor(path: Path, batch: int = 1024) -> Callable[[Arrays], Arrays]:
    """Return what gives the outputs of an exported model for columns."""
    import keras
    import tensorflow as tf

    model = keras.models.load_model(path)

    def predict(columns: Arrays) -> Arrays:
        rows = tf.data.Dataset.from_tensor_slices(dict(columns)).batch(batch)
        found: Arrays = model.predict(rows, verbose=0)
        return found

    return predict


# ------------------------------------------------------------------ gradients


@dataclass(frozen=True, slots=True)
class Attributions:
    """What each column adds to the output of each row.

    Attributes:
        columns: names.
        values: [rows, columns].
        outputs: of the rows: the number, or the probability of the class that is predicted.
        baseline: the same output where all features are their mean over the rows.
    """

    columns: tuple[str, ...]
    values: npt.NDArray[np.float64]
    outputs: npt.NDArray[np.float64]
    baseline: npt.NDArray[np.float64]


def integrated_gradients(directory: Path, plan: Plan, rows: pa.Table) -> pa.Table:
    """Return what each column adds to the prediction of each row, compared with a row of mean features: a column for each.

    Args:
        directory: of one of our models, with `model.keras`.
        plan: that it was made of.
        rows: as of `permutation`; their label is not needed.
    """
    import pyarrow as pa

    found = attributions(directory / MODEL, plan, columns_of(plan, rows))
    return pa.table({name: found.values[:, place] for place, name in enumerate(found.columns)})


def attributions(path: Path, plan: Plan, columns: Arrays, steps: int = STEPS) -> Attributions:
    """Return the attributions of rows, which sum to their outputs less the baseline's.

    The way from the mean to a row goes through numbers and through rows of embeddings, as ids have nothing between them.
    """
    import keras
    import tensorflow as tf

    served = keras.models.load_model(path)
    features = served.get_layer("preprocessing")({name: tf.constant(one) for name, one in columns.items()})
    part = served.get_layer("trained")
    rest, points, owners = _from_points(part, plan)
    at_rows = dict(
        zip(points, _values(keras.Model(part.inputs, list(points.values())), part, features), strict=True)
    )
    kept = {name: features[name] for name in rest}
    model = keras.Model({**points, **{name: rest[name] for name in rest}}, _output(part, plan))
    means = {
        name: tf.broadcast_to(tf.reduce_mean(one, 0, keepdims=True), one.shape)
        for name, one in at_rows.items()
    }
    whole = model({**at_rows, **kept})
    chosen = tf.argmax(whole, axis=1) if plan.label.classes else tf.zeros(len(whole), tf.int64)

    @tf.function  # type: ignore[untyped-decorator]
    def gradients(share: Any) -> Any:
        here = {name: means[name] + share * (one - means[name]) for name, one in at_rows.items()}
        with tf.GradientTape() as tape:
            tape.watch(here)
            output = tf.reduce_sum(tf.gather(model({**here, **kept}), chosen, axis=1, batch_dims=1))
        return tape.gradient(output, here)

    sums = {name: tf.zeros_like(one) for name, one in at_rows.items()}
    for step in range(steps):
        found = gradients(tf.constant((step + 0.5) / steps, tf.float32))
        sums = {name: sums[name] + (0.0 if found[name] is None else found[name]) / steps for name in sums}
    names = tuple(dict.fromkeys(one.column for one in plan.inputs))
    values = np.zeros((len(whole), len(names)))
    for name, one in at_rows.items():
        parts = ((one - means[name]) * sums[name]).numpy().astype(np.float64)
        _share(values, parts.reshape(*parts.shape[:2], -1).sum(2), owners[name], names)

    def picked(outputs: Any) -> npt.NDArray[np.float64]:
        array: npt.NDArray[np.float64] = (
            tf.gather(outputs, chosen, axis=1, batch_dims=1).numpy().astype(np.float64)
        )
        return array

    return Attributions(names, values, picked(whole), picked(model({**means, **kept})))


def _values(model: Any, part: Any, features: Mapping[str, Any]) -> list[Any]:
    found = model([features[one.name] for one in part.inputs])
    return list(found) if isinstance(found, list | tuple) else [found]


def _from_points(
    part: Any, plan: Plan
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Sequence[Sequence[str]]]]:
    """Return the inputs that are needed besides, the symbols from which gradients go, and the columns that each of these is of.

    Of numbers each has its column; of rows of embeddings all have the columns of their feature.
    """
    from elasticdl.tabular.inputs import NUMBERS, id_columns, number_columns

    symbols = {one.name: one for one in part.inputs}
    points: dict[str, Any] = {}
    owners: dict[str, Sequence[Sequence[str]]] = {}
    if NUMBERS in symbols:
        points[NUMBERS] = symbols[NUMBERS]
        owners[NUMBERS] = [[one.column] for one in number_columns(plan)]
    rest = {}
    for place, one in enumerate(id_columns(plan)):
        for layer in part.layers:
            if layer.name.rpartition("_")[2] == str(place) and layer.name.rpartition("_")[0] in ID_LAYERS:
                points[layer.name] = layer.output
                owners[layer.name] = [one.feature.columns]
                if one.place is None and not one.feature.is_indicator:
                    rest[one.key] = symbols[one.key]
    return rest, points, owners


ID_LAYERS = ("embedding", "field", "wide", "indicator")
"""Names of layers of `models.py` whose input are ids; the place of the feature follows."""


def _output(part: Any, plan: Plan) -> Any:
    """Return the symbol of the output, [rows, classes] or [rows, 1]."""
    from keras import ops

    outputs = part.output
    return outputs[_PROBABILITIES] if plan.label.classes else ops.expand_dims(outputs[plan.label.column], 1)


def _share(
    values: npt.NDArray[np.float64],
    parts: npt.NDArray[np.float64],
    owners: Sequence[Sequence[str]],
    names: Sequence[str],
) -> None:
    """Add parts [rows, n] to the columns that they are of; a feature of several columns is shared by them."""
    several = len(owners) > 1 or parts.shape[1] == 1
    for place in range(parts.shape[1]):
        of = owners[place] if several else owners[0]
        for name in of:
            values[:, names.index(name)] += parts[:, place] / len(of)
