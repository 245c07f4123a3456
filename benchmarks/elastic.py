"""Two jobs of 13 units each on 24 units: gang, all workers or none, against elastic. Whole jobs in the pods of a real cluster.

Run it alone: `python -m benchmarks.elastic` (root, and what `make setup-cluster` installs; not part of `make bench`, because it takes two
and a half hours). An extended resource of the two nodes stands for a CPU, and a chunk takes a fixed time, not computing; scheduler,
masters, pods and the data that they account for are real. What counts as used is the time of chunks that the audit finds in committed
steps, by the workers' own clocks: start-up, waiting for others and the cost of steps do not.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from elasticdl.audit import audit
from elasticdl.cluster.kubernetes import rbac
from tests.kubernetes import testbed
from tests.kubernetes.image import IMAGE, build_image, missing_tools
from tests.kubernetes.testbed import Testbed

ROOT = Path(__file__).resolve().parent.parent
ELASTICDL = str(Path(sys.executable).with_name("elasticdl"))
BENCH = ROOT / ".bench"
UNIT = "example.com/unit"
UNITS, WANTED = 24, 13
"""Units of the cluster, and how many each job wants."""
JOBS = ("first", "second")
APART_SECONDS = 5.0
"""Between the two submissions: the first job's pods come first into the scheduler's queue. Otherwise a gang could wait for ever, with
twelve pods each."""
START_SECONDS = 600.0
"""Patience beyond what the jobs take if they run one after the other."""
SAMPLE_SECONDS = 5.0
SHORTER, USED = 0.27, 0.90
"""What must be: the elastic makespan by this share shorter than the gang's, and this share of all unit-seconds in committed steps."""


@dataclass(frozen=True, slots=True)
class Way:
    """How a job takes its workers, as `--num_workers` says it."""

    name: str
    num_workers: str


WAYS = (Way("gang", f"{WANTED}:{WANTED}"), Way("elastic", f"1:{WANTED}"))


@dataclass(frozen=True, slots=True)
class Interval:
    """One chunk of a committed step, in seconds since the first submission."""

    begin: float
    end: float


@dataclass(frozen=True, slots=True)
class Job:
    """What was found of one job; times in seconds since the first submission.

    Attributes:
        name: its name.
        submitted: when its command was started.
        first_step: when the last chunk of its first committed step was done.
        ended: when its command had ended.
        steps: committed steps.
        members: most workers in one of them.
        overhead: median time of a step beyond its chunk, in the second half of its steps.
        chunks: of committed steps.
    """

    name: str
    submitted: float
    first_step: float
    ended: float
    steps: int
    members: int
    overhead: float
    chunks: tuple[Interval, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """Both jobs of one way, and the units that their pods held: (seconds, per job)."""

    way: str
    jobs: tuple[Job, ...]
    held: tuple[tuple[float, tuple[int, ...]], ...]
    idle: float
    """Share of the machine's processors that nobody used meanwhile."""

    @property
    def makespan(self) -> float:
        """Return the time from the first submission to the last end."""
        return max(job.ended for job in self.jobs)

    @property
    def used(self) -> float:
        """Return the share of all unit-seconds that lie inside committed steps."""
        return sum(one.end - one.begin for job in self.jobs for one in job.chunks) / (UNITS * self.makespan)


# ------------------------------------------------------------------ running


def prepare(bed: Testbed, archive: Path) -> None:
    """Give the nodes the image and their units, and the masters their rights."""
    for node in bed.nodes:
        node.load(archive)
        patch = {"op": "add", "path": f"/status/capacity/{UNIT.replace('/', '~1')}", "value": f"{UNITS // 2}"}
        bed.kubectl(
            *("patch", "node", node.name, "--subresource=status", "--type=json"),
            f"--patch={json.dumps([patch])}",
        )
        bed.kubectl("create", "-f", "-", stdin=json.dumps(_first_use(node.name)))
    for body in rbac.objects("default"):
        bed.kubectl("apply", "-f", "-", stdin=json.dumps(body))
    pods = [f"pod/first-use-{node.name}" for node in bed.nodes]
    bed.kubectl("wait", "--for=jsonpath={.status.phase}=Succeeded", f"--timeout={START_SECONDS:.0f}s", *pods)
    bed.kubectl("delete", *pods)


def _first_use(node: str) -> dict[str, Any]:
    """Return a pod that uses the image on a node once: unpacking it takes a minute, which is no part of any job."""
    container = {
        "name": "import",
        "image": IMAGE,
        "imagePullPolicy": "Never",
        "command": ["python3", "-c", "import elasticdl, keras"],
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"first-use-{node}"},
        "spec": {
            "nodeName": node,
            "restartPolicy": "Never",
            "containers": [container],
            "volumes": [{"name": "tmp", "emptyDir": {}}],
        },
    }


