"""The processes of a simulated job: a master, servers and workers, each its real machine and what its runner does around it.

A server's machine and that of a worker's client are the core's, without sockets; a worker's own is the one of `worker/ps/machine.py`.
What stands here besides is what `job/ps.py`, `worker/ps/runner.py`, `ps/server/process.rs` and `ps/client/connections.rs` do: connections,
waiting, and saying things again.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Set
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, assert_never

from elasticdl._core import _simulation
from elasticdl.control.protocol.messages import (
    Evaluated,
    Finished,
    MasterMessage,
    MemberMessage,
    MetricValues,
    Released,
    TaskResult,
    Verdict,
)
from elasticdl.control.protocol.psmessages import (
    Accounts,
    AccountsWanted,
    BarrierPassed,
    CopiesVoid,
    CopyOrdered,
    CopyReady,
    CutOrdered,
    Enroll,
    Enrolled,
    Leave,
    Limits,
    Model,
    Placed,
    SlotAccount,
    SlotsCut,
    SlotSection,
    Unreached,
)
from elasticdl.control.protocol.view import MemberId
from elasticdl.data.plan.waves import Waves
from elasticdl.master.core import events
from elasticdl.worker import events as to_member
from elasticdl.worker.events import ChunkEvaluated, ComputeMetrics, Exit, MetricsComputed, Send
from elasticdl.worker.ps.events import (
    AwaitEnd,
    AwaitRows,
    Compute,
    Confirm,
    Done,
    EndTraining,
    EvaluateChunk,
    Export,
    Fetch,
    FetchEvaluated,
    Forget,
    GiveUp,
    Instruction,
    Learn,
    Leaving,
    Log,
    Outcome,
    PassBarrier,
    PsEvent,
    Pull,
    PullRows,
    PullVariables,
    Push,
    PushEnded,
    PushFirstValues,
    Started,
    StillWaiting,
    UseLast,
    WriteLine,
    Written,
)
from elasticdl.worker.ps.exchange import Exchange
from elasticdl.worker.ps.machine import PsMemberSettings
from elasticdl.worker.ps.pacing import Needed, Pacing
from tests.simulation.oracle import Violation
from tests.simulation.servers.model import TEXT, Adapter

if TYPE_CHECKING:
    from elasticdl.master.ps.machine import PsMaster
    from tests.simulation.servers.world import World

TICK = 0.1
"""Seconds between two looks around."""
SILENCE = 1.0
PAUSE = 0.05
UNDER_WAY = 4
RESULT = struct.Struct("<3q")
"""Of an evaluation task: its number, the chunks that it has seen everywhere, and those that it has seen anywhere."""


@dataclass(eq=False)
class Wire:
    """A connection of two processes: what one says arrives in order, or not at all."""

    ends: tuple[Process, Process]
    on_break: tuple[Callable[[], None], Callable[[], None]]
    open: bool = True
    last: list[float] = field(default_factory=lambda: [0.0, 0.0])
    number: int = 0


class Process:
    """Something that can be killed or hang."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.id = MemberId(name)
        self.status = "up"
        self.stash: list[Callable[[], None]] = []
        self.wires: list[Wire] = []
        self.beat_at = world.now
        self.progress = 0
        self.unreachable_until = 0.0

    @property
    def lives(self) -> bool:
        return self.status in ("up", "paused")

    def do(self, action: Callable[[], None]) -> None:
        """Do something, when this process runs again."""
        if self.status == "paused":
            self.stash.append(action)
        elif self.status == "up":
            action()


