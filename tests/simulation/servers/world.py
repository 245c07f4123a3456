"""A whole job with parameter servers in one process: the real machines under a seeded scheduler, as in `tests/simulation/world.py`.

The machines of master and workers are the Python that jobs run, slots, streams and the client's part are the Rust. Nothing here
decides anything for them: the world carries what they say, late or not at all, kills, hangs and restarts, and looks whether
the promises of the protocol still hold (`oracle.py`). The same seed gives the same schedule.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from elasticdl.control.protocol.psmessages import Unreached
from elasticdl.control.protocol.status import EventKind
from elasticdl.master.core import events
from elasticdl.master.core.records import EvaluatedRecord, Record
from elasticdl.master.core.witnesses import Times
from elasticdl.master.ps.machine import PsMaster
from elasticdl.master.ps.settings import Settings
from elasticdl.spec.grammar import BestMetric
from elasticdl.worker.ps.machine import PsMember
from tests.simulation.oracle import Violation
from tests.simulation.servers.earlier import PATH, Earlier
from tests.simulation.servers.model import SLOTS, data, model
from tests.simulation.servers.oracle import Oracle
from tests.simulation.servers.processes import (
    TICK,
    Counting,
    MasterProcess,
    Member,
    Process,
    ServerProcess,
    Wire,
    WorkerProcess,
)

TIMES = Times(heartbeat=0.2, alone=1.5, stall=20.0, stall_steps=40.0, moment=0.05, gather=0.5)
KINDS = {
    "start": 0.1, "connect": 0.02, "message": 0.004, "disk": 0.01, "wait status": 0.02, "compute": 0.02, "copy": 0.01,
    "restart": 0.3, "tick": 0.0,
}  # fmt: skip
"""Mean delays in seconds."""
EVENTS = 60_000
"""A schedule with more events than this does not end."""


@dataclass(frozen=True)
class Plan:
    """One job and the faults that it meets; how often each, at events chosen by the seed."""

    workers: int = 2
    servers: int = 3
    replicas: int = 2
    tasks: int = 5
    checkpoint_steps: int = 0
    get_model_steps: int = 1
    grads_to_wait: int = 0
    """Tasks of a wave, whose gradients make steps together; 0: each push is applied by itself."""
    evaluated: int = 0
    """Tasks of an evaluation; 0: nothing is evaluated."""
    evaluation_steps: int = 0
    epochs: int = 1
    """Of as many tasks each."""
    follows: bool = False
    """Callbacks follow epochs."""
    stop_at: int = 0
    """They ask for the end at this barrier, before the last task; 0: at none."""
    earlier: Earlier | None = None
    """The job continues from this one's checkpoint."""
    best: str = ""
    """A snapshot is kept of each barrier that has seen more than those before (`more`), or less (`less`)."""
    worker_kills: int = 0
    worker_hangs: int = 0
    worker_drains: int = 0
    server_kills: int = 0
    server_hangs: int = 0
    server_drains: int = 0
    server_joins: int = 0
    resets: int = 0
    """Connections that break, of any kind."""
    suspicions: int = 0
    """Accusations of servers that live."""
    master_kills: int = 0
    master_hangs: int = 0
    second_masters: int = 0
    result_kills: int = 0
    """Workers die when they say what they have evaluated, or that they have passed a barrier."""
    result_hangs: int = 0
    """Workers hang just before."""
    finisher_kills: int = 0
    """Workers die while they make metrics."""
    record_kills: int = 0
    """The master dies when metrics are journalled, or an early end, before or after."""
    record_masters: int = 0
    """Another master is started then."""
    nans: float = 0.0
    """So many of the gradients are no numbers: of some chunks all attempts, or where each push is applied by itself some of any."""
    careless: bool = False
    """Servers are lost although no other copy is there."""
    span: int = 1500
    """Faults come within this many events."""


