"""A trained MXNet model: its weights are those of a directory or a file that a job wrote, or of a group's checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mxnet as mx

from elasticdl.checkpoint.savedrows import SavedRows
from elasticdl.errors import BadModel, TransferFailed
from elasticdl.mxnet import building
from elasticdl.mxnet.evaluation import MxnetEvaluator
from elasticdl.mxnet.export import PARAMETERS, export
from elasticdl.mxnet.internals import by_structure
from elasticdl.mxnet.paramsfile import read_parameters
from elasticdl.mxnet.runtime import seed_chunk
from elasticdl.mxnet.state import fitting, give_values, trees_of
from elasticdl.spec.jobspec import JobSpec, Mode
from elasticdl.worker.contract.records import Records
from elasticdl.worker.contract.trained import PREDICTION, GroupState, Predictions, Weights
from elasticdl.worker.contract.usermodel import UserModel
from elasticdl.worker.fedbatch import Batch
from elasticdl.worker.usercode import FIRST_OUTPUTS, failure

_REMEDY = "give the --model_def and --model_params of the job that wrote it"


class MxnetTrained:
    """Implements `elasticdl.worker.contract.trained.TrainedModel`."""

    def __init__(self, user: UserModel, spec: JobSpec, metadata: Any, weights: Weights) -> None:
        """Nothing is built yet; `prepare` does."""
        self._user, self._spec, self._from = user, spec, weights
        self._feed = building.Feed(user, Mode.PREDICTION, metadata)

    def prepare(self, sample: Records) -> None:
        """Build the model, and take its weights. Raises BadModel or BadData."""
        if isinstance(self._from, SavedRows):
            raise BadModel(
                f"--checkpoint_dir_for_init: {self._from.folder} is of a job with parameter servers, and MXNet models have none; {_REMEDY}"
            )
        batch = self._feed(sample)
        self._model = building.make_model(self._user, self._spec.seed, None)
        if isinstance(self._from, GroupState):
            _take(self._model, self._user, self._from)
        else:
            _read(self._model, self._user, self._from)
        try:
            if batch.examples:
                self._outputs(batch, 0, 0)
        except Exception as error:
            given = building.shown(batch.features)
            raise failure(self._user, FIRST_OUTPUTS, error, given) from error

    def evaluator(self, metadata: Any) -> MxnetEvaluator:
        """Return what evaluates this model."""
        return MxnetEvaluator(self._user, self._spec, metadata, self._model)

    def convert(self, records: Records) -> Batch:
        """Run the user's `feed` over one chunk. Raises BadData."""
        return self._feed(records)

    def predict(self, batch: Batch, task: int, chunk: int) -> Predictions:
        """Return what the model gives: `prediction`, or `output0` and so on of a model with several outputs."""
        if not batch.examples:
            return {}
        outputs = self._outputs(batch, task, chunk)
        named = building.named_outputs(outputs) or {PREDICTION: outputs}
        return {name: one.asnumpy() for name, one in named.items()}

    def _outputs(self, batch: Batch, task: int, chunk: int) -> Any:
        seed_chunk(self._spec.seed, task, chunk)
        outputs = self._model(*building.arrays_of(batch.features))
        mx.nd.waitall()
        return outputs


def export_state(user: UserModel, spec: JobSpec, state: GroupState, path: str) -> None:
    """Write the model of a group's state. Raises BadModel, or OSError with what was at `path` intact."""
    model = building.make_model(user, spec.seed, None)
    export(model, path, _take(model, user, state), user.path)


def _take(model: Any, user: UserModel, state: GroupState) -> int:
    """Give a model the values of a state; return how many inputs it has."""
    try:
        trees = trees_of(state.image)
        values = fitting(trees["model"], building.parameters_of(model))
    except TransferFailed as error:
        raise BadModel(
            f"{state.folder} is of another model than that of {user.path}: {error}; {_REMEDY}"
        ) from None
    give_values(building.parameters_of(model), values)
    return int(trees["inputs"])


def _read(model: Any, user: UserModel, path: Path) -> None:
    file = path / PARAMETERS if path.is_dir() else path
    try:
        values = read_parameters(file)
    except OSError as error:
        raise BadModel(f"--trained_model: {file} can't be read: {error.strerror or error}") from None
    parameters = building.parameters_of(model)
    if values.keys() != parameters.keys():
        parameters = by_structure(model)  # as `save_parameters` names them
    try:
        give_values(parameters, fitting(values, parameters))
    except TransferFailed as error:
        raise BadModel(
            f"--trained_model: {path} is of another model than that of {user.path}: {error}; {_REMEDY}"
        ) from None
