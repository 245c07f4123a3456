"""The evaluation work of a worker: minibatches of the validation data are read ahead and added up, and metrics are made of the sums.

It decides nothing: which minibatch comes next is the machine's affair, and what is added up is the framework's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from elasticdl.control.protocol.messages import MetricValues
from elasticdl.control.protocol.metricstates import pack, unpack
from elasticdl.control.protocol.view import StateId
from elasticdl.data.plan.evaluation import MOST_BYTES, EvaluationPlan
from elasticdl.data.prefetch import ChunkSource
from elasticdl.data.readers.reader import Reader
from elasticdl.errors import BadModel
from elasticdl.worker.contract.evaluation import Evaluator, MetricValue
from elasticdl.worker.events import ChunkEvaluated, ComputeMetrics, Evaluate, MetricsComputed
from elasticdl.worker.settings import AHEAD
from elasticdl.worker.usercode import naming

Rows = Sequence[npt.NDArray[np.float32]]


def prepared(evaluator: Evaluator, reader: Reader, plan: EvaluationPlan) -> Evaluating:
    """Try the metrics on the first minibatch; return what evaluates. Raises BadModel or BadData for what only running shows."""
    first = plan.task_by_id(0, 0)
    with naming(first):
        evaluator.prepare(reader.read(first, plan.chunk(first, 0).tolist()))
    size = evaluator.catalog().nbytes
    if size * plan.num_tasks > MOST_BYTES:
        raise BadModel(
            f"the metrics keep {size:,} bytes for each of {plan.num_tasks:,} parts of the validation data, and may keep "
            f"{MOST_BYTES >> 20} MiB for all; use fewer thresholds or classes, or a larger minibatch_size"
        )
    return Evaluating(evaluator, ChunkSource(reader, plan, evaluator.convert, AHEAD), plan)


class Evaluating:
    """Evaluates the model of one worker."""

    def __init__(self, evaluator: Evaluator, chunks: ChunkSource, plan: EvaluationPlan) -> None:
        """`evaluator` is prepared; `chunks` are those of the plan."""
        self._evaluator = evaluator
        self._catalog = evaluator.catalog()
        self._chunks = chunks
        self._plan = plan

    @property
    def metrics(self) -> str:
        """Return what the result of a task consists of, as text."""
        return self._catalog.text()

    def evaluate(self, work: Evaluate) -> ChunkEvaluated:
        """Add a minibatch to the sums of its task, which the first one begins."""
        return self.add(work.state, work.task, work.chunk, self.fetch(work.task, work.chunk, work.following))

    def fetch(self, task: int, chunk: int, following: int | None) -> Any:
        """Return a minibatch as the evaluator converts it, and expect those that follow in its task, and in the following one.

        None if every record of it was bad, and may be.
        """
        self._chunks.want(keys := self._plan.keys(task, chunk, following, AHEAD))
        _, _, batch = self._chunks.get(keys[0])
        return batch

    def add(self, state: StateId, task: int, chunk: int, batch: Any, rows: Rows = ()) -> ChunkEvaluated:
        """Add what was fetched to the sums of its task; with parameter servers `rows` are those that it looks up."""
        if chunk == 0:
            self._evaluator.begin_task(task)
        if batch is not None:
            self._evaluator.evaluate(batch, rows)
        is_last = chunk + 1 == self._plan.num_chunks(task)
        return ChunkEvaluated(state, task, chunk, pack(self._evaluator.task_state()) if is_last else None)

    def compute(self, work: ComputeMetrics) -> MetricsComputed:
        """Make metrics of what all tasks have added up."""
        combined = unpack(self._catalog.combined_arrays(self._plan.num_tasks), work.body)
        found = self._evaluator.metric_values(combined)
        return MetricsComputed(work.state, tuple(flat(found)))

    def close(self) -> None:
        """Read no more."""
        self._chunks.close()


def flat(values: dict[str, MetricValue]) -> MetricValues:
    """Return metrics as names and numbers; those of several numbers are `NAME_0`, `NAME_1`, …"""
    found: list[tuple[str, float]] = []
    for name, value in values.items():
        if isinstance(value, list):
            found += flat({f"{name}_{place}": one for place, one in enumerate(value)})
        else:
            found.append((name, float(value)))
    return tuple(found)
