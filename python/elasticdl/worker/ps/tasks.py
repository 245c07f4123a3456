"""The tasks that are leased to a worker, and how far each has come. Pure.

It knows nothing of servers, and not what settles a chunk. Rule numbers are those of the page on the protocol of parameter servers.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from elasticdl.control.protocol.psmessages import Holding
from elasticdl.data.plan.tasks import TaskOrder
from elasticdl.data.prefetch import ChunkKey
from elasticdl.worker.ps.pacing import Pacing


@dataclass(frozen=True, slots=True)
class Chunk:
    """A chunk that is leased to this worker.

    Attributes:
        task: number of the task.
        chunk: its place in the task.
        last: whether it is the task's last.
        roll_back: the roll-back that the attempt belongs to.
    """

    task: int
    chunk: int
    last: bool
    roll_back: int


@dataclass(slots=True)
class _Lease:
    """A task of this worker.

    Attributes:
        chunk: the first chunk that is not settled.
        roll_back: the roll-back that it was leased in.
        begun: the first chunk whose rows have not been asked for.
    """

    chunk: int
    roll_back: int
    begun: int


class LeasedTasks:
    """What this worker has of the job.

    Attributes:
        roll_back: the newest roll-back that is known.
        low: the watermark in it (R10).
        done: tasks that this worker has finished and the watermark has not passed, with the roll-back of each.
    """

    def __init__(self, order: TaskOrder, pacing: Pacing) -> None:
        self._order = order
        self._pacing = pacing
        self._leases: dict[int, _Lease] = {}
        self.done: dict[int, int] = {}
        self.low = self.roll_back = 0

    def holds(self) -> tuple[Holding, ...]:
        """Return the tasks that this worker has, and how far each is settled."""
        return tuple(Holding(task, lease.chunk) for task, lease in self._leases.items())

    # ------------------------------------------------------------------ what the master says

    def roll_back_to(self, roll_back: int) -> bool:
        """Drop what was before a roll-back (R24); return whether it is a newer one."""
        if roll_back <= self.roll_back:
            return False
        self.roll_back, self.low = roll_back, 0
        self._leases.clear()
        self.done.clear()
        return True

    def lease(self, task: int, chunk: int, roll_back: int) -> bool:
        """Take a task, settled up to a chunk; return whether it is new."""
        if roll_back != self.roll_back or task in self._leases or task in self.done:
            return False
        self._leases[task] = _Lease(chunk, roll_back, chunk)
        return True

    def raise_low(self, low: int) -> None:
        """Drop the tasks before the watermark."""
        self.low = max(self.low, low)
        self.done = {task: at for task, at in self.done.items() if task >= low}
        self._leases = {task: lease for task, lease in self._leases.items() if task >= low}

    def revoke(self, task: int) -> None:
        """Drop a task that needs no more work of this worker."""
        self._leases.pop(task, None)
        self.done.pop(task, None)

    def give_back(self) -> None:
        """Drop all that is leased."""
        self._leases.clear()

    # ------------------------------------------------------------------ what is computed

    def following(self) -> Iterator[Chunk]:
        """Yield what is leased and not begun, in the order in which it is computed."""
        tasks = [self._of_task(task, lease) for task, lease in self._leases.items()]
        if not self._pacing.accumulates:
            return itertools.chain.from_iterable(tasks)
        return heapq.merge(*tasks, key=lambda one: (self._pacing.step(one.task, one.chunk), one.task))

    def _of_task(self, task: int, lease: _Lease) -> Iterator[Chunk]:
        chunks = self._order.chunks(task)
        for chunk in range(lease.begun, chunks):
            yield Chunk(task, chunk, chunk + 1 == chunks, lease.roll_back)

    def begin(self, chunk: Chunk, ahead: int) -> tuple[ChunkKey, ...]:
        """Begin a chunk; return the names of it and of those that follow, so many in all."""
        others = (one for one in self.following() if one != chunk)
        keys = tuple(self._key(one) for one in (chunk, *itertools.islice(others, ahead - 1)))
        if (lease := self._leases.get(chunk.task)) is not None:
            lease.begun = chunk.chunk + 1
        return keys

    def _key(self, chunk: Chunk) -> ChunkKey:
        task = self._order.task(chunk.task)
        return task.epoch, task.id, chunk.chunk

    def begin_again(self) -> None:
        """Begin each task where it is settled."""
        for lease in self._leases.values():
            lease.begun = lease.chunk

    def settle(self, chunk: Chunk) -> bool:
        """Note that a chunk is settled, with the last one that its task is done; return whether the task is this worker's."""
        lease = self._leases.get(chunk.task)
        if lease is None or lease.roll_back != chunk.roll_back:
            return False
        lease.chunk = chunk.chunk + 1
        if chunk.last:
            del self._leases[chunk.task]
            self.done[chunk.task] = chunk.roll_back
        return True

    def is_before(self, one: Chunk, other: Chunk) -> bool:
        """Tell whether the step of a chunk comes before another one's, which waits for it."""
        step = self._pacing.step
        return self._pacing.accumulates and step(one.task, one.chunk) < step(other.task, other.chunk)
