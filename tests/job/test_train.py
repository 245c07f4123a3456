"""Undisturbed jobs: every kind of model trains, the audit is clean, the result loads in plain Keras."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from elasticdl.audit import audit

from .conftest import ROOT, Start

ZOO = Path(__file__).parent / "zoo"


def test_digits_reach_their_accuracy_and_load_without_this_package(
    start: Start, digits: Path, tmp_path: Path
) -> None:
    result = (
        start(
            model_def="mnist.mnist_functional_api.custom_model",
            training_data=digits / "train",
            num_workers=2,
            num_epochs=6,
            minibatch_size=32,
            output=tmp_path / "m.keras",
            audit=tmp_path / "audit",
        )
        .wait()
        .succeeded()
    )
    summary = result.summary
    assert summary["status"] == "finished"
    assert summary["epochs"] == 6
    records = audit(tmp_path / "audit").epochs
    assert [epoch.counted for epoch in records] == [epoch.expected for epoch in records]
    assert summary["records_trained"] == sum(epoch.counted for epoch in records)
    evaluate = [
        sys.executable,
        "-I",
        str(ROOT / "examples/evaluate.py"),
        str(tmp_path / "m.keras"),
        str(digits / "heldout"),
        "0.95",
    ]
    subprocess.run(evaluate, check=True, cwd="/", timeout=120)


def test_a_model_with_two_outputs_statistics_and_dropout_learns_on_csv(
    start: Start, iris: Path, tmp_path: Path
) -> None:
    result = (
        start(
            model_zoo=ZOO,
            model_def="two.custom_model",
            training_data=iris / "train",
            num_workers=2,
            num_epochs=20,
            minibatch_size=8,
            num_minibatches_per_task=2,
            log_loss_steps=1,
            audit=tmp_path / "audit",
        )
        .wait()
        .succeeded()
    )
    records = audit(tmp_path / "audit").epochs
    assert len(records) == 20
    assert all(epoch.complete for epoch in records)
    assert result.summary["loss"] < 3.0


def test_a_subclassed_model_trains_and_is_exported_as_saved_model(
    start: Start, digits: Path, tmp_path: Path
) -> None:
    start(
        model_def="mnist.mnist_subclass.custom_model",
        training_data=digits / "train",
        num_workers=2,
        max_step=40,
        minibatch_size=32,
        num_epochs=0,
        output=tmp_path / "saved",
        output_format="saved_model",
    ).wait().succeeded()
    saved = [str(ROOT / "examples/evaluate.py"), str(tmp_path / "saved"), str(digits / "heldout"), "0.6"]
    subprocess.run([sys.executable, "-I", *saved], check=True, cwd="/", timeout=120)


def test_a_zoo_with_the_names_of_installed_packages_trains_almost_silently(
    start: Start, iris: Path, tmp_path: Path
) -> None:
    """The zoo has a folder called as an installed package, which the model file imports as well; and nothing but disasters is logged."""
    (tmp_path / "site" / "flowers").mkdir(parents=True)
    (tmp_path / "site" / "flowers" / "__init__.py").write_text("whose = 'installed'\n")
    folder = tmp_path / "garden" / "flowers"
    folder.mkdir(parents=True)
    (folder / "parts.py").write_text("whose = 'zoo'\n")
    (folder / "model.py").write_text(
        (ZOO / "curve.py").read_text().partition("class Curve")[0].replace("from pace import Pace\n", "")
        + "\nimport flowers\nfrom garden.flowers import parts\nassert (flowers.whose, parts.whose) == ('installed', 'zoo')\n"
    )
    result = start(
        environment={"PYTHONPATH": str(tmp_path / "site")},
        model_zoo=tmp_path / "garden",
        model_def="flowers.model.custom_model",
        training_data=iris / "train",
        num_workers=1,
        max_step=2,
        log_level="CRITICAL",
    ).wait()
    assert result.succeeded().summary["steps"] == 2
    assert " INFO " not in result.logs
    assert " WARNING " not in result.logs


def test_local_trains_in_one_process(start: Start, iris: Path, tmp_path: Path) -> None:
    done = (
        start(
            model_def="iris.dnn_iris.custom_model",
            training_data=iris / "train",
            distribution_strategy="Local",
            worker_resource_request="cpu=1,gpu=1",
            num_epochs=20,
            minibatch_size=8,
            audit=tmp_path / "audit",
            output=tmp_path / "iris.keras",
        )
        .wait()
        .succeeded()
    )
    assert all(epoch.complete for epoch in audit(tmp_path / "audit").epochs)
    assert (tmp_path / "iris.keras").exists()
    assert done.summary["loss"] < 0.6
    # What TensorFlow's library says when it is loaded is in the process's log, not in the terminal.
    assert "I0000 00:00:" not in done.err
    assert "I0000 00:00:" in done.logs
    # A GPU that the framework does not see is no silent slowness.
    assert "warning: 1 GPU is reserved for each worker, TensorFlow sees none" in done.err


def test_local_ends_with_an_error_of_the_program(start: Start, iris: Path, tmp_path: Path) -> None:
    (tmp_path / "go").touch()
    (tmp_path / "fail").touch()
    result = start(
        environment={"GO": str(tmp_path / "go")},
        model_zoo=ROOT / "tests/job/zoo",
        model_def="failing.custom_model",
        training_data=iris / "train",
        distribution_strategy="Local",
    ).wait()
    assert result.code == 1
    assert "the mistake of the user" in result.err


@pytest.mark.parametrize("framework", ["reference", "keras"])
def test_training_ends_once_in_every_worker(start: Start, iris: Path, tmp_path: Path, framework: str) -> None:
    """With an output and without one; and callbacks of Keras know it from the beginning."""
    settings: dict[str, object] = {"model_def": "flowers.custom_model", "callbacks": "ended.callbacks"}
    if framework == "keras":
        settings = {"model_def": "ending.custom_model", "output": tmp_path / "m.keras"}
    job = start(
        model_zoo=ZOO,
        training_data=iris / "train",
        num_workers=2,
        num_epochs=2,
        minibatch_size=8,
        environment={"ENDINGS": str(tmp_path)},
        **settings,
    )
    present = job.wait().succeeded().summary["members"]["joined"]
    endings = [path.read_text() for path in tmp_path.glob("*.ended")]
    assert sorted(endings) == ["ended\n"] * (present - 1) + ["ended, and wrote\n"]
    if framework == "keras":
        begun = {path.stem: path.read_text() for path in tmp_path.glob("*.begun")}
        assert all((said == "writes") == (name == "worker-0-1") for name, said in begun.items())
        assert "worker-0-1" in begun
        assert (tmp_path / "m.keras").exists()
