"""Evaluation: the loss, and the user's functions (labels, outputs), as means over the examples.

The state of each is a sum and what it weighs, examples or their weights, so the states of tasks are added. Nothing that is trained is
touched: an evaluation is a function of the model's variables.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import numpy.typing as npt

from elasticdl.control.protocol.metricstates import Metric, MetricCatalog, StateArray
from elasticdl.errors import BadData, BadModel
from elasticdl.jax import building
from elasticdl.jax.runtime import seeds_of
from elasticdl.jax.step import Model
from elasticdl.spec.jobspec import JobSpec, Mode
from elasticdl.worker.contract.evaluation import MetricValue
from elasticdl.worker.contract.records import Records
from elasticdl.worker.contract.usermodel import UserModel
from elasticdl.worker.fedbatch import Batch
from elasticdl.worker.usercode import try_evaluation
from elasticdl.worker.usermetrics import LOSS, UserMetric, user_metrics

_MEAN = (StateArray("sum_and_weight", (2,), "float64"),)


class JaxEvaluator:
    """Implements `elasticdl.worker.contract.evaluation.Evaluator`."""

    def __init__(self, user: UserModel, spec: JobSpec, metadata: Any, model: Model) -> None:
        """`metadata`: what the reader knows of the evaluation data's records."""
        self._user, self._spec, self._model = user, spec, model
        self._feed = building.make_feed(user, Mode.EVALUATION, metadata)
        self._task, self._chunk = 0, 0

    def prepare(self, sample: Records) -> None:
        """Evaluate a chunk. Raises BadModel or BadData."""
        self._metrics = user_metrics(self._user)
        for one in self._metrics:
            if not callable(one.metric):
                raise BadModel(
                    f"{one.where}: expected a function (labels, outputs), received {one.metric!r:.100}"
                )
        described = (Metric(one.name, one.output, _MEAN) for one in self._metrics)
        self._catalog = MetricCatalog((Metric(LOSS, "", _MEAN), *described))
        try_evaluation(self, self._user, sample, building.given)

    def catalog(self) -> MetricCatalog:
        """Return the metrics: the loss, then the user's."""
        return self._catalog

    def convert(self, records: Records) -> Batch:
        """Run the user's `feed` over one chunk. Raises BadData."""
        return self._feed(records)

    def begin_task(self, task: int) -> None:
        """Begin the state of a task."""
        self._task, self._chunk = task, 0
        self._state = np.zeros((1 + len(self._metrics), 2))

    def evaluate(self, batch: Batch, rows: Sequence[npt.NDArray[np.float32]] = ()) -> int:
        """Add a chunk to the state of the task; return its examples."""
        chunk, self._chunk = self._chunk, self._chunk + 1
        if batch.examples:
            outputs, loss = self._model.evaluate(batch, seeds_of(self._spec.seed, self._task, chunk))
            outputs = jax.tree.map(np.asarray, outputs)
            self._state[0] += float(loss) * batch.examples, batch.examples
            for place, one in enumerate(self._metrics):
                self._state[1 + place] += _sum(one, batch, outputs)
        return batch.examples

    def task_state(self) -> list[npt.NDArray[Any]]:
        """Return a copy of the state of the task's chunks so far."""
        return [row.copy() for row in self._state]

    def metric_values(self, combined: Sequence[npt.NDArray[Any]]) -> dict[str, MetricValue]:
        """Return the metrics' values by name. Raises BadData if they are of no example."""
        if not combined[0][1]:
            raise BadData(f"{self._user.path}: feed made no example of the evaluation data")
        names = (one.name for one in self._catalog.metrics)
        return {
            name: float(total / weight) if weight else float("nan")
            for name, (total, weight) in zip(names, combined, strict=True)
        }


def _sum(one: UserMetric, batch: Batch, outputs: Any) -> tuple[float, float]:
    """Return the sum of a function's values over the examples of a batch, and what that weighs."""
    values = np.asarray(one.metric(one.labels_of(batch.labels), one.output_of(outputs)))
    if values.dtype.kind not in "biufV" or (values.ndim and len(values) != batch.examples):
        raise BadModel(
            f"{one.where}: expected one value per example ({batch.examples}), or a scalar, received {building.shown(values)}"
        )
    values = values.astype(np.float64)
    if batch.weights is None:
        return float(values.mean()) * batch.examples, batch.examples
    if not values.ndim:
        raise BadModel(
            f"{one.where}: feed gives weights of the examples, and the function returned a scalar; let it return one value per example"
        )
    values = values.reshape(batch.examples, -1).mean(1)
    return float((values * batch.weights).sum()), float(batch.weights.sum())
