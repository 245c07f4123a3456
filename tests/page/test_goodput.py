"""Goodput (V4): steps that count, each with three medians at most, by the time since the first step without evaluations."""

from __future__ import annotations

import json

import pytest

from elasticdl.page.goodput import MOST, Goodput, goodput_of


def steady(steps: int, seconds: float = 1.0) -> Goodput:
    made = Goodput()
    for step in range(1, steps + 1):
        made.reached(step * seconds, step)
    return made


def test_nothing_is_known_before_the_first_step() -> None:
    made = Goodput()
    assert made.shares(10.0).goodput is None
    made.reached(1.0, 0)
    assert made.shares(10.0).goodput is None


def test_steady_steps_are_all_work() -> None:
    assert steady(50).shares(50.0).goodput == pytest.approx(1.0)


def test_of_a_pause_only_three_medians_count() -> None:
    made = steady(11)
    made.reached(41.0, 12)  # 30 seconds, of which 3 count
    assert made.shares(41.0).goodput == pytest.approx((10 + 3) / 40)


def test_a_step_that_is_under_way_is_no_loss_until_it_takes_long() -> None:
    made = steady(11)
    assert made.shares(13.9).goodput == pytest.approx(1.0)
    assert made.shares(31.0).goodput == pytest.approx(10 / 30)


def test_steps_that_are_given_up_do_not_count() -> None:
    made = steady(21)
    made.go_back(11)
    assert made.shares(21.0).goodput == pytest.approx(10 / 20)
    for step in range(12, 22):
        made.reached(10.0 + step, step)
    assert made.shares(31.0).goodput == pytest.approx(20 / 30)


def test_evaluations_are_left_out_of_both() -> None:
    made = steady(11)
    made.evaluated(100.0)
    made.reached(112.0, 12)
    shares = made.shares(112.0)
    assert shares.goodput == pytest.approx(1.0)
    assert shares.evaluating == 100.0
    assert shares.elapsed == pytest.approx(111.0)


def test_an_evaluation_under_way_is_no_loss() -> None:
    made = steady(11)
    assert made.shares(500.0, evaluates=True).goodput == pytest.approx(1.0)
    assert made.shares(500.0).goodput == pytest.approx(10 / 499)


def test_steps_that_are_reported_together_share_their_time() -> None:
    made = Goodput()
    made.reached(0.0, 10)
    made.reached(10.0, 20)
    assert made.shares(10.0).goodput == pytest.approx(1.0)
    made.go_back(15)
    assert made.shares(10.0).goodput == pytest.approx(0.5)


def test_what_is_kept_is_bounded_and_still_given_up_in_part() -> None:
    steps = 20 * MOST
    made = steady(steps)
    assert len(made.to_json()["stretches"]) <= MOST
    made.go_back(steps // 2)
    assert made.shares(float(steps)).goodput == pytest.approx(0.5, abs=1e-3)


def test_it_is_read_back() -> None:
    made = steady(20)
    made.evaluated(3.0)
    again = goodput_of(json.loads(json.dumps(made.to_json())))
    for one in (made, again):
        one.reached(25.0, 21)
    assert again.shares(26.0) == made.shares(26.0)
    assert goodput_of(Goodput().to_json()).shares(1.0).goodput is None


@pytest.mark.parametrize(
    "body", [{}, [], {"began": "now"}, {"began": 1.0, "at": 1.0, "step": 1, "stretches": [[1]]}]
)
def test_other_bodies_are_refused(body: object) -> None:
    with pytest.raises(ValueError):
        goodput_of(body)
