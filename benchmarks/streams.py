"""The master of a synchronous job over real streams: a thousand members that compute nothing, with TLS, tokens and heartbeats as in pods.

Run it alone: `python -m benchmarks.streams`. The master is a process of its own: the real runner, journal, control plane and heartbeats;
only the cluster is a stand-in, which launches nothing and reports the events that the benchmark gives it. Members are a few processes of
many streams each. They say what members say when a group begins, when its ring breaks and at step boundaries. Times are the master's
processor time, with that of its TLS, between what happens and the moment when all members have the view that follows. What the master
spends in the same time without any event, on heartbeats and ticks, is measured first and not counted: on a machine that it shares with all
members a change of view takes seconds. The wall, and the members' processor time in it, stand beside.

As a module with `--role` it is also the process of the master or of some members.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import queue
import secrets
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks.servers import Program, Row
from benchmarks.servers import table as table
from elasticdl.cluster.cluster import (
    ClusterEvent,
    ProcessEnded,
    ProcessName,
    ProcessStarted,
    Role,
    process_name,
)
from elasticdl.cluster.kubernetes.certificates import make_identities
from elasticdl.cluster.local import place as places
from elasticdl.cluster.local.place import JobPlace
from elasticdl.control.protocol.messages import Lost, NewView, NextView, Progress, Register, Report
from elasticdl.control.protocol.view import MemberId, View, ViewId
from elasticdl.control.transport import credentials as proofs
from elasticdl.control.transport.channels import options
from elasticdl.control.transport.keys import Key, derive
from elasticdl.control.transport.tls import MASTER, Identity, read_identity
from elasticdl.data.plan.shard import Shard
from elasticdl.master.core.events import DataFound
from elasticdl.spec.edge import Given, build
from elasticdl.spec.jobspec import JobSpec
from elasticdl.spec.machine import ask_for_descriptors

ROOT = Path(__file__).resolve().parent.parent
RECORDS = 1_000_000_000
IDLE_SECONDS = 5.0
DESCRIPTORS = 8192
"""Of the master, as in pods."""
MIB = 1 << 20
SETTLING = 0.5
"""Seconds for which the master's work after a view is counted as well: no event says that it has none left."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured.

    Attributes:
        processes: of members.
        members: of each.
        losses: of single members, one after the other.
        idle: seconds for which nothing happens.
    """

    processes: int = 10
    members: int = 100
    losses: int = 3
    idle: float = IDLE_SECONDS


FULL = Sizes()
SMALLEST = Sizes(processes=2, members=3, losses=1, idle=0.5)


def rows(sizes: Sizes = FULL) -> list[Row]:
    """Measure everything; return one row each. Raises RuntimeError if a process fails."""
    with tempfile.TemporaryDirectory(prefix="edl-") as folder:
        directory = Path(folder)
        os.environ["XDG_STATE_HOME"] = str(directory / "state")
        return measure(directory, sizes)


# ------------------------------------------------------------------ what is measured


@dataclass(frozen=True, slots=True)
class Spent:
    """What something has cost, in seconds.

    Attributes:
        master: of the processor, by the master, without what it spends when nothing happens.
        members: of the processor, by the members' processes.
        wall: until all had the view that followed.
    """

    master: float
    members: float
    wall: float

    def beside(self, more: str = "") -> str:
        """Return what is no figure of the master, for people."""
        said = f"{1e3 * self.wall:.0f} ms of wall, {1e3 * self.members:.0f} ms of the members' processors"
        return f"{said}; {more}" if more else said


@dataclass(slots=True)
class Standing:
    """The last view, and the master's processor seconds in one of the wall without events."""

    view: int = 0
    idle: float = 0.0


