"""What a model's predictions depend on: by shuffling a column at a time, or, of our own models, by gradients for each row.

Shuffling is of Breiman, "Random forests", 2001; gradients are integrated as by Sundararajan and others, "Axiomatic attribution for deep
networks", 2017. Both need only the exported model, and of integrated gradients the plan that it was made of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from elasticdl.errors import BadData
from elasticdl.tabular.features import PROBABILITIES, Label, Plan

if TYPE_CHECKING:
    import pyarrow as pa

    from elasticdl.tabular.sums import Sums

Arrays = Mapping[str, npt.NDArray[Any]]
MODEL = "model.keras"
"""In the directory of a model."""
SHUFFLES = 5
EVALUATIONS = 5_000_000
"""Of a row, beyond which columns are shuffled fewer times, of fewer rows: that many take minutes where each needs most of the model."""
_FEWEST_ROWS, _FEWEST_SHUFFLES = 1000, 2
_SUMMED = 1_000_000
"""Evaluations of a row from which on sums are worth their while; the last digits of results depend on it."""
_BATCH = 1024
"""Rows of which a model is asked at a time."""
STEPS = 256
"""Of the integral: its sum is within 1 % of the difference then."""


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


Progress = Callable[[int], object]
"""Takes how much of the work is done: columns that have been shuffled, or rows that are explained."""


def _no_progress(done: int) -> None:
    pass


# ------------------------------------------------------------------ shuffling


def sized(rows: int, columns: int, kind: str | None = None, *, asked: bool = False) -> tuple[int, int]:
    """Return how many rows are evaluated, and how many times each column is shuffled: all, five times, unless that takes too long.

    Args:
        rows: that there are.
        columns: that are shuffled.
        kind: of one of our networks; those that begin with sums are quick enough for any table.
        asked: a person wants as many rows.
    """
    if kind is not None and has_sums(kind):
        return rows, SHUFFLES
    if not asked:
        rows = min(rows, max(_FEWEST_ROWS, EVALUATIONS // (_FEWEST_SHUFFLES * max(1, columns))))
    return rows, min(SHUFFLES, max(_FEWEST_SHUFFLES, EVALUATIONS // max(1, rows * columns)))


def has_sums(kind: str) -> bool:
    """Tell whether a network begins with sums over columns, as `tabular/sums.py` has them: all but a cross network do."""
    return kind != "dcn"


def permutation(
    directory: Path,
    plan: Plan,
    rows: pa.Table,
    *,
    seed: int = 0,
    shuffles: int = SHUFFLES,
    progress: Progress = _no_progress,
) -> list[Importance]:
    """Return how much the main metric loses when a column is shuffled, the most important column first.

    Args:
        directory: of a model, with `model.keras`.
        plan: that it was made of.
        rows: with the columns of the plan's inputs and the label, as a snapshot has them.
        seed: of the shuffles.
        shuffles: of each column.
        progress: gets the number of columns that are done.

    Raises BadData if the metric can't be computed of these rows.
    """
    labels = rows.column(plan.label.column).to_numpy(zero_copy_only=False)
    scored = scorer(plan.label, labels)
    names = dict.fromkeys(one.column for one in plan.inputs)
    features = _Features(directory / MODEL, plan, columns_of(plan, rows), len(names) * shuffles)
    # what is shuffled are the numbers of rows: of all rows the features are known
    places = {name: np.arange(len(labels)) for name in names}
    return permuted(lambda order: scored(features.outputs(order)), places, seed, shuffles, progress)


class _Features:
    """Features of rows, which are made once: a column that is shuffled takes its own with it, unless it is crossed with others."""

    def __init__(self, path: Path, plan: Plan, columns: Arrays, times: int) -> None:
        """Load a model of a plan, whose outputs will be asked for so many times."""
        import keras
        import tensorflow as tf

        from elasticdl.tabular.inputs import NUMBERS, id_columns, number_columns

        served = keras.models.load_model(path)
        self._preprocessing, self._columns = served.get_layer("preprocessing"), columns
        part = served.get_layer("trained")
        self._outputs = tf.function(lambda batch: part(batch, training=False), reduce_retracing=True)
        self._features = self._made(columns)
        self._crossed: set[str] = set()
        self._places: dict[str, dict[str, list[int]]] = {one.column: {} for one in plan.inputs}
        """Where the features of each column are: by tensor, along its second dimension."""
        for place, number in enumerate(number_columns(plan)):
            self._places[number.column].setdefault(NUMBERS, []).append(place)
        for ids in id_columns(plan):
            (column, *others) = ids.feature.columns
            if others:
                self._crossed |= {*ids.feature.columns}
            of_list = list(range(ids.feature.length))
            self._places[column].setdefault(ids.key, []).extend(of_list if ids.place is None else [ids.place])
        self._sums: Sums | None = None
        if times * len(next(iter(columns.values()))) > _SUMMED:
            from elasticdl.tabular.sums import sums_of

            self._sums = sums_of(plan, part, list(_batches(self._features)), self.outputs({}))

    def _made(self, columns: Arrays) -> dict[str, npt.NDArray[Any]]:
        of_batches = [
            {name: one.numpy() for name, one in self._preprocessing(batch).items()}
            for batch in _batches(columns)
        ]
        return {name: np.concatenate([one[name] for one in of_batches]) for name in of_batches[0]}

    def outputs(self, order: Mapping[str, npt.NDArray[np.int64]]) -> Arrays:
        """Return the model's outputs where columns have the values of other rows."""
        if self._sums is not None and self._crossed.isdisjoint(order):
            return self._sums.outputs(order)
        features = dict(self._features)
        if self._crossed.isdisjoint(order):
            for column, rows in order.items():
                for name, places in self._places[column].items():
                    features[name] = features[name].copy()
                    features[name][:, places] = self._features[name][np.ix_(rows, np.asarray(places))]
        else:
            moved = {name: self._columns[name][rows] for name, rows in order.items()}
            features = self._made({**self._columns, **moved})
        of_batches = [self._outputs(batch) for batch in _batches(features)]
        return {name: np.concatenate([one[name].numpy() for one in of_batches]) for name in of_batches[0]}


