"""A trained PyTorch model: its weights are those of a file that a job wrote, or of a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from elasticdl.checkpoint.savedrows import SavedRows
from elasticdl.errors import BadInput, BadModel, TransferFailed
from elasticdl.spec.jobspec import JobSpec, Mode
from elasticdl.torch import building
from elasticdl.torch.device import moved, on_cpu, own_device
from elasticdl.torch.embedding import on_servers
from elasticdl.torch.evaluation import OwnWeights, TorchEvaluator, Weights
from elasticdl.torch.export import export
from elasticdl.torch.exported import Described, fit, read_exported
from elasticdl.torch.runtime import seed_chunk
from elasticdl.torch.savedweights import SavedWeights
from elasticdl.torch.state import tensors_of, trees_of
from elasticdl.torch.trees import fitting
from elasticdl.worker.contract.records import Records
from elasticdl.worker.contract.trained import PREDICTION, GroupState, Predictions
from elasticdl.worker.contract.trained import Weights as WeightsOfModel
from elasticdl.worker.contract.usermodel import UserModel
from elasticdl.worker.fedbatch import call, leaves
from elasticdl.worker.modelfile import describe
from elasticdl.worker.usercode import FIRST_OUTPUTS, failure

_REMEDY = "give the --model_def and --model_params of the job that wrote it"


class TorchTrained:
    """Implements `elasticdl.worker.contract.trained.TrainedModel`."""

    def __init__(self, user: UserModel, spec: JobSpec, metadata: Any, weights: WeightsOfModel) -> None:
        """Nothing is built yet; `prepare` does."""
        self._user, self._spec, self._from = user, spec, weights
        self._feed = building.make_feed(user, Mode.PREDICTION, metadata)
        self._weights: Weights = OwnWeights()

    def prepare(self, sample: Records) -> None:
        """Build the model, and take its weights. Raises BadModel or BadData."""
        self._device, batch = own_device(), self._feed(sample)
        if isinstance(self._from, SavedRows):
            with on_servers():
                self._model = building.make_model(self._user, self._from.catalog.seed, batch)
            self._weights = SavedWeights(self._user, self._model, self._from)
            self._model.to(self._device)
            self._outputs_of_sample(self._weights.converted(batch))
            return
        self._model = building.make_model(self._user, self._spec.seed, batch).to(self._device)
        if isinstance(self._from, GroupState):
            _take(self._model, self._user, self._from)
            self._outputs_of_sample(batch)
            return
        try:
            exported = read_exported(self._from)
        except OSError as error:
            raise BadModel(
                f"--trained_model: {self._from} can't be read: {error.strerror or error}"
            ) from None
        other = (
            f"--trained_model: {self._from} is of another model than that of {self._user.path}: its program"
        )
        if exported is not None and not fit(exported.inputs, leaves(batch.features)):
            raise BadModel(
                f"{other} takes {_listed(exported.inputs)}, and feed gives {building.shown(batch.features)}; {_REMEDY}, and data like "
                "that job's"
            )
        weights = _read_state(self._from) if exported is None else exported.weights
        _load(self._model, self._user, self._from, weights)
        outputs = self._outputs_of_sample(batch)
        if exported is not None and batch.examples and not fit(exported.outputs, leaves(outputs)):
            raise BadModel(
                f"{other} gives {_listed(exported.outputs)}, and the model gives {building.shown(outputs)}; {_REMEDY}"
            )

    def _outputs_of_sample(self, batch: Any) -> Any:
        try:
            return self._outputs(batch, 0, 0) if batch.examples else None
        except BadInput:
            raise
        except Exception as error:
            given = building.shown(self._weights.batch_of(batch).features)
            raise failure(self._user, FIRST_OUTPUTS, error, given) from error

    def evaluator(self, metadata: Any) -> TorchEvaluator:
        """Return what evaluates this model."""
        return TorchEvaluator(self._user, self._spec, metadata, self._model, self._weights)

    def convert(self, records: Records) -> Any:
        """Run the user's `feed` over one chunk. Raises BadData."""
        return self._weights.converted(self._feed(records))

    def predict(self, batch: Any, task: int, chunk: int) -> Predictions:
        """Return what the model gives."""
        if not batch.examples:
            return {}
        outputs = self._outputs(batch, task, chunk)
        named = outputs if isinstance(outputs, Mapping) else {PREDICTION: outputs}
        try:
            return {str(name): np.asarray(one) for name, one in named.items()}
        except (TypeError, ValueError, RuntimeError) as error:
            raise BadModel(f"{self._user.path}: the model gives {building.shown(outputs)}: {error}") from None

    def _outputs(self, batch: Any, task: int, chunk: int) -> Any:
        seed_chunk(self._spec.seed, task, chunk)
        self._model.eval()
        there = self._weights.batch_of(batch).changed(lambda tensors: moved(tensors, self._device))
        with torch.no_grad(), self._weights.looking_up(batch, there, ()):
            return on_cpu(call(self._model, there.features))


def export_state(user: UserModel, spec: JobSpec, state: GroupState, path: str, kind: str) -> None:
    """Write the model of a group's state. Raises BadModel, or OSError with what was at `path` intact."""
    model = building.make_model(user, spec.seed, None)
    _take(model, user, state)
    export(model, path, kind, None, user.path)


def _take(model: torch.nn.Module, user: UserModel, state: GroupState) -> None:
    try:
        found = trees_of(state.image)["model"]
        _give_shapes(model, found)
        tensors = tensors_of(model)
        values = fitting(found, tensors)
    except TransferFailed as error:
        raise BadModel(
            f"{state.folder} is of another model than that of {user.path}: {error}; {_REMEDY}"
        ) from None
    with torch.no_grad():
        for name, value in values.items():
            tensors[name].copy_(value)


def _give_shapes(model: torch.nn.Module, found: Any) -> None:
    """Give what is lazy in a model the shapes of a state."""
    model = building.plain(model)
    for name, one in (*model.named_parameters(), *model.named_buffers()):
        if torch.nn.parameter.is_lazy(one) and isinstance(found, dict) and name in found:
            one.materialize(found[name].shape)


def _read_state(path: Path) -> Any:
    try:
        # tensors only: nothing of the file is run
        return torch.load(path, weights_only=True, map_location="cpu")
    except Exception as error:  # what a damaged file makes of its reader
        raise BadModel(
            f"--trained_model: {path} can't be read as what --output_format=state_dict or exported writes: "
            f"{describe(error, path).splitlines()[0]}"
        ) from None


def _load(model: torch.nn.Module, user: UserModel, path: Path, weights: Any) -> None:
    try:
        if not isinstance(weights, Mapping):
            raise RuntimeError(f"it has a {type(weights).__name__}")
        building.plain(model).load_state_dict(weights)
    except (RuntimeError, AttributeError, TypeError) as error:
        raise BadModel(
            f"--trained_model: {path} is of another model than that of {user.path}: {describe(error, user.path)}; {_REMEDY}"
        ) from None


def _listed(tensors: Sequence[Described]) -> str:
    return ", ".join(map(str, tensors)) or "no tensor"