class Job:
    """The master's process, and those of members."""

    def __init__(self, directory: Path, sizes: Sizes) -> None:
        self.directory, self.sizes = directory, sizes
        count = sizes.processes * sizes.members
        settings = {
            "model_zoo": ROOT / "benchmarks" / "models",
            "model_def": "tiny.custom_model",
            "job_name": "streams",
        }
        settings |= {"training_data": ROOT / "README.md", "num_workers": f"1:{count}", "minibatch_size": 64}
        # All of it runs on one machine: who hears nothing for long is late, and not lost.
        settings |= {"heartbeat_seconds": 1, "witness_seconds": 60, "start_seconds": 600}
        spec = build({name: Given(str(value), f"--{name}") for name, value in settings.items()})
        self.place = places.create(spec)
        identities = make_identities()
        for role in (Role.MASTER, Role.WORKER):
            write_identity(directory / str(role), identities[role])
        errors = directory / "errors"
        self.master = Program(
            errors, "benchmarks.streams", "--role", "master", str(directory), str(self.place.path)
        )
        self.addresses = self.master.hear()
        self.members = [
            Program(errors, "benchmarks.streams", "--role", "members", str(directory), str(self.place.path))
            for _ in range(sizes.processes)
        ]
        self.here: list[list[str]] = [[] for _ in self.members]
        self._next = 0
        self.process = psutil.Process(self.master.pid)
        self._others = [psutil.Process(one.pid) for one in self.members]

    def tell(self, index: int, **order: Any) -> None:
        """Give one process of members an order."""
        self.members[index].say(**order, **self.addresses)

    def comes(self, index: int, names: Sequence[str]) -> None:
        """Let workers come, in one of the processes."""
        self.here[index] += names
        self.master.say(what="started", names=list(names))
        self.tell(index, what="come", names=list(names))

    def wait_for_view(self, view: int) -> int:
        """Wait until every member has a view, or all have a later one; return its number."""
        while True:
            asked = [self.members[index] for index, names in enumerate(self.here) if names]
            for index, names in enumerate(self.here):
                if names:
                    self.tell(index, what="wait", view=view)
            views = {number for one in asked for number in one.hear()["views"]}
            if views == {view}:
                return view
            view = max(views)

    def used(self) -> tuple[float, float]:
        """Return the processor seconds so far: of the master, and of the members' processes that there are."""
        return seconds_of(self.process), sum(map(seconds_of, self._others))

    def lose(self) -> list[str]:
        """Kill the last process of members; return which they were."""
        gone, self.here[-1] = self.here[-1], []
        self._others.pop()
        os.kill(self.members[-1].pid, signal.SIGKILL)
        return gone

    def journal_bytes(self) -> int:
        """Return how large the journal is."""
        return sum(path.stat().st_size for path in self.place.journal.iterdir())

    def close(self) -> None:
        """End all processes."""
        for one in (*self.members, self.master):
            one.end()


def seconds_of(process: psutil.Process) -> float:
    """Return the processor seconds of a process so far."""
    times = process.cpu_times()
    return float(times.user + times.system)


def write_identity(folder: Path, identity: Identity) -> None:
    """Write a role's certificate as `read_identity` reads it."""
    folder.mkdir()
    for name, text in (
        ("ca.crt", identity.authority),
        ("tls.crt", identity.certificate),
        ("tls.key", identity.key),
    ):
        (folder / name).write_bytes(text)


