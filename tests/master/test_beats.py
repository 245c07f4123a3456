"""A heartbeat is given to a master once, however often it is seen, and each member's last one is known at each look."""

from __future__ import annotations

import pytest

from elasticdl.control.protocol.view import MemberId
from elasticdl.master.core.events import Beat
from elasticdl.master.running.beats import Beats, Sign

A, B = MemberId("a" * 32), MemberId("b" * 32)


def sign(member: MemberId, age: float, view: int = 1, step: int = 2, progress: int = 3) -> Sign:
    return member, view, step, progress, age, True


def test_a_beat_is_news_once() -> None:
    beats = Beats()
    assert beats.heard(100.0, [sign(A, 0.5), sign(B, 0.25)]) == (
        [Beat(A, 1, 2, 3, 0.5), Beat(B, 1, 2, 3, 0.25)],
        {A: 99.5, B: 99.75},
    )
    assert beats.heard(100.25, [sign(A, 0.75), sign(B, 0.0)]) == (
        [Beat(B, 1, 2, 3, 0.0)],
        {A: 99.5, B: 100.25},
    )


@pytest.mark.parametrize("what", ["view", "step", "progress"])
def test_a_beat_that_says_something_else_is_news(what: str) -> None:
    beats = Beats()
    beats.heard(100.0, [sign(A, 0.5)])
    news, _ = beats.heard(100.0, [sign(A, 0.5, **{what: 7})])
    assert [getattr(beat, what) for beat in news] == [7]


def test_times_of_one_beat_do_not_drift() -> None:
    beats = Beats()
    beats.heard(100.0, [sign(A, 0.0)])
    came = 100.0
    for look in range(1, 40):
        came += 0.004  # each look is a little late
        beats.heard(came + look, [sign(A, float(look))])
    _, at = beats.heard(came + 40, [sign(A, 40.0)])
    assert abs(at[A] - came) < 0.01


def test_who_registers_or_is_seen_again_is_news() -> None:
    beats = Beats()
    beats.heard(100.0, [sign(A, 0.5)])
    beats.forget(A)
    beats.forget(B)
    assert beats.heard(100.25, [sign(A, 0.75)])[0] == [Beat(A, 1, 2, 3, 0.75)]
    assert beats.heard(100.5, []) == ([], {})
    assert beats.heard(100.75, [sign(A, 1.25)])[0] == [Beat(A, 1, 2, 3, 1.25)]