def _batches(columns: Arrays) -> Iterator[dict[str, Any]]:
    """Yield rows, some at a time, as tensors."""
    import tensorflow as tf

    rows = len(next(iter(columns.values())))
    for start in range(0, rows, _BATCH):
        yield {name: tf.constant(one[start : start + _BATCH]) for name, one in columns.items()}


def permuted(
    worth: Callable[[Arrays], float],
    columns: Arrays,
    seed: int = 0,
    shuffles: int = SHUFFLES,
    progress: Progress = _no_progress,
) -> list[Importance]:
    """Return how much less a model is worth when one of these columns is shuffled, the most important column first.

    `worth`: returns it with some columns in place of the rows' own. Raises what that raises. Other arguments as of `permutation`.
    """
    best = worth({})
    found = []
    for place, (name, values) in enumerate(columns.items()):
        losses = []
        for shuffle in range(shuffles):
            order = np.random.default_rng([seed, place, shuffle]).permutation(len(values))
            losses.append(best - worth({name: values[order]}))
        found.append(Importance(name, float(np.mean(losses)), float(np.std(losses))))
        progress(place + 1)
    return sorted(found, key=lambda one: (-one.importance, one.feature))


def scorer(label: Label, labels: npt.NDArray[Any]) -> Callable[[Arrays], float]:
    """Return the function that computes the main metric of outputs for rows with these labels.

    Raises BadData if all rows have the same label.
    """
    if not label.classes:
        numbers = labels.astype(np.float64)
        spread = float(np.var(numbers))
        if not spread:
            raise BadData(f"all rows have the same {label.column}; choose rows with several values of it")

        def of_numbers(outputs: Arrays) -> float:
            errors = outputs[label.column].astype(np.float64).reshape(-1) - numbers
            return float(1.0 - np.mean(errors**2) / spread)

        return of_numbers
    classes = _texts(labels)
    if len(label.classes) > 2:
        return lambda outputs: float(np.mean(_texts(outputs[label.column]) == classes))
    positive = classes == _texts(np.array([_typed(label, label.classes[1], labels)]))
    if positive.all() or not positive.any():
        raise BadData(f"all rows have the same {label.column}; choose rows with both values of it")
    return lambda outputs: _auc(outputs[PROBABILITIES][:, 1], positive)


def _typed(label: Label, value: Any, labels: npt.NDArray[Any]) -> Any:
    return bool(value) if labels.dtype == bool else value


