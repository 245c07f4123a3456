"""Schedules of jobs of programs by number: a seed chooses the job, the faults and every delay."""

from __future__ import annotations

import random
from collections.abc import Callable

from tests.simulation.programs.plan import ProgramPlan
from tests.simulation.programs.world import ProgramWorld


def plan_of(seed: int) -> ProgramPlan:
    """Return a small job with a few faults."""
    rng = random.Random(f"programs {seed}")

    def some(most: int, chance: float) -> int:
        return rng.randint(1, most) if rng.random() < chance else 0

    workers = rng.choice((1, 2, 2, 3, 3, 4))
    if rng.random() < 0.05:
        return ProgramPlan(
            workers=3,
            joins=some(1, 0.5),
            tasks=5,
            chunks=1,
            checkpoint_steps=1,
            **{rng.choice(("hangs", "stuck")): 1},
            master_kills=some(1, 0.3),
            stops=some(1, 0.3),
        )
    deviates = rng.random() < 0.1
    return ProgramPlan(
        workers=workers,
        joins=some(2, 0.4),
        lanes=rng.choice((None, None, 1, 2, 3, 4)),
        tasks=rng.choice((4, 6, 9)),
        chunks=1,
        max_step=rng.choice((0, 0, 0, 3)),
        checkpoint_steps=100 if deviates else rng.choice((0, 1, 2)),
        kills=some(3, 0.5),
        pauses=some(2, 0.3),
        drains=some(2, 0.25),
        stops=some(1, 0.2),
        errors=some(2, 0.1),
        glitches=some(2, 0.3),
        disconnects=some(2, 0.2),
        partitions=some(2, 0.15),
        export_faults=some(2, 0.15),
        final_drains=some(2, 0.1),
        master_kills=some(2, 0.2),
        second_masters=some(1, 0.1),
        errors_at_end=some(1, 0.05),
        master_kills_at_end=some(1, 0.1),
        span=rng.choice((100, 200, 300)),
        minimum=min(workers, rng.choice((1, 1, 2, workers))),
        lasting=not deviates and rng.random() < 0.5,
        resumed=some(2, 0.1),
        part_faults=some(2, 0.3),
        stop_step=some(4, 0.2),
        program_stops=some(2, 0.15),
        leaves=some(1, 0.05),
        deviations=int(deviates),
    )


def run(
    seed: int, world: type[ProgramWorld] = ProgramWorld, trace: Callable[[str], None] | None = None
) -> int:
    """Run one schedule; return its number of events. Raises Violation."""
    return world(seed, plan_of(seed), trace).run()


def attempt(seed: int) -> tuple[int, int, str | None]:
    """Return the seed, the number of events, and what was violated."""
    try:
        return seed, run(seed), None
    except Exception as error:  # a crash of a machine is a finding as well
        return seed, 0, f"{type(error).__name__}: {error}"
