"""Seeded schedules of the real machines of jobs with parameter servers, without a violation; and that mistakes show."""

from __future__ import annotations

import pytest

from tests.simulation.oracle import Violation
from tests.simulation.servers import schedules
from tests.simulation.servers.world import World

SCHEDULES = 40


def test_no_schedule_breaks_a_promise() -> None:
    for seed in range(SCHEDULES):
        try:
            schedules.run(seed)
        except Violation as violation:
            pytest.fail(f"{violation}; replay: tests.simulation.servers.schedules.run({seed}, trace=print)")


@pytest.mark.parametrize("seed", [88, 211, 215, 386, 425])
def test_schedules_that_found_something_are_well(seed: int) -> None:
    """88: words after a worker's end; 211, 215: pushes over a roll-back; 386: "done" of before it; 425: a receiver that leaves."""
    schedules.run(seed)


def test_a_schedule_replays_event_by_event() -> None:
    first: list[str] = []
    second: list[str] = []
    schedules.run(5, trace=first.append)
    schedules.run(5, trace=second.append)
    assert len(first) > 100
    assert first == second


def server_that(mistake: str) -> type[World]:
    return type(mistake, (World,), {"server_mistake": mistake})


MISTAKES = [
    server_that("held early"),
    server_that("acknowledged early"),
    server_that("no freeze"),
    server_that("copy without stamps"),
    server_that("refuses newer reign"),
]


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.__name__)
def test_a_mistake_is_found(mistake: type[World]) -> None:
    for seed in range(150):
        try:
            schedules.run(seed, mistake)
        except Exception:  # a machine that can't go on has found it, too
            return
    pytest.fail(f"150 schedules did not show it: {mistake.__name__}")
