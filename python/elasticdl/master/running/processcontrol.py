"""A job's processes, as its master handles them: what the cluster says of them, and which are launched, retired and killed.

Which should run is decided in `master/processes/`; this carries it out.
"""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from typing import assert_never

from elasticdl.cluster.cluster import (
    Cluster,
    ProcessEnded,
    ProcessEvent,
    ProcessGone,
    ProcessName,
    ProcessStarted,
    Role,
    process_name,
)
from elasticdl.cluster.local.place import Place
from elasticdl.control.protocol.frozen import replace
from elasticdl.control.protocol.messages import Evicted, Verdict
from elasticdl.control.protocol.status import EventKind, how_many
from elasticdl.control.protocol.view import MemberId
from elasticdl.master.core import events as machine_events
from elasticdl.master.processes import programs, spares, starting
from elasticdl.master.processes import replicas as replicas
from elasticdl.master.processes.observed import Processes
from elasticdl.master.processes.replicas import ReplicaSet
from elasticdl.master.running.reporter import Reporter

_log = logging.getLogger(__name__)


class ProcessControl:
    """The processes of one job, for one life of its master."""

    def __init__(
        self,
        cluster: Cluster,
        place: Place,
        forces: Sequence[ReplicaSet],
        reporter: Reporter,
        handle: Callable[[machine_events.Event], None],
        leaves_when_told: Callable[[ProcessName], bool],
        program: str = "",
        *,
        inherits: bool = False,
        keeps_spare: bool = False,
    ) -> None:
        """Control them.

        Args:
            cluster: where they live.
            place: the job's place, which has their last words.
            forces: of each role, the processes that run, or were asked to; workers first.
            reporter: tells people.
            handle: gives the machine an event.
            leaves_when_told: whether the machine asks this process to leave.
            program: what the user's own program is called, if workers run one.
            inherits: processes that run were begun by an earlier master, of which nobody knows what it has told them.
            keeps_spare: the job has a spare process for the next worker.
        """
        self.forces = {force.role: force for force in forces}
        self.observed = Processes()
        self._cluster = cluster
        self._place = place
        self._reporter = reporter
        self._handle = handle
        self._leaves_when_told = leaves_when_told
        self._program = program
        self._connected: set[str] = set()
        self._evicted: set[str] = set()
        self._released: set[str] = set()
        self._faulty: set[str] = set()
        """Whose exit code says what no master has told."""
        running = (str(name) for force in forces for name in force.running())
        self._inherited = frozenset(running if inherits else ())
        self._keeps_spare = keeps_spare
        self._spare = spares.Spare()

    def lives(self) -> tuple[ProcessName, ...]:
        """Return the last life of each process that the master launches."""
        return tuple(life for force in self.forces.values() for life in force.lives())

    @property
    def without_room(self) -> int:
        """Return how many workers' processes no node has room for."""
        return len(self.observed.without_room)

    def take(self, event: ProcessEvent) -> ProcessEnded | ProcessGone | None:
        """Take what the cluster says; return it if it is the news of an end. `direct` has to follow."""
        self._reporter.changed = True
        if isinstance(event, ProcessStarted) and event.spare:
            self._reporter.tell(
                EventKind.NOTE,
                f"{event.name} was the spare process, which has the framework",
                worker=str(event.name),
            )
        news = self.observed.take(time.monotonic(), event)
        if isinstance(news, ProcessEnded) and self._program and news.name.role is Role.WORKER:
            self._judge(news)
        return news

    def _judge(self, ended: ProcessEnded) -> None:
        """Find out whether the user's own program has ended by a fault that its exit code does not tell."""
        name = str(ended.name)
        known = name in self._inherited
        connected, evicted, released = (
            known or name in told for told in (self._connected, self._evicted, self._released)
        )
        if why := programs.why_fault(
            self._program, ended, connected=connected, evicted=evicted, released=released
        ):
            self._faulty.add(name)
            self.direct(replicas.Unready(ended.name, why))

    def cause_of(self, ended: ProcessEnded | ProcessGone) -> str:
        """Return how a process ended, for people."""
        if isinstance(ended, ProcessEnded) and str(ended.name) in self._faulty:
            return f"exit code {ended.code}"
        return replicas.cause_of(ended)

    def tick(self) -> None:
        """Launch what is due, and have a spare process when all is well."""
        for role in self.forces:
            self.direct(replicas.Tick(), role)
        if self._keeps_spare:
            workers, starts = self.forces[Role.WORKER], self.observed.starts
            self._spare, wanted = spares.decide(time.monotonic(), self._spare, workers, starts)
            if wanted:
                self._cluster.keep_spare()

    def want(self, role: Role, number: int | None) -> None:
        """See to it that so many processes of a role run; None: as many as before."""
        if number is None:
            return
        if number != self.forces[role].wanted:
            said = how_many(number, None) if role is Role.WORKER else how_many(None, number)
            self._reporter.tell(EventKind.SCALED, f"the job wants {said} from now on")
        self.direct(replicas.Wanted(number), role)

    def direct(self, event: replicas.Event, role: Role = Role.WORKER) -> None:
        """Ask which processes of a role should run, and see to it."""
        before = self.forces[role]
        force, instructions, reason = replicas.decide(time.monotonic(), before, event)
        self.forces[role] = force
        replica = force.replicas.get(event.name.index) if isinstance(event, ProcessEnded) else None
        if (replica is not None and replica.short > 1) or force.memory > before.memory:
            # People wait for a worker that ends again and again before it joins, and pay for memory.
            self._reporter.note(reason)
        elif reason:
            _log.debug("%s", reason)
        for instruction in instructions:
            match instruction:
                case replicas.Launch(name, memory):
                    self._cluster.launch(name, memory)
                    self._reporter.tell(EventKind.LAUNCHED, f"{name} is started", worker=str(name))
                    self._handle(machine_events.Launched((name,)))
                case replicas.Retire(name):
                    if not self._leaves_when_told(name):
                        self._cluster.signal(name, signal.SIGTERM)
                case replicas.GiveUp(name, why):
                    words = self.observed.words.get(str(name)) or self._place.last_words(str(name))
                    # The end of its log: a crash leaves no traceback but this.
                    reason = programs.with_cause(why, words) if self._program else why
                    self._handle(machine_events.GiveUp(reason, "program", str(name), words))
                case _:
                    assert_never(instruction)
        self._reporter.changed = self._reporter.changed or bool(instructions)

    def kill(self, worker: str, reason: str) -> None:
        """SIGKILL a process that the machine wants dead."""
        name = process_name(worker)
        if worker in self.observed.unproven:
            return  # nobody hears it now, and should its node come back, it may have the last state
        if name not in self.forces[name.role].running():
            return  # it ended while there was no master to hear of it
        self._reporter.tell(EventKind.NOTE, f"{worker} is killed: {reason}", worker=worker)
        self._cluster.signal(name, signal.SIGKILL)

    # ------------------------------------------------------------------ starts

    def connected(self, worker: str, member: MemberId) -> None:
        """Take note that a process has opened its control stream."""
        self._connected.add(worker)
        starts = self.observed.starts
        if worker in starts:
            starts[worker] = replace(starts[worker], member=member)

    def told(self, worker: str, verdict: Verdict) -> None:
        """Take note that a process receives a verdict: its group has left it out, or it may go."""
        (self._evicted if isinstance(verdict, Evicted) else self._released).add(worker)

    def forget(self, worker: str) -> set[MemberId]:
        """Take note that a process starts no more; return the member that it was, as far as that is known."""
        start = self.observed.starts.pop(worker, None)
        return set() if start is None or start.member is None else {start.member}

    def watch_starts(self, stages: Mapping[str, starting.Stage], beats: Mapping[MemberId, float]) -> None:
        """Take the stages, and the times of heartbeats, of the processes that are still on their way."""
        self.observed.starts = starting.with_beats(starting.on_the_way(self.observed.starts, stages), beats)

    def replace_overdue(self, now: float, limits: starting.Limits, *, counts: bool) -> None:
        """Kill the processes that hang before they join, or are late; `counts`: one that works and is late has a fault of its program."""
        for late in starting.overdue(now, self.observed.starts, limits):
            if late.name in self.observed.unproven:
                continue  # nobody hears it now
            starts = self.observed.starts
            stage = starts[late.name].stage
            starts[late.name] = replace(starts[late.name], killed_at=now)
            name = process_name(late.name)
            if not late.hangs:
                self.direct(replicas.Unready(name, replicas.LATE if counts else ""), name.role)
            self._reporter.tell(
                EventKind.REPLACED, f"{name} is killed while it {stage}: {late.reason}", worker=late.name
            )
            self._cluster.signal(name, signal.SIGKILL)
