"""`python -m tests.chaos`: many faults of every kind over several jobs of real processes, each job checked in the end.

A job passes if its exit code is 0, the audit is clean, all members of its last view held bit-identical parameters, and no process of it is
left. A fault counts only if it was observed to hit. The table in the end says what was done; the exit code is 0 if every job passed
and every kind was hit as often as asked.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import random
import shlex
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import psutil

from elasticdl.audit import audit
from elasticdl.cluster.local import place as places
from elasticdl.cluster.local.place import JobPlace
from elasticdl.control.transport.client import JobClient
from elasticdl.errors import AuditFailed, BadInput, MasterAway
from elasticdl.tools.chaos import Injected, Plan, inject
from elasticdl.tools.faults import FORMS, GROUP, MOMENTS, PS, FaultKind

ROOT = Path(__file__).resolve().parents[2]
ELASTICDL = str(Path(sys.executable).with_name("elasticdl"))
MORE = {
    FaultKind.KILL: 6, FaultKind.PAIR: 2, FaultKind.DONOR: 1, FaultKind.JOINER: 1, FaultKind.DRAINING: 2,
    FaultKind.DRAIN: 2, FaultKind.MASTER: 2, FaultKind.CHANGE: 2,
}  # fmt: skip
"""How what is left of the faults is shared, once every kind has its least."""

HOSTS = Path(__file__).parent / "hosts"
"""In its folder is what makes a worker's address one of two hosts."""
FINALS_PER_RUN = 2
FINAL_SECONDS = 60.0
"""Longest wait for faults in a final view: too few may be left in it."""
EVERY_SECONDS = 2.0
RUN_SECONDS = 900.0
"""Longest time of one run: a bound, not an expectation."""
WHOLE_SECONDS = 120.0
PACE_SECONDS = "0.1"
"""Of a chunk of a job with parameter servers while faults are injected: the data has to last, and processes that start need the cores."""
PATIENCE_SECONDS = 60.0
"""A run whose faults are over is ended early if its data would last longer than this."""


MORE_PS = {
    FaultKind.KILL: 3, FaultKind.DRAIN: 1, FaultKind.MASTER: 1, FaultKind.SERVER: 5, FaultKind.SERVERS: 1, FaultKind.SERVER_HANG: 1,
    FaultKind.SERVER_DRAIN: 2, FaultKind.COPY: 2, FaultKind.HANDOVER: 2, FaultKind.PROMOTION: 2, FaultKind.WORKERS: 1,
    FaultKind.UNACKNOWLEDGED: 3, FaultKind.SNAPSHOT: 2, FaultKind.MORE_SERVERS: 3, FaultKind.FEWER_SERVERS: 3,
}  # fmt: skip


