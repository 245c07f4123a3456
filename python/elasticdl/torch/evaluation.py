"""Evaluation: the loss and the user's metrics, which are functions (labels, outputs) or objects with the interface of torchmetrics.

The state of the loss and of a function is a sum and what it weighs, examples or their weights; that of an object its own tensors,
which have to be sums. So the states of tasks are added. Nothing that is trained is touched.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from elasticdl.control.protocol.metricstates import TYPES, Metric, MetricCatalog, StateArray
from elasticdl.errors import BadData, BadModel
from elasticdl.spec.jobspec import JobSpec, Mode
from elasticdl.torch import building
from elasticdl.torch.device import moved, on_cpu, own_device, pinned
from elasticdl.torch.runtime import seed_chunk
from elasticdl.worker.contract.evaluation import MetricValue
from elasticdl.worker.contract.records import Records
from elasticdl.worker.contract.usermodel import UserModel
from elasticdl.worker.fedbatch import Batch, call
from elasticdl.worker.usercode import try_evaluation
from elasticdl.worker.usermetrics import LOSS, UserMetric, user_metrics

Arrays = list[npt.NDArray[Any]]
Rows = Sequence[npt.NDArray[np.float32]]
_MEAN = (StateArray("sum_and_weight", (2,), "float64"),)


class _Mean:
    """The loss, or a function, as a mean over the examples."""

    def __init__(self, user: UserMetric | None) -> None:
        self.user = user
        self.described = Metric(LOSS, "", _MEAN) if user is None else Metric(user.name, user.output, _MEAN)
        self.begin()

    def begin(self) -> None:
        """Begin at zero."""
        self.state = np.zeros(2)

    def update(self, batch: Batch, outputs: Any, loss: float) -> None:
        """Add a batch."""
        self.state += (
            (loss * batch.examples, batch.examples) if self.user is None else _sum(self.user, batch, outputs)
        )

    def arrays(self) -> Arrays:
        """Return the state."""
        return [self.state.copy()]

    def values(self, arrays: Sequence[npt.NDArray[Any]]) -> dict[str, MetricValue]:
        """Return the mean of a state."""
        total, weight = arrays[0].tolist()
        return {self.described.name: total / weight if weight else float("nan")}


class _Object:
    """A metric with the interface of torchmetrics: `update(outputs, labels)`, `compute()`, `reset()`, states that are added."""

    def __init__(self, user: UserMetric) -> None:
        self.user, metric = user, user.metric
        self._names = list(metric._defaults)
        metric.reset()
        state = []
        for name in self._names:
            value = getattr(metric, name)
            how = metric._reductions[name]
            added = how is torch.sum or getattr(how, "__name__", "") == "dim_zero_sum"
            if not isinstance(value, torch.Tensor) or not added:
                raise BadModel(
                    f"{user.where}: its state {name!r} is not a sum, so the states of parts of the data can't be added; use one whose "
                    'states have dist_reduce_fx="sum" (for curves: thresholds=…), or a function'
                )
            kind = str(value.dtype).removeprefix("torch.")
            if kind not in TYPES:
                raise BadModel(f"{user.where}: its state {name!r} is of the type {kind}; give it another one")
            state.append(StateArray(name, tuple(value.shape), kind))
        self.described = Metric(user.name, user.output, tuple(state))

    def begin(self) -> None:
        """Begin at zero."""
        self.user.metric.reset()

    def update(self, batch: Batch, outputs: Any, loss: float) -> None:
        """Add a batch."""
        self.user.metric.update(self.user.output_of(outputs), self.user.labels_of(batch.labels))

    def arrays(self) -> Arrays:
        """Return the state."""
        return [getattr(self.user.metric, name).detach().numpy().copy() for name in self._names]

    def values(self, arrays: Sequence[npt.NDArray[Any]]) -> dict[str, MetricValue]:
        """Return the values of a state by name."""
        metric = self.user.metric
        metric.reset()
        for name, value in zip(self._names, arrays, strict=True):
            setattr(metric, name, torch.from_numpy(np.array(value)).to(getattr(metric, name).dtype))
        metric._update_count = 1  # compute() warns of a metric that was never updated
        found = metric.compute()
        metric.reset()
        if isinstance(found, Mapping):
            return {f"{self.user.name}_{key}": _number(value) for key, value in found.items()}
        return {self.user.name: _number(found)}


class Weights(Protocol):
    """Where the weights are with which a model is called."""

    def converted(self, batch: Batch) -> Any:
        """Return what the loop is given for a batch, with `examples`. Raises BadData."""

    def any_rows(self, converted: Any) -> Rows:
        """Return rows for a trial."""

    def batch_of(self, converted: Any) -> Batch:
        """Return the batch."""

    def looking_up(self, converted: Any, there: Batch, rows: Rows) -> AbstractContextManager[None]:
        """Let the model's layers find their rows; `there`: the batch on the device on which the model is called with it."""


