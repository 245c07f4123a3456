"""Checkpoints of synchronous jobs: another job continues from one exactly where it was, with any number of workers."""

from __future__ import annotations

import functools
import json
import os
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from elasticdl.audit import audit
from elasticdl.checkpoint import layout as checkpoints
from elasticdl.checkpoint.comparing import compare
from elasticdl.checkpoint.manifest import NAME
from elasticdl.control.protocol.status import EventKind, JobEvent, JobStatus
from elasticdl.errors import BadInput
from elasticdl.job.submit import prepare
from elasticdl.spec import edge
from elasticdl.tools.checkpoint import listed, shown

from .conftest import Job, Result, SmallDisk, Start, starting
from .test_evaluation import GATES, ZOO, master_of, told
from .test_faults import at_step, kill, seen, training

LAST = 16
"""Steps of two epochs of 120 flowers, sixteen a step."""


def exactly(start: Start, iris: Path) -> Start:
    """Start jobs whose sums are exact, so that the last bits do not depend on who makes them."""
    return functools.partial(
        start,
        model_zoo=ZOO,
        model_def="steady.custom_model",
        training_data=iris / "train",
        num_workers=2,
        num_epochs=2,
        minibatch_size=4,
        num_minibatches_per_task=1,
        global_batch_size=16,
        witness_seconds=1,
    )


