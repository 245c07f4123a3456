"""What masters cost as jobs grow: decisions of groups with ten, a hundred and a thousand members, and of data with 10⁹ records.

Run it alone: `python -m benchmarks.scale`. The machines are pure, in this process, with a journal that takes everything at once. What
members say because of the same thing is given to a machine as a runner gives it that finds it all in its queue. All times are processor
time, medians of several groups. Where the row has a factor, that is the time of a thousand members over ten times that of a hundred: 1 is
linear growth.
"""

from __future__ import annotations

import json
import statistics
import time
import tracemalloc
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from benchmarks.masters import Decisions
from benchmarks.servers import Row
from benchmarks.servers import table as table
from elasticdl.cluster.cluster import ProcessEnded, ProcessStarted
from elasticdl.control.protocol.messages import (
    AtGate,
    Evaluated,
    Lost,
    MemberMessage,
    NextView,
    Progress,
    Register,
    Report,
    TaskResult,
)
from elasticdl.control.protocol.view import MemberId, Peer, StateId, View, ViewId
from elasticdl.data.plan.evaluation import EvaluationPlan
from elasticdl.data.plan.ledger import Ledger
from elasticdl.data.plan.schedule import Schedule
from elasticdl.data.plan.shard import Position, Shard
from elasticdl.master.allreduce import machine as allreduce
from elasticdl.master.allreduce.machine import AllReduceMaster
from elasticdl.master.allreduce.seen import Link
from elasticdl.master.core.events import (
    Append,
    Beat,
    ConnectionLost,
    ConnectionOpened,
    Event,
    Heard,
    Tick,
    WorkerEnded,
)
from elasticdl.master.core.recordforms import record_to_json
from elasticdl.master.core.records import ViewRecord
from elasticdl.master.processes import replicas
from elasticdl.master.processes.replicas import ReplicaSet
from elasticdl.master.running.gathering import TOGETHER

