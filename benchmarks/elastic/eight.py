"""Eight jobs of ten units each, submitted together, on 24 units: a queue of gangs against elastic jobs that share from the beginning.

The gangs' queue is in front of the cluster, as that of Kueue is: it admits the next job when all its units are free, so that none holds
units in vain. What a job waits there counts as its own.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

from benchmarks.elastic import batch
from benchmarks.elastic.batch import Sizes, Way
from benchmarks.elastic.cluster import UNITS
from benchmarks.elastic.outcome import Outcome
from benchmarks.elastic.telling import judged, places_table, share_of
from benchmarks.recorded import Bar
from elasticdl.cluster.kubernetes.api import Api

FULL, SHORT = Sizes(200.0, 4.0), Sizes(40.0, 2.0)
WANTED = 10
"""Units that each job wants."""
JOBS = tuple(f"job-{number}" for number in range(1, 9))


def room_for_all(submitted: int, active: int, seconds: float) -> bool:
    """Submit the next job when all its units are free."""
    return (active + 1) * WANTED <= UNITS


WAYS = (
    Way("gang", f"{WANTED}:{WANTED}", admits=room_for_all),
    # Three workers of each job are of high priority, which is all units: no job waits for another one's end to begin.
    Way("elastic", f"1:{WANTED}", priority="0.3"),
)


def run(api: Api, way: Way, sizes: Sizes, folder: Path) -> Outcome:
    """Run all jobs."""
    return batch.run(api, way, JOBS, WANTED, sizes, folder)


def waits(outcome: Outcome) -> list[float]:
    """Return what each job waits for its first step."""
    return [job.first_step - job.submitted for job in outcome.jobs]


def table(outcomes: Sequence[Outcome]) -> str:
    """Return the figures as tables in Markdown."""
    lines = [
        "| | makespan | used | first step, mean | first step, last job | a job ends after, mean | computed again |",
        "| --- " * 7 + "|",
    ]
    for outcome in outcomes:
        ends = statistics.mean(job.ended - job.submitted for job in outcome.jobs)
        lines.append(
            f"| {outcome.way} | {outcome.makespan:.0f} s | {outcome.used:.1%} | {statistics.mean(waits(outcome)):.0f} s "
            f"| {max(waits(outcome)):.0f} s | {ends:.0f} s | {share_of(outcome)} |"
        )
    return "\n".join([*lines, "", places_table(outcomes)])


def verdicts(outcomes: Sequence[Outcome]) -> tuple[Bar, ...]:
    """Return the figures that there are demands on."""
    by_way = {outcome.way: outcome for outcome in outcomes}
    if set(by_way) != {way.name for way in WAYS}:
        return ()
    part = statistics.mean(waits(by_way["elastic"])) / statistics.mean(waits(by_way["gang"]))
    return (judged("eight jobs: mean time to the first step", part, f"{part - 1:+.1%}", 0.4, 0.2),)


def mistakes(outcomes: Sequence[Outcome]) -> list[str]:
    """Return what shows that a way was not what it is meant to be."""
    return [
        f"gang: a step of {job.name} has not {WANTED} workers"
        for outcome in outcomes
        if outcome.way == "gang"
        for job in outcome.jobs
        if job.members != WANTED
    ]
