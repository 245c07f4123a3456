"""All tasks of a job in one row, as workers with parameter servers take them: numbered through all epochs.

Pure arithmetic over a ledger; it knows nothing of workers. A task's number and the number of a chunk in it are the stamp of a push.

A *wave* is so many tasks in a row, fewer at the end of an epoch; step j of it consists of the chunks j of each. It is as long as its
longest task: of shorter ones its last steps have no chunk. Where each push is applied by itself a wave is one task, and each chunk a step.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from functools import lru_cache
from itertools import accumulate

from elasticdl.data.plan.evaluation import EvaluationPlan
from elasticdl.data.plan.ledger import Ledger
from elasticdl.data.plan.shard import Task

ENDLESS = 1 << 62
"""Number of tasks of a job that runs until it is stopped."""


class TaskOrder:
    """The tasks of a job, by number.

    Attributes:
        ledger: the order inside of an epoch.
        num_epochs: passes over the data; 0 = endless.
        max_step: steps after which the job ends; 0 = no limit.
        wave: tasks of a wave.
        total: how many tasks there are.
        partial: the tasks of the wave that `max_step` cuts short; none if it leaves whole waves out at most.
        evaluation: of the model while it is trained, None if there is none.
    """

    def __init__(
        self,
        ledger: Ledger,
        num_epochs: int,
        max_step: int,
        wave: int = 1,
        evaluation: EvaluationPlan | None = None,
    ) -> None:
        """With `max_step` the last wave is cut so that it fits."""
        self.ledger = ledger
        self.num_epochs = num_epochs
        self.max_step = max_step
        self.wave = wave
        self.evaluation = evaluation
        self.total = min(ledger.num_tasks * num_epochs, ENDLESS) or ENDLESS
        # a task is looked at again with every chunk of it
        self._lately = lru_cache(maxsize=256)(self._find_task)
        self._short_waves = lru_cache(maxsize=2)(self._find_short_waves)
        self._steps_before_epoch = [0]
        self._limit: tuple[int, int] | None = None
        """The tasks from the first on have at most the second's chunks; None: `max_step` leaves nothing out."""
        if max_step:
            self._cut(max_step)
        self.partial = self._find_partial()

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
        return self._lately(number)

    def _find_task(self, number: int) -> Task:
        return self.ledger.task(*divmod(number, self.ledger.num_tasks))

    def chunks(self, number: int) -> int:
        """Return how many chunks of a task are trained."""
        whole = self.ledger.num_chunks(self.task(number))
        if self._limit is None or number < self._limit[0]:
            return whole
        return min(whole, self._limit[1])

    def records(self, number: int) -> int:
        """Return how many records of a task are trained."""
        return min(self.task(number).count, self.chunks(number) * self.ledger.minibatch_size)

    def wave_of(self, number: int) -> range:
        """Return the tasks of the wave that a task is in."""
        epoch, place = divmod(number, self.ledger.num_tasks)
        first, before = place - place % self.wave, epoch * self.ledger.num_tasks
        return range(before + first, before + min(first + self.wave, self.ledger.num_tasks))

    def steps_before(self, number: int) -> int:
        """Return the steps of the waves before the one that a task is in; of the number behind the last task, of all."""
        if self._limit is not None and number >= self.total:
            return self.max_step
        epoch, place = divmod(number, self.ledger.num_tasks)
        return self._steps_before(epoch) + self._steps_inside(epoch, place // self.wave)

    def records_before(self, number: int) -> int:
        """Return how many records the tasks before a number have."""
        epochs, place = divmod(number, self.ledger.num_tasks)
        cut = range(number if self._limit is None else self._limit[0], number)
        lacking = sum(self.task(one).count - self.records(one) for one in cut)
        return epochs * self.ledger.num_records + self.ledger.records_before(epochs, place) - lacking

    def epoch(self, number: int) -> int:
        """Return the epoch that a task belongs to; of the number behind the last one, the number of epochs."""
        return number // self.ledger.num_tasks

    def is_cut(self) -> bool:
        """Tell whether `max_step` ends the job before its data does."""
        return self._limit is not None

    def _find_partial(self) -> range:
        first = self.total if self._limit is None else self._limit[0]
        tasks = range(first, self.total)
        is_short = any(self.chunks(one) < self.ledger.num_chunks(self.task(one)) for one in tasks)
        return tasks if is_short else range(self.total, self.total)

    def _cut(self, max_step: int) -> None:
        """Leave out what comes after so many steps."""
        if self.wave == 1:
            epoch, left = divmod(max_step, self._steps_of(0))
        else:
            epoch, left = 0, max_step
            while left >= (steps := self._steps_of(epoch)) and epoch != self.num_epochs:
                epoch, left = epoch + 1, left - steps
        if self.num_epochs and epoch >= self.num_epochs:
            return
        first = epoch * self.ledger.num_tasks
        if left:
            waves = range(-(-self.ledger.num_tasks // self.wave))
            wave = bisect_left(waves, left, key=lambda one: self._steps_inside(epoch, one)) - 1
            first += wave * self.wave
            left -= self._steps_inside(epoch, wave)
        self.total = self.wave_of(first).stop if left else first
        self._limit = first, left

    def _steps_before(self, epoch: int) -> int:
        """Return the steps of the epochs before one."""
        if self.wave == 1:  # in whichever order
            return epoch * self._steps_of(0) if epoch else 0
        known = self._steps_before_epoch
        while len(known) <= epoch:
            known.append(known[-1] + self._steps_of(len(known) - 1))
        return known[epoch]

    def _steps_of(self, epoch: int) -> int:
        """Return the steps of an epoch, if it is not cut."""
        return self._steps_inside(epoch, -(-self.ledger.num_tasks // self.wave))

    def _steps_inside(self, epoch: int, wave: int) -> int:
        """Return the steps of the first so many waves of an epoch, if it is not cut."""
        waves, missing = self._short_waves(epoch)
        return wave * self.chunks_per_task - missing[bisect_left(waves, wave)]

    def _find_short_waves(self, epoch: int) -> tuple[list[int], list[int]]:
        """Return the waves of an epoch that have fewer steps than most, and the running sum of what they lack."""
        ledger = self.ledger
        short = Counter(place // self.wave for place in ledger.short_places(epoch))
        waves, lacks = [], [0]
        for wave, count in short.items():
            places = range(wave * self.wave, min((wave + 1) * self.wave, ledger.num_tasks))
            if count < len(places):
                continue
            steps = max(ledger.num_chunks(ledger.task(epoch, place)) for place in places)
            if steps < self.chunks_per_task:
                waves.append(wave)
                lacks.append(self.chunks_per_task - steps)
        return waves, list(accumulate(lacks))
