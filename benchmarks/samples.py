"""What becomes of samples when workers are killed: one PyTorch loop as a job, under torchrun, Ray Train and torchft, each with kills in it.

Run it alone: `python -m benchmarks samples`. The model counts the samples whose gradients it has, so nothing depends on what a process can
still write when it is killed, and what a framework takes back does not count. All forms have three workers on this host, are written as
their documentation shows, and are disturbed by the same rule: a SIGKILL once the group is whole and each of its workers has committed so
many steps since the last kill; the numbers are drawn once for all forms. torchrun and Ray Train start the whole group again from the
snapshot of the last epoch: what the epoch had trained is trained once more, which the seconds of the whole training show.
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.recorded import Bar, bar
from benchmarks.ring import GLOO_PYTHON, prepare

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = str(ROOT / "benchmarks/models/torch_samples.py")
PATIENCE = 900.0
"""Seconds before one form is given up."""
WORKERS = 3
AROUND = 0.5
"""Seconds before and after a worker's first commit in which the others may pause for it."""
_LIGHTHOUSE = """
import sys
from torchft.coordination import LighthouseServer
server = LighthouseServer(bind="localhost:0", min_replicas=1, join_timeout_ms=100, quorum_tick_ms=50, heartbeat_timeout_ms=1000)
print(server.address(), flush=True)
sys.stdin.read()
"""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured.

    Attributes:
        kills: of workers.
        epochs: of training.
        pace: seconds by which a step is made longer, until the group is whole again after the last kill: replacements need time to start.
        steps: largest number that each worker commits before the next kill; an epoch has 48 of three workers.
        peers: whether there are peers.
    """

    kills: int
    epochs: int
    pace: float
    steps: int
    peers: bool


FULL = Sizes(kills=5, epochs=40, pace=0.05, steps=48, peers=True)
SMALLEST = Sizes(kills=1, epochs=3, pace=0.2, steps=3, peers=False)


MUST, AIM = (0.3, 0.15), (0.1, 0.1)
"""Seconds of a kill, and of a join."""


@dataclass(frozen=True, slots=True)
class Row:
    """What became of the samples of one form.

    Attributes:
        form: for people.
        kills: that there were.
        lost: samples of all epochs that are not in the model.
        twice: those that are in it once more than they should be.
        kill: seconds from a kill to the next commit of any worker, beyond those of a step; median.
        join: seconds without a commit of the others around the first one of a worker that was added, beyond those of a step; median, None
            where the whole group starts again.
        restarts: processes that were started, beside the first ones and one for each kill.
        seconds: from the first commit to the last one.
        missing: why there is nothing.
    """

    form: str
    kills: int = 0
    lost: int = 0
    twice: int = 0
    kill: float = 0.0
    join: float | None = None
    restarts: int = 0
    seconds: float = 0.0
    missing: str = ""

    @property
    def verdict(self) -> str:
        """Return that of ours, `short` if a sample is lost or twice; peers are shown only."""
        if self.form != "elasticdl":
            return "missing" if self.missing else "peer"
        for name, kill, join in (("aim", *AIM), ("must", *MUST)):
            if not (self.lost or self.twice) and self.kill <= kill and (self.join or 0.0) <= join:
                return name
        return "short"

    @property
    def bars(self) -> list[Bar]:
        """Our times for a picture."""
        if self.form != "elasticdl":
            return []
        measured = zip(("kill", "join"), (self.kill, self.join or 0.0), MUST, AIM, strict=True)
        return [
            bar(f"a training loop's pause at a {name}, no sample lost or twice", one, f"{one:.2f} s", self.verdict, must, aim)
            for name, one, must, aim in measured
        ]  # fmt: skip


def rows(sizes: Sizes = FULL) -> list[Row]:
    """Measure each form once. Raises RuntimeError if ours fails, or PyTorch is missing."""
    if importlib.util.find_spec("torch") is None:
        raise RuntimeError("PyTorch is not installed; `make setup-torch` installs it")
    found = [measure("elasticdl", sizes)]
    if not sizes.peers:
        return found
    for form, module in (("torchft", "torch, torchft"), ("ray", "ray.train.torch"), ("torchrun", "torch")):
        try:
            there = prepare(module, form, installs=True)
            found.append(measure(form, sizes) if there else Row(form, missing="not installed"))
        except RuntimeError as error:
            print(f"not measured beside {form}: {error}", file=sys.stderr)
            found.append(Row(form, missing="failed"))
    return found


def measure(form: str, sizes: Sizes) -> Row:
    """Train in one form with kills. Raises RuntimeError if it fails or hangs."""
    with tempfile.TemporaryDirectory(prefix="edl-") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        runs = Runs(form, sizes, folder, stack)
        kills = disturb(runs, folder, sizes)
        found = commits(folder)
        counts = json.loads((folder / "counts.json").read_text())
        stamps = sorted(itertools.chain.from_iterable(found.values()))
        return Row(
            form,
            len(kills),
            round(sum(max(0, sizes.epochs - count) for count in counts)),
            round(sum(max(0, count - sizes.epochs) for count in counts)),
            *pauses(found, kills),
            max(0, len(found) - WORKERS - len(kills)),
            stamps[-1] - stamps[0],
        )


class Runs:
    """The processes of one form: one command for all workers, or, of torchft, one for each replica, started again when it ends early."""

    def __init__(self, form: str, sizes: Sizes, folder: Path, stack: contextlib.ExitStack) -> None:
        """Start; `stack` ends what is left."""
        self._folder, self._stack = folder, stack
        self._environment = {**os.environ, "OMP_NUM_THREADS": "1", "XDG_STATE_HOME": str(folder)}
        program = [PROGRAM, form, str(sizes.epochs), str(sizes.pace), str(folder)]
        if form == "elasticdl":
            job = [
                "-m",
                "elasticdl",
                "run",
                "--threads_per_worker=1",
                f"--num_workers={WORKERS}",
                f"--output={folder / 'counts.json'}",
            ]
            commands = [[sys.executable, *job, "--", sys.executable, *program]]
        elif form == "torchrun":
            job = [
                "-m",
                "torch.distributed.run",
                "--standalone",
                f"--nproc_per_node={WORKERS}",
                "--max_restarts=100",
            ]
            # its default, one store for all starts of a group, has addresses of processes that were killed: a restart then hangs, or fails
            self._environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
            commands = [[str(GLOO_PYTHON), *job, *program]]
        elif form == "ray":
            self._environment["RAY_USAGE_STATS_ENABLED"] = "0"
            commands = [[str(GLOO_PYTHON), *program]]
        else:
            self._environment["TORCHFT_LIGHTHOUSE"] = self._lighthouse()
            commands = [[str(GLOO_PYTHON), *program, str(rank)] for rank in range(WORKERS)]
        self._restarts = form == "torchft"
        self._processes = [(command, self._start(command)) for command in commands]

    def _lighthouse(self) -> str:
        server = subprocess.Popen(
            [GLOO_PYTHON, "-c", _LIGHTHOUSE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._stack.callback(_end, server)
        assert server.stdout is not None
        return server.stdout.readline().strip()

    def _start(self, command: list[str]) -> subprocess.Popen[bytes]:
        with (self._folder / "log").open("ab") as log:
            process = subprocess.Popen(
                command, env=self._environment, cwd=ROOT, stdout=log, stderr=log, start_new_session=True
            )
        self._stack.callback(_end, process)
        return process

    def ended(self) -> bool:
        """Tell whether training has ended, and start again what has not come to its end. Raises RuntimeError for a command that failed."""
        if self._restarts and any(process.poll() == 0 for _, process in self._processes):
            return True  # a replica that comes later would begin afresh
        for place, (command, process) in enumerate(self._processes):
            code = process.poll()
            if code and self._restarts:
                self._processes[place] = command, self._start(command)
            elif code:
                raise RuntimeError(f"exit code {code}:\n{said(self._folder)}")
        return all(process.poll() == 0 for _, process in self._processes)


def _end(process: subprocess.Popen[bytes] | subprocess.Popen[str]) -> None:
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(60)  # torchrun gives its workers half of that
        process.kill()
        process.wait()


def disturb(runs: Runs, folder: Path, sizes: Sizes) -> list[float]:
    """Kill workers until training ends; return when. Raises RuntimeError if it ended before all kills, or takes too long."""
    draw, done = random.Random(1), list[float]()
    until, wanted = time.monotonic() + PATIENCE, draw.randint(1, sizes.steps)
    while not runs.ended():
        if time.monotonic() > until:
            raise RuntimeError(
                f"training took more than {PATIENCE:g} s, with {len(done)} kills:\n{said(folder)}"
            )
        time.sleep(0.1)
        if len(done) > sizes.kills:
            continue
        last = done[-1] if done else 0.0
        able = [
            pid
            for pid, times in commits(folder).items()
            if sum(at > last for at in times) >= wanted and _lives(pid)
        ]
        if len(able) < WORKERS:
            continue
        if len(done) == sizes.kills:
            (folder / "go").touch()
            continue
        at = time.time()
        try:
            os.kill(draw.choice(sorted(able)), signal.SIGKILL)
        except ProcessLookupError:
            continue  # it has ended by itself
        done.append(at)
        wanted = draw.randint(1, sizes.steps)
    if len(done) < sizes.kills:
        raise RuntimeError(f"training ended after {len(done)} of {sizes.kills} kills")
    return done


def said(folder: Path) -> str:
    """Return the end of what all processes have said, without what is said of each step."""
    lines = (folder / "log").read_text(errors="replace").split("\n")
    return "\n".join(line for line in lines if "[INFO]" not in line)[-3000:]


def commits(folder: Path) -> dict[int, list[float]]:
    """Return the times of commits by the process."""
    return {
        int(path.stem): [float(line) for line in path.read_text().split("\n")[:-1]]
        for path in folder.glob("*.commits")
    }


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def pauses(found: dict[int, list[float]], kills: list[float]) -> tuple[float, float | None]:
    """Return the medians of the pauses after kills and of those around joins; see `Row`."""
    workers = [times for times in found.values() if times]
    step = statistics.median(after - at for times in workers for at, after in itertools.pairwise(times))
    last = max(times[-1] for times in workers)
    after_kills, joins = [], []
    for kill, end in zip(kills, [*kills[1:], last], strict=True):
        came = min((times[0] for times in workers if kill < times[0] <= end), default=None)
        until = end if came is None else came
        others = sorted(
            itertools.chain.from_iterable(
                times for times in workers if times[0] <= kill and times[-1] >= until
            )
        )
        if not others:  # the whole group was started again
            after_kills.append(until - kill)
            continue
        after_kills.append(longest(others, kill, until - AROUND if came else until) - step)
        if came:
            joins.append(longest(others, came - AROUND, came + AROUND) - step)
    return statistics.median(after_kills), statistics.median(joins) if joins else None


def longest(stamps: list[float], begin: float, end: float) -> float:
    """Return the longest time between two commits, of which the later one lies in a span."""
    within = [at for at in stamps if begin < at <= end]
    before = max((at for at in stamps if at <= begin), default=begin)
    return max((after - at for at, after in itertools.pairwise([before, *within])), default=0.0)


def table(found: list[Row]) -> str:
    """Return the rows as text."""
    lines = [
        f"samples of one loop, {WORKERS} workers, SIGKILLs; counted by the model. Ours: none lost or twice; s of a kill 0.3 must, 0.1 aim; "
        "s of a join 0.15 must, 0.1 aim",
        f"{'form':<10} {'kills':>5} {'lost':>7} {'twice':>7} {'restarted besides':>17} "
        f"{'s of a kill':>11} {'s of a join':>11} {'s in all':>8}  verdict",
    ]
    for row in found:
        if row.missing:
            lines.append(f"{row.form:<10} {row.missing}")
            continue
        join = "–" if row.join is None else f"{row.join:.2f}"
        lines.append(
            f"{row.form:<10} {row.kills:>5} {row.lost:>7,} {row.twice:>7,} {row.restarts:>17} "
            f"{row.kill:>11.2f} {join:>11} {row.seconds:>8.0f}  {row.verdict}"
        )
    return "\n".join(lines)
