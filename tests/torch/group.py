"""A group of workers in one process: sessions that add up what their members compute, one thread for each member.

Only one thread runs a program at a time, from `next` to `step`, since the generators of a process are one. It has no master and no faults:
which member gets which batch of a step is in the test.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from elasticdl.checkpoint.stateimage import StateImage
from elasticdl.data.plan.loopplan import LoopPlan
from elasticdl.torch import loop
from elasticdl.worker.contract.allreduce import ChunkResult
from elasticdl.worker.contract.loop import LoopBatch, LoopSource, LoopState


class Group:
    """Members that commit together.

    Attributes:
        images: of the state before each step, of the first member.
    """

    def __init__(self, members: int, lanes: int) -> None:
        """`lanes`: batches of a step; member r has those with r as the rest of a division by the members."""
        self.members, self.lanes = members, lanes
        self.sums: list[Any] = [None] * members
        self.barrier = threading.Barrier(members, timeout=60)
        self.running = threading.Lock()
        self.images: list[StateImage] = []
        self.errors: list[BaseException] = []

    def run(self, program: Callable[[Any, int], None], seed: int = 5) -> list[Any]:
        """Run a program in each member; return the states of all. Raises what a program raises."""
        sessions = [GroupSession(self, rank) for rank in range(self.members)]

        def member(rank: int) -> None:
            try:
                with sessions[rank].exclusive():
                    loop._current = None
                    made = loop.begin(sessions[rank], seed)
                    made._finished = True  # at the end of the tests nothing follows
                    loop._current, made._finished = made, False
                    try:
                        program(made, rank)
                    finally:
                        made._finished = True
            except BaseException as error:
                self.errors.append(error)
                self.barrier.abort()

        threads = [threading.Thread(target=member, args=(rank,), daemon=True) for rank in range(self.members)]
        for one in threads:
            one.start()
        for one in threads:
            one.join(60)
        for error in self.errors:
            if not isinstance(error, threading.BrokenBarrierError):
                raise error
        return [one.state for one in sessions]


class GroupSession:
    """Implements `elasticdl.worker.contract.loop.Session`."""

    def __init__(self, group: Group, rank: int) -> None:
        self.group, self.rank, self.is_writer = group, rank, rank == 0
        self.steps, self.notes = 0, []
        self._stopped = False
        self._mine = [lane for lane in range(group.lanes) if lane % group.members == rank]
        self._left: list[int] | None = None
        self._examples = 0.0

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        """Run the program alone."""
        self.group.running.acquire()
        try:
            yield
        finally:
            self.group.running.release()

    @contextlib.contextmanager
    def _others(self) -> Iterator[None]:
        self.group.running.release()
        try:
            yield
        finally:
            self.group.running.acquire()

    def begin(self, plan: LoopPlan, state: LoopState, source: LoopSource) -> None:
        self.plan, self.state, self.source, self._schedule = plan, state, source, plan.schedule()
        self._position = self._schedule.start(self.group.lanes)
        state.zero()

    @property
    def epoch(self) -> int:
        return self._position.epoch if hasattr(self, "_position") else 0

    def next(self) -> LoopBatch | None:
        if self._left is None:
            with self._others():
                self.group.barrier.wait()
            if self.rank == 0:
                self.group.images.append(self.state.image())
            if self._stopped or self._schedule.ended(self._position, self.steps):
                return None
            self._left = [lane for lane in self._mine if lane < self._position.lanes]
            if not self._left:
                return LoopBatch(self._position.epoch, self.steps, self.rank, 0, None)
        lane = self._left[0]
        task = self._schedule.task(self._position, lane)
        records, _, batch = self.source.get((task.epoch, task.id, 0))
        return LoopBatch(self._position.epoch, self.steps, lane, records, batch)

    def step(self, result: ChunkResult) -> bool:
        assert self._left is not None
        self._left = self._left[1:]
        self._examples += result.examples
        if self._left:
            return False
        group = self.group
        group.sums[self.rank] = (np.array(self.state.accumulator()), self._examples)
        with self._others():
            group.barrier.wait()
        total = sum(one for one, _ in group.sums)
        self.state.apply(total.copy(), sum(count for _, count in group.sums))
        with self._others():
            group.barrier.wait()
        self._position = self._schedule.advance(self._position, group.lanes)
        self.steps, self._left, self._examples = self.steps + 1, None, 0.0
        return True

    def stop(self, reason: str) -> None:
        self._stopped = True

    def note(self, text: str) -> None:
        self.notes.append(text)

    def long_operation(self, seconds: float) -> Any:
        return contextlib.nullcontext()

    def finish(self) -> None: ...


def digests(states: Sequence[Any]) -> set[str]:
    """Return the digests of states."""
    return {one.digest() for one in states}