class Member(Process):
    """A process that talks with a master."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self.control: Wire | None = None
        self.ticks = 0
        self.connect()
        world.later("tick", self, self.tick, TICK)

    # ------------------------------------------------------------------ the master

    def connect(self) -> None:
        self.world.after(
            self.world.delay("connect"), f"{self.name} looks for a master", lambda: self.do(self._connect)
        )

    def _connect(self) -> None:
        if self.control is not None or self.world.ended is not None:
            return
        master = self.world.some_master()
        if master is None or self.world.now < self.unreachable_until:
            self.connect()
            return
        wire = self.world.wire(self, master, self._cut_off, lambda: master.lose(self.control_of(master)))
        self.control = wire
        number = wire.number
        wire.on_break = (self._cut_off, lambda: master.lose(number))
        self.world.say_on(wire, 0, lambda: master.open(wire, self))
        self.connected()

    def control_of(self, master: Any) -> int:
        return 0 if self.control is None else self.control.number

    def _cut_off(self) -> None:
        self.control = None
        self.connect()

    def send(self, message: MemberMessage) -> bool:
        wire = self.control
        if wire is None or not wire.open:
            return False
        master: Any = wire.ends[1]
        self.world.say_on(wire, 0, lambda: master.hear(wire.number, message))
        return True

    def connected(self) -> None:
        raise NotImplementedError

    def told(self, message: MasterMessage) -> None:
        raise NotImplementedError

    def tick(self) -> None:
        self.ticks += 1
        self.look_around()
        if self.status == "up":
            self.world.later("tick", self, self.tick, TICK)

    def look_around(self) -> None:
        raise NotImplementedError

    def exit(self, how: str) -> None:
        self.world.kill(self, how)


@dataclass
class Stream:
    """The sending end of a stream to another server."""

    wire: Wire | None = None
    next: int | None = None
    heard_at: float = 0.0
    under_way: int = 0
    try_at: float = 0.0


class ServerProcess(Member):
    """A parameter server."""

    def __init__(self, world: World, name: str) -> None:
        self.machine: Any = None
        self.number: int | None = None
        self.epoch = 0
        self.model_known = False
        self.leaving = False
        self.left_out: set[int] = set()
        self.queues: dict[int, tuple[WorkerProcess, Wire]] = {}
        self.streams: dict[int, Stream] = {}
        self.lost: set[int] = set()
        self.terms: dict[int, int] = {}
        self.orders: dict[int, CopyOrdered] = {}
        self.ready: dict[int, CopyReady] = {}
        self.copying: set[int] = set()
        super().__init__(world, name)

    def connected(self) -> None:
        address = f"unix:{self.name}"
        self.send(Enroll(self.id, self.name, address, self.epoch, self.number, (), 0, self.leaving))
        for ready in self.ready.values():
            self.send(ready)

    def drain(self) -> None:
        self.leaving = True
        if self.machine is None:
            self.exit("released")
        else:
            self.send(Leave((), 0))

    def told(self, message: MasterMessage) -> None:
        match message:
            case Enrolled(epoch, number):
                self.epoch, self.number = max(self.epoch, epoch), number
                self._open()
            case Model():
                self.model_known = True
                self._open()
            case Placed():
                self._learn(message)
            case Limits():
                limits = message.roll_back, message.low, message.above, message.steps, message.end
                self.take(self.machine.limit(*limits))
            case CopyOrdered():
                self.orders[message.slot] = message
                self._begin_copies()
            case CopiesVoid(to):
                self.take(self.machine.give_up_copies(to))
                self.orders = {slot: order for slot, order in self.orders.items() if order.to != to}
            case CutOrdered():
                self._cut(message)
            case AccountsWanted():
                slots = tuple(SlotAccount(*one) for one in self.machine.accounts())
                self.send(Accounts(slots, *self.machine.complete()))
            case Verdict():
                self.exit("released" if isinstance(message, Released) else "exit code 3")

    def _open(self) -> None:
        if self.machine is None and self.number is not None and self.model_known:
            self.machine = _simulation.Server(self.number, self.world.model.core, self.world.server_mistake)
            self.world.servers[self.number] = self

    def _learn(self, placed: Placed) -> None:
        self.guard(lambda: self.machine.learn(list(placed.entries), placed.roll_back, placed.tasks))
        self.terms.update((entry.slot, entry.term) for entry in placed.entries)
        self.orders = {slot: one for slot, one in self.orders.items() if one.term >= self.terms[slot]}
        self.ready = {slot: one for slot, one in self.ready.items() if one.term >= self.terms[slot]}
        mine = [one.slot for one in placed.entries if one.restored and one.primary == self.number]
        snapshot = self.world.manifests[placed.snapshot] if placed.snapshot else {}
        for slot in mine:
            self.machine.restore(slot, snapshot.get(slot))
        self.pump()

    def _begin_copies(self) -> None:
        for slot, order in list(self.orders.items()):
            if self.machine.copy(slot, order.to, order.term, order.hands_over):
                del self.orders[slot]
                self.copying.add(slot)
                self.world.later("copy", self, lambda slot=slot: self._go_on_copying(slot))
        self.pump()

    def _go_on_copying(self, slot: int) -> None:
        goes_on, outcome = self.machine.go_on_copying(slot)
        self.take(outcome)
        if goes_on:
            self.world.later("copy", self, lambda: self._go_on_copying(slot))

    def _cut(self, order: CutOrdered) -> None:
        """Each slot at a moment of its own."""
        path = f"{order.directory}/{self.name}-{self.world.count()}"
        file: dict[int, bytes] = {}
        held: dict[int, set[int]] = {}
        sections: list[SlotSection] = []
        left = set(order.slots)

        def cut(slot: int, primary_epoch: int) -> None:
            cut = self.machine.cut(slot, primary_epoch, order.step)
            if cut is not None:
                file[slot], until = words, _ = cut
                found = self.machine.weights(slot, self.world.model.ids[slot], primary_epoch)
                counts = {} if found is None else self.world.model.counts(slot, *found)
                held[slot] = {column for column, count in counts.items() if max(count)}
                sections.append(
                    SlotSection(slot, primary_epoch, 0, len(words), 0, 0, 0, until, 0, 0, "0" * 32)
                )
            left.discard(slot)
            if not left:
                self.world.files[path] = file
                self.world.held[path] = held
                self.send(SlotsCut(order.snapshot, path, tuple(sections), ""))

        for slot, primary_epoch in zip(order.slots, order.primary_epochs, strict=True):
            self.world.later(
                "disk", self, lambda slot=slot, primary_epoch=primary_epoch: cut(slot, primary_epoch)
            )

    def look_around(self) -> None:
        if self.machine is None:
            return
        self._begin_copies()
        for peer, stream in self.streams.items():
            waits = self.machine.stream(peer, self.machine.first(peer), 1) is not None
            if not waits:
                stream.heard_at = self.world.now
            elif stream.wire is not None and self.world.now - stream.heard_at >= SILENCE:
                self.lost.add(peer)
        if self.lost and self.send(Unreached(tuple(sorted(self.lost)))):
            self.lost.clear()
        self.pump()

    # ------------------------------------------------------------------ what the machine says

    def guard(self, act: Callable[[], Any]) -> None:
        """The machine ends a server that finds the protocol broken; that is what is looked for."""
        try:
            outcome = act()
        except ValueError as error:
            raise Violation(f"{self.name} stops: {error}") from None
        self.take(outcome)

    def take(self, outcome: Any) -> None:
        packets, ready = outcome
        for queue, *packet in packets:
            if queue in self.queues:
                self._answer(*self.queues[queue], packet)
        for slot, term, to, hands_over in ready:
            one = CopyReady(slot, term, to, hands_over)
            self.ready[slot] = one
            self.send(one)
        self.pump()

    def _answer(self, worker: WorkerProcess, wire: Wire, packet: list[Any]) -> None:
        number = self.number
        assert number is not None
        self.world.say_on(wire, 1, lambda: worker.answered(number, wire, *packet))

    def pump(self) -> None:
        """Send what is in the streams."""
        if self.machine is None:
            return
        for peer in self.machine.peers():
            stream = self.streams.setdefault(peer, Stream())
            if stream.wire is None:
                self._connect_stream(peer, stream)
            while stream.wire is not None and stream.next is not None and stream.under_way < UNDER_WAY:
                packet = self.machine.stream(peer, stream.next, self.world.room())
                if packet is None:
                    break
                number, known, words, stream.next = packet
                stream.under_way += 1
                self._carry(peer, stream.wire, number, known, words)

    def _carry(self, peer: int, wire: Wire, number: int, known: int, words: bytes) -> None:
        receiver = self.world.servers[peer]
        me = self.number
        assert me is not None

        def hear() -> None:
            receiver.guard(lambda: receiver.machine.hear(me, number, words))
            receiver.acknowledge(self, wire, known)

        self.world.say_on(wire, 0, hear)
        if self.world.trusts_streams:
            self.take(self.machine.accepted(peer, number + 1, []))

    def acknowledge(self, sender: ServerProcess, wire: Wire, known: int) -> None:
        next_, refused = self.machine.heard(sender.number, known)
        number = self.number
        assert number is not None
        self.world.say_on(wire, 1, lambda: sender.accepted(number, wire, next_, refused))

    def _connect_stream(self, peer: int, stream: Stream) -> None:
        if self.world.now < stream.try_at:
            return
        stream.try_at = self.world.now + 10 * PAUSE

        def connect() -> None:
            receiver = self.world.servers.get(peer)
            if stream.wire is not None:
                return
            if receiver is None or not receiver.lives or self.world.ended is not None:
                self.lost.add(peer)
                stream.try_at = self.world.now + PAUSE
                return
            wire = self.world.wire(self, receiver, lambda: self._lose_stream(peer, wire), lambda: None)
            stream.wire, stream.next, stream.under_way = wire, None, 0
            stream.heard_at = self.world.now
            self.world.say_on(wire, 0, lambda: receiver.acknowledge(self, wire, 0))

        self.world.later("connect", self, connect)

    def _lose_stream(self, peer: int, wire: Wire) -> None:
        stream = self.streams[peer]
        if stream.wire is wire:
            stream.wire = stream.next = None
            stream.try_at = self.world.now + PAUSE
            self.lost.add(peer)

    def accepted(self, by: int, wire: Wire, number: int, refused: list[int]) -> None:
        stream = self.streams[by]
        if stream.wire is not wire:
            return
        stream.heard_at = self.world.now
        if stream.next is None:
            stream.next = number
        else:
            stream.next = max(stream.next, number)
            stream.under_way = max(0, stream.under_way - 1)
        self.take(self.machine.accepted(by, number, refused))

    def asked(self, wire: Wire, request: int, words: bytes) -> None:
        if wire.number in self.queues:
            self.guard(lambda: self.machine.ask(wire.number, request, words))


class Line:
    """A worker's connection to a server."""

    def __init__(self) -> None:
        self.wire: Wire | None = None
        self.dialing = False
        self.broken_until = 0.0


