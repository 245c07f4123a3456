"""Evaluation: the loss and the user's metrics, which are functions (labels, outputs) or metrics of `mx.metric` that are a sum and a count.

The state of each is a sum and what it weighs, so the states of tasks are added. Nothing that is trained is touched.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import mxnet as mx
import numpy as np
import numpy.typing as npt

from elasticdl.control.protocol.metricstates import Metric, MetricCatalog, StateArray
from elasticdl.errors import BadData, BadModel
from elasticdl.mxnet import building
from elasticdl.mxnet.runtime import seed_chunk
from elasticdl.spec.jobspec import JobSpec, Mode
from elasticdl.spec.nearest import nearest
from elasticdl.worker.contract.evaluation import MetricValue
from elasticdl.worker.contract.records import Records
from elasticdl.worker.contract.usermodel import UserModel
from elasticdl.worker.fedbatch import Batch
from elasticdl.worker.usercode import try_evaluation
from elasticdl.worker.usermetrics import LOSS, UserMetric, user_metrics

Arrays = list[npt.NDArray[Any]]
_STATE = (StateArray("sum_and_weight", (2,), "float64"),)


class MxnetEvaluator:
    """Implements `elasticdl.worker.contract.evaluation.Evaluator`."""

    def __init__(self, user: UserModel, spec: JobSpec, metadata: Any, model: Any) -> None:
        """`metadata`: what the reader knows of the evaluation data's records."""
        self._user, self._spec, self._model = user, spec, model
        self._feed = building.Feed(user, Mode.EVALUATION, metadata)
        self._task, self._chunk = 0, 0

    def prepare(self, sample: Records) -> None:
        """Evaluate a chunk. Raises BadModel or BadData."""
        self._metrics = user_metrics(self._user)
        for one in self._metrics:
            _check(one)
        described = (Metric(one.name, one.output, _STATE) for one in self._metrics)
        self._catalog = MetricCatalog((Metric(LOSS, "", _STATE), *described))
        self._catalog.check_size(f"{self._user.path}: {self._spec.eval_metrics_fn}()")
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
        self._state = [np.zeros(2) for _ in self._catalog.metrics]

    def evaluate(self, batch: Batch, rows: Sequence[npt.NDArray[np.float32]] = ()) -> int:
        """Add a chunk to the state of the task; return its examples."""
        chunk, self._chunk = self._chunk, self._chunk + 1
        if batch.examples:
            seed_chunk(self._spec.seed, self._task, chunk)
            outputs = self._model(*building.arrays_of(batch.features))
            loss = building.loss_of(self._user, batch, outputs).asnumpy()
            self._state[0] += (loss.mean(dtype=np.float64) * batch.examples, batch.examples)
            labels = building.arrays_of(batch.labels)
            for state, one in zip(self._state[1:], self._metrics, strict=True):
                state += _added(one, batch, labels, outputs)
        return batch.examples

    def task_state(self) -> Arrays:
        """Return a copy of the state of the task's chunks so far."""
        return [one.copy() for one in self._state]

    def metric_values(self, combined: Sequence[npt.NDArray[Any]]) -> dict[str, MetricValue]:
        """Return the metrics' values by name. Raises BadData if they are of no example."""
        if not combined[0][1]:
            raise BadData(f"{self._user.path}: feed made no example of the evaluation data")
        totals = [one.tolist() for one in combined]
        values = {LOSS: totals[0][0] / totals[0][1]}
        for one, (total, weight) in zip(self._metrics, totals[1:], strict=True):
            values[one.name] = _value(one, total, weight)
        return dict(values)


def _check(one: UserMetric) -> None:
    if isinstance(one.metric, mx.metric.EvalMetric):
        if type(one.metric).reset is not mx.metric.EvalMetric.reset:
            raise BadModel(
                f"{one.where}: the state of {type(one.metric).__name__} is not a sum and a count, so those of parts of the data can't be "
                "added; use a function, or metrics that are one (Accuracy, CrossEntropy, MSE)"
            )
    elif not callable(one.metric):
        raise BadModel(
            f"{one.where}: expected a function (labels, outputs) or a metric of mx.metric, received {one.metric!r:.100}"
        )


def _added(one: UserMetric, batch: Batch, labels: Any, outputs: Any) -> tuple[float, float]:
    """Return the sum of a metric over the examples of a batch, and what that weighs."""
    outputs = _of_output(one, outputs)
    if isinstance(one.metric, mx.metric.EvalMetric):
        one.metric.reset()
        one.metric.update(_list(labels), _list(outputs))
        return float(one.metric.sum_metric), float(one.metric.num_inst)
    found = one.metric(labels, outputs)
    values = found.asnumpy() if isinstance(found, mx.nd.NDArray) else np.asarray(found)
    if values.dtype.kind not in "biuf" or (values.ndim and len(values) not in (1, batch.examples)):
        raise BadModel(
            f"{one.where}: expected one value per example ({batch.examples}), or one in all, received {building.shown(values)}"
        )
    if batch.weights is None:
        return float(values.mean(dtype=np.float64)) * batch.examples, batch.examples
    if not values.ndim or len(values) != batch.examples:
        raise BadModel(
            f"{one.where}: feed gives weights of the examples, and the function returned one value for all; let it return one per example"
        )
    values = values.reshape(batch.examples, -1).mean(1, dtype=np.float64)
    return float((values * batch.weights).sum()), float(batch.weights.sum())


def _value(one: UserMetric, total: float, weight: float) -> MetricValue:
    if not isinstance(one.metric, mx.metric.EvalMetric):
        return float(total / weight) if weight else float("nan")
    one.metric.reset()
    one.metric.sum_metric, one.metric.num_inst = total, int(weight)
    return float(one.metric.get()[1])


def _list(arrays: Any) -> list[Any]:
    return list(arrays) if isinstance(arrays, list | tuple) else [arrays]


def _of_output(one: UserMetric, outputs: Any) -> Any:
    if not one.output:
        return outputs
    named: Mapping[str, Any] = building.named_outputs(outputs)
    if one.output not in named:
        raise BadModel(
            f"{one.where}: the model has no output {one.output!r}{nearest(one.output, named)}; it has {', '.join(named) or 'one only'}"
        )
    return named[one.output]
