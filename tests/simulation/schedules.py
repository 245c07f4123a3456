"""Schedules by number: a seed chooses the job, the faults and every delay."""

from __future__ import annotations

import multiprocessing
import os
import random
from collections.abc import Callable, Iterator

from tests.simulation.plan import Plan
from tests.simulation.world import World


def plan_of(seed: int) -> Plan:
    """Return a small job with a few faults."""
    rng = random.Random(f"plan {seed}")

    def some(most: int, chance: float) -> int:
        return rng.randint(1, most) if rng.random() < chance else 0

    workers = rng.choice((1, 2, 2, 3, 3, 4))
    if rng.random() < 0.05:
        return Plan(
            workers=3,
            joins=some(1, 0.5),
            tasks=4,
            checkpoint_steps=1,
            **{rng.choice(("hangs", "stuck")): 1},
            master_kills=some(1, 0.3),
            stops=some(1, 0.3),
        )
    return Plan(
        workers=workers,
        joins=some(2, 0.4),
        lanes=rng.choice((None, None, 2, 3, 4)),
        tasks=rng.choice((3, 4, 6)),
        chunks=rng.choice((1, 2, 3)),
        max_step=rng.choice((0, 0, 0, 3)),
        checkpoint_steps=rng.choice((0, 1, 2)),
        kills=some(3, 0.5),
        pauses=some(2, 0.3),
        drains=some(2, 0.25),
        stops=some(1, 0.2),
        errors=some(2, 0.12),
        glitches=some(2, 0.2),
        disconnects=some(2, 0.2),
        partitions=some(2, 0.2),
        export_faults=some(2, 0.15),
        final_drains=some(2, 0.1),
        master_kills=some(2, 0.25),
        master_pauses=some(1, 0.1),
        second_masters=some(1, 0.12),
        errors_at_end=some(1, 0.1),
        master_kills_at_end=some(1, 0.15),
        span=rng.choice((100, 200, 300)),
        minimum=min(workers, rng.choice((1, 1, 2, workers))),
        gates=rng.choice((0, 0, 1, 2)),
        eval_tasks=rng.choice((1, 2, 5)),
        gate_faults=some(2, 0.5),
        lasting=rng.random() < 0.5,
        resumed=some(3, 0.15),
        part_faults=some(2, 0.4),
    )


def run(seed: int, world: type[World] = World, trace: Callable[[str], None] | None = None) -> int:
    """Run one schedule; return its number of events. Raises Violation."""
    return world(seed, plan_of(seed), trace).run()


def attempt(seed: int) -> tuple[int, int, str | None]:
    """Return the seed, the number of events, and what was violated."""
    try:
        return seed, run(seed), None
    except Exception as error:  # a crash of a machine is a finding as well
        return seed, 0, f"{type(error).__name__}: {error}"


def many(
    first: int, count: int, attempt: Callable[[int], tuple[int, int, str | None]] = attempt
) -> Iterator[tuple[int, int, str | None]]:
    """Run schedules over all cores."""
    with multiprocessing.get_context("spawn").Pool(os.cpu_count()) as pool:
        yield from pool.imap_unordered(
            attempt, range(first, first + count), chunksize=min(50, -(-count // 8))
        )
