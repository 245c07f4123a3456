"""A whole job in one process: the real state machines of members and masters under a seeded scheduler.

Nothing here decides anything for them: the world carries messages, rings, transfers, files and the journal, each as late and in as
unlucky an order as its seed says, kills, pauses and restarts, and looks after every event whether the promises of the protocol still
hold (`tests/simulation/oracle.py`). The same seed gives the same schedule, event by event, so a failure replays.
"""

from __future__ import annotations

import heapq
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from elasticdl.checkpoint.layout import group_draft_of
from elasticdl.control.protocol.messages import Cut, MasterMessage, MemberMessage, NewView, Saved
from elasticdl.control.protocol.status import EventKind
from elasticdl.control.protocol.view import MemberId, StateId, View
from elasticdl.data.plan.schedule import policy_lanes
from elasticdl.files.output import unpublished_path
from elasticdl.master.allreduce.machine import AllReduceMaster, Settings
from elasticdl.master.core import events as to_master
from elasticdl.master.core.records import (
    FailedRecord,
    FinishedRecord,
    Record,
    ResumedStateRecord,
    SnapshotRecord,
)
from elasticdl.worker import events as to_member
from elasticdl.worker.allreduce.machine import Member
from elasticdl.worker.allreduce.snapshots import Saving
from tests.simulation.faults import Faults
from tests.simulation.oracle import History, Lineage, Oracle, Violation
from tests.simulation.plan import EVENTS, KINDS, OUTPUT, SNAPSHOTS, TIMES, Plan, table
from tests.simulation.processes import Connection, MasterProcess, Ring, SavedPart, Token, Worker
from tests.simulation.transfers import Transfers

_UNWRITTEN = "the journal can't be written"
"""So begins what a master says whose storage does not answer."""


