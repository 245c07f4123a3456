"""What masters cost: the decisions alone, and the master's part of a whole job's processor time.

Run it alone: `python -m benchmarks.masters`. The decisions are the pure machines, in this process, with a journal that takes everything at
once. Small and large jobs take turns and each is measured several times, so that both see the same weather on the machine; what counts is
the ratio of the two. The whole job is the model zoo's DeepFM with four parameter servers; its processes' time is taken while it trains,
from the first steps on.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks.recovery import PATIENCE, job
from benchmarks.servers import ROOT, Row, busy, make_flights
from benchmarks.servers import table as table
from elasticdl.catalog.catalog import SLOTS, Catalog, Rule
from elasticdl.cluster.local.place import JobPlace
from elasticdl.control.protocol.messages import Register, Report
from elasticdl.control.protocol.psmessages import Enroll, FoundModel, Settled
from elasticdl.control.protocol.status import JobStatus
from elasticdl.control.protocol.view import MemberId, ViewId
from elasticdl.control.transport.client import JobClient
from elasticdl.data.plan.ledger import Ledger
from elasticdl.data.plan.schedule import Schedule
from elasticdl.data.plan.shard import Shard
from elasticdl.data.plan.tasks import TaskOrder
from elasticdl.errors import MasterAway
from elasticdl.master.allreduce import machine as allreduce
from elasticdl.master.allreduce.machine import AllReduceMaster
from elasticdl.master.core.events import (
    Append,
    Appended,
    ConnectionOpened,
    DataFound,
    Event,
    Heard,
    JournalRead,
    Tick,
)
from elasticdl.master.core.machine import MasterCore
from elasticdl.master.ps.machine import PsMaster
from elasticdl.master.ps.settings import Settings

SHARDS = (Shard("data", 0, 10_000_000),)
LEDGER = Ledger(SHARDS, 64 * 8, 64, 1, False)
FEW = 64
"""Slots of the smaller job."""
SERVERS = 4
BATCH = 256


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured.

    Attributes:
        events: of each kind in one turn.
        rounds: turns.
        workers: that join together.
        flights: records of DeepFM's data.
        trainers: workers of the whole job.
        seconds: for which it is watched.
    """

    events: int = 2000
    rounds: int = 5
    workers: int = 1000
    flights: int = 120_000
    trainers: int = 2
    seconds: float = 15.0


FULL = Sizes()
SMALLEST = Sizes(events=20, rounds=1, workers=20, flights=20 * BATCH, trainers=1, seconds=0.5)


def rows(sizes: Sizes = FULL) -> list[Row]:
    """Measure everything; return one row each. Raises RuntimeError if the job fails or hangs."""
    with tempfile.TemporaryDirectory(prefix="edl-") as folder:
        directory = Path(folder)
        os.environ["XDG_STATE_HOME"] = str(directory / "state")
        return [*events(sizes), *joins(sizes), share(directory, sizes)]


# ------------------------------------------------------------------ decisions


class Decisions:
    """A master's machine, a journal that takes everything at once, and connections by name."""

    def __init__(self, master: MasterCore) -> None:
        self.master = master
        self.now = 0.0
        self.connections: dict[str, int] = {}
        self.give(JournalRead((), 0))
        self.give(DataFound(SHARDS))

    def give(self, event: Event) -> None:
        """Give the master an event, and what comes of its records."""
        waiting = [event]
        while waiting:
            self.master, said = self.master.handle(self.now, waiting.pop(0))
            waiting += [Appended(one.record) for one in said if isinstance(one, Append)]

    def say(self, name: str, message: Any) -> None:
        """Say something; who has no connection yet opens one."""
        if name not in self.connections:
            self.connections[name] = len(self.connections) + 1
            self.give(ConnectionOpened(self.connections[name], MemberId(name), name))
        self.give(Heard(self.connections[name], message))


def with_servers(slots: int) -> Decisions:
    """Return a job with parameter servers that trains."""
    settings = Settings(
        workers=2,
        minimum=1,
        relaunches=1,
        plan=lambda *_: TaskOrder(LEDGER, 1, 0, 1),
        servers=SERVERS,
        replicas=2,
    )
    found = Decisions(PsMaster(settings))
    for name in (*(f"ps-{index}-1" for index in range(SERVERS)), "worker-0-1", "worker-1-1"):
        found.say(name, Enroll(MemberId(name), name, f"unix:/{name}", 0, None, (), 0, False))
    catalog = Catalog(0, [], [], Rule("sgd", {"momentum": 0.0, "nesterov": 0.0}), slots)
    found.say("worker-0-1", FoundModel(catalog.text()))
    return found


