"""Features of a plan as layers of Keras: raw columns in, numbers and ids out.

The same layers are applied to whole chunks in `feed` and are a part of the exported model, so what is served computes what was trained.
They are Keras' own, so that the model loads without this package. Numbers come as float64, in which seconds since 1970 are exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from elasticdl.tabular.features import IdFeature, IdSource, Input, NumberFeature, Plan, Transform

NUMBERS, IDS = "numbers", "ids"
"""Names of features: of all numbers [n, d], and of all single ids [n, k]."""
NONE = -(1 << 62)
"""The integer that stands for a missing one; the next one stands for all that are in no vocabulary."""
UNKNOWN = "\x01unknown"
"""The text that stands for those in no vocabulary; Keras' own, [UNK], may be a value."""
_COMPARED = 64
"""Bounds of buckets, or integers of a vocabulary, up to which a number is compared with each of them."""
_YEAR = 31_556_952.0
_DAY = 86_400.0


def list_name(place: int) -> str:
    """Return the name of the features that are the ids of a list: the plan's id feature of that place."""
    return f"list_{place}"


def raw_inputs(plan: Plan) -> dict[str, Any]:
    """Return the symbols of a plan's inputs, by column."""
    return {
        one.column: keras.Input(
            (one.length,) if one.length else (), dtype="string" if one.is_text else "float64", name=one.name
        )
        for one in plan.inputs
    }


def preprocessing(plan: Plan) -> Any:
    """Return the model that makes features of a plan's columns."""
    raw = raw_inputs(plan)
    features: dict[str, Any] = {}
    if plan.numbers:
        features[NUMBERS] = _numbers(plan, raw)
    single = [one for one in plan.ids if not one.length]
    if single:
        features[IDS] = _matrix_of_ids(single, raw)
    for place, one in enumerate(plan.ids):
        if one.length:
            features[list_name(place)] = _ids(one, raw)
    return keras.Model(raw, features, name="preprocessing")


def columns_of(plan: Plan, records: Mapping[str, Any]) -> dict[str, Any]:
    """Return a chunk's columns, as a reader of tables gives them, as the model's inputs take them."""
    return {one.column: _column(one, records[one.column]) for one in plan.inputs}


def _column(given: Input, tensor: Any) -> Any:
    missing: Any = "" if given.is_text else math.nan
    if given.separator:
        texts = tf.strings.strip(tf.strings.split(tensor, given.separator))
        texts = tf.where(texts == "", "nan", texts) if isinstance(texts, tf.Tensor) else texts
        numbers = tf.ragged.map_flat_values(_parsed, texts)
        return numbers.to_tensor(missing, shape=[None, given.length])
    if not given.is_text:
        tensor = (
            tf.ragged.map_flat_values(tf.cast, tensor, tf.float64)
            if _is_ragged(tensor)
            else tf.cast(tensor, tf.float64)
        )
    if not given.length:
        return tensor
    if not _is_ragged(tensor):
        tensor = tf.RaggedTensor.from_tensor(tensor)
    return tensor.to_tensor(missing, shape=[None, given.length])


def _parsed(texts: Any) -> Any:
    return tf.strings.to_number(tf.where(texts == "", "nan", texts), tf.float64)


def _is_ragged(tensor: Any) -> bool:
    return isinstance(tensor, tf.RaggedTensor)


# ------------------------------------------------------------------ numbers


def _numbers(plan: Plan, raw: Mapping[str, Any]) -> Any:
    """Return all numbers as one float32 matrix; each operation is done for all of them that need it."""
    lengths = {one.column: max(1, one.length) for one in plan.inputs}
    groups = [
        (values, [one for one in plan.numbers if one.transform is transform])
        for transform, values in _TRANSFORMS.items()
    ]
    order = [one for _, numbers in groups for one in numbers]
    blocks = [
        transformed(_matrix([raw[one.column] for one in numbers]))
        for transformed, numbers in groups
        if numbers
    ]
    matrix = blocks[0] if len(blocks) == 1 else ops.concatenate(blocks, axis=1)
    shift, scale, fill = (_each(order, lengths, name) for name in ("shift", "scale", "fill"))
    scaled = (matrix - shift) / scale
    return ops.cast(ops.where(ops.isfinite(scaled), scaled, fill), "float32")


