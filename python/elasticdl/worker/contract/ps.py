"""The Protocol that a framework's adapter implements for workers with parameter servers; the loop knows no framework.

One adapter object lives in one worker process. Weights live on the servers: the adapter is given the rows that a chunk looks up and the
dense variables, and returns gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from elasticdl._core import Batch
from elasticdl.catalog.catalog import Catalog
from elasticdl.catalog.tablereader import TableReader
from elasticdl.worker.contract.allreduce import GateLogs
from elasticdl.worker.contract.evaluation import Evaluator
from elasticdl.worker.contract.records import Records


@dataclass(frozen=True, slots=True)
class PsBatch:
    """A chunk as a model with parameter servers takes it.

    Attributes:
        examples: n; 0 if `feed` dropped every record.
        batches: the distinct ids of each table, as the core has them.
        data: what the adapter wants to have again.
    """

    examples: int
    batches: Sequence[Batch]
    data: Any = field(repr=False)


@dataclass(frozen=True, slots=True)
class Gradients:
    """What a chunk is worth.

    Attributes:
        loss: mean over the chunk's examples, layers' own losses included.
        dense: of each variable of the catalog the gradient of that mean, or what is to be added.
        rows: of each table the gradients of the distinct ids' rows, one after the other.
    """

    loss: float
    dense: Sequence[npt.NDArray[np.float32]]
    rows: Sequence[npt.NDArray[np.float32]]


class PsAdapter(Protocol):
    """One framework's side of a worker with parameter servers. All calls come from one thread, except `convert`."""

    catalog: Catalog
    """What the model has on the servers; known once `prepare` has returned, the same in all workers."""

    @property
    def acts_at_end(self) -> bool:
        """Tell whether a callback does anything at the end of training; known once `prepare` has returned."""

    @property
    def follows_epochs(self) -> bool:
        """Tell whether a callback follows epochs or evaluations; known once `prepare` has returned, the same in all workers."""

    def prepare(self, sample: Records) -> None:
        """Build everything and run the compiled step once on `sample`, without any lasting effect.

        Raises BadModel or BadData (expected and received) for what only running shows.
        """

    def adopt(self, catalog: Catalog) -> None:
        """Take slots and seed from the catalog of the checkpoint that the job continues from; called once, before anything is converted.

        Raises BadModel, naming the first difference, if that is of another model.
        """

    def convert(self, records: Records) -> PsBatch:
        """Run the user's `feed` over one chunk and look up its ids; called from the prefetching thread. Raises BadData."""

    def first_values(self) -> Sequence[npt.NDArray[np.float32]]:
        """Return the first value of each variable of the catalog, flat."""

    def take(self, variable: int, value: npt.NDArray[np.float32]) -> None:
        """Replace a variable's value by that of the servers."""

    def compute(
        self, batch: PsBatch, rows: Sequence[npt.NDArray[np.float32]], task: int, chunk: int
    ) -> Gradients:
        """Return a chunk's gradients at the variables taken and these rows; seeds are of (job seed, task, chunk)."""

    def evaluator(self, metadata: Any) -> Evaluator:
        """Return what evaluates this model, with nothing built yet; called once at most, after `prepare`.

        `metadata`: what the reader of the evaluation data knows of its records, the third argument of `feed`.
        """

    def begin_callbacks(self) -> None:
        """Make the callbacks anew, as they are before the first barrier, with the learning rate that the optimizer had then."""

    def pass_barrier(self, logs: GateLogs) -> str | None:
        """Run callbacks at a barrier, where an epoch may end; return a reason if they want the job to stop, the same in all workers."""

    def rate(self, step: int) -> float:
        """Return the learning rate at a step of the schedule, as callbacks have left it at the last barrier."""

    def end_training(self, steps: int, writes: bool) -> None:
        """Run what callbacks do at the end of training, at the variables taken; called once at most.

        `steps`: of the job. `writes`: whether this worker writes what callbacks write to files; the one that writes the result does.
        """

    def export(self, path: str, kind: str, tables: TableReader | None = None) -> str:
        """Write the model for plain users of the framework, or tables and variables as `parquet`; return a digest of its weights.

        `tables`: what the servers have, always given. Without a path nothing is written, and the digest is of the dense variables only:
        tables may be larger than memory. Raises OSError.
        """
