"""What a simulated job and its faults are, and how long things take there."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from elasticdl.data.plan.evaluation import EvaluationPlan
from elasticdl.data.plan.ledger import Ledger
from elasticdl.data.plan.schedule import Schedule
from elasticdl.data.plan.shard import Position, Shard
from elasticdl.master.core.witnesses import Times

OUTPUT, SNAPSHOTS = Path("result"), Path("snapshots")
TIMES = Times(heartbeat=0.2, alone=1.5, stall=20.0, stall_steps=40.0, moment=0.05, gather=0.5)
KINDS = {
    "start": 0.1, "connect": 0.03, "message": 0.005, "disk": 0.01, "wait status": 0.02, "compute": 0.02, "ring": 0.005,
    "apply": 0.005, "transfer": 0.05, "file": 0.04, "cancel": 0.005, "pause": 1.0,
}  # fmt: skip
"""Mean delays in seconds."""
EVENTS = 30_000
"""A schedule with more events than this does not end."""


@dataclass(frozen=True)
class Plan:
    """One job and the faults that it meets; how often each, at events chosen by the seed."""

    workers: int = 3
    joins: int = 0
    minimum: int = 1
    lanes: int | None = None
    tasks: int = 6
    chunks: int = 2
    max_step: int = 0
    checkpoint_steps: int = 0
    kills: int = 0
    pauses: int = 0
    drains: int = 0
    stops: int = 0
    errors: int = 0
    glitches: int = 0
    disconnects: int = 0
    partitions: int = 0
    """A worker can't reach any master for a while; its peers it can."""
    export_faults: int = 0
    """Deaths, pauses and partitions of an exporter."""
    final_drains: int = 0
    """SIGTERM for a member that installs a final view."""
    master_kills: int = 0
    master_pauses: int = 0
    second_masters: int = 0
    hangs: int = 0
    """Pauses without an end: somebody else must be there to go on."""
    stuck: int = 0
    """Members whose work never comes back although they hear and answer everything."""
    errors_at_end: int = 0
    """Program errors at the moment when the terminal record is appended."""
    master_kills_at_end: int = 0
    """Deaths of the master at that moment."""
    pace: tuple[tuple[str, float], ...] = ()
    """How much slower than usual some kinds of things are."""
    span: int = 300
    """Faults come within this many events."""
    gates: int = 0
    """Steps between two evaluations; 0: none. There is one at each epoch's end, and at the end, too."""
    eval_tasks: int = 2
    """Tasks of an evaluation."""
    gate_faults: int = 0
    """What happens to a member or a master when a result is sent, metrics are made, or are journalled."""
    lasting: bool = False
    """States are saved to checkpoints, the last one and the best ones, too."""
    resumed: int = 0
    """Steps of an earlier job, from whose checkpoint this one continues; 0: it begins anew."""
    part_faults: int = 0
    """What happens to a member or a master when a part of a state, or its manifest, is written."""


class Table:
    """A `Schedule` whose answers are remembered: a schedule asks the same few questions again and again."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._advance: dict[tuple[Position, int], Position] = {}
        self._task: dict[tuple[Position, int], Any] = {}
        self._done: dict[Position, int] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._schedule, name)

    def advance(self, position: Position, wave_lanes: int) -> Position:
        key = position, wave_lanes
        if key not in self._advance:
            self._advance[key] = self._schedule.advance(position, wave_lanes)
        return self._advance[key]

    def task(self, position: Position, lane: int) -> Any:
        key = position, lane
        if key not in self._task:
            self._task[key] = self._schedule.task(position, lane)
        return self._task[key]

    def records_done(self, position: Position) -> int:
        if position not in self._done:
            self._done[position] = self._schedule.records_done(position)
        return self._done[position]


@lru_cache
def table(
    tasks: int, chunks: int, minibatch: int, max_step: int, gates: int, eval_tasks: int
) -> tuple[tuple[Shard, ...], Any]:
    """Return a small job's data and its order; the last task is short. With `gates`, evaluation tasks have two minibatches."""
    shards = (Shard("data", 0, tasks * chunks * minibatch - 3),)
    ledger = Ledger(shards, chunks * minibatch, minibatch, 7, shuffle=True)
    plan = None
    if gates:
        shard = Shard("validation", 0, 2 * eval_tasks * minibatch - 1)
        plan = EvaluationPlan((shard,), minibatch, gates, True, most_tasks=eval_tasks)
    return shards, Table(Schedule(ledger, 1, max_step, plan))
