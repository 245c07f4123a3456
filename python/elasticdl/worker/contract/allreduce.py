"""The Protocol that a framework's adapter implements for synchronous workers; the loop knows no framework.

One adapter object lives in one worker process and holds the user's model, optimizer and accumulator. It decides nothing about
groups, and the ring never sees a framework's type: both meet in flat buffers. `docs/concepts/step.md` says what a step is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from elasticdl.catalog.tablereader import TableReader
from elasticdl.checkpoint.stateimage import StateImage
from elasticdl.control.protocol.messages import MetricValues
from elasticdl.worker.contract.evaluation import Evaluator
from elasticdl.worker.contract.records import Records


@dataclass(frozen=True, slots=True)
class ChunkResult:
    """What one chunk added to the accumulator.

    Attributes:
        examples: n, the number of examples that `feed` made of the records; the weight of the chunk.
        loss: sum over the examples of (loss + layers' own losses); None if a program has not said it.
    """

    examples: float
    loss: float | None


@dataclass(frozen=True, slots=True)
class StepLogs:
    """What callbacks get; equal in all members.

    Attributes:
        step: committed steps, this one included.
        epoch: the epoch that the step belongs to.
        loss: mean loss of the step, None if it had no example.
        epoch_ended: the step was the last of its epoch, and nothing is evaluated before that ends.
        epoch_loss: mean loss over the epoch's examples so far.
        at_gate: the state is evaluated before another step begins: `gate` follows.
    """

    step: int
    epoch: int
    loss: float | None
    epoch_ended: bool
    epoch_loss: float | None
    at_gate: bool = False


@dataclass(frozen=True, slots=True)
class GateLogs:
    """What callbacks get of an evaluation; equal in all members.

    Attributes:
        step: committed steps; their state was evaluated.
        epoch: the epoch that the last of them belongs to.
        values: metrics; None: the job stops, and this state is not evaluated.
        epoch_ended: that step was the last of its epoch.
        epoch_loss: mean loss over the epoch's examples so far.
    """

    step: int
    epoch: int
    values: MetricValues | None
    epoch_ended: bool
    epoch_loss: float | None

    @property
    def metrics(self) -> dict[str, float]:
        """Return the metrics by name, such as `val_loss`; none if this state is not evaluated."""
        return dict(self.values or ())


class Adapter(Protocol):
    """One framework's side of a synchronous worker. All calls come from one thread, except `convert`."""

    size: int
    """Elements of the flat accumulator: gradients of all trainables, then weighted changes of float non-trainables."""
    gradient_size: int
    """How many of them are gradients."""
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

    def compute(self, batch: Any, step: int, lane: int) -> ChunkResult:
        """Add a chunk's gradient sum and weighted state changes to the accumulator; the committed state is not touched.

        Every chunk starts from the committed value of each non-trainable variable, with seeds of (job seed, step, lane).
        """

    def accumulator(self) -> memoryview:
        """Return the accumulator's bytes, of `size` elements, valid until the next `compute` or `zero`."""

    def apply(self, result: npt.NDArray[Any], examples: float) -> None:
        """Commit: apply `result` / `examples` (no-op for 0 examples); the accumulator becomes empty."""

    def evaluator(self, metadata: Any) -> Evaluator:
        """Return what evaluates this model, with nothing built yet; called once at most, after `prepare`.

        `metadata`: what the reader of the evaluation data knows of its records, the third argument of `feed`.
        """

    def logs(self, logs: StepLogs) -> str | None:
        """Run callbacks after a commit; return a reason if they want the job to stop, the same in all members."""

    def gate(self, logs: GateLogs) -> str | None:
        """Run callbacks after an evaluation, and at the end of an epoch; return a reason if they want the job to stop."""

    def end_training(self, step: int) -> None:
        """Run what callbacks do at the end of training, after so many steps; called once at most. The committed state stays as it is."""

    def image(self) -> StateImage:
        """Copy the committed state."""

    def describe_image(self) -> tuple[Mapping[str, Any], int]:
        """Return the `meta` of the committed state's image, and how many bytes its body has."""

    def image_part(self, first: int, end: int) -> npt.NDArray[np.uint8]:
        """Copy the bytes of the committed state's image from `first` to `end`, in no more time than that takes."""

    def load(self, image: StateImage) -> None:
        """Replace the state. Raises TransferFailed if the image does not fit this model."""

    def digest(self) -> str:
        """Return a digest of the state's bits (hexadecimal)."""

    def export(self, path: str, kind: str, tables: TableReader | None = None) -> str:
        """Write the model, as callbacks left it at the end of training, for plain users of the framework; return the state's digest.

        `kind`: name of one of the framework's formats. There are no `tables` here. Without a path nothing is written. Raises OSError.
        """


@runtime_checkable
class DeviceSums(Protocol):
    """What an adapter may have besides: it takes the sums of steps to its device, and looks there whether they are finite.

    A group of one has its accumulator for a sum, which need not leave the device then. `take` and `commit` stand for `apply`.
    """

    result: npt.NDArray[Any]
    """`size` elements of `dtype`, into which the ring writes; known after `prepare`."""

    def take(self, *, alone: bool) -> bool:
        """Take the sum that is in `result`, or, of a member that is alone, the accumulator; return whether all of it is finite.

        The accumulator stays as it is. The step may be given up after this.
        """

    def commit(self, examples: float) -> None:
        """Commit the sum that was taken / `examples` (no-op for 0 examples); the accumulator becomes empty."""


@runtime_checkable
class Traced(Protocol):
    """What an adapter may have besides: it makes code for each number of records, for the usual ones before the first step."""

    def prepare_sizes(self, sizes: Sequence[int]) -> None:
        """Make code for chunks of so many records, without any lasting effect; called once, after `prepare`. Raises BadModel or BadData."""


@runtime_checkable
class Compared(Protocol):
    """What an adapter may have besides: its members may come to have other states, as their programs do what they like after a step."""

    def fingerprint(self, step: int) -> int:
        """Return a hash, below 2²⁰, of what has to be equal in all members before this step: all now and then, what is small always."""
