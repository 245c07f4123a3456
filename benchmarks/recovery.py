"""What a group costs: after a kill, while a worker joins, per step, and until the first step; against torchft and plain Keras.

Run it alone: `python benchmarks/recovery.py`. It measures whole jobs from outside, with default settings; times of commits come from the
optimizer of the benchmark's own model, which computes next to nothing, so that what is left is the group's. torchft lives in
`.bench/venv`, beside the torch of `benchmarks/ring.py`.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.recorded import Bar, bar, judge
from benchmarks.ring import GLOO_PYTHON, prepare
from elasticdl.cluster.local import place as places
from elasticdl.cluster.local.place import JobPlace
from elasticdl.control.protocol.status import EventKind, JobEvent, JobStatus
from elasticdl.control.transport.client import JobClient
from elasticdl.data.readers.writing import write_tfrecord
from elasticdl.errors import BadInput, MasterAway

ROOT = Path(__file__).resolve().parent.parent
ELASTICDL = str(Path(sys.executable).with_name("elasticdl"))
PEER = Path(__file__).with_name("torchft_peer.py")
RECORDS = 8192
QUIET_SECONDS = 3.0
RECOVERY_SECONDS = 3.0
LAST_COMMITS = 0.03
"""Seconds after a kill in which a step may still commit to which the victim has given all that it had to; some steps of the tiny model."""
BEFORE_JOIN = 0.2
"""Seconds before a join is said in which its pause may have begun."""
PATIENCE = 240.0


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured.

    Attributes:
        kills: of workers, each followed by a join.
        pairs: groups of two workers, of which one then leaves: the machine may be faster now than in a minute.
        starts: commands whose first loss is awaited.
        workers: of the jobs that these commands start.
        warm_starts: those before them, which warm the disk's cache.
        quiet: seconds without a disturbance before and after each.
        installs: whether a peer that is missing is installed.
        pace: seconds by which a step is made longer.
    """

    kills: int = 5
    pairs: int = 5
    starts: int = 5
    workers: int = 2
    warm_starts: int = 1
    quiet: float = QUIET_SECONDS
    installs: bool = True
    pace: float = 0.0


