"""Data in the order in which it is read once, without a shuffle: what is evaluated, and what is predicted.

A pure function of data and settings, never of workers: who does which task changes nothing. All minibatches of all shards are numbered, in
the order of the data; a task is some of them in a row.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from elasticdl.data.plan.ledger import check_shards
from elasticdl.data.plan.shard import Shard, Task
from elasticdl.errors import BadData, BadSetting

if TYPE_CHECKING:
    from elasticdl.data.plan.ledger import Int64s


class OnePass:
    """The tasks of one pass over the data.

    Attributes:
        shards: the data.
        minibatch_size: records of a full minibatch; the last one of a shard may be shorter.
        num_records: of all shards.
        num_tasks: of the pass.
    """

    def __init__(
        self,
        shards: Sequence[Shard],
        minibatch_size: int,
        per_task: int,
        most_tasks: int = 0,
        least_tasks: int = 1,
    ) -> None:
        """Number the minibatches.

        Args:
            shards: the data.
            minibatch_size: records of a minibatch.
            per_task: minibatches of a task.
            most_tasks: tasks have more minibatches where there would be more than so many; 0: there may be any number.
            least_tasks: they have fewer where there would be less than so many.

        Raises BadSetting for a minibatch of nothing, BadData if there is no record, or for numbers that no shard has.
        """
        if minibatch_size < 1:
            raise BadSetting(f"a minibatch needs at least 1 record; got {minibatch_size}")
        check_shards(shards)
        self.shards = tuple(shards)
        self.minibatch_size = minibatch_size
        self.num_records = sum(shard.count for shard in shards)
        if not self.num_records:
            raise BadData(f"there are no records ({len(self.shards)} shards, all empty)")
        minibatches = (-(-shard.count // minibatch_size) for shard in shards)
        self._first = list(accumulate(minibatches, initial=0))
        self._minibatches = self._first.pop()
        least = -(-self._minibatches // most_tasks) if most_tasks else 1
        self._per_task = max(min(per_task, self._minibatches // least_tasks), least)
        self.num_tasks = -(-self._minibatches // self._per_task)

    def num_chunks(self, task: int) -> int:
        """Return the number of minibatches of a task (0 … num_tasks - 1), at least 1. Raises IndexError."""
        if not 0 <= task < self.num_tasks:
            raise IndexError(f"there are {self.num_tasks} tasks; got {task}")
        return min(self._per_task, self._minibatches - task * self._per_task)

    def number(self, task: int, chunk: int) -> int:
        """Return the number among all minibatches of one of a task (0 … num_chunks(task) - 1). Raises IndexError."""
        if not 0 <= chunk < self.num_chunks(task):
            raise IndexError(f"task {task} has {self.num_chunks(task)} minibatches; got {chunk}")
        return task * self._per_task + chunk

    def keys(self, task: int, chunk: int, following: int | None, most: int) -> list[tuple[int, int, int]]:
        """Return what a minibatch and those after it are called where they are read ahead, `most` in all.

        `following`: the task that is done after this one, None if that is not known. Raises IndexError.
        """
        places = [(task, number) for number in range(chunk, self.num_chunks(task))]
        if following is not None:
            places += [(following, number) for number in range(self.num_chunks(following))]
        return [(0, self.number(*place), 0) for place in places[:most]]

    def num_task_records(self, task: int) -> int:
        """Return the records of a task. Raises IndexError."""
        ranges = (self.task_by_id(0, self.number(task, chunk)) for chunk in range(self.num_chunks(task)))
        return sum(one.end - one.start for one in ranges)

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
