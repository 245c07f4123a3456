"""What a custom training loop and the rest of a worker have to say to each other.

The program's own thread drives. Each pass of its body begins with `Session.next`, which carries out all that is not the loop's (views,
transfers, checkpoints) until there is a batch, and ends with `Session.step`, which gives the batch's gradients and returns when they are
committed, or when another batch has to be computed before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from elasticdl.checkpoint.stateimage import StateImage
from elasticdl.data.plan.loopplan import LoopPlan
from elasticdl.data.prefetch import ChunkKey
from elasticdl.worker.contract.allreduce import ChunkResult


@dataclass(frozen=True, slots=True)
class LoopBatch:
    """What one pass of a loop's body computes.

    Attributes:
        epoch: that it belongs to.
        step: committed steps before it.
        lane: its place in the step: with `step` it seeds what the model draws.
        records: how many; 0 for a placeholder.
        batch: what the source made of its records; None for a placeholder: the worker has no batch in this step, but runs the body as all
            do, on any batch, and what it gives is dropped.
    """

    epoch: int
    step: int
    lane: int
    records: int
    batch: Any


class LoopState(Protocol):
    """What a loop trains: accumulator and state of a step, as in `Adapter` of the contract of model files. One thread calls all of it."""

    size: int
    """Elements of the flat accumulator."""
    gradient_size: int
    """How many of them, the first ones, are gradients."""
    dtype: npt.DTypeLike
    """float32 or float64."""

    def zero(self) -> None:
        """Empty the accumulator."""

    def accumulator(self) -> memoryview:
        """Return the accumulator's bytes, of `size` elements, valid until the next batch or `zero`."""

    def apply(self, result: npt.NDArray[Any], examples: float) -> None:
        """Commit: apply `result` / `examples` (no-op for 0 examples); the accumulator becomes empty."""

    def image(self) -> StateImage:
        """Copy the committed state."""

    def describe_image(self) -> tuple[Mapping[str, Any], int]:
        """Return the `meta` of the committed state's image, and how many bytes its body has."""

    def image_part(self, first: int, end: int) -> npt.NDArray[np.uint8]:
        """Copy the bytes of the committed state's image from `first` to `end`."""

    def load(self, image: StateImage) -> None:
        """Replace the state. Raises TransferFailed, with nothing replaced, if the image does not fit."""

    def digest(self) -> str:
        """Return a digest of the state's bits (hexadecimal)."""

    def fingerprint(self, step: int) -> int:
        """Return a hash, below 2²⁰, of what has to be equal in all processes before this step: all now and then, what is small always."""

    @property
    def has_result(self) -> bool:
        """Tell whether the program has said how its result is written."""

    def export(self, path: str) -> str:
        """Let the program write its result; return the state's digest. Without a path nothing is written.

        Raises BadModel if the program has not said how, or if nothing is at the path then.
        """


class LoopSource(Protocol):
    """Where the batches of a loop come from: `elasticdl.data.prefetch.ChunkSource` has the same methods."""

    def want(self, keys: Sequence[ChunkKey]) -> None:
        """Expect these batches, in this order, and no others; what is made of them already is kept."""

    def get(self, key: ChunkKey) -> tuple[int, int, Any]:
        """Wait for a batch, expected or not; return the number of its records, how many of them were bad, and the batch."""

    def close(self) -> None:
        """Stop reading; a `get` that waits ends with Cancelled."""


class Session(Protocol):
    """A job, as a loop sees it: of several processes, or of this one alone, which then has no other thread and no connection."""

    def begin(self, plan: LoopPlan, state: LoopState, source: LoopSource) -> None:
        """Say what is trained, on what; called once, before the first `next`. Raises BadInput if the job has another plan."""

    def next(self) -> LoopBatch | None:
        """Return the next batch; None at the end of training.

        What the program did since `step` belongs to the committed step; no other worker gets the state before this call.
        """

    def step(self, result: ChunkResult) -> bool:
        """Give what was computed of the batch, which `LoopState` has in its accumulator; return whether a step was committed."""

    @property
    def steps(self) -> int:
        """Return the committed steps."""

    @property
    def epoch(self) -> int:
        """Return the epoch of the next batch; the number of epochs at the end."""

    @property
    def is_writer(self) -> bool:
        """Tell whether this process writes files and tells people: one does."""

    def stop(self, reason: str) -> None:
        """Ask for the end of training after the step under way; all processes come to the same end."""

    def put_result_at(self, path: str) -> None:
        """Take where the result is wanted, if the program runs alone; in a job its setting says that."""

    def note(self, text: str) -> None:
        """Tell people, in the job's log."""

    def long_operation(self, seconds: float) -> AbstractContextManager[None]:
        """Let what the program does meanwhile take so long, without being taken for a process that hangs."""

    def finish(self) -> int | None:
        """Carry out what follows the last step, when the program ends; return the exit code if it has to end at once.

        Raises BadModel, or tells the job, if training has not come to its end.
        """

    def fail(self, error: BaseException) -> int | None:
        """Take what the program has raised; return the exit code if it has to end at once."""
