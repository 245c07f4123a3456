"""Parameter servers against TensorFlow's own and against Keras in one process: the same ids, the same model, one host, medians.

Run it alone: `python -m benchmarks.servers`. Where there is a peer the two take turns, so that both see the same weather on the machine.

Pushes and pulls: two worker processes, one server process, one table of a million rows of 16 numbers with Adagrad. A worker has a few
minibatches of ids ready and goes through them again and again. The time of a step has, on both sides, the search for the minibatch's
distinct ids, the rows' way to the worker and a sum over them, the gradients' way to the server and their application; the gradients are
a constant. Ours is `Batch` and `ParameterClient`, which send a push and the next pull together and have two pushes unsettled at most, as
workers do, over Unix sockets, as jobs on one machine do; ids are searched one minibatch ahead, and a turn ends when all is settled.
The peer is `tfps_peer.py`, over gRPC.

DeepFM: the model zoo's on the flights of New York, parsed by the same `feed`. Ours is a whole job, records per second from its first step
to its end, as its summary says. TensorFlow's is a plain loop in the same layers, Keras is `model.fit`; both without start, tracing and
first steps, and with the CSV file's cells in memory, which ours reads from the file meanwhile.

Snapshots: the server of that table writes all slots to a file and syncs it, while one worker pushes and waits for each push; beside it the
same bytes are written and synced from memory, which is what the disk can do. The stall is what the slowest push meanwhile took longer
than the slowest of as many without a snapshot.

Beside the medians of time each row on pushes and pulls has the processor time that all processes of a side took for a step: it says
more on a machine that has other work.

As a module with `--role` it is also the process of a server, of a worker or of Keras.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import itertools
import json
import math
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np

from benchmarks.recorded import Bar, bar, judge
from benchmarks.recovery import ELASTICDL, PATIENCE, QUIET_SECONDS, commits, job, seconds
from elasticdl.catalog.catalog import SLOTS, Catalog, Initial, InitialKind, Rule, Table
from elasticdl.cluster import allocator
from elasticdl.cluster.cluster import Role
from elasticdl.cluster.local.place import JobPlace
from elasticdl.control.protocol.status import JobStatus
from elasticdl.control.transport.client import JobClient
from elasticdl.control.transport.keys import data_key
from elasticdl.data.plan.tasks import ENDLESS
from elasticdl.data.readers.writing import write_tfrecord
from elasticdl.errors import MasterAway
from elasticdl.job.heap import keep_freed_memory
from elasticdl.master.core.entry import ServerId
from elasticdl.master.ps.placement import first

ROOT = Path(__file__).resolve().parent.parent
TOKEN = b"a token of the benchmark"
WIDTH = 16
EXPONENT = 1.05
"""Of the ids' Zipf distribution: 32,000 of a full minibatch's ids are distinct."""
POOL = 8
"""Minibatches of a worker."""
FILL = 4096
"""Rows of one push that fills the table, so that buffers for messages are no part of the memory that is measured."""
UNSETTLED = 2
WORKERS = 2
"""Ours, that push and pull; each has so many steps of a turn as the other."""
BATCH = 256
WARM = 8
"""Steps before those that are timed."""
STATE = 1
"""Numbers of Adagrad's state for each weight."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured.

    Attributes:
        rows: of the table.
        ids: of a minibatch.
        steps: of both workers together in one turn.
        rounds: turns of each side, after one that warms up.
        flights: records of DeepFM's data.
        trainers: workers that train it on our side, and that push while servers are killed; and TensorFlow's.
        jobs: trainings of DeepFM on each side.
        kills: of servers.
        quiet: seconds without a disturbance before and after each.
        pace: seconds by which a step is made longer of those that push while servers are killed.
    """

    rows: int = 1_000_000
    ids: int = 4096 * 26
    steps: int = 60
    rounds: int = 5
    flights: int = 120_000
    trainers: int = 2
    jobs: int = 3
    kills: int = 5
    quiet: float = QUIET_SECONDS
    pace: float = 0.0


FULL = Sizes()
SMALLEST = Sizes(
    rows=8192, ids=256, steps=4, rounds=1, flights=(WARM + 2) * BATCH * 10 // 9, trainers=1, jobs=1, kills=1, quiet=0.2, pace=0.01
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table.

    Attributes:
        what: for people.
        ours: what was measured.
        beside: what was measured beside it, if anything.
        figure: what is compared with `must` and `aim`; the larger is the better if the aim is.
        must: what is accepted.
        aim: what is wanted.
        unit: of these three.
    """

    what: str
    ours: str
    beside: str
    figure: float
    must: float
    aim: float
    unit: str = "×"

    @property
    def verdict(self) -> str:
        """`aim`, `must` or `short`."""
        return judge(self.figure, self.must, self.aim)

    @property
    def bars(self) -> list[Bar]:
        """The figure for a picture."""
        return [
            bar(self.what, self.figure, f"{self.figure:.2f}{self.unit}", self.verdict, self.must, self.aim)
        ]


