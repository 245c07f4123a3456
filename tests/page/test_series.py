"""Curves: bounded, extremes kept, and what is done once more is forgotten."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticdl.page.series import MOST, Point, Series, series_of


def series(values: list[float], most: int = MOST) -> Series:
    made = Series(most)
    for step, value in enumerate(values):
        made.add(Point(float(step), step, value))
    return made


def test_a_short_curve_has_all_its_points() -> None:
    assert [point.value for point in series([3.0, 1.0, 2.0]).points()] == [3.0, 1.0, 2.0]


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=400), st.integers(5, 40))
def test_it_is_bounded_and_keeps_its_extremes_and_the_last_point(values: list[float], most: int) -> None:
    points = series(values, most).points()
    kept = [point.value for point in points]
    assert len(points) <= most
    assert (min(kept), max(kept), kept[-1]) == (min(values), max(values), values[-1])
    assert [point.step for point in points] == sorted(point.step for point in points)
    assert all(values[point.step] == point.value for point in points)


def test_a_spike_of_one_step_in_a_million_stays() -> None:
    made = Series()
    for step in range(1_000_000):
        made.add(Point(float(step), step, 1000.0 if step == 123_456 else 1.0))
    points = made.points()
    assert len(points) <= MOST
    assert Point(123_456.0, 123_456, 1000.0) in points


def test_the_whole_curve_has_one_resolution() -> None:
    steps = [point.step for point in series([float(step % 7) for step in range(100_000)]).points()]
    halves = sum(step < 50_000 for step in steps), sum(step >= 50_000 for step in steps)
    assert 0.7 < halves[0] / halves[1] < 1.4


def test_later_steps_are_forgotten() -> None:
    made = series([float(step) for step in range(100)], 20)
    made.forget_after(50)
    assert max(point.step for point in made.points()) <= 50
    made.add(Point(200.0, 51, 7.0))
    assert made.points()[-1] == Point(200.0, 51, 7.0)
    made.forget_after(-1)
    assert made.points() == []


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_has_no_place_on_an_axis(value: float) -> None:
    assert len(series([1.0, value, 2.0]).points()) == 2


def test_rows_are_read_back() -> None:
    made = series([1.5, 2.25, 1 / 3])
    assert [point[:2] for point in series_of([list(row) for row in made.rows()]).points()] == [
        point[:2] for point in made.points()
    ]


@pytest.mark.parametrize("rows", [None, [[1, 2]], [["1", 2, 3.0]], [[1.0, 2.5, 3.0]], [[1.0, 2, None]]])
def test_other_rows_are_refused(rows: object) -> None:
    with pytest.raises(ValueError, match="expected"):
        series_of(rows)