def measure(directory: Path, sizes: Sizes) -> list[Row]:
    """Return the rows on one job."""
    count = sizes.processes * sizes.members
    job = Job(directory, sizes)
    try:
        found: list[Row] = []

        standing = Standing()

        def row(what: str, spent: float, must: float, aim: float, beside: str) -> None:
            found.append(
                Row(f"real streams, {count:,} members: {what}", f"{1e3 * spent:.0f} ms", beside, 1e3 * spent, must, aim, " ms")
            )  # fmt: skip

        def spent_until(view: int, begin: Callable[[], object]) -> Spent:
            """Return what it costs until all have a view, or a later one, and for a moment after."""
            before, began = job.used(), time.monotonic()
            begin()
            standing.view = job.wait_for_view(view)
            took = time.monotonic() - began
            time.sleep(SETTLING)
            master, members = (after - at for after, at in zip(job.used(), before, strict=True))
            return Spent(master - standing.idle * (took + SETTLING), members, took)

        def all_come() -> None:
            for index in range(sizes.processes):
                first = index * sizes.members
                job.comes(index, [f"worker-{first + number}-1" for number in range(sizes.members)])

        def breaks(lost: Sequence[str], rest: int) -> None:
            job.master.say(what="ended", names=list(lost))
            for index in range(rest):
                job.tell(index, what="break", view=standing.view)

        def one_is_lost() -> None:
            lost = job.here[0].pop()
            job.tell(0, what="leave", name=lost)
            breaks([lost], sizes.processes)

        all_began = spent_until(1, all_come)
        before, _ = job.used()
        time.sleep(sizes.idle)  # what is measured is that nothing happens
        standing.idle = (job.used()[0] - before) / sizes.idle
        began = all_began.master - standing.idle * (all_began.wall + SETTLING)
        row("all begin", began, 10_000, 5_000, all_began.beside())
        row(
            "a second without events",
            standing.idle,
            200,
            100,
            "heartbeats and ticks, which the other rows do not count",
        )

        bytes_before = job.journal_bytes()
        losses = [spent_until(standing.view + 1, one_is_lost) for _ in range(sizes.losses)]
        least = min(losses, key=lambda loss: loss.master)
        written = (job.journal_bytes() - bytes_before) // sizes.losses
        row(
            "a view change after one loss",
            least.master,
            100,
            50,
            least.beside(f"{written:,} bytes of the journal"),
        )

        one = spent_until(standing.view + 1, lambda: job.comes(0, [f"worker-{sizes.members - 1}-2"]))
        row("a worker joins", one.master, 100, 50, one.beside())

        gone = job.lose()
        many = spent_until(standing.view + 1, lambda: breaks(gone, sizes.processes - 1))
        memory = job.process.memory_full_info().uss / MIB
        row(f"{sizes.members} are lost at once", many.master, 100, 50,
            many.beside(f"{memory:.0f} MiB, {job.process.num_threads():,} threads"))  # fmt: skip
        return found
    finally:
        job.close()


# ------------------------------------------------------------------ the master's process


@dataclass(frozen=True, slots=True)
class Wired(JobPlace):
    """A job's folder on this machine, with addresses and certificates as in pods."""

    secret: Identity | None = None
    control: str = "tcp:127.0.0.1:0"
    heart: str = "tcp:127.0.0.1:0"

    @property
    def identity(self) -> Identity | None:
        """Return the master's."""
        return self.secret

    @property
    def control_address(self) -> str:
        """Return any port."""
        return self.control

    @property
    def heart_address(self) -> str:
        """Return any port."""
        return self.heart


class Nowhere:
    """A cluster that starts nothing, and reports the events that it is given."""

    def __init__(self) -> None:
        self.said: queue.SimpleQueue[ClusterEvent] = queue.SimpleQueue()

    def launch(self, name: ProcessName, memory: int = 0) -> None:
        """Start nothing."""

    def keep_spare(self) -> None:
        """Keep none."""

    def signal(self, name: ProcessName, number: int) -> None:
        """Signal nothing."""

    def expect(self, names: Iterable[ProcessName]) -> None:
        """Know of all."""

    def events(self, seconds: float) -> Sequence[ClusterEvent]:
        """Wait for what is said."""
        return [self.said.get()]

    def close(self) -> None:
        """Do nothing."""


