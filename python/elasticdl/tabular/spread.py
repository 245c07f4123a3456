"""How values of a column are spread, in forms that can be merged: moments, the most frequent values, quantiles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Scalar = str | int | float

SKETCH = 1024
"""Hashes that tell how many distinct values there are, where not all are kept: the smallest ones (Bar-Yossef and others, "Counting
distinct elements in a data stream", 2002). Their number is off by 3 % then."""
_HASHES = float(1 << 64)


@dataclass(frozen=True, slots=True)
class Moments:
    """Number, mean, and sum of squared distances from it; merged as by Chan and others, "Updating formulae", 1979."""

    count: int
    mean: float
    squares: float

    @property
    def deviation(self) -> float:
        """Return the standard deviation, of the population; 0 of no values."""
        return float(np.sqrt(max(0.0, self.squares / self.count))) if self.count else 0.0

    def merged(self, other: Moments) -> Moments:
        """Return those of both."""
        if not self.count or not other.count:
            return self if self.count else other
        count, apart = self.count + other.count, other.mean - self.mean
        return Moments(
            count,
            self.mean + apart * other.count / count,
            self.squares + other.squares + apart * apart * self.count * other.count / count,
        )

    def rounded(self) -> Moments:
        """Return these, with mean and deviation as a float32 has them."""
        deviation = float(np.float32(self.deviation))
        return Moments(self.count, float(np.float32(self.mean)), deviation * deviation * self.count)


@dataclass(frozen=True, slots=True)
class Values:
    """Distinct values with their counts.

    Attributes:
        counts: the most frequent ones; the most frequent first, equally frequent ones in their order.
        distinct: how many there are; about, where `counts` has not all.
        sketch: the smallest hashes of distinct values, ascending.
    """

    counts: tuple[tuple[Scalar, int], ...]
    distinct: int
    sketch: tuple[int, ...] = ()

    @property
    def is_complete(self) -> bool:
        """Tell whether all values are there."""
        return self.distinct == len(self.counts)

    def merged(self, other: Values, most: int) -> Values:
        """Return those of both: at most so many."""
        counts = dict(self.counts)
        for value, count in other.counts:
            counts[value] = counts.get(value, 0) + count
        sketch = tuple(sorted({*self.sketch, *other.sketch})[:SKETCH])
        distinct = len(counts)
        if not self.is_complete or not other.is_complete:
            distinct = max(distinct, self.distinct, other.distinct, _distinct(sketch))
            distinct += distinct == len(counts) and len(counts) > 0  # one at least is not among them
        return Values(tuple(sorted(counts.items(), key=_by_count)[:most]), distinct, sketch)

    @staticmethod
    def of_json(found: Mapping[str, Any]) -> Values:
        """Read what `dataclasses.asdict` and JSON made of one."""
        return Values(
            tuple((value, count) for value, count in found["counts"]),
            found["distinct"],
            tuple(found["sketch"]),
        )


def _by_count(item: tuple[Scalar, int]) -> tuple[int, Any]:
    return -item[1], item[0]


def _distinct(sketch: Sequence[int]) -> int:
    """Estimate the number of distinct values from the smallest hashes."""
    if len(sketch) < SKETCH:
        return len(sketch)
    return round((SKETCH - 1) / (sketch[-1] / _HASHES))


def merged_quantiles(
    parts: Sequence[Sequence[float]], weights: Sequence[int], points: int
) -> tuple[float, ...]:
    """Return quantiles at `points` equal distances of the union of parts, of which quantiles at equal distances are known."""
    values = np.concatenate([np.asarray(part) for part in parts])
    weight = np.concatenate(
        [np.full(len(part), many / len(part)) for part, many in zip(parts, weights, strict=True)]
    )
    order = np.argsort(values, kind="stable")
    values, weight = values[order], weight[order]
    places = np.cumsum(weight) - weight / 2
    wanted = np.linspace(0, float(weight.sum()), points)
    found = values[np.clip(np.searchsorted(places, wanted), 0, len(values) - 1)]
    return float(values[0]), *map(float, found[1:-1]), float(values[-1])