def rows(sizes: Sizes = FULL) -> list[Row]:
    """Measure everything; return one row each. Raises RuntimeError if a process fails or hangs."""
    with tempfile.TemporaryDirectory(prefix="edl-") as folder:
        directory = Path(folder)
        os.environ["XDG_STATE_HOME"] = str(directory / "state")
        replica = second_replica(directory, sizes)
        flights = make_flights(directory, sizes.flights)
        with contextlib.closing(TensorFlow(directory, pool(directory, 0, sizes), flights, sizes)) as peer:
            steps, others = turns(directory, peer, sizes)
            trained = deepfm(directory, peer, flights, sizes)
        return [*steps, *trained, *others, replica, failover(directory, sizes)]


# ------------------------------------------------------------------ processes that obey


class Program:
    """A process that takes orders and answers as lines of JSON."""

    def __init__(
        self,
        errors: Path,
        module: str,
        *arguments: str,
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Start `python -m module`; what it says beside its answers goes to the file `errors`. `environment`: more of it."""
        self._name = " ".join((module, *arguments))
        self._errors = errors
        with errors.open("a") as file:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                text=True,
                env={**environment, **os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"},
            )

    @property
    def pid(self) -> int:
        """Return the number of the process."""
        return self._process.pid

    def say(self, **order: Any) -> None:
        """Give an order."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # that it has ended is found where its answer is awaited
            print(json.dumps(order), file=self._process.stdin, flush=True)

    def hear(self) -> dict[str, Any]:
        """Wait for an answer. Raises RuntimeError if there is none."""
        assert self._process.stdout is not None
        watch = threading.Timer(PATIENCE, self._process.kill)
        watch.start()
        line = self._process.stdout.readline()
        watch.cancel()
        if not line:
            raise RuntimeError(f"{self._name} failed or hung:\n{self._errors.read_text()[-2000:]}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def end(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()


class Side(Protocol):
    """One of those that are compared."""

    def seconds(self, what: str, steps: int) -> float:
        """Run so many steps of all workers together; return the time that they took."""

    def pids(self) -> list[int]:
        """Return all processes."""

    def close(self) -> None:
        """End all processes."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast one side is.

    Attributes:
        rate: steps per second, the median of the turns.
        effort: seconds of processors for a step, all processes together, the median of the turns.
    """

    rate: float
    effort: float

    def __str__(self) -> str:
        return f"{self.rate:.1f} steps/s ({1e3 * self.effort:.1f} ms of processors a step)"


def alternate(sides: dict[str, Side], what: str, steps: int, rounds: int) -> dict[str, Pace]:
    """Return the sides' paces, in turns after one that warms up: by then all minibatches have come, and their rows are there."""
    warm = max(steps, POOL * WORKERS)
    rates: dict[str, list[float]] = {name: [] for name in sides}
    efforts: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(rounds + 1):
        for name, side in sides.items():
            before = busy(side.pids())
            took = side.seconds(what, steps if turn else warm)
            if turn:
                rates[name].append(steps / took)
                efforts[name].append((busy(side.pids()) - before) / steps)
    return {name: Pace(statistics.median(rates[name]), statistics.median(efforts[name])) for name in sides}


def busy(pids: list[int]) -> float:
    """Return the seconds of processors that processes have taken so far, their own and the kernel's for them."""
    stats = (Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids)
    return sum(int(fields[11]) + int(fields[12]) for fields in stats) / os.sysconf("SC_CLK_TCK")


# ------------------------------------------------------------------ ours


class Ours:
    """Parameter servers and workers in processes of their own; slots are where the first placement has them."""

    def __init__(self, directory: Path, sizes: Sizes, *, servers: int, replicas: int, workers: int) -> None:
        """Start them all with empty tables, and let each worker connect."""
        place = Path(tempfile.mkdtemp(prefix="ours-", dir=directory))
        module, errors = "benchmarks.servers", place / "errors"
        self._low, self._rows = 0, sizes.rows
        self.servers = [
            Program(
                errors,
                module,
                "--role=server",
                f"--number={number}",
                f"--folder={place}",
                environment=allocator.environment(Role.PS),
            )
            for number in range(servers)
        ]
        self.workers = [
            Program(
                errors,
                module,
                "--role=worker",
                f"--number={number}",
                f"--data={pool(directory, number, sizes)}",
                environment=allocator.environment(Role.WORKER),
            )
            for number in range(workers)
        ]
        entries = [
            (slot, entry.term, entry.primary_epoch, entry.primary, entry.backup, entry.restored)
            for slot, entry in enumerate(
                first([ServerId(number) for number in range(servers)], SLOTS, replicas)
            )
        ]
        for program in (*self.servers, *self.workers):
            program.hear()
        for program in (*self.servers, *self.workers):
            program.say(
                addresses={number: address(place, number) for number in range(servers)}, entries=entries
            )
        self.seconds("pull", workers)

    def seconds(self, what: str, steps: int) -> float:
        """Run so many steps, shared by the workers."""
        began = time.perf_counter()
        for worker in self.workers:
            worker.say(what=what, steps=steps // len(self.workers), low=self._low, workers=len(self.workers))
        for worker in self.workers:
            worker.hear()
        took = time.perf_counter() - began
        self._low += steps
        return took

    def fill(self) -> tuple[float, float]:
        """Make all rows; return the bytes for each row by which the first server has grown, and those that it says rows take."""
        before = resident(self.servers[0].pid)
        pushes = self._rows // FILL
        self.workers[0].say(what="fill", steps=pushes, low=self._low, workers=1, rows=self._rows)
        self.workers[0].hear()
        self._low += pushes + 1
        grown = resident(self.servers[0].pid) - before
        self.servers[0].say(what="load")
        return grown / self._rows, self.servers[0].hear()["bytes"] / self._rows

    def pids(self) -> list[int]:
        """Return all processes."""
        return [program.pid for program in (*self.workers, *self.servers)]

    def pushes(self, steps: int) -> list[float]:
        """Let the first worker push and wait for each push; return the seconds of each."""
        self.workers[0].say(what="settled push", steps=steps, low=self._low, workers=1)
        self._low += steps
        times: list[float] = self.workers[0].hear()["times"]
        return times

    def cut(self, path: Path) -> None:
        """Let the first server write all its slots; `cut_took` waits for it."""
        self.servers[0].say(cut=str(path))

    def cut_took(self) -> float:
        """Return the seconds that it took."""
        return float(self.servers[0].hear()["seconds"])

    def close(self) -> None:
        """End all processes."""
        for program in (*self.workers, *self.servers):
            program.end()


def address(place: Path, number: int) -> str:
    """Return where a server listens."""
    return f"unix:{place}/{number}"


def resident(pid: int) -> int:
    """Return the bytes of memory that a process has."""
    status = Path(f"/proc/{pid}/status").read_text()
    return 1024 * int(status.partition("VmRSS:")[2].split()[0])


def pool(directory: Path, number: int, sizes: Sizes) -> Path:
    """Return the file of a worker's minibatches of ids, drawn by Zipf's law; which ids are frequent is the same for all."""
    path = directory / f"ids-{number}.npy"
    if not path.exists():
        weights = np.cumsum(1.0 / np.arange(1, sizes.rows + 1) ** EXPONENT)
        drawn = np.random.default_rng(number).random((POOL, sizes.ids)) * weights[-1]
        ids = np.random.default_rng(0).permutation(sizes.rows)
        np.save(path, ids[np.minimum(np.searchsorted(weights, drawn), sizes.rows - 1)])
    return path


def catalog() -> Any:
    """Return the one table, with Adagrad as Keras has it."""
    return Catalog(
        seed=1,
        tables=[Table("rows", WIDTH, Initial(InitialKind.UNIFORM, -0.05, 0.05))],
        variables=[],
        rule=Rule("adagrad", {"initial_accumulator": 0.1, "epsilon": 1e-7}),
    ).core()


def worker_name(number: int) -> str:
    """Return the name under which a worker comes to the servers."""
    return f"worker-{number}"


def be_server(number: int, folder: Path) -> None:
    """Serve until the process is killed."""
    keep_freed_memory()
    core = importlib.import_module("elasticdl._core")
    server = core.ParameterServer(core.Listener(address(folder, number)), number, TOKEN, catalog())
    slots: list[tuple[int, int]] = []
    print(json.dumps({}), flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        if "entries" in order:
            addresses = {int(number): place for number, place in order["addresses"].items()}
            server.learn(addresses, [tuple(entry) for entry in order["entries"]], 0, ENDLESS)
            # Workers are believed whatever they call done, as if a master had just said the same.
            server.limit(0, ENDLESS, (), 0, ENDLESS)
            server.know({worker_name(number) for number in range(WORKERS)})
            slots = [(slot, primary_epoch) for slot, _, primary_epoch, *_ in order["entries"]]
        elif "cut" in order:
            began = time.perf_counter()
            server.cut(order["cut"], slots, (0, []), 0)
            print(json.dumps({"seconds": time.perf_counter() - began}), flush=True)
        else:
            print(json.dumps({"bytes": server.load()[1]}), flush=True)


class Worker:
    """A worker of ours: ids in, rows out, constant gradients in."""

    def __init__(self, number: int, data: Path) -> None:
        """Read the minibatches; connections are made with the first order."""
        keep_freed_memory()
        self._core: Any = importlib.import_module("elasticdl._core")
        self._number = number
        self._catalog = catalog()
        self.client = self._core.ParameterClient(worker_name(number), data_key(TOKEN), self._catalog)
        minibatches = np.load(data)
        self._minibatches = itertools.cycle(minibatches)
        self._slopes = np.full(max(minibatches.shape[1], 2 * FILL) * WIDTH, 0.01, np.float32)
        self._open: list[int] = []
        self.times: list[float] = []

    def batch(self) -> Any:
        """Return the distinct ids of the next minibatch."""
        return self._core.Batch(self._catalog, 0, next(self._minibatches).data)

    def obey(self, what: str, steps: int, low: int, workers: int, rows: int = 0) -> None:
        """Run steps whose tasks have numbers from `low` on, of which each worker has its own.

        After pushes that are settled one by one `times` has the seconds of each. `rows`: how many "fill" makes.
        """
        tasks = iter(range(low + self._number, low + (steps + 1) * workers, workers))
        match what:
            case "both":
                self._both(steps, tasks, low)
            case "push":
                for _ in range(steps):
                    self._push(self.batch(), next(tasks), low)
                    self._settle(UNSETTLED - 1)
            case "settled push":
                self.times = []
                for _ in range(steps):
                    began = time.perf_counter()
                    self._push(self.batch(), next(tasks), low)
                    self._settle()
                    self.times.append(time.perf_counter() - began)
            case "pull":
                ticket = self.client.pull(None, [self.batch()], [])
                for _ in range(steps - 1):
                    following = self.client.pull(None, [self.batch()], [])
                    self._sum(ticket)
                    ticket = following
                self._sum(ticket)
            case "fill":
                for ids in np.array_split(np.random.default_rng(0).permutation(rows), steps):
                    task = next(tasks)
                    self._push(self._core.Batch(self._catalog, 0, ids.data), task, task)
                    self._settle()
        self._settle()

    def _both(self, steps: int, tasks: Iterator[int], low: int) -> None:
        """Pull and push, the next minibatch's pull in the same message."""
        batch = self.batch()
        ticket = self.client.pull(None, [batch], [])
        for left in reversed(range(steps)):
            following = self.batch() if left else None
            self._sum(ticket)
            ticket = self._push(batch, next(tasks), low, following)
            self._settle(UNSETTLED - 1)
            batch = following

    def _push(self, batch: Any, task: int, low: int, following: Any = None) -> int:
        slopes = self._slopes[: len(batch) * WIDTH].data
        wanted: Any = None if following is None else (None, [following], [])
        ticket: int = self.client.push(
            ((task, 0), low, 0, 0.02, task), [(batch, slopes, True)], [], False, wanted
        )
        self._open.append(ticket)
        return ticket

    def _settle(self, most: int = 0) -> None:
        while len(self._open) > most:
            if self.client.settled(self._open.pop(0), PATIENCE) != "settled":
                raise RuntimeError("a push was not settled")

    def _sum(self, ticket: int) -> None:
        found = self.client.rows(ticket, PATIENCE)
        if found is None:
            raise RuntimeError("no rows came")
        np.add.reduce(np.frombuffer(found[0][0], np.float32))


def be_worker(number: int, data: Path) -> None:
    """Obey until the process is killed."""
    worker = Worker(number, data)
    print(json.dumps({}), flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        if "entries" in order:
            addresses = {int(number): place for number, place in order["addresses"].items()}
            worker.client.learn(addresses, [tuple(entry) for entry in order["entries"]], 0)
        else:
            worker.obey(**order)
            print(json.dumps({"times": worker.times}), flush=True)


# ------------------------------------------------------------------ TensorFlow's


class TensorFlow:
    """A cluster of TensorFlow's: a chief, workers and a server."""

    def __init__(self, directory: Path, ids: Path, flights: Path, sizes: Sizes) -> None:
        """Start it; it has traced nothing yet."""
        with contextlib.ExitStack() as sockets:
            ports = range(1 + sizes.trainers)
            held = [sockets.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in ports]
            addresses = [f"127.0.0.1:{one.getsockname()[1]}" for one in held]
        cluster = json.dumps({"ps": addresses[:1], "worker": addresses[1:]})
        arguments = (
            f"--cluster={cluster}", f"--ids={ids}", f"--rows={sizes.rows}", f"--width={WIDTH}",
            f"--flights={flights}", f"--batch={BATCH}",
        )  # fmt: skip
        workers = (f"worker:{number}" for number in range(sizes.trainers))
        self._programs = [
            Program(directory / "tensorflow", "benchmarks.tfps_peer", f"--task={task}", *arguments)
            for task in ("chief:0", "ps:0", *workers)
        ]
        self._programs[0].hear()

    def seconds(self, what: str, steps: int) -> float:
        """Run so many steps."""
        self._programs[0].say(what=what, steps=steps)
        return float(self._programs[0].hear()["seconds"])

    def pids(self) -> list[int]:
        """Return all processes."""
        return [program.pid for program in self._programs]

    def close(self) -> None:
        """End all processes."""
        for program in self._programs:
            program.end()


# ------------------------------------------------------------------ what is measured


def turns(directory: Path, peer: TensorFlow, sizes: Sizes) -> tuple[list[Row], list[Row]]:
    """Return the rows on pushes and pulls, and those on memory and snapshots."""
    wanted = (
        ("both", "push + pull", 5, 7),
        ("push", "push only", 6, 8),
        ("pull", "pull only", 4, 5),
    )
    ours = Ours(directory, sizes, servers=1, replicas=1, workers=WORKERS)
    table = f"{sizes.rows:,} × {WIDTH}"
    with contextlib.closing(ours):
        bare = 4 * WIDTH * (1 + STATE)
        grown, counted = ours.fill()
        memory = Row(
            f"memory above weights and optimizer state, {table}",
            f"{grown:.1f} bytes a row resident, {counted:.1f} of them in tables, {bare} bare", "", grown - bare, 28, 24, " bytes a row",
        )  # fmt: skip
        others = [memory, *snapshots(ours, directory, sizes)]
        found = []
        for what, name, must, aim in wanted:
            paces = alternate({"ours": ours, "peer": peer}, what, sizes.steps, sizes.rounds)
            found.append(
                Row(
                    f"{name}, {table}, {sizes.ids:,} ids",
                    f"{paces['ours']}",
                    f"TF ParameterServerStrategy {paces['peer']}",
                    paces["ours"].rate / paces["peer"].rate,
                    must,
                    aim,
                )
            )
    return found, others


def snapshots(ours: Ours, directory: Path, sizes: Sizes) -> list[Row]:
    """Return the rows on how fast a full server writes its slots, and how long a push waits because of it."""
    rates, disks, stalls = [], [], []
    path = directory / "snapshot"
    for turn in range(sizes.rounds + 1):
        usual = max(ours.pushes(sizes.steps // 2))
        ours.cut(path)
        slowest = max(ours.pushes(sizes.steps // 2))
        took = ours.cut_took()
        if turn:
            size = path.stat().st_size / 1e9
            rates.append(size / took)
            disks.append(size / rewritten(path))
            stalls.append(1e3 * max(0.0, slowest - usual))
        path.unlink()
    return [
        Row(
            f"snapshot of {sizes.rows:,} × {WIDTH} written and synced, during pushes",
            f"{statistics.median(rates):.2f} GB/s", f"the disk {statistics.median(disks):.2f} GB/s",
            statistics.median(rates), 0.5, 1, " GB/s",
        ),
        Row(
            "the slowest push during a snapshot, above the slowest without",
            f"{statistics.median(stalls):.1f} ms", "", statistics.median(stalls), 20, 5, " ms",
        ),
    ]  # fmt: skip


def rewritten(path: Path) -> float:
    """Return the seconds in which a file's bytes are written and synced once more, from memory."""
    content, other = path.read_bytes(), path.with_suffix(".again")
    began = time.perf_counter()
    with other.open("wb") as file:
        file.write(content)
        os.fsync(file.fileno())
    took = time.perf_counter() - began
    other.unlink()
    return took


def second_replica(directory: Path, sizes: Sizes) -> Row:
    """Return the row on what a push costs that two servers have to apply, for one worker that waits for it."""
    with contextlib.ExitStack() as all_of_them:
        sides: dict[str, Side] = {
            name: all_of_them.enter_context(
                contextlib.closing(Ours(directory, sizes, servers=2, replicas=replicas, workers=1))
            )
            for name, replicas in (("one", 1), ("two", 2))
        }
        paces = alternate(sides, "settled push", sizes.steps // 2, sizes.rounds)
    return Row(
        "a push settled with two replicas, two servers",
        f"{1e3 / paces['two'].rate:.1f} ms ({1e3 * paces['two'].effort:.1f} of processors)",
        f"one replica {1e3 / paces['one'].rate:.1f} ms ({1e3 * paces['one'].effort:.1f} of processors)",
        paces["one"].rate / paces["two"].rate, 1.6, 1.3,
    )  # fmt: skip


def make_flights(directory: Path, records: int) -> Path:
    """Write the flights; return the file on which is trained, nine tenths of them."""
    data = directory / "flights"
    script = ROOT / "model_zoo/flights/make_data.py"
    made = [sys.executable, str(script), str(data), f"--rows={records}"]
    subprocess.run(made, check=True, stdout=subprocess.DEVNULL)
    return data / "train" / "flights.csv"


def deepfm(directory: Path, peer: TensorFlow, path: Path, sizes: Sizes) -> list[Row]:
    """Return the rows on whole trainings of DeepFM."""
    steps = sizes.flights * 9 // 10 // BATCH
    rates: dict[str, list[float]] = {"ours": [], "cluster": [], "keras": []}
    peer.seconds("train", WARM)
    for turn in range(sizes.jobs):
        rates["ours"].append(train(directory, path.parent, turn, sizes.trainers))
        rates["cluster"].append(steps * BATCH / peer.seconds("train", steps))
        keras = Program(directory / "keras", "benchmarks.servers", "--role=keras", f"--data={path}")
        rates["keras"].append(keras.hear()["records_per_second"])
        keras.end()
    median = {name: statistics.median(found) for name, found in rates.items()}
    peers = (
        ("cluster", "TensorFlow", "TF ParameterServerStrategy, plain loop with ClusterCoordinator", 2, 2.5),
        ("keras", "Keras", "Keras in one process, Adagrad", 2, 2.5),
    )
    return [
        Row(
            f"DeepFM beside {short}, batches of {BATCH}, {sizes.trainers} workers",
            f"{median['ours']:,.0f} records/s",
            f"{title} {median[name]:,.0f} records/s",
            median["ours"] / median[name],
            must,
            aim,
        )
        for name, short, title, must, aim in peers
    ]


def train(directory: Path, data: Path, turn: int, workers: int) -> float:
    """Run a job; return its records per second between the first step and the last."""
    summary = directory / f"summary-{turn}.json"
    settings = {
        "model_zoo": ROOT / "model_zoo",
        "model_def": "deepfm.deepfm_flights.custom_model",
        "training_data": data,
        "num_workers": workers,
        "num_ps_pods": 1,
        "ps_replicas": 1,
        "minibatch_size": BATCH,
        "job_name": f"bench-deepfm-{turn}",
        "summary": summary,
    }
    command = [ELASTICDL, "train", *(f"--{key}={value}" for key, value in settings.items())]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    if done.returncode:
        raise RuntimeError(f"the job failed:\n{done.stdout[-1000:]}{done.stderr[-2000:]}")
    rate = json.loads(summary.read_text())["records_per_second"]
    return math.nan if rate is None else float(rate)  # too short a job to have one


def be_keras(path: Path) -> None:
    """Train as a plain script would, and print records per second after the first steps."""
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    sys.path.insert(0, str(ROOT / "model_zoo"))
    import keras
    import tensorflow as tf

    compare = importlib.import_module("examples.compare")
    model_file = importlib.import_module("deepfm.deepfm_flights")

    class Times(keras.callbacks.Callback):  # type: ignore[misc]
        began = 0.0
        steps = 0

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            """Begin to count after the first steps."""
            self.steps = batch + 1 - WARM
            if self.steps == 0:
                self.began = time.perf_counter()

        def on_train_end(self, logs: Any = None) -> None:
            """Print what was found."""
            rate = self.steps * BATCH / (time.perf_counter() - self.began)
            print(json.dumps({"records_per_second": rate}), flush=True)

    model = model_file.custom_model()
    model.compile(model_file.optimizer(), model_file.loss)
    examples = compare.examples(path, "training").prefetch(tf.data.AUTOTUNE)
    model.fit(examples, verbose=0, shuffle=False, callbacks=[Times()])


def failover(directory: Path, sizes: Sizes) -> Row:
    """Return the row on the time from a server's death until all workers push again."""
    data = directory / "served"
    data.mkdir()
    values = np.random.default_rng(0).standard_normal((8192, 17), np.float32)
    write_tfrecord(data / "served.tfrecord", (row.tobytes() for row in values))
    found = []
    settings: dict[str, Any] = {"model_def": "served.custom_model", "num_ps_pods": 2, "ps_replicas": 2}
    with job(directory, data, sizes.trainers, sizes.pace, **settings) as (place, stamps):
        for number in range(sizes.kills):
            status = wait_for_servers(place, sizes.trainers)
            time.sleep(sizes.quiet + 0.01 * number)
            victim = pids(status, "ps")[number % 2]
            killed = time.time()
            os.kill(victim, signal.SIGKILL)
            time.sleep(sizes.quiet)
            ends = [settled(stamps, worker, killed) for worker in pids(status, "worker")]
            found.append(max(ends) - killed)
    return Row(
        "a server of two is killed, two replicas: until all workers' next push is settled",
        seconds(statistics.median(found)), "", statistics.median(found), 0.08, 0.03, " s",
    )  # fmt: skip


def settled(stamps: Path, worker: int, killed: float) -> float:
    """Wait until a worker's first push after a kill is certainly settled; return when it was. The stamps say when each push began.

    With one earlier push unsettled at most it is when the second push after it begins. All pushes have rows on all servers.
    """
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        after = [at for at in commits(stamps, worker) if at > killed]
        if len(after) > UNSETTLED:
            return after[UNSETTLED]
        time.sleep(0.05)
    raise RuntimeError(f"no push was settled within {PATIENCE:.0f} s of a kill")


def pids(status: JobStatus, role: str) -> list[int]:
    """Return the processes of a role that are at work."""
    states = ("training", "serving")
    able = [one for one in status.workers if one.name.startswith(role) and one.state in states]
    return [one.pid for one in able if one.pid]


def wait_for_servers(place: JobPlace, workers: int) -> JobStatus:
    """Wait until two servers serve so many workers."""
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        with contextlib.suppress(MasterAway), JobClient(place.control_address, place.token()) as client:
            for seen in client.watch():
                if (
                    isinstance(seen, JobStatus)
                    and (len(pids(seen, "ps")), len(pids(seen, "worker"))) == (2, workers)
                    and seen.step > 20
                ):
                    return seen
        time.sleep(0.1)
    raise RuntimeError(f"two servers and {workers} workers did not come to train")


# ------------------------------------------------------------------ the table


def table(found: list[Row]) -> str:
    """Return the rows as a Markdown table."""
    lines = ["| what | ours | beside it | figure | must / aim |", "| --- " * 5 + "|"]
    for row in found:
        bound = "" if row.aim > row.must else "≤ "
        lines.append(
            f"| {row.what} | {row.ours} | {row.beside} | {row.figure:.2f}{row.unit} ({row.verdict}) "
            f"| {bound}{row.must:g}{row.unit} / {bound}{row.aim:g}{row.unit} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Print the table, or be one process."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--role", choices=("server", "worker", "keras"), help=argparse.SUPPRESS)
    parser.add_argument("--number", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--data", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    match args.role:
        case "server":
            be_server(args.number, args.folder)
        case "worker":
            be_worker(args.number, args.data)
        case "keras":
            be_keras(args.data)
        case _:
            print(table(rows()))
            print(
                f"\n{len(os.sched_getaffinity(0))} cores; medians of {FULL.rounds} turns, {FULL.jobs} jobs, {FULL.kills} kills"
            )


if __name__ == "__main__":
    main()
