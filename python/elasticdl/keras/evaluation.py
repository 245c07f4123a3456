"""The evaluation of a model: chunks go through `feed`, model, loss and metrics in one compiled function.

The model is called in a stateless scope: what it would assign outside of training (a counter, a statistic) goes nowhere, so an evaluation
leaves no trace in what is trained.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from elasticdl.control.protocol.metricstates import MetricCatalog, combine
from elasticdl.keras.compiled import Compiled
from elasticdl.keras.feed import Batch, FeedPipeline
from elasticdl.keras.internals import clear_losses
from elasticdl.keras.library import library_of
from elasticdl.keras.loss import ChunkLoss
from elasticdl.keras.metricvalues import EvaluationMetrics, Seen
from elasticdl.keras.shown import show
from elasticdl.keras.trial import trial_batches
from elasticdl.spec.jobspec import JobSpec, Mode
from elasticdl.worker.contract.evaluation import MetricValue
from elasticdl.worker.contract.records import Records
from elasticdl.worker.contract.usermodel import UserModel
from elasticdl.worker.seeds import chunk_seeds
from elasticdl.worker.usercode import first_evaluation


class Forward(Protocol):
    """How a model is called where its weights are. Tensors that a call needs beside a batch are *given* to the compiled function."""

    seeded: list[Any]
    """States of the model's seed generators."""

    def trace(self, features: Any) -> None:
        """Trace what is needed before a batch is converted; `features`: their signature. Raises BadModel."""

    def converted(self, batch: Batch) -> Any:
        """Return what the loop is given for a batch: something with `examples`, which is 0 if there is nothing to evaluate."""

    def any_rows(self, converted: Any) -> Sequence[npt.NDArray[np.float32]]:
        """Return rows for a trial."""

    def arguments(self, converted: Any, rows: Sequence[npt.NDArray[np.float32]]) -> tuple[Any, Any]:
        """Return the data of a batch, and what is given beside it."""

    def signature(self) -> Any:
        """Return the signature of what is given."""

    def weights(self, given: Any) -> AbstractContextManager[list[tuple[Any, Any]]]:
        """Enter where the model can be called, with the values of variables that differ from their own; may be traced."""


class OwnWeights:
    """Calls a model whose variables are all in this process."""

    def __init__(self, model: Any) -> None:
        self._model, self._library = model, library_of(model)
        self.seeded = self._library.seed_states(model)

    def trace(self, features: Any) -> None:
        """Trace nothing."""

    def converted(self, batch: Batch) -> Batch:
        """Return the batch."""
        return batch

    def any_rows(self, converted: Batch) -> Sequence[npt.NDArray[np.float32]]:
        """Return none."""
        return ()

    def arguments(self, converted: Batch, rows: Sequence[npt.NDArray[np.float32]]) -> tuple[Any, Any]:
        """Return the batch's data; nothing is given beside it."""
        return converted.data, ()

    def signature(self) -> Any:
        """Return that nothing is given."""
        return ()

    def weights(self, given: Any) -> AbstractContextManager[list[tuple[Any, Any]]]:
        """Give all variables their values: regularizers take those of a stateless scope from nowhere else."""
        return nullcontext(
            [
                (variable, tf.convert_to_tensor(variable.value))
                for variable in self._library.variables(self._model)
            ]
        )