def be_master(directory: Path, path: Path) -> None:
    """Be a job's master until the orders end."""
    from elasticdl.master.core.filepages import FilePages
    from elasticdl.master.core.journal import Journal
    from elasticdl.master.processes.replicas import ReplicaSet
    from elasticdl.master.reporting.statusstore import FileStatusStore
    from elasticdl.master.running.allreduce import AllReduceStrategy
    from elasticdl.master.running.context import JobContext, Past
    from elasticdl.master.running.runner import Runner

    logging.disable(logging.WARNING)
    ask_for_descriptors(DESCRIPTORS)
    plain = places.open_place(path)
    identity = read_identity(directory / Role.MASTER)
    place = Wired(plain.path, plain.sockets, plain.submitted_at, plain.directory, identity)
    spec: JobSpec = place.spec()
    cluster = Nowhere()

    from elasticdl._core import HeartMonitor

    monitor = HeartMonitor(place.heart_address, derive(place.token(), Key.DATA), identity)
    job = JobContext(
        place,
        spec,
        cluster,
        Journal(FilePages(place.journal)),
        FileStatusStore(place),
        monitor=lambda: monitor,
        open_data=lambda progress, note: DataFound((Shard("data", 0, RECORDS),)),
        facts=lambda: {},
    )
    past = Past((), 0, [ReplicaSet(wanted=spec.num_workers.maximum, limit=10_000)], (), [])
    runner = Runner(job, past, AllReduceStrategy(spec, place.name, None, past))

    def obey() -> None:
        while not hasattr(runner, "_server"):
            time.sleep(0.01)  # the runner has no event for it
        print(json.dumps({"control": runner._server.address, "heart": monitor.address}), flush=True)
        for line in sys.stdin:
            order = json.loads(line)
            for name in map(process_name, order["names"]):
                started = order["what"] == "started"
                cluster.said.put(
                    ProcessStarted(name, 1) if started else ProcessEnded(name, None, signal.SIGKILL)
                )
        os._exit(0)

    threading.Thread(target=obey, daemon=True).start()
    runner.run()


# ------------------------------------------------------------------ processes of members


class Members:
    """Members of one process."""

    def __init__(self, token: bytes, identity: Identity) -> None:
        self.token, self.identity = token, identity
        self.members: dict[str, Member] = {}
        self.changed = asyncio.Condition()
        self.last: tuple[Any, View | None] = None, None

    def view_of(self, message: Any, before: View | None) -> View:
        """Read a view; nearly all members receive the same one, as the same changes of the one before."""
        from elasticdl.control.protocol import codec

        said, view = self.last
        if said != message or view is None:
            decoded = codec.decode_master(message, before)
            assert isinstance(decoded, NewView), "the caller has looked"
            view = decoded.view
            self.last = message, view
        return view

    async def obey(self, order: Mapping[str, Any]) -> None:
        """Do what the benchmark wants."""
        match order["what"]:
            case "come":
                for name in order["names"]:
                    self.members[name] = Member(self, name, order["control"], order["heart"])
            case "leave":
                await self.members.pop(order["name"]).leave()
            case "break":
                await asyncio.gather(*(one.breaks(order["view"]) for one in self.members.values()))
            case "wait":
                async with self.changed:
                    await self.changed.wait_for(
                        lambda: all(one.has(order["view"]) for one in self.members.values())
                    )
                views = {one.view.id for one in self.members.values() if one.view is not None}
                print(json.dumps({"views": sorted(views)}), flush=True)