class Counting(Pacing):
    """Steps whose gradients are added up, and not averaged: each chunk counts itself."""

    def share(self, task: int, chunk: int) -> float:
        return 1.0


class WorkerProcess(Member):
    """A worker: the real machine, what its runner does with the model, and the real machine of its client; and in between what the
    runners of both do. It is also its own source of chunks and audit file.
    """

    def __init__(self, world: World, name: str) -> None:
        number = int(name.split("-")[1])
        # Counts have all their bits in bfloat16, too.
        self.client = _simulation.Client(
            world.model.core, short_gradients=number % 2 == 1, short_rows=number % 3 == 1
        )
        self.lines: dict[int, Line] = {}
        self.addresses: set[int] = set()
        self.roll_back = 0
        self.tickets = 0
        self.found: dict[int, Any] = {}
        self.ended: dict[int, str] = {}
        self.lost: set[int] = set()
        self.astray = False
        self.wake_at: float | None = None
        self.requests: dict[tuple[int, int], tuple[int, int] | None] = {}
        self.adapter = Adapter(world.model, world.order.steps_before(world.plan.stop_at), world.is_nan)
        any_self: Any = self
        self.exchange = Exchange(any_self.adapter, any_self, world.plan.get_model_steps)
        plan = world.order.evaluation
        metrics = "" if plan is None else "what is seen"
        settings = PsMemberSettings(
            TEXT,
            True,
            skips_nan=world.plan.nans > 0,
            resumed=world.plan.earlier is not None,
            evaluation=plan,
            metrics=metrics,
            follows=world.plan.follows,
        )
        self.sums: dict[int, list[tuple[int, int]]] = {}
        """What this worker has seen in each minibatch of the evaluation tasks that it has begun."""
        waves = Waves(world.order) if world.plan.grads_to_wait else None
        pacing = world.pacing_class(world.order, waves, 0)
        self.machine = world.worker_class(MemberId(name), name, world.order, pacing, settings)
        self.has_started = False
        self.awaited: AwaitRows | AwaitEnd | None = None
        self.was_there = False
        """It took part when the job was finished."""
        super().__init__(world, name)
        world.later("start", self, self.resume)

    def connected(self) -> None:
        self.feed(to_member.Connected())

    def told(self, message: MasterMessage) -> None:
        if isinstance(message, Finished):
            self.was_there = bool(self.addresses)
        self.feed(to_member.Received(message))
        self.flow()

    def drain(self) -> None:
        self.feed(to_member.DrainRequested())
        self.resume()

    def send(self, message: MemberMessage) -> bool:
        """Say something; who has a result, or metrics, or has passed a barrier may hang or die at that moment, before or after."""
        is_result = isinstance(message, TaskResult | Evaluated | BarrierPassed)
        if is_result and self.status == "up" and self.world.hits("hang"):
            self.world.hang(self)

            def say() -> None:
                Member.send(self, message)

            self.do(say)
            return True
        dies = is_result and self.world.hits("result")
        dies_before = dies and self.world.random.random() < 0.5
        sent = not dies_before and super().send(message)
        if dies:
            self.world.after(0.0, f"{self.name} dies with a result", lambda: self.exit("killed by SIGKILL"))
        return sent

    def look_around(self) -> None:
        if self.ticks % 10 == 0:
            self.feed(to_member.Tick())
        self.flow()

    # ------------------------------------------------------------------ what the machine says

    def feed(self, event: PsEvent) -> None:
        following: PsEvent | None = event
        while following is not None:
            instructions = self.machine.handle(self.world.now, following)
            self.progress = self.machine.beat[2]
            following = None
            for instruction in instructions:
                following = self._carry_out(instruction)

    def resume(self) -> None:
        """Let the main thread start, or continue with what it waits for if that has come."""
        if not self.has_started:
            self.has_started = True
            self.feed(Started())
        elif self.awaited is not None and (outcome := self._what_came(self.awaited)) is not None:
            self.awaited = None
            self.feed(outcome)

    def _carry_out(self, instruction: Instruction) -> Outcome | None:
        """Do something; return the outcome of work that is done at once."""
        world = self.world
        match instruction:
            case Send(message):
                self.send(message)
            case Learn(placed):
                self._learn(placed)
            case Forget():
                self.client.forget()
                self.found.clear()
            case Fetch(keys):
                epoch, task, chunk = keys[0]
                column = world.model.column(world.number_of[epoch, task], chunk)
                self._take_time(0.001, lambda: self.exchange.fetched(4, 0, self.adapter.batch(column)))
            case PassBarrier():
                self._take_time(world.delay("compute"), lambda: self.exchange.carry_out(instruction))
            case Compute():
                world.oracle.computes(self, instruction.chunk)
                world.oracle.sees(self, instruction)
                self._take_time(world.delay("compute"), lambda: self.exchange.carry_out(instruction))
            case EndTraining():
                done = self.exchange.carry_out(instruction)
                self._take_time(world.delay("compute"), lambda: done)
            case AwaitRows(_, seconds) | AwaitEnd(_, seconds):
                return self._wait(instruction, seconds)
            case FetchEvaluated():
                self._take_time(0.001, lambda: self.exchange.fetched(0, 0, self.adapter.shared()))
            case EvaluateChunk():
                self._take_time(world.delay("compute"), lambda: self._evaluate(instruction))
            case ComputeMetrics(state, body):
                if world.hits("finisher"):
                    world.after(0.0, f"{self.name} dies as finisher", lambda: self.exit("killed by SIGKILL"))
                values = metrics_of(body)
                self._take_time(world.delay("compute"), lambda: MetricsComputed(state, values))
            case Push():
                world.oracle.pushes(self, instruction.chunk)
                if instruction.line is not None:
                    world.lines.add((instruction.line.number, instruction.line.chunk))
                return self.exchange.carry_out(instruction)
            case Pull() | PullRows() | PullVariables() | PushFirstValues() | UseLast():
                return self.exchange.carry_out(instruction)
            case WriteLine(line):
                world.lines.add((line.number, line.chunk))
                return Done()
            case Export():
                return Written("", "digest")
            case Exit(code, reason):
                world.oracle.training_ended(self)
                world.after(0.0, f"{self.name} ends: {reason}", lambda: self.exit(f"exit code {code}"))
            case Confirm(roll_back, low, tasks):
                self.client.confirm(roll_back, low, list(tasks))
                world.after(0.0, f"{self.name} confirms", lambda: self.do(self.flow))
            case GiveUp():
                raise AssertionError(f"{instruction} belongs to what is not simulated")
            case Log() | Leaving():
                pass
            case _:
                assert_never(instruction)
        return None

    def _evaluate(self, work: EvaluateChunk) -> ChunkEvaluated:
        """Add what is seen of chunks to what the task has seen."""
        if work.chunk == 0:
            self.sums[work.task] = []
        self.sums[work.task].append(self.adapter.seen(work.batch, work.rows))
        plan = self.world.order.evaluation
        assert plan is not None
        if work.chunk + 1 < plan.num_chunks(work.task):
            return ChunkEvaluated(work.state, work.task, work.chunk, None)
        everywhere, anywhere = -1, 0
        for one, other in self.sums.pop(work.task):
            everywhere, anywhere = everywhere & one, anywhere | other
        return ChunkEvaluated(work.state, work.task, work.chunk, RESULT.pack(work.task, everywhere, anywhere))

    def _take_time(self, seconds: float, done: Callable[[], Outcome]) -> None:
        """Let work take a while."""
        until = self.world.now + seconds
        self.world.at(until, f"{self.name} continues", lambda: self.do(lambda: self.feed(done())))

    def _wait(self, work: AwaitRows | AwaitEnd, seconds: float) -> Outcome | None:
        outcome = self._what_came(work)
        if outcome is not None:
            return outcome
        if not seconds:
            return StillWaiting(())
        self.awaited = work

        def look_up() -> None:
            if self.awaited is work:
                self.awaited = None
                lost, self.lost = tuple(sorted(self.lost)), set()
                self.feed(StillWaiting(lost))

        until = self.world.now + seconds
        self.world.at(until, f"{self.name} looks up", lambda: self.do(look_up))
        return None

    def _what_came(self, work: AwaitRows | AwaitEnd) -> Outcome | None:
        if isinstance(work, AwaitRows):
            found = self.found.pop(work.ticket, None)
            if found is None:
                return None
            rows, changed, held = found
            values = [(v, None if one is None else _floats(one)) for v, one in changed]
            return self.exchange.take(([_floats(one) for one in rows], values, held))
        end = self.ended.pop(work.ticket, None)
        if end not in (None, "settled", "rolled back", "stale"):
            raise Violation(f"{self.name}: a push is refused: {end}")
        return None if end is None else PushEnded(end)

    # ------------------------------------------------------------------ being the client

    def _learn(self, placed: Placed) -> None:
        self.addresses |= set(placed.servers)
        if placed.roll_back > self.roll_back:
            self.roll_back = placed.roll_back
            self.requests.clear()
        self.client.learn(list(placed.entries), placed.roll_back)
        self.astray = False

    def pull(self, chunk: Any, batches: Any, variables: list[int], need: Needed | None = None) -> int:
        return self._ask((chunk, list(batches), variables), None, [], [], False, need, 0)

    def push(
        self,
        head: Any,
        rows: Any,
        dense: Any,
        is_first: bool = False,
        wanted: Any = None,
        need: Needed | None = None,
        confirms: int = 0,
        marks: Set[int] = frozenset(),
    ) -> int:
        if wanted is not None:
            chunk, batches, variables = wanted
            wanted = (chunk, list(batches), variables)
        gradients = [(batch, list(memoryview(numbers))) for batch, numbers, _ in rows]
        return self._ask(
            wanted, head, gradients,
            [(variable, list(memoryview(numbers))) for variable, numbers in dense], is_first, need, confirms, set(marks),
        )  # fmt: skip

    def _ask(self, wanted: Any, *asked: Any) -> int:
        self.tickets += 1
        ticket = self.tickets
        self.client.begin(self.world.now, ticket, wanted, *asked)
        self.world.after(0.0, f"{self.name} asks", lambda: self.do(self.flow))
        return ticket

    # ------------------------------------------------------------------ the client's runner

    def flow(self) -> None:
        """Send what is due, take the news, and go on with the loop."""
        now, world = self.world.now, self.world
        due, later = self.client.due(now)
        times = [] if later is None else [later]
        for server in sorted(set(due)):
            line = self.lines.setdefault(server, Line())
            if line.wire is not None:
                for number, words in self.client.ask(now, server):
                    self._send_ask(server, line.wire, number, words)
            elif line.broken_until > now:
                times.append(line.broken_until)
            elif server not in self.addresses:
                self.astray = True
            elif not line.dialing:
                line.dialing = True
                world.later("connect", self, lambda server=server: self._dial(server))
        doubt = self.client.doubt(now)
        times += [] if doubt is None else [doubt]
        if times and (self.wake_at is None or min(times) < self.wake_at or self.wake_at <= now):
            self.wake_at = max(now + 0.001, min(times))
            world.at(self.wake_at, f"{self.name} wakes", lambda: self.do(self.flow))
        found, ended, lost, astray = self.client.news()
        self.found.update(found)
        for ticket, end in ended:
            if end == "rolled back":
                self.found.pop(ticket, None)
            self.ended.setdefault(ticket, end)
        self.lost |= set(lost)
        self.astray |= astray
        self.resume()

    def _send_ask(self, server: int, wire: Wire, number: int, words: bytes) -> None:
        task, chunk = (int.from_bytes(words[at : at + 8], "little") for at in (0, 8))
        self.requests[(server, number)] = None if chunk == 1 << 16 else (task, chunk)
        process = self.world.servers[server]
        self.world.say_on(wire, 0, lambda: process.asked(wire, number, words))

    def _dial(self, server: int) -> None:
        line, process = self.lines[server], self.world.servers.get(server)
        line.dialing = False
        if process is None or not process.lives or self.world.ended is not None:
            self.lose(server, None)
            return
        wire = self.world.wire(
            self, process, lambda: self.lose(server, wire), lambda: process.queues.pop(wire.number, None)
        )
        process.queues[wire.number] = (self, wire)
        line.wire = wire
        self.flow()

    def lose(self, server: int, wire: Wire | None) -> None:
        line = self.lines[server]
        if line.wire is wire:
            line.wire = None
            line.broken_until = self.world.now + PAUSE
            self.client.lose(self.world.now, server)
            self.flow()

    def answered(self, server: int, wire: Wire, kind: int, request: int, words: bytes) -> None:
        if self.lines[server].wire is not wire:
            return
        self.world.oracle.answered(self, server, kind, self.requests.get((server, request)), words)
        if not self.client.take(self.world.now, server, kind, request, words):
            raise Violation(f"{self.name} makes no sense of what server {server} says")
        self.flow()


