"""What a job's page shows, gathered from the statuses, events and steps that somebody sees of the job: its master, or a command.

It decides nothing and asks nobody. One thread may add to it while others read: each call is whole.
"""

from __future__ import annotations

import bisect
import json
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from elasticdl.cluster.cluster import Role
from elasticdl.control.protocol.status import WORKING, EventKind, JobEvent, JobStatus
from elasticdl.files import reading
from elasticdl.page.goodput import Goodput, Shares, goodput_of
from elasticdl.page.series import MOST, Point, Series, series_of
from elasticdl.page.timeline import Timeline

MOST_EVENTS = 10_000
FORMAT = 1
"""Format number of kept curves."""
_INTRODUCTION_SECONDS = 3.0
"""For so long a new master may not have heard of all workers, which is not their end, and hears at once of all that they did meanwhile."""
LOSS, RATE, WORKERS = "loss", "records_per_second", "workers"
"""Names of curves; others are metrics of evaluations."""


@dataclass(frozen=True, slots=True)
class Moment:
    """Figures of one moment.

    Attributes:
        status: how the job stands, None before anybody has said so.
        shares: what its time was spent on.
        values: the last value of each curve.
        events: how many events of each kind there were.
    """

    status: JobStatus | None
    shares: Shares
    values: dict[str, float]
    events: dict[str, int]


