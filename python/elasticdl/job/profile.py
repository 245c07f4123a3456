"""A profile of a few steps of a local job, as trace events that Perfetto and `chrome://tracing` open."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elasticdl.cluster.cluster import process_name
from elasticdl.cluster.local.place import JobPlace
from elasticdl.control.protocol.profiling import MOST_STEPS, Missing, Recorded
from elasticdl.control.transport.client import JobClient
from elasticdl.errors import BadSetting, JobFailed, MasterAway, Unwritable
from elasticdl.files.output import made_beside
from elasticdl.job.asking import ask
from elasticdl.spec.edge import check_target


@dataclass(frozen=True, slots=True)
class Profile:
    """What has come.

    Attributes:
        steps: of all workers.
        missing: a sentence for each worker that recorded less than was asked for.
    """

    steps: tuple[Recorded, ...]
    missing: tuple[str, ...]


IN_PODS = "only jobs on this machine can be profiled, not those on Kubernetes: train a few steps without --image_name"
"""Why a job on Kubernetes can't be profiled, and what to do instead."""


def default_output(job: str) -> Path:
    """Return where the profile of a job is written unless somebody says otherwise."""
    return Path(f"{job}-profile.json")


def profile(place: JobPlace, steps: int, output: Path) -> Profile:
    """Record the next steps of each worker, and write them; wait as long as the workers take for them.

    Raises BadSetting before anything is recorded, MasterAway, JobFailed if the job ended before any step did, Unwritable.
    """
    if not 1 <= steps <= MOST_STEPS:
        raise BadSetting(f"--steps is between 1 and {MOST_STEPS}; received {steps}")
    if output.is_dir():
        raise BadSetting(f"--output is the name of a file; {output} is a directory")
    check_target("output", output, directory=False)  # else the steps would be recorded for nothing
    if not place.running():
        raise BadSetting(f"{place.name} has ended; only a job that runs can be profiled")
    made = ask(place, lambda client: _collected(client, steps))
    if not made.steps:
        raise JobFailed(f"no step was recorded: {'; '.join(made.missing)}")
    try:
        with made_beside(str(output), output.name) as draft:
            draft.write_text(json.dumps(trace(place.name, made)) + "\n")
    except OSError as error:
        raise Unwritable(f"the profile can't be written to {output}", error, "ask for another one") from error
    return made


def _collected(client: JobClient, steps: int) -> Profile:
    recorded: list[Recorded] = []
    missing: list[str] = []
    try:
        for said in client.profile(steps):
            if isinstance(said, Missing):
                missing.append(said.text)
            else:
                recorded.append(said)
    except MasterAway:
        if not recorded:
            raise
        missing.append("the job's master went meanwhile, so steps are missing at the end")
    return Profile(tuple(recorded), tuple(missing))


def trace(job: str, made: Profile) -> dict[str, Any]:
    """Return a profile as a JSON object of Chrome's trace event format: one process for each worker, times in microseconds.

    Begins and ends are rounded down, so that phases that do not overlap in nanoseconds do not overlap in microseconds.
    """
    workers = sorted({one.worker for one in made.steps}, key=_place_of)
    events: list[dict[str, Any]] = []
    for pid, worker in enumerate(workers):
        events += _names(pid, worker)
        events += _events(pid, (one for one in made.steps if one.worker == worker))
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {"job": job, "missing": list(made.missing)},
    }


def _place_of(worker: str) -> tuple[int, int]:
    name = process_name(worker)
    return name.index, name.life


def _names(pid: int, worker: str) -> Sequence[dict[str, Any]]:
    return [
        {"name": "process_name", "ph": "M", "pid": pid, "tid": 0, "args": {"name": worker}},
        {"name": "process_sort_index", "ph": "M", "pid": pid, "tid": 0, "args": {"sort_index": pid}},
        {"name": "thread_name", "ph": "M", "pid": pid, "tid": 0, "args": {"name": "main thread"}},
    ]


def _events(pid: int, steps: Iterable[Recorded]) -> Iterable[dict[str, Any]]:
    for one in steps:
        step = one.step
        named = {"step": step.step}
        yield _event(pid, f"step {step.step}", "step", step.begin, step.duration, named)
        for phase in step.phases:
            yield _event(pid, phase.name, "phase", phase.begin, phase.duration, named)


def _event(
    pid: int, name: str, category: str, begin: int, duration: int, named: dict[str, int]
) -> dict[str, Any]:
    first, end = begin // 1000, (begin + duration) // 1000
    return {
        "name": name,
        "cat": category,
        "ph": "X",
        "ts": first,
        "dur": end - first,
        "pid": pid,
        "tid": 0,
        "args": named,
    }