def write_numbers(path: Path, count: int) -> None:
    """Write the data of a job: every record is its own number."""
    path.write_text("number\n" + "".join(f"{number}\n" for number in range(count)))


def submit(bed: Testbed, way: Way, name: str, chunk_seconds: float, folder: Path) -> subprocess.Popen[str]:
    """Start the command of one job, whose data and records lie in `folder`."""
    settings = {
        "image_name": IMAGE,
        "image_pull_policy": "Never",
        "job_name": name,
        "num_workers": way.num_workers,
        "master_resource_request": "cpu=50m,memory=200Mi",
        "worker_resource_request": f"cpu=50m,memory=400Mi,{UNIT}=1",
        "volume": f"host_path={folder},mount_path=/data",
        "envs": f"CHUNKS=/data/chunks,CHUNK_SECONDS={chunk_seconds}",
        "model_zoo": ROOT / "benchmarks" / "models",
        "model_def": "paced.custom_model",
        "training_data": "/data/numbers.csv",
        # Each worker takes one record a step, and the number of workers may change with every step.
        "minibatch_size": 1,
        "num_minibatches_per_task": 1,
        "shuffle": "false",
        "jit_compile": "off",
        "audit": "/data/audit",
        "summary": folder / "summary.json",
    }
    command = [ELASTICDL, "train", *(f"--{setting}={value}" for setting, value in settings.items())]
    environment = {**os.environ, "KUBECONFIG": str(bed.kubeconfig)}
    with open(folder / "output.txt", "w") as output:
        return subprocess.Popen(command, env=environment, stdout=output, stderr=output, text=True)


def measure(bed: Testbed, way: Way, seconds: float, chunk_seconds: float, folder: Path) -> Outcome:
    """Run both jobs; raises RuntimeError if one fails or takes too long, AuditFailed if its records are not in order."""
    count = WANTED * max(1, round(seconds / chunk_seconds))
    for name in JOBS:
        (folder / name / "chunks").mkdir(parents=True)
        for path in (folder / name, folder / name / "chunks"):
            path.chmod(0o777)  # a volume that the pods' user may write to
        write_numbers(folder / name / "numbers.csv", count)
    began, idle_before = time.time(), _processors()
    processes: dict[str, subprocess.Popen[str]] = {}
    submitted: dict[str, float] = {}
    ended: dict[str, float] = {}
    held = []
    try:
        for name in JOBS:
            time.sleep(max(0.0, began + len(processes) * APART_SECONDS - time.time()))
            submitted[name] = time.time() - began
            processes[name] = submit(bed, way, name, chunk_seconds, folder / name)
        until = began + START_SECONDS + 3 * seconds
        while len(ended) < len(JOBS):
            units = units_held(bed)
            if units is not None:
                held.append((time.time() - began, units))
            for name in _first_end(processes, ended, min(until, time.time() + SAMPLE_SECONDS)):
                ended[name] = time.time() - began
                if processes[name].returncode:
                    raise RuntimeError(
                        f"{way.name}: {name} failed:\n{(folder / name / 'output.txt').read_text()[-4000:]}"
                    )
            if time.time() >= until:
                raise RuntimeError(f"{way.name}: not done after {until - began:.0f} s")
    finally:
        for process in processes.values():
            process.kill()
            process.wait()
        stop(bed)
    idle, total = (after - before for after, before in zip(_processors(), idle_before, strict=True))
    jobs = tuple(
        read_job(name, folder / name, count, chunk_seconds, began, submitted[name], ended[name])
        for name in JOBS
    )
    return Outcome(way.name, jobs, tuple(held), idle / total)


def _first_end(
    processes: Mapping[str, subprocess.Popen[str]], ended: Mapping[str, float], until: float
) -> list[str]:
    """Wait until a process ends that had not, but not longer than `until`; return which have."""
    while True:
        found = [
            name for name, process in processes.items() if name not in ended and process.poll() is not None
        ]
        if found or time.time() >= until:
            return found
        time.sleep(0.1)


