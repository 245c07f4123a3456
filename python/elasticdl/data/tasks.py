"""All tasks of a job in one row, as workers with parameter servers take them: numbered through all epochs.

Pure arithmetic over a ledger; it knows nothing of workers. A task's number and the number of a chunk in it are the stamp of a push.
"""

from __future__ import annotations

from elasticdl.data.ledger import Ledger
from elasticdl.data.shard import Task

ENDLESS = 1 << 62
"""Number of tasks of a job that runs until it is stopped."""


class TaskOrder:
    """The tasks of a job, by number.

    Attributes:
        ledger: the order inside of an epoch.
        num_epochs: passes over the data; 0 = endless.
        max_step: chunks after which the job ends; 0 = no limit.
        total: how many tasks there are.
    """

    def __init__(self, ledger: Ledger, num_epochs: int, max_step: int) -> None:
        """With `max_step` the last task is cut so that it fits."""
        self.ledger = ledger
        self.num_epochs = num_epochs
        self.max_step = max_step
        self.total = ledger.num_tasks * num_epochs or ENDLESS
        self._chunks_of_last: int | None = None
        if max_step:
            self._cut(max_step)

    @property
    def total_records(self) -> int | None:
        """Return the records of all epochs (`max_step` may end training earlier); None if endless."""
        return self.ledger.num_records * self.num_epochs if self.num_epochs else None

    @property
    def chunks_per_task(self) -> int:
        """Return the chunks of a full task."""
        return -(-self.ledger.records_per_task // self.ledger.minibatch_size)

    def task(self, number: int) -> Task:
        """Return the task of a number. Raises IndexError beyond the last."""
        if not 0 <= number < self.total:
            raise IndexError(f"there are {self.total} tasks; got {number}")
        return self.ledger.task(*divmod(number, self.ledger.num_tasks))

    def chunks(self, number: int) -> int:
        """Return how many chunks of a task are trained."""
        if number == self.total - 1 and self._chunks_of_last is not None:
            return self._chunks_of_last
        return self.ledger.num_chunks(self.task(number))

    def records(self, number: int) -> int:
        """Return how many records of a task are trained."""
        return min(self.task(number).count, self.chunks(number) * self.ledger.minibatch_size)

    def chunks_before(self, number: int) -> int:
        """Return how many chunks the tasks before a number have; takes time in proportion to the tasks of an epoch."""
        epochs, places = divmod(number, self.ledger.num_tasks)
        whole = epochs * self._chunks_of_epoch() if epochs else 0
        tasks = (self.ledger.task(epochs, place) for place in range(places))
        lacking = (
            self.ledger.num_chunks(self.task(number - 1)) - self.chunks(number - 1)
            if self._cuts(number)
            else 0
        )
        return whole + sum(map(self.ledger.num_chunks, tasks)) - lacking

    def records_before(self, number: int) -> int:
        """Return how many records the tasks before a number have."""
        epochs, place = divmod(number, self.ledger.num_tasks)
        lacking = self.task(number - 1).count - self.records(number - 1) if self._cuts(number) else 0
        return epochs * self.ledger.num_records + self.ledger.records_before(epochs, place) - lacking

    def epoch(self, number: int) -> int:
        """Return the epoch that a task belongs to; of the number behind the last one, the number of epochs."""
        return number // self.ledger.num_tasks

    def is_cut(self) -> bool:
        """Tell whether `max_step` ends the job before its data does."""
        return self._chunks_of_last is not None

    @property
    def partial(self) -> int | None:
        """Return the number of the task of which `max_step` leaves chunks out, None if it leaves whole tasks out at most."""
        last = self.total - 1
        if self._chunks_of_last is None or self._chunks_of_last == self.ledger.num_chunks(self.task(last)):
            return None
        return last

    def _cuts(self, number: int) -> bool:
        """Tell whether the task before a number is not trained to its end."""
        return number == self.total and self._chunks_of_last is not None

    def _cut(self, max_step: int) -> None:
        ledger = self.ledger
        epochs, left = divmod(max_step, self._chunks_of_epoch())
        if self.num_epochs and epochs >= self.num_epochs:
            return
        number = epochs * ledger.num_tasks
        of_last = ledger.num_chunks(self.task(number - 1)) if number else 0
        while left > 0:
            of_last = min(left, ledger.num_chunks(self.task(number)))
            left -= of_last
            number += 1
        self.total, self._chunks_of_last = number, of_last

    def _chunks_of_epoch(self) -> int:
        ledger = self.ledger
        return sum(ledger.num_chunks(ledger.task_by_id(0, id)) for id in range(ledger.num_tasks))
