"""The ledger: the pure function (seed, epoch, index) → task, the order in which all data is consumed.

It holds no list of tasks and no state: every member computes the same order for itself, so that nobody has to
ask the master for work. The order comes from a format-preserving permutation (a Feistel network with cycle
walking, Black and Rogaway, "Ciphers with Arbitrary Finite Domains", 2002), which costs the same for ten tasks
and for a billion. It is written out here instead of taken from a random number library, because the same seed
must give the same order for ever: a resumed job depends on it.
"""

from __future__ import annotations

import hashlib
import struct
from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from elasticdl.data.plan.shard import Shard, Task
from elasticdl.errors import BadData, BadSetting

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Int64s = npt.NDArray[np.int64]

ROUNDS = 8
"""Feistel rounds; 4 make a strong pseudorandom permutation (Luby and Rackoff, 1988), tiny sizes need more."""

MOST_RECORDS = 1 << 53
"""Of an epoch, and the last place in a source: far more than there are, and sums of them are still numbers of 64 bits."""

_TOGETHER = 4096
"""Records of a task whose order is found at once: for a few of them it costs nearly as much."""
_KEPT = 64
"""Tasks, and parts of tasks in their order, that are kept: a member goes through some at a time and asks for each of them many times."""

_MASK = 0xFFFF_FFFF_FFFF_FFFF
_MULTIPLIER_1 = 0xBF58_476D_1CE4_E5B9
_MULTIPLIER_2 = 0x94D0_49BB_1331_11EB


def _mix(value: Any) -> Any:
    """Scramble 64 bits, of an integer or of each of an array (uint64).

    It is the finaliser of SplitMix64 (Steele, Lea and Flood, 2014).
    """
    value = ((value ^ (value >> 30)) * _MULTIPLIER_1) & _MASK
    value = ((value ^ (value >> 27)) * _MULTIPLIER_2) & _MASK
    return value ^ (value >> 31)


class Permutation:
    """A keyed bijection of 0 … size - 1 in constant memory, cheap in both directions.

    The network works on the smallest power of two that holds `size` (at least 16: smaller networks are too
    regular); a value that falls outside is sent through again until it falls inside, less than twice on
    average, which keeps it a bijection.
    """

    __slots__ = ("_high", "_keys", "_low", "_size")

    def __init__(self, size: int, *key: int) -> None:
        bits = max(4, (size - 1).bit_length())
        self._size = size
        self._low = bits // 2
        self._high = bits - self._low
        digest = hashlib.blake2b("/".join(map(str, key)).encode(), person=b"elasticdl order")
        self._keys = struct.unpack(f"<{ROUNDS}Q", digest.digest())

    def __call__(self, index: int) -> int:
        """Return where `index` goes."""
        while True:
            index = self._forward(index)
            if index < self._size:
                return index

    def inverse(self, value: int) -> int:
        """Return what goes to `value`."""
        while True:
            value = self._through(value, range(ROUNDS - 1, -1, -1))
            if value < self._size:
                return value

    def many(self, indices: Int64s) -> Int64s:
        """Return where each of `indices` goes."""
        values = self._forward(indices.astype("uint64"))
        while (outside := values >= self._size).any():
            values[outside] = self._forward(values[outside])
        moved: Int64s = values.astype("int64")
        return moved

    def _forward(self, value: Any) -> Any:
        return self._through(value, range(ROUNDS))

    def _through(self, value: Any, rounds: range) -> Any:
        """Send an integer, or each of an array (uint64), through the network once; rounds in reverse order undo it."""
        # Even rounds change the low part by the high one, odd rounds the other way about: no round swaps
        # them, so they may differ by one bit. The sum with the key is cut to 64 bits because Python's
        # integers are longer.
        low_mask, high_mask = (1 << self._low) - 1, (1 << self._high) - 1
        low, high = value & low_mask, value >> self._low
        for round_ in rounds:
            key = self._keys[round_]
            if round_ % 2:
                high = high ^ (_mix((low + key) & _MASK) & high_mask)
            else:
                low = low ^ (_mix((high + key) & _MASK) & low_mask)
        return high << self._low | low


def check_shards(shards: Sequence[Shard]) -> None:
    """Raise BadData for numbers that no shard has, whatever is done with its records."""
    for shard in shards:
        if shard.count < 0 or shard.start < 0:
            raise BadData(
                f"shard {shard.name!r} has start {shard.start} and count {shard.count}; neither can be negative"
            )
        if not 1 <= shard.block <= MOST_RECORDS:
            raise BadData(
                f"shard {shard.name!r} has blocks of {shard.block:,} records; they can have 1 to {MOST_RECORDS:,}"
            )
        if shard.start > MOST_RECORDS:
            raise BadData(f"shard {shard.name!r} starts at {shard.start:,}, beyond {MOST_RECORDS:,}")
    if (records := sum(shard.count for shard in shards)) > MOST_RECORDS:
        raise BadData(f"the shards have {records:,} records, and can have {MOST_RECORDS:,}")


