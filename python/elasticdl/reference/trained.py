"""A trained model of the reference framework: its weights are those of an .npz file or of a checkpoint, and there is no optimizer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from elasticdl.checkpoint.savedrows import SavedRows
from elasticdl.errors import BadData, BadModel, TransferFailed
from elasticdl.reference.adapter import without_optimizer
from elasticdl.reference.building import Batch, feed, make_model
from elasticdl.reference.evaluation import ReferenceEvaluator, Rows, WholeWeights
from elasticdl.reference.evaluation import Weights as WeightsOfModel
from elasticdl.reference.models import Array, Arrays, Model
from elasticdl.spec.jobspec import Mode
from elasticdl.worker.contract.records import Records
from elasticdl.worker.contract.trained import PREDICTION, GroupState, Predictions, Weights
from elasticdl.worker.contract.usermodel import UserModel
from elasticdl.worker.modelfile import describe
from elasticdl.worker.modelstate import arrays_of
from elasticdl.worker.npzfile import read_npz, write_npz

_REMEDY = "give the --model_def and --model_params of the job that wrote it"


@dataclass(frozen=True, slots=True)
class LookedUp:
    """A batch with the rows of its lookups, by table, of shape [lookups, width]."""

    examples: int
    batch: Batch = field(repr=False)
    rows: Arrays = field(repr=False)


class SavedWeights:
    """The weights of a model whose tables are looked up in a checkpoint, for `elasticdl.reference.evaluation.Weights`."""

    def __init__(self, user: UserModel, model: Model, saved: SavedRows) -> None:
        """Raises BadModel if the checkpoint is of another model."""
        self._user, self._model, self._saved = user, model, saved
        self._values = {
            one.name: saved.values[number].reshape(one.shape)
            for number, one in enumerate(saved.catalog.variables)
        }
        found = {name: value.shape for name, value in self._values.items()}
        found |= {table.name: (table.width,) for table in saved.catalog.tables}
        wanted = _dense_shapes(model) | {name: (table.width,) for name, table in model.tables().items()}
        _compare(f"--checkpoint_dir_for_init: {saved.folder}", user, found, wanted)

    def converted(self, batch: Batch) -> LookedUp:
        """Look up the rows of a batch. Raises BadData for ids that a table does not have."""
        if not batch.examples:
            return LookedUp(0, batch, {})
        ids, rows = self._model.ids(batch.features), {}
        for number, table in enumerate(self._saved.catalog.tables):
            lookups, many = (
                np.ascontiguousarray(ids[table.name], np.int64),
                self._model.tables()[table.name].ids,
            )
            if len(lookups) and not 0 <= lookups.min() <= lookups.max() < many:
                raise BadData(
                    f"{self._user.path}: the table {table.name} has the ids 0 to {many - 1}, received {lookups.min()} to {lookups.max()}"
                )
            distinct, places = np.unique(lookups, return_inverse=True)
            rows[table.name] = self._saved.rows(number, distinct)[places]
        return LookedUp(batch.examples, batch, rows)

    def any_rows(self, converted: LookedUp) -> Rows:
        """Return none: a batch has its own."""
        return ()

    def of_batch(self, converted: LookedUp, rows: Rows = ()) -> tuple[Batch, Arrays, Arrays]:
        """Return the batch, all values, and of each table the rows of its lookups."""
        return converted.batch, self._values, converted.rows


class ReferenceTrained:
    """Implements `elasticdl.worker.contract.trained.TrainedModel`."""

    def __init__(self, user: UserModel, metadata: Any, weights: Weights) -> None:
        """Nothing is built yet; `prepare` does."""
        self._user, self._metadata, self._from = user, metadata, weights

    def prepare(self, sample: Records) -> None:
        """Build the model, and take its weights. Raises BadModel."""
        self._model = make_model(self._user)
        self._weights = self._found()

    def _found(self) -> WeightsOfModel:
        if isinstance(self._from, SavedRows):
            return SavedWeights(self._user, self._model, self._from)
        if isinstance(self._from, GroupState):
            values = _values_of(self._user, self._model, self._from)
        else:
            values = _read(self._user, self._model, self._from)
        return WholeWeights(self._model, lambda: values)

    # ------------------------------------------------------------------ evaluation

    def evaluator(self, metadata: Any) -> ReferenceEvaluator:
        """Return what evaluates this model."""
        return ReferenceEvaluator(self._user, metadata, self._model, self._weights)

    # ------------------------------------------------------------------ prediction

    def convert(self, records: Records) -> Any:
        """Run the user's `feed` over one chunk; the labels that it makes are not used. Raises BadData."""
        return self._weights.converted(feed(self._user, self._metadata, records, Mode.PREDICTION))

    def predict(self, batch: Any, task: int, chunk: int) -> Predictions:
        """Return what the model gives. Raises BadModel for a model that can't say."""
        if not batch.examples:
            return {}
        data, values, rows = self._weights.of_batch(batch, ())
        try:
            outputs: Any = self._model.evaluate(values, rows, data.features, data.labels).outputs
        except NotImplementedError as error:
            raise BadModel(f"{self._user.path}: {describe(error, self._user.path)}") from error
        if isinstance(outputs, Mapping):
            return {name: np.asarray(one) for name, one in outputs.items()}
        array: Array = np.asarray(outputs)
        return {PREDICTION: array}


def export_state(user: UserModel, state: GroupState, path: str) -> None:
    """Write the model of a group's state. Raises BadModel, or OSError with what was at `path` intact."""
    write_npz(path, _values_of(user, make_model(user), state))


def _read(user: UserModel, model: Model, path: Path) -> Arrays:
    values = read_npz(path)
    found = {name: value.shape for name, value in values.items()}
    _compare(f"--trained_model: {path}", user, found, _shapes(model))
    return values


def _values_of(user: UserModel, model: Model, state: GroupState) -> Arrays:
    """Return what an export of the state has: all but what is the optimizer's."""
    try:
        values = without_optimizer(arrays_of(state.image))
    except TransferFailed as error:
        raise BadModel(f"{state.folder}: {error}") from None
    found = {name: value.shape for name, value in values.items()}
    _compare(str(state.folder), user, found, _shapes(model))
    return values


def _dense_shapes(model: Model) -> dict[str, tuple[int, ...]]:
    first = {**model.parameters(np.random.default_rng(0)), **model.statistics()}
    return {name: value.shape for name, value in first.items()}


def _shapes(model: Model) -> dict[str, tuple[int, ...]]:
    return _dense_shapes(model) | {name: (table.ids, table.width) for name, table in model.tables().items()}


def _compare(
    what: str, user: UserModel, found: Mapping[str, tuple[int, ...]], wanted: Mapping[str, tuple[int, ...]]
) -> None:
    """Raise BadModel if what was found are not the shapes of the model's weights."""
    if found != wanted:
        raise BadModel(
            f"{what} is of another model: it has {_shown(found)}, and the model of {user.path} {_shown(wanted)}; {_REMEDY}"
        )


def _shown(shapes: Mapping[str, tuple[int, ...]]) -> str:
    return ", ".join(f"{name} {shape}" for name, shape in sorted(shapes.items())) or "nothing"