class World:
    """One schedule; `run` returns the number of events or raises Violation."""

    master_class: type[PsMaster] = PsMaster
    worker_class: type[PsMember] = PsMember
    pacing_class: type[Counting] = Counting
    server_mistake: str | None = None
    trusts_streams = False
    """What is sent in a stream counts as accepted."""

    def __init__(self, seed: int, plan: Plan, trace: Callable[[str], None] | None = None) -> None:
        self.random = random.Random(f"servers {seed}")
        self.plan = plan
        self.trace = trace
        self.now = 0.0
        self.events = 0
        self._heap: list[tuple[float, int, str, Callable[[], None]]] = []
        self._sequence = 0
        self._numbers = 0
        self._pace = {kind: self.random.choice((0.3, 1.0, 1.0, 4.0)) for kind in KINDS}
        self._room = self.random.choice((1, 1, 32 * 1024))
        self.model = model(plan.tasks, plan.grads_to_wait > 0)
        wave = max(1, plan.grads_to_wait)
        shards, self.order = data(plan.tasks, plan.evaluation_steps, plan.evaluated, plan.epochs, wave)
        self.shards = shards
        in_order = ((number, self.order.task(number)) for number in range(plan.tasks))
        self.number_of = {(task.epoch, task.id): number for number, task in in_order}
        self.settings = Settings(
            workers=plan.workers,
            minimum=1,
            relaunches=1,
            plan=lambda *_: self.order,
            times=TIMES,
            servers=plan.servers,
            replicas=plan.replicas,
            snapshots="snapshots" if plan.checkpoint_steps else "",
            checkpoint_steps=plan.checkpoint_steps,
            lasting=bool(plan.best),
            accumulates=plan.grads_to_wait > 0,
            checkpoint_best=BestMetric("anywhere 0", plan.best == "more") if plan.best else None,
            resume=None
            if plan.earlier is None
            else lambda _, earlier=plan.earlier: earlier.record(self.order),
        )
        self.journal: list[Record] = []
        self.files: dict[str, dict[int, bytes]] = {}
        self.held: dict[str, dict[int, set[int]]] = {}
        """Of each slot in these files the columns of the chunks that it holds."""
        earlier = plan.earlier
        self.manifests: dict[str, dict[int, bytes]] = (
            {} if earlier is None else {PATH: earlier.slots(self.model)}
        )
        self.idle: set[int] = set()
        """Columns of chunks of which an attempt was no number."""
        if plan.nans and plan.grads_to_wait:
            self.idle = {column for column in range(self.model.columns) if self.random.random() < plan.nans}
        self.lines: set[tuple[int, int]] = set() if earlier is None else earlier.lines
        self.members: list[Member] = []
        self.servers: dict[int, ServerProcess] = {}
        self.masters: list[MasterProcess] = []
        self.lives: dict[str, int] = {}
        self.dead: dict[str, str] = {}
        self.faulty = True
        self.ended: str | None = None
        self.oracle = Oracle(self)
        self._faults: list[tuple[int, Callable[[], None]]] = []
        self._at_evaluation = {
            "result": plan.result_kills, "hang": plan.result_hangs, "finisher": plan.finisher_kills, "record": plan.record_kills,
            "record_master": plan.record_masters,
        }  # fmt: skip

    # ------------------------------------------------------------------ time

    def delay(self, kind: str) -> float:
        """Return how long something takes: mostly about its mean in this world, sometimes many times that."""
        mean = KINDS[kind] * self._pace[kind]
        if self.random.random() < 0.05:
            mean *= 15
        return min(self.random.expovariate(1.0 / mean), 4.0) if mean else 0.0

    def room(self) -> int:
        """Return about how many words of a stream travel together."""
        return self._room

    def count(self) -> int:
        self._numbers += 1
        return self._numbers

    def after(self, delay: float, label: str, action: Callable[[], None]) -> None:
        self.at(self.now + delay, label, action)

    def at(self, time: float, label: str, action: Callable[[], None]) -> None:
        self._sequence += 1
        heapq.heappush(self._heap, (max(time, self.now), self._sequence, label, action))

    def later(self, kind: str, process: Process, action: Callable[[], None], least: float = 0.0) -> None:
        """Do something in a process after a while."""
        self.after(least + self.delay(kind), f"{process.name}: {kind}", lambda: process.do(action))

    def is_nan(self, column: int) -> bool:
        """Tell whether a gradient of a chunk is no number; of one step all attempts see the same weights."""
        if not self.plan.grads_to_wait and self.plan.nans and self.random.random() < self.plan.nans:
            self.idle.add(column)
            return True
        return self.plan.grads_to_wait > 0 and column in self.idle

    def at_event(self, action: Callable[[], None]) -> None:
        self._faults.append((self.random.randrange(self.plan.span), action))

    def hits(self, moment: str) -> bool:
        """Tell whether a fault of an evaluation comes at this moment."""
        if not self._at_evaluation[moment] or not self.faulty or self.random.random() < 0.5:
            return False
        self._at_evaluation[moment] -= 1
        return True

    def say(self, text: str) -> None:
        if self.trace is not None:
            self.trace(f"{self.events:5d} {self.now:8.3f}   {text}")

    def run(self) -> int:
        """Run the schedule to its end."""
        for index in range(self.plan.servers):
            self.start(f"ps-{index}")
        for index in range(self.plan.workers):
            self.start(f"worker-{index}")
        self.start_master()
        self._plan_faults()
        faults = sorted(self._faults, key=lambda fault: fault[0])
        while self.ended is None and self._heap:
            while faults and faults[0][0] <= self.events:
                faults.pop(0)[1]()
            self.now, _, label, action = heapq.heappop(self._heap)
            if self.trace is not None:
                self.trace(f"{self.events:5d} {self.now:8.3f} {label}")
            action()
            self.events += 1
            if self.events % 20 == 0:
                self.oracle.check()
            if self.faulty and self.events > self.plan.span:
                self._heal()
            if self.events > EVENTS:
                raise Violation(f"the job does not end: {self.describe()}")
        if self.ended is None:
            raise Violation(f"nothing can happen any more and the job has not ended: {self.describe()}")
        self.oracle.check_end()
        return self.events

    def describe(self) -> str:
        master = self.masters[-1].machine
        held = {name: [lease.task for lease in leases] for name, leases in master.work.leases.held.items()}
        return (
            f"done {master.journal.done}, held {held}, servers {sorted(master.journal.servers)}, entries {master.journal.entries}, "
            f"alive {[member.name for member in self.members if member.lives]}"
        )

    # ------------------------------------------------------------------ processes and wires

    def start(self, role: str) -> None:
        life = self.lives[role] = self.lives.get(role, -1) + 1
        name = f"{role}-{life}"
        self.say(f"{name} starts")
        kind = ServerProcess if role.startswith("ps") else WorkerProcess
        self.members.append(kind(self, name))

    def wire(
        self, a: Process, b: Process, lost_by_a: Callable[[], None], lost_by_b: Callable[[], None]
    ) -> Wire:
        wire = Wire((a, b), (lost_by_a, lost_by_b), number=self.count())
        for end in (a, b):
            end.wires = [one for one in end.wires if one.open]
            end.wires.append(wire)
        return wire

    def say_on(self, wire: Wire, end: int, action: Callable[[], None]) -> None:
        """Let what one end says have its effect at the other one, after what was said before."""
        receiver = wire.ends[1 - end]
        at = max(self.now + self.delay("message"), wire.last[end])
        wire.last[end] = at

        def arrive() -> None:
            if wire.open:
                receiver.do(lambda: action() if wire.open else None)

        self.at(at, f"{wire.ends[end].name} → {receiver.name}", arrive)

    def break_wire(self, wire: Wire, at: float | None = None) -> None:
        """Break a connection, at once or when what was sent has arrived."""

        def broken() -> None:
            if not wire.open:
                return
            wire.open = False
            for end, lost in zip(wire.ends, wire.on_break, strict=True):
                self.later("message", end, lost)

        if at is None:
            broken()
        else:
            self.at(at, "a connection ends", broken)

    def kill(self, member: Member, cause: str) -> None:
        if not member.lives:
            return
        self.say(f"{member.name} dies: {cause}")
        member.status = "dead"
        self.dead[member.name] = cause
        for wire in member.wires:
            sent = wire.last[wire.ends.index(member)] if self.random.random() < 0.5 else None
            self.break_wire(wire, sent)
        member.stash.clear()
        for master in self.masters:
            self._tell_death(master, member.name)
        role = member.name.rsplit("-", 1)[0]
        if self.ended is None:
            self.after(self.delay("restart"), f"{role} is started again", lambda: self._restart(role))

    def _restart(self, role: str) -> None:
        terminal = self.masters[-1].machine.journal.terminal
        if self.ended is None and terminal is None:
            self.start(role)

    def _tell_death(self, master: MasterProcess, name: str) -> None:
        event = events.WorkerEnded(name, self.dead[name])
        self.after(
            self.delay("wait status"),
            f"{master.name} hears of the end of {name}",
            lambda: self.feed(master, event),
        )

    # ------------------------------------------------------------------ masters

    def new_master(self) -> PsMaster:
        """Return a master that knows nothing yet."""
        return self.master_class(self.settings)

    def start_master(self) -> None:
        if self.ended is not None:
            return
        master = MasterProcess(self, len(self.masters), self.new_master())
        self.say(f"{master.name} starts")
        self.masters.append(master)

        def begin() -> None:
            master.listens = True
            self.feed(master, events.JournalRead(tuple(self.journal), len(self.journal)))
            self.feed(master, events.DataFound(self.shards))
            for name in self.dead:
                self._tell_death(master, name)
            self._tick(master)

        self.later("disk", master, begin)

    def _tick(self, master: MasterProcess) -> None:
        if not master.lives or self.ended is not None:
            return
        for member in self.members:
            if member.status == "up":
                member.beat_at = self.now
            if member.lives:
                progress = member.progress
                self.feed(master, events.Beat(member.id, 0, 0, progress, self.now - member.beat_at))
        self.feed(master, events.Tick())
        self.after(TICK, f"{master.name} ticks", lambda: master.do(lambda: self._tick(master)))

    def some_master(self) -> MasterProcess | None:
        alive = [master for master in self.masters if master.lives and master.listens]
        return self.random.choice((*alive, alive[-1])) if alive else None

    def feed(self, master: MasterProcess, event: events.Event) -> None:
        master.do(lambda: self._handle(master, event))

    def _handle(self, master: MasterProcess, event: events.Event) -> None:
        master.machine, instructions = master.machine.handle(self.now, event)
        for instruction in instructions:
            self._carry_out(master, instruction)

    def _carry_out(self, master: MasterProcess, instruction: events.Instruction) -> None:
        match instruction:
            case events.Append(number, record):
                self.after(
                    self.delay("disk"),
                    f"{master.name} appends {record}",
                    lambda: self._append(master, number, record),
                )
            case events.Check(number):
                if len(self.journal) >= number:
                    self.feed(master, events.Conflict())
            case events.Tell(connection, message):
                wire = master.links.get(connection)
                if wire is not None:
                    member: Any = wire.ends[0]
                    self.oracle.tells(master, message)
                    self.say(f"{master.name} tells {member.name} {message}")
                    self.say_on(wire, 1, lambda: member.told(message) if member.control is wire else None)
            case events.WriteManifest(number=number, directory=directory, sections=sections):
                self._write_manifest(master, number, directory, sections)
            case events.Refuse(_, reason):
                raise Violation(f"{master.name} refuses a process: {reason}")
            case events.Publish():
                self.after(self.delay("disk"), "publishes", lambda: self.feed(master, events.Published()))
            case events.Kill(worker):
                self.say(f"{master.name} kills {worker}")
                for one in self.members:
                    if one.name == worker:
                        self.kill(one, "killed by SIGKILL")
            case events.Announce(kind, _, _, _, text):
                if kind != EventKind.STEP:
                    self.say(f"{master.name}: {text}")
            case events.End(status, reason):
                self._end(master, status, reason)

    def _append(self, master: MasterProcess, number: int, record: Record) -> None:
        if isinstance(record, EvaluatedRecord):
            if self.hits("record_master"):
                self.start_master()
            if self.hits("record"):
                self.say(f"{master.name} is killed at a record")
                self._stop_master(master)
                self._start_next_master()
        if not master.lives and self.random.random() < 0.5:
            return
        if len(self.journal) >= number:
            self.feed(master, events.Conflict())
            return
        self.journal.append(record)
        self.oracle.appended(master.machine, record)
        self.feed(master, events.Appended(record))

    def _write_manifest(self, master: MasterProcess, number: int, directory: str, sections: Any) -> None:
        path = f"{directory}/manifest-{self.count()}"
        found = {section.slot: self.files[file][section.slot] for file, section in sections}
        self.oracle.completes(
            number, {section.slot: self.held[file][section.slot] for file, section in sections}
        )

        def written() -> None:
            self.manifests[path] = found
            self.feed(master, events.ManifestWritten(number, path))

        self.after(self.delay("disk"), f"{path} is written", written)

    def _end(self, master: MasterProcess, status: str, reason: str) -> None:
        self.say(f"{master.name} ends: {status}, {reason}")
        self._stop_master(master)
        if status == "replaced":
            self._start_next_master()
            return
        if status != "finished":
            raise Violation(f"the job has failed: {reason}")
        self.ended = reason

    def _stop_master(self, master: MasterProcess) -> None:
        master.status = "dead"
        for wire in master.wires:
            self.break_wire(wire)

    # ------------------------------------------------------------------ faults

    def _plan_faults(self) -> None:
        plan = self.plan
        named = {field.name: getattr(plan, field.name) for field in fields(plan)}
        for name, fault in (
            ("worker_kills", self._kill_worker),
            ("worker_hangs", self._hang_worker),
            ("worker_drains", self._drain_worker),
            ("server_kills", self._kill_server),
            ("server_hangs", self._hang_server),
            ("server_drains", self._drain_server),
            ("server_joins", self._join_server),
            ("resets", self._reset),
            ("suspicions", self._suspect),
            ("master_kills", self._kill_master),
            ("master_hangs", self._hang_master),
            ("second_masters", self.start_master),
        ):
            for _ in range(named[name]):
                self.at_event(fault)

    def _some(self, kind: type[Member]) -> Any:
        found = [member for member in self.members if isinstance(member, kind) and member.lives]
        return self.random.choice(found) if found else None

    def _kill_worker(self) -> None:
        worker = self._some(WorkerProcess)
        if worker is not None:
            self.kill(worker, "killed by SIGKILL")

    def _hang_worker(self) -> None:
        worker = self._some(WorkerProcess)
        if worker is not None:
            self.hang(worker)

    def hang(self, process: Process) -> None:
        if process.status == "up":
            self.say(f"{process.name} hangs")
            process.status = "paused"
            seconds = self.random.choice((0.3, 2.0, 6.0)) * self.random.random()
            self.after(seconds, f"{process.name} continues", lambda: self.wake(process))

    def wake(self, process: Process) -> None:
        if process.status != "paused":
            return
        process.status = "up"
        stash, process.stash = process.stash, []
        for action in stash:
            process.do(action)

    def _drain_worker(self) -> None:
        worker = self._some(WorkerProcess)
        if worker is not None:
            self.say(f"{worker.name} gets SIGTERM")
            worker.do(worker.drain)

    def expendable(self) -> ServerProcess | None:
        """Return a server whose loss is one at a time: all slots have both copies, and nobody hangs."""
        server = self._some(ServerProcess)
        if server is None or self.plan.careless:
            return server
        entries = self.oracle.entries()
        alive = {number for number, one in self.servers.items() if one.status == "up"}
        is_whole = all(
            entry.primary in alive and (entry.backup in alive or self.plan.replicas == 1) for entry in entries
        )
        return server if entries and is_whole else None

    def again(self, fault: Callable[[], None]) -> None:
        """Try a fault later, when it is its time."""
        if self.faulty:
            self.after(0.3, "a fault is due", fault)

    def _kill_server(self) -> None:
        server = self.expendable() if self.faulty else None
        if server is None:
            self.again(self._kill_server)
        else:
            self.kill(server, "killed by SIGKILL")

    def _hang_server(self) -> None:
        server = self.expendable() if self.faulty else None
        if server is None:
            self.again(self._hang_server)
        else:
            self.hang(server)

    def _drain_server(self) -> None:
        server = self._some(ServerProcess)
        if server is not None:
            self.say(f"{server.name} gets SIGTERM")
            server.do(server.drain)

    def _join_server(self) -> None:
        self.start(f"ps-{self.plan.servers + self.count()}")

    def _reset(self) -> None:
        wires = [wire for member in self.members if member.lives for wire in member.wires if wire.open]
        if wires:
            wire = self.random.choice(wires)
            self.say(f"the connection of {wire.ends[0].name} and {wire.ends[1].name} breaks")
            self.break_wire(wire)

    def _suspect(self) -> None:
        """Servers are taken for dead and live: a process that has a master accuses one, whose control stream breaks."""
        server = self.expendable() if self.faulty else None
        if server is None or server.number is None:
            self.again(self._suspect)
            return
        self.say(f"{server.name} is accused, and lives")
        server.unreachable_until = self.now + 3.0
        if server.control is not None:
            self.break_wire(server.control)
        others = [one for one in self.members if one.status == "up" and one is not server]
        for other in self.random.sample(others, min(2, len(others))):
            for wait in (0.1, 0.5, 0.9):
                self.after(wait, f"{other.name} accuses", lambda other=other: self._accuse(other, server))

    def _accuse(self, other: Member, server: ServerProcess) -> None:
        master: Any = None if other.control is None else other.control.ends[1]
        # It knows servers only by what its master has told it, and there may be two masters.
        is_known = (
            master is not None
            and server.number is not None
            and server.number < master.machine.journal.next_server
        )
        if other.lives and server.number is not None and is_known:
            other.send(Unreached((server.number,)))

    def _kill_master(self) -> None:
        alive = [master for master in self.masters if master.lives]
        if alive and self.ended is None:
            master = self.random.choice(alive)
            self.say(f"{master.name} is killed")
            self._stop_master(master)
            self._start_next_master()

    def _start_next_master(self) -> None:
        if not any(master.lives for master in self.masters):
            self.after(self.delay("restart"), "a master is started", self.start_master)

    def _hang_master(self) -> None:
        alive = [master for master in self.masters if master.lives]
        if alive:
            self.hang(self.random.choice(alive))
            if self.random.random() < 0.5:
                self.start_master()

    def _heal(self) -> None:
        """From here on nothing breaks."""
        self.faulty = False
        self.say("nothing breaks any more")
        for process in (*self.members, *self.masters):
            self.wake(process)
            process.unreachable_until = 0.0
        if not any(master.lives for master in self.masters):
            self.start_master()


__all__ = ["SLOTS", "Plan", "World"]
