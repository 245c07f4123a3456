"""A framework of another package, found by its entry point: its jobs are as elastic and as exact as the others'."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from elasticdl.audit import audit
from tests.job.conftest import Start
from tests.job.test_faults import at_step, kill, training

HERE = Path(__file__).parent
LINES = 150
"""That a framework may take."""


def test_it_is_small() -> None:
    assert len((HERE / "outside/plainsums.py").read_text().splitlines()) < LINES


def test_its_jobs_survive_kills_and_train_each_record_once(
    start: Start, iris: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    job = start(
        environment={"PYTHONPATH": str(HERE / "outside")},
        model_zoo=HERE / "zoo",
        model_def="line.custom_model",
        training_data=iris / "train",
        num_workers=3,
        num_epochs=40,
        minibatch_size=8,
        num_minibatches_per_task=1,
        audit=tmp_path / "audit",
        output=tmp_path / "line.json",
    )
    at_step(job, 10, lambda status: kill(training(status)[-1]))
    at_step(job, 40, lambda status: len(training(status)) == 3 and kill(training(status)[0], signal.SIGKILL))
    result = job.wait().succeeded()
    assert [epoch.counted for epoch in audit(tmp_path / "audit").epochs] == [120] * 40
    assert result.summary["members"]["lost"] == 2
    assert len(json.loads((tmp_path / "line.json").read_text())) == 4


def test_a_setting_that_it_has_not_is_refused_before_anything_begins(
    start: Start, iris: Path, tmp_path: Path
) -> None:
    job = start(
        environment={"PYTHONPATH": str(HERE / "outside")},
        model_zoo=HERE / "zoo",
        model_def="line.custom_model",
        training_data=iris / "train",
        num_ps_pods=1,
    )
    result = job.wait()
    assert result.code == 2
    assert "--num_ps_pods=1: plainsums does not train with parameter servers" in result.err
    assert not list((tmp_path / "state").rglob("spec.json"))


@pytest.mark.parametrize(
    ("command", "settings", "said"),
    [
        ("evaluate", {"validation_data": "iris"}, "plainsums does not evaluate with trained models"),
        ("predict", {"prediction_data": "iris"}, "plainsums does not predict with trained models"),
        ("train", {"training_data": "iris", "validation_data": "iris"}, "leave --validation_data out"),
    ],
    ids=["evaluate", "predict", "validation data"],
)
def test_what_it_does_not_offer_is_refused(
    start: Start, iris: Path, tmp_path: Path, command: str, settings: dict[str, str], said: str
) -> None:
    trained = {} if command == "train" else {"trained_model": tmp_path / "line.json"}
    (tmp_path / "line.json").write_text("{}")
    result = start(
        command=command,
        environment={"PYTHONPATH": str(HERE / "outside")},
        model_zoo=HERE / "zoo",
        model_def="line.custom_model",
        num_workers=1,
        **dict.fromkeys(settings, iris / "train"),
        **trained,
    ).wait()
    assert result.code == 2, result.err
    assert said in result.err
