"""Tasks that are done, from when a worker says so until the journal does: when their record is due.

Which tasks are done is the journal's alone to say (`leases.py` has that); here is only what waits for it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from elasticdl.master.core.done import TaskNumber
from elasticdl.master.core.records import DoneRecord, Journal
from elasticdl.master.ps.leases import Leases

BATCH_SECONDS = 0.2
"""Tasks that are done are journalled together, so often at most: nobody waits for that but `low`, and a job's end, which comes at once."""
BATCH = 64
"""So many at most wait for that."""


@dataclass(frozen=True, slots=True)
class Reported:
    """Tasks that wait for their record.

    Attributes:
        tasks: in the order in which they were done.
        since: when the first of these came.
    """

    tasks: tuple[TaskNumber, ...] = ()
    since: float | None = None

    def with_task(self, now: float, task: TaskNumber) -> Reported:
        """Return what holds when a worker says that a task is done."""
        return Reported((*self.tasks, task), now if self.since is None else self.since)

    def without(self, tasks: Collection[TaskNumber]) -> Reported:
        """Return what holds when tasks are journalled as done."""
        left = tuple(task for task in self.tasks if task not in tasks)
        return Reported(left, self.since if left else None)

    def wanted(self, now: float, journal: Journal, leases: Leases) -> DoneRecord | None:
        """Return the record of all that wait, once it is due."""
        if self.since is None:
            return None
        is_due = now - self.since >= BATCH_SECONDS
        if not is_due and not self.completes_batch(journal, leases) and not self._completes_wave(leases):
            return None
        return DoneRecord(self.tasks, journal.roll_back)

    def completes_batch(self, journal: Journal, leases: Leases) -> bool:
        """Tell whether what waits does so no longer: it is much, or the job ends with it, or an evaluation begins (B1)."""
        if not self.tasks:
            return False
        end = leases.total if leases.until is None else leases.until
        is_last = leases.done.count() + len(self.tasks) >= end
        return is_last or journal.stopping is not None or len(self.tasks) >= BATCH

    def _completes_wave(self, leases: Leases) -> bool:
        """Tell whether with what waits the first wave is done: workers wait for others to be leased."""
        return leases.waves is not None and all(
            task in leases.done or task in self.tasks for task in leases.waves.tasks(leases.low)
        )