RECORDS = 1_000_000_000
MINIBATCH = 64
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured.

    Attributes:
        members: of the three groups.
        rounds: groups of each size.
        records: of the data.
        steps: whose chunks are asked for.
    """

    members: tuple[int, int, int] = (10, 100, 1000)
    rounds: int = 5
    records: int = RECORDS
    steps: int = 200


FULL = Sizes()
SMALLEST = Sizes(members=(4, 8, 20), rounds=1, records=1_000_000, steps=2)

BEGIN, HEALED, BEATS, STEP = (
    "the group begins",
    "all have the initial state",
    "a second of heartbeats",
    "a step",
)
LOSS, LOSSES, SILENT, JOIN, GATE = (
    "a view change after one loss",
    "a tenth is lost at once",
    "a tenth falls silent",
    "a worker joins",
    "an evaluation",
)
STARTED, RELAUNCHED = "processes are started, and join", "a tenth of the processes end and are launched again"


def rows(sizes: Sizes = FULL) -> list[Row]:
    """Measure everything; return one row each."""
    found: dict[int, dict[str, list[float]]] = {members: {} for members in sizes.members}
    bytes_of: dict[int, int] = {}
    for _ in range(sizes.rounds):
        for members in sizes.members:
            group = Group(members, sizes.records)
            for what, seconds in (*life(group), *processes(members)):
                found[members].setdefault(what, []).append(seconds)
            bytes_of[members] = group.journalled
    times = {
        members: {what: statistics.median(took) for what, took in of.items()} for members, of in found.items()
    }
    small, some, many = sizes.members
    lines = [
        growth(what, {members: times[members][what] for members in sizes.members}) for what in times[many]
    ]
    change = times[many][LOSS]
    lines.append(
        Row(
            f"synchronous master: a view change of {many:,} members",
            f"{1e3 * change:.1f} ms",
            f"{some} members: {1e3 * times[some][LOSS]:.1f} ms",
            1e3 * change,
            100,
            50,
            " ms",
        )
    )
    lines.append(
        Row(
            f"journal: a view of {many:,} members",
            f"{bytes_of[many]:,} bytes, none for a step",
            f"{small} members: {bytes_of[small]:,} bytes",
            bytes_of[many] / many / (bytes_of[some] / some),
            1.3,
            1.1,
        )
    )
    return [*lines, data(sizes)]


def growth(what: str, times: dict[int, float]) -> Row:
    """Return the row on how one thing grows; `times`: seconds of processor time by members."""
    (small, least), (some, less), (many, most) = sorted(times.items())
    return Row(
        f"synchronous master: {what}, {many:,} members",
        f"{1e3 * most:.2f} ms, {1e6 * most / many:.0f} µs a member",
        f"{some} members {1e3 * less:.2f} ms, {small} {1e3 * least:.2f} ms",
        (most / many) / max(less / some, 1e-9),
        2,
        1.5,
    )


# ------------------------------------------------------------------ groups


class Group(Decisions):
    """A synchronous master, and members that compute nothing and say what members say."""

    def __init__(self, members: int, records: int) -> None:
        shards = (Shard("data", 0, records),)
        schedule = Schedule(
            Ledger(shards, MINIBATCH * 8, MINIBATCH, 1, True),
            1,
            0,
            EvaluationPlan(shards, MINIBATCH, every=1),
        )
        settings = allreduce.Settings(
            workers=members,
            minimum=1,
            relaunches=1,
            plan=lambda *_: schedule,
            policy_lanes=lambda number: number,
        )
        self.journalled = 0
        """Bytes of the last view's record."""
        self.schedule = schedule
        self.state, self.position = StateId(0, 0), Position(0, 0, 0, 0)
        self._numbers = iter(range(1, 1 << 40))
        super().__init__(AllReduceMaster(settings))

    @property
    def view(self) -> View:
        """Return the current view."""
        view = self.master.journal.view
        assert view is not None, "a group has begun"
        return view

    def together(self, events: Iterable[Event]) -> None:
        """Give the master what it finds in its queue."""
        waiting = list(events)
        for at in range(0, len(waiting), TOGETHER):
            part = waiting[at : at + TOGETHER]
            for event in part[:-1]:
                self.master, said = self.master.handle(self.now, event, more=True)
                assert not any(isinstance(one, Append) for one in said), "nothing follows before the last one"
            self.give(part[-1])

    def give(self, event: Event) -> None:
        """Give the master an event, and what comes of its records; count what a view is in the journal."""
        before = self.master.journal.view
        super().give(event)
        after = self.master.journal.view
        if after is not None and after is not before:
            self.journalled = len(json.dumps(record_to_json(ViewRecord(after))))

    # what members say

    def comes(self, name: str) -> Iterator[Event]:
        """Yield how a new worker comes."""
        self.connections[name] = next(self._numbers)
        blank = Report(ViewId(0), ViewId(0), None, None, frozenset(), False)
        yield ConnectionOpened(self.connections[name], MemberId(name), name)
        yield self._says(name, Register(MemberId(name), name, f"tcp:10.0.0.1:{len(name)}", 0, blank))

    def heals(self) -> Iterator[Event]:
        """Yield what those say who get the base."""
        view = self.view
        for peer, source in zip(view.members, view.sources, strict=True):
            if source is not None:
                yield self._says(peer.name, Progress(view.id, view.base, view.position, None, 0))

    def seals(self, members: Iterable[Peer], how: str = "") -> Iterator[Event]:
        """Yield what members say that leave the view; `how`: because of what, empty at a step boundary."""
        view = self.view
        report = Report(view.id, view.id, self.state, self.position, frozenset(), False)
        for peer in members:
            if how:
                yield self._says(peer.name, Lost(view.id, self.state.step + 1, None, how))
            yield self._says(peer.name, NextView(report))

    def beats(self, members: Iterable[Peer]) -> None:
        """Let two heartbeats of each come, with the ticks of a second."""
        step, view = self.state.step, self.view
        for half in range(2):
            for peer in members:
                self.give(Beat(peer.id, view.id, step, 4 * step + 2 * half, 0.1))
            for _ in range(20):
                self.now += 0.025
                self.give(Tick())

    def commits(self) -> None:
        """Commit one step."""
        view = self.view
        self.state = StateId(view.base.step + 1, view.id)
        self.position = self.schedule.advance(view.position, view.wave_lanes)
        self.give(self._says(view.members[0].name, Progress(view.id, self.state, self.position, 0.5, 0)))

    def loses(self, lost: tuple[Peer, ...], signs: Callable[[Peer], Event]) -> None:
        """Lose members of the view, and follow it with the next one."""
        before = self.view
        left = [peer for peer in before.members if peer not in lost]
        self.together(signs(peer) for peer in lost)
        while not any(
            isinstance(link, Link) and link.stop == before.id for link in self.master.links.values()
        ):
            self.beats(left)  # until silence alone is enough
        self.together(self.seals(left, "its connection broke"))
        self._is_after(before, len(left))

    def joins(self, name: str) -> None:
        """Let a worker join."""
        before = self.view
        self.together(self.comes(name))
        self.together(self.seals(before.members))
        self.together(self.heals())
        self._is_after(before, len(before.members) + 1)

    def evaluates(self) -> None:
        """Evaluate the present state: all come to the gate, do tasks, and the metrics are journalled."""
        view, plan = self.view, self.schedule.evaluation
        assert plan is not None, "something is evaluated"
        self.together(self._says(peer.name, AtGate(view.id, self.state, "")) for peer in view.members)
        for at in range(0, plan.num_tasks, len(view.members)):
            tasks = range(at, min(at + len(view.members), plan.num_tasks))
            self.together(
                self._says(peer.name, TaskResult(self.state, task, b""))
                for peer, task in zip(view.members, tasks, strict=False)
            )
        self.give(self._says(view.members[0].name, Evaluated(self.state, (("loss", 0.5),))))
        assert self.state in self.master.journal.evaluated, "metrics are journalled"

    def _says(self, name: str, message: MemberMessage) -> Heard:
        return Heard(self.connections[name], message)

    def _is_after(self, before: View, members: int) -> None:
        view = self.view
        assert (view.id, len(view.members)) == (before.id + 1, members), (
            f"view {view.id}: {len(view.members)}"
        )


