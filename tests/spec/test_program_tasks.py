"""The settings of a program that processes tasks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from elasticdl.errors import BadSetting
from elasticdl.spec.edge import build, check_paths, from_arguments
from elasticdl.spec.jobspec import JobKind, JobSpec, Work, from_json, settings_of


def tasks(**more: Any) -> JobSpec:
    return build(from_arguments({"job_command": "python process.py", "work": "tasks", **more}))


def test_the_work_says_what_kind_of_job_it_is() -> None:
    spec = tasks(num_workers=3)
    assert (spec.kind, spec.work, spec.data) == (JobKind.PROCESS, Work.TASKS, "")
    assert spec.job_name == "process"
    assert from_json(spec.to_json()) == spec
    assert build(from_arguments({"job_command": "python train.py", "work": "steps"})).kind is JobKind.TRAIN


@pytest.mark.parametrize(
    "setting",
    ["checkpoint_dir", "checkpoint_steps", "audit", "on_nan", "minibatch_size", "num_epochs", "training_data", "num_ps_pods", "seed"],
)  # fmt: skip
def test_what_only_training_uses_is_refused(setting: str) -> None:
    assert setting not in settings_of(JobKind.PROCESS)
    values = {"on_nan": "skip_step", "checkpoint_dir": "c", "audit": "a", "training_data": "d"}
    with pytest.raises(BadSetting, match=rf"^{setting}=: .+; leave it out$"):
        tasks(**{setting: values.get(setting, 2)})


def test_tasks_are_for_a_program() -> None:
    with pytest.raises(BadSetting, match=r"--work: tasks are for a program; .*elasticdl run --work=tasks"):
        build(from_arguments({"model_def": "a.b", "training_data": "d", "work": "tasks"}))


def test_an_output_that_exists_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match="exists; the files of tasks go to a new directory"):
        check_paths(tasks(output=str(tmp_path)), custom_reader=False, directory=True)
