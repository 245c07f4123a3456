"""A batch of jobs that want more than the cluster has, submitted at about the same time, until the last has ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.elastic.cluster import HIGH, START_SECONDS
from benchmarks.elastic.holding import Watching
from benchmarks.elastic.jobs import Running
from benchmarks.elastic.outcome import Outcome
from elasticdl.cluster.kubernetes.api import Api

LOOK_SECONDS = 0.1
"""Between two looks at commands, clock and files at once, which nothing waits for together; what they find is no more exact."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How long an experiment takes.

    Attributes:
        seconds: of one job's chunks with all workers that it wants, or of a service's day.
        chunk_seconds: of one chunk.
    """

    seconds: float
    chunk_seconds: float


def at_once(submitted: int, active: int, seconds: float) -> bool:
    """Submit each job at the beginning."""
    return True


@dataclass(frozen=True, slots=True)
class Way:
    """How jobs take their workers.

    Attributes:
        name: of the way.
        num_workers: as `--num_workers` says it.
        priority: as `--worker_pod_priority` says it; empty: the cluster's default.
        admits: tells of the next job whether it is submitted, by the jobs before it, those of them that have not ended, and the time.
        together: people submit all jobs at the beginning, whenever they are admitted.
    """

    name: str
    num_workers: str
    priority: str = ""
    admits: Callable[[int, int, float], bool] = at_once
    together: bool = True

    @property
    def settings(self) -> Mapping[str, object]:
        """Return what a job's command is given."""
        classes = {"worker_pod_priority": self.priority, "master_pod_priority": HIGH}
        return {"num_workers": self.num_workers, **(classes if self.priority else {})}


def run(api: Api, way: Way, names: tuple[str, ...], wanted: int, sizes: Sizes, folder: Path) -> Outcome:
    """Run all jobs; raises RuntimeError if one fails or takes too long, AuditFailed if its records are not in order."""
    records = wanted * max(1, round(sizes.seconds / sizes.chunk_seconds))
    jobs = [Running(name, folder, records, sizes.chunk_seconds) for name in names]
    submitted: dict[str, float] = {}
    ended: dict[str, float] = {}
    idle_before = processors()
    watching = Watching(api)
    # One after the other, and as long again as one job.
    until = START_SECONDS + (len(jobs) + 1) * sizes.seconds
    try:
        while len(ended) < len(jobs):
            for job in jobs[len(submitted) :]:
                now = watching.now()
                if not way.admits(len(submitted), len(submitted) - len(ended), now):
                    break
                submitted[job.name] = 0.0 if way.together else now
                job.start(way.settings)
            for job in jobs:
                if job.name not in ended and job.ended:
                    ended[job.name] = watching.now()
            if watching.now() >= until:
                raise RuntimeError(f"{way.name}: not done after {until:.0f} s")
            time.sleep(LOOK_SECONDS)
        idle = idle_since(idle_before)
    finally:
        watching.close()
        end(api, jobs)
    found = tuple(job.read(watching.began, submitted[job.name], ended[job.name]) for job in jobs)
    return Outcome(way.name, 0.0, max(ended.values()), found, watching.lives(), idle)


def end(api: Api, jobs: list[Running]) -> None:
    """Remove what jobs made, and wait until it has gone: those of the next way find an empty cluster."""
    for job in jobs:
        job.kill()
        api.delete("Job", job.name)
    until = time.monotonic() + START_SECONDS
    while any(api.list(kind, "app.kubernetes.io/name=elasticdl")[0] for kind in ("Job", "Pod")):
        if time.monotonic() >= until:
            raise RuntimeError(f"pods of jobs are still there after {START_SECONDS:.0f} s")
        time.sleep(LOOK_SECONDS)


def processors() -> tuple[float, float]:
    """Return the idle and the whole time of the machine's processors so far."""
    times = [float(one) for one in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return times[3] + times[4], sum(times)


def idle_since(before: tuple[float, float]) -> float:
    """Return the share of the processors that nobody has used since."""
    idle, total = (now - then for now, then in zip(processors(), before, strict=True))
    return idle / total