class Ledger:
    """All tasks of a job in the order of their consumption, without a list of them.

    Every shard is cut by itself in tasks of `records_per_task` records, the last one of a shard may be
    shorter. An epoch consumes all tasks in an order permuted by (seed, epoch); inside a task the records are
    permuted by (seed, epoch, task). Memory grows with the number of shards only.

    Attributes:
        shards: the sources, in the order given; empty ones are allowed.
        records_per_task: records of a full task.
        minibatch_size: records of a full chunk.
        num_records: records of one epoch.
        num_tasks: tasks of one epoch.
    """

    def __init__(
        self, shards: Sequence[Shard], records_per_task: int, minibatch_size: int, seed: int, shuffle: bool
    ) -> None:
        """Cut `shards` in tasks. Raises BadSetting for sizes below 1, BadData if there is no record."""
        if records_per_task < 1 or minibatch_size < 1:
            raise BadSetting(
                f"a task needs at least 1 record, and so does a minibatch; got {records_per_task} records "
                f"per task and minibatch_size {minibatch_size}"
            )
        check_shards(shards)
        self.shards = tuple(shards)
        self.records_per_task = records_per_task
        self.minibatch_size = minibatch_size
        self.num_records = sum(shard.count for shard in shards)
        self._seed = seed
        self._shuffle = shuffle
        tasks_of_shards = (-(-shard.count // records_per_task) for shard in shards)
        self._first_ids = list(accumulate(tasks_of_shards, initial=0))
        self.num_tasks = self._first_ids.pop()
        if self.num_tasks == 0:
            raise BadData(f"the training data has no records ({len(self.shards)} shards, all empty)")
        self._short_tasks = lru_cache(maxsize=2)(self._find_short_tasks)
        self._tasks = lru_cache(maxsize=_KEPT)(self._find_task)
        self._chunks_together = max(1, _TOGETHER // minibatch_size)
        self._shuffled = lru_cache(maxsize=_KEPT)(self._find_shuffled)

    def task(self, epoch: int, place: int) -> Task:
        """Return the task at `place` (0 … num_tasks - 1) of the epoch's order. Raises IndexError."""
        return self._tasks(epoch, place)

    def _find_task(self, epoch: int, place: int) -> Task:
        return self.task_by_id(epoch, self._order(epoch)(self._checked(place)) if self._shuffle else place)

    def task_by_id(self, epoch: int, id: int) -> Task:
        """Return the task with this index in the unshuffled order. Raises IndexError."""
        self._checked(id)
        # Empty shards share their first id with the next one; the rightmost of equals is the one that has
        # records.
        shard_index = bisect_right(self._first_ids, id) - 1
        shard = self.shards[shard_index]
        offset = (id - self._first_ids[shard_index]) * self.records_per_task
        end = min(offset + self.records_per_task, shard.count)
        return Task(id, epoch, shard, shard.start + offset, shard.start + end)

    def num_chunks(self, task: Task) -> int:
        """Return the number of chunks of `task`, at least 1."""
        return -(-task.count // self.minibatch_size)

    def chunk(self, task: Task, chunk: int) -> Int64s:
        """Return the records of chunk `chunk` (0, 1, …) of `task` as indices inside the source.

        Beyond the last chunk the answer is empty.
        """
        import numpy as np  # not at the top: the master never asks for a chunk, and need not wait for this import

        begin = min(chunk * self.minibatch_size, task.count)
        end = min(begin + self.minibatch_size, task.count)
        if not self._shuffle:
            return np.arange(task.start + begin, task.start + end, dtype=np.int64)
        part = chunk // self._chunks_together
        before = part * self._chunks_together * self.minibatch_size
        return self._shuffled(task, part)[begin - before : end - before]

    def _find_shuffled(self, task: Task, part: int) -> Int64s:
        """Return the records of some chunks of a task, one after the other."""
        import numpy as np

        size = self._chunks_together * self.minibatch_size
        offsets = np.arange(part * size, min((part + 1) * size, task.count), dtype=np.int64)
        records = Permutation(task.count, self._seed, task.epoch, task.id).many(offsets) + task.start
        records.flags.writeable = False  # it is kept
        return records

    def chunk_sizes(self, most: int) -> list[int]:
        """Return numbers of records that chunks have, each once and so many at most: those of full tasks first."""
        sizes: dict[int, None] = {}
        full = any(shard.count >= self.records_per_task for shard in self.shards)
        lengths = ([self.records_per_task] if full else []) + [
            shard.count % self.records_per_task for shard in self.shards
        ]
        for length in lengths:
            if length >= self.minibatch_size:
                sizes[self.minibatch_size] = None
            if rest := length % self.minibatch_size:
                sizes[rest] = None
            if len(sizes) >= most:
                break
        return list(sizes)[:most]

    def records_before(self, epoch: int, place: int) -> int:
        """Return the number of records in the tasks at the places 0 … place - 1 of the epoch's order."""
        places, missing = self._short_tasks(epoch)
        return place * self.records_per_task - missing[bisect_right(places, place - 1)]

    def short_places(self, epoch: int) -> Sequence[int]:
        """Return the places of the tasks of an epoch that are not full, ascending: one of each shard at most."""
        return self._short_tasks(epoch)[0]

    def _order(self, epoch: int) -> Permutation:
        return Permutation(self.num_tasks, self._seed, epoch)

    def _checked(self, index: int) -> int:
        if not 0 <= index < self.num_tasks:
            raise IndexError(f"there are {self.num_tasks} tasks; got {index}")
        return index

    def _find_short_tasks(self, epoch: int) -> tuple[list[int], list[int]]:
        """Return the sorted places of the tasks that are not full, and the running sum of what they lack."""
        order = self._order(epoch)
        short = []
        for first, shard in zip(self._first_ids, self.shards, strict=True):
            if rest := shard.count % self.records_per_task:
                id = first + shard.count // self.records_per_task
                short.append((order.inverse(id) if self._shuffle else id, self.records_per_task - rest))
        short.sort()
        return [place for place, _ in short], list(accumulate((lack for _, lack in short), initial=0))