class Member:
    """One member, which computes nothing."""

    def __init__(self, all_members: Members, name: str, control: str, heart: str) -> None:
        from elasticdl._core import Heart

        self.all, self.name, self.id = all_members, name, MemberId(secrets.token_hex(16))
        self.view: View | None = None
        self.sealed = ViewId(0)
        self.heart = Heart(heart, self.id, derive(all_members.token, Key.DATA), 0.5, all_members.identity)
        self.writing = asyncio.Lock()
        self.task = asyncio.create_task(self.converse(control))
        self.task.add_done_callback(self.ended)

    def ended(self, task: asyncio.Task[None]) -> None:
        """End the process, and with it the benchmark, if the conversation has failed: nobody else would notice."""
        if not task.cancelled() and (error := task.exception()) is not None:
            print(f"{self.name}: {error!r}", file=sys.stderr, flush=True)
            os._exit(1)

    def has(self, view: int) -> bool:
        """Tell whether a view has come."""
        return self.view is not None and self.view.id >= view

    @property
    def report(self) -> Report:
        """Return what it holds: the base of its view."""
        view = self.view
        if view is None:
            return Report(ViewId(0), self.sealed, None, None, frozenset(), False)
        return Report(view.id, self.sealed, view.base, view.position, frozenset(), False)

    async def say(self, *messages: Any) -> None:
        """Send to the master, at once."""
        from elasticdl.control.protocol import codec

        async with self.writing:  # a stream of gRPC takes one message at a time
            await self.call.write(codec.joined([codec.encode_member(message) for message in messages]))

    async def converse(self, control: str) -> None:
        """Hold the control stream."""
        import grpc
        import grpc.aio

        from elasticdl.control.generated import control_pb2 as wire
        from elasticdl.control.generated import control_pb2_grpc as service

        identity = self.all.identity
        shown = grpc.ssl_channel_credentials(identity.authority, identity.key, identity.certificate)
        channel = grpc.aio.secure_channel(
            control.removeprefix("tcp:"),
            shown,
            options=[*options(), ("grpc.ssl_target_name_override", MASTER)],
        )
        stub = service.ControlStub(channel)
        caller = proofs.Caller(derive(self.all.token, Key.WORKER), Key.WORKER, self.name, self.id)
        asked = await stub.Challenge(
            wire.ChallengeRequest(), metadata=caller.announcement(), wait_for_ready=True
        )
        self.call = stub.Member(metadata=caller.answer(asked.text, "Member").metadata())
        await self.say(
            Register(self.id, self.name, f"tcp:127.0.0.1:{10_000 + len(self.name)}", 0, self.report)
        )
        async for message in self.call:
            await self.hear(message)

    async def hear(self, message: Any) -> None:
        """Do what a member does."""
        match message.WhichOneof("message"):
            case "view":
                await self.install(self.all.view_of(message, self.view))
            case "stop":
                await self.seal(ViewId(message.stop.view))
            case "pending":
                await self.seal(ViewId(message.pending.view))
            case "evicted" | "released" | "failed" | "finished":
                raise RuntimeError(f"the master takes it for lost: {message}")

    async def install(self, view: View) -> None:
        """Take part in a view; who lacks the base has it at once."""
        self.view = view
        self.heart.set(view.id, view.base.step + 1, 2 * view.id)
        rank = view.rank(self.id)
        assert rank is not None, "a view names those that receive it"
        if view.sources[rank] is not None:
            await self.say(Progress(view.id, view.base, view.position, None, 0))
        async with self.all.changed:
            self.all.changed.notify_all()

    async def breaks(self, view: int) -> None:
        """See the ring break."""
        if self.view is not None and self.view.id == view and self.sealed < view:
            lost = Lost(self.view.id, self.view.base.step + 1, None, "its connection broke")
            await self.seal(self.view.id, lost)

    async def seal(self, view: ViewId, *before: Any) -> None:
        """Leave a view; `before`: what a member says at once, before it promises that."""
        if view > self.sealed:
            self.sealed = view
            await self.say(*before, NextView(self.report))

    async def leave(self) -> None:
        """Be lost."""
        self.task.cancel()
        self.call.cancel()
        self.heart.close()


def be_members(directory: Path, path: Path) -> None:
    """Be members until the orders end."""
    identity = read_identity(directory / Role.WORKER)
    token = places.open_place(path).token()

    async def run() -> None:
        members, loop = Members(token, identity), asyncio.get_running_loop()
        waiting: set[asyncio.Task[None]] = set()
        try:
            while line := await loop.run_in_executor(None, sys.stdin.readline):
                order = json.loads(line)
                if order["what"] == "wait":
                    waiting.add(asyncio.create_task(members.obey(order)))
                else:
                    await members.obey(order)
        except Exception:
            # Whatever it is, it is printed before the streams end, which would report only that they were cancelled.
            traceback.print_exc()
            os._exit(1)
        os._exit(0)

    asyncio.run(run())


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--role", choices=["master", "members"])
    parser.add_argument("folders", nargs="*", type=Path)
    chosen = parser.parse_args()
    if chosen.role is None:
        print(table(rows()))
    else:
        {"master": be_master, "members": be_members}[chosen.role](*chosen.folders)
