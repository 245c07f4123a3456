"""Jobs of real processes on real data, run as a person runs them."""

from __future__ import annotations

import contextlib
import csv
import functools
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

ROOT = Path(__file__).resolve().parents[2]
ELASTICDL = str(Path(sys.executable).with_name("elasticdl"))
SECONDS = 600
"""Longest time of one job; a bound, not an expectation."""
RECORDS, EPOCHS = 2000, 2
"""Of a job that counts ids."""
IDS, WIDTH = 3000, 2
"""Of its table."""


@pytest.fixture(scope="session")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with `train` and `heldout` TFRecord files of real digits."""
    return make("mnist", tmp_path_factory.mktemp("digits"))


@pytest.fixture(scope="session")
def iris(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the iris data as CSV, made once: each folder of tests that imports this fixture has one of its own."""
    folder = tmp_path_factory.getbasetemp() / "flowers"
    return folder if folder.exists() else make("iris", folder)


def make(name: str, directory: Path, *options: str) -> Path:
    subprocess.run(
        [sys.executable, str(ROOT / f"model_zoo/{name}/make_data.py"), str(directory), *options],
        check=True,
        timeout=120,
    )
    return directory


@dataclass
class Job:
    """A job that runs, or ran."""

    process: subprocess.Popen[str]
    state: Path
    summary_path: Path

    def wait(self) -> Result:
        out, err = self.process.communicate(timeout=SECONDS)
        summary = json.loads(self.summary_path.read_text()) if self.summary_path.exists() else {}
        logs = "\n".join(
            f"--- {path.name}\n{path.read_text(errors='replace')[-4000:]}"
            for path in sorted(self.state.glob("**/logs/*.log"))
        )
        return Result(self.process.returncode, out, err, summary, logs)


@dataclass
class Result:
    """How a job ended."""

    code: int
    out: str
    err: str
    summary: dict[str, Any]
    logs: str

    def succeeded(self) -> Result:
        assert self.code == 0, f"exit code {self.code}\n{self.err}\n{self.out}\n{self.logs}"
        return self


Start = Callable[..., Job]


@dataclass(frozen=True)
class SmallDisk:
    """A file system of its own, which can be filled."""

    path: Path

    def fill(self) -> None:
        with contextlib.suppress(OSError), (self.path / "filling").open("wb", buffering=0) as file:
            for size in (65536, 4096, 1):
                with contextlib.suppress(OSError):
                    while file.write(bytes(size)):
                        pass

    def free(self) -> None:
        (self.path / "filling").unlink()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[SmallDisk]:
    path = tmp_path / "small"
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(path)]
    if os.geteuid() or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("no right to mount a small file system here")
    yield SmallDisk(path)
    subprocess.run(["umount", "-l", str(path)], check=True)


@contextlib.contextmanager
def starting(folder: Path) -> Iterator[Start]:
    """Start jobs in a folder: settings as keyword arguments, to train unless told otherwise; nothing of them may be left at the end.

    They have no spare process unless it is asked for: it imports a framework in vain in a job that loses one worker and then ends.
    """
    state = folder / "state"
    jobs: list[Job] = []
    inherited = {**os.environ, "XDG_STATE_HOME": str(state), "TMPDIR": str(folder)}
    inherited.pop("XDG_RUNTIME_DIR", None)

    def begin(
        environment: dict[str, str] | None = None,
        within: Sequence[str] = (),
        command: str = "train",
        words: Sequence[str] = (),
        **settings: object,
    ) -> Job:
        has_zoo = command != "run" and "job_command" not in settings
        of_model = {"model_zoo": ROOT / "model_zoo", "spare_process": False} if has_zoo else {}
        settings = {**of_model, "job_name": "test", **settings}
        summary = folder / f"summary-{len(jobs)}.json"
        line = [
            *within,
            ELASTICDL,
            command,
            f"--summary={summary}",
            *(f"--{name}={value}" for name, value in settings.items()),
            *words,
        ]
        process = subprocess.Popen(
            line,
            cwd=folder,
            env={**inherited, **(environment or {})},
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        jobs.append(Job(process, state, summary))
        return jobs[-1]

    yield begin
    for job in jobs:
        if job.process.poll() is None:
            job.process.kill()
            job.process.communicate()
    left = orphans(str(state))
    for process in left:
        process.kill()
    assert not left, f"processes of the job are left: {left}"


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start jobs of the test."""
    with starting(tmp_path) as begin:
        yield begin


@pytest.fixture
def integers(tmp_path: Path) -> np.ndarray:
    """Write `integers.csv`, rows of small integers, of which every sum is exact; return them."""
    draw = random.Random(5)
    rows = [[draw.randint(-8, 8) for _ in range(4)] for _ in range(1024)]
    with (tmp_path / "integers.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["a", "b", "c", "y"], *rows])
    return np.array(rows, np.float32)


def write_ids(folder: Path) -> np.ndarray:
    """Write a file of ids of which few come often and many once."""
    drawn = np.random.default_rng(3).zipf(1.3, RECORDS) % IDS
    (folder / "ids.csv").write_text("id\n" + "".join(f"{one}\n" for one in drawn))
    return drawn


@pytest.fixture
def ids(tmp_path: Path) -> np.ndarray:
    """Write a file of ids for the test."""
    return write_ids(tmp_path)


def counting(start: Start, folder: Path) -> Start:
    """Start jobs that count the ids of a folder, and write nothing."""
    return functools.partial(
        start,
        environment={"GO": str(folder / "go")},
        model_zoo=Path(__file__).parent / "zoo",
        model_def="tallied.custom_model",
        training_data=folder / "ids.csv",
        num_workers=2,
        num_ps_pods=2,
        num_epochs=EPOCHS,
        minibatch_size=16,
        num_minibatches_per_task=4,
        embedding_threshold=0,
        witness_seconds=2,
    )


@pytest.fixture
def plain(start: Start, ids: np.ndarray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    """Start jobs of the test that count ids, and write nothing."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return counting(start, tmp_path)


def orphans(state: str) -> list[psutil.Process]:
    """Return processes that still belong to a job in `state`, once they had a moment to go: launchers, which start others, first."""
    launchers, mine = [], []
    for process in psutil.process_iter():
        try:
            if process.environ().get("ELASTICDL_JOB", "").startswith(state):
                mine.append(process)
            elif any(word.startswith(state) for word in process.cmdline()):
                launchers.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
    _, alive = psutil.wait_procs(launchers + mine, timeout=10)
    return [process for process in launchers + mine if process in alive]
