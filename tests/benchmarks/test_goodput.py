"""What of a job's time is lost to kills."""

from __future__ import annotations

import itertools

import pytest

from benchmarks.goodput import lost_share

STEP = 0.05
BEGAN, FIRST, END = 100.0, 110.0, 130.0


def moments(takes: list[float]) -> list[float]:
    return list(itertools.accumulate(takes, initial=BEGAN))


@pytest.mark.parametrize(
    ("takes", "lost"),
    [
        ([STEP] * 700, 0.0),
        # a step that was begun, a repair of 0.07 s, and a pause of 0.03 s
        ([STEP] * 200 + [STEP / 2 + 0.07 + STEP] + [STEP] * 10 + [STEP + 0.03] + [STEP] * 500, 0.125 / 20),
        # all steps take a quarter longer until a process has started
        ([STEP] * 200 + [STEP * 1.25] * 160 + [STEP] * 500, 0.1),
    ],
)
def test_what_is_missing_of_the_steps_that_were_made_before_is_lost(takes: list[float], lost: float) -> None:
    found, usual = lost_share(moments(takes), BEGAN, FIRST, END)
    assert usual == pytest.approx(STEP)
    assert found == pytest.approx(lost, abs=1e-6)