def units_held(bed: Testbed) -> tuple[int, ...] | None:
    """Return how many units the pods of each job hold; None if the API has not answered in time."""
    text = bed.control_plane.get("/api/v1/namespaces/default/pods?labelSelector=elasticdl.org/role%3Dworker")
    if text is None:
        return None
    holding = [
        pod["metadata"]["labels"]["elasticdl.org/job-name"]
        for pod in json.loads(text)["items"]
        if pod["spec"].get("nodeName") and pod["status"]["phase"] in ("Pending", "Running")
    ]
    return tuple(holding.count(name) for name in JOBS)


def stop(bed: Testbed) -> None:
    """Remove what the jobs made."""
    for name in JOBS:
        bed.kubectl("delete", "job", name, "--ignore-not-found", "--cascade=foreground")


def _processors() -> tuple[float, float]:
    """Return the idle and the whole time of the machine's processors so far."""
    times = [float(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return times[3] + times[4], sum(times)


# ------------------------------------------------------------------ reading


def read_job(
    name: str, folder: Path, count: int, chunk_seconds: float, began: float, submitted: float, ended: float
) -> Job:
    """Read what a job left: the audit proves that every record counts once, the workers' files say when it was computed."""
    report = audit(folder / "audit")
    if not report.complete or [epoch.counted for epoch in report.epochs] != [count]:
        raise RuntimeError(f"{name}: the audit does not find each of {count} records once")
    steps = committed(folder / "audit")
    times = {path.name: chunk_times(path, began) for path in (folder / "chunks").iterdir()}
    found = [[times[worker][record] for worker, record in chunks] for chunks in steps]
    ends = [max(one.end for one in chunks) for chunks in found]
    later = range(len(ends) // 2 + 1, len(ends) - 1)
    overheads = sorted(ends[step] - ends[step - 1] - chunk_seconds for step in later)
    return Job(
        name=name,
        submitted=submitted,
        first_step=ends[0],
        ended=ended,
        steps=len(steps),
        members=max(len({worker for worker, _ in chunks}) for chunks in steps),
        overhead=overheads[len(overheads) // 2] if overheads else 0.0,
        chunks=tuple(one for chunks in found for one in chunks),
    )


def committed(directory: Path) -> list[list[tuple[str, int]]]:
    """Return, per committed step, the (worker, record) pairs of its chunks: of each step the highest view that committed it counts."""
    views: dict[int, int] = {}
    given: dict[tuple[int, int], list[tuple[str, int]]] = {}
    for path in directory.glob("*.audit"):
        worker = path.stem.rpartition("-")[0]
        for line in path.read_text().splitlines():
            kind, *fields = line.split()
            if kind == "committed":
                view, step = int(fields[0]), int(fields[1])
                views[step] = max(view, views.get(step, 0))
            elif kind == "contributed":
                view, step, _, _, task = map(int, fields[:5])
                given.setdefault((view, step), []).append((worker, task))
    return [given[view, step] for step, view in sorted(views.items())]


def chunk_times(path: Path, began: float) -> dict[int, Interval]:
    """Return when a worker computed each record; of one that it computed twice, the last time is in the step."""
    lines = (line.split() for line in path.read_text().splitlines())
    return {int(number): Interval(float(begin) - began, float(end) - began) for number, begin, end in lines}


# ------------------------------------------------------------------ telling


def verdicts(outcomes: Sequence[Outcome]) -> dict[str, bool]:
    """Return what must be, and whether it is."""
    by_way = {outcome.way: outcome for outcome in outcomes}
    found = {}
    elastic, gang = by_way.get("elastic"), by_way.get("gang")
    if elastic is not None:
        found[f"elastic: at least {USED:.0%} of all unit-seconds in committed steps"] = elastic.used >= USED
        found[f"elastic: both jobs train with {WANTED} workers at some time"] = all(
            job.members == WANTED for job in elastic.jobs
        )
    if gang is not None:
        first, second = gang.jobs
        found["gang: the second job commits nothing before the first has ended"] = (
            second.first_step > first.ended
        )
    if elastic is not None and gang is not None:
        shorter = 1 - elastic.makespan / gang.makespan
        found[f"elastic makespan at least {SHORTER:.0%} shorter ({shorter:.1%})"] = shorter >= SHORTER
    return found


def table(outcomes: Sequence[Outcome]) -> str:
    """Return the figures as a Markdown table."""
    lines = [
        "| | makespan | in committed steps | job | waits for its first step | ends after | most workers | beyond its chunk, a step takes |",
        "| --- " * 8 + "|",
    ]
    for outcome in outcomes:
        start = f"| {outcome.way} | {outcome.makespan:.0f} s | {outcome.used:.1%} "
        for job in outcome.jobs:
            lines.append(
                f"{start}| {job.name} | {job.first_step - job.submitted:.0f} s | {job.ended - job.submitted:.0f} s "
                f"| {job.members} | {job.overhead * 1e3:.0f} ms |"
            )
            start = "| | | "
    return "\n".join(lines)


def draw(outcomes: Sequence[Outcome], path: Path, resolution: float) -> None:
    """Draw units in committed steps over time, one row for each way; pauses shorter than `resolution` are filled."""
    import matplotlib as mpl
    import numpy as np

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "elasticdl"  # the same figure for the same figures
    from matplotlib import pyplot

    end = max(outcome.makespan for outcome in outcomes)
    figure, rows = pyplot.subplots(
        len(outcomes), 1, sharex=True, figsize=(8, 2.2 * len(outcomes)), squeeze=False
    )
    edges = np.arange(0, end + 2 * resolution, resolution)
    for axes, outcome in zip(rows[:, 0], outcomes, strict=True):
        layers = []
        for job in outcome.jobs:
            total = np.zeros(len(edges) - 1)
            for one in job.chunks:
                total += np.clip(np.minimum(edges[1:], one.end) - np.maximum(edges[:-1], one.begin), 0, None)
            layers.append(total / resolution)
        axes.stackplot(
            edges[:-1], layers, step="post", labels=[f"{job.name} job" for job in outcome.jobs], linewidth=0
        )
        times, units = zip(*outcome.held, strict=True)
        axes.step(
            times,
            [sum(one) for one in units],
            where="post",
            color="black",
            linewidth=0.8,
            label="held by pods",
        )
        axes.axhline(UNITS, color="grey", linestyle=":", linewidth=0.8)
        axes.axvline(outcome.makespan, color="grey", linewidth=0.8)
        axes.set_title(
            f"{outcome.way}: {outcome.makespan:.0f} s, {outcome.used:.1%} used", fontsize=10, loc="left"
        )
        axes.set(ylabel="units", ylim=(0, UNITS + 2), xlim=(0, end * 1.01))
    figure.legend(*rows[0, 0].get_legend_handles_labels(), fontsize=8, loc="upper right", ncols=3)
    rows[-1, 0].set_xlabel("seconds since the first submission")
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def report(outcomes: Sequence[Outcome], facts: Mapping[str, Any], chunk_seconds: float) -> bool:
    """Print the figures, write them to `.bench`, and tell whether all that must be is."""
    BENCH.mkdir(exist_ok=True)
    body = {**facts, "outcomes": [asdict(o) | {"makespan": o.makespan, "used": o.used} for o in outcomes]}
    (BENCH / "elastic.json").write_text(json.dumps(body))
    draw(outcomes, BENCH / "elastic.svg", max(2 * chunk_seconds, outcomes[0].makespan / 300))
    print(table(outcomes))
    print()
    for outcome in outcomes:
        print(f"{outcome.way}: the machine's processors were idle for {outcome.idle:.0%} of the time")
    found = verdicts(outcomes)
    for what, holds in found.items():
        print(f"{'ok   ' if holds else 'SHORT'} {what}")
    print(f"the figure is {BENCH / 'elastic.svg'}, all times are in {BENCH / 'elastic.json'}")
    return all(found.values())


def main() -> int:
    """Run both ways in a cluster of its own and report; the exit code is 1 if something is short of what must be."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.elastic",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--seconds", type=float, default=2700.0, help="time of one job's chunks with 13 workers (2700)"
    )
    parser.add_argument("--chunk-seconds", type=float, default=8.0, help="time of one chunk (8)")
    parser.add_argument("--way", choices=[way.name for way in WAYS], help="one of the two ways alone")
    parser.add_argument(
        "--image", type=Path, help="archive of the image; built if not given, which takes minutes"
    )
    options = parser.parse_args()
    reason = testbed.missing() or ("" if options.image else missing_tools())
    if reason:
        print(f"benchmarks.elastic: {reason}", file=sys.stderr)
        return 2
    folder = Path(tempfile.mkdtemp(prefix="edl-elastic-"))
    folder.chmod(0o755)
    try:
        archive = options.image or build_image(folder)
        with Testbed() as bed:
            prepare(bed, archive)
            outcomes = [
                measure(bed, way, options.seconds, options.chunk_seconds, folder / way.name)
                for way in WAYS
                if options.way in (None, way.name)
            ]
        facts = {"seconds": options.seconds, "chunk_seconds": options.chunk_seconds}
        return 0 if report(outcomes, facts, options.chunk_seconds) else 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
