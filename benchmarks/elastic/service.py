"""An online service whose pods follow a day's curve at high priority, and one elastic job of low priority that fills what is left.

The day begins when the job trains in all units that the service leaves, as it would have been doing on the day before, and at its end the
job is stopped. Nothing forecasts the curve: the scheduler takes workers for the service's pods, and places those that wait when some leave.
"""

from __future__ import annotations

import math
import statistics
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.elastic import batch
from benchmarks.elastic.batch import Sizes, Way
from benchmarks.elastic.cluster import HIGH, LOW, START_SECONDS, UNIT, UNITS
from benchmarks.elastic.holding import Life, Watching
from benchmarks.elastic.jobs import ELASTICDL, Running
from benchmarks.elastic.outcome import Outcome
from benchmarks.elastic.telling import judged, places_table, share_of
from benchmarks.recorded import Bar
from elasticdl.cluster.kubernetes.api import Api
from tests.kubernetes.node import PAUSE

FULL, SHORT = Sizes(600.0, 1.0), Sizes(300.0, 1.0)
HOURS = 24
LOWEST, HIGHEST = 0.2, 0.8
"""Shares of the units that the service has at night and at noon."""
JOB = "filler"
WAYS = (Way("service", f"1:{UNITS}", priority=LOW),)


def wanted(hour: int) -> int:
    """Return how many pods the service has in an hour of the day."""
    middle, swing = (LOWEST + HIGHEST) / 2, (HIGHEST - LOWEST) / 2
    return round(UNITS * (middle - swing * math.cos(2 * math.pi * hour / HOURS)))


def run(api: Api, way: Way, sizes: Sizes, folder: Path) -> Outcome:
    """Run a day; raises RuntimeError if the job fails or does not begin, AuditFailed if its records are not in order."""
    # More than all units could compute meanwhile, and until the day begins: the job has work as long as it is wanted.
    records = round(UNITS * (sizes.seconds + START_SECONDS) / sizes.chunk_seconds)
    job = Running(JOB, folder, records, sizes.chunk_seconds)
    watching = Watching(api)
    pods = Service(api)
    try:
        pods.become(wanted(0))
        job.start(way.settings)
        _wait(watching, job, UNITS - wanted(0))
        begin, idle_before = watching.now(), batch.processors()
        for hour in range(HOURS):
            pods.become(wanted(hour))
            while watching.now() < begin + (hour + 1) * sizes.seconds / HOURS:
                if job.ended:
                    raise RuntimeError(f"{JOB} has ended before the day")
                time.sleep(batch.LOOK_SECONDS)
        end, idle = watching.now(), batch.idle_since(idle_before)
        stop = [ELASTICDL, "stop", JOB, "--namespace=default"]
        subprocess.run(stop, check=True, capture_output=True, timeout=START_SECONDS)
        ended = watching.now()
    finally:
        watching.close()
        pods.become(0)
        batch.end(api, [job])
    found = job.read(watching.began, 0.0, ended, whole=False)
    return Outcome(way.name, begin, end, (found,), watching.lives(), idle)


def _wait(watching: Watching, job: Running, workers: int) -> None:
    """Wait until so many workers have each computed a chunk of the job."""
    while sum(path.stat().st_size > 0 for path in job.chunks.iterdir()) < workers:
        if job.ended or watching.now() > START_SECONDS:
            raise RuntimeError(f"{JOB} does not train with {workers} workers after {watching.now():.0f} s")
        time.sleep(batch.LOOK_SECONDS)


class Service:
    """The service's pods; which of them end is the youngest first, as a Deployment chooses among pods that are all alike."""

    def __init__(self, api: Api) -> None:
        """Have no pods yet."""
        self._api = api
        self._names: list[str] = []
        self._made = 0

    def become(self, count: int) -> None:
        """Have so many pods."""
        while len(self._names) > count:
            self._api.delete("Pod", self._names.pop())
        while len(self._names) < count:
            self._made += 1
            name = f"service-{self._made}"
            self._names.append(name)
            self._api.create(_pod(name))


def _pod(name: str) -> dict[str, Any]:
    """Return a pod of the service, whose program is there at once."""
    container = {
        "name": "main",
        "image": PAUSE,
        "imagePullPolicy": "Never",
        "resources": {"requests": {UNIT: "1"}, "limits": {UNIT: "1"}},
    }
    spec = {"priorityClassName": HIGH, "containers": [container], "terminationGracePeriodSeconds": 1}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def waits(outcome: Outcome) -> list[float]:
    """Return how long the service's pods of the day took from their creation until they ran."""
    return sorted(
        (outcome.end if life.running is None else life.running) - life.created for life in came(outcome)
    )


def came(outcome: Outcome) -> list[Life]:
    """Return the service's pods that were created during the day."""
    return [life for life in outcome.service if life.created >= outcome.begin]


def gave_way(outcome: Outcome) -> list[float]:
    """Return how long workers that were asked to end during the day still held their units."""
    return [
        life.ended - life.asked
        for life in outcome.lives
        if life.owner == JOB and life.placed is not None and life.asked is not None and life.ended is not None
        if outcome.begin <= life.asked and life.ended <= outcome.end
    ]


def table(outcomes: Sequence[Outcome]) -> str:
    """Return the figures as tables in Markdown."""
    lines = [
        "| day | used | the service's pods that came | run after, median | run after, worst | placed after, median "
        "| workers that gave way | end after, median | the job's committed steps | tried twice | computed again "
        "| beyond its chunk, a step takes |",
        "| --- " * 12 + "|",
    ]
    for outcome in outcomes:
        (job,) = outcome.jobs
        times, ends = waits(outcome), gave_way(outcome)
        placed = statistics.median(
            (outcome.end if life.placed is None else life.placed) - life.created for life in came(outcome)
        )
        lines.append(
            f"| {outcome.makespan:.0f} s | {outcome.used:.1%} | {len(times)} | {statistics.median(times):.1f} s "
            f"| {times[-1]:.1f} s | {placed:.1f} s | {len(ends)} | {statistics.median(ends or [0.0]):.1f} s "
            f"| {job.steps} | {job.redone} | {share_of(outcome)} | {job.overhead * 1e3:.0f} ms |"
        )
    return "\n".join([*lines, "", places_table(outcomes)])


def verdicts(outcomes: Sequence[Outcome]) -> tuple[Bar, ...]:
    """Return the figures that there are demands on."""
    found = []
    for outcome in outcomes:
        worst = waits(outcome)[-1]
        found.append(judged("service and job: used", outcome.used, f"{outcome.used:.1%}", 0.96, 0.98))
        found.append(judged("service: the slowest pod runs after", worst, f"{worst:.1f} s", 3.0, 2.0))
    return tuple(found)


def mistakes(outcomes: Sequence[Outcome]) -> list[str]:
    """Return what shows that a day was not what it is meant to be."""
    return [f"{life.pod} never ran" for outcome in outcomes for life in came(outcome) if life.running is None]
