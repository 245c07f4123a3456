"""Seeded schedules of the real machines of jobs with parameter servers, without a violation; and that mistakes show."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from tests.simulation.oracle import Violation
from tests.simulation.servers import schedules
from tests.simulation.servers.mistakes import MISTAKES, find
from tests.simulation.servers.world import World

SCHEDULES = 40


def test_no_schedule_breaks_a_promise() -> None:
    for seed in range(SCHEDULES):
        try:
            schedules.run(seed)
        except Violation as violation:
            pytest.fail(f"{violation}; replay: tests.simulation.servers.schedules.run({seed}, trace=print)")


@pytest.mark.parametrize("seed", [45, 103, 481, 3283, 3757, 4861, 5063, 5769, 5813, 13565, 27607])
def test_schedules_that_found_something_are_well(seed: int) -> None:
    """Run what found a mistake.

    45: a first value that was seen and is lost with its server; 103: progress of before a roll-back from a worker that leaves; 481, 5063,
    5813: slots are lost after callbacks have ended the job, which ends with what the last snapshot has; 3283, 5769: a master whose workers
    hold tasks does not see that the servers have gone to another one; 3757: a snapshot that was cut before the metrics of the last barrier
    were known is kept, and the best one is not; 4861: a best snapshot that is under way until all is trained takes slots with all of it;
    13565: a chunk is confirmed of which a part was stale; 27607: such a chunk is not computed again, because its worker waits for rows of
    the next step, which wait for it.
    """
    schedules.run(seed)


def test_workers_that_keep_variables_of_their_own_break_no_promise() -> None:
    for seed in range(SCHEDULES // 2):
        try:
            World(seed, replace(schedules.plan_of(seed), get_model_steps=3, grads_to_wait=0)).run()
        except Violation as violation:
            pytest.fail(f"{violation}; with the seed {seed}")


def test_a_schedule_replays_event_by_event() -> None:
    first: list[str] = []
    second: list[str] = []
    schedules.run(5, trace=first.append)
    schedules.run(5, trace=second.append)
    assert len(first) > 100
    assert first == second


@pytest.mark.parametrize(("mistake", "first", "what"), MISTAKES, ids=lambda one: getattr(one, "__name__", ""))
def test_a_mistake_is_found_and_the_same_schedule_is_well_without_it(
    mistake: type[World], first: int, what: str
) -> None:
    found = find(mistake, first, 150)
    assert found is not None, f"150 schedules did not show it: {mistake.__name__}"
    seed, violation = found
    assert re.search(what, str(violation))
    schedules.run(seed)
