"""The Protocol that a framework's adapter implements for evaluation, in both ways of training; the loop knows no framework.

Evaluation data is cut into tasks. A worker makes the *state* of a task's metrics of its chunks; the states of all tasks are combined in
the order of the tasks (`control/protocol/metricstates.py`), and one worker makes the metrics' values of that. Computed so, the values have
the same bits for any number of workers, with any of them lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from elasticdl.control.protocol.metricstates import MetricCatalog
from elasticdl.worker.contract.records import Records

MetricValue = float | list[Any]
"""A number, or numbers in the structure of a metric that has several; those of a diverged model are not finite."""


class Evaluator(Protocol):
    """Evaluates the model of one adapter as it is: no call changes a bit of what is trained.

    All calls come from the adapter's thread, except `convert`.
    """

    def prepare(self, sample: Records) -> None:
        """Build everything and try the metrics on `sample`, records of the evaluation data; called once, before anything else.

        Raises BadModel or BadData (expected and received) for what only running shows: a metric that raises or returns a wrong shape, one
        of an output that the model lacks, one whose states can't be combined, a state of more than `LARGEST_STATE`.
        """

    def catalog(self) -> MetricCatalog:
        """Return the metrics: the loss, then the user's. The same in all workers."""

    def convert(self, records: Records) -> Any:
        """Run the user's `feed` with the mode "evaluation" over one chunk; with parameter servers the result is a `PsBatch`.

        Called from the prefetching thread. Raises BadData.
        """

    def begin_task(self, task: int) -> None:
        """Begin the state of a task; that of the one before is given up. Randomness is of (job seed, task, chunk)."""

    def evaluate(self, batch: Any, rows: Sequence[npt.NDArray[np.float32]] = ()) -> int:
        """Add a chunk to the state of the task, with the model not in training mode; return its examples.

        The model is at its present state or, with parameter servers, at the variables taken and these rows of each table.
        """

    def task_state(self) -> list[npt.NDArray[Any]]:
        """Return a copy of the state of the task's chunks so far, as `catalog().task_arrays()` describes it."""

    def metric_values(self, combined: Sequence[npt.NDArray[Any]]) -> dict[str, MetricValue]:
        """Return the metrics' values by name; those of a metric that returns a dict are `val_NAME_KEY`.

        `combined`: the states of all tasks, as `combine` made one of them. Raises BadData if they are of no example.
        """