class Recording:
    """What has been seen of one job."""

    def __init__(self, began: float, now: Callable[[], float] = time.time) -> None:
        """Begin with nothing.

        Args:
            began: when the job was submitted, in seconds since the Unix epoch.
            now: the time in seconds since the Unix epoch.
        """
        self._now = now
        self._lock = threading.Lock()
        self._status: JobStatus | None = None
        self._events: deque[JobEvent] = deque(maxlen=MOST_EVENTS)
        self._counts: dict[str, int] = {}
        self._timeline = Timeline(began)
        self._curves: dict[str, Series] = {}
        self._goodput = Goodput()
        self._step = 0
        self._kept_at = 0.0
        self._complete_at = 0.0
        self._ended_at: float | None = None

    # ------------------------------------------------------------------ what is seen

    def event(self, event: JobEvent) -> None:
        """Take an event, new or read back; those before the curves that were recalled are in these already."""
        with self._lock:
            self._events.append(event)
            self._counts[event.kind] = self._counts.get(event.kind, 0) + 1
            self._timeline.take(event)
            if event.kind in (EventKind.FINISHED, EventKind.FAILED):
                self._ended_at = event.time
            if event.kind == EventKind.MASTER:
                self._complete_at = event.time + _INTRODUCTION_SECONDS
            if event.time <= self._kept_at:
                return
            if event.kind in (EventKind.VIEW, EventKind.ROLLED_BACK):
                self._go_back(event.step)
            if event.kind == EventKind.EVALUATED:
                self._goodput.evaluated(event.seconds or 0.0)
                for name, value in event.values:
                    self._add(name, Point(event.time, event.step, value))

    def status(self, status: JobStatus) -> None:
        """Take how the job stands now."""
        self.progress(status.step, status.loss)
        with self._lock:
            self._status = status
            if self._ended_at is not None:
                return
            now = self._now()
            if now < self._complete_at:
                return
            if status.records_per_second is not None:
                self._add(RATE, Point(now, status.step, status.records_per_second))
            workers = [worker for worker in status.workers if worker.name.startswith(Role.WORKER)]
            at_work = sum(worker.state in WORKING for worker in workers)
            self._add(WORKERS, Point(now, status.step, at_work))

    @property
    def step(self) -> int:
        """Return the last step that is known to be committed."""
        return self._step

    def progress(self, step: int, loss: float | None) -> None:
        """Take that a step is committed now, with the mean loss of its records if that is known."""
        with self._lock:
            if step <= self._step:
                return
            now, self._step = self._now(), step
            self._goodput.reached(now, step)
            if loss is not None:
                self._add(LOSS, Point(now, step, loss))

    def close(self) -> None:
        """Do nothing: it may be looked at for a moment yet."""

    def _go_back(self, step: int) -> None:
        self._goodput.go_back(step)
        self._step = min(self._step, step)
        for name, curve in self._curves.items():
            if name not in (RATE, WORKERS):
                curve.forget_after(step)

    def _add(self, name: str, point: Point) -> None:
        self._curves.setdefault(name, Series()).add(point)

    # ------------------------------------------------------------------ what is kept for the next master

    def curves(self, most: int = MOST) -> str:
        """Return the curves as text, with at most so many points each; `recall` reads them."""
        with self._lock:
            kept = {name: self._thinned(curve, most).rows() for name, curve in self._curves.items()}
            goodput = self._goodput.to_json()
            body = {
                "format": FORMAT,
                "time": self._now(),
                "step": self._step,
                "goodput": goodput,
                "curves": kept,
            }
        return json.dumps(body, separators=(",", ":"))

    def recall(self, text: str) -> None:
        """Take curves that were kept, in place of those that there are. Raises ValueError; then nothing has changed."""
        body = reading.load(text)
        if reading.integer(reading.field(body, "format")) != FORMAT:
            raise ValueError(f"curves of format {body['format']}; this version reads format {FORMAT}")
        curves = {
            name: series_of(rows) for name, rows in reading.fields(reading.field(body, "curves")).items()
        }
        goodput = goodput_of(reading.field(body, "goodput"))
        step, at = reading.integer(reading.field(body, "step")), reading.number(reading.field(body, "time"))
        with self._lock:
            self._curves, self._goodput, self._step, self._kept_at = curves, goodput, step, at

    def _thinned(self, curve: Series, most: int) -> Series:
        if most >= MOST:
            return curve
        thin = Series(most)
        for point in curve.points():
            thin.add(point)
        return thin

    # ------------------------------------------------------------------ what is shown

    def moment(self) -> Moment:
        """Return the figures of now."""
        with self._lock:
            last = {
                name: points[-1].value for name, curve in self._curves.items() if (points := curve.points())
            }
            return Moment(self._status, self._shares(), last, dict(self._counts))

    def status_json(self) -> dict[str, Any]:
        """Return how the job stands, as plain values: `job` is what `elasticdl status` knows, None before there is anything."""
        with self._lock:
            shares, status = self._shares(), self._status
            return {
                "time": self._now(),
                "job": None if status is None else _finite(asdict(status)),
                "goodput": shares.goodput,
                "evaluation_seconds": shares.evaluating,
                "seconds_since_first_step": shares.elapsed,
                "last_event": self._last_time(),
                "timeline": self._timeline.version,
            }

    def timeline_json(self) -> dict[str, Any]:
        """Return the time line as plain values."""
        with self._lock:
            return {"version": self._timeline.version, **self._timeline.to_json()}

    def series_json(self) -> dict[str, Any]:
        """Return all curves as plain values: [seconds since the Unix epoch, step, value] of each point."""
        with self._lock:
            return {"series": {name: curve.rows() for name, curve in self._curves.items()}}

    def metric_points(self) -> dict[str, list[Point]]:
        """Return the curves of the loss and of metrics of evaluations, by name."""
        with self._lock:
            return {
                name: points
                for name, curve in self._curves.items()
                if name not in (RATE, WORKERS) and (points := curve.points())
            }

    def last_metrics(self) -> dict[str, float]:
        """Return the metrics of the last evaluation, by name; empty if there has been none."""
        with self._lock:
            last = next((one for one in reversed(self._events) if one.kind == EventKind.EVALUATED), None)
        return {} if last is None else dict(last.values)

    def last_time(self) -> float:
        """Return the time of the last event, in seconds since the Unix epoch; 0 if there has been none."""
        with self._lock:
            return self._last_time()

    def events_after(self, since: float) -> list[JobEvent]:
        """Return the events later than `since`, in seconds since the Unix epoch."""
        with self._lock:
            events = list(self._events)
        return events[bisect.bisect_right(events, since, key=lambda event: event.time) :]

    def _last_time(self) -> float:
        return self._events[-1].time if self._events else 0.0

    def _shares(self) -> Shares:
        evaluates = self._status is not None and self._status.state == "evaluating"
        return self._goodput.shares(self._ended_at or self._now(), evaluates=evaluates)


def _finite(body: dict[str, Any]) -> dict[str, Any]:
    """Return values that JSON has: figures of a job that has diverged may be no numbers."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in body.items()
    }