class OwnWeights:
    """The weights of a model that has all of them, for `Weights`."""

    def converted(self, batch: Batch) -> Batch:
        """Return the batch."""
        return batch

    def any_rows(self, converted: Batch) -> Rows:
        """Return none."""
        return ()

    def batch_of(self, converted: Batch) -> Batch:
        """Return the batch."""
        return converted

    def looking_up(self, converted: Batch, there: Batch, rows: Rows) -> AbstractContextManager[None]:
        """Do nothing."""
        return nullcontext()


class TorchEvaluator:
    """Implements `elasticdl.worker.contract.evaluation.Evaluator`."""

    def __init__(
        self,
        user: UserModel,
        spec: JobSpec,
        metadata: Any,
        model: torch.nn.Module,
        weights: Weights | None = None,
    ) -> None:
        """`metadata`: what the reader knows of the evaluation data's records; `weights`: None if the model has all of them."""
        self._user, self._spec, self._model = user, spec, model
        self._weights = weights or OwnWeights()
        self._feed = building.make_feed(user, Mode.EVALUATION, metadata)
        self._task, self._chunk = 0, 0
        self._device = own_device()

    def prepare(self, sample: Records) -> None:
        """Evaluate a chunk. Raises BadModel or BadData."""
        self._metrics: list[_Mean | _Object] = [_Mean(None)]
        for one in user_metrics(self._user):
            if all(
                hasattr(one.metric, name)
                for name in ("_defaults", "_reductions", "update", "compute", "reset")
            ):
                self._metrics.append(_Object(one))
            elif callable(one.metric):
                self._metrics.append(_Mean(one))
            else:
                raise BadModel(
                    f"{one.where}: expected a function (labels, outputs) or a metric of torchmetrics, received {one.metric!r:.100}"
                )
        self._catalog = MetricCatalog(tuple(one.described for one in self._metrics))
        self._catalog.check_size(f"{self._user.path}: {self._spec.eval_metrics_fn}()")
        weights = self._weights
        try_evaluation(
            self, self._user, sample, lambda batch: building.given(weights.batch_of(batch)), weights.any_rows
        )

    def catalog(self) -> MetricCatalog:
        """Return the metrics: the loss, then the user's."""
        return self._catalog

    def convert(self, records: Records) -> Any:
        """Run the user's `feed` over one chunk. Raises BadData."""
        batch = self._feed(records).changed(lambda tensors: pinned(tensors, self._device))
        return self._weights.converted(batch)

    def begin_task(self, task: int) -> None:
        """Begin the state of a task."""
        self._task, self._chunk = task, 0
        for one in self._metrics:
            one.begin()

    def evaluate(self, batch: Any, rows: Rows = ()) -> int:
        """Add a chunk to the state of the task; return its examples."""
        chunk, self._chunk = self._chunk, self._chunk + 1
        if batch.examples:
            converted, batch = batch, self._weights.batch_of(batch)
            seed_chunk(self._spec.seed, self._task, chunk)
            self._model.eval()
            with torch.no_grad():
                there = batch.changed(lambda tensors: moved(tensors, self._device))
                with self._weights.looking_up(converted, there, rows):
                    outputs = call(self._model, there.features)
                loss = float(building.loss_of(self._user, there, outputs))
                outputs = on_cpu(outputs)  # where metrics and their states are
                for one in self._metrics:
                    one.update(batch, outputs, loss)
        return int(batch.examples)

    def task_state(self) -> Arrays:
        """Return a copy of the state of the task's chunks so far."""
        return [array for one in self._metrics for array in one.arrays()]

    def metric_values(self, combined: Sequence[npt.NDArray[Any]]) -> dict[str, MetricValue]:
        """Return the metrics' values by name. Raises BadData if they are of no example."""
        if not combined[0][1]:
            raise BadData(f"{self._user.path}: feed made no example of the evaluation data")
        values: dict[str, MetricValue] = {}
        start = 0
        for one in self._metrics:
            end = start + len(one.described.state)
            values |= one.values(combined[start:end])
            start = end
        return values


def _sum(one: UserMetric, batch: Batch, outputs: Any) -> tuple[float, float]:
    """Return the sum of a function's values over the examples of a batch, and what that weighs."""
    values = torch.as_tensor(one.metric(one.labels_of(batch.labels), one.output_of(outputs)))
    if values.is_complex() or (values.dim() and len(values) != batch.examples):
        raise BadModel(
            f"{one.where}: expected one value per example ({batch.examples}), or a scalar, received {building.shown(values)}"
        )
    values = values.to(torch.float64)
    if batch.weights is None:
        return float(values.mean()) * batch.examples, batch.examples
    if not values.dim():
        raise BadModel(
            f"{one.where}: feed gives weights of the examples, and the function returned a scalar; let it return one value per example"
        )
    values = values.reshape(batch.examples, -1).mean(1)
    return float((values * batch.weights).sum()), float(batch.weights.sum())


def _number(value: Any) -> MetricValue:
    found = torch.as_tensor(value).to(torch.float64).tolist()
    return found if isinstance(found, list) else float(found)
