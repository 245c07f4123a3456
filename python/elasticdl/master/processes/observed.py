"""What the cluster has said of the workers' processes: for people, and for whether an end is proven or only supposed."""

from __future__ import annotations

from dataclasses import dataclass, field

from elasticdl.cluster.cluster import (
    ProcessEnded,
    ProcessEvent,
    ProcessGone,
    ProcessPending,
    ProcessStarted,
    Role,
)
from elasticdl.master.processes.starting import Start, explain


@dataclass(slots=True)
class Processes:
    """All workers' processes of one life of the master, by name.

    Attributes:
        pids: of those that were started, where that means something.
        pending: those that do not run yet → why.
        without_room: of them the workers that no node has room for.
        ended: those that have ended, or of whose node nothing is heard → when.
        unproven: those of whose node nothing is heard → the node; they may be alive.
        starts: those that run and take no part yet, as far as anybody knows.
        words: the last words of those that have ended, where the cluster knows them.
    """

    pids: dict[str, int | None] = field(default_factory=dict)
    pending: dict[str, str] = field(default_factory=dict)
    without_room: set[str] = field(default_factory=set)
    ended: dict[str, float] = field(default_factory=dict)
    unproven: dict[str, str] = field(default_factory=dict)
    starts: dict[str, Start] = field(default_factory=dict)
    words: dict[str, str] = field(default_factory=dict)

    def waits_for(self, now: float, name: str, ready: float) -> str:
        """Return what keeps a process from being ready, for people; `ready`: seconds that it has for its start."""
        return self.pending.get(name, "") or explain(now, self.starts.get(name), ready)

    def take(self, now: float, event: ProcessEvent) -> ProcessEnded | ProcessGone | None:
        """Take what the cluster says; return it if it is news: an end, or the proof of one that was only supposed."""
        name = str(event.name)
        self.without_room.discard(name)
        if isinstance(event, ProcessPending):
            self.pending[name] = event.why
            if event.name.role is Role.WORKER and not event.has_room:
                self.without_room.add(name)
            return None
        if isinstance(event, ProcessStarted):
            self.pids[name] = event.pid
            self.starts.setdefault(name, Start(now))
            self.pending.pop(name, None)
            return None
        if name in self.ended and not (name in self.unproven and isinstance(event, ProcessEnded)):
            return None
        self.ended[name] = now
        self.pending.pop(name, None)
        if isinstance(event, ProcessEnded):
            self.unproven.pop(name, None)
            self.words[name] = event.text
        else:
            self.unproven[name] = event.node
        return event
