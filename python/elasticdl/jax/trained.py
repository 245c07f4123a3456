"""A trained JAX model: its weights are those of a file that a job wrote, or of a group's checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from elasticdl.checkpoint.savedrows import SavedRows
from elasticdl.errors import BadModel, TransferFailed
from elasticdl.jax import building
from elasticdl.jax.evaluation import JaxEvaluator
from elasticdl.jax.export import MODEL, export, plain
from elasticdl.jax.runtime import seeds_of
from elasticdl.jax.state import bits, like
from elasticdl.jax.step import Model
from elasticdl.spec.jobspec import JobSpec, Mode
from elasticdl.worker.contract.records import Records
from elasticdl.worker.contract.trained import PREDICTION, GroupState, Predictions, Weights
from elasticdl.worker.contract.usermodel import UserModel
from elasticdl.worker.fedbatch import Batch
from elasticdl.worker.modelstate import arrays_of
from elasticdl.worker.npzfile import read_npz
from elasticdl.worker.usercode import FIRST_OUTPUTS, failure

_REMEDY = "give the --model_def and --model_params of the job that wrote it"


class JaxTrained:
    """Implements `elasticdl.worker.contract.trained.TrainedModel`."""

    def __init__(self, user: UserModel, spec: JobSpec, metadata: Any, weights: Weights) -> None:
        """Nothing is built yet; `prepare` does."""
        self._user, self._spec, self._from = user, spec, weights
        self._feed = building.make_feed(user, Mode.PREDICTION, metadata)

    def prepare(self, sample: Records) -> None:
        """Build the model, and take its weights. Raises BadModel or BadData."""
        if isinstance(self._from, SavedRows):
            raise BadModel(
                f"--checkpoint_dir_for_init: {self._from.folder} is of a job with parameter servers, and models of JAX have none; {_REMEDY}"
            )
        batch = self._feed(sample)
        self._model = _built(self._user, self._spec, batch)
        if isinstance(self._from, GroupState):
            _take_state(self._user, self._model, self._from)
        else:
            _take(self._user, self._model, f"--trained_model: {self._from}", read_npz(self._from))
        try:
            if batch.examples:
                self._model.outputs(batch.features, seeds_of(self._spec.seed, 0, 0))
        except Exception as error:
            given = building.shown(batch.features)
            raise failure(self._user, FIRST_OUTPUTS, error, given) from error

    def evaluator(self, metadata: Any) -> JaxEvaluator:
        """Return what evaluates this model."""
        return JaxEvaluator(self._user, self._spec, metadata, self._model)

    def convert(self, records: Records) -> Batch:
        """Run the user's `feed` over one chunk. Raises BadData."""
        return self._feed(records)

    def predict(self, batch: Batch, task: int, chunk: int) -> Predictions:
        """Return what the model gives."""
        if not batch.examples:
            return {}
        outputs = self._model.outputs(batch.features, seeds_of(self._spec.seed, task, chunk))
        named = outputs if isinstance(outputs, Mapping) else {PREDICTION: outputs}
        if not all(hasattr(one, "shape") for one in named.values()):
            raise BadModel(
                f"{self._user.path}: the model gives {building.shown(outputs)}; predictions are an array, or a dict of arrays"
            )
        return {str(name): plain(np.asarray(one)) for name, one in named.items()}


def export_state(user: UserModel, spec: JobSpec, state: GroupState, path: str) -> None:
    """Write the model of a group's state. Raises BadModel, or OSError with what was at `path` intact."""
    model = _built(user, spec, None)
    _take_state(user, model, state)
    export(model, path)


def _built(user: UserModel, spec: JobSpec, batch: Batch | None) -> Model:
    return Model(user, building.make_model(user, spec.seed, batch), spec.seed)


def _take_state(user: UserModel, model: Model, state: GroupState) -> None:
    try:
        found = arrays_of(state.image)
    except TransferFailed as error:
        raise BadModel(f"{state.folder}: {error}") from None
    named = {name.removeprefix(MODEL): one for name, one in found.items() if name.startswith(MODEL)}
    _take(user, model, str(state.folder), named)


def _take(user: UserModel, model: Model, what: str, found: Mapping[str, npt.NDArray[Any]]) -> None:
    """Give a model's variables their values. Raises BadModel, with nothing given, if they are not all of it."""
    parts = (model.parameters, model.others)
    mine = {
        name: bits(one).shape for part in parts for name, one in zip(part.names, part.arrays, strict=True)
    }
    theirs = {name: one.shape for name, one in found.items()}
    for name in (*mine, *theirs):
        if mine.get(name) != theirs.get(name):
            raise BadModel(
                f"{what} is of another model than that of {user.path}: {name}: expected {_shown(mine.get(name))}, received "
                f"{_shown(theirs.get(name))}; {_REMEDY}"
            )
    for part in parts:
        part.arrays = [
            like(one, np.asarray(found[name]).astype(bits(one).dtype))
            for name, one in zip(part.names, part.arrays, strict=True)
        ]


def _shown(shape: tuple[int, ...] | None) -> str:
    return "nothing" if shape is None else f"the shape {list(shape)}"
