"""One job of an experiment: its data, the command that submits it, and what it leaves.

The audit says which chunks are in committed steps; when each was computed is what the workers wrote down themselves.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.elastic.cluster import UNIT
from elasticdl.audit import audit
from tests.kubernetes.image import IMAGE

ROOT = Path(__file__).resolve().parents[2]
ELASTICDL = str(Path(sys.executable).with_name("elasticdl"))


@dataclass(frozen=True, slots=True)
class Chunk:
    """One chunk that a worker computed, in seconds since the beginning.

    Attributes:
        worker: the process.
        begin: of computing.
        end: of computing.
        counts: it is in a committed step.
    """

    worker: str
    begin: float
    end: float
    counts: bool


@dataclass(frozen=True, slots=True)
class Job:
    """What was found of one job; times in seconds since the beginning.

    Attributes:
        name: its name.
        submitted: when a person wanted it to start.
        first_step: when the last chunk of its first committed step was done.
        ended: when its command had ended.
        steps: committed steps.
        redone: of them those that were tried in more than one view.
        members: most workers in one of them.
        overhead: median time of a step beyond its chunk, in the second half of its steps.
        chunks: all that were computed.
    """

    name: str
    submitted: float
    first_step: float
    ended: float
    steps: int
    redone: int
    members: int
    overhead: float
    chunks: tuple[Chunk, ...]

    @property
    def again(self) -> int:
        """Return how many chunks were computed that no committed step has."""
        return sum(not chunk.counts for chunk in self.chunks)


class Running:
    """The command of a job that was submitted."""

    def __init__(self, name: str, folder: Path, records: int, chunk_seconds: float) -> None:
        """Make the data: every record is its own number, and takes the time of a chunk. Nothing runs before `start`."""
        self.name = name
        self.folder = folder / name
        self._records, self._chunk_seconds = records, chunk_seconds
        self._process: subprocess.Popen[str] | None = None
        self.chunks = self.folder / "chunks"
        self.chunks.mkdir(parents=True)
        for path in (self.folder, self.chunks):
            path.chmod(0o777)  # a volume that the pods' user may write to
        numbers = "".join(f"{number}\n" for number in range(records))
        (self.folder / "numbers.csv").write_text(f"number\n{numbers}")

    def start(self, settings: Mapping[str, object]) -> None:
        """Start the command, with what an experiment says of workers and priority."""
        given = {
            "image_name": IMAGE,
            "image_pull_policy": "Never",
            "job_name": self.name,
            "master_resource_request": "cpu=50m,memory=200Mi",
            "worker_resource_request": f"cpu=50m,memory=400Mi,{UNIT}=1",
            "volume": f"host_path={self.folder},mount_path=/data",
            "envs": f"CHUNKS=/data/chunks,CHUNK_SECONDS={self._chunk_seconds}",
            "model_zoo": ROOT / "benchmarks" / "models",
            "model_def": "paced.custom_model",
            "training_data": "/data/numbers.csv",
            # Each worker takes one record a step, and the number of workers may change with every step.
            "minibatch_size": 1,
            "num_minibatches_per_task": 1,
            "shuffle": "false",
            "jit_compile": "off",
            "audit": "/data/audit",
            "summary": self.folder / "summary.json",
            **settings,
        }
        command = [ELASTICDL, "train", *(f"--{setting}={value}" for setting, value in given.items())]
        with open(self.folder / "output.txt", "w") as output:
            self._process = subprocess.Popen(command, stdout=output, stderr=output, text=True)

    @property
    def started(self) -> bool:
        """Tell whether it was submitted."""
        return self._process is not None

    @property
    def ended(self) -> bool:
        """Tell whether the command has ended. Raises RuntimeError with its last words if it failed."""
        code = None if self._process is None else self._process.poll()
        if code:
            raise RuntimeError(f"{self.name} failed:\n{(self.folder / 'output.txt').read_text()[-4000:]}")
        return code == 0

    def kill(self) -> None:
        """End the command; the job goes on."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def read(self, began: float, submitted: float, ended: float, *, whole: bool = True) -> Job:
        """Read what the job left; `whole`: each record has to count once, otherwise none may twice.

        Raises AuditFailed if the proof does not hold, RuntimeError if records are missing.
        """
        report = audit(self.folder / "audit")
        if whole and (not report.complete or [epoch.counted for epoch in report.epochs] != [self._records]):
            raise RuntimeError(f"{self.name}: the audit does not find each of {self._records} records once")
        steps = committed(self.folder / "audit")
        counted = {pair: step for step, pairs in enumerate(steps) for pair in pairs}
        chunks, ends = [], [0.0] * len(steps)
        for path in self.chunks.iterdir():
            computed = computed_by(path)
            last = {record: number for number, (record, _, _) in enumerate(computed)}
            for number, (record, begin, end) in enumerate(computed):
                # Of a record that it computed twice, the last time is in the step.
                step = counted.get((path.name, record)) if last[record] == number else None
                chunks.append(Chunk(path.name, begin - began, end - began, step is not None))
                if step is not None:
                    ends[step] = max(ends[step], end - began)
        if sum(chunk.counts for chunk in chunks) != len(counted):
            raise RuntimeError(
                f"{self.name}: the workers have not written down when they computed each chunk"
            )
        later = range(len(ends) // 2 + 1, len(ends) - 1)
        overheads = [ends[step] - ends[step - 1] - self._chunk_seconds for step in later]
        return Job(
            name=self.name,
            submitted=submitted,
            first_step=ends[0],
            ended=ended,
            steps=len(steps),
            redone=report.redone_steps,
            members=max(len({worker for worker, _ in pairs}) for pairs in steps),
            overhead=statistics.median(overheads) if overheads else 0.0,
            chunks=tuple(chunks),
        )


def committed(directory: Path) -> list[Sequence[tuple[str, int]]]:
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


def computed_by(path: Path) -> list[tuple[int, float, float]]:
    """Return (record, begin, end) of all that a worker computed; a line that its death has cut is none."""
    *whole, _ = path.read_text().split("\n")
    lines = (line.split() for line in whole)
    return [(int(record), float(begin), float(end)) for record, begin, end in lines]
