"""One job of tasks as a world of events: real masters and workers, a journal, files, connections and faults, all of one seed.

A worker's results are numbers that only its own sums can give, so a result that counts twice, or that nobody has computed, shows. A table
has the rows of each load that was committed, and one connection at a time writes to it, as with DuckDB.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from elasticdl.control.protocol.messages import MasterMessage, MemberMessage, TaskKind
from elasticdl.control.protocol.tasking import STATE
from elasticdl.control.protocol.view import MemberId
from elasticdl.data.plan.evaluation import EvaluationPlan
from elasticdl.data.plan.onepass import OnePass
from elasticdl.data.plan.shard import Shard
from elasticdl.master.core import events as to_master
from elasticdl.master.core.records import EvaluatedRecord, FailedRecord, FinishedRecord, Record
from elasticdl.master.core.witnesses import Times
from elasticdl.master.tasking.machine import Settings, TaskMaster
from elasticdl.worker import events as to_worker
from elasticdl.worker.tasking.machine import (
    ChunkDone,
    DoChunk,
    LoadRows,
    MakeMetrics,
    MetricsMade,
    RowsLoaded,
    TaskMember,
)
from tests.simulation.oracle import Violation

LIMIT = 900.0
"""Seconds of the job's time after which it should have ended long ago."""
METRICS = "a sum"


@dataclass(frozen=True, slots=True)
class Plan:
    """A job and its faults."""

    predicts: bool
    workers: int
    minibatches: int
    per_task: int
    kills: int = 0
    hangs: int = 0
    drains: int = 0
    disconnects: int = 0
    master_kills: int = 0
    second_masters: int = 0
    span: float = 30.0
    loads: bool = False
    loaders_killed: int = 0


@dataclass
class Worker:
    """One life of a worker."""

    name: str
    machine: TaskMember
    alive: bool = True
    hangs: bool = False
    connection: int | None = None
    sums: dict[int, int] = field(default_factory=dict)


@dataclass
class Master:
    """One life of a master."""

    machine: TaskMaster
    alive: bool = True


