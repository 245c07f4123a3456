"""The evaluation work of a worker: what it asks the framework for, and what it refuses."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from elasticdl.control.protocol.metricstates import Metric, MetricCatalog, StateArray
from elasticdl.control.protocol.view import StateId
from elasticdl.data.plan.evaluation import MOST_BYTES, EvaluationPlan
from elasticdl.data.plan.shard import Shard
from elasticdl.errors import BadModel
from elasticdl.worker.evaluating import flat, prepared
from elasticdl.worker.events import ComputeMetrics, Evaluate, MetricsComputed

STATE = StateId(3, 1)


class Sums:
    """An evaluator that adds up numbers."""

    def __init__(self, elements: int = 1) -> None:
        self.elements = elements
        self.began: list[int] = []

    def prepare(self, sample: Any) -> None:
        self.sample = sample

    def catalog(self) -> MetricCatalog:
        return MetricCatalog((Metric("val_loss", "", (StateArray("sum", (self.elements,), "float64"),)),))

    def convert(self, records: Any) -> Any:
        return records

    def begin_task(self, task: int) -> None:
        self.began.append(task)
        self.sum = np.zeros(self.elements)

    def evaluate(self, batch: Any, rows: Any = ()) -> int:
        self.sum += sum(batch)
        return len(batch)

    def task_state(self) -> list[Any]:
        return [self.sum.copy()]

    def metric_values(self, combined: Any) -> dict[str, Any]:
        return {"val_loss": float(combined[0][0])}


def reader() -> Any:
    return SimpleNamespace(read=lambda task, records: [float(record) for record in records])


def test_the_sums_of_a_task_begin_once_and_are_its_result_with_the_last_minibatch() -> None:
    evaluator: Any = Sums()
    plan = EvaluationPlan([Shard("v", 0, 10)], 3, 1, False, most_tasks=2)
    evaluating = prepared(evaluator, reader(), plan)
    assert evaluator.sample == [0.0, 1.0, 2.0]
    first = evaluating.evaluate(Evaluate(STATE, 1, 0))
    assert first.body is None
    second = evaluating.evaluate(Evaluate(STATE, 1, 1))
    assert second.body == np.array([6.0 + 7 + 8 + 9]).tobytes()
    assert evaluator.began == [1]
    made = evaluating.compute(ComputeMetrics(STATE, np.array([45.0]).tobytes()))
    assert made == MetricsComputed(STATE, (("val_loss", 45.0),))
    evaluating.close()


def test_metrics_that_keep_too_much_for_all_parts_are_refused_at_the_start() -> None:
    plan = EvaluationPlan([Shard("v", 0, 4096)], 1, 1, False)
    evaluator: Any = Sums(MOST_BYTES // 8 // plan.num_tasks + 1)
    with pytest.raises(BadModel, match=r"for each of 512 parts .* 64 MiB for all; use fewer thresholds"):
        prepared(evaluator, reader(), plan)


def test_a_metric_of_several_numbers_has_a_name_for_each() -> None:
    assert flat({"val_a": 1.0, "val_b": [2.0, [3.0]]}) == (
        ("val_a", 1.0),
        ("val_b_0", 2.0),
        ("val_b_1_0", 3.0),
    )