def events(sizes: Sizes) -> list[Row]:
    """Return the rows on one event of a job with few and with many slots."""
    jobs = {slots: with_servers(slots) for slots in (FEW, SLOTS)}

    def tick(one: Decisions, number: int) -> None:
        one.now += 1e-4
        one.give(Tick())

    def settled(one: Decisions, number: int) -> None:
        one.say("worker-0-1", Settled(0, number % 8, 0, 0.5))

    kinds: dict[str, Callable[[Decisions, int], None]] = {"a tick": tick, "a settled minibatch": settled}
    found = []
    for what, do in kinds.items():
        took: dict[int, list[float]] = {slots: [] for slots in jobs}
        for _ in range(sizes.rounds):
            for slots, one in jobs.items():
                began = time.process_time()
                for number in range(sizes.events):
                    do(one, number)
                took[slots].append((time.process_time() - began) / sizes.events)
        few, many = (statistics.median(took[slots]) for slots in (FEW, SLOTS))
        found.append(
            Row(
                f"master of {SERVERS} servers: {what}, {SLOTS:,} slots",
                f"{1 / many:,.0f} a second",
                f"{FEW} slots {1 / few:,.0f} a second",
                many / few,
                1.5,
                1.2,
            )
        )
    return found


def joining(number: int, members: int) -> float:
    """Return the processor seconds in which a synchronous master takes workers that join; `members`: of a group, 0: they begin one."""
    settings = allreduce.Settings(
        workers=members or number,
        minimum=1,
        relaunches=1,
        plan=lambda *_: Schedule(LEDGER, num_epochs=1, max_step=0),
        policy_lanes=lambda members: members,
    )
    one = Decisions(AllReduceMaster(settings))
    blank = Report(ViewId(0), ViewId(0), None, None, frozenset(), False)

    def register(names: Iterable[str]) -> None:
        for name in names:
            one.say(name, Register(MemberId(name), name, f"unix:/{name}", 0, blank))

    register(f"worker-{index}-1" for index in range(members))
    began = time.process_time()
    register(f"worker-{members + index}-1" for index in range(number))
    return time.process_time() - began


def joins(sizes: Sizes) -> list[Row]:
    """Return the rows on many workers that come at once."""
    few, found = sizes.workers // 10, []
    for what, members in (("begin together", 0), ("ask to join a group", 1)):
        took = [(joining(few, members), joining(sizes.workers, members)) for _ in range(sizes.rounds)]
        small, large = (statistics.median(one) for one in zip(*took, strict=True))
        found.append(
            Row(
                f"synchronous master: {sizes.workers:,} workers {what}",
                f"{large:.2f} s, {large / sizes.workers * 1e6:.0f} µs each",
                f"{few} workers: {small / few * 1e6:.0f} µs each",
                (large / sizes.workers) / (small / few),
                5,
                2,
            )
        )
    return found


# ------------------------------------------------------------------ a whole job


def share(directory: Path, sizes: Sizes) -> Row:
    """Return the row on the master's part of the processor time of a DeepFM job."""
    data = make_flights(directory, sizes.flights).parent
    settings: dict[str, Any] = {
        "model_zoo": ROOT / "model_zoo",
        "model_def": "deepfm.deepfm_flights.custom_model",
        "num_ps_pods": SERVERS,
        "ps_replicas": 2,
        "minibatch_size": BATCH,
    }
    with job(directory, data, sizes.trainers, **settings) as (place, _):
        before = wait_for_steps(place, sizes.trainers, 20)
        processes = children()
        used, began = {what: busy(pids) for what, pids in processes.items()}, time.monotonic()
        time.sleep(sizes.seconds)
        spent = {what: busy(pids) - used[what] for what, pids in processes.items()}
        took = time.monotonic() - began
        steps = wait_for_steps(place, sizes.trainers, before + 1) - before
    part = 100 * spent["master"] / max(spent["all"], 1e-9)
    return Row(
        f"the master's part of a DeepFM job, {SERVERS} servers, {sizes.trainers} workers, {steps / took:.0f} steps/s",
        f"{part:.1f} % of the processor time",
        f"{100 * spent['master'] / took:.1f} % of a core, {1e3 * spent['master'] / max(steps, 1):.2f} s for 1,000 minibatches",
        part,
        3,
        1,
        " %",
    )


def children() -> dict[str, list[int]]:
    """Return the processes of the job that this one has started, and its master among them."""
    running = psutil.Process().children(recursive=True)
    masters = [one.pid for one in running if "elasticdl.job.master" in one.cmdline()]
    if not masters:
        raise RuntimeError("the job has no master")
    return {"master": masters, "all": [one.pid for one in running]}


def wait_for_steps(place: JobPlace, trainers: int, steps: int) -> int:
    """Wait until so many workers train and have made so many steps; return how many there are."""
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        try:
            with JobClient(place.control_address, place.token()) as client:
                for seen in client.watch():
                    if isinstance(seen, JobStatus) and seen.step >= steps and len(at_work(seen)) == trainers:
                        return seen.step
        except MasterAway:
            time.sleep(0.1)
    raise RuntimeError(f"the job did not come to step {steps}")


def at_work(status: JobStatus) -> list[str]:
    """Return the workers that train."""
    return [one.name for one in status.workers if one.state == "training"]


if __name__ == "__main__":
    print(table(rows()))