def number_columns(plan: Plan) -> list[NumberFeature]:
    """Return the feature of each column of the matrix of numbers."""
    lengths = {one.column: max(1, one.length) for one in plan.inputs}
    return [
        one
        for transform in _TRANSFORMS
        for one in plan.numbers
        if one.transform is transform
        for _ in range(lengths[one.column])
    ]


def _matrix(columns: Sequence[Any]) -> Any:
    if all(len(one.shape) == 1 for one in columns):
        return ops.stack(columns, axis=1)
    return ops.concatenate(
        [one if len(one.shape) > 1 else ops.expand_dims(one, 1) for one in columns], axis=1
    )


def _each(numbers: Sequence[NumberFeature], lengths: Mapping[str, int], name: str) -> Any:
    return np.array([getattr(one, name) for one in numbers for _ in range(lengths[one.column])], np.float64)


def _log(numbers: Any) -> Any:
    return ops.log1p(ops.maximum(numbers, 0.0))


def _missing(numbers: Any) -> Any:
    return ops.cast(ops.logical_not(ops.isfinite(numbers)), "float64")


def _angle(numbers: Any) -> Any:
    return numbers * (2 * math.pi / _YEAR)


def _same(numbers: Any) -> Any:
    return numbers


def _sine(numbers: Any) -> Any:
    return ops.sin(_angle(numbers))


def _cosine(numbers: Any) -> Any:
    return ops.cos(_angle(numbers))


_TRANSFORMS: Mapping[Transform, Callable[[Any], Any]] = {
    Transform.NONE: _same,
    Transform.LOG: _log,
    Transform.MISSING: _missing,
    Transform.SINE: _sine,
    Transform.COSINE: _cosine,
}


# ------------------------------------------------------------------ ids


def _matrix_of_ids(features: Sequence[IdFeature], raw: Mapping[str, Any]) -> Any:
    """Return the int64 ids of features that have one for each row, as a matrix.

    Numbers are compared with the bounds or values of all features at once where these have few: a thousand columns need no layer each.
    """
    groups: dict[Callable[..., Any], list[int]] = {}
    for place, one in enumerate(features):
        compared = _COMPARISONS.get(one.source) if len(one.values) <= _COMPARED else None
        groups.setdefault(compared or _ids_of_all, []).append(place)
    blocks = [make([features[place] for place in group], raw) for make, group in groups.items()]
    matrix = blocks[0] if len(blocks) == 1 else ops.concatenate(blocks, axis=1)
    order = [place for group in groups.values() for place in group]
    if order == sorted(order):
        return matrix
    return ops.take(matrix, sorted(range(len(order)), key=order.__getitem__), axis=1)


def _buckets_of_all(features: Sequence[IdFeature], raw: Mapping[str, Any]) -> Any:
    """Return the ids of buckets, [n, k]: as many bounds as are not above a value, and one for those that are there."""
    values = ops.stack([raw[one.columns[0]] for one in features], axis=1)
    above = ops.expand_dims(values, -1) >= _padded(features, np.float64, np.finfo(np.float64).max)
    return _present(values, ops.sum(ops.cast(above, "int64"), axis=-1) + 1)


def _places_of_all(features: Sequence[IdFeature], raw: Mapping[str, Any]) -> Any:
    """Return the ids of integers of vocabularies, [n, k]: from 2 on in their order, 1 of those that are in none."""
    values = ops.stack([raw[one.columns[0]] for one in features], axis=1)
    vocabularies = _padded(features, np.int64, NONE)
    is_there = ops.equal(ops.expand_dims(_integers(values), -1), vocabularies)
    places = np.arange(1, vocabularies.shape[1] + 1)
    return _present(values, ops.sum(ops.cast(is_there, "int64") * places, axis=-1) + 1)


def _ids_of_all(features: Sequence[IdFeature], raw: Mapping[str, Any]) -> Any:
    """Return the ids of features that need a layer each, [n, k]."""
    return ops.stack([_ids(one, raw) for one in features], axis=1)


