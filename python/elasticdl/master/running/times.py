"""The times of the protocol that a job wants."""

from __future__ import annotations

from elasticdl.control.protocol.frozen import replace
from elasticdl.master.core.witnesses import Times
from elasticdl.spec.jobspec import JobSpec


def times_of(spec: JobSpec) -> Times:
    """Return the times of the protocol that a job wants."""
    return replace(
        Times(),
        heartbeat=spec.heartbeat_seconds,
        alone=spec.witness_seconds,
        stall=spec.stall_seconds,
        stall_steps=spec.stall_steps,
        moment=spec.moment_seconds,
    )
