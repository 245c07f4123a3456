"""The validation data in the order of its evaluation, and the states of the model that are evaluated.

A pure function of data and settings, never of workers: who evaluates which task changes nothing. All minibatches of all shards are
numbered, in the order of the data and without a shuffle; a task is some of them in a row.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from elasticdl.data.plan.shard import Shard, Task
from elasticdl.errors import BadData, BadSetting

if TYPE_CHECKING:
    from elasticdl.data.plan.ledger import Int64s

MOST_TASKS = 1024
"""Of one evaluation: enough for as many workers, and what a master keeps is bounded."""


MOST_BYTES = 64 << 20
"""Of what all tasks of an evaluation add up: a master keeps it until the evaluation is over."""


class EvaluationPlan:
    """Tasks of one evaluation, and when there is one.

    Attributes:
        shards: of the validation data.
        minibatch_size: records of a full minibatch; the last one of a shard may be shorter.
        num_records: of all shards.
        num_tasks: of one evaluation.
        every: steps between two evaluations; 0: none within an epoch.
        at_epoch_end: an evaluation follows the last step of each epoch.
    """

    def __init__(
        self,
        shards: Sequence[Shard],
        minibatch_size: int,
        every: int,
        at_epoch_end: bool,
        most_tasks: int = MOST_TASKS,
    ) -> None:
        """Number the minibatches. Raises BadSetting for a minibatch of nothing, BadData if there is no record."""
        if minibatch_size < 1:
            raise BadSetting(f"a minibatch needs at least 1 record; got {minibatch_size}")
        self.shards = tuple(shards)
        self.minibatch_size = minibatch_size
        self.num_records = sum(shard.count for shard in shards)
        if not self.num_records:
            raise BadData(f"the validation data has no records ({len(self.shards)} shards, all empty)")
        self.every = every
        self.at_epoch_end = at_epoch_end
        minibatches = (-(-shard.count // minibatch_size) for shard in shards)
        self._first = list(accumulate(minibatches, initial=0))
        self._minibatches = self._first.pop()
        self._per_task = -(-self._minibatches // most_tasks)
        self.num_tasks = -(-self._minibatches // self._per_task)

    def num_chunks(self, task: int) -> int:
        """Return the number of minibatches of a task (0 … num_tasks - 1), at least 1. Raises IndexError."""
        if not 0 <= task < self.num_tasks:
            raise IndexError(f"an evaluation has {self.num_tasks} tasks; got {task}")
        return min(self._per_task, self._minibatches - task * self._per_task)

    def number(self, task: int, chunk: int) -> int:
        """Return the number among all minibatches of one of a task (0 … num_chunks(task) - 1). Raises IndexError."""
        if not 0 <= chunk < self.num_chunks(task):
            raise IndexError(f"task {task} has {self.num_chunks(task)} minibatches; got {chunk}")
        return task * self._per_task + chunk

    def task_by_id(self, epoch: int, id: int) -> Task:
        """Return the minibatch of a number as a range of one shard, for reading; there is one epoch. Raises IndexError."""
        if epoch or not 0 <= id < self._minibatches:
            raise IndexError(f"there are {self._minibatches} minibatches of one epoch; got {id} of {epoch}")
        # Empty shards share their first minibatch with the next one; the rightmost of equals is the one that has records.
        place = bisect_right(self._first, id) - 1
        shard = self.shards[place]
        start = (id - self._first[place]) * self.minibatch_size
        end = min(start + self.minibatch_size, shard.count)
        return Task(id, 0, shard, shard.start + start, shard.start + end)

    def chunk(self, task: Task, chunk: int) -> Int64s:
        """Return the records of a minibatch as indices inside the source; it has one chunk, number 0."""
        import numpy as np  # not at the top: the master never asks for it, and need not wait for this import

        return np.arange(task.start, task.end if chunk == 0 else task.start, dtype=np.int64)
