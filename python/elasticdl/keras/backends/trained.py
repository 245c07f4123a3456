"""A trained Keras model on JAX or PyTorch: the model file's model with the weights of a `.keras` file or of a group's checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras

from elasticdl.checkpoint.savedrows import SavedRows
from elasticdl.errors import BadData, BadInput, BadModel
from elasticdl.keras import weightsfile
from elasticdl.keras.backends.evaluation import BackendEvaluator
from elasticdl.keras.backends.feed import given, make_feed
from elasticdl.keras.backends.firstcall import make_model
from elasticdl.keras.backends.forward import Forward
from elasticdl.keras.backends.programs import make_programs
from elasticdl.keras.finished import finish
from elasticdl.keras.serving import served
from elasticdl.keras.shown import by_name
from elasticdl.spec.jobspec import JobKind, JobSpec, Mode
from elasticdl.worker.contract.records import Records
from elasticdl.worker.contract.trained import Predictions, Weights
from elasticdl.worker.contract.usermodel import UserModel
from elasticdl.worker.fedbatch import Batch
from elasticdl.worker.usercode import FIRST_OUTPUTS, failure


class BackendTrained:
    """Implements `elasticdl.worker.contract.trained.TrainedModel`."""

    def __init__(self, user: UserModel, spec: JobSpec, metadata: Any, weights: Weights) -> None:
        """Nothing is built yet; `prepare` does."""
        self._user, self._spec, self._weights = user, spec, weights
        mode = Mode.PREDICTION if spec.kind is JobKind.PREDICT else Mode.EVALUATION
        self._feed = make_feed(user, mode, metadata)

    def prepare(self, sample: Records) -> None:
        """Build the model, take its weights, and try it. Raises BadModel or BadData."""
        user, weights, batch = self._user, self._weights, self._feed(sample)
        if isinstance(weights, SavedRows):
            raise BadModel(
                f"--checkpoint_dir_for_init: {weights.folder} is of a job with parameter servers, which Keras uses with TensorFlow only; "
                "unset KERAS_BACKEND"
            )
        if isinstance(weights, Path) and weights.is_dir():
            raise BadModel(
                f"--trained_model: {weights} is a directory, and a SavedModel is read with TensorFlow; unset KERAS_BACKEND, or name a "
                "file .keras"
            )
        model = make_model(user, self._spec.seed, batch, len(sample))
        if isinstance(weights, Path):
            weightsfile.load_weights(user, served(user, model), weights)
        else:
            finish(user, model, weights)
        self._model = model
        self._forward = Forward(model, user.loss, f"{user.path}: {self._spec.loss}", user.path)
        self._programs = make_programs(self._forward, None, self._spec.seed)
        self._compiled = self._programs.compiled(self._forward.outputs)
        if self._spec.kind is JobKind.PREDICT:
            try:
                self.predict(batch, 0, 0)
            except BadInput:
                raise
            except Exception as error:
                raise failure(user, FIRST_OUTPUTS, error, given(batch)) from error

    def evaluator(self, metadata: Any) -> BackendEvaluator:
        """Return what evaluates this model."""
        return BackendEvaluator(self._user, self._spec, metadata, self._forward, self._programs)

    def convert(self, records: Records) -> Batch:
        """Run the user's `feed` over one chunk. Raises BadData."""
        return self._feed(records)

    def predict(self, batch: Batch, task: int, chunk: int) -> Predictions:
        """Return what the model gives, by the names of its outputs."""
        if not batch.examples:
            return {}
        seeds = self._forward.seeds(self._spec.seed, task, chunk)
        outputs = by_name(self._model, self._compiled(self._forward.values(), seeds, batch.features))
        for name, one in outputs.items():
            if not keras.ops.is_tensor(one):
                raise BadData(
                    f"{self._user.path}: the output {name!r} of the model is a {type(one).__name__}; predictions are tensors with one row "
                    "per record"
                )
        return {name: keras.ops.convert_to_numpy(one) for name, one in outputs.items()}
