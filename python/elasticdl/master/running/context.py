"""What one life of a master works with, and what there was before it began."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from elasticdl.cluster.cluster import Cluster, ClusterEvent
from elasticdl.cluster.local.place import Place
from elasticdl.master.core.events import DataFound
from elasticdl.master.core.journal import Journal
from elasticdl.master.core.records import Record
from elasticdl.master.processes.replicas import ReplicaSet
from elasticdl.master.reporting.history import HistoryEvent
from elasticdl.master.reporting.statusstore import StatusStore
from elasticdl.master.running.reporter import Observer
from elasticdl.spec.jobspec import JobSpec


class Monitor(Protocol):
    """The master's end of the heartbeats (`elasticdl._core.HeartMonitor`)."""

    def poll(self) -> list[tuple[str, int, int, int, float, bool]]:
        """Return (member, view, step, progress, seconds since the last beat, connected?) of every member."""

    @property
    def refused(self) -> int:
        """Return how many connections were refused so far."""

    def refusals(self) -> tuple[list[tuple[str, str]], int]:
        """Return whom it has refused since the last call: (where from, why) of the first few, and the number of others."""

    def forget(self, member: str) -> None:
        """A member has ended for good."""

    def close(self) -> None:
        """Stop listening."""


@dataclass(frozen=True, slots=True)
class JobContext:
    """A job, and what its master works with.

    Attributes:
        place: the job's place.
        spec: its settings.
        cluster: where its processes live.
        journal: its journal.
        store: what its master keeps for people.
        monitor: opens the heartbeats' socket.
        open_data: opens the data and says what it is, None if only a worker can; told bytes indexed and bytes in all, and whether it
            waits for storage.
        facts: what the summary says beside what the master knows.
        observers: hear all that people hear.
    """

    place: Place
    spec: JobSpec
    cluster: Cluster
    journal: Journal
    store: StatusStore
    monitor: Callable[[], Monitor]
    open_data: Callable[[Callable[[int, int], None], Callable[[str, bool], None]], DataFound | None]
    facts: Callable[[], Mapping[str, Any]]
    observers: Sequence[Observer] = ()


@dataclass(frozen=True, slots=True)
class Past:
    """What there was before this life of the master.

    Attributes:
        records: of the journal, perhaps compacted.
        length: number of the last record, 0 if there is none.
        forces: of each role that the master launches, the processes that run, or were asked to; workers first.
        reported: what the cluster said until now.
        told: what masters before this one told people; decides nothing.
    """

    records: tuple[Record, ...]
    length: int
    forces: Sequence[ReplicaSet]
    reported: Sequence[ClusterEvent]
    told: Sequence[HistoryEvent]
