"""A trained Keras model: the model file's model with the weights of a `.keras` file.

The file is not loaded as a model, which could run code that is in it: only its weights are read, into the model that the model file makes.
"""

from __future__ import annotations

import zipfile
from typing import Any

import h5py
import keras
import numpy as np
import tensorflow as tf

from elasticdl.errors import BadData, BadInput, BadModel
from elasticdl.keras.building import make_model
from elasticdl.keras.compiled import Compiled
from elasticdl.keras.evaluation import KerasEvaluator, OwnWeights
from elasticdl.keras.feed import Batch, FeedPipeline, show
from elasticdl.keras.internals import clear_losses
from elasticdl.spec.jobspec import JobKind, JobSpec, Mode
from elasticdl.worker.contract.records import Records
from elasticdl.worker.contract.trained import PREDICTION, Predictions
from elasticdl.worker.contract.usermodel import UserModel
from elasticdl.worker.modelfile import describe
from elasticdl.worker.seeds import chunk_seeds

_WEIGHTS = "model.weights.h5"
"""The weights in a .keras file, as Keras writes it."""
_NO_WEIGHTS = ("optimizer", "seed_generator")
"""Groups in it that are no weights of the model."""


class KerasTrained:
    """Implements `elasticdl.worker.contract.trained.TrainedModel`."""

    def __init__(self, user: UserModel, spec: JobSpec, metadata: Any) -> None:
        """Nothing is built yet; `prepare` does."""
        self._user, self._spec = user, spec
        mode = Mode.PREDICTION if spec.kind is JobKind.PREDICT else Mode.EVALUATION
        self._pipeline = FeedPipeline(user.feed, mode, metadata, user.path)

    def prepare(self, sample: Records) -> None:
        """Build the model, take the weights of the file, and try it. Raises BadModel or BadData."""
        self._model, batch, _ = make_model(self._user, self._spec.seed, self._pipeline, sample)
        self._load()
        if self._spec.kind is JobKind.PREDICT:
            self._prepare_prediction(batch)

    def _load(self) -> None:
        path, model = self._spec.trained_model, self._model
        try:
            written = _num_weights(path)
        except (OSError, KeyError, zipfile.BadZipFile) as error:
            raise BadModel(
                f"--trained_model: {path} is no .keras file, or is damaged ({error}); name the file that `elasticdl train "
                "--output=NAME.keras` wrote"
            ) from None
        mine = sum(int(np.prod(weight.shape)) for weight in model.weights)
        remedy = "give the --model_def and --model_params of the job that wrote it"
        if written != mine:
            raise BadModel(
                f"--trained_model: {path} is of another model: it has {written:,} weights, and the model of {self._user.path} has "
                f"{mine:,}; {remedy}"
            )
        try:
            model.load_weights(path)
        except Exception as error:  # Keras raises what it finds first: ValueError, KeyError, OSError
            raise BadModel(
                f"--trained_model: the weights of {path} do not fit the model of {self._user.path} "
                f"({describe(error, self._user.path)}); {remedy}"
            ) from error

    # ------------------------------------------------------------------ evaluation

    def evaluator(self, metadata: Any) -> KerasEvaluator:
        """Return what evaluates this model."""
        return KerasEvaluator(self._user, self._spec, metadata, self._model, OwnWeights(self._model))

    # ------------------------------------------------------------------ prediction

    def _prepare_prediction(self, batch: Batch) -> None:
        spec = self._pipeline.spec
        assert spec is not None, "feed has been traced"
        self._forward = OwnWeights(self._model)
        self._names: tuple[str, ...] = ()
        seeds = self._seeds(0, 0)
        self._compiled = Compiled(self._trace, (spec[0], tf.TensorSpec(seeds.shape, seeds.dtype)))
        try:
            self.predict(batch, 0, 0)
        except BadInput:
            raise
        except Exception as error:  # whatever the user's layers raise
            raise BadModel(
                f"{self._user.path}: the model can't predict for the first chunk: {describe(error, self._user.path)}\n"
                f"feed gave {show(spec)}"
            ) from error

    def convert(self, records: Records) -> Batch:
        """Run the user's `feed` over one chunk; may be called from another thread once `prepare` has returned. Raises BadData."""
        return self._pipeline(records)

    def predict(self, batch: Batch, task: int, chunk: int) -> Predictions:
        """Return what the model gives, by the names of its outputs."""
        if batch.data is None:
            return {}
        outputs = self._compiled(batch.data[0], self._seeds(task, chunk))
        return {name: one.numpy() for name, one in zip(self._names, outputs, strict=True)}

    def _seeds(self, task: int, chunk: int) -> Any:
        return tf.constant(chunk_seeds(self._spec.seed, task, chunk, len(self._forward.seeded)))

    def _trace(self, features: Any, seeds: Any) -> list[Any]:
        seeded = [(state, seeds[index]) for index, state in enumerate(self._forward.seeded)]
        with (
            self._forward.weights(()) as values,
            keras.StatelessScope(state_mapping=[*values, *seeded], collect_losses=True),
        ):
            outputs = self._model(features, training=False)
        clear_losses(self._model)
        named = _by_name(self._model, outputs)
        self._names = tuple(named)
        return [_dense(name, one, self._user) for name, one in named.items()]


def _num_weights(path: str) -> int:
    """Return how many numbers the layers of a .keras file have. Raises OSError, KeyError or BadZipFile."""
    count = 0

    def add(name: str, found: Any) -> None:
        nonlocal count
        if isinstance(found, h5py.Dataset) and not any(
            part.startswith(_NO_WEIGHTS) for part in name.split("/")
        ):
            count += int(np.prod(found.shape))

    with zipfile.ZipFile(path) as archive, archive.open(_WEIGHTS) as weights, h5py.File(weights, "r") as file:
        file.visititems(add)
    return count


def _by_name(model: Any, outputs: Any) -> dict[str, Any]:
    """Return a model's outputs by name: that of the only one is `prediction`."""
    if isinstance(outputs, dict):
        return {str(name): one for name, one in outputs.items()}
    if not isinstance(outputs, list | tuple):
        return {PREDICTION: outputs}
    names = list(getattr(model, "output_names", None) or ())
    if len(names) != len(outputs) or len(set(names)) < len(names):
        names = [f"output_{place}" for place in range(len(outputs))]
    return dict(zip(names, outputs, strict=True))


def _dense(name: str, output: Any, user: UserModel) -> Any:
    if not isinstance(output, tf.Tensor):
        raise BadData(
            f"{user.path}: the output {name!r} of the model is a {type(output).__name__}; predictions are tensors with one row per record"
        )
    return output
