"""What a custom training loop says of its data: how many records there are, and how they are dealt out in batches.

A loop reads its records by their numbers, so its data has one shard, and a task is one batch. A program says this when it runs; the job
keeps what the first worker said, and refuses one that differs.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import lru_cache
from typing import TYPE_CHECKING

from elasticdl.data.plan.ledger import Ledger, Permutation
from elasticdl.data.plan.schedule import Schedule, policy_lanes
from elasticdl.data.plan.shard import Shard

if TYPE_CHECKING:
    from elasticdl.data.plan.ledger import Int64s

SHARD = "records"
"""Name of the only shard."""
_TOGETHER = 4096
"""Records whose order is found at once."""
_KEPT = 4
"""Parts of the order that are kept; workers read it through."""


@dataclass(frozen=True, slots=True)
class LoopPlan:
    """The data of a custom training loop, and its order.

    Attributes:
        records: number of records; they are 0 … records - 1.
        batch_size: records of a full batch.
        num_epochs: passes over them; 0: until the program stops.
        shuffle: whether each epoch has an order of its own, of (seed, epoch).
        global_batch_size: records of a step, a multiple of `batch_size`; 0: one batch of each worker.
        max_step: steps after which training ends; 0: no limit.
        seed: of the order, and of what the model draws.
    """

    records: int
    batch_size: int
    num_epochs: int
    shuffle: bool
    global_batch_size: int = 0
    max_step: int = 0
    seed: int = 0

    def shards(self) -> tuple[Shard, ...]:
        """Return the data as shards."""
        return (Shard(SHARD, 0, self.records),)

    def schedule(self) -> Schedule:
        """Return the order of steps. Raises BadInput for data that can't be trained on."""
        ledger = Ledger(self.shards(), self.batch_size, self.batch_size, self.seed, shuffle=False)
        return Schedule(ledger, self.num_epochs, self.max_step)

    def lanes(self, members: int) -> int:
        """Return the batches of a full step of so many members. Raises BadSetting."""
        return policy_lanes(self.global_batch_size or None, self.batch_size, members)

    def records_of(self, epoch: int, places: Int64s) -> Int64s:
        """Return the numbers of the records at these places of an epoch's order."""
        return Permutation(self.records, self.seed, epoch).many(places) if self.shuffle else places

    def differences(self, other: LoopPlan, batch: str = "batch size") -> str:
        """Return what is different there, in words, with both values; empty if nothing is. `batch`: the word for records of a batch."""
        words = {field.name: field.name.replace("_", " ") for field in fields(self)} | {"batch_size": batch}
        return ", ".join(
            f"{word} ({getattr(self, name)} and {getattr(other, name)})"
            for name, word in words.items()
            if getattr(self, name) != getattr(other, name)
        )


class BatchOrder:
    """Which records each batch of a plan has; the order of many batches is found at once, since for a few it costs nearly as much."""

    def __init__(self, plan: LoopPlan) -> None:
        self._plan = plan
        self._together = max(1, _TOGETHER // plan.batch_size)
        self._blocks = lru_cache(maxsize=_KEPT)(self._find)

    def size(self, batch: int) -> int:
        """Return how many records a batch has, from the number that its task has."""
        return min(self._plan.batch_size, self._plan.records - batch * self._plan.batch_size)

    def records(self, epoch: int, batch: int) -> Int64s:
        """Return the numbers of the records of a batch of an epoch."""
        block, place = divmod(batch, self._together)
        first = place * self._plan.batch_size
        return self._blocks(epoch, block)[first : first + self._plan.batch_size]

    def _find(self, epoch: int, block: int) -> Int64s:
        import numpy as np

        size = self._together * self._plan.batch_size
        first = block * size
        places = np.arange(first, min(first + size, self._plan.records), dtype=np.int64)
        found = self._plan.records_of(epoch, places)
        found.flags.writeable = False  # it is kept
        return found
