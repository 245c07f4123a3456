"""Which chunks a member will need next: the order in which it prefetches.

A pure walk over the schedule for one member of one view; each chunk's task is looked up once and kept for the step that
consumes it. It guesses nothing: a change of view simply starts another walk.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from elasticdl.control.protocol.view import View
from elasticdl.data.plan.schedule import Schedule
from elasticdl.data.plan.shard import Position, Task
from elasticdl.data.prefetch import ChunkKey


@dataclass(frozen=True, slots=True)
class Need:
    """One chunk of one lane of one step; `key` is None where the task has no such chunk."""

    step: int
    lane: int
    task: Task
    chunk: int
    key: ChunkKey | None


def upcoming(schedule: Schedule, view: View, rank: int, position: Position, step: int) -> Iterator[Need]:
    """Yield what the member needs from `step` on, in the order of use, until the data ends.

    Args:
        schedule: the job's order of data.
        view: the view that the member trains in.
        rank: the member.
        position: position of the state that `step` starts from.
        step: number of the first step wanted.
    """
    while not schedule.ended(position, step - 1):
        for lane in sorted(view.owned(rank, step, position.lanes)):
            task = schedule.task(position, lane)
            inside = position.chunk < schedule.ledger.num_chunks(task)
            key = (task.epoch, task.id, position.chunk) if inside else None
            yield Need(step, lane, task, position.chunk, key)
        position = schedule.advance(position, view.wave_lanes)
        step += 1
