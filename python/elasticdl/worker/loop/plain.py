"""`elasticdl.init()`: custom training loops of any framework, which give gradients as arrays and get the step's mean back.

job = elasticdl.init()
job.state["weights"] = weights
for chunk in job.chunks(len(data), batch_size=32, num_epochs=3, parameters=weights):
    mean = job.step(gradients_of(weights, data[chunk]))
    if mean is not None:
        weights -= 0.1 * mean
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import numpy as np

from elasticdl.data.plan.loopplan import BatchOrder, LoopPlan
from elasticdl.data.prefetch import ChunkKey
from elasticdl.errors import BadInput
from elasticdl.worker.contract.allreduce import ChunkResult
from elasticdl.worker.contract.loop import LoopBatch, Session
from elasticdl.worker.loop.kept import Kept
from elasticdl.worker.loop.result import writing
from elasticdl.worker.loop.starting import start
from elasticdl.worker.loop.sums import SumState
from elasticdl.worker.loop.values import Values
from elasticdl.worker.seeds import chunk_seeds

if TYPE_CHECKING:
    from elasticdl.data.plan.ledger import Int64s


def init(seed: int = 0) -> PlainJob:
    """Return the job of this process: the one that has started it, or one of this process alone. Call it once, before anything is computed.

    `seed`: of the order of the data, and of `chunk_seed`. Raises BadInput where another launcher has made a group of processes.
    """
    return PlainJob(start(), seed)


class PlainJob:
    """A job, as a loop sees it that has no framework's help.

    Attributes:
        state: what other workers get when they join, and checkpoints keep: set what the loop changes before its first batch.
        committed: the last `step` committed a step.
    """

    def __init__(self, session: Session, seed: int = 0) -> None:
        """`seed`: of the order of the data, and of `chunk_seed`."""
        self.state = Values()
        self.committed = False
        self._session, self._seed = session, seed
        self._sums: SumState | None = None
        self._write: Callable[[str], object] | None = None
        self._batch: LoopBatch | None = None

    def chunks(
        self,
        count: int,
        batch_size: int,
        num_epochs: int = 1,
        *,
        parameters: Any,
        shuffle: bool = True,
        global_batch_size: int = 0,
        max_step: int = 0,
    ) -> Iterator[Int64s]:
        """Yield the numbers of the records of each batch that this process computes, until training ends.

        Args:
            count: number of records.
            batch_size: records of a full batch.
            num_epochs: passes over them; 0: until `stop`.
            parameters: what gradients are of: a dictionary, a list or an array.
            shuffle: whether each epoch has an order of its own.
            global_batch_size: records of a step, a multiple of `batch_size`; 0: one batch of each worker.
            max_step: steps after which training ends; 0: no limit.

        Raises BadInput for data that can't be trained on, if the job's other workers have another plan, if a batch was not followed by
        `step`, or if the first steps change nothing in `state`.
        """
        if self._sums is not None:
            raise BadInput(
                "job.chunks is called once in a program; more passes over the data are num_epochs="
            )
        plan = LoopPlan(count, batch_size, num_epochs, shuffle, global_batch_size, max_step, self._seed)
        sums = self._sums = SumState(parameters, batch_size, self.state)
        sums.write = self._write
        self._session.begin(plan, sums, _Numbers(plan))
        kept = Kept(self.state)
        while (batch := self._session.next()) is not None:
            kept.begin(batch.step, moved=self.committed and sums.moved)
            self._batch, self.committed = batch, False
            yield np.arange(min(count, batch_size)) if batch.batch is None else batch.batch
            if self._batch is not None:
                raise BadInput("a batch was not followed by job.step; each one is, with its gradients")

    def step(self, gradients: Any, examples: float | None = None, loss: float | None = None) -> Any:
        """Give the mean gradients of the batch; return those of the whole step, None if it is not committed yet.

        Args:
            gradients: a tree of arrays like the parameters.
            examples: what the batch weighs; its records if it is left out.
            loss: mean loss of the batch, for people; without it none is shown.

        Raises BadInput for other shapes than the parameters have, a weight below 0, a loss that is no number, or without a batch.
        """
        batch, self._batch = self._batch, None
        if batch is None or self._sums is None:
            raise BadInput("job.step follows a batch of job.chunks, once")
        weight, mean_loss = batch.records if examples is None else examples, None
        if not (math.isfinite(weight) and weight >= 0):
            raise BadInput(f"job.step(examples={weight}): the weight of a batch is a number from 0 on")
        if loss is not None:
            mean_loss = _number(loss)
        if batch.batch is None:
            weight = 0.0
        else:
            self._sums.add(gradients, float(weight))
        self.committed = self._session.step(
            ChunkResult(float(weight), None if mean_loss is None else mean_loss * float(weight))
        )
        return self._sums.mean if self.committed else None

    @property
    def steps(self) -> int:
        """Return the committed steps."""
        return self._session.steps

    @property
    def epoch(self) -> int:
        """Return the epoch of the next batch."""
        return self._session.epoch

    @property
    def chunk_seed(self) -> int:
        """Return a seed for what the model draws in this batch: the same in whichever process computes it."""
        batch = self._batch
        if batch is None:
            raise BadInput("job.chunk_seed is that of a batch of job.chunks, before job.step")
        return int(chunk_seeds(self._seed, batch.step + 1, batch.lane, 1)[0, 0])

    @property
    def is_writer(self) -> bool:
        """Tell whether this process writes files and tells people: one does."""
        return self._session.is_writer

    def result(self, write: Callable[[str], object], path: str = "") -> None:
        """Let `write(path)` write the result when training has ended, as a file or a folder; one process does it.

        `path`: where it is put if the program runs alone; in a job that is `--output`.
        """
        self._write = writing(write)
        self._session.put_result_at(path)
        if self._sums is not None:
            self._sums.write = write

    def print(self, *values: object) -> None:
        """Tell people something, once in the job."""
        if self.is_writer:
            self._session.note(" ".join(map(str, values)))

    def stop(self, reason: str) -> None:
        """End training after the step under way; go on until the batches end."""
        self._session.stop(reason)

    def long_operation(self, seconds: float) -> AbstractContextManager[None]:
        """Let what is done meanwhile take so long, without this process being taken for one that hangs."""
        return self._session.long_operation(seconds)


def _number(loss: Any) -> float:
    """Return the mean loss of a batch, which may be an array of any framework with one element."""
    one = getattr(loss, "item", None) or getattr(
        loss, "asscalar", None
    )  # arrays of a single element, whatever their shape
    try:
        return float(loss if one is None else one())
    except (TypeError, ValueError):
        given = f"an array of shape {list(loss.shape)}" if hasattr(loss, "shape") else repr(loss)
        raise BadInput(
            f"job.step(loss=…): expected the mean loss of the batch, one number; got {given}"
        ) from None


class _Numbers:
    """Implements `elasticdl.worker.contract.loop.LoopSource`: batches of numbers of records."""

    def __init__(self, plan: LoopPlan) -> None:
        self._order = BatchOrder(plan)

    def want(self, keys: Sequence[ChunkKey]) -> None:
        """Do nothing: numbers take no time."""

    def get(self, key: ChunkKey) -> tuple[int, int, Int64s]:
        """Return a batch."""
        epoch, batch, _ = key
        records = self._order.records(epoch, batch)
        return len(records), 0, records

    def close(self) -> None:
        """Do nothing."""
