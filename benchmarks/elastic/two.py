"""Two jobs of 13 units each on 24 units: gang, all workers or none, against elastic."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.elastic import batch
from benchmarks.elastic.batch import Sizes, Way
from benchmarks.elastic.cluster import UNITS
from benchmarks.elastic.outcome import Outcome
from benchmarks.elastic.telling import batch_table, judged, places_table
from benchmarks.recorded import Bar
from elasticdl.cluster.kubernetes.api import Api

FULL, SHORT = Sizes(1200.0, 4.0), Sizes(45.0, 2.0)
WANTED = 13
"""Units that each job wants."""
JOBS = ("first", "second")
APART_SECONDS = 5.0
"""Between the two submissions: the first job's pods come first into the scheduler's queue. Otherwise a gang could wait for ever, with
twelve pods each."""


def apart(submitted: int, active: int, seconds: float) -> bool:
    """Submit one job after the other."""
    return seconds >= submitted * APART_SECONDS


WAYS = (
    Way("gang", f"{WANTED}:{WANTED}", admits=apart, together=False),
    Way("elastic", f"1:{WANTED}", admits=apart, together=False),
    # Twelve of each job's workers are of high priority: the second job takes the first one's thirteenth unit, and both end together.
    Way("even", f"1:{WANTED}", priority="0.92", admits=apart, together=False),
)


def run(api: Api, way: Way, sizes: Sizes, folder: Path) -> Outcome:
    """Run both jobs."""
    return batch.run(api, way, JOBS, WANTED, sizes, folder)


def table(outcomes: Sequence[Outcome]) -> str:
    """Return the figures as tables in Markdown."""
    return f"{batch_table(outcomes)}\n\n{places_table(outcomes)}"


def verdicts(outcomes: Sequence[Outcome]) -> tuple[Bar, ...]:
    """Return the figures that there are demands on; those of the other ways are beside them in the table."""
    by_way = {outcome.way: outcome for outcome in outcomes}
    found = []
    if even := by_way.get("even"):
        found.append(judged("two jobs: used", even.used, f"{even.used:.1%}", 0.95, 0.98))
        if gang := by_way.get("gang"):
            part = even.makespan / gang.makespan
            found.append(judged("two jobs: makespan against gang", part, f"{part - 1:+.1%}", 0.56, 0.54))
    return tuple(found)


def mistakes(outcomes: Sequence[Outcome]) -> list[str]:
    """Return what shows that a way was not what it is meant to be."""
    by_way = {outcome.way: outcome for outcome in outcomes}
    found = []
    if (elastic := by_way.get("elastic")) and any(job.members != WANTED for job in elastic.jobs):
        found.append(f"elastic: not both jobs train with {WANTED} workers at some time")
    if (gang := by_way.get("gang")) and gang.jobs[1].first_step <= gang.jobs[0].ended:
        found.append("gang: the second job commits a step before the first has ended")
    if even := by_way.get("even"):
        least = min(job.members for job in even.jobs)
        if least < UNITS // 2:
            found.append(f"even: a job never has more than {least} workers")
    return found