def life(group: Group) -> Iterator[tuple[str, float]]:
    """Yield what happens to a group, and the processor seconds of its master for each."""
    members = group.master.settings.workers
    tenth = max(1, members // 10)

    def took(do: Callable[[], None]) -> float:
        began = time.process_time()
        do()
        return time.process_time() - began

    def ended(peer: Peer) -> Event:
        return WorkerEnded(peer.name, "killed by SIGKILL")

    def cut(peer: Peer) -> Event:
        return ConnectionLost(group.connections[peer.name])

    names = [f"worker-{index}-1" for index in range(members)]
    yield BEGIN, took(lambda: group.together(event for name in names for event in group.comes(name)))
    assert len(group.view.members) == members, "all have begun"
    yield HEALED, took(lambda: group.together(group.heals()))
    group.beats(group.view.members)
    yield BEATS, took(lambda: group.beats(group.view.members))
    yield STEP, took(group.commits)
    yield GATE, took(group.evaluates)
    yield LOSS, took(lambda: group.loses(group.view.members[1:2], ended))
    group.beats(group.view.members)
    group.commits()
    yield LOSSES, took(lambda: group.loses(group.view.members[1 : 1 + tenth], ended))
    group.beats(group.view.members)
    group.commits()
    yield JOIN, took(lambda: group.joins(f"worker-{members}-1"))
    group.beats(group.view.members)
    group.commits()
    yield SILENT, took(lambda: group.loses(group.view.members[1 : 1 + tenth], cut))


# ------------------------------------------------------------------ processes


def processes(number: int) -> Iterator[tuple[str, float]]:
    """Yield what happens to a job's processes, and the processor seconds in which it is decided which should run."""
    force, now = ReplicaSet(wanted=number, limit=0), 0.0

    def decide(*events: replicas.Event) -> list[replicas.Instruction]:
        nonlocal force, now
        said: list[replicas.Instruction] = []
        for event in events:
            now += 1e-3
            force, instructions, _ = replicas.decide(now, force, event)
            said += instructions
        return said

    def seconds(*events: replicas.Event) -> float:
        began = time.process_time()
        decide(*events)
        return time.process_time() - began

    decide(replicas.Tick())
    names = force.lives()
    assert len(names) == number
    yield STARTED, seconds(*(ProcessStarted(name, None) for name in names), *map(replicas.Joined, names))
    now += 60.0
    lost = names[: max(1, number // 10)]
    yield RELAUNCHED, seconds(*(ProcessEnded(name, None, 9) for name in lost), replicas.Tick())
    assert all(force.replicas[name.index].life == 2 for name in lost)


# ------------------------------------------------------------------ data


def data(sizes: Sizes) -> Row:
    """Return the row on what the order of the data costs: the chunks of steps of a thousand members, at places all over an epoch."""
    lanes = sizes.members[-1]

    def seconds(records: int) -> tuple[float, int]:
        """Return the processor seconds of a step, and the most bytes that were held."""
        tracemalloc.start()
        ledger = Ledger((Shard("data", 0, records),), MINIBATCH * 8, MINIBATCH, 1, True)
        schedule = Schedule(ledger, 1, 0)
        stride = max(1, ledger.num_tasks // sizes.steps - 1)
        began = time.process_time()
        for step in range(sizes.steps):
            position = Position(
                0, min(step * stride, max(0, ledger.num_tasks - lanes)), min(lanes, ledger.num_tasks), 0
            )
            for lane in range(position.lanes):
                schedule.task(position, lane)
            schedule.advance(position, lanes)
        spent = time.process_time() - began
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return spent / sizes.steps, most

    few, least = seconds(sizes.records // 1000 + lanes * MINIBATCH * 8)
    many, most = seconds(sizes.records)
    return Row(
        f"the tasks of {lanes:,} members for a step, of {sizes.records:,} records",
        f"{1e3 * many:.2f} ms, {most / MIB:.2f} MiB",
        f"a thousandth of them {1e3 * few:.2f} ms, {least / MIB:.2f} MiB",
        many / few,
        1.5,
        1.2,
    )


if __name__ == "__main__":
    print(table(rows()))