_COMPARISONS: Mapping[IdSource, Callable[..., Any]] = {
    IdSource.BUCKETS: _buckets_of_all,
    IdSource.INTEGERS: _places_of_all,
}


def _padded(features: Sequence[IdFeature], kind: type, filling: float) -> Any:
    """Return the values of features as a matrix, with a row for each."""
    longest = max(len(one.values) for one in features)
    return np.array([[*one.values, *[filling] * (longest - len(one.values))] for one in features], kind)


def _buckets(feature: IdFeature, values: Any) -> Any:
    """Return the numbers of the buckets that values are in, from 0; of missing ones any."""
    return keras.layers.Discretization(bin_boundaries=[float(one) for one in feature.values])(values)


def _ids(feature: IdFeature, raw: Mapping[str, Any]) -> Any:
    """Return the int64 ids of a feature: [n], or [n, length]."""
    values = raw[feature.columns[0]]
    match feature.source:
        case IdSource.TEXTS:
            return keras.layers.StringLookup(
                vocabulary=list(feature.values), mask_token="", oov_token=UNKNOWN
            )(values)
        case IdSource.INTEGERS:
            lookup = keras.layers.IntegerLookup(
                vocabulary=[int(one) for one in feature.values], mask_token=NONE, oov_token=NONE + 1
            )
            return lookup(_integers(values))
        case IdSource.HASH:
            is_text = values.dtype == "string"
            hashing = keras.layers.Hashing(feature.size, mask_value="" if is_text else NONE)
            return hashing(values if is_text else _integers(values))
        case IdSource.BUCKETS:
            return _present(values, ops.cast(_buckets(feature, values), "int64") + 1)
        case IdSource.HOUR:
            return _present(values, _whole(values - ops.floor(values / _DAY) * _DAY, 3600.0) + 1)
        case IdSource.WEEKDAY:
            days = ops.floor(values / _DAY) + 3  # 1970-01-01 was a Thursday; Monday is 0
            return _present(values, ops.cast(days - ops.floor(days / 7) * 7, "int64") + 1)
        case IdSource.WORDS | IdSource.CHARACTERS:
            split = "whitespace" if feature.source is IdSource.WORDS else "character"
            return keras.layers.TextVectorization(
                vocabulary=list(feature.values), split=split, output_sequence_length=feature.length
            )(values)
        case IdSource.NUMBERS:
            inside = ops.logical_and(values >= 0, values < feature.size - 1)
            return ops.cast(ops.where(inside, values, -1.0), "int64") + 1
        case IdSource.CROSS:
            return _crossed(feature, raw)


def _integers(values: Any) -> Any:
    """Return numbers as integers."""
    return ops.cast(ops.where(ops.isfinite(values), values, float(NONE)), "int64")


def _present(values: Any, ids: Any) -> Any:
    """Return 0 in place of the ids of missing values."""
    return ops.where(ops.isfinite(values), ids, ops.zeros_like(ids))


def _whole(values: Any, unit: float) -> Any:
    return ops.cast(ops.floor(values / unit), "int64")


def _crossed(feature: IdFeature, raw: Mapping[str, Any]) -> Any:
    """Return the hash of several ids: of two, of that and a third, and so on."""
    first, *others = (_ids(one, raw) for one in feature.crossed)
    for other in others:
        first = keras.layers.HashedCrossing(feature.size)((first, other))
    return first


@dataclass(frozen=True, slots=True)
class IdColumn:
    """Where the ids of a feature are.

    Attributes:
        feature: of the plan.
        key: name of the tensor of features.
        place: its column in the matrix of single ids; None: the tensor is all its own.
    """

    feature: IdFeature
    key: str
    place: int | None


def id_columns(plan: Plan) -> list[IdColumn]:
    """Return where the ids of each feature of a plan are, in its order."""
    found, single = [], 0
    for place, one in enumerate(plan.ids):
        if one.length:
            found.append(IdColumn(one, list_name(place), None))
        else:
            found.append(IdColumn(one, IDS, single))
            single += 1
    return found