class World:
    """A job under faults. `run` returns the number of events, or raises Violation."""

    master_class: type[TaskMaster] = TaskMaster
    member_class: type[TaskMember] = TaskMember

    def __init__(self, seed: int, plan: Plan, trace: Callable[[str], None] | None = None) -> None:
        self.random = random.Random(seed)
        self.plan, self.trace = plan, trace
        self.now, self.events = 0.0, 0
        self.queue: list[tuple[float, int, Callable[[], None]]] = []
        self.order = itertools.count()
        self.journal: list[Record] = []
        self.files: set[int] = set()
        self.rows: list[frozenset[int]] = []
        """Tasks of each load that was committed."""
        self.is_marked = False
        self.writer: Worker | None = None
        self.loaders_left = plan.loaders_killed
        self.masters: list[Master] = []
        self.workers: list[Worker] = []
        self.links: dict[int, tuple[Worker, Master]] = {}
        self.arrivals: dict[tuple[int, str], float] = {}
        self.numbers = itertools.count(1)
        self.lives = itertools.count(1)
        self.ended: to_master.End | None = None
        shards, size = (Shard("data", 0, plan.minibatches * 2),), 2
        self.shards = shards
        kind = (
            OnePass(shards, size, plan.per_task)
            if plan.predicts
            else EvaluationPlan(shards, size, most_tasks=max(1, plan.minibatches // plan.per_task))
        )
        self.tasks = kind

    # ------------------------------------------------------------------ time

    def run(self) -> int:
        self._start_master()
        for _ in range(self.plan.workers):
            self._start_worker()
        self._plan_faults()
        while self.ended is None:
            if not self.queue or self.now > LIMIT:
                raise Violation(f"the job has not ended after {self.now:.0f} s")
            self.now, _, happen = heapq.heappop(self.queue)
            self.events += 1
            happen()
        self._check_end(self.ended)
        return self.events

    def later(self, delay: float, happen: Callable[[], None]) -> None:
        heapq.heappush(self.queue, (self.now + delay, next(self.order), happen))

    def some(self, most: float) -> float:
        return self.random.random() * most

    def say(self, text: str) -> None:
        if self.trace is not None:
            self.trace(f"{self.now:8.3f} {text}")

    # ------------------------------------------------------------------ masters

    def _start_master(self) -> None:
        settings = Settings(
            workers=self.plan.workers,
            minimum=1,
            relaunches=1,
            plan=lambda shards, validation: self.tasks,
            times=Times(stall=20.0),
            task=TaskKind.PREDICT if self.plan.predicts else TaskKind.EVALUATE,
            add_up=lambda metrics, results: sum(map(number, results)).to_bytes(8, "big"),
            result_size=lambda metrics: 8,
            draft="parts" if self.plan.predicts else "",
            table="table" if self.plan.loads else "",
        )
        master = Master(self.master_class(settings))
        self.masters.append(master)
        self.say(f"master {len(self.masters)}")
        self.give(master, to_master.JournalRead(tuple(self.journal), len(self.journal)))
        self.later(self.some(0.5), lambda: self.give(master, to_master.DataFound(self.shards, ())))
        for worker in self.workers:
            if not worker.alive:
                self.give(master, to_master.WorkerEnded(worker.name, "it was killed"))
            elif worker.hangs:
                self._overdue(worker)
            else:
                self._disconnect(worker)
        self._tick(master)

    def _tick(self, master: Master) -> None:
        if not master.alive or self.ended is not None:
            return
        for worker in self.workers:
            if worker.alive and not worker.hangs:
                view, step, progress = worker.machine.beat
                self.give(master, to_master.Beat(worker.machine.member, view, step, progress, 0.1))
        self.give(master, to_master.Tick())
        self.later(0.5, lambda: self._tick(master))

    def give(self, master: Master, event: to_master.Event) -> None:
        if not master.alive:
            return
        master.machine, instructions = master.machine.handle(self.now, event)
        for instruction in instructions:
            self._carry_out(master, instruction)

    def _carry_out(self, master: Master, instruction: to_master.Instruction) -> None:
        match instruction:
            case to_master.Append(place, record):
                self.later(0.001 + self.some(0.2), lambda: self._append(master, place, record))
            case to_master.Check(place):
                if len(self.journal) >= place:
                    self.later(0.01, lambda: self.give(master, to_master.Conflict()))
            case to_master.Tell(connection, message):
                self._send_down(connection, message)
            case to_master.Kill(name):
                for worker in self.workers:
                    if worker.name == name and worker.alive:
                        self.later(self.some(0.2), lambda worker=worker: self._kill(worker))  # type: ignore[misc]
            case to_master.Publish():
                self._check_parts()
                self.later(0.01, lambda: self.give(master, to_master.Published(None)))
            case to_master.Refuse(_, reason):
                raise Violation(f"a process is refused: {reason}")
            case to_master.End():
                master.alive = False
                if instruction.status != "replaced":
                    self.ended = instruction
                self.say(f"a master ends: {instruction.status}")
            case to_master.Announce():
                self.say(instruction.text)

    def _append(self, master: Master, place: int, record: Record) -> None:
        if not master.alive:
            return
        if len(self.journal) + 1 != place:
            self.give(master, to_master.Conflict())
            return
        self.say(f"appended {record}")
        self._check_record(record)
        self.journal.append(record)
        self.give(master, to_master.Appended(record))

    # ------------------------------------------------------------------ workers

    def _start_worker(self) -> None:
        life = next(self.lives)
        name = f"worker-{life}-1"
        metrics = "" if self.plan.predicts else METRICS
        worker = Worker(name, self.member_class(MemberId(f"m{life}"), name, metrics))
        self.workers.append(worker)
        self.say(f"{name} is started")
        self.later(1 + self.some(3), lambda: self._connect(worker))

    def _connect(self, worker: Worker) -> None:
        """Connect to the newest master, if it can be reached."""
        if not worker.alive or worker.hangs or worker.connection is not None:
            return
        living = [master for master in self.masters if master.alive]
        if not living:
            self.later(0.5, lambda: self._connect(worker))
            return
        connection, master = next(self.numbers), living[-1]
        worker.connection = connection
        self.links[connection] = (worker, master)
        self.give(master, to_master.ConnectionOpened(connection, worker.machine.member, worker.name))
        self.take(worker, to_worker.Connected())

    def _disconnect(self, worker: Worker) -> None:
        connection, worker.connection = worker.connection, None
        if connection is None:
            return
        _, master = self.links.pop(connection)
        self.later(self.some(0.1), lambda: self.give(master, to_master.ConnectionLost(connection)))
        self.take(worker, to_worker.Disconnected())
        self.later(self.some(1.0), lambda: self._connect(worker))

    def take(self, worker: Worker, event: to_worker.News | ChunkDone | MetricsMade | RowsLoaded) -> None:
        if not worker.alive or worker.hangs:
            return
        worker.machine, instructions = worker.machine.handle(event)
        for instruction in instructions:
            match instruction:
                case to_worker.Send(message):
                    self._send_up(worker, message)
                case DoChunk(kind, task, chunk, _):
                    self.later(0.05 + self.some(1.0), lambda: self._do(worker, kind, task, chunk))
                case MakeMetrics(body):
                    self.later(0.05 + self.some(1.0), lambda: self._make(worker, body))
                case LoadRows(task):
                    self.later(0.05, lambda: self._load(worker, task))
                case to_worker.Exit(code, reason):
                    self.say(f"{worker.name} ends with {code}: {reason}")
                    self._end(worker, code)

    def _do(self, worker: Worker, kind: TaskKind, task: int, chunk: int) -> None:
        if not worker.alive or worker.hangs:
            return
        if chunk == 0:
            worker.sums[task] = 0
        if kind == TaskKind.PREDICT and chunk == 0 and task in self.files:
            self.take(worker, ChunkDone(task, chunk, b""))
            return
        worker.sums[task] += 1 + self.tasks.number(task, chunk)
        if chunk + 1 < self.tasks.num_chunks(task):
            self.take(worker, ChunkDone(task, chunk, None))
            return
        if kind == TaskKind.PREDICT:
            self.files.add(task)
        body = b"" if kind == TaskKind.PREDICT else worker.sums[task].to_bytes(8, "big")
        self.take(worker, ChunkDone(task, chunk, body))

    def _make(self, worker: Worker, body: bytes) -> None:
        self.take(worker, MetricsMade((("sum", float(number(body))),)))

    def _load(self, worker: Worker, task: int) -> None:
        """Load the files into the table; a database that another one writes to is waited for."""
        if not worker.alive or worker.hangs:
            return
        if self.writer is not None:
            self.later(0.3, lambda: self._load(worker, task))
            return
        if self.is_marked:
            self.say(f"{worker.name} finds the mark")
            self.take(worker, RowsLoaded(task))
            return
        self.writer = worker
        rows = frozenset(self.files)
        self._perhaps_kill_loader(worker, 1.0)
        self.later(0.1 + self.some(2.0), lambda: self._commit(worker, task, rows))

    def _commit(self, worker: Worker, task: int, rows: frozenset[int]) -> None:
        if not worker.alive or worker.hangs:
            return
        self._mark()
        self._insert(rows)
        self.writer = None
        self.say(f"{worker.name} has committed")
        self._perhaps_kill_loader(worker, 0.2)
        self.later(self.some(0.5), lambda: self.take(worker, RowsLoaded(task)))

    def _mark(self) -> None:
        self.is_marked = True

    def _insert(self, rows: frozenset[int]) -> None:
        self.rows.append(rows)
        if len(self.rows) > 1:
            raise Violation("the rows are in the table twice")
        if len(rows) != self.tasks.num_tasks:
            raise Violation(f"the rows of {len(rows)} of {self.tasks.num_tasks} tasks are loaded")

    def _perhaps_kill_loader(self, worker: Worker, within: float) -> None:
        if self.loaders_left and self.random.random() < 0.5:
            self.loaders_left -= 1
            self.later(self.some(within), lambda: self._kill(worker))

    def _kill(self, worker: Worker) -> None:
        if worker.alive:
            self.say(f"{worker.name} is killed")
            self._end(worker, 137)

    def _end(self, worker: Worker, code: int) -> None:
        worker.alive = False
        if self.writer is worker:
            self.writer = None
        connection, worker.connection = worker.connection, None
        if connection is not None:
            _, master = self.links.pop(connection)
            self.later(self.some(0.2), lambda: self.give(master, to_master.ConnectionLost(connection)))
        for master in self.masters:
            self.later(
                self.some(0.3),
                lambda master=master: self.give(master, to_master.WorkerEnded(worker.name, f"code {code}")),
            )  # type: ignore[misc]
        self.later(1.0, self._replace)

    def _replace(self) -> None:
        over = any(isinstance(record, FinishedRecord | FailedRecord) for record in self.journal)
        if not over and sum(worker.alive for worker in self.workers) < self.plan.workers:
            self._start_worker()

    # ------------------------------------------------------------------ connections

    def _send_up(self, worker: Worker, message: MemberMessage) -> None:
        connection = worker.connection
        if connection is not None:
            _, master = self.links[connection]
            self._carry(connection, "up", lambda: self.give(master, to_master.Heard(connection, message)))

    def _send_down(self, connection: int, message: MasterMessage) -> None:
        if connection in self.links:
            worker, _ = self.links[connection]
            self._carry(connection, "down", lambda: self.take(worker, to_worker.Received(message)))

    def _carry(self, connection: int, way: str, arrive: Callable[[], None]) -> None:
        """Let something arrive in order, unless the connection ends before."""
        at = max(self.arrivals.get((connection, way), 0.0), self.now + self.some(0.1))
        self.arrivals[connection, way] = at
        self.later(at - self.now, lambda: arrive() if connection in self.links else None)

    # ------------------------------------------------------------------ faults

    def _plan_faults(self) -> None:
        plan = self.plan
        for count, act in (
            (plan.kills, lambda: self._hit(self._kill)),
            (plan.hangs, lambda: self._hit(self._hang)),
            (plan.drains, lambda: self._hit(lambda worker: self.take(worker, to_worker.DrainRequested()))),
            (plan.disconnects, lambda: self._hit(self._disconnect)),
            (plan.master_kills, self._kill_master),
            (plan.second_masters, self._start_master),
        ):
            for _ in range(count):
                self.later(self.some(plan.span), act)

    def _hit(self, act: Callable[[Worker], None]) -> None:
        living = [worker for worker in self.workers if worker.alive]
        if living:
            act(self.random.choice(living))

    def _hang(self, worker: Worker) -> None:
        self.say(f"{worker.name} hangs")
        worker.hangs = True
        living = [master for master in self.masters if master.alive]
        if all(worker.machine.member not in master.machine.liveness.seen for master in living):
            self._overdue(worker)

    def _overdue(self, worker: Worker) -> None:
        """Replace a process that its master has not heard of, as `master/processes/starting.py` does."""
        self.later(30.0, lambda: self._kill(worker))

    def _kill_master(self) -> None:
        living = [master for master in self.masters if master.alive]
        if not living:
            return
        living[-1].alive = False
        self.say("the master is killed")
        for worker in self.workers:
            if worker.alive and not worker.hangs:
                self._disconnect(worker)
        self.later(0.5 + self.some(3.0), self._start_master)

    # ------------------------------------------------------------------ promises

    @property
    def total(self) -> int:
        """Return what all minibatches add up to."""
        return sum(range(1, self.plan.minibatches + 1))

    def _check_record(self, record: Record) -> None:
        match record:
            case EvaluatedRecord(state, values):
                if any(isinstance(one, EvaluatedRecord) for one in self.journal):
                    raise Violation("metrics are journalled twice")
                if state != STATE or dict(values) != {"sum": float(self.total)}:
                    raise Violation(
                        f"{dict(values)} is journalled, and all minibatches add up to {self.total}"
                    )
            case FinishedRecord(metrics=metrics):
                if any(isinstance(one, FinishedRecord) for one in self.journal):
                    raise Violation("the job is finished twice")
                if not self.plan.predicts and dict(metrics) != {"sum": float(self.total)}:
                    raise Violation(f"the job ends with the metrics {dict(metrics)}")
                self._check_parts()
                if self.plan.loads and not self.rows:
                    raise Violation("the job is finished, and nothing is in the table")

    def _check_parts(self) -> None:
        if self.plan.predicts and len(self.files) != self.tasks.num_tasks:
            raise Violation(f"{len(self.files)} of {self.tasks.num_tasks} files are there at the end")

    def _check_end(self, end: to_master.End) -> None:
        if (end.status, end.exit_code) != ("finished", 0):
            raise Violation(f"the job ends as {end.status}: {end.reason}")


def number(body: bytes) -> int:
    """Return the number that a result is."""
    return int.from_bytes(body, "big")
