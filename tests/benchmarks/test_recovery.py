"""Which commit ends the pause after a kill."""

from __future__ import annotations

import pytest

from benchmarks.recovery import LAST_COMMITS, recovered

KILLED = 100.0
BEFORE = [KILLED - 0.012, KILLED - 0.008, KILLED - 0.004]


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        ([0.035, 0.039, 0.043], 0.035),
        ([0.001, 0.036, 0.040], 0.036),  # a step whose ring was complete
        ([LAST_COMMITS - 0.001, 0.090, 0.094], 0.090),
        ([0.035, 0.039, 1.5, 1.504], 0.035),  # the later pause has another reason
        ([0.035, 0.039, 2.9, 3.2], 0.035),
    ],
)
def test_the_longest_pause_that_begins_by_the_last_steps_of_the_victim(
    after: list[float], expected: float
) -> None:
    times = [*BEFORE, *(KILLED + one for one in after)]
    assert recovered(times, KILLED, KILLED + 3.0) == pytest.approx(KILLED + expected)


def test_a_survivor_that_does_not_commit_is_an_error() -> None:
    with pytest.raises(RuntimeError, match=r"no commit within 2\.0 s"):
        recovered([*BEFORE, KILLED + 2.5], KILLED, KILLED + 2.0)
