"""Seeded schedules of the real machines of jobs that evaluate or predict, without a violation; and that mistakes show."""

from __future__ import annotations

import pytest

from tests.simulation.oracle import Violation
from tests.simulation.tasks import schedules
from tests.simulation.tasks.mistakes import MISTAKES, find
from tests.simulation.tasks.world import World

SCHEDULES = 400


def test_no_schedule_breaks_a_promise() -> None:
    for seed in range(SCHEDULES):
        try:
            schedules.run(seed)
        except Violation as violation:
            pytest.fail(f"{violation}; replay: tests.simulation.tasks.schedules.run({seed}, trace=print)")


def test_a_schedule_replays_event_by_event() -> None:
    first: list[str] = []
    second: list[str] = []
    schedules.run(14, trace=first.append)
    schedules.run(14, trace=second.append)
    assert len(first) > 10
    assert first == second


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.__name__)
def test_a_mistake_is_found(mistake: type[World]) -> None:
    assert find(mistake, 200) is not None, f"200 schedules did not show {mistake.__name__}: {mistake.__doc__}"