class World:
    """One schedule; `run` returns the number of events or raises Violation."""

    member_class: type[Member] = Member
    master_class: type[AllReduceMaster] = AllReduceMaster
    worker_class: type[Worker] = Worker
    oracle_class: type[Oracle] = Oracle
    faults_class: type[Faults] = Faults
    late_views = 0.05
    """How often a view overtakes nothing and comes later than what was said after it, as from another master."""
    faithful = True
    """No mistake was injected: also what is no matter of safety must hold."""

    def __init__(self, seed: int, plan: Plan, trace: Callable[[str], None] | None = None) -> None:
        self.random = random.Random(seed)
        self.plan = plan
        self.trace = trace
        self.now = 0.0
        self.events = 0
        self._heap: list[tuple[float, int, str, Callable[[], None]]] = []
        self._sequence = 0
        self._numbers = 0
        # some worlds have slow disks, some slow rings: what is rare in one is common in another
        self._pace = {kind: self.random.choice((0.3, 1.0, 1.0, 4.0)) for kind in KINDS}
        if self.random.random() < 0.2:
            self._pace["compute"] = 20.0  # steps that last as long as suspicions
        self._pace.update(plan.pace)
        self.journal: list[Record] = []
        self.files: dict[str, Lineage] = {}
        self.histories: dict[str, History] = {}
        """What callbacks have had, of files."""
        self.parts: dict[str, SavedPart] = {}
        """What was written, by path."""
        self.manifests: dict[Path, Cut] = {}
        """Of which cut a draft has the manifest."""
        self.named: dict[str, Cut] = {}
        """Checkpoints that have their names, by their manifests' paths."""
        self.workers: list[Worker] = []
        self.by_id: dict[MemberId, Worker] = {}
        self.masters: list[MasterProcess] = []
        self.rings: dict[tuple[int, int], Ring] = {}
        self.transfers = Transfers(self)
        self.faulty = True
        self._final_drains = plan.final_drains
        self.stop_reply: bool | None = None
        self.ended: str | None = None
        minibatch = 4
        self.shards, self.schedule = table(
            plan.tasks, plan.chunks, minibatch, plan.max_step, plan.gates, plan.eval_tasks
        )
        self.published = False
        self._faults: list[tuple[int, Callable[[], None]]] = []
        self.faults = self.faults_class(self)
        self.earlier = self._earlier() if plan.resumed else None
        """The checkpoint of an earlier job."""
        self.oracle = self.oracle_class(self)
        earlier = self.earlier
        self.settings = Settings(
            workers=plan.workers,
            minimum=plan.minimum,
            relaunches=1,
            plan=lambda *_: self.schedule,
            policy_lanes=lambda members: policy_lanes(
                None if plan.lanes is None else plan.lanes * minibatch, minibatch, members
            ),
            times=TIMES,
            output=OUTPUT,
            snapshots=SNAPSHOTS,
            lasting=plan.lasting,
            highest=0 if earlier is None else earlier.number,
            resume=None if earlier is None else lambda *_: earlier,
            add_up=lambda _, results: b" ".join(results),
        )
        for index in range(plan.workers):
            self.after(
                self.delay("start"),
                f"worker {index} is ready",
                lambda index=index: self.start_worker(index, 0),
            )
        for join in range(plan.joins):
            self.at_event(lambda index=plan.workers + join: self.start_worker(index, 0))
        self.start_master()
        self.faults.plan()

    def _earlier(self) -> ResumedStateRecord:
        position, path = self.schedule.start(self.random.choice((1, 2))), "earlier/checkpoint-7/manifest.json"
        steps = 0
        while steps < self.plan.resumed:
            after = self.schedule.advance(position, 2)
            if self.schedule.ended(after, steps + 1):
                break
            position, steps = after, steps + 1
        self.files[path], self.histories[path] = (0,) * (steps + 1), ()
        return ResumedStateRecord(7, path, StateId(steps, 0), position, False)

    # ------------------------------------------------------------------ time

    def delay(self, kind: str) -> float:
        """Return how long something takes: mostly about its mean in this world, sometimes many times that."""
        mean = KINDS[kind] * self._pace[kind]
        if self.random.random() < 0.06:
            mean *= 15
        return min(self.random.expovariate(1.0 / mean), 6.0)  # shorter than any stall

    def after(self, delay: float, label: str, action: Callable[[], None]) -> None:
        self._sequence += 1
        heapq.heappush(self._heap, (self.now + delay, self._sequence, label, action))

    def at_event(self, action: Callable[[], None]) -> None:
        """Do something at a random event."""
        self._faults.append((self.random.randrange(self.plan.span), action))

    def run(self) -> int:
        """Run the schedule to its end."""
        faults = sorted(self._faults, key=lambda fault: fault[0])
        while not self.oracle.over() and self._heap:
            while faults and faults[0][0] <= self.events:
                faults.pop(0)[1]()
            self.now, _, label, action = heapq.heappop(self._heap)
            if self.trace is not None:
                self.trace(f"{self.events:5d} {self.now:8.3f} {label}")
            action()
            self.events += 1
            if self.faulty and not faults and self.events > self.plan.span:
                self.faults.end()
            if self.events > EVENTS:
                raise Violation(f"the job does not end: {self.describe()}")
        if not self.oracle.over():
            raise Violation(f"nothing can happen any more and the job has not ended: {self.describe()}")
        self.oracle.check_end()
        return self.events

    def describe(self) -> str:
        parts = []
        for worker in self.workers:
            if worker.lives:
                m = worker.machine
                sign = "!" if not m.active else ""
                parts.append(
                    f"{worker.name}:{worker.status} v{m.current}{sign}{m.sealed} {m.state} holds {sorted(m.accumulator.lanes)}"
                )
        return "; ".join(parts)

    # ------------------------------------------------------------------ masters

    def new_master(self) -> AllReduceMaster:
        return self.master_class(self.settings)

    def start_master(self) -> None:
        if self.oracle.over():
            return
        self._numbers += 1
        machine = self.new_master()
        master = MasterProcess(self._numbers, machine)
        self.masters.append(master)
        self.say(f"master {master.number} starts")
        self.name_last()
        self.feed_master(master, self.read_journal())
        for worker in self.workers:
            if not worker.lives:
                self.feed_master(master, to_master.WorkerEnded(worker.name, worker.status))
        self.feed_master(master, to_master.DataFound(self.shards))
        self._tick(master)

    def read_journal(self) -> to_master.JournalRead:
        return to_master.JournalRead(tuple(self.journal), len(self.journal))

    def _tick(self, master: MasterProcess) -> None:
        if not master.lives:
            return
        if master.status == "up":
            for worker in self.workers:
                if (
                    worker.status == "up"
                    and worker.connection is not None
                    and worker.connection.master is master
                ):
                    view, step, progress = worker.beat
                    self.feed_master(master, to_master.Beat(worker.id, view, step, progress, 0.0))
            self.feed_master(master, to_master.Tick())
        self.after(
            0.25 + 0.1 * self.random.random(), f"master {master.number} ticks", lambda: self._tick(master)
        )
        if master.machine.view_end.sealed_at is not None:
            self.after(0.06, "a moment", lambda: self.feed_master(master, to_master.Tick()))

    def live_masters(self) -> list[MasterProcess]:
        return [master for master in self.masters if master.lives]

    def end_master(self, master: MasterProcess, status: str) -> None:
        self.say(f"master {master.number} ends: {status}")
        master.status = status
        for connection in list(master.connections.values()):
            self.cut(connection)
        self.after(self.delay("start"), "the launcher looks for a master", self._keep_master)

    def _end_masters(self) -> None:
        for master in self.live_masters():
            self.end_master(master, "dead")

    def _keep_master(self) -> None:
        if not self.live_masters() and self.ended is None:
            self.start_master()

    def feed_master(self, master: MasterProcess, event: Any) -> None:
        if master.status == "paused":
            master.stash.append(event)
            return
        if master.status != "up":
            return
        if self.trace is not None and not isinstance(event, to_master.Tick | to_master.Beat):
            self.trace(f"          master {master.number} <- {event}")
        master.machine, instructions = master.machine.handle(self.now, event, more=self.is_in_burst(event))
        for instruction in instructions:
            if self.trace is not None:
                self.trace(f"          master {master.number} -> {instruction}")
            self.carry_out_master(master, instruction)

    def is_in_burst(self, event: Any) -> bool:
        """Tell whether the master has another event at hand; mostly it has none."""
        return False

    def carry_out_master(self, master: MasterProcess, instruction: Any) -> None:
        match instruction:
            case to_master.Append(number, record):
                self.after(
                    self.delay("disk"),
                    f"the disk takes {record}",
                    lambda: self.append(master, number, record),
                )
            case to_master.Check(number):
                if number <= len(self.journal):
                    self.after(
                        self.delay("disk"),
                        f"master {master.number} finds another's record",
                        lambda: self.feed_master(master, to_master.Conflict()),
                    )
            case to_master.Tell(number, message):
                connection = master.connections.get(number)
                self.oracle.told(connection.worker if connection is not None else None, message)
                if connection is not None:
                    self.send_down(connection, message)
            case to_master.Refuse(_, reason):
                raise Violation(f"master {master.number} refuses a worker: {reason}")
            case to_master.WriteGroupManifest():
                self._write_manifest(master, instruction)
            case to_master.Publish(path):
                self.after(
                    self.delay("file"), f"{path} gets its final name", lambda: self.publish(master, path)
                )
            case to_master.Kill(name):
                for worker in self.workers:
                    if worker.name == name:
                        self.kill(worker, "killed by the master")
            case to_master.Reply(_, text):
                if _UNWRITTEN not in text:  # that is no promise: who asked asks again
                    self.oracle.replied()
                    self.stop_reply = True
            case to_master.End(status, reason, _):
                if _UNWRITTEN in reason:
                    self.oracle.given_up()
                self.end_master(master, status)
                if status != "replaced":
                    self.ended = status
                    self.after(2.0, "the launcher ends what is left", self._end_masters)
            case to_master.Announce(kind):
                if kind == EventKind.EVICTED:
                    self.oracle.faultless = False
            case to_master.Scale():
                pass

    def append(self, master: MasterProcess, number: int, record: Record) -> None:
        """Compare-and-set; the outcome may come late, which is all that an unknown outcome is to a reader that reads back."""
        if not master.lives and self.random.random() < 0.5:
            return
        mine = self.may_append(number, record)
        if mine:
            self.oracle.appended(record)
            self.journal.append(record)
            if isinstance(record, FinishedRecord | FailedRecord):
                self._at_end(master)
        if not master.lives:
            return
        event = to_master.Appended(record) if mine else to_master.Conflict()

        def learn() -> None:
            if mine and isinstance(record, SnapshotRecord) and master.lives:
                self.name_snapshot(record)
            self.feed_master(master, event)

        self.after(self.delay("disk"), f"master {master.number} learns: {event}", learn)

    def name_snapshot(self, record: SnapshotRecord) -> None:
        """Give a journalled snapshot its name, unless it has it."""
        draft = group_draft_of(SNAPSHOTS, record.view, record.state.step, passed=record.passed)
        cut = self.manifests.pop(draft, None)
        if cut is not None:
            self.named[record.path] = cut

    def name_last(self) -> None:
        """Do what the master before may have left undone."""
        saved = [record for record in self.journal if isinstance(record, SnapshotRecord)]
        if saved:
            self.name_snapshot(saved[-1])

    def _at_end(self, master: MasterProcess) -> None:
        for _ in range(self.plan.errors_at_end):
            self.faults.break_program()
        if self.plan.master_kills_at_end and self.random.random() < 0.7:
            self.end_master(master, "dead")

    def may_append(self, number: int, record: Record) -> bool:
        del record
        return number == len(self.journal) + 1

    def publish(self, master: MasterProcess, path: str) -> None:
        if master.status == "dead":
            return
        self.oracle.published(path)
        self.feed_master(master, to_master.Published())

    # ------------------------------------------------------------------ connections

    def connect(self, worker: Worker) -> None:
        if not worker.lives or worker.connection is not None:
            return
        alive = self.live_masters()
        if not alive or self.now < worker.unreachable_until:
            if self.ended is None:
                self.after(
                    self.delay("start"), f"{worker.name} looks for a master", lambda: self.connect(worker)
                )
            return
        master = self.random.choice(alive)
        self._numbers += 1
        connection = Connection(self._numbers, worker, master)
        worker.connection = connection
        master.connections[connection.number] = connection
        self.feed_master(master, to_master.ConnectionOpened(connection.number, worker.id, worker.name))
        self.feed(worker, to_member.Connected())

    def cut(self, connection: Connection) -> None:
        if not connection.open:
            return
        connection.open = False
        # what was said before the end may still arrive, or not
        connection.flushes = self.random.random() < 0.5
        connection.up = max(connection.up + 1e-9, self.now + self.delay("message"))
        worker, master = connection.worker, connection.master
        master.connections.pop(connection.number, None)
        self.after(
            connection.up - self.now,
            f"master {master.number} loses {worker.name}",
            lambda: self.feed_master(master, to_master.ConnectionLost(connection.number)),
        )
        self.after(
            self.delay("message"),
            f"{worker.name} loses its master",
            lambda: self._disconnected(worker, connection),
        )

    def _disconnected(self, worker: Worker, connection: Connection) -> None:
        if worker.connection is not connection:
            return
        worker.connection = None
        self.feed(worker, to_member.Disconnected())
        self.after(self.delay("connect"), f"{worker.name} connects again", lambda: self.connect(worker))

    def send_up(self, connection: Connection, message: MemberMessage) -> None:
        connection.up = max(connection.up + 1e-9, self.now + self.delay("message"))
        self.after(
            connection.up - self.now,
            f"{connection.worker.name} says {type(message).__name__}",
            lambda: self._arrive_up(connection, message),
        )

    def _arrive_up(self, connection: Connection, message: MemberMessage) -> None:
        if connection.open or connection.flushes:
            self.feed_master(connection.master, to_master.Heard(connection.number, message))

    def send_down(self, connection: Connection, message: MasterMessage) -> None:
        if isinstance(message, NewView) and self.random.random() < self.late_views:
            late = to_member.Received(message)
            self.after(
                0.05 + self.delay("pause") / 4,
                f"{connection.worker.name} hears a view late",
                lambda: self.feed(connection.worker, late),
            )
            return
        connection.down = max(connection.down + 1e-9, self.now + self.delay("message"))
        self.after(
            connection.down - self.now,
            f"{connection.worker.name} hears {type(message).__name__}",
            lambda: self._arrive_down(connection, message),
        )

    def _arrive_down(self, connection: Connection, message: MasterMessage) -> None:
        if connection.open:
            self.feed(connection.worker, to_member.Received(message))

    # ------------------------------------------------------------------ workers

    def start_worker(self, index: int, life: int) -> None:
        if self.oracle.over() or (
            self.journal and isinstance(self.journal[-1], FinishedRecord | FailedRecord)
        ):
            return
        name = f"worker-{index}-{life}"
        machine = self.member_class(
            MemberId(name),
            name,
            f"unix:{name}",
            self.schedule,
            saving=Saving(self.plan.checkpoint_steps, self.plan.lasting),
        )
        worker = self.worker_class(name, machine)
        self.workers.append(worker)
        self.by_id[worker.id] = worker
        self.say(f"{name} starts")
        self.connect(worker)
        self._tick_worker(worker)

    def _tick_worker(self, worker: Worker) -> None:
        if worker.lives:
            self.feed(worker, to_member.Tick())
            self.after(1.0 + self.random.random(), f"{worker.name} ticks", lambda: self._tick_worker(worker))

    def kill(self, worker: Worker, cause: str) -> None:
        if worker.lives:
            self.oracle.faultless = False
            self.say(f"{worker.name} dies: {cause}")
            self._leave(worker, "dead", relaunch=True)

    def _leave(self, worker: Worker, status: str, relaunch: bool) -> None:
        worker.status = status
        worker.stash.clear()
        if worker.connection is not None:
            self.cut(worker.connection)
        self.close_views(worker, 1 << 30, linger=False)
        for master in self.live_masters():
            self.after(
                self.delay("wait status"),
                f"master {master.number} gets the status of {worker.name}",
                lambda m=master: self.feed_master(m, to_master.WorkerEnded(worker.name, status)),
            )
        if not relaunch:
            self.after(1.0, "the platform looks for workers", self._keep_workers)
        elif self.ended is None:
            _, index, life = worker.name.split("-")
            self.after(
                self.delay("start"),
                f"worker {index} is launched again",
                lambda: self.start_worker(int(index), int(life) + 1),
            )

    def _keep_workers(self) -> None:
        """Whoever drains workers that the job can't do without sends new ones, or it waits for ever."""
        if self.ended is None:
            for _ in range(self.plan.minimum - sum(worker.lives for worker in self.workers)):
                self.start_worker(100 + len(self.workers), 0)

    def feed(self, worker: Worker, event: Any) -> None:
        if worker.status == "paused":
            worker.stash.append(event)
            return
        if worker.status != "up":
            return
        if self.trace is not None and not isinstance(event, to_member.Tick):
            self.trace(f"          {worker.name} <- {event}")
        worker.machine, instructions = worker.machine.handle(event)
        for instruction in instructions:
            if self.trace is not None:
                self.trace(f"          {worker.name} -> {instruction}")
            self.carry_out(worker, instruction)
            if not worker.lives:
                return

    def carry_out(self, worker: Worker, instruction: Any) -> None:
        match instruction:
            case to_member.Send(message):
                if worker.connection is not None and worker.connection.open:
                    self.send_up(worker.connection, message)
            case to_member.OpenView(view, keep):
                self.close_views(worker, view.id - 1, linger=False)
                self.oracle.installed(worker, view, keep)
                worker.view = view
                worker.serving = None
                worker.late = False
                if not keep:
                    worker.accumulator = []
                if view.final and self._final_drains:
                    self._final_drains -= 1
                    self.after(
                        self.delay("message"),
                        f"{worker.name} gets SIGTERM",
                        lambda: self.feed(worker, to_member.DrainRequested()),
                    )
            case to_member.CloseView(sealed, linger):
                self.oracle.sealed(worker, sealed)
                self.close_views(worker, sealed, linger)
                self._cancel_work(worker)
            case to_member.ServeState(view_id, state):
                assert worker.lineage is not None
                self.oracle.names(state, worker.lineage, f"{worker.name} serves")
                worker.serving = (view_id, state, worker.lineage, worker.history)
                self.transfers.start(worker)
            case to_member.TakePart():
                self._take_part(worker, instruction)
            case to_member.EndTraining():
                if worker.ended_training:
                    raise Violation(f"{worker.name} ends its training twice")
                worker.ended_training = True
            case to_member.Exit(code, reason):
                self.say(f"{worker.name} exits with {code}: {reason}")
                self._leave(worker, f"exit code {code}", relaunch=code not in (0, 2))
            case to_member.Heal():
                self.transfers.heal(worker, instruction)
            case to_member.Compute():
                self._compute(worker, instruction)
            case to_member.Contribute():
                self._contribute(worker, instruction)
            case to_member.Commit():
                self._commit(worker, instruction)
            case to_member.Evaluate():
                self._evaluate(worker, instruction)
            case to_member.ComputeMetrics():
                self._compute_metrics(worker, instruction)
            case to_member.PassGate():
                self._pass_gate(worker, instruction)
            case to_member.Export():
                self._export(worker, instruction)
                self.faults.break_exporter(worker)

    # ------------------------------------------------------------------ work

    def _begin(self, worker: Worker, work: Any) -> Token:
        if worker.token is not None:
            raise Violation(f"{worker.name} gets {work} while {worker.token.work} is under way")
        worker.token = Token(work)
        return worker.token

    def come_back(
        self, worker: Worker, token: Token, delay: float, label: str, outcome: Callable[[], Any]
    ) -> None:
        """Schedule the end of a piece of work; a later call for the same one replaces it."""
        token.version += 1
        token.scheduled = True
        version = token.version
        self.after(
            delay, f"{worker.name}: {label}", lambda: self._come_back_now(worker, token, version, outcome)
        )

    def _come_back_now(self, worker: Worker, token: Token, version: int, outcome: Callable[[], Any]) -> None:
        if token.done or token.version != version or not worker.lives:
            return
        if worker.stuck and worker.machine.beat[2] % 2:
            return  # it is at work, and will be for ever
        if worker.status == "paused":
            self.after(
                0.3 + self.delay("pause"),
                f"{worker.name} sleeps over its work",
                lambda: self._come_back_now(worker, token, version, outcome),
            )
            return
        token.done = True
        if worker.token is token:
            worker.token = None
        if worker.heal is token:
            worker.heal = None
        self.feed(worker, outcome())

    def _cancel_work(self, worker: Worker) -> None:
        """Cancel what is under way: it comes back without effect, or its real outcome was faster."""
        for token in (worker.token, worker.heal):
            if token is None or isinstance(token.work, to_member.Commit | to_member.PassGate):
                continue
            if token.scheduled and self.random.random() < 0.4:
                continue
            self.come_back(worker, token, self.delay("cancel"), "cancelled", to_member.WorkCancelled)

    def _compute(self, worker: Worker, work: to_member.Compute) -> None:
        token = self._begin(worker, work)

        def outcome() -> to_member.ChunkComputed:
            assert worker.lineage is not None
            task = self.schedule.task(work.position, work.lane)
            records = self.oracle.records(task, work.position.chunk)
            worker.accumulator.append((work.lane, (task.epoch, task.id, work.position.chunk), worker.lineage))
            worker.late = worker.late or not worker.machine.active
            return to_member.ChunkComputed(work.lane, records, float(records), 0.0)

        self.come_back(worker, token, self.delay("compute"), f"has computed lane {work.lane}", outcome)

    def _commit(self, worker: Worker, work: to_member.Commit) -> None:
        token = self._begin(worker, work)
        self.apply(worker, work)
        self.come_back(
            worker,
            token,
            self.delay("apply"),
            f"has applied step {work.state.step}",
            lambda: to_member.Applied(work.state),
        )

    def apply(self, worker: Worker, work: to_member.Commit) -> None:
        """Make a step part of what a worker's memory holds."""
        view = worker.view
        assert view is not None
        ring = self.rings[(work.view, work.state.step)]
        position = view.position if work.state.step == view.base.step + 1 else worker.position
        assert position is not None
        self.oracle.committed(worker, work, ring, position)
        worker.position = work.position
        assert worker.lineage is not None
        worker.lineage = (*worker.lineage, work.view)
        worker.accumulator = []

    def _evaluate(self, worker: Worker, work: to_member.Evaluate) -> None:
        token = self._begin(worker, work)

        def outcome() -> to_member.ChunkEvaluated:
            assert worker.lineage is not None
            self.oracle.names(work.state, worker.lineage, f"{worker.name} evaluates")
            sums = (work.task, work.chunk, worker.lineage)
            if work.chunk and worker.sums != sums:
                raise Violation(f"{worker.name} adds to {worker.sums} what belongs to {sums}")
            worker.sums = (work.task, work.chunk + 1, worker.lineage)
            if work.chunk + 1 < self.schedule.evaluation.num_chunks(work.task):
                return to_member.ChunkEvaluated(work.state, work.task, work.chunk, None)
            self.faults.break_at_gate(worker)
            # what it was made of, so that the oracle can tell
            body = json.dumps([work.task, worker.lineage], separators=(",", ":"))
            return to_member.ChunkEvaluated(work.state, work.task, work.chunk, body.encode())

        label = f"has evaluated minibatch {work.chunk} of task {work.task}"
        self.come_back(worker, token, self.delay("compute"), label, outcome)

    def _compute_metrics(self, worker: Worker, work: to_member.ComputeMetrics) -> None:
        token = self._begin(worker, work)

        def outcome() -> to_member.MetricsComputed:
            self.faults.break_at_gate(worker)
            self._numbers += 1
            # two who make them may differ in a last bit
            values = ((work.body.decode(), float(self._numbers)),)
            return to_member.MetricsComputed(work.state, values)

        self.come_back(worker, token, self.delay("compute"), "has made metrics", outcome)

    def _pass_gate(self, worker: Worker, work: to_member.PassGate) -> None:
        token = self._begin(worker, work)
        assert worker.lineage is not None
        self.oracle.names(work.state, worker.lineage, f"{worker.name} passes")
        self.oracle.passed(worker, work.state, work.values)
        worker.history = (*worker.history, (work.state, work.values))
        self.come_back(
            worker,
            token,
            self.delay("apply"),
            f"has passed the gate of step {work.state.step}",
            lambda: to_member.GatePassed(work.state, self._is_best(work)),
        )

    def _is_best(self, work: to_member.PassGate) -> bool:
        """Tell whether a state has the best metrics so far, by a rule that all members share."""
        return self.plan.lasting and work.values is not None and int(work.values[0][1]) % 2 == 0

    def _export(self, worker: Worker, work: to_member.Export) -> None:
        token = self._begin(worker, work)
        path = unpublished_path(OUTPUT, work.state.step, work.state.view)

        def outcome() -> to_member.ExportWritten:
            assert worker.lineage is not None
            self.files[path] = worker.lineage
            self.histories[path] = worker.history
            return to_member.ExportWritten(work.view, path, str(worker.lineage), ())

        self.come_back(worker, token, self.delay("file"), "has exported", outcome)

    # ------------------------------------------------------------------ saved states

    def _take_part(self, worker: Worker, take: to_member.TakePart) -> None:
        cut = take.cut
        assert worker.lineage is not None
        self.oracle.names(cut.state, worker.lineage, f"{worker.name} copies")
        content = SavedPart(worker.lineage, worker.history, take.rank, take.members)
        folder = group_draft_of(SNAPSHOTS, cut.view, cut.state.step, passed=cut.passed)
        path = str(folder / f"part-{take.rank}")
        fails = self.faulty and self.random.random() < 0.05  # the disk is full
        self.oracle.full_disk |= fails

        def written() -> None:
            if not worker.lives:
                return
            if not fails:
                self.parts[path] = content
            error = "the disk is full" if fails else ""
            saved = Saved(
                cut, take.position, path, take.rank, 1, take.members, 0, str(content.history), error
            )
            self.faults.break_at_part(worker)
            self.feed(worker, to_member.PartWritten(saved))

        self.after(self.delay("file"), f"{worker.name} has written {path}", written)

    def _write_manifest(self, master: MasterProcess, told: to_master.WriteGroupManifest) -> None:
        cut = told.cut
        fails = self.faulty and self.random.random() < 0.03
        self.oracle.full_disk |= fails

        def written() -> None:
            if not master.lives:
                return
            if not fails:
                self.complete(cut, told)
            self.faults.break_at_part(None)
            error = "the disk is full" if fails else None
            self.feed_master(master, to_master.ManifestWritten(told.number, "", error, cut))

        self.after(self.delay("file"), f"master {master.number} has written the manifest of {cut}", written)

    def complete(self, cut: Cut, told: to_master.WriteGroupManifest) -> None:
        """Write a manifest."""
        self.oracle.completed(cut, [self.parts[path] for path, _, _ in told.parts])
        self.manifests[group_draft_of(SNAPSHOTS, cut.view, cut.state.step, passed=cut.passed)] = cut

    # ------------------------------------------------------------------ rings

    def _contribute(self, worker: Worker, work: to_member.Contribute) -> None:
        token = self._begin(worker, work)
        view = worker.view
        assert view is not None
        given = tuple(worker.accumulator) if work.lines and not work.blank else ()
        self.oracle.contributed(worker, work, given)
        ring = self.rings.setdefault((work.view, work.step), Ring(view, work.step))
        ring.parts[worker.id] = given
        ring.trailers[worker.id] = work.trailer
        ring.waiting[worker.id] = (worker, token)
        self.look_at_ring(ring)

    def is_full(self, ring: Ring) -> bool:
        """M4: over all members of the view."""
        return all(peer.id in ring.parts for peer in ring.view.members)

    def has_left(self, member: MemberId, view: View) -> bool:
        worker = self.by_id[member]
        return not worker.lives or worker.closed >= view.id

    def look_at_ring(self, ring: Ring) -> None:
        """Let waiting members see the end of a ring that is full, or the fall of one that can't become full."""
        gone = [peer.id for peer in ring.view.members if self.has_left(peer.id, ring.view)]
        full = self.is_full(ring)
        for member, (worker, token) in list(ring.waiting.items()):
            if token.done:
                del ring.waiting[member]
            elif token.scheduled:
                continue
            elif full and not (gone and self.random.random() < 0.3):
                self._complete_ring(ring, worker, token)
            elif gone:
                self.fail_ring(ring, member, self.random.choice(gone))

    def _complete_ring(self, ring: Ring, worker: Worker, token: Token) -> None:
        trailers = list(ring.trailers.values())
        total = to_member.Trailer(
            records=sum(t.records for t in trailers),
            examples=sum(t.examples for t in trailers),
            loss=sum(t.loss for t in trailers),
            loss_examples=sum(t.loss_examples for t in trailers),
            flag=sum(t.flag for t in trailers),
            contributors=tuple(
                sum(column) for column in zip(*(t.contributors for t in trailers), strict=True)
            ),
        )
        event = to_member.RingCompleted(ring.view.id, ring.step, total)
        self.come_back(
            worker, token, self.delay("ring"), f"ring of step {ring.step} is complete", lambda: event
        )

    def fail_ring(self, ring: Ring, member: MemberId, accused: MemberId | None) -> None:
        worker, token = ring.waiting[member]
        event = to_member.RingFailed(ring.view.id, ring.step, accused, "eof")
        self.come_back(worker, token, self.delay("ring"), f"ring of step {ring.step} breaks", lambda: event)

    def close_views(self, worker: Worker, upto: int, linger: bool) -> None:
        """Close the data plane of a worker's views up to `upto`; who waits for it there notices."""
        before, worker.closed = worker.closed, max(worker.closed, upto)
        if worker.serving is not None and worker.serving[0] <= upto:
            worker.serving = None
        for ring in self.rings.values():
            if not before < ring.view.id <= upto or ring.view.rank(worker.id) is None:
                continue
            full = self.is_full(ring)
            for member, (_, token) in list(ring.waiting.items()):
                if member == worker.id or token.done:
                    continue
                if not full or (not linger and self.random.random() < 0.3):
                    self.fail_ring(ring, member, worker.id)
        for healee, token in self.transfers.waiting:
            if not token.done and token.work.source == worker.id and token.work.view <= upto:
                self.transfers.fail(healee, token)
        if worker.view is not None and worker.view.id <= upto:
            rank = worker.view.rank(worker.id)
            assert rank is not None
            source = worker.view.sources[rank]
            donor = self.by_id.get(MemberId(str(source)))
            if donor is not None and donor is not worker:
                view_id = worker.view.id
                self.transfers.tell_donor(donor, view_id, worker.id, acknowledged=False)

    # ------------------------------------------------------------------ what was transferred or saved

    def saved(self, path: str) -> tuple[Lineage, History]:
        """Return what is saved in a checkpoint: the state, and what callbacks have had."""
        if path in self.files:
            return self.files[path], self.histories[path]
        if path not in self.named:
            raise Violation(f"a member is to read {path}, which is not there")
        cut = self.named[path]
        part = self.parts[
            str(group_draft_of(SNAPSHOTS, cut.view, cut.state.step, passed=cut.passed) / "part-0")
        ]
        return part.lineage, part.history

    def healed(
        self, worker: Worker, work: to_member.Heal, content: Lineage, history: History
    ) -> to_member.Healed:
        self.oracle.names(work.state, content, f"{worker.name} heals")
        worker.lineage = content
        worker.history = history = self.healed_history(history)
        if not self.keeps_gradients_over_heal():
            worker.accumulator = []
        passed = any(state == work.state for state, _ in history)
        return to_member.Healed(work.view, work.state, work.position, passed)

    def healed_history(self, history: History) -> History:
        return history

    def keeps_gradients_over_heal(self) -> bool:
        return False

    # ------------------------------------------------------------------ words

    def say(self, text: str) -> None:
        if self.trace is not None:
            self.trace(f"     ---- {text}")
