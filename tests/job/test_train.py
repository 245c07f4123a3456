"""Undisturbed jobs: every kind of model trains, the audit is clean, the result loads in plain Keras."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from elasticdl.audit import audit

from .conftest import ROOT, Result, Start, starting
from .test_tasks import sums

ZOO = Path(__file__).parent / "zoo"


EVALUATE = """
import runpy, sys
script, data, *models = sys.argv[1:]
for model, least in zip(models[::2], models[1::2]):
    sys.argv = [script, model, data, least]
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        if end.code:
            raise
    assert sys.modules["elasticdl"] is None
print("evaluated")
"""
"""Evaluates several models as the example does, in one process: the import of TensorFlow is most of its time."""


def test_digits_reach_their_accuracy_and_load_without_this_package(
    start: Start, digits: Path, tmp_path: Path
) -> None:
    """A functional model is exported as a file, a subclassed one as a SavedModel."""
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
    models = [str(tmp_path / "m.keras"), "0.95", str(tmp_path / "saved"), "0.6"]
    command = [sys.executable, "-I", "-c", EVALUATE, str(ROOT / "examples/evaluate.py")]
    said = subprocess.run(
        [*command, str(digits / "heldout"), *models],
        check=True,
        cwd="/",
        timeout=120,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout
    assert said.count("held-out accuracy") == 2
    assert said.endswith("evaluated\n")


@dataclass(frozen=True)
class Trained:
    """A job that has trained the model `two`, and the folder with all that it made."""

    result: Result
    folder: Path


@pytest.fixture(scope="module")
def trained(iris: Path, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Such a job with a callback, an output and a checkpoint, for all tests of this file."""
    folder = tmp_path_factory.mktemp("two")
    with starting(folder) as start:
        job = start(
            model_zoo=ZOO,
            model_def="two.custom_model",
            callbacks="ending.callbacks",
            training_data=iris / "train",
            num_workers=2,
            num_epochs=20,
            minibatch_size=8,
            num_minibatches_per_task=2,
            log_loss_steps=1,
            audit=folder / "audit",
            output=folder / "two.keras",
            checkpoint_dir=folder / "checkpoints",
            environment={"ENDINGS": str(folder)},
        )
        return Trained(job.wait().succeeded(), folder)


def test_a_model_with_two_outputs_statistics_and_dropout_learns_on_csv(trained: Trained) -> None:
    records = audit(trained.folder / "audit").epochs
    assert len(records) == 20
    assert all(epoch.complete for epoch in records)
    assert trained.result.summary["loss"] < 3.0


def test_keras_predicts_with_a_checkpoint_as_with_the_file(
    start: Start, trained: Trained, iris: Path, tmp_path: Path
) -> None:
    for name, of in {
        "file": {"trained_model": trained.folder / "two.keras"},
        "checkpoint": {"checkpoint_dir_for_init": trained.folder / "checkpoints"},
    }.items():
        start(
            command="predict",
            model_zoo=ZOO,
            model_def="two.custom_model",
            prediction_data=iris / "heldout",
            minibatch_size=16,
            num_workers=1,
            output=tmp_path / name,
            **of,
        ).wait().succeeded()
    assert sums(tmp_path / "checkpoint") == sums(tmp_path / "file")


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


def endings(folder: Path, present: int) -> bool:
    """Return whether training has ended once in each of so many workers, of which one wrote."""
    said = sorted(path.read_text() for path in folder.glob("*.ended"))
    return said == ["ended\n"] * (present - 1) + ["ended, and wrote\n"]


def test_training_ends_once_in_every_worker(start: Start, iris: Path, tmp_path: Path) -> None:
    """Without an output."""
    job = start(
        model_zoo=ZOO,
        model_def="flowers.custom_model",
        callbacks="ended.callbacks",
        training_data=iris / "train",
        num_workers=2,
        num_epochs=2,
        minibatch_size=8,
        environment={"ENDINGS": str(tmp_path)},
    )
    assert endings(tmp_path, job.wait().succeeded().summary["members"]["joined"])


def test_callbacks_of_keras_hear_the_end_once_and_know_from_the_beginning_who_writes(
    trained: Trained,
) -> None:
    folder = trained.folder
    assert endings(folder, trained.result.summary["members"]["joined"])
    begun = {path.stem: path.read_text() for path in folder.glob("*.begun")}
    assert all((said == "writes") == (name == "worker-0-1") for name, said in begun.items())
    assert "worker-0-1" in begun
    assert (folder / "two.keras").exists()
