"""Chunks for models on JAX and PyTorch: arrays of NumPy, of what the user's `feed` makes of records or of a dataset of tf.data.

`feed(records, …)` gets the records, as with other frameworks. `feed(dataset, …)`, by the name of its first argument, gets a dataset, so
that a model file for TensorFlow is one for all backends; only then TensorFlow is imported.
"""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from elasticdl.errors import BadData, BadSetting
from elasticdl.keras.shown import show
from elasticdl.worker.contract.records import Records
from elasticdl.worker.contract.usermodel import UserModel
from elasticdl.worker.fedbatch import Batch, Expected, Feed, count, leaves, mapped

_REMEDY = "feed returns (features, labels) or (features, labels, weights): arrays, or tuples or dicts of them"
_DATASET = "dataset"
"""The name of the first argument of a feed that gets a dataset."""


def make_feed(user: UserModel, mode: str, metadata: Any) -> Callable[[Records], Batch]:
    """Return the user's `feed` in one mode; `metadata`: its third argument. Raises BadSetting if TensorFlow is needed, and missing."""
    if not _takes_dataset(user.feed):
        return Feed(user, mode, metadata, Expected(_array, "arrays", _REMEDY))
    if importlib.util.find_spec("tensorflow") is None:
        raise BadSetting(
            f"{user.path}: feed(dataset, …) gets a dataset of tf.data, and TensorFlow is not installed where workers run; pip install "
            "'elasticdl[tensorflow]' does, or write feed(records, mode, metadata), which gets a list of records and returns arrays of NumPy"
        )
    from elasticdl.keras.feed import FeedPipeline

    pipeline = FeedPipeline(user.feed, mode, metadata, user.path)

    def fed(records: Records) -> Batch:
        made = pipeline(records)
        if made.data is None:
            return Batch(0, None)
        features, *others = (mapped(lambda one: _of_tensor(user, one), part) for part in made.data)
        labels, weights = (*others, None, None)[:2]
        arrays = (*leaves(features), *leaves(labels), *leaves(weights))
        return Batch(count(arrays, user.path, "tensors"), features, labels, weights)

    return fed


def _takes_dataset(feed: Callable[..., Any]) -> bool:
    try:
        return next(iter(inspect.signature(feed).parameters), "") == _DATASET
    except (TypeError, ValueError):  # builtins have none
        return False


def _of_tensor(user: UserModel, tensor: Any) -> npt.NDArray[Any]:
    if not hasattr(tensor, "numpy"):
        raise BadData(f"{user.path}: feed returned a {type(tensor).__name__}; expected dense tensors")
    try:
        return _array(tensor.numpy())
    except BadData as error:
        raise BadData(f"{user.path}: {error}; expected numbers") from None


def _array(made: Any) -> npt.NDArray[Any]:
    if hasattr(made, "element_spec"):
        raise BadData(
            f"feed returned a {type(made).__name__}; call its first argument {_DATASET!r} to get and return datasets of tf.data"
        )
    array = np.asarray(made)
    if array.dtype.kind in "OSUMmT":
        raise BadData(
            f"feed returned a {type(made).__name__} of type {array.dtype}, which is none of numbers"
        )
    return array


def given(batch: Batch) -> str:
    """Return what `feed` gave, for messages."""
    return f"{_show(batch.features)} and labels {_show(batch.labels)}"


def _show(arrays: Any) -> str:
    return "nothing" if arrays is None else show(arrays)
