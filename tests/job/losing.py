"""What happens to jobs that are looked at afterwards: a worker killed, the master killed, a worker drained for good."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

from elasticdl.audit import audit
from elasticdl.control.protocol.status import EventKind, JobEvent

from .conftest import Job
from .test_evaluation import master_of
from .test_faults import at_step, joins, kill, scale, seen, training


def lose_one_of_each(job: Job, workers: int) -> None:
    """Kill the first of so many workers, the master once another worker has joined, and let the last worker drain.

    It drains because one fewer is wanted, by the same signal: nobody is started in its place, who would import a framework for nothing.
    """
    at_step(job, 3, lambda status: kill(training(status)[0]))
    joins(job, workers + 1)
    os.kill(master_of(job), signal.SIGKILL)
    at_step(job, 8, scale(workers - 1))
    for item in seen(job):
        if isinstance(item, JobEvent) and item.kind == EventKind.DRAINED:
            break


def survived(job: Job, directory: Path, records: int, epochs: int) -> dict[str, Any]:
    """Let a job of two workers lose one of each, and end; return its summary, once every record is counted and digests are equal.

    The directory has its audit, its state, and the file `go`, for which the job's pace waits.
    """
    lose_one_of_each(job, 2)
    (directory / "go").touch()
    summary = job.wait().succeeded().summary
    assert [epoch.counted for epoch in audit(directory / "audit").epochs] == [records] * epochs
    assert (summary["members"]["lost"], summary["members"]["drained"]) == (1, 1)
    (events,) = (directory / "state").glob("**/events.jsonl")
    said = [one for one in map(json.loads, events.read_text().splitlines()) if one["kind"] == "digest"]
    assert {one["text"] for one in said} == {summary["digest"]}
    return summary
