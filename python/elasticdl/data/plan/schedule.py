"""The schedule: which position follows which, and which task a lane of a position stands for.

Pure arithmetic on positions over a ledger; it knows nothing of members, views or time. All members compute it
alike, so a position of four integers is all that a state carries about the data.
"""

from __future__ import annotations

from functools import lru_cache

from elasticdl.data.plan.evaluation import EvaluationPlan
from elasticdl.data.plan.ledger import Ledger
from elasticdl.data.plan.shard import Position, Task
from elasticdl.errors import BadSetting


def policy_lanes(global_batch_size: int | None, minibatch_size: int, members: int) -> int:
    """Return K, the lanes of a wave that begins with `members` members, before the cut at the epoch's
    end.

    With a `global_batch_size` (policy `fixed`) it never changes; without (policy `per_worker`) every member
    has one lane. Raises BadSetting unless `global_batch_size` is a positive multiple of `minibatch_size`.
    """
    if global_batch_size is None:
        return max(1, members)
    if global_batch_size < 1 or global_batch_size % minibatch_size:
        raise BadSetting(
            f"global_batch_size must be a multiple of minibatch_size; got {global_batch_size}, "
            f"which is no multiple of {minibatch_size}"
        )
    return global_batch_size // minibatch_size


class Schedule:
    """The sequence of positions of a job.

    A *wave* is K consecutive tasks of the epoch's order; step j of the wave consumes chunk j of each of them.
    It is as long as its longest task; shorter ones give empty chunks at the end. A wave never crosses an
    epoch and has at least one task.

    Attributes:
        ledger: the order of the tasks.
        num_epochs: passes over the data; 0 = endless.
        max_step: committed steps after which training ends; 0 = no limit.
        evaluation: of the model while it is trained, None if there is none.
    """

    def __init__(
        self, ledger: Ledger, num_epochs: int, max_step: int, evaluation: EvaluationPlan | None = None
    ) -> None:
        self.ledger = ledger
        self.num_epochs = num_epochs
        self.max_step = max_step
        self.evaluation = evaluation
        self._one_chunk = ledger.records_per_task <= ledger.minibatch_size
        """Each task is a chunk, so that each wave is a step: as in all custom training loops."""
        # The same wave is asked for once per step of it.
        self._wave_length = lru_cache(maxsize=4)(self._find_wave_length)

    @property
    def total_records(self) -> int | None:
        """Return the records of all epochs (`max_step` may end training earlier); None if endless."""
        return self.ledger.num_records * self.num_epochs if self.num_epochs else None

    def most_steps(self, wave_lanes: int) -> int | None:
        """Return how many steps the data makes at most, if no wave has fewer lanes; None if endless."""
        longest = -(-self.ledger.records_per_task // self.ledger.minibatch_size)
        waves = -(-self.ledger.num_tasks // wave_lanes)
        return self.num_epochs * waves * longest if self.num_epochs else None

    def start(self, wave_lanes: int) -> Position:
        """Return the position of the first step; `wave_lanes` is K of the first wave before the cut."""
        return self._wave(0, 0, wave_lanes)

    def advance(self, position: Position, wave_lanes: int) -> Position:
        """Return the position after one committed step at `position`; `wave_lanes` is used if a wave begins
        there.

        After the last step of the data it is Position(num_epochs, 0, 0, 0). Raises ValueError for a position
        beyond the data.
        """
        if position.lanes == 0:
            raise ValueError(f"no step can be made at {position}: the data has ended")
        if not self._one_chunk and position.chunk + 1 < self.wave_length(position):
            return Position(position.epoch, position.first_task, position.lanes, position.chunk + 1)
        next_task = position.first_task + position.lanes
        if next_task < self.ledger.num_tasks:
            return self._wave(position.epoch, next_task, wave_lanes)
        return self._wave(position.epoch + 1, 0, wave_lanes)

    def ended(self, position: Position, step: int) -> bool:
        """Tell whether a state at `position` with `step` committed steps is the last of the job."""
        return self._data_ended(position.epoch) or 0 < self.max_step <= step

    def is_gate(self, position: Position, step: int) -> bool:
        """Tell whether a state is evaluated before anything is computed from it: after so many steps, at an epoch's end, or at the end."""
        plan = self.evaluation
        if plan is None or step == 0:
            return False
        return (
            (plan.every > 0 and step % plan.every == 0)
            or (plan.at_epoch_end and self.begins_epoch(position))
            or self.ended(position, step)
        )

    def begins_epoch(self, position: Position) -> bool:
        """Tell whether the step at `position` is the first of an epoch, or would be if the data had not ended."""
        return position.first_task == 0 and position.chunk == 0

    def is_wave_start(self, position: Position) -> bool:
        """Tell whether the step at `position` is the first of its wave, where K may be chosen anew."""
        return position.chunk == 0 and position.lanes > 0

    def cut(self, position: Position, wave_lanes: int) -> int:
        """Return K of a wave that begins at `position`: `wave_lanes`, cut at the epoch's end.

        Where the data has ended it is 0.
        """
        return self._cut(position.epoch, position.first_task, wave_lanes)

    def _cut(self, epoch: int, first_task: int, wave_lanes: int) -> int:
        if wave_lanes < 1:
            raise ValueError(f"a wave has at least one lane; got {wave_lanes}")
        if self._data_ended(epoch):
            return 0
        return min(wave_lanes, self.ledger.num_tasks - first_task)

    def wave_length(self, position: Position) -> int:
        """Return the number of steps of the wave that `position` is in."""
        return self._wave_length(position.epoch, position.first_task, position.lanes)

    def has(self, position: Position) -> bool:
        """Tell whether a state can be at `position`, however it came there."""
        if self._data_ended(position.epoch):
            return position == Position(self.num_epochs, 0, 0, 0)
        if not 0 <= position.first_task < self.ledger.num_tasks or position.epoch < 0:
            return False
        if not 1 <= position.lanes <= self.ledger.num_tasks - position.first_task:
            return False
        return position.chunk == 0 or 0 < position.chunk < self.wave_length(position)

    def may_have(
        self, position: Position, step: int, since: tuple[Position, int] = (Position(0, 0, 1, 0), 0)
    ) -> bool:
        """Tell whether some number of members comes to `position` with `step` committed steps.

        `since`: where the job began, and with how many steps.
        """
        first, done = since[0], step - since[1]
        tasks = (
            (position.epoch - first.epoch) * self.ledger.num_tasks + position.first_task - first.first_task
        )
        if tasks == 0:
            return done == position.chunk - first.chunk >= 0
        longest = -(-self.ledger.records_per_task // self.ledger.minibatch_size)
        epochs = position.epoch - first.epoch
        least = max(1, epochs) + position.chunk
        return tasks > 0 and least <= done <= tasks * longest + position.chunk - first.chunk

    def task(self, position: Position, lane: int) -> Task:
        """Return the task of `lane` (0 … position.lanes - 1). Raises IndexError."""
        if not 0 <= lane < position.lanes:
            raise IndexError(f"position {position} has {position.lanes} lanes; got {lane}")
        return self.ledger.task(position.epoch, position.first_task + lane)

    def records_done(self, position: Position) -> int:
        """Return the records of the position's epoch that were trained before `position`.

        Where the data has ended it is 0.
        """
        done = self.ledger.records_before(position.epoch, position.first_task)
        if position.chunk:
            trained = position.chunk * self.ledger.minibatch_size
            done += sum(min(trained, self.task(position, lane).count) for lane in range(position.lanes))
        return done

    def epoch_ended(self, before: Position, after: Position) -> bool:
        """Tell whether the step from `before` to `after` was the last of its epoch."""
        return after.epoch > before.epoch

    def _wave(self, epoch: int, first_task: int, wave_lanes: int) -> Position:
        return Position(epoch, first_task, self._cut(epoch, first_task, wave_lanes), 0)

    def _data_ended(self, epoch: int) -> bool:
        return 0 < self.num_epochs <= epoch

    def _find_wave_length(self, epoch: int, first_task: int, lanes: int) -> int:
        longest = 0
        for place in range(first_task, first_task + lanes):
            task = self.ledger.task(epoch, place)
            longest = max(longest, self.ledger.num_chunks(task))
            if task.count == self.ledger.records_per_task:
                break  # none is longer than a full one
        return longest