def _texts(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return np.array(
        [one.decode() if isinstance(one, bytes) else str(one) for one in values.reshape(-1).tolist()]
    )


def _auc(scores: npt.NDArray[Any], positive: npt.NDArray[np.bool_]) -> float:
    """Return the area under the ROC curve, from ranks; ties have the mean of theirs."""
    yes, no = int(positive.sum()), int((~positive).sum())
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


def integrated_gradients(
    directory: Path, plan: Plan, rows: pa.Table, *, progress: Progress = _no_progress
) -> pa.Table:
    """Return what each column adds to the prediction of each row, compared with a row of mean features: a column for each.

    Args:
        directory: of one of our models, with `model.keras`.
        plan: that it was made of.
        rows: as of `permutation`; their label is not needed.
        progress: gets the number of rows that are done.
    """
    import pyarrow as pa

    found = attributions(directory / MODEL, plan, columns_of(plan, rows), progress=progress)
    return pa.table({name: found.values[:, place] for place, name in enumerate(found.columns)})


def attributions(
    path: Path, plan: Plan, columns: Arrays, steps: int = STEPS, progress: Progress = _no_progress
) -> Attributions:
    """Return the attributions of rows, which sum to their outputs less the baseline's.

    The way from the mean to a row goes through numbers and through rows of embeddings, as ids have nothing between them.
    """
    import keras
    import tensorflow as tf

    served = keras.models.load_model(path)
    part = served.get_layer("trained")
    rest, points, owners = _from_points(part, plan)
    of_features = keras.Model(part.inputs, list(points.values()))
    model = keras.Model({**points, **{name: rest[name] for name in rest}}, _output(part, plan))
    batches = [served.get_layer("preprocessing")(batch) for batch in _batches(columns)]
    rows = sum(len(next(iter(batch.values()))) for batch in batches)

    def points_of(features: Mapping[str, Any]) -> dict[str, Any]:
        return dict(zip(points, _values(of_features, part, features), strict=True))

    @tf.function(reduce_retracing=True)  # type: ignore[untyped-decorator]  # TensorFlow has no types
    def gradients(share: Any, at: Any, means: Any, kept: Any, chosen: Any) -> Any:
        here = {name: means[name] + share * (one - means[name]) for name, one in at.items()}
        with tf.GradientTape() as tape:
            tape.watch(here)
            output = tf.reduce_sum(tf.gather(model({**here, **kept}), chosen, axis=1, batch_dims=1))
        return tape.gradient(output, here, unconnected_gradients=tf.UnconnectedGradients.ZERO)

    totals: dict[str, Any] = {}
    for features in batches:
        for name, one in points_of(features).items():
            totals[name] = totals.get(name, 0.0) + tf.reduce_sum(one, 0, keepdims=True) / rows
    names = tuple(dict.fromkeys(one.column for one in plan.inputs))
    found: list[tuple[Any, Any, Any]] = []
    done = 0
    for features in batches:
        at, kept = points_of(features), {name: features[name] for name in rest}
        means = {name: tf.broadcast_to(totals[name], one.shape) for name, one in at.items()}
        whole = model({**at, **kept})
        chosen = tf.argmax(whole, axis=1) if plan.label.classes else tf.zeros(len(whole), tf.int64)
        sums = {name: tf.zeros_like(one) for name, one in at.items()}
        for step in range(steps):
            share = tf.constant((step + 0.5) / steps, tf.float32)
            slopes = gradients(share, at, means, kept, chosen)
            sums = {name: sums[name] + slopes[name] / steps for name in sums}
            progress(done + len(whole) * (step + 1) // steps)
        done += len(whole)
        values = np.zeros((len(whole), len(names)))
        for name, one in at.items():
            parts = ((one - means[name]) * sums[name]).numpy().astype(np.float64)
            _share(values, parts.reshape(*parts.shape[:2], -1).sum(2), owners[name], names)
        picked = (
            tf.gather(outputs, chosen, axis=1, batch_dims=1).numpy().astype(np.float64)
            for outputs in (whole, model({**means, **kept}))
        )
        found.append((values, *picked))
    return Attributions(names, *(np.concatenate(parts) for parts in zip(*found, strict=True)))


def _values(model: Any, part: Any, features: Mapping[str, Any]) -> list[Any]:
    found = model([features[one.name] for one in part.inputs])
    return list(found) if isinstance(found, list | tuple) else [found]


def _from_points(
    part: Any, plan: Plan
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Sequence[Sequence[str]]]]:
    """Return the inputs that are needed besides, the symbols from which gradients go, and the columns that each of these is of.

    Of numbers each has its column; of rows of embeddings all have the columns of their feature.
    """
    from elasticdl.tabular.idlayers import Use, id_layers_of
    from elasticdl.tabular.inputs import NUMBERS, number_columns

    symbols = {one.name: one for one in part.inputs}
    points: dict[str, Any] = {}
    owners: dict[str, Sequence[Sequence[str]]] = {}
    if NUMBERS in symbols:
        points[NUMBERS] = symbols[NUMBERS]
        owners[NUMBERS] = [[one.column] for one in number_columns(plan)]
    rest = {}
    known = {one.name for one in part.layers}
    for layer in id_layers_of(plan):
        if layer.name not in known:
            raise BadData(
                f"the model has no layer {layer.name}: another version of this package made it; train it again"
            )
        points[layer.name] = part.get_layer(layer.name).output
        owners[layer.name] = [one.feature.columns for one in layer.columns]
        if layer.use is Use.INDICATOR and not layer.is_list:
            owners[layer.name] = [
                one.feature.columns for one in layer.columns for _ in range(one.feature.size)
            ]
        if layer.is_list and layer.use is not Use.INDICATOR:
            rest[layer.columns[0].key] = symbols[layer.columns[0].key]
    return rest, points, owners


def _output(part: Any, plan: Plan) -> Any:
    """Return the symbol of the output, [rows, classes] or [rows, 1]."""
    from keras import ops

    outputs = part.output
    return outputs[PROBABILITIES] if plan.label.classes else ops.expand_dims(outputs[plan.label.column], 1)


def _share(
    values: npt.NDArray[np.float64],
    parts: npt.NDArray[np.float64],
    owners: Sequence[Sequence[str]],
    names: Sequence[str],
) -> None:
    """Add parts [rows, n] to the columns that they are of; a feature of several columns is shared by them."""
    several = len(owners) > 1 or parts.shape[1] == 1
    at = {name: place for place, name in enumerate(names)}
    for place in range(parts.shape[1]):
        of = owners[place] if several else owners[0]
        for name in of:
            values[:, at[name]] += parts[:, place] / len(of)
