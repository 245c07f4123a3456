"""The Protocol that framework adapters implement; the loops know no framework.

One adapter object lives in one worker process and holds the user's model, optimizer and accumulator. It decides nothing about
groups, and the ring never sees a framework's type: both meet in flat buffers. See "The mathematics of a step" in
`docs/concepts/`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from elasticdl._core import Batch
from elasticdl.ps.catalog import Catalog
from elasticdl.ps.learnt import Learnt

Records = Sequence[Any]
"""Raw records of one chunk as a reader gives them: bytes each, or lists of strings (CSV)."""


@dataclass(frozen=True, slots=True)
class ChunkResult:
    """What one chunk added to the accumulator.

    Attributes:
        examples: n, the number of examples that `feed` made of the records; the weight of the chunk.
        loss: sum over the examples of (loss + layers' own losses).
    """

    examples: float
    loss: float


@dataclass(frozen=True, slots=True)
class StepLogs:
    """What callbacks get; equal in all members.

    Attributes:
        step: committed steps, this one included.
        epoch: the epoch that the step belongs to.
        loss: mean loss of the step, None if it had no example.
        epoch_ended: the step was the last of its epoch.
        epoch_loss: mean loss over the epoch's examples so far.
    """

    step: int
    epoch: int
    loss: float | None
    epoch_ended: bool
    epoch_loss: float | None


@dataclass(frozen=True, slots=True)
class StateImage:
    """A state of the model as one flat run of bytes plus its description, for heals, snapshots and digests.

    `meta` is JSON-able: shapes, dtypes, names, the callbacks' state. `body` is every array's bytes one after the other.
    """

    meta: Mapping[str, Any]
    body: npt.NDArray[np.uint8] = field(repr=False)


class Adapter(Protocol):
    """One framework's side of a synchronous worker. All calls come from one thread, except `convert`."""

    size: int
    """Elements of the flat accumulator: gradients of all trainables, then weighted changes of float non-trainables."""
    dtype: npt.DTypeLike
    """float32, or float64 if the model has a variable of that type."""

    writes: bool
    """Whether this member writes what callbacks write to files; exactly one member of a view does."""

    def prepare(self, sample: Records) -> None:
        """Build everything and run the compiled step once on `sample`, without any lasting effect.

        Raises BadModel or BadData (expected and received) for what only running shows.
        """

    def convert(self, records: Records) -> Any:
        """Run the user's `feed` over one chunk; called from the prefetching thread. Raises BadData."""

    def zero(self) -> None:
        """Empty the accumulator."""

    def compute(self, batch: Any, step: int, slot: int) -> ChunkResult:
        """Add a chunk's gradient sum and weighted state changes to the accumulator; the committed state is not touched.

        Every chunk starts from the committed value of each non-trainable variable, with seeds of (job seed, step, slot).
        """

    def accumulator(self) -> memoryview:
        """Return the accumulator's bytes, of `size` elements, valid until the next `compute` or `zero`."""

    def apply(self, result: npt.NDArray[Any], examples: float) -> None:
        """Commit: apply `result` / `examples` (no-op for 0 examples); the accumulator becomes empty."""

    def finite(self, result: npt.NDArray[Any]) -> bool:
        """Tell whether a reduced result has no NaN and no infinity."""

    def logs(self, logs: StepLogs) -> str | None:
        """Run callbacks after a commit; return a reason if they want the job to stop, the same in all members."""

    def end_training(self) -> None:
        """Run what callbacks do at the end of training; called once at most. The committed state stays as it is."""

    def image(self) -> StateImage:
        """Copy the committed state."""

    def load(self, image: StateImage) -> None:
        """Replace the state. Raises TransferFailed if the image does not fit this model."""

    def digest(self) -> str:
        """Return a digest of the state's bits (hexadecimal)."""

    def export(self, path: str, kind: str) -> None:
        """Write the model, as callbacks left it at the end of training, for plain users of the framework.

        `kind`: `keras` (one file) or `saved_model` (a directory).
        """


@dataclass(frozen=True, slots=True)
class ServedBatch:
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


class ServedAdapter(Protocol):
    """One framework's side of a worker with parameter servers. All calls come from one thread, except `convert`."""

    catalog: Catalog
    """What the model has on the servers; known once `prepare` has returned, the same in all workers."""

    @property
    def acts_at_end(self) -> bool:
        """Tell whether a callback does anything at the end of training; known once `prepare` has returned."""

    def prepare(self, sample: Records) -> None:
        """Build everything and run the compiled step once on `sample`, without any lasting effect.

        Raises BadModel or BadData (expected and received) for what only running shows.
        """

    def adopt(self, catalog: Catalog) -> None:
        """Take slots and seed from the catalog of the checkpoint that the job goes on from; called once, before anything is converted.

        Raises BadModel, naming the first difference, if that is of another model.
        """

    def convert(self, records: Records) -> ServedBatch:
        """Run the user's `feed` over one chunk and look up its ids; called from the prefetching thread. Raises BadData."""

    def first_values(self) -> Sequence[npt.NDArray[np.float32]]:
        """Return the first value of each variable of the catalog, flat."""

    def take(self, variable: int, value: npt.NDArray[np.float32]) -> None:
        """Replace a variable's value by that of the servers."""

    def compute(
        self, batch: ServedBatch, rows: Sequence[npt.NDArray[np.float32]], task: int, chunk: int
    ) -> Gradients:
        """Return a chunk's gradients at the variables taken and these rows; seeds are of (job seed, task, chunk)."""

    def rate(self, step: int) -> float:
        """Return the learning rate at a step of the schedule."""

    def end_training(self, steps: int, writes: bool) -> None:
        """Run what callbacks do at the end of training, at the variables taken; called once at most.

        `steps`: of the job. `writes`: whether this worker writes what callbacks write to files; the one that writes the result does.
        """

    def export(self, path: str, kind: str, learnt: Learnt) -> str:
        """Write the model for plain users of the framework, or tables and variables as `parquet`; return a digest of its weights.

        Without a path nothing is written, and the digest is of the dense variables only: tables may be larger than memory.
        """