def metrics_of(body: bytes) -> MetricValues:
    """Return of each evaluation task, in their order, the chunks that it has seen everywhere, and anywhere."""
    return tuple(
        (f"{what} {task}", float(bits))
        for task, everywhere, anywhere in RESULT.iter_unpack(body)
        for what, bits in (("everywhere", everywhere), ("anywhere", anywhere))
    )


def _floats(numbers: list[float]) -> bytes:
    return struct.pack(f"{len(numbers)}f", *numbers)


class MasterProcess(Process):
    """A master: the real machine, and the journal that it may append to."""

    def __init__(self, world: World, number: int, machine: PsMaster) -> None:
        super().__init__(world, f"master-{number}")
        self.machine = machine
        self.listens = False
        """It has read the journal: before, it hears nobody."""
        self.links: dict[int, Wire] = {}

    def open(self, wire: Wire, member: Member) -> None:
        self.links[wire.number] = wire
        self.world.feed(self, events.ConnectionOpened(wire.number, member.id, member.name))

    def hear(self, number: int, message: MemberMessage) -> None:
        self.world.feed(self, events.Heard(number, message))

    def lose(self, number: int) -> None:
        if self.links.pop(number, None) is not None:
            self.world.feed(self, events.ConnectionLost(number))


__all__ = [
    "TEXT",
    "MasterProcess",
    "Member",
    "Process",
    "ServerProcess",
    "Wire",
    "WorkerProcess",
]
