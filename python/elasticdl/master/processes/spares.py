"""When a local job should have a spare process for the next worker that is launched: a pure decision.

It is asked for when nobody is on the way into the job, because its imports take a processor for seconds. Whether there is one already is
not known here: the launcher keeps it through restarts of the master.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from elasticdl.master.processes.replicas import ReplicaSet

FIRST_AFTER = 10.0
"""Seconds that all workers have to take part before the first spare: many jobs are over by then, and never need one."""
NEXT_AFTER = 2.0
"""The same in a job that has launched a worker again: what took that one may take the next one soon."""


@dataclass(frozen=True, slots=True)
class Spare:
    """What is remembered of it.

    Attributes:
        since: since when all workers have taken part, None if one is missing or on its way.
        asked: a spare has been asked for since then.
    """

    since: float | None = None
    asked: bool = False


def decide(now: float, spare: Spare, workers: ReplicaSet, starting: Collection[str]) -> tuple[Spare, bool]:
    """Return what to remember at time `now` (seconds), and whether the cluster is to have a spare.

    `starting`: names of the processes that run and take no part yet.
    """
    replicas = [workers.replicas.get(index) for index in range(workers.wanted)]
    running = all(replica is not None and replica.running for replica in replicas)
    if starting or not running or workers.ending or workers.over:
        return Spare(), False
    if spare.since is None:
        return Spare(now), False
    again = any(replica is not None and replica.life > 1 for replica in replicas)
    if spare.asked or now - spare.since < (NEXT_AFTER if again else FIRST_AFTER):
        return spare, False
    return Spare(spare.since, asked=True), True
