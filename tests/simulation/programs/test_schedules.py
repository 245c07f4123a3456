"""Seeded schedules of programs with training loops, without a violation; and that mistakes of their sessions show."""

from __future__ import annotations

import pytest

from tests.simulation.oracle import Violation
from tests.simulation.programs import schedules
from tests.simulation.programs.mistakes import FOCUS, MISTAKES, CancelsForEver, find
from tests.simulation.programs.plan import ProgramPlan
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


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_workers_that_cancel_for_ever_fail_their_job_though_masters_are_killed(workers: int) -> None:
    """D11: such a job changed views for ever. The count survives the masters."""
    for seed in range(3):
        world = CancelsForEver(
            seed, ProgramPlan(workers=workers, tasks=12, chunks=1, master_kills=2, span=1500)
        )
        world.run()
        failed = world.oracle.failed
        assert failed is not None
        assert failed.reason.startswith("no progress after step 2: the group was formed 100 times in a row")
        assert "cancelled" in failed.reason
        assert world.oracle.view is not None
        assert world.oracle.view.id < 250