FULL = Sizes()
SMALLEST = Sizes(kills=1, pairs=1, starts=1, workers=1, warm_starts=0, quiet=0.5, installs=False, pace=0.01)


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table; times in seconds.

    Attributes:
        what: for people.
        ours: median.
        must: largest that is accepted.
        aim: largest that is wanted.
        peers: (name, its median) of what was measured beside it.
        missing: the peer that is not there to be measured.
    """

    what: str
    ours: float
    must: float
    aim: float
    peers: tuple[tuple[str, float], ...] = ()
    missing: str = ""

    @property
    def verdict(self) -> str:
        """`aim`, `must`, `short`, or `missing` if there was nothing to compare with."""
        if self.missing:
            return "missing"
        judged = judge(self.ours, self.must, self.aim)
        ahead = all(self.ours < time for _, time in self.peers)
        return "short" if judged == "must" and not ahead else judged

    @property
    def bars(self) -> list[Bar]:
        """The time for a picture."""
        return [bar(self.what, self.ours, seconds(self.ours), self.verdict, self.must, self.aim)]


def rows(sizes: Sizes = FULL) -> list[Row]:
    """Measure everything; return one row each."""
    peer = prepare("torch, torchft", "torchft", installs=sizes.installs)
    missing = "" if peer else "torchft"
    with tempfile.TemporaryDirectory(prefix="edl-") as folder:
        directory = Path(folder)
        os.environ["XDG_STATE_HOME"] = str(directory / "state")
        data = tiny_data(directory / "data")
        with job(directory, data, 2, sizes.pace) as (place, stamps):
            recoveries, stalls, step = disturbed(place, stamps, sizes)
            pairs = [pair(place, stamps, sizes)]
        for _ in range(sizes.pairs - 1):
            with job(directory, data, 2, sizes.pace) as (place, stamps):
                pairs.append(pair(place, stamps, sizes))
        peers = {mode: torchft(mode, sizes.kills) for mode in ("tuned", "default") if peer}
        plain, first = starts(directory, sizes)
    median = statistics.median
    return [
        Row(
            "survivor's next committed step after SIGKILL, beyond the step itself",
            median(recoveries) - step, 0.05, 0.02,
            tuple((f"torchft {mode}", median(found["recoveries"])) for mode, found in peers.items()), missing,
        ),
        Row("longest pause of a survivor while a worker joins", median(stalls), 0.04, 0.02),
        Row(
            "coordination per step: 2 workers − 1 worker, tiny model",
            median(two - one for two, one in pairs), 1e-3, 0.3e-3,
            tuple(("torchft, no compute at all", median(found["steps"])) for mode, found in peers.items() if mode == "tuned"), missing,
        ),
        Row("command to first loss, beyond a plain Keras script", median(first) - median(plain), 2.0, 0.7),
    ]  # fmt: skip


def torchft(mode: str, kills: int) -> dict[str, list[float]]:
    """Return torchft's seconds per step and seconds to the next commit after a kill."""
    command = [str(GLOO_PYTHON), str(PEER), "--mode", mode, "--rounds", str(kills)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    if run.returncode:
        raise RuntimeError(f"torchft ({mode}) failed:\n{run.stderr[-2000:]}")
    answer: dict[str, list[float]] = json.loads(run.stdout.splitlines()[-1])
    return answer


# ------------------------------------------------------------------ our jobs


def tiny_data(folder: Path, records: int = RECORDS) -> Path:
    """Write the data of the tiny models to a new folder, and return it."""
    folder.mkdir()
    values = np.random.default_rng(0).standard_normal((records, 17), np.float32)
    write_tfrecord(folder / "tiny.tfrecord", (row.tobytes() for row in values))
    return folder


@contextlib.contextmanager
def job(
    directory: Path, data: Path, workers: int, pace: float = 0.0, compute: float = 0.0, **others: object
) -> Iterator[tuple[JobPlace, Path]]:
    """Run the tiny model, or what other settings say, without end; yield its place and the folder of the stamps."""
    stamps = Path(tempfile.mkdtemp(prefix="bench-", dir=directory))
    name = stamps.name.replace("_", "-").lower()
    environment = {
        **os.environ,
        "ELASTICDL_STAMPS": str(stamps),
        "ELASTICDL_PACE": str(pace),
        "ELASTICDL_COMPUTE": str(compute),
    }
    settings = {
        "model_zoo": ROOT / "benchmarks" / "models",
        "model_def": "tiny.custom_model",
        "training_data": data,
        "num_workers": f"1:{workers}",
        "minibatch_size": 16,
        "num_epochs": 0,
        "checkpoint_steps": 1_000_000,
        "job_name": name,
        **others,
    }
    with (directory / f"{name}.out").open("w") as out:
        process = subprocess.Popen(
            [ELASTICDL, "train", *(f"--{key}={value}" for key, value in settings.items())],
            stdout=out, stderr=out, stdin=subprocess.DEVNULL, env=environment,
        )  # fmt: skip
        try:
            until = time.monotonic() + PATIENCE
            while True:
                try:
                    place = places.find(name)
                    break
                except BadInput:
                    if process.poll() is not None or time.monotonic() > until:
                        raise RuntimeError((directory / f"{name}.out").read_text()) from None
                    time.sleep(0.05)
            yield place, stamps
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def training(status: JobStatus) -> list[int | None]:
    """Return the processes of the workers that train, in the order of their names."""
    return [worker.pid for worker in status.workers if worker.state == "training"]


def wait_for(place: JobPlace, workers: int) -> tuple[JobStatus, float]:
    """Wait until so many workers train and steps are committed; return the status and the time of the last join."""
    until = time.monotonic() + PATIENCE
    joined = 0.0
    while time.monotonic() < until:
        try:
            with JobClient(place.control_address, place.token()) as client:
                for seen in client.watch():
                    if isinstance(seen, JobEvent):
                        joined = seen.time if seen.kind == EventKind.JOINED else joined
                    elif (
                        sum(worker.state == "training" for worker in seen.workers) == workers
                        and seen.step > 20
                    ):
                        return seen, joined
        except MasterAway:
            time.sleep(0.1)
    raise RuntimeError(f"{workers} workers did not come to train")


def disturbed(place: JobPlace, stamps: Path, sizes: Sizes) -> tuple[list[float], list[float], float]:
    """Return seconds from kills to the survivor's next commit, pauses around joins, and the median step of two workers."""
    recoveries, stalls, steps = [], [], []
    status, _ = wait_for(place, 2)
    for number in range(sizes.kills):
        time.sleep(sizes.quiet + 0.01 * number)
        victim, survivor = training(status)
        assert victim is not None
        killed = time.time()
        os.kill(victim, signal.SIGKILL)
        status, joined = wait_for_another(place, victim)
        time.sleep(1.0)
        times = commits(stamps, survivor)
        recoveries.append(recovered(times, killed, joined - BEFORE_JOIN) - killed)
        stalls.append(longest_gap(times, joined - BEFORE_JOIN, joined + 1.0))
        steps.append(median_gap(times, killed - 0.8 * sizes.quiet, killed))
    return recoveries, stalls, statistics.median(steps)


def recovered(times: list[float], killed: float, until: float) -> float:
    """Return when a survivor made its first commit without the victim; `until`: then another worker may make it pause, too.

    A step whose ring was complete may still commit after the kill; so it is the commit that ends the longest pause, of those that begin
    before LAST_COMMITS have passed. A later pause has other reasons: a process that starts takes a processor.
    """
    end = min(killed + RECOVERY_SECONDS, until)
    span = [max((at for at in times if at <= killed), default=killed)]
    span += [at for at in times if killed < at <= end]
    pauses = [(at, later) for at, later in itertools.pairwise(span) if at <= killed + LAST_COMMITS]
    if not pauses:
        raise RuntimeError(f"no commit within {end - killed:.1f} s of a kill")
    return max(pauses, key=lambda pair: pair[1] - pair[0])[1]


def wait_for_another(place: JobPlace, victim: int, workers: int = 2) -> tuple[JobStatus, float]:
    """Wait until so many workers train again, none of which is the victim; return the status and the time of the last join."""
    while True:
        status, joined = wait_for(place, workers)
        if victim not in training(status):
            return status, joined
        time.sleep(0.05)


def pair(place: JobPlace, stamps: Path, sizes: Sizes) -> tuple[float, float]:
    """Return the median step of a group of two, and of the one that goes on when the other has left."""
    two = undisturbed(place, stamps, 2, sizes)
    with JobClient(place.control_address, place.token()) as client:
        client.scale(1)
    return two, undisturbed(place, stamps, 1, sizes)


def undisturbed(place: JobPlace, stamps: Path, workers: int, sizes: Sizes) -> float:
    """Return the median step of a group that nobody disturbs."""
    status, _ = wait_for(place, workers)
    time.sleep(2 * sizes.quiet)
    pid = training(status)[0]
    return median_gap(commits(stamps, pid), time.time() - sizes.quiet, time.time())


def commits(stamps: Path, pid: int | None) -> list[float]:
    """Return the times of a worker's commits."""
    return [float(line) for line in (stamps / str(pid)).read_text().split("\n")[:-1]]


def gaps(times: list[float], begin: float, end: float) -> list[float]:
    """Return the times between commits of which the later lies in a span."""
    return [later - at for at, later in itertools.pairwise(times) if begin <= later <= end]


def median_gap(times: list[float], begin: float, end: float) -> float:
    """Return the median time between commits in a span."""
    return statistics.median(gaps(times, begin, end))


def longest_gap(times: list[float], begin: float, end: float) -> float:
    """Return the longest time between commits in a span, beyond the usual one."""
    found = gaps(times, begin, end)
    return max(found) - statistics.median(found)


def starts(directory: Path, sizes: Sizes) -> tuple[list[float], list[float]]:
    """Return seconds from the command to the first loss: of a plain Keras script, and of a job; in turns."""
    digits = directory / "digits"
    zoo = ROOT / "model_zoo"
    subprocess.run(
        [sys.executable, str(zoo / "mnist/make_data.py"), str(digits)], check=True, stdout=subprocess.DEVNULL
    )
    plain = [
        sys.executable,
        str(ROOT / "benchmarks/models/plain.py"),
        str(zoo / "mnist/mnist_functional_api.py"),
    ]
    plain.append(str(digits / "train"))
    ours = [ELASTICDL, "train", f"--model_zoo={zoo}", "--model_def=mnist.mnist_functional_api.custom_model"]
    ours += [f"--training_data={digits / 'train'}", f"--num_workers={sizes.workers}"]
    ours += ["--max_step=1", "--log_loss_steps=1"]
    found: tuple[list[float], list[float]] = ([], [])
    for _ in range(sizes.warm_starts + sizes.starts):
        for times, command in zip(found, (plain, ours), strict=True):
            times.append(seconds_to(command, "loss "))
    return found[0][sizes.warm_starts :], found[1][sizes.warm_starts :]


def seconds_to(command: list[str], text: str) -> float:
    """Run a command to its end; return the seconds until it printed a line with `text`."""
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT)
    assert process.stdout is not None
    seen = None
    output = []
    for line in process.stdout:
        output.append(line)
        if seen is None and text in line:
            seen = time.perf_counter() - began
    if process.wait() or seen is None:
        raise RuntimeError(f"{command[0]} failed or never printed {text!r}:\n{''.join(output[-30:])}")
    return seen


# ------------------------------------------------------------------ the table


def seconds(value: float) -> str:
    """Return a duration in a fitting unit."""
    return f"{value * 1e3:.2f} ms" if abs(value) < 0.1 else f"{value:.2f} s"


def table(found: list[Row]) -> str:
    """Return the rows as a Markdown table."""
    lines = ["| what | ours | beside it | must / aim |", "| --- | --- | --- | --- |"]
    for row in found:
        beside = ", ".join(f"{name} {seconds(value)} ({value / row.ours:.0f}×)" for name, value in row.peers)
        if row.missing:
            beside = f"{row.missing} is missing"
        wanted = f"≤ {seconds(row.must)} / ≤ {seconds(row.aim)}"
        lines.append(f"| {row.what} | {seconds(row.ours)} ({row.verdict}) | {beside} | {wanted} |")
    return "\n".join(lines)


def main() -> None:
    """Measure and print the table."""
    print(table(rows()))
    print(
        f"\nmedians of {FULL.kills} kills and joins, {FULL.pairs} groups, {FULL.starts} starts; "
        f"{len(os.sched_getaffinity(0))} cores"
    )


if __name__ == "__main__":
    main()
