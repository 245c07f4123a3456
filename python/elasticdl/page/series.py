"""A curve that never has more than a fixed number of points, whatever the length of a job, and keeps its extremes.

Pure. Points are put into buckets of equally many, of which the lowest and the highest stay; when there are too many buckets, neighbours
are merged. So the whole curve has one resolution, and a spike of one step is still seen after a million.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from elasticdl.files import reading

MOST = 2000
"""Points of a curve: more than a screen has columns."""


class Point(NamedTuple):
    """One value.

    Attributes:
        time: seconds since the Unix epoch.
        step: the step that it belongs to.
        value: it.
    """

    time: float
    step: int
    value: float


@dataclass(slots=True)
class _Bucket:
    """What stays of some points in a row."""

    count: int
    low: Point
    high: Point

    def points(self) -> list[Point]:
        """Return what stays, in the order of time."""
        return [self.low] if self.low == self.high else sorted((self.low, self.high))

    def take(self, other: _Bucket) -> None:
        self.count += other.count
        self.low = min(self.low, other.low, key=_value)
        self.high = max(self.high, other.high, key=_value)


class Series:
    """One curve, of points whose times do not decrease."""

    def __init__(self, most: int = MOST) -> None:
        """Begin with none; `most`: points that it may have, at least 5."""
        self._buckets: list[_Bucket] = []
        self._stride = 1
        self._last: Point | None = None
        self._limit = (most - 1) // 2

    def add(self, point: Point) -> None:
        """Add a point at the end. One that is no finite number is left out: there is no place for it on an axis."""
        if not math.isfinite(point.value):
            return
        self._last = point
        if self._buckets and self._buckets[-1].count < self._stride:
            self._buckets[-1].take(_Bucket(1, point, point))
            return
        if len(self._buckets) >= self._limit:
            self._halve()
        self._buckets.append(_Bucket(1, point, point))

    def forget_after(self, step: int) -> None:
        """Leave out what belongs to later steps, which are done once more."""
        if self._last is None or self._last.step <= step:
            return
        kept = []
        for bucket in self._buckets:
            left = [point for point in bucket.points() if point.step <= step]
            if left:
                kept.append(_Bucket(bucket.count, min(left, key=_value), max(left, key=_value)))
        self._buckets = kept
        self._last = kept[-1].points()[-1] if kept else None

    def points(self) -> list[Point]:
        """Return what there is, in the order of time; the first lowest, the first highest and the last point are among them."""
        found = [point for bucket in self._buckets for point in bucket.points()]
        if self._last is not None and self._last != found[-1]:
            found.append(self._last)
        return found

    def rows(self) -> list[tuple[float, int, float]]:
        """Return the points as [time, step, value], short enough for a wire: `series_of` reads them."""
        return [(round(time, 3), step, float(f"{value:.6g}")) for time, step, value in self.points()]

    def _halve(self) -> None:
        self._stride *= 2
        for first, second in zip(self._buckets[::2], self._buckets[1::2], strict=False):
            first.take(second)
        self._buckets = self._buckets[::2]


def series_of(rows: Any, most: int = MOST) -> Series:
    """Make a series of what `rows` returned. Raises ValueError."""
    series = Series(most)
    for point in _read(rows):
        series.add(point)
    return series


def _read(rows: Any) -> Iterable[Point]:
    for row in reading.items(rows):
        time, step, value = reading.items(row, 3)
        yield Point(reading.number(time), reading.integer(step), reading.number(value))


def _value(point: Point) -> float:
    return point.value
