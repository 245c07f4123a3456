"""The simulator finds what it is for: each mistake of the protocol's model shows within a bounded number of schedules."""

from __future__ import annotations

import pytest

from tests.simulation.mistakes import looking
from tests.simulation.world import World

SCHEDULES = 400
"""Within so many schedules each mistake must show."""


@pytest.mark.parametrize("mistake", looking.MISTAKES, ids=lambda mistake: mistake.__name__)
def test_a_mistake_is_found(mistake: type[World]) -> None:
    found = looking.find(mistake, SCHEDULES)
    assert found is not None, f"{SCHEDULES} schedules did not show {mistake.__name__}: {mistake.__doc__}"


def places() -> list[tuple[str, looking.Focus]]:
    """Return where mistakes are looked for, each place once, with the name of one of the mistakes."""
    found: list[tuple[str, looking.Focus]] = []
    for mistake in looking.MISTAKES:
        focus = looking.focus_of(mistake)
        if focus not in [one for _, one in found]:
            found.append((mistake.__name__, focus))
    return found


@pytest.mark.parametrize("focus", [pytest.param(focus, id=name) for name, focus in places()])
def test_the_schedules_that_look_for_a_mistake_show_nothing_without_it(focus: looking.Focus) -> None:
    for seed in range(12):
        World(seed, focus.plan(seed)).run()
