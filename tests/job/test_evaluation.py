"""Jobs that evaluate while they train: metrics have the same bits whichever processes are killed, and no step begins before that."""

from __future__ import annotations

import functools
import json
import os
import signal
from pathlib import Path

import psutil
import pytest

from elasticdl.audit import audit
from elasticdl.control.protocol.status import EventKind, JobEvent

from .conftest import Job, Start, starting
from .test_faults import seen

ZOO = Path(__file__).parent / "zoo"
EVERY = 5
EPOCHS = 2
"""Of 120 flowers, in steps of 16."""
GATES = [5, 8, 10, 15, 16]
"""Every fifth step, and the ends of the epochs."""


def judging(start: Start, iris: Path) -> Start:
    """Start jobs that are evaluated while they train."""
    return functools.partial(
        start,
        model_zoo=ZOO,
        model_def="judged.custom_model",
        training_data=iris / "train",
        validation_data=iris / "train",
        evaluation_steps=EVERY,
        num_workers=3,
        num_epochs=EPOCHS,
        minibatch_size=4,
        num_minibatches_per_task=1,
        global_batch_size=16,
        witness_seconds=1,
    )


@pytest.fixture
def begin(start: Start, iris: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    """Start such jobs of the test."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return judging(start, iris)


def run(begin: Start, folder: Path, **settings: object) -> Job:
    folder.mkdir()
    environment = {"GO": str(folder / "go"), "TOLD": str(folder)}
    return begin(environment=environment, audit=folder / "audit", output=folder / "iris.npz", **settings)


def told(folder: Path, name: str = "") -> dict[int, str]:
    """Return what callbacks were given after each step, which is the same in all workers."""
    found: dict[int, str] = {}
    for path in folder.iterdir():
        if path.is_file() and (path.name.isdigit() if not name else path.name.endswith(name)):
            for line in path.read_text().splitlines():
                step, _, rest = line.partition(" ")
                assert found.setdefault(int(step), rest) == rest, (
                    f"two workers were told different things: {line}"
                )
    return found


@pytest.fixture(scope="module")
def quiet(iris: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, object]]:
    """What a job tells, and its summary, when nothing happens to it."""
    place = tmp_path_factory.mktemp("quiet")
    folder = place / "job"
    with starting(place) as start:
        job = run(judging(start, iris), folder)
        (folder / "go").touch()
        return folder, job.wait().succeeded().summary


def test_metrics_are_those_of_each_step_and_the_last_ones_are_in_the_summary(
    quiet: tuple[Path, dict[str, object]],
) -> None:
    folder, summary = quiet
    found = told(folder)
    assert sorted(found) == GATES
    ends = {step: int(rest.split()[1]) for step, rest in found.items()}
    assert ends == {5: 0, 8: 1, 10: 0, 15: 0, 16: 1}
    assert sorted(told(folder, ".epochs")) == [8, 16], "the end of an epoch comes once, after its evaluation"
    assert isinstance(summary["metrics"], dict)
    last = dict(item.split("=") for item in found[16].split()[2:])
    assert {name: value.hex() for name, value in summary["metrics"].items()} == last
    assert set(last) == {"val_loss", "val_accuracy"}


def test_metrics_have_the_same_bits_although_workers_and_the_master_are_killed_while_they_are_computed(
    quiet: tuple[Path, dict[str, object]], begin: Start, tmp_path: Path
) -> None:
    """Evaluations take most of the time here: what is killed at a random moment is killed in one."""
    folder = tmp_path / "disturbed"
    job = run(begin, folder, num_workers="1:3", relaunch_on_worker_failure=100)
    kills, evaluations, master_killed = 0, 0, False
    for item in seen(job):
        if isinstance(item, JobEvent):
            evaluations += item.kind == EventKind.EVALUATED
            continue
        alive = [
            worker.pid
            for worker in item.workers
            if worker.state in ("training", "evaluating") and worker.pid is not None
        ]
        if evaluations == 2 and not master_killed:
            os.kill(master_of(job), signal.SIGKILL)
            master_killed = True
        elif len(alive) >= 2 and kills <= evaluations and evaluations < len(GATES) - 1:
            os.kill(alive[kills % len(alive)], signal.SIGKILL)
            kills += 1
        if evaluations >= len(GATES) - 1:
            (folder / "go").touch()
    summary = job.wait().succeeded().summary
    assert master_killed
    assert kills >= 3
    assert summary["members"]["lost"] >= 3
    assert told(folder) == told(quiet[0])
    assert told(folder, ".epochs") == told(quiet[0], ".epochs")
    assert summary["metrics"] == quiet[1]["metrics"]
    assert summary["digest"] == quiet[1]["digest"]
    report = audit(folder / "audit")
    assert [epoch.counted for epoch in report.epochs] == [120] * EPOCHS


def master_of(job: Job) -> int:
    """Return the process id of the job's master."""
    for process in psutil.Process(job.process.pid).children():
        if "elasticdl.job.master" in " ".join(process.cmdline()):
            return process.pid
    raise AssertionError("the job has no master")


def test_validation_data_that_is_missing_or_empty_is_refused_before_anything_starts(
    begin: Start, tmp_path: Path
) -> None:
    (tmp_path / "none").mkdir()
    (tmp_path / "hollow").touch()
    for data, said in (
        (tmp_path / "missing", "does not exist"),
        (tmp_path / "none", "is empty"),
        (tmp_path / "hollow", "is empty"),
    ):
        result = begin(environment={"GO": "", "TOLD": ""}, validation_data=data).wait()
        assert result.code == 2
        assert "--validation_data" in result.err
        assert said in result.err


def test_a_metric_that_raises_ends_the_job_with_its_line(begin: Start, tmp_path: Path) -> None:
    zoo = tmp_path / "zoo"
    zoo.mkdir()
    text = (ZOO / "judged.py").read_text().replace("labels == np.floor", "labels.no_such_thing + np.floor")
    (zoo / "judged.py").write_text(text)
    result = run(begin, tmp_path / "broken", model_zoo=zoo).wait()
    assert result.code == 2
    assert "no_such_thing" in result.err
    assert "judged.py" in result.err
    assert not (tmp_path / "broken" / "iris.npz").exists()


def test_events_say_what_was_found(begin: Start, tmp_path: Path) -> None:
    folder = tmp_path / "seen"
    job = run(begin, folder)
    (folder / "go").touch()
    result = job.wait().succeeded()
    lines = [line for line in result.err.splitlines() if "evaluation of step" in line]
    assert [int(line.split("step ")[1].split(":")[0]) for line in lines] == GATES
    assert all("val_loss" in line and "val_accuracy" in line for line in lines), json.dumps(lines)
