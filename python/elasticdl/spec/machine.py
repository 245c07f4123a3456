"""What one machine bears, and what one job on Kubernetes does."""

from __future__ import annotations

import os
import resource

from elasticdl.errors import BadSetting
from elasticdl.spec.jobspec import JobKind, JobSpec

_PER_CORE = 8
_ALWAYS = 16
_DESCRIPTORS = 64
"""Files that any process of a job may have open, with those of its framework; and for each worker and server of the job:"""
_DESCRIPTORS_EACH = 8
"""Measured with 4 workers and 3 servers: 18 in a worker, 28 in the master and in a server, of which each connection takes one or two."""
_PODS = 1024
"""Workers of a job on Kubernetes, and parameter servers: its journal has to fit into an object of the cluster."""


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def threads_per_worker(spec: JobSpec) -> int:
    """Return the threads with which each worker computes: fixed for the job, because results depend on them in their last bits.

    What a trained model gives must not depend on the number of workers either.
    """
    if spec.kind not in (JobKind.TRAIN, JobKind.PROCESS):
        return spec.threads_per_worker or (cores() if spec.on_kubernetes else 1)
    return spec.threads_per_worker or max(1, cores() // spec.num_workers.maximum)


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


def check_servers(spec: JobSpec, servers: int, flag: str) -> None:
    """Refuse a number of parameter servers that a job can't have, or not with its settings. Raises BadSetting."""
    if not spec.num_ps_pods:
        raise BadSetting(
            f"{flag}: the job has no parameter servers, its workers hold the model; a job has them from its start on or never"
        )
    if servers < spec.replicas:
        raise BadSetting(
            f"{flag}: {spec.replicas} servers hold each part of the job's model (ps_replicas), so it needs as many; received {servers}"
            if servers > 0
            else f"{flag}: a job with parameter servers has at least 1; received {servers} (`elasticdl stop` ends it)"
        )
    most = _PODS if spec.on_kubernetes else max(_ALWAYS, _PER_CORE * cores())
    if servers > most:
        where = "a job on Kubernetes" if spec.on_kubernetes else f"a job on this machine with {cores()} cores"
        raise BadSetting(f"{flag}: {where} has at most {most:,} parameter servers; received {servers:,}")


def check_scale(spec: JobSpec, workers: int | None, servers: int | None) -> None:
    """Refuse numbers of workers and parameter servers that a running job can't have; None: as many as now. Raises BadSetting."""
    if workers is not None:
        check = check_pods if spec.on_kubernetes else check_workers
        check(workers, spec.num_workers.minimum, "--num_workers")
    if servers is not None:
        check_servers(spec, servers, "--num_ps_pods")


def check_descriptors(members: int) -> None:
    """Let this process, and those that it starts, open as many files as a job of so many workers and servers needs.

    Raises BadSetting if the hard limit does not allow it.
    """
    needed = _DESCRIPTORS + _DESCRIPTORS_EACH * members
    if not ask_for_descriptors(needed):
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        raise BadSetting(
            f"a process may have {hard} files open here (`ulimit -n`), and those of this job need {needed}; raise the limit (`ulimit -n "
            f"{max(1024, needed)}`, as root or in /etc/security/limits.conf), or start fewer workers and servers"
        )


def ask_for_descriptors(wanted: int) -> bool:
    """Raise this process's limit of open files to `wanted`, as far as that is allowed; return whether it is that high then."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return True
    allowed = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, allowed), hard))
    return allowed >= wanted


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
