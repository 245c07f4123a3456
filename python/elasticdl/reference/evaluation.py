"""Evaluation: the loss, and the user's functions (labels, outputs), as means over the examples.

The state of each is a sum and the number of its examples, so the states of tasks are added. Nothing that is trained is touched: a model
holds no values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from elasticdl.control.protocol.metricstates import Metric, MetricCatalog, StateArray
from elasticdl.errors import BadData, BadModel
from elasticdl.reference.building import Batch, feed, given
from elasticdl.reference.models import Arrays, Evaluated, Model
from elasticdl.spec.jobspec import Mode
from elasticdl.spec.nearest import nearest
from elasticdl.worker.contract.evaluation import MetricValue
from elasticdl.worker.contract.records import Records
from elasticdl.worker.contract.usermodel import UserModel
from elasticdl.worker.usercode import try_evaluation
from elasticdl.worker.usermetrics import LOSS, UserMetric, user_metrics

Rows = Sequence[npt.NDArray[np.float32]]


class Weights(Protocol):
    """Where the weights of a model are; an adapter is one."""

    def converted(self, batch: Batch) -> Any:
        """Return what the loop is given for a batch."""

    def any_rows(self, converted: Any) -> Rows:
        """Return rows for a trial."""

    def of_batch(self, converted: Any, rows: Rows) -> tuple[Batch, Arrays, Arrays]:
        """Return the batch, the values of parameters and statistics, and of each table the rows of its lookups."""


class WholeWeights:
    """The weights of a model that are all in this process, for `Weights`."""

    def __init__(self, model: Model, values: Callable[[], Arrays]) -> None:
        """`values`: returns those of parameters, statistics and tables by name."""
        self._model, self._values = model, values

    def converted(self, batch: Batch) -> Batch:
        """Return the batch."""
        return batch

    def any_rows(self, converted: Batch) -> Rows:
        """Return none: rows of tables are here."""
        return ()

    def of_batch(self, converted: Batch, rows: Rows = ()) -> tuple[Batch, Arrays, Arrays]:
        """Return the batch, all values, and of each table the rows of its lookups."""
        values, ids = self._values(), self._model.ids(converted.features)
        return converted, values, {name: values[name][lookups] for name, lookups in ids.items()}


class Means:
    """The state of one task: of the loss and of each metric the sum over the examples, and their number."""

    def __init__(self, user: UserModel) -> None:
        """Raises BadModel for what is no metric."""
        self._user, self._metrics = user, user_metrics(user)
        for one in self._metrics:
            if not callable(one.metric):
                raise BadModel(
                    f"{one.where}: expected a function (labels, outputs), received {one.metric!r:.100}"
                )
        state = (StateArray("sum_and_examples", (2,), "float64"),)
        described = (Metric(one.name, one.output, state) for one in self._metrics)
        self.catalog = MetricCatalog((Metric(LOSS, "", state), *described))
        self.begin()

    def begin(self) -> None:
        """Begin at zero."""
        self.state = [np.zeros(2) for _ in self.catalog.metrics]

    def add(self, found: Evaluated, batch: Batch) -> None:
        """Add a batch. Raises BadModel for a metric that returns something else than numbers, and what metrics raise."""
        self.state[0] += (found.loss, batch.examples)
        for state, one in zip(self.state[1:], self._metrics, strict=True):
            state += (_sum(one, found.outputs, batch), batch.examples)

    def values(self, combined: Sequence[npt.NDArray[Any]]) -> dict[str, MetricValue]:
        """Return the means by name. Raises BadData if there was no example."""
        if not combined[0][1]:
            raise BadData(f"{self._user.path}: feed made no example of the evaluation data")
        return {
            one.name: float(total / examples)
            for one, (total, examples) in zip(self.catalog.metrics, combined, strict=True)
        }


def _sum(one: UserMetric, outputs: Any, batch: Batch) -> float:
    if one.output:
        if not isinstance(outputs, Mapping) or one.output not in outputs:
            known = sorted(outputs) if isinstance(outputs, Mapping) else []
            raise BadModel(
                f"{one.where}: the model has no output {one.output!r}{nearest(one.output, known)}; it has {', '.join(known) or 'one only'}"
            )
        outputs = outputs[one.output]
    values = np.asarray(one.metric(batch.labels, outputs))
    if values.dtype.kind not in "biuf" or (values.ndim and len(values) != batch.examples):
        raise BadModel(
            f"{one.where}: expected one value per example ({batch.examples}), or a scalar, received {values.dtype} {values.shape}"
        )
    return float(values.mean(dtype=np.float64)) * batch.examples


class ReferenceEvaluator:
    """Implements `elasticdl.worker.contract.evaluation.Evaluator`."""

    def __init__(self, user: UserModel, metadata: Any, model: Model, weights: Weights) -> None:
        """`weights`: of the model."""
        self._user, self._metadata = user, metadata
        self._model, self._weights = model, weights

    def prepare(self, sample: Records) -> None:
        """Evaluate a chunk. Raises BadModel or BadData."""
        self._means = Means(self._user)
        weights = self._weights

        def shown(converted: Any) -> str:
            return given(weights.of_batch(converted, weights.any_rows(converted))[0])

        try_evaluation(self, self._user, sample, shown, weights.any_rows)

    def catalog(self) -> MetricCatalog:
        """Return the metrics: the loss, then the user's."""
        return self._means.catalog

    def convert(self, records: Records) -> Any:
        """Run the user's `feed` over one chunk. Raises BadData."""
        return self._weights.converted(feed(self._user, self._metadata, records, Mode.EVALUATION))

    def begin_task(self, task: int) -> None:
        """Begin the state of a task."""
        self._means.begin()

    def evaluate(self, batch: Any, rows: Rows = ()) -> int:
        """Add a chunk to the state of the task; return its examples."""
        if batch.examples:
            data, values, looked_up = self._weights.of_batch(batch, rows)
            self._means.add(self._model.evaluate(values, looked_up, data.features, data.labels), data)
        return int(batch.examples)

    def task_state(self) -> list[npt.NDArray[Any]]:
        """Return a copy of the state of the task's chunks so far."""
        return [one.copy() for one in self._means.state]

    def metric_values(self, combined: Sequence[npt.NDArray[Any]]) -> dict[str, MetricValue]:
        """Return the metrics' values by name. Raises BadData if they are of no example."""
        return self._means.values(combined)