def quotas(faults: int, every: Sequence[FaultKind], more: Mapping[FaultKind, int]) -> dict[FaultKind, int]:
    """Share a number of faults among the kinds: a twentieth for each, the rest by weight."""
    least = max(1, faults // 20)
    quota = dict.fromkeys(every, least)
    left = faults - least * len(quota)
    kinds = [kind for kind, weight in more.items() for _ in range(weight)]
    for index in range(max(0, left)):
        quota[kinds[index * 7 % len(kinds)]] += 1
    return quota


@dataclass
class Run:
    """One job and what was done to it."""

    name: str
    workers: int
    injected: list[Injected] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    steps: int = 0
    views: int = 0
    redone: int = 0
    records: int = 0
    digests: int = 0
    seconds: float = 0.0
    complete: bool = False


class Harness:
    """Runs jobs one after the other until the quotas are filled or the time is over.

    Attributes:
        groups: workers of one run after another.
        per_run: most faults of one run.
        variants: what is trained by turns, each for its share of the faults.
    """

    groups: tuple[int, ...] = (4, 3, 5, 2, 6, 4, 3)
    per_run = 24
    variants = 1

    def __init__(self, quota: Mapping[FaultKind, int], seconds: float, seed: int, directory: Path) -> None:
        self.quota = dict(quota)
        self.deadline = time.monotonic() + seconds
        self.dice = random.Random(seed)
        self.directory = directory
        self.runs: list[Run] = []
        self.epochs = 400
        self.began = time.monotonic()

    def say(self, text: str) -> None:
        print(f"{time.monotonic() - self.began:8.1f} s  {text}", flush=True)

    def hits(self) -> Counter[FaultKind]:
        return Counter(fault.kind for run in self.runs for fault in run.injected if fault.hit)

    def left(self) -> dict[FaultKind, int]:
        hits = self.hits()
        return {kind: most - hits[kind] for kind, most in self.quota.items() if most > hits[kind]}

    def make_data(self) -> Path:
        """Write what all runs train on."""
        data = self.directory / "digits"
        subprocess.run([sys.executable, str(ROOT / "model_zoo/mnist/make_data.py"), str(data)], check=True)
        return data

    def work(self) -> None:
        empty_and_hold(self.directory)
        os.environ["XDG_STATE_HOME"] = str(self.directory / "state")
        data = self.make_data()
        while self.left() and time.monotonic() < self.deadline and not any(run.failures for run in self.runs):
            run = Run(f"chaos{len(self.runs) + 1}", self.next_group())
            self.runs.append(run)
            self.one(run, data)

    def next_group(self) -> int:
        """Return how many workers the next run has: the next number of them that is enough for a fault that is left."""
        turn = len(self.runs) % len(self.groups)
        least = min(FORMS[kind].workers for kind in self.left())
        return next(size for size in (*self.groups[turn:], *self.groups[:turn]) if size >= least)

    def settings(self, run: Run, data: Path) -> dict[str, object]:
        """Return the settings of a run that are not the same for all harnesses."""
        return {
            "model_zoo": ROOT / "model_zoo",
            "model_def": "mnist.mnist_functional_api.custom_model",
            "training_data": data / "train",
            "num_workers": f"1:{run.workers}",
            # every other run keeps its batch whatever happens to its workers
            **({"global_batch_size": 64 * run.workers} if len(self.runs) % 2 else {}),
        }

    def one(self, run: Run, data: Path) -> None:
        records, output = self.directory / f"{run.name}-audit", self.result_of(run.name)
        settings = {
            "num_epochs": self.epochs,
            "seed": len(self.runs),
            "job_name": run.name,
            "output": output,
            "audit": records,
            **self.settings(run, data),
        }
        self.say(f"{run.name}: {run.workers} workers, {self.epochs} epochs")
        began = time.monotonic()
        until = began + min(RUN_SECONDS, max(120.0, self.deadline - began + 60.0))
        job = self.start(settings)
        try:
            place = self.find(job, run, until)
            if place is not None:
                self.disturb(run, place, job)
            self.end(job, run, until)
        finally:
            if job.poll() is None:
                job.kill()
                job.wait()
        run.seconds = time.monotonic() - began
        self.check(run, records, output, job.returncode, place)
        verdict = (
            "; ".join(run.failures) or f"clean: {run.steps} steps in {run.views} views, {run.redone} redone"
        )
        self.say(f"{run.name}: {verdict} ({run.seconds:.0f} s)")

    def framework_of(self, run: Run) -> str:
        """Return in what a run trains."""
        return "keras"

    def result_of(self, run: str) -> Path:
        """Return where the result of a run is."""
        return self.directory / f"{run}.keras"

    def start(self, settings: Mapping[str, object]) -> subprocess.Popen[bytes]:
        """Start a job that writes its output to a file beside its model."""
        with (self.directory / f"{settings['job_name']}.out").open("w") as out:
            return subprocess.Popen(
                [ELASTICDL, "train", *(f"--{name}={value}" for name, value in settings.items())],
                stdout=out,
                stderr=out,
                stdin=subprocess.DEVNULL,
            )

    def find(self, job: subprocess.Popen[bytes], run: Run, until: float) -> JobPlace | None:
        while job.poll() is None and time.monotonic() < until:
            try:
                return places.find(run.name)
            except BadInput:
                time.sleep(0.05)
        return None

    def disturb(self, run: Run, place: JobPlace, job: subprocess.Popen[bytes]) -> None:
        """Inject this run's share of the faults, then see to its end and inject those that belong there."""
        share, finals, most = self.share_of(run)
        seed = self.dice.getrandbits(32)
        self.inject(run, place, Plan(share, EVERY_SECONDS, seed, most), job, self.deadline)
        if job.poll() is None:
            self.finish(place)
            until = min(self.deadline, time.monotonic() + FINAL_SECONDS)
            self.inject(run, place, Plan({FaultKind.FINAL: finals}, EVERY_SECONDS, seed), job, until)

    def share_of(self, run: Run) -> tuple[dict[FaultKind, int], int, int]:
        """Return how many of each kind a run may have, how many in its final view, and how many in all before that."""
        share = {
            kind: min(left, self.part(self.quota[kind]))
            for kind, left in self.left().items()
            if FORMS[kind].workers <= run.workers
        }
        finals = min(share.pop(FaultKind.FINAL, 0), FINALS_PER_RUN, run.workers - 1)
        return share, finals, min(self.per_run, self.part(sum(self.quota.values())) - finals)

    def part(self, faults: int) -> int:
        """Return how many of the faults each variant has, rounded up."""
        return -(-faults // self.variants)

    def inject(
        self, run: Run, place: JobPlace, plan: Plan, job: subprocess.Popen[bytes], until: float
    ) -> None:
        while job.poll() is None and time.monotonic() < until:
            try:
                inject(place, plan, lambda text: self.say(f"  {run.name} {text}"), until)
                break
            except BadInput:  # not listening yet, or not any more
                time.sleep(0.05)
        run.injected += plan.injected

    def finish(self, place: JobPlace) -> None:
        """Let the data end if that is soon; else stop the job once its group is whole again."""
        while self.await_whole(place, PATIENCE_SECONDS):
            try:
                with JobClient(place.control_address, place.token()) as client:
                    client.stop("its faults are over")
                    return
            except (MasterAway, BadInput):
                time.sleep(0.1)  # until the next master listens, of which another process gets no event

    def await_whole(self, place: JobPlace, soon: float = 0.0) -> bool:
        """Wait until all workers take part, or have had time enough; false: the job ends anyway, at once or in so many seconds."""
        began = time.monotonic()
        while place.running():
            try:
                with JobClient(place.control_address, place.token()) as client:
                    while True:
                        status = client.status()
                        left = status.seconds_left
                        finishing = any(worker.state == "finishing" for worker in status.workers)
                        if status.state in ("stopping", "finished", "failed") or finishing:
                            return False
                        if left is not None and left < soon:
                            return False
                        training = sum(
                            worker.state in ("training", "evaluating") for worker in status.workers
                        )
                        if training >= status.wanted_workers or time.monotonic() > began + WHOLE_SECONDS:
                            return True
                        time.sleep(0.25)
            except (MasterAway, BadInput):
                time.sleep(0.1)
        return False

    def end(self, job: subprocess.Popen[bytes], run: Run, until: float) -> None:
        try:
            job.wait(max(1.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            run.failures.append("did not end")

    def check(self, run: Run, records: Path, output: Path, code: int, place: JobPlace | None) -> None:
        if code != 0:
            run.failures.append(f"exit code {code}")
        try:
            report = audit(records)
        except (AuditFailed, BadInput) as failure:
            run.failures.append(f"audit: {failure}")
        else:
            run.steps, run.views, run.redone = report.steps, report.views, report.redone_steps
            run.records, run.complete = report.records, report.complete
            if not report.finished:
                run.failures.append("audit: the job has not finished")
        if code == 0 and not output.exists():
            run.failures.append("no model was written")
        self.check_result(run, output, place)
        left = [process.pid for process in psutil.process_iter() if belongs(process, self.directory)]
        if left:
            run.failures.append(f"processes are left: {left}")

    def check_result(self, run: Run, output: Path, place: JobPlace | None) -> None:
        """Every member of a final view says which bits it holds; those of one state must be the same."""
        if place is None:
            return
        said: dict[tuple[int, int], dict[str, str]] = {}
        with (place.path / "events.jsonl").open() as lines:
            for line in lines:
                event = json.loads(line)
                if event["kind"] == "digest":
                    said.setdefault((event["view"], event["step"]), {})[event["worker"]] = event["text"]
        for (view, step), digests in said.items():
            run.digests += len(digests)
            if len(set(digests.values())) > 1:
                run.failures.append(f"digests differ in view {view} at step {step}: {digests}")
        if not run.digests:
            run.failures.append("no member said which bits it holds")

    def table(self) -> str:
        """Return the report: per kind of fault, per framework and per run."""
        hits = self.hits()
        tried = Counter(fault.kind for run in self.runs for fault in run.injected)
        frameworks = {name: Counter[FaultKind]() for name in sorted(map(self.framework_of, self.runs))}
        for run in self.runs:
            frameworks[self.framework_of(run)].update(fault.kind for fault in run.injected if fault.hit)
        columns = "; ".join(frameworks)
        lines = ["", f"{'fault':<46} {'wanted':>6} {'hit':>5} {'missed':>6}  hit in: {columns}"]
        for kind in self.quota:
            each = "".join(f" {counts[kind]:>3}" for counts in frameworks.values())
            lines.append(
                f"{kind:<46} {self.quota[kind]:>6} {hits[kind]:>5} {tried[kind] - hits[kind]:>6} {each}"
            )
        lines.append(
            f"{'all':<46} {sum(self.quota.values()):>6} {hits.total():>5} {tried.total() - hits.total():>6}"
        )
        moments = Counter({MOMENTS[kind]: 0 for kind in self.quota if kind in MOMENTS})
        for kind in self.quota.keys() & MOMENTS.keys():
            moments[MOMENTS[kind]] += hits[kind]
        totals = Counter({name: counts.total() for name, counts in frameworks.items()})
        for counts in filter(None, (moments, totals)):
            lines += ["", *(f"{name:<44} {count:>15}" for name, count in sorted(counts.items()))]
        lines += [
            "",
            "run      workers faults  steps views redone   records data     digests seconds outcome",
        ]
        for run in self.runs:
            count = sum(fault.hit for fault in run.injected)
            lines.append(
                f"{run.name:<8} {run.workers:>7} {count:>6} {run.steps:>6} {run.views:>5} {run.redone:>6} {run.records:>9} "
                f"{'complete' if run.complete else 'stopped':<8} {run.digests:>7} {run.seconds:>7.0f} "
                f"{'; '.join(run.failures) or self.clean}"
            )
        return "\n".join(lines)

    clean = "exit code 0, audit clean, digests equal"

    @property
    def passed(self) -> bool:
        return not self.left() and not any(run.failures for run in self.runs)


class PacedHarness(Harness):
    """Jobs that wait a moment with each batch until a file is there, and in their final view as long as another is there."""

    variants = 3

    def slow_down(self, run: Run) -> None:
        """Begin slowly."""
        self.go, self.hold = (self.directory / f"{run.name}-{name}" for name in ("go", "hold"))
        os.environ |= {"GO": str(self.go), "HOLD": str(self.hold)}

    def disturb(self, run: Run, place: JobPlace, job: subprocess.Popen[bytes]) -> None:
        """Inject this run's share of the faults, and let the job end when those in its final view are over."""
        try:
            super().disturb(run, place, job)
        finally:
            self.hold.unlink(missing_ok=True)

    def finish(self, place: JobPlace) -> None:
        """Let the rest of the data be trained at once when the group is whole again, and hold the final view."""
        self.await_whole(place)
        self.hold.touch()
        self.go.touch()


class ProgramHarness(PacedHarness):
    """Programs with loops of their own, each in its framework, and a batch that never changes: faults must not change a bit of a result."""

    clean = "exit code 0, audit clean, every bit of the result as of the program alone"
    programs: tuple[tuple[str, str], ...] = (
        ("regression", "numpy loop"),
        ("flowers", "torch loop"),
        ("flowers_jax", "jax loop"),
    )
    """Program, and in what it trains."""

    def make_data(self) -> Path:
        """Write flowers, and train on them once with each program alone."""
        self.epochs = 200
        data = self.directory / "iris"
        subprocess.run([sys.executable, str(ROOT / "model_zoo/iris/make_data.py"), str(data)], check=True)
        os.environ |= {"EPOCHS": str(self.epochs), "OMP_NUM_THREADS": "1"}
        for name, _ in self.programs:
            self.say(f"what {name} makes alone")
            os.environ["GO"] = str(self.directory)
            subprocess.run([*self.program(name, data), str(self.directory / f"{name}-alone.npz")], check=True)
        return data

    def program(self, name: str, data: Path) -> list[str]:
        """Return the command of a program."""
        return [
            sys.executable,
            str(ROOT / f"tests/loops/programs/{name}.py"),
            str(data / "train" / "iris.csv"),
        ]

    def name_of(self, run: Run) -> str:
        """Return the program of a run: each comes in turn."""
        return self.programs[self.runs.index(run) % len(self.programs)][0]

    def framework_of(self, run: Run) -> str:
        """Return in what a run trains."""
        return self.programs[self.runs.index(run) % len(self.programs)][1]

    def settings(self, run: Run, data: Path) -> dict[str, object]:
        """Begin slowly: the programs wait a moment with each batch until a file is there."""
        self.slow_down(run)
        return {
            "job_command": shlex.join(self.program(self.name_of(run), data)),
            "num_workers": f"1:{run.workers}",
            "threads_per_worker": 1,
            # before a program calls init() nothing tells one that hangs from one that imports, which takes half a minute on a busy machine
            "start_seconds": 60,
        }

    def start(self, settings: Mapping[str, object]) -> subprocess.Popen[bytes]:
        """Start a job; epochs and seed are the program's."""
        others = {name: value for name, value in settings.items() if name not in ("num_epochs", "seed")}
        return super().start(others)

    def result_of(self, run: str) -> Path:
        """Return where the result of a run is."""
        return self.directory / f"{run}.npz"

    def check_result(self, run: Run, output: Path, place: JobPlace | None) -> None:
        """Compare digests, and the result with that of the program alone."""
        super().check_result(run, output, place)
        if not output.exists():
            return
        if not run.complete:
            run.failures.append("the data was not trained to its end")
        with np.load(output) as found, np.load(self.directory / f"{self.name_of(run)}-alone.npz") as alone:
            wrong = [
                name for name in alone if name not in found or found[name].tobytes() != alone[name].tobytes()
            ]
        if wrong:
            run.failures.append(f"other bits than alone: {', '.join(wrong)}")


class ModelsHarness(PacedHarness):
    """Model files of the frameworks that train without parameter servers, and of the reference, by turns."""

    models: tuple[tuple[str, str, str], ...] = (
        ("torch model file", "tests/torch/zoo", "flowers"),
        ("jax model file", "tests/jax/zoo", "flowers"),
        ("reference model file", "tests/job/zoo", "paced"),
    )
    """Framework, model zoo and model file."""

    def make_data(self) -> Path:
        """Write flowers."""
        data = self.directory / "iris"
        subprocess.run([sys.executable, str(ROOT / "model_zoo/iris/make_data.py"), str(data)], check=True)
        return data

    def framework_of(self, run: Run) -> str:
        """Return the framework of a run."""
        return self.models[self.runs.index(run) % len(self.models)][0]

    def settings(self, run: Run, data: Path) -> dict[str, object]:
        """Begin slowly: the models wait a moment with each step until a file is there."""
        self.slow_down(run)
        _, zoo, file = self.models[self.runs.index(run) % len(self.models)]
        # every other round over the frameworks keeps its batch whatever happens to its workers
        fixed = self.runs.index(run) // len(self.models) % 2
        return {
            "model_zoo": ROOT / zoo,
            "model_def": f"{file}.custom_model",
            "training_data": data / "train",
            "num_workers": f"1:{run.workers}",
            "minibatch_size": 4,
            "num_minibatches_per_task": 1,
            "threads_per_worker": 1,
            **({"global_batch_size": 4 * run.workers} if fixed else {}),
        }

    def result_of(self, run: str) -> Path:
        """Return where the result of a run is."""
        suffix = ".pt" if self.framework_of(self.runs[-1]) == "torch model file" else ".npz"
        return self.directory / f"{run}{suffix}"

    def finish(self, place: JobPlace) -> None:
        """Let the rest of the data be trained at once, or stop the job if that would last."""
        super().finish(place)
        Harness.finish(self, place)


class PsHarness(Harness):
    """Jobs with parameter servers, in which every record adds one to a row: what must be there in the end is known."""

    clean = "exit code 0, audit clean, every row and the last evaluation as they must be"
    groups = (3, 2, 4)
    per_run = 30

    def make_data(self) -> Path:
        """Write ids of which few come often and many once."""
        self.epochs = 60
        self.ids = np.random.default_rng(3).zipf(1.3, 2000) % 3000
        path = self.directory / "ids.csv"
        path.write_text("id\n" + "".join(f"{one}\n" for one in self.ids))
        self.held_out.write_text("id\n" + "".join(f"{one}\n" for one in self.ids[:320]))
        return path

    @property
    def held_out(self) -> Path:
        """Return what is evaluated at the end of each epoch, in 20 parts."""
        return self.directory / "heldout.csv"

    def settings(self, run: Run, data: Path) -> dict[str, object]:
        """Begin slowly: `counted` waits a moment with each chunk until a file is there."""
        self.go = self.directory / f"{run.name}-go"
        os.environ |= {"GO": str(self.go), "PACE": PACE_SECONDS}
        return {
            "model_zoo": ROOT / "tests/job/zoo",
            "model_def": "counted.custom_model",
            "training_data": data,
            "validation_data": self.held_out,
            "eval_metrics_fn": "totals",
            "summary": self.summary(run),
            "num_workers": run.workers,
            "num_ps_pods": 2 + len(self.runs) % 3,
            "minibatch_size": 16,
            "num_minibatches_per_task": 4,
            "embedding_threshold": 0,
            "witness_seconds": 3,
            "checkpoint_steps": 80,
        }

    def summary(self, run: Run) -> Path:
        return self.directory / f"{run.name}.json"

    def metrics(self, run: Run) -> dict[str, float]:
        """Return those of the last evaluation of a run."""
        found: dict[str, float] = json.loads(self.summary(run).read_text())["metrics"]
        return found

    def finish(self, place: JobPlace) -> None:
        """Let the rest of the data be trained at once: only of a whole job is known what must be there."""
        self.go.touch()

    def check_result(self, run: Run, output: Path, place: JobPlace | None) -> None:
        """Compare the tables with what the data says."""
        if not output.exists():
            return
        rows, total = weights_of(output)
        expected, whole = self.expected()
        wrong = np.flatnonzero((rows != expected).any(1))
        if len(wrong):
            run.failures.append(
                f"{len(wrong)} rows are wrong, the first: {wrong[0]}, {rows[wrong[0]]} and not {expected[wrong[0]]}"
            )
        if total.item() != whole:
            run.failures.append(f"the sum is {total.item()} and not {whole}")
        if not run.complete:
            run.failures.append("the data was not trained to its end")
        metrics = self.metrics(run)
        if {name: metrics.get(name) for name in self.expected_metrics()} != self.expected_metrics():
            run.failures.append(f"the last evaluation is {metrics} and not {self.expected_metrics()}")
        run.digests = len(rows)

    def expected(self) -> tuple[np.ndarray, float]:
        """Return the rows and the sum that every run must make."""
        counts = np.bincount(self.ids, minlength=3000).astype(np.float32) * self.epochs
        return np.repeat(counts[:, None], 2, 1), len(self.ids) * self.epochs

    def expected_metrics(self) -> dict[str, float]:
        """Return the metrics that are known of the last evaluation of every run."""
        return {"val_total": float(len(self.ids) * self.epochs)}


class StepsHarness(PsHarness):
    """Jobs of synchronous accumulation in which each step depends on all before: faults must not change a bit."""

    clean = "exit code 0, audit clean, every bit of model and last evaluation as without faults"

    def make_data(self) -> Path:
        """Write the ids, and train on them once without a fault."""
        data = super().make_data()
        quiet = Run("quiet", 1)
        self.say(f"{quiet.name}: what {self.epochs} epochs make without faults")
        output = self.directory / "quiet.keras"
        settings = self.settings(quiet, data)
        self.go.touch()
        more = {"num_epochs": self.epochs, "job_name": quiet.name, "output": output}
        if self.start(settings | more).wait(RUN_SECONDS) != 0:
            raise SystemExit(f"the job without faults failed, see {self.directory / 'quiet.out'}")
        rows, total = weights_of(output)
        self.made = rows, total.item()
        self.evaluated = self.metrics(quiet)
        return data

    def settings(self, run: Run, data: Path) -> dict[str, object]:
        """Train with one seed: all runs must make the same."""
        return {
            **super().settings(run, data),
            "loss": "squared",
            "optimizer": "adagrad",
            "use_async": "false",
            "grads_to_wait": 4,
            "threads_per_worker": 1,
            "seed": 1,
        }

    def expected(self) -> tuple[np.ndarray, float]:
        """Return what the job without faults has made."""
        return self.made

    def expected_metrics(self) -> dict[str, float]:
        """Return what the job without faults has evaluated."""
        return self.evaluated


def weights_of(model: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows and the sum of an exported model."""
    import keras

    loaded = keras.models.load_model(model)
    (rows,), (total,) = (loaded.get_layer(name).get_weights() for name in ("rows", "total"))
    return rows, total


def empty_and_hold(directory: Path) -> None:
    """Make a directory empty, and this process's own for as long as it lives. Raises SystemExit if another process holds it."""
    directory.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise SystemExit(
            f"another run of chaos uses {directory}: wait for its end, or give this one a --directory of its own"
        ) from None
    for entry in directory.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink()


def belongs(process: psutil.Process, directory: Path) -> bool:
    try:
        return process.environ().get("ELASTICDL_JOB", "").startswith(str(directory))
    except psutil.Error:
        return False


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--faults", type=int, default=200, help="faults in all (200)")
    parser.add_argument("--minutes", type=float, default=60.0, help="longest time (60)")
    parser.add_argument("--seed", type=int, default=0, help="seed of all choices (0)")
    parser.add_argument(
        "--directory", type=Path, default=ROOT / ".chaos", help="where everything is kept (.chaos)"
    )
    modes = parser.add_mutually_exclusive_group()
    modes.add_argument("--servers", action="store_true", help="jobs with parameter servers")
    modes.add_argument(
        "--steps", action="store_true", help="jobs with parameter servers that accumulate synchronously"
    )
    modes.add_argument(
        "--programs",
        action="store_true",
        help="programs with loops of their own, in NumPy, PyTorch and JAX by turns",
    )
    modes.add_argument(
        "--models", action="store_true", help="model files of PyTorch, JAX and the reference by turns"
    )
    parser.add_argument(
        "--hosts",
        action="store_true",
        help="workers exchange gradients as if they were on two hosts (not with parameter servers)",
    )
    options = parser.parse_args()
    if options.hosts:
        if options.steps or options.servers:
            parser.error("--hosts: workers with parameter servers exchange no gradients")
        found = os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = os.pathsep.join([str(HOSTS), *([found] if found else [])])
    kind: type[Harness] = Harness
    if options.steps or options.servers:
        kind = StepsHarness if options.steps else PsHarness
    elif options.programs or options.models:
        kind = ProgramHarness if options.programs else ModelsHarness
    every, more = (PS, MORE_PS) if issubclass(kind, PsHarness) else (GROUP, MORE)
    quota = quotas(options.faults, every, more)
    harness = kind(quota, options.minutes * 60, options.seed, options.directory.resolve())
    harness.work()
    print(harness.table())
    print(f"\n{'passed' if harness.passed else 'FAILED'}; everything is kept in {harness.directory}")
    return 0 if harness.passed else 1


if __name__ == "__main__":
    sys.exit(main())
