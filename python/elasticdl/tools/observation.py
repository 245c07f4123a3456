"""What is known of a running job at one moment: what faults wait for, and what tells whether they hit.

Put together from what the master says and what the launcher sees of processes. A plain value: a watcher gets a new one for each
thing that it hears.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import assert_never

from elasticdl.cluster.cluster import ProcessEnded, ProcessStarted, process_name
from elasticdl.control.protocol.status import EventKind, JobEvent, JobStatus


def _no_seals(_worker: str) -> int:
    return 0


@dataclass(frozen=True, slots=True)
class Observation:
    """What is known of a job at one moment.

    Attributes:
        status: the master's last word, None before the first.
        live: workers whose process runs, by the launcher.
        ended: per worker that has ended, (exit code, signal): one of them is None.
        masters: lives of the master so far.
        events: what the master told since the fault under way began, in order.
        launched: when successors of lost processes were launched that have not joined yet, by the master's clock.
        quickest: per role the shortest time, in seconds, from the launch of such a successor until it had joined.
        seals: how many views a worker has sealed, by its own log: what one says to a stopped master is lost when it dies.
    """

    status: JobStatus | None = None
    live: frozenset[str] = frozenset()
    ended: Mapping[str, tuple[int | None, int | None]] = field(default_factory=dict)
    masters: int = 1
    events: tuple[JobEvent, ...] = ()
    launched: Mapping[str, float] = field(default_factory=dict)
    quickest: Mapping[str, float] = field(default_factory=dict)
    seals: Callable[[str], int] = _no_seals

    def take(self, seen: JobStatus | JobEvent | ProcessStarted | ProcessEnded) -> Observation:
        """Return the sight with one thing more."""
        match seen:
            case JobStatus():
                return replace(self, status=seen)
            case JobEvent():
                return replace(self._timed(seen), events=(*self.events, seen))
            case ProcessStarted(name):
                return replace(self, live=self.live | {str(name)})
            case ProcessEnded(name, code, number):
                return replace(
                    self, live=self.live - {str(name)}, ended={**self.ended, str(name): (code, number)}
                )
            case _:
                assert_never(seen)

    def _timed(self, event: JobEvent) -> Observation:
        """Take note of how long a successor's start has lasted."""
        name = event.worker
        if event.kind == EventKind.LAUNCHED and process_name(name).life > 1:
            return replace(self, launched={**self.launched, name: event.time})
        if event.kind != EventKind.JOINED or name not in self.launched:
            return self
        role = process_name(name).role
        lasted = max(0.0, event.time - self.launched[name])
        return replace(
            self,
            launched={other: at for other, at in self.launched.items() if other != name},
            quickest={**self.quickest, role: min(lasted, self.quickest.get(role, lasted))},
        )

    def workers(self, *states: str) -> list[str]:
        """Return the live workers that the master last saw in one of these states, in order of their names."""
        if self.status is None:
            return []
        return sorted(
            worker.name
            for worker in self.status.workers
            if worker.state in states and worker.name in self.live
        )

    def killed(self, worker: str) -> bool:
        """Tell whether a worker's process was ended by SIGKILL."""
        return self.ended.get(worker) == (None, signal.SIGKILL)

    def heard(self, *kinds: EventKind, worker: str = "") -> JobEvent | None:
        """Return the first event of these kinds (about a worker)."""
        for event in self.events:
            if event.kind in kinds and worker in ("", event.worker):
                return event
        return None

    @property
    def training(self) -> list[str]:
        """Return the live workers that train, or do what their job does instead of training or in between."""
        return self.workers("training", "evaluating", "predicting", "processing")

    @property
    def servers(self) -> list[str]:
        """Return the live parameter servers that serve."""
        return self.workers("serving")

    @property
    def coming(self) -> list[str]:
        """Return the live workers that are on their way into the group."""
        return self.workers("starting", "joining")

    @property
    def ending(self) -> bool:
        """Tell whether the job is about to end: faults that need it to go on come too late."""
        status = self.status
        return status is not None and (
            status.state in ("stopping", "finished", "failed") or bool(self.workers("finishing"))
        )
