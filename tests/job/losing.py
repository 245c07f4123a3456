"""What happens to jobs that are looked at afterwards: a worker killed, the master killed, a worker drained."""

from __future__ import annotations

import os
import signal

from elasticdl.control.protocol.status import EventKind, JobEvent

from .conftest import Job
from .test_evaluation import master_of
from .test_faults import at_step, joins, kill, seen, training


def lose_one_of_each(job: Job, workers: int) -> None:
    """Kill one of so many workers, the master once another worker has joined, and then drain a worker."""
    at_step(job, 3, lambda status: kill(training(status)[-1]))
    joins(job, workers + 1)
    os.kill(master_of(job), signal.SIGKILL)
    at_step(job, 8, lambda status: kill(training(status)[0], signal.SIGTERM))
    for item in seen(job):
        if isinstance(item, JobEvent) and item.kind == EventKind.DRAINED:
            break
