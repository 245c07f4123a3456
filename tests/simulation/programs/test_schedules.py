"""Seeded schedules of programs with training loops, without a violation; and that mistakes of their sessions show."""

from __future__ import annotations

import pytest

from tests.simulation.oracle import Violation
from tests.simulation.programs import schedules
from tests.simulation.programs.mistakes import FOCUS, MISTAKES, find
from tests.simulation.programs.world import ProgramWorld

SCHEDULES = 300
WITHIN = 30
"""Within so many schedules each mistake must show."""


def test_no_schedule_breaks_a_promise() -> None:
    for seed in range(SCHEDULES):
        try:
            schedules.run(seed)
        except Violation as violation:
            pytest.fail(f"{violation}; replay: python -m tests.simulation --programs --seed {seed} --trace")


def test_a_schedule_replays_event_by_event() -> None:
    first: list[str] = []
    second: list[str] = []
    schedules.run(14, trace=first.append)
    schedules.run(14, trace=second.append)
    assert len(first) > 10
    assert first == second


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.__name__)
def test_a_mistake_is_found(mistake: type[ProgramWorld]) -> None:
    found = find(mistake, WITHIN)
    assert found is not None, f"{WITHIN} schedules did not show {mistake.__name__}: {mistake.__doc__}"
    focus = FOCUS.get(mistake.__name__)
    if focus is not None:  # and none of them shows anything without it
        for seed in range(found[0] + 1):
            ProgramWorld(seed, focus(schedules.plan_of(seed))).run()
