"""Schedules of jobs that evaluate or predict, by number: a seed chooses the job, the faults and every delay."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

from tests.simulation.tasks.world import Plan, World


def plan_of(seed: int) -> Plan:
    """Return a small job with a few faults."""
    rng = random.Random(f"tasks {seed}")

    def some(most: int, chance: float) -> int:
        return rng.randint(1, most) if rng.random() < chance else 0

    predicts = rng.random() < 0.5
    plan = Plan(
        predicts=predicts,
        workers=rng.choice((1, 2, 3, 4)),
        minibatches=rng.choice((1, 4, 7, 20)),
        per_task=rng.choice((1, 2, 3)),
        kills=some(3, 0.5),
        hangs=some(2, 0.3),
        drains=some(2, 0.3),
        disconnects=some(3, 0.3),
        master_kills=some(2, 0.4),
        second_masters=some(1, 0.2),
        span=rng.choice((10.0, 20.0, 40.0)),
    )
    if not predicts or rng.random() < 0.4:
        return plan
    return replace(plan, loads=True, loaders_killed=some(3, 0.6))


def run(seed: int, world: type[World] = World, trace: Callable[[str], None] | None = None) -> int:
    """Run one schedule; return its number of events. Raises Violation."""
    return world(seed, plan_of(seed), trace).run()


def attempt(seed: int) -> tuple[int, int, str | None]:
    """Return the seed, the number of events, and what was violated."""
    try:
        return seed, run(seed), None
    except Exception as error:  # a crash of a machine is a finding as well
        return seed, 0, f"{type(error).__name__}: {error}"