class KerasEvaluator:
    """Implements `elasticdl.worker.contract.evaluation.Evaluator`."""

    def __init__(self, user: UserModel, spec: JobSpec, metadata: Any, model: Any, forward: Forward) -> None:
        """`metadata`: what the reader of the evaluation data knows of its records. `model`: built; nothing is traced before `prepare`."""
        self._user, self._spec = user, spec
        self._model, self._forward = model, forward
        self._pipeline = FeedPipeline(user.feed, Mode.EVALUATION, metadata, user.path)
        self._loss = ChunkLoss(user.loss, f"{user.path}: {spec.loss}", library_of(model))
        self._metrics = EvaluationMetrics(user, library_of(model))
        self._draws = True
        """Whether the model may draw random numbers outside of training, too."""

    def prepare(self, sample: Records) -> None:
        """Trace everything and try the metrics on parts of `sample`. Raises BadModel or BadData for what only running shows."""
        samples = trial_batches(self._user, self._pipeline, sample)
        spec, forward, seeds = self._pipeline.spec, self._forward, self._seeds(0, 0)
        assert spec is not None, "feed has been traced"
        with first_evaluation(self._user, show(spec)):
            forward.trace(spec[0])
            batches = [forward.converted(one) for one in samples]
            rows = [forward.any_rows(one) for one in batches]
            chunks = [
                (*forward.arguments(one, of_it), tf.constant(one.examples), seeds)
                for one, of_it in zip(batches, rows, strict=True)
            ]
            self._metrics.try_out(*(self._see(*chunk) for chunk in chunks))
        self._first_seeds = seeds
        states = [tf.TensorSpec(value.shape, value.dtype) for value in self._metrics.begin()]
        scalar = tf.TensorSpec([], tf.int32)
        signature = (spec, forward.signature(), scalar, tf.TensorSpec(seeds.shape, seeds.dtype), states)
        self._compiled = Compiled(self._trace, signature)
        self.begin_task(0)
        with first_evaluation(self._user, show(spec)):
            self.evaluate(batches[0], rows[0])
            self.metric_values(combine(self.catalog(), [self.task_state()]))
        self.begin_task(0)

    def catalog(self) -> MetricCatalog:
        """Return the metrics: the loss, then the user's."""
        return self._metrics.catalog

    def convert(self, records: Records) -> Any:
        """Run the user's `feed` over one chunk; may be called from another thread once `prepare` has returned. Raises BadData."""
        return self._forward.converted(self._pipeline(records))

    def begin_task(self, task: int) -> None:
        """Begin the state of a task."""
        self._task, self._chunks = task, 0
        self._states = self._metrics.begin()

    def evaluate(self, batch: Any, rows: Sequence[npt.NDArray[np.float32]] = ()) -> int:
        """Add a chunk to the state of the task; return its examples."""
        chunk, self._chunks = self._chunks, self._chunks + 1
        if batch.examples:
            data, given = self._forward.arguments(batch, rows)
            examples, seeds = tf.constant(batch.examples), self._seeds(self._task, chunk)
            self._states = self._compiled(data, given, examples, seeds, self._states)
        return int(batch.examples)

    def task_state(self) -> list[npt.NDArray[Any]]:
        """Return a copy of the state of the task's chunks so far."""
        return self._metrics.state_of(self._states)

    def metric_values(self, combined: Sequence[npt.NDArray[Any]]) -> dict[str, MetricValue]:
        """Return the metrics' values by name. Raises BadData if they are of no example."""
        return self._metrics.values(combined)

    def _seeds(self, task: int, chunk: int) -> Any:
        if not self._draws:
            return self._first_seeds
        return tf.constant(chunk_seeds(self._spec.seed, task, chunk, len(self._forward.seeded)))

    def _trace(self, data: Any, given: Any, examples: Any, seeds: Any, states: list[Any]) -> list[Any]:
        found = self._metrics.updated(states, self._see(data, given, examples, seeds))
        self._draws = any(part.consumers() for one in seeds.consumers() for part in one.outputs)
        return found

    def _see(self, data: tuple[Any, ...], given: Any, examples: Any, seeds: Any) -> Seen:
        """Call the model, not in training mode, and its losses; nothing is assigned."""
        features, labels, weights = (*data, None) if len(data) == 2 else data
        seeded = [(state, seeds[index]) for index, state in enumerate(self._forward.seeded)]
        with (
            self._forward.weights(given) as values,
            library_of(self._model).values([*values, *seeded]),
        ):
            predictions = self._model(features, training=False)
            mean = tf.cast(self._loss(labels, predictions, weights), tf.float64)
            for own in self._model.losses:
                mean += tf.cast(tf.reduce_sum(own), tf.float64)
        clear_losses(self._model)
        return Seen(labels, predictions, weights, mean, examples)
