"""Making a user's model, optimizer and batches, with errors that name the file and say what was expected."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from elasticdl.errors import BadData, BadInput, BadModel
from elasticdl.reference.models import Arrays, Model
from elasticdl.reference.optimizers import Optimizer
from elasticdl.spec.jobspec import Mode
from elasticdl.worker.contract.records import Records
from elasticdl.worker.contract.usermodel import UserModel
from elasticdl.worker.modelfile import describe
from elasticdl.worker.seeds import chunk_seeds
from elasticdl.worker.usercode import FIRST_STEP, failure, fed


@dataclass(frozen=True, slots=True)
class Batch:
    """A chunk as a model takes it.

    Attributes:
        examples: n; 0 if `feed` made none of the records.
        features: an array, or several by name, with the examples along the first dimension.
        labels: one for each example.
    """

    examples: int
    features: Any = field(repr=False)
    labels: npt.NDArray[Any] = field(repr=False)


def make_model(user: UserModel) -> Model:
    """Return what the user's model function returns. Raises BadModel."""
    made = _call(user, user.model, user.params)
    if not isinstance(made, Model):
        raise BadModel(
            f"{user.path}: {_name(user.model)} returned a {type(made).__name__}; expected an elasticdl.reference.Model"
        )
    return made


def make_optimizer(user: UserModel) -> Optimizer:
    """Return the user's optimizer. Raises BadModel."""
    made = _call(user, user.optimizer, {})
    if not isinstance(made, Optimizer):
        raise BadModel(
            f"{user.path}: {_name(user.optimizer)} returned a {type(made).__name__}; expected an elasticdl.reference.Optimizer"
        )
    return made


def _call(user: UserModel, function: Callable[..., Any], keywords: Mapping[str, Any]) -> object:
    try:
        return function(**keywords)
    except Exception as error:
        raise BadModel(f"{user.path}: {_name(function)} failed: {describe(error, user.path)}") from error


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", repr(function))


def first_parameters(user: UserModel, model: Model, seed: int) -> Arrays:
    """Return the first value of each parameter: a function of the seed, the same in all workers. Raises BadModel."""
    try:
        return model.parameters(np.random.default_rng(seed % 2**63))
    except Exception as error:
        raise BadModel(f"{user.path}: parameters failed: {describe(error, user.path)}") from error


def feed(user: UserModel, metadata: Any, records: Records, mode: str = Mode.TRAINING) -> Batch:
    """Return the batch that the user's `feed` makes of a chunk's records, which are arrays by name if they are columns.

    A prediction needs no labels: where `feed` makes none they are zeros, from which a model's outputs do not depend. Raises BadData for
    anything else than (features, labels).
    """
    made = fed(user, records, mode, metadata)
    if mode == Mode.PREDICTION and isinstance(made, np.ndarray | dict) and len(made):
        first = next(iter(made.values())) if isinstance(made, dict) else made
        made = made, np.zeros(len(first), np.int64)
    if not isinstance(made, tuple) or len(made) != 2:
        raise BadData(f"{user.path}: feed returned a {type(made).__name__}; expected (features, labels)")
    features, labels = made
    labels = np.asarray(labels)
    arrays = list(features.values()) if isinstance(features, dict) else [features]
    counts = {len(array) for array in (*arrays, labels)}
    if len(counts) != 1:
        raise BadData(
            f"{user.path}: feed returned {' and '.join(map(str, sorted(counts)))} examples; features and labels have one for each"
        )
    return Batch(counts.pop(), features, labels)


def random_of(seed: int, step: int, lane: int) -> np.random.Generator:
    """Return the randomness of one chunk: a function of the job's seed and of the chunk's place, the same in all workers."""
    return np.random.default_rng(chunk_seeds(seed, step, lane, 1)[0])


def describe_failure(user: UserModel, batch: Batch, error: Exception) -> BadInput:
    """Return what is said when the first step fails: what `feed` gave, and what the model's code raised."""
    return failure(user, FIRST_STEP, error, given(batch))


def given(batch: Batch) -> str:
    """Return what `feed` gave, for messages."""
    features = batch.features if isinstance(batch.features, dict) else {"features": batch.features}
    shown = ", ".join(f"{name} {np.shape(array)}" for name, array in features.items())
    return f"{shown} and labels {batch.labels.shape}"
