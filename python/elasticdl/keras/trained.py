"""A trained Keras model: the model file's model with the weights of a `.keras` file or of a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from elasticdl.checkpoint.savedrows import SavedRows
from elasticdl.errors import BadData, BadInput, BadModel
from elasticdl.keras import savedmodelweights, weightsfile
from elasticdl.keras.compiled import Compiled
from elasticdl.keras.embedding import Recorded, looking_up, server_side
from elasticdl.keras.evaluation import Forward, KerasEvaluator, OwnWeights
from elasticdl.keras.feed import Batch, FeedPipeline
from elasticdl.keras.finished import finish
from elasticdl.keras.firstcall import make_model
from elasticdl.keras.internals import clear_losses
from elasticdl.keras.library import KERAS, Library, library_of
from elasticdl.keras.savedweights import SavedWeights
from elasticdl.keras.serving import served
from elasticdl.keras.shown import by_name, show
from elasticdl.spec.jobspec import JobKind, JobSpec, Mode
from elasticdl.worker.contract.records import Records
from elasticdl.worker.contract.trained import Predictions, Weights
from elasticdl.worker.contract.usermodel import UserModel
from elasticdl.worker.modelfile import describe
from elasticdl.worker.seeds import chunk_seeds


class KerasTrained:
    """Implements `elasticdl.worker.contract.trained.TrainedModel`."""

    def __init__(
        self, user: UserModel, spec: JobSpec, metadata: Any, weights: Weights, library: Library = KERAS
    ) -> None:
        """Nothing is built yet; `prepare` does."""
        self._user, self._spec, self._weights, self._library = user, spec, weights, library
        mode = Mode.PREDICTION if spec.kind is JobKind.PREDICT else Mode.EVALUATION
        self._pipeline = FeedPipeline(user.feed, mode, metadata, user.path)

    def prepare(self, sample: Records) -> None:
        """Build the model, take its weights, and try it. Raises BadModel or BadData."""
        weights = self._weights
        if isinstance(weights, SavedRows):
            with server_side(self._spec.embedding_threshold, self._library), looking_up(Recorded()):
                self._model, batch, _ = make_model(
                    self._user, weights.catalog.seed, self._library, self._pipeline, sample
                )
            self._forward: Forward = self._looked_up(weights)
        else:
            self._model, batch, _ = make_model(
                self._user, self._spec.seed, self._library, self._pipeline, sample
            )
            if isinstance(weights, Path):
                of_its_kind = savedmodelweights if weights.is_dir() else weightsfile
                of_its_kind.load_weights(self._user, served(self._user, self._model), weights)
            else:
                finish(self._user, self._model, weights)
            self._forward = OwnWeights(self._model)
        if self._spec.kind is JobKind.PREDICT:
            self._prepare_prediction(batch)

    def _looked_up(self, saved: SavedRows) -> SavedWeights:
        try:
            return SavedWeights(self._user, self._model, saved, self._features())
        except BadInput:
            raise
        except Exception as error:  # whatever the user's layers raise
            text = f"the model can't be called: {describe(error, self._user.path)}"
            raise BadModel(f"{self._user.path}: {text}\nfeed gave {show(self._pipeline.spec)}") from error

    def _features(self) -> Any:
        """Return the signature of features."""
        assert self._pipeline.spec is not None, "feed has been traced"
        return self._pipeline.spec[0]

    # ------------------------------------------------------------------ evaluation

    def evaluator(self, metadata: Any) -> KerasEvaluator:
        """Return what evaluates this model."""
        return KerasEvaluator(self._user, self._spec, metadata, self._model, self._forward)

    # ------------------------------------------------------------------ prediction

    def _prepare_prediction(self, batch: Batch) -> None:
        features = self._features()
        self._names: tuple[str, ...] = ()
        seeds = self._seeds(0, 0)
        try:
            self._forward.trace(features)
            signature = (features, self._forward.signature(), tf.TensorSpec(seeds.shape, seeds.dtype))
            self._compiled = Compiled(self._trace, signature)
            self.predict(self._forward.converted(batch), 0, 0)
        except BadInput:
            raise
        except Exception as error:  # whatever the user's layers raise
            raise BadModel(
                f"{self._user.path}: the model can't predict for the first chunk: {describe(error, self._user.path)}\n"
                f"feed gave {show(self._pipeline.spec)}"
            ) from error

    def convert(self, records: Records) -> Any:
        """Run the user's `feed` over one chunk; may be called from another thread once `prepare` has returned. Raises BadData."""
        return self._forward.converted(self._pipeline(records))

    def predict(self, batch: Any, task: int, chunk: int) -> Predictions:
        """Return what the model gives, by the names of its outputs."""
        if not batch.examples:
            return {}
        data, given = self._forward.arguments(batch, ())
        outputs = self._compiled(data[0], given, self._seeds(task, chunk))
        return {name: _array(one) for name, one in zip(self._names, outputs, strict=True)}

    def _seeds(self, task: int, chunk: int) -> Any:
        return tf.constant(chunk_seeds(self._spec.seed, task, chunk, len(self._forward.seeded)))

    def _trace(self, features: Any, given: Any, seeds: Any) -> list[Any]:
        seeded = [(state, seeds[index]) for index, state in enumerate(self._forward.seeded)]
        with (
            self._forward.weights(given) as values,
            library_of(self._model).values([*values, *seeded]),
        ):
            outputs = self._model(features, training=False)
        clear_losses(self._model)
        named = by_name(self._model, outputs)
        self._names = tuple(named)
        return [_dense(name, one, self._user) for name, one in named.items()]


def _array(output: Any) -> npt.NDArray[Any]:
    array: npt.NDArray[Any] = output.numpy()
    if output.dtype != tf.string:
        return array
    texts = [one.decode(errors="replace") for one in array.reshape(-1)]
    return np.array(texts, dtype=object).reshape(array.shape)


def _dense(name: str, output: Any, user: UserModel) -> Any:
    if not isinstance(output, tf.Tensor):
        raise BadData(
            f"{user.path}: the output {name!r} of the model is a {type(output).__name__}; predictions are tensors with one row per record"
        )
    return output
