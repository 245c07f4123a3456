"""A trained model of the reference framework: weights from an .npz file, no optimizer."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from typing import Any

import numpy as np

from elasticdl.errors import BadModel
from elasticdl.reference.building import Batch, feed, make_model
from elasticdl.reference.evaluation import ReferenceEvaluator, WholeWeights
from elasticdl.reference.models import Array, Arrays
from elasticdl.spec.jobspec import JobSpec, Mode
from elasticdl.worker.contract.records import Records
from elasticdl.worker.contract.trained import PREDICTION, Predictions
from elasticdl.worker.contract.usermodel import UserModel
from elasticdl.worker.modelfile import describe


class ReferenceTrained:
    """Implements `elasticdl.worker.contract.trained.TrainedModel`."""

    def __init__(self, user: UserModel, spec: JobSpec, metadata: Any) -> None:
        """Nothing is built yet; `prepare` does."""
        self._user, self._spec, self._metadata = user, spec, metadata

    def prepare(self, sample: Records) -> None:
        """Build the model, and read its weights. Raises BadModel."""
        self._model = make_model(self._user)
        values = self._read()
        self._weights = WholeWeights(self._model, lambda: values)

    def _read(self) -> Arrays:
        path, model = self._spec.trained_model, self._model
        try:
            with np.load(path, allow_pickle=False) as file:
                values = {name: file[name] for name in file.files}
        except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
            raise BadModel(f"--trained_model: {path} can't be read: {error}") from None
        first = {**model.parameters(np.random.default_rng(0)), **model.statistics()}
        shapes: dict[str, tuple[int, ...]] = {name: value.shape for name, value in first.items()}
        shapes |= {name: (table.ids, table.width) for name, table in model.tables().items()}
        found = {name: value.shape for name, value in values.items()}
        if found != shapes:
            raise BadModel(
                f"--trained_model: {path} is of another model: it has {_shown(found)}, and the model of {self._user.path} "
                f"{_shown(shapes)}; give the --model_def and --model_params of the job that wrote it"
            )
        return values

    # ------------------------------------------------------------------ evaluation

    def evaluator(self, metadata: Any) -> ReferenceEvaluator:
        """Return what evaluates this model."""
        return ReferenceEvaluator(self._user, metadata, self._model, self._weights)

    # ------------------------------------------------------------------ prediction

    def convert(self, records: Records) -> Batch:
        """Run the user's `feed` over one chunk; the labels that it makes are not used. Raises BadData."""
        return feed(self._user, self._metadata, records, Mode.PREDICTION)

    def predict(self, batch: Batch, task: int, chunk: int) -> Predictions:
        """Return what the model gives. Raises BadModel for a model that can't say."""
        if not batch.examples:
            return {}
        _, values, rows = self._weights.of_batch(batch)
        try:
            outputs: Any = self._model.evaluate(values, rows, batch.features, batch.labels).outputs
        except NotImplementedError as error:
            raise BadModel(f"{self._user.path}: {describe(error, self._user.path)}") from error
        if isinstance(outputs, Mapping):
            return {name: np.asarray(one) for name, one in outputs.items()}
        array: Array = np.asarray(outputs)
        return {PREDICTION: array}


def _shown(shapes: Mapping[str, tuple[int, ...]]) -> str:
    return ", ".join(f"{name} {shape}" for name, shape in sorted(shapes.items())) or "nothing"
