"""What one machine bears, and what one job on Kubernetes does."""

from __future__ import annotations

import os

from elasticdl.errors import BadSetting

_PER_CORE = 8
_ALWAYS = 16
_PODS = 1024
"""Workers of a job on Kubernetes: its journal has to fit into an object of the cluster."""


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def check_workers(workers: int, minimum: int, flag: str) -> None:
    """Refuse a number of workers that would bring this machine down rather than train: each one is a process with a framework of its own.

    Raises BadSetting, also for less than the job's minimum.
    """
    _check_minimum(workers, minimum, flag)
    most = max(_ALWAYS, _PER_CORE * cores())
    if workers > most:
        raise BadSetting(
            f"{flag}: {workers:,} workers are too many for this machine with {cores()} cores; the most is {most} "
            f"({_PER_CORE} for each core, or {_ALWAYS})"
        )


def check_pods(workers: int, minimum: int, flag: str) -> None:
    """Refuse a number of workers that a job on Kubernetes can't have, or less than its minimum. Raises BadSetting."""
    _check_minimum(workers, minimum, flag)
    if workers > _PODS:
        raise BadSetting(
            f"{flag}: a job on Kubernetes has at most {_PODS:,} workers, the most that its journal has room for; received {workers:,}"
        )


def _check_minimum(workers: int, minimum: int, flag: str) -> None:
    if workers < 1:
        raise BadSetting(
            f"{flag}: a job has at least 1 worker; asked for {workers} (`elasticdl stop` ends it)"
        )
    if workers < minimum:
        raise BadSetting(
            f"{flag}: the job has a minimum of {minimum} workers (its num_workers says so); received {workers}; "
            "`elasticdl stop` ends it"
        )
