"""A custom training loop in this process alone: the order, the seeds and the steps of a job with one worker.

There is no master, no other thread and no connection, so that `python train.py` is an ordinary program, and what it computes can be
compared with what a job does.
"""

from __future__ import annotations

import math
from collections import deque
from contextlib import AbstractContextManager, nullcontext

import numpy as np

from elasticdl.data.plan.loopplan import LoopPlan
from elasticdl.data.plan.schedule import Schedule
from elasticdl.data.plan.shard import Position
from elasticdl.data.prefetch import ChunkKey
from elasticdl.errors import BadModel
from elasticdl.worker.contract.allreduce import ChunkResult, DeviceSums
from elasticdl.worker.contract.loop import LoopBatch, LoopSource, LoopState
from elasticdl.worker.loop.ending import LEFT_EARLY

_AHEAD = 64
"""Batches that are announced to the source; it reads ahead fewer, as far as its memory allows."""
_ALONE = 1
"""Members."""


class LocalSession:
    """Implements `elasticdl.worker.contract.loop.Session`."""

    is_writer = True

    def __init__(self) -> None:
        """Nothing is trained yet; `begin` says what."""
        self._output = ""
        self._steps, self._lane, self._examples, self._loss = 0, 0, 0.0, 0.0
        self._position: Position | None = None
        self._stopped = self._finished = False

    def begin(self, plan: LoopPlan, state: LoopState, source: LoopSource) -> None:
        """Take what is trained. Raises BadInput for data that can't be trained on."""
        self._schedule, self._wave_lanes = plan.schedule(), plan.lanes(_ALONE)
        self._state, self._source = state, source
        self._sums = (
            state if isinstance(state, DeviceSums) else None
        )  # looked at once: it takes as long as a small step's optimizer
        self._position = self._schedule.start(self._wave_lanes)
        self._upcoming = _Upcoming(self._schedule, self._wave_lanes, self._position)
        state.zero()

    def next(self) -> LoopBatch | None:
        """Return the next batch; None at the end of training."""
        position = self._where()
        if self._lane == 0 and (self._stopped or self._schedule.ended(position, self._steps)):
            return None
        if (keys := self._upcoming.more()) is not None:
            self._source.want(keys)
        records, _, batch = self._source.get(self._upcoming.pop())
        return LoopBatch(position.epoch, self._steps, self._lane, records, batch)

    def step(self, result: ChunkResult) -> bool:
        """Give what was computed of the batch; return whether it was the last of a step. Raises BadModel if the sum is not finite."""
        position = self._where()
        self._examples += result.examples
        self._loss += result.loss or 0.0
        self._lane += 1
        if self._lane < position.lanes:
            return False
        self._commit()
        self._position = self._schedule.advance(position, self._wave_lanes)
        self._steps += 1
        self._lane, self._examples, self._loss = 0, 0.0, 0.0
        return True

    def _commit(self) -> None:
        state, number = self._state, self._steps + 1
        if not math.isfinite(self._loss):
            raise BadModel(f"the loss of step {number} is not finite")
        if self._sums is not None:
            if not self._sums.take(alone=True):
                raise BadModel(f"the gradient of step {number} is not finite")
            self._sums.commit(self._examples)
        else:
            state.apply(np.frombuffer(state.accumulator(), state.dtype).copy(), self._examples)

    def _where(self) -> Position:
        if self._position is None:
            raise RuntimeError("the session has not begun")
        return self._position

    @property
    def steps(self) -> int:
        """Return the committed steps."""
        return self._steps

    @property
    def epoch(self) -> int:
        """Return the epoch of the next batch; the number of epochs at the end."""
        return self._position.epoch if self._position is not None else 0

    def stop(self, reason: str) -> None:
        """End training after the step under way."""
        if not self._stopped:
            self._stopped = True
            self.note(f"stopped after step {self._steps}: {reason}")

    def put_result_at(self, path: str) -> None:
        """Take where the result is wanted."""
        self._output = path

    def note(self, text: str) -> None:
        """Print a line."""
        print(text, flush=True)

    def long_operation(self, seconds: float) -> AbstractContextManager[None]:
        """Do nothing: nobody watches."""
        return nullcontext()

    def finish(self) -> None:
        """Write the result, if there is one, once. Raises BadModel if training has not come to its end."""
        if self._finished:
            return
        self._finished = True
        position = self._position
        if position is None:
            return
        self._source.close()
        if not (self._stopped or self._schedule.ended(position, self._steps)):
            raise BadModel(LEFT_EARLY.format(steps=self._steps))
        self._state.export(self._output)

    def fail(self, error: BaseException) -> None:
        """Let nothing follow: the program has failed."""
        self._finished = True


class _Upcoming:
    """The batches from a position on, in order, told to a source some at a time."""

    def __init__(self, schedule: Schedule, wave_lanes: int, position: Position) -> None:
        self._schedule, self._wave_lanes, self._position = schedule, wave_lanes, position
        self._step = 0
        self._keys: deque[ChunkKey] = deque()

    def more(self) -> list[ChunkKey] | None:
        """Return those that follow, once the half of what was returned before is used; None: nothing is new."""
        if len(self._keys) > _AHEAD // 2:
            return None
        before = len(self._keys)
        while len(self._keys) < _AHEAD and not self._schedule.ended(self._position, self._step):
            for lane in range(self._position.lanes):
                task = self._schedule.task(self._position, lane)
                self._keys.append((task.epoch, task.id, self._position.chunk))
            self._position = self._schedule.advance(self._position, self._wave_lanes)
            self._step += 1
        return list(self._keys) if len(self._keys) > before else None

    def pop(self) -> ChunkKey:
        """Return the next one."""
        return self._keys.popleft()
