"""Where a synchronous job continues from a checkpoint, which one is taken, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from elasticdl._core import crc32c
from elasticdl.checkpoint import group
from elasticdl.checkpoint.group import GroupManifest, Part
from elasticdl.checkpoint.layout import folder_of, numbers, remove_older_of_group
from elasticdl.checkpoint.manifest import NAME
from elasticdl.checkpoint.stateimage import Best, RunningSums
from elasticdl.control.protocol.frozen import replace
from elasticdl.control.protocol.view import StateId
from elasticdl.data.plan.order import Dealing
from elasticdl.data.plan.schedule import Schedule
from elasticdl.data.plan.shard import Position, Shard
from elasticdl.errors import BadSetting
from elasticdl.master.allreduce.resuming import GroupCheckpoint, check, open_checkpoint, resume
from elasticdl.master.core.records import ResumedStateRecord
from elasticdl.spec.edge import build, from_arguments
from elasticdl.spec.jobspec import JobSpec

DEALING = Dealing((Shard("data", 0, 80),), 1, True, 8, 4)
"""Ten tasks of two minibatches."""


def checkpoint(position: Position, step: int = 9, dealing: Dealing = DEALING) -> GroupCheckpoint:
    manifest = GroupManifest(
        5,
        "job-1",
        0.0,
        StateId(step, 3),
        position,
        dealing,
        RunningSums(),
        True,
        None,
        {},
        (Part(Path("/c/p"), 1, 1),),
    )
    return GroupCheckpoint(Path("/c/checkpoint-5/manifest.json"), manifest)


def go_on(
    one: GroupCheckpoint, dealing: Dealing = DEALING, epochs: int = 2, steps: int = 0
) -> ResumedStateRecord:
    return resume(one, Schedule(dealing.ledger(), epochs, steps), dealing, 7)


def test_a_job_goes_on_at_the_position_with_a_state_of_no_view() -> None:
    record = go_on(checkpoint(Position(1, 4, 2, 1)))
    path = "/c/checkpoint-5/manifest.json"
    assert record == ResumedStateRecord(7, path, StateId(9, 0), Position(1, 4, 2, 1), True)


OTHER = replace(DEALING, seed=2, minibatch_size=2)


@pytest.mark.parametrize("position", [Position(1, 4, 2, 0), Position(1, 0, 2, 1)])
def test_in_the_middle_of_an_epoch_data_has_to_be_dealt_out_alike(position: Position) -> None:
    with pytest.raises(BadSetting, match=r"middle of epoch 2.*seed \(1 and 2\), minibatch size \(4 and 2\)"):
        go_on(checkpoint(position), OTHER)


@pytest.mark.parametrize("position", [Position(1, 0, 4, 0), Position(1, 0, 0, 0)])
def test_at_the_end_of_an_epoch_it_may_be_dealt_out_otherwise(position: Position) -> None:
    """The last one of a job that has ended has no tasks; how many a wave has is decided with the first view."""
    assert go_on(checkpoint(position), OTHER).position == Position(1, 0, 1, 0)
    assert go_on(checkpoint(position)).position == Position(1, 0, 1, 0)


def test_a_job_that_has_trained_all_is_refused() -> None:
    for settings in ({"epochs": 1}, {"steps": 9}):
        with pytest.raises(
            BadSetting,
            match=r"nothing is left to train: .*1 epochs and 9 steps.*; `elasticdl export .*` writes its model",
        ):
            go_on(checkpoint(Position(1, 0, 0, 0)), **settings)


LOOP = replace(DEALING, by_record=True)


def test_only_a_custom_training_loop_continues_its_checkpoint(tmp_path: Path) -> None:
    assert go_on(checkpoint(Position(1, 4, 2, 1), dealing=LOOP), LOOP).position == Position(1, 4, 2, 1)
    with pytest.raises(
        BadSetting, match="is of a program with a custom training loop, which writes its result itself"
    ):
        go_on(checkpoint(Position(1, 0, 0, 0), dealing=LOOP))
    with pytest.raises(
        BadSetting, match="is of a job with a model file, and this one has a custom training loop"
    ):
        go_on(checkpoint(Position(1, 0, 0, 0)), LOOP)
    path = written(tmp_path, 1)
    loop = build(from_arguments({"job_command": "sh x", "checkpoint_dir_for_init": str(path.parent)}))
    with pytest.raises(BadSetting, match="is of a job with a model file"):
        check(loop)


def test_a_program_that_has_trained_all_is_told_what_it_says_itself() -> None:
    with pytest.raises(
        BadSetting, match=r"num_epochs and max_step in the program, .* say no more than that; raise them"
    ):
        go_on(checkpoint(Position(1, 0, 0, 0), dealing=LOOP), LOOP, epochs=1)


def test_a_position_that_the_data_does_not_have_is_refused() -> None:
    for position in (Position(0, 4, 20, 0), Position(0, 4, 2, 2), Position(0, 10, 1, 1)):
        with pytest.raises(BadSetting, match="where the data has nothing"):
            go_on(checkpoint(position))


def written(directory: Path, number: int, best: Best | None = None, step: int = 0) -> Path:
    folder = folder_of(directory, number)
    folder.mkdir(parents=True)
    (folder / "part-0").write_bytes(b"weights")
    head = group.head_of(RunningSums(), True, best, {"arrays": []})
    group.write_head(folder, head)
    group.complete(
        folder,
        number=number,
        job="job",
        written_at=1.0,
        state=StateId(step or number, 1),
        position=Position(0, 4, 2, 1),
        dealing=DEALING,
        head=group.digest_of(head),
        parts=(Part(folder / "part-0", 7, crc32c(b"weights")),),
    )
    return folder


def spec(path: Path, **settings: Any) -> JobSpec:
    plain = {"model_zoo": "x", "model_def": "x.x", "training_data": "x", "checkpoint_dir_for_init": str(path)}
    return build(from_arguments({**plain, **settings}))


def test_of_a_directory_the_newest_that_is_not_damaged_is_taken_by_name(tmp_path: Path) -> None:
    folders = {number: written(tmp_path, number) for number in (2, 9, 10)}
    found = open_checkpoint(spec(tmp_path), verify=True)
    assert found is not None
    assert (found.path, found.passed_over) == (folders[10] / NAME, "")
    for number in (9, 10):
        (folders[number] / "part-0").write_bytes(b"Weights")
    found = open_checkpoint(spec(tmp_path), verify=True)
    assert found is not None
    assert found.path == folders[2] / NAME
    for number in (9, 10):
        assert str(folders[number] / "part-0") in found.passed_over
    assert found.passed_over.endswith(f"{folders[2]} is taken, the one before")
    with pytest.raises(BadSetting, match=r"checkpoint-10/part-0: .*checksum does not hold; name another"):
        open_checkpoint(spec(folders[10]), verify=True)
    (folders[2] / "part-0").unlink()
    with pytest.raises(BadSetting, match=r"checkpoint-2/part-0: the checkpoint is not whole"):
        open_checkpoint(spec(tmp_path), verify=True)


def test_what_another_version_has_written_is_not_taken_for_damaged(tmp_path: Path) -> None:
    written(tmp_path, 1)
    newest = written(tmp_path, 2) / NAME
    newest.write_text(newest.read_text().replace('"format": 1', '"format": 2'))
    with pytest.raises(BadSetting, match="written in format 2, this version of elasticdl reads format 1"):
        open_checkpoint(spec(tmp_path), verify=True)


def test_the_newest_and_the_best_are_kept_and_what_is_read(tmp_path: Path) -> None:
    for number in range(1, 7):
        # the third and the fourth were the best when they were written, the others only know of one
        written(
            tmp_path, number, Best(0.5, 10 * number) if number in (3, 4) else Best(0.5, 1), step=10 * number
        )
    (tmp_path / ".checkpoint-step-50-view-1.draft").mkdir()
    (tmp_path / ".checkpoint-step-60-view-1.draft").mkdir()
    under_way = ".checkpoint-step-60-view-1-passed.draft"  # of the same state, after its gate
    (tmp_path / under_way).mkdir()
    (tmp_path / ".checkpoint-step-70-view-1-passed.draft").mkdir()
    (tmp_path / ".checkpoint-step-x.draft").mkdir()
    remove_older_of_group(tmp_path, 2, 6, (60, False), {folder_of(tmp_path, 1) / NAME})
    assert numbers(tmp_path) == [1, 4, 5, 6]
    others = [".checkpoint-step-70-view-1-passed.draft", ".checkpoint-step-x.draft"]
    assert sorted(path.name for path in tmp_path.glob(".*")) == [under_way, *others]
    remove_older_of_group(tmp_path, 1, 6, (60, True), set())
    assert sorted(path.name for path in tmp_path.glob(".*")) == others
    assert numbers(tmp_path) == [4, 6]
    remove_older_of_group(tmp_path, 0, 6, (60, True), set())
    assert numbers(tmp_path) == [4, 6]
