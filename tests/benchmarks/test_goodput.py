"""What of a job's time is lost to a kill and a join."""

from __future__ import annotations

import pytest

from benchmarks.goodput import lost_seconds

STEP = 0.05


def test_what_the_steps_around_a_disturbance_take_beyond_the_usual_one_is_lost() -> None:
    takes = [STEP] * 20 + [STEP + 0.07, STEP - 0.01, STEP] + [STEP] * 20 + [0.1] + [STEP] * 20
    times = [100.0]
    for one in takes:
        times.append(times[-1] + one)
    killed = times[20] + 0.04
    lost, usual = lost_seconds(times, [(killed, killed + 0.5)])
    assert usual == pytest.approx(STEP)
    assert lost == pytest.approx(0.07)  # the later long step has another reason, and a short one is no gain
    assert lost_seconds(times, [])[0] == 0
