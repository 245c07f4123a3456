"""Schedules by number: a seed chooses the job with parameter servers, the faults and every delay."""

from __future__ import annotations

import random
from collections.abc import Callable

from elasticdl.checkpoint.manifest import Barrier
from elasticdl.control.protocol.frozen import replace
from tests.simulation.servers.earlier import Earlier
from tests.simulation.servers.model import CHUNKS, SLOTS
from tests.simulation.servers.oracle import barriers, steps_before, waves
from tests.simulation.servers.world import Plan, World

EVERY = 7
"""One schedule of so many is of a job that continues from a checkpoint, or whose servers sum up gradients; of these every other one is of
a job that loses them often."""


def plan_of(seed: int) -> Plan:
    """Return a small job with a few faults, perhaps with gradients that are no numbers."""
    plan = _with_faults(seed)
    # What an earlier job has trained is known to have been a number.
    if plan.evaluated or plan.earlier or random.Random(f"numbers of servers' plan {seed}").random() >= 0.15:
        return plan
    return replace(plan, nans=0.2)


def _with_faults(seed: int) -> Plan:
    if seed % (2 * EVERY) == 2 * EVERY - 1:
        return with_losses(random.Random(f"losses of servers' plan {seed}"))
    rng = random.Random(f"servers' plan {seed}")

    def some(most: int, chance: float) -> int:
        return rng.randint(1, most) if rng.random() < chance else 0

    replicas = rng.choice((1, 2, 2, 2))
    servers = rng.choice((2, 3, 3, 4))
    plan = Plan(
        workers=rng.choice((1, 2, 2, 3)),
        servers=servers,
        replicas=replicas,
        tasks=rng.choice((6, 10, 14)),
        checkpoint_steps=rng.choice((2, 4, 8)) if replicas == 1 or rng.random() < 0.4 else 0,
        worker_kills=some(3, 0.4),
        worker_hangs=some(2, 0.25),
        worker_drains=some(2, 0.2),
        server_kills=some(3, 0.5),
        server_hangs=some(2, 0.3),
        server_drains=some(1, 0.25),
        server_joins=some(1, 0.25),
        resets=some(8, 0.5),
        suspicions=some(3, 0.4),
        master_kills=some(2, 0.3),
        master_hangs=some(1, 0.15),
        second_masters=some(1, 0.15),
        careless=rng.random() < 0.2,
        span=rng.choice((300, 600, 1200)),
    )
    if rng.random() >= 0.5:
        plan = replace(
            plan,
            evaluated=rng.choice((1, 2, 5)),
            evaluation_steps=rng.choice((0, 3, 4, 7)),
            result_kills=some(2, 0.4),
            finisher_kills=some(1, 0.3),
            record_kills=some(2, 0.3),
            record_masters=some(1, 0.3),
            result_hangs=some(2, 0.4),
        )
    if seed % EVERY != EVERY - 1:
        return with_callbacks(plan, random.Random(f"callbacks of servers' plan {seed}"))
    rng = random.Random(f"waves of servers' plan {seed}")
    plan = replace(plan, grads_to_wait=rng.choice((0, 0, 2, 3)))
    plan = with_callbacks(plan, rng)
    return with_earlier_job(plan, rng) if rng.random() < 0.7 or not plan.grads_to_wait else plan


def with_callbacks(plan: Plan, rng: random.Random) -> Plan:
    """Return the job, perhaps with callbacks that follow epochs, and end it early."""
    if rng.random() < 0.5:
        return plan
    plan = replace(plan, follows=True, epochs=rng.choice((1, 2, 2)), result_kills=rng.randint(0, 2))
    early = barriers(plan)[:-1]
    plan = replace(plan, stop_at=rng.choice(early)) if early and rng.random() < 0.4 else plan
    return replace(
        plan, best=rng.choice(("more", "less")) if plan.evaluated and plan.checkpoint_steps else ""
    )


def with_losses(rng: random.Random) -> Plan:
    """Return a job whose servers sum up gradients, and die or are taken for dead: what was done may have to be done again."""
    replicas = rng.choice((1, 2))
    return Plan(
        workers=rng.choice((1, 2, 3)),
        servers=rng.choice((2, 2, 3, 3)),
        replicas=replicas,
        tasks=rng.choice((6, 10, 14)),
        checkpoint_steps=rng.choice((2, 4, 8)),
        grads_to_wait=rng.choice((2, 3)),
        server_kills=rng.choice((0, 1, 2)) if replicas == 2 else rng.choice((1, 2, 3)),
        server_hangs=rng.choice((0, 1, 2)),
        server_joins=rng.choice((0, 1)),
        server_drains=rng.choice((0, 1)),
        resets=rng.choice((0, 4, 8)),
        suspicions=rng.choice((0, 2, 4, 6)),
        master_kills=rng.choice((0, 0, 1)),
        careless=replicas == 1 or rng.random() < 0.3,
        span=rng.choice((300, 600, 1200)),
    )


def with_earlier_job(plan: Plan, rng: random.Random) -> Plan:
    """Return the job as one that continues from an earlier one's checkpoint, which may have waited at barriers or not."""
    end = plan.stop_at or plan.tasks
    places = [first for first in waves(plan) if 0 < first < end]
    if not places:
        return plan
    low, waited = rng.choice(places), rng.random() < 0.7
    beyond = low + rng.randint(0, 1)  # those at the checkpoint's place it may have passed, or not
    passed = [barrier for barrier in barriers(plan) if barrier < beyond]
    if waited:
        end = next((barrier for barrier in barriers(plan) if barrier not in passed), end)
    end = end if not plan.grads_to_wait else low  # it was cut between two waves
    above = tuple(task for task in range(low + 1, min(low + 3, end)) if rng.random() < 0.3)
    left = CHUNKS * sum(task not in above for task in range(low, end))
    least = rng.choice((0, 0, 1, 2, 3))
    more = tuple(min(left, least + rng.choice((0, 0, 1, 2))) for _ in range(SLOTS))
    found = tuple(barrier_of(plan, one, 0) for one in passed) if waited else ()
    return replace(plan, earlier=Earlier(low, above, more, found, plan.grads_to_wait > 0))


def barrier_of(plan: Plan, task: int, roll_back: int) -> Barrier:
    """Return a barrier that a job has passed."""
    seen = float((1 << task * CHUNKS) - 1)
    names = [f"{what} {one}" for one in range(plan.evaluated) for what in ("everywhere", "anywhere")]
    epoch = plan.tasks // plan.epochs
    ends = task % epoch == 0
    return Barrier(
        steps_before(plan, task),
        roll_back,
        task,
        (task - 1) // epoch,
        ends,
        tuple((name, seen) for name in names),
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
