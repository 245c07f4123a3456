"""Shards, tasks and positions: the vocabulary of dynamic data sharding.

Plain values, no I/O: readers make shards, the ledger cuts them in tasks, and a position says how far a model
state has come.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class Shard:
    """Some records of a named source: of a file, a row group, a table partition.

    Several shards may be of one source if no record is in two of them: name and start tell them apart.

    Attributes:
        name: what the reader needs to find the source again, for example a path.
        start: index of its first record inside the source.
        count: number of records.
        block: most of its records that are decoded together, as those of a row group are; 1: each by itself.
        fingerprint: names the state that the source's content was in; empty if nobody knows. Shards of two states are equal: workers
            compare it with what they find.
    """

    name: str
    start: int
    count: int
    block: int = 1
    fingerprint: str = field(default="", compare=False)

    def __str__(self) -> str:
        if not self.count:
            return f"no records of {self.name!r}"
        return f"records {self.start:,} to {self.start + self.count - 1:,} of {self.name!r}"


def overlapping(shards: Iterable[Shard]) -> tuple[Shard, Shard] | None:
    """Return two shards that share a record, None if there are none."""
    filled = sorted((shard for shard in shards if shard.count), key=lambda one: (one.name, one.start))
    for first, second in pairwise(filled):
        if first.name == second.name and second.start < first.start + first.count:
            return first, second
    return None


@dataclass(frozen=True, slots=True)
class Task:
    """A contiguous range of records of one shard.

    Attributes:
        id: index of the task in the unshuffled order of the epoch, 0 … ledger.num_tasks - 1.
        epoch: 0, 1, …
        shard: where the records are.
        start: first record, as an index inside the source (shard.start is already added).
        end: one past the last record.
    """

    id: int
    epoch: int
    shard: Shard
    start: int
    end: int

    @property
    def count(self) -> int:
        """Return the number of records."""
        return self.end - self.start


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """How far a model state has come in the data; part of the state like the optimizer's step count.

    Attributes:
        epoch: epoch of the *next* step; equal to the job's number of epochs when the data has ended.
        first_task: place of the wave's first task in the epoch's shuffled order, 0 … num_tasks - 1.
        lanes: K, the number of tasks of the current wave (already cut at the epoch's end; at least 1, or 0 at
            the end of data).
        chunk: j, the chunk of each task that the next step consumes; 0 at the beginning of a wave.
    """

    epoch: int
    first_task: int
    lanes: int
    chunk: int
