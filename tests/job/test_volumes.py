"""What the first master of a job in pods finds out about volumes, which nobody sees where the job is submitted."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from elasticdl.errors import BadInput
from elasticdl.job.master import make_runner
from elasticdl.master.core.filepages import FilePages
from elasticdl.spec.edge import build, from_arguments
from elasticdl.spec.jobspec import JobKind

ZOO = Path(__file__).parent / "zoo"
TRAINS = {"training_data": "{}/data"}
PREDICTS = {"prediction_data": "{}/data", "trained_model": "{}/m.npz", "output": "{}/new"}


@pytest.mark.parametrize(
    ("kind", "settings", "said"),
    [
        (JobKind.TRAIN, {"training_data": "{}/none"}, "--training_data: .*none' does not exist"),
        (JobKind.TRAIN, {**TRAINS, "validation_data": "{}/none"}, "--validation_data: .*none' does not exist"),
        (JobKind.TRAIN, {**TRAINS, "output": "/proc/m.npz"}, "--output: .* no file can be made in /proc by the user [0-9]+ "),
        (JobKind.TRAIN, {**TRAINS, "checkpoint_dir": "/proc/c"}, "--checkpoint_dir: '/proc/c' can't be written"),
        (JobKind.TRAIN, {**TRAINS, "tensorboard_log_dir": "{}/new"}, r"tensorboardX is not installed; name it in the requirements\.txt"),
        (JobKind.PREDICT, {**PREDICTS, "output": "{}/old"}, "--output: .*old' exists; predictions go to a new directory"),
        (JobKind.PREDICT, {**PREDICTS, "trained_model": "{}/none"}, "--trained_model: .*none' does not exist"),
    ],
)  # fmt: skip
def test_what_can_not_work_is_refused_before_anything_is_launched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: JobKind, settings: dict[str, str], said: str
) -> None:
    for name in ("data", "m.npz"):
        (tmp_path / name).write_text("1,2\n")
    for name in ("old", "journal"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    given = {name: text.format(tmp_path) for name, text in settings.items()}
    fixed = {"model_zoo": str(ZOO), "model_def": "paced.custom_model", "image_name": "image"}
    spec = build(from_arguments(fixed | given), kind)
    nothing = cast(Any, None)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(BadInput, match=said):
        make_runner(nothing, spec, nothing, FilePages(tmp_path / "journal"), nothing)
    assert sorted(tmp_path.rglob("*")) == before