@pytest.fixture
def begin(start: Start, iris: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    """Start jobs of the test."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return exactly(start, iris)


def evaluated(iris: Path) -> dict[str, object]:
    """Return the settings of jobs that evaluate, which changes nothing of what they learn."""
    return {"validation_data": iris / "train", "evaluation_steps": 5}


@dataclass(frozen=True)
class Undisturbed:
    """How a job ended that nothing disturbed, where it told of its evaluations, and where its checkpoints are."""

    result: Result
    folder: Path
    checkpoints: Path


@pytest.fixture(scope="module")
def undisturbed(iris: Path, tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    """A job that nothing disturbed, for all tests of this file; it keeps its last checkpoint and its best one."""
    folder = tmp_path_factory.mktemp("undisturbed")
    directory = folder / "checkpoints"
    kept = {"checkpoint_dir": directory, "checkpoint_best": "val_loss", "keep_checkpoint_max": 1}
    with starting(folder) as start:
        job = run(exactly(start, iris), folder / "whole", **kept, **evaluated(iris))
        result = job.wait().succeeded()
    return Undisturbed(result, folder / "whole", directory)


def run(begin: Start, folder: Path, *, slow: bool = False, step: float = 0.0, **settings: object) -> Job:
    """Start a job; `slow`: its evaluations last until there is a file `go`; `step`: seconds of a step."""
    folder.mkdir()
    if not slow:
        (folder / "go").touch()
    environment = {"GO": str(folder / "go"), "TOLD": str(folder), "STEP": str(step)}
    return begin(environment=environment, audit=folder / "audit", **settings)


def digest(result: Result) -> object:
    return result.succeeded().summary["digest"]


def whole(directory: Path) -> dict[int, Path]:
    """Read all checkpoints of a directory; return their folders by step."""
    found: dict[int, Path] = {}
    for number in checkpoints.numbers(directory):
        folder = checkpoints.folder_of(directory, number)
        manifest = checkpoints.read_of_group(folder)
        compare(manifest)
        found[manifest.state.step] = folder
    assert not list(directory.glob(".*")), "a job leaves no drafts"
    return found


@pytest.fixture(scope="module")
def at_steps(iris: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Checkpoints of a job that has ended after 11 steps, by step, for all tests of this file."""
    folder = tmp_path_factory.mktemp("steps")
    directory = folder / "checkpoints"
    with starting(folder) as start:
        job = run(
            exactly(start, iris),
            folder / "first",
            checkpoint_dir=directory,
            checkpoint_steps=1,
            keep_checkpoint_max=0,
            max_step=11,
            step=0.5,
            **evaluated(iris),
        )
        summary = job.wait().succeeded().summary
    found = whole(directory)
    assert {5, 8, 11} <= found.keys(), "half a second is enough for a checkpoint"
    assert summary["checkpoint"] == str(found[11])
    return found


def test_a_job_goes_on_from_any_step_with_another_number_of_workers(
    begin: Start, undisturbed: Undisturbed, at_steps: dict[int, Path], iris: Path, tmp_path: Path
) -> None:
    found = at_steps
    for step, workers in ((5, 1), (8, 3), (11, 1)):  # at a gate, at an epoch's end, and between
        folder = tmp_path / f"from-{step}"
        job = run(begin, folder, checkpoint_dir_for_init=found[step], num_workers=workers, **evaluated(iris))
        result = job.wait()
        assert digest(result) == digest(undisturbed.result), f"from step {step}"
        assert result.summary["resumed_from"] == str(found[step])
        assert result.summary["steps"] == LAST
        assert result.summary["metrics"] == undisturbed.result.summary["metrics"]
        after = [gate for gate in GATES if gate > step]
        tells = told(folder)
        assert [gate for gate in tells if gate > step] == after
        assert {gate: tells[gate] for gate in after} == {
            gate: told(undisturbed.folder)[gate] for gate in after
        }
        report = audit(folder / "audit")
        assert report.complete
        assert report.records == 240 - sum(16 if one % 8 else 8 for one in range(1, step + 1))
        assert f"left at {found[step] / NAME}" in report.statement


def test_a_job_that_has_ended_goes_on_for_another_epoch_with_other_minibatches(
    begin: Start, tmp_path: Path
) -> None:
    directory = tmp_path / "checkpoints"
    run(begin, tmp_path / "first", num_epochs=1, num_workers=1, checkpoint_dir=directory).wait().succeeded()
    (line,) = listed(directory)
    assert "8 steps, 1 epoch, 120 records" in line
    assert line.endswith("all files are there")
    lines = list(shown(directory))
    assert lines[-1].split(maxsplit=1) == ["state", "whole: all checksums hold"]
    assert any(row.split() == ["to", "be", "resumed", "with", "any", "data"] for row in lines)
    job = run(
        begin,
        tmp_path / "second",
        checkpoint_dir=directory,
        checkpoint_dir_for_init=directory,
        minibatch_size=5,
        global_batch_size=10,
        seed=7,
        num_workers=2,
    )
    summary = job.wait().succeeded().summary
    assert summary["steps"] == 8 + 12
    assert [epoch.counted for epoch in audit(tmp_path / "second" / "audit").epochs] == [0, 120]
    assert sorted(whole(directory)) == [8, 20]
    assert checkpoints.numbers(directory) == [1, 2]


def test_a_directory_keeps_the_newest_checkpoints_and_the_best_one(
    begin: Start, undisturbed: Undisturbed, iris: Path, tmp_path: Path
) -> None:
    """Its accuracy has its highest value at one gate; the loss of this model, which learns nothing, grows with each step."""
    directory = undisturbed.checkpoints
    best, last = checkpoints.numbers(directory)
    manifest = checkpoints.read_of_group(checkpoints.folder_of(directory, best))
    assert (manifest.state.step, manifest.is_best) == (5, True)
    losses = {
        step: float.fromhex(dict(item.split("=") for item in line.split()[2:])["val_loss"])
        for step, line in told(undisturbed.folder).items()
    }
    assert manifest.best is not None
    assert manifest.best.value == losses[5] == min(losses.values())
    assert checkpoints.read_of_group(checkpoints.folder_of(directory, last)).state.step == LAST
    assert "the best when it was written" in listed(directory)[0]
    wrong = run(
        begin,
        tmp_path / "wrong",
        checkpoint_dir=tmp_path / "others",
        checkpoint_best="accuracy:max",
        validation_data=iris / "train",
        num_workers=1,
    ).wait()
    assert wrong.code == 2
    assert "there is no metric 'accuracy'; known: val_loss, val_accuracy" in wrong.err


def test_a_checkpoint_under_way_when_the_master_is_killed_is_completed_by_the_next(
    begin: Start, tmp_path: Path
) -> None:
    """The master stands still from the first checkpoint on until the workers have written all of the second one."""
    directory = tmp_path / "checkpoints"
    job = run(
        begin, tmp_path / "job", step=0.7, checkpoint_dir=directory, checkpoint_steps=3, keep_checkpoint_max=0
    )
    saved: list[int] = []
    for item in seen(job):
        if isinstance(item, JobEvent) and item.kind == EventKind.SNAPSHOT:
            saved.append(item.step)
            if item.step == 3:
                master = master_of(job)
                os.kill(master, signal.SIGSTOP)
                draft = checkpoints.group_draft_of(directory, 1, 6, passed=False)
                wait_for(lambda: all((draft / f"part-{rank}").exists() for rank in range(2)), job)  # noqa: B023
                assert not (draft / NAME).exists()
                os.kill(master, signal.SIGKILL)
    job.wait().succeeded()
    assert saved[:2] == [3, 6]
    assert whole(directory).keys() >= {3, 6, LAST}


def wait_for(condition: Callable[[], bool], job: Job) -> None:
    until = time.monotonic() + 120
    while not condition():
        assert job.process.poll() is None, job.wait().logs
        assert time.monotonic() < until
        time.sleep(0.02)  # another process's file has no event


def test_kills_while_checkpoints_are_written_leave_only_whole_ones(
    begin: Start, undisturbed: Undisturbed, iris: Path, tmp_path: Path
) -> None:
    """A checkpoint at each step, and a worker that is killed as soon as a part of one is seen; then all of them at once."""
    directory = tmp_path / "checkpoints"
    job = run(
        begin,
        tmp_path / "job",
        slow=True,
        checkpoint_dir=directory,
        checkpoint_steps=1,
        keep_checkpoint_max=0,
        num_workers="1:3",
        relaunch_on_worker_failure=100,
        validation_data=iris / "train",
        evaluation_steps=3,
    )
    at_step(job, 2, lambda status: kill(training(status)[-1]))
    at_step(job, 5, lambda status: all(kill(worker) for worker in training(status)))
    (tmp_path / "job" / "go").touch()
    result = job.wait()
    assert digest(result) == digest(undisturbed.result)
    assert result.summary["members"]["lost"] >= 2
    found = whole(directory)
    assert LAST in found
    assert all(epoch.complete for epoch in audit(tmp_path / "job" / "audit").epochs)
    again = run(begin, tmp_path / "again", checkpoint_dir_for_init=found[min(found)], num_workers=1).wait()
    assert digest(again) == digest(undisturbed.result)


def test_a_full_disk_costs_checkpoints_and_nothing_else(
    begin: Start, undisturbed: Undisturbed, tmp_path: Path, small_disk: SmallDisk
) -> None:
    directory = small_disk.path / "checkpoints"
    directory.mkdir()
    job = run(begin, tmp_path / "job", step=0.5, checkpoint_dir=directory, checkpoint_steps=2)

    def fill(_: JobStatus) -> bool:
        small_disk.fill()
        return True

    at_step(job, 1, fill)
    unsaved = (item for item in seen(job) if isinstance(item, JobEvent) and item.kind == EventKind.UNSAVED)
    note = next(unsaved, None)
    assert note is not None, job.wait()
    assert "No space left on device" in note.text
    small_disk.free()
    result = job.wait()
    assert digest(result) == digest(undisturbed.result)
    assert result.summary["checkpoints_given_up"] >= 1
    assert LAST in whole(directory)
    assert result.summary["checkpoint"] == str(whole(directory)[LAST])


@dataclass(frozen=True)
class Two:
    """A directory with two checkpoints."""

    directory: Path
    older: Path
    newest: Path


@pytest.fixture
def two(at_steps: dict[int, Path], tmp_path: Path) -> Two:
    """The test's own copy of the checkpoints of steps 5 and 11."""
    directory = tmp_path / "checkpoints"
    older, newest = (shutil.copytree(at_steps[step], directory / at_steps[step].name) for step in (5, 11))
    return Two(directory, older, newest)


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def test_a_damaged_checkpoint_is_passed_over_for_the_one_before_which_is_named(
    begin: Start, two: Two, tmp_path: Path
) -> None:
    flip(two.newest / "part-0")
    job = run(begin, tmp_path / "job", checkpoint_dir_for_init=two.directory, num_workers=1)
    notes = [item.text for item in seen(job) if isinstance(item, JobEvent) and item.kind == EventKind.NOTE]
    assert job.wait().succeeded().summary["resumed_from"] == str(two.older)
    (note,) = [text for text in notes if "damaged" in text]
    assert f"{two.newest / 'part-0'}: the checkpoint is damaged" in note
    assert f"{two.older} is taken, the one before" in note


def test_what_can_not_be_resumed_is_refused_and_nothing_is_made(
    begin: functools.partial[Job], two: Two, tmp_path: Path
) -> None:
    """Most before there is a job, which is asked in this process; what only its processes find, in jobs."""
    newest = two.newest
    kept = tmp_path / "kept"
    shutil.copytree(newest, kept)
    made = {"output": tmp_path / "no.npz", "checkpoint_dir": tmp_path / "none"}

    def nothing_is_made() -> None:
        assert not (tmp_path / "no.npz").exists()
        assert not (tmp_path / "none").exists() or not any((tmp_path / "none").iterdir())

    def refuse(*words: str, path: Path = newest, **settings: object) -> None:
        given = {**begin.keywords, "checkpoint_dir_for_init": path, **made, **settings}
        with pytest.raises(BadInput) as caught:
            prepare(edge.build(edge.from_arguments({"job_name": "refused", **given})))
        for word in words:
            assert word in str(caught.value)
        assert not list((tmp_path / "state").glob("**/refused*"))
        nothing_is_made()

    def fail(*words: str, **settings: object) -> None:
        folder = tmp_path / "refused"
        shutil.rmtree(folder, ignore_errors=True)
        settings = {"checkpoint_dir_for_init": newest, "num_workers": 1, **made, **settings}
        result = run(begin, folder, **settings).wait()
        assert result.code == 2, result.err + result.logs
        for word in words:
            assert word in result.err
        nothing_is_made()

    def restore() -> None:
        shutil.rmtree(newest)
        shutil.copytree(kept, newest)

    refuse("in the middle of epoch 2", "seed (0 and 3)", seed=3)
    refuse("nothing is left to train", "11 steps", max_step=11)
    refuse("does not exist", path=tmp_path / "nowhere")
    refuse("there are checkpoints of another job", path=kept, checkpoint_dir=two.directory)
    fail(
        "is of another model",
        "the state does not fit this model and its optimizer: expected",
        model_def="paced.custom_model",
    )
    refuse(
        "a job without parameter servers",
        num_ps_pods=1,
        global_batch_size=0,
        model_def="tallied.custom_model",
    )
    flip(newest / "part-1")
    fail(str(newest / "part-1"), "is damaged", "its checksum does not hold")
    restore()
    (newest / "part-0").write_bytes((newest / "part-0").read_bytes()[:-1])
    refuse(str(newest / "part-0"), "7 bytes, and the manifest says 8")
    restore()
    (newest / "part-1").unlink()
    refuse(str(newest / "part-1"), "is not whole")
    restore()
    body = json.loads((newest / NAME).read_text())
    (newest / NAME).write_text(json.dumps({**body, "format": 2}))
    refuse("written in format 2, this version of elasticdl reads format 1")
    (newest / NAME).write_text((kept / NAME).read_text()[:-40])
    refuse("changed or cut off")
