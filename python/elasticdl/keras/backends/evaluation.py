"""The evaluation of a model on JAX or PyTorch: chunks go through `feed`, model, loss and metrics; nothing that is trained is touched."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from elasticdl.control.protocol.metricstates import MetricCatalog, combine
from elasticdl.keras.backends.feed import given, make_feed
from elasticdl.keras.backends.forward import Forward, tensors
from elasticdl.keras.backends.programs import Programs
from elasticdl.keras.metricvalues import EvaluationMetrics
from elasticdl.keras.trial import trial_batches
from elasticdl.spec.jobspec import JobSpec, Mode
from elasticdl.worker.contract.evaluation import MetricValue
from elasticdl.worker.contract.records import Records
from elasticdl.worker.contract.usermodel import UserModel
from elasticdl.worker.fedbatch import Batch
from elasticdl.worker.usercode import first_evaluation


class BackendEvaluator:
    """Implements `elasticdl.worker.contract.evaluation.Evaluator`."""

    def __init__(
        self, user: UserModel, spec: JobSpec, metadata: Any, forward: Forward, programs: Programs
    ) -> None:
        """`metadata`: what the reader of the evaluation data knows of its records."""
        self._user, self._spec, self._forward = user, spec, forward
        self._feed = make_feed(user, Mode.EVALUATION, metadata)
        self._metrics = EvaluationMetrics(user)
        self._compiled = programs.compiled(self._states_after)
        self._without_gradients = programs.without_gradients

    def prepare(self, sample: Records) -> None:
        """Try the metrics on parts of `sample`. Raises BadModel or BadData for what only running shows."""
        first, second = trial_batches(self._user, self._feed, sample)
        with first_evaluation(self._user, given(first)):
            with self._without_gradients():
                self._metrics.try_out(*(self._seen(one) for one in (first, second)))
            self.begin_task(0)
            self.evaluate(first)
            self.metric_values(combine(self.catalog(), [self.task_state()]))
        self.begin_task(0)

    def _seen(self, batch: Batch) -> Any:
        seeds = self._forward.seeds(self._spec.seed, 0, 0)
        return self._forward.seen(self._forward.values(), seeds, tensors(batch), _number(batch))

    def catalog(self) -> MetricCatalog:
        """Return the metrics: the loss, then the user's."""
        return self._metrics.catalog

    def convert(self, records: Records) -> Batch:
        """Run the user's `feed` over one chunk. Raises BadData."""
        return self._feed(records)

    def begin_task(self, task: int) -> None:
        """Begin the state of a task."""
        self._task, self._chunks = task, 0
        self._states = self._metrics.begin()

    def evaluate(self, batch: Batch, rows: Sequence[npt.NDArray[np.float32]] = ()) -> int:
        """Add a chunk to the state of the task; return its examples."""
        chunk, self._chunks = self._chunks, self._chunks + 1
        if batch.examples:
            self._states = self._compiled(
                self._forward.values(),
                self._forward.seeds(self._spec.seed, self._task, chunk),
                self._states,
                batch.features,
                batch.labels,
                batch.weights,
                _number(batch),
            )
        return batch.examples

    def _states_after(
        self,
        values: Any,
        seeds: Any,
        states: Any,
        features: Any,
        labels: Any,
        weights: Any,
        examples: Any,
    ) -> list[Any]:
        batch = Batch(0, features, labels, weights)
        return self._metrics.updated(states, self._forward.seen(values, seeds, batch, examples))

    def task_state(self) -> list[npt.NDArray[Any]]:
        """Return a copy of the state of the task's chunks so far."""
        return self._metrics.state_of(self._states)

    def metric_values(self, combined: Sequence[npt.NDArray[Any]]) -> dict[str, MetricValue]:
        """Return the metrics' values by name. Raises BadData if they are of no example."""
        return self._metrics.values(combined)


def _number(batch: Batch) -> npt.NDArray[np.int32]:
    """Return a batch's examples as metrics take them."""
    return np.asarray(batch.examples, np.int32)
