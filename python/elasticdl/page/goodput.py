"""Goodput: the share of a job's time in which it made progress that counts. Pure; rule V4.

A step counts if it was not given up later. It counts with the time that it took, but never with more than three times the median of the
last hundred, so that time in which the group was repaired is not taken for work. Time of evaluations is neither work nor loss.
"""

from __future__ import annotations

import statistics
from collections import deque
from dataclasses import dataclass
from typing import Any, NamedTuple

from elasticdl.files import reading

LONGEST = 3.0
"""Medians that a step counts at most."""
RECENT = 100
"""Steps of which the median is taken."""
MOST = 500
"""Stretches of steps that can still be given up one by one; neighbours are merged when there are more."""


class _Stretch(NamedTuple):
    """Steps that count: those after `after`, until `through`, with so many seconds in all."""

    after: int
    through: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Shares:
    """What a job's time was spent on.

    Attributes:
        goodput: share of the time since the first step, without evaluations; None before there is any.
        evaluating: seconds of evaluations.
        elapsed: seconds since the first step.
    """

    goodput: float | None
    evaluating: float
    elapsed: float


class Goodput:
    """What a job has made of its time so far; times are seconds that only grow, on any one clock."""

    def __init__(self) -> None:
        """Begin before the first step."""
        self._began: float | None = None
        self._at = 0.0
        self._step = 0
        self._stretches: list[_Stretch] = []
        self._recent: deque[float] = deque(maxlen=RECENT)
        self._evaluating = 0.0
        self._evaluated_since = 0.0

    def reached(self, time: float, step: int) -> None:
        """Take that `step` is committed at `time`."""
        if self._began is None:
            if step >= 1:
                self._began, self._at, self._step = time, time, step
            return
        steps = step - self._step
        if steps <= 0:
            return
        each = max(0.0, time - self._at - self._evaluated_since) / steps
        counted = min(each, self._longest(each)) * steps
        self._recent.extend([each] * min(steps, RECENT))
        self._stretches.append(_Stretch(self._step, step, counted))
        self._at, self._step, self._evaluated_since = time, step, 0.0
        if len(self._stretches) > MOST:
            self._merge()

    def evaluated(self, seconds: float) -> None:
        """Take that an evaluation has taken so long, since the last step."""
        if self._began is not None:
            self._evaluating += seconds
            self._evaluated_since += seconds

    def go_back(self, step: int) -> None:
        """Take that all steps after this one are done once more."""
        kept = [stretch for stretch in self._stretches if stretch.after < step]
        if kept and (last := kept[-1]).through > step:
            share = (step - last.after) / (last.through - last.after)
            kept[-1] = _Stretch(last.after, step, last.seconds * share)
        self._stretches = kept
        self._step = min(self._step, step)

    def shares(self, now: float, *, evaluates: bool = False) -> Shares:
        """Return what the time until now was spent on; `evaluates`: an evaluation is under way, whose time is not known yet."""
        if self._began is None:
            return Shares(None, 0.0, 0.0)
        # A step that is under way is neither work nor loss until it has taken long.
        is_soon = now - self._at - self._evaluated_since <= self._longest(0.0)
        until = self._at + self._evaluated_since if evaluates or is_soon else now
        elapsed = until - self._began - self._evaluating
        counted = sum(stretch.seconds for stretch in self._stretches)
        goodput = min(1.0, counted / elapsed) if elapsed > 0 else None
        return Shares(goodput, self._evaluating, max(0.0, until - self._began))

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values; `goodput_of` is the inverse."""
        return {
            "began": self._began,
            "at": self._at,
            "step": self._step,
            "stretches": [list(stretch) for stretch in self._stretches],
            "recent": list(self._recent),
            "evaluating": self._evaluating,
            "evaluated_since": self._evaluated_since,
        }

    def _longest(self, otherwise: float) -> float:
        return LONGEST * statistics.median(self._recent) if self._recent else otherwise

    def _merge(self) -> None:
        merged = []
        for first, second in zip(self._stretches[::2], self._stretches[1::2], strict=False):
            merged.append(_Stretch(first.after, second.through, first.seconds + second.seconds))
        self._stretches = [*merged, *self._stretches[2 * len(merged) :]]


def goodput_of(body: Any) -> Goodput:
    """Read what `Goodput.to_json` wrote. Raises ValueError."""
    found = Goodput()
    if (began := reading.field(body, "began")) is None:
        return found
    found._began = reading.number(began)
    found._at = reading.number(reading.field(body, "at"))
    found._step = reading.integer(reading.field(body, "step"))
    for stretch in reading.items(reading.field(body, "stretches")):
        after, through, seconds = reading.items(stretch, 3)
        found._stretches.append(
            _Stretch(reading.integer(after), reading.integer(through), reading.number(seconds))
        )
    found._recent.extend(map(reading.number, reading.items(reading.field(body, "recent"))))
    found._evaluating = reading.number(reading.field(body, "evaluating"))
    found._evaluated_since = reading.number(reading.field(body, "evaluated_since"))
    return found
