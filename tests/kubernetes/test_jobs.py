"""Whole jobs in pods of the real image, submitted as a person does: how they end, well or badly, and what is left of them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet
import pytest

from elasticdl.cluster.kubernetes import rbac

from .conftest import Start
from .jobs import ELASTICDL, ROOT, SECONDS, Job, api_of, environment, left, paced, spoiled
from .processes import wait_for
from .testbed import Testbed


@pytest.mark.timeout(1800)
def test_the_command_of_a_laptop_trains_on_a_cluster(start: Start, tmp_path: Path) -> None:
    data = tmp_path / "data"
    subprocess.run(
        [sys.executable, str(ROOT / "model_zoo/mnist/make_data.py"), str(data / "digits")], check=True
    )
    job = start(
        model_zoo=ROOT / "model_zoo",
        model_def="mnist.mnist_functional_api.custom_model",
        training_data="/data/digits/train",
        job_name="test-mnist",
        num_workers=2,
        num_epochs=20,
    )
    summary = job.summary()
    assert summary["status"] == "finished"
    job.proven(20, summary["records_trained"] // 20)
    evaluate = [sys.executable, str(ROOT / "examples/evaluate.py"), str(data / "test-mnist.keras")]
    subprocess.run([*evaluate, str(data / "digits/heldout"), "0.95"], check=True)
    _evaluates_and_predicts(job, start)
    pods, _ = job.api.list("Pod", f"elasticdl.org/role=worker,elasticdl.org/job-name={job.name}")
    assert len({pod["spec"]["nodeName"] for pod in pods}) == 2
    wait_for("the Job's end", lambda: "Complete" in job.conditions(), 60.0)
    assert "worker-1-1 has joined" in job.kubectl("describe", "job", job.name)


def _evaluates_and_predicts(trained: Job, start: Start) -> None:
    """Do both with the trained model, at the same time."""
    settings = {
        "model_zoo": ROOT / "model_zoo",
        "model_def": "mnist.mnist_functional_api.custom_model",
        "trained_model": "/data/test-mnist.keras",
        "num_workers": 2,
        "audit": None,
    }
    evaluation = start(
        command="evaluate",
        **settings,
        job_name="test-evaluate",
        output=None,
        validation_data="/data/digits/heldout",
    )
    prediction = start(
        command="predict",
        **settings,
        job_name="test-predict",
        output="/data/predictions",
        prediction_data="/data/digits/train",
        num_minibatches_per_task=1,
    )
    found = evaluation.summary()
    assert found["metrics"]["val_accuracy"] > 0.95
    assert found["records_evaluated"] == 359
    assert prediction.summary()["records_predicted"] == 1438
    rows = pyarrow.parquet.read_table(trained.data / "predictions")
    assert rows.num_rows == 1438
    assert len(rows["prediction"][0].as_py()) == 10


@pytest.mark.timeout(900)
def test_an_error_of_the_program_ends_the_job_once_with_its_traceback(start: Start, tmp_path: Path) -> None:
    zoo = spoiled(
        tmp_path, "def custom_model():\n    raise ArithmeticError('the mistake of the user')\n    return 1"
    )
    job = start(**{**paced(tmp_path), "model_zoo": zoo})
    assert job.process.wait(SECONDS) == 2  # the model file is wrong, and the first worker shows it
    said = job.output.read_text()
    assert "paced.py: custom_model failed: ArithmeticError: the mistake of the user" in said
    # The summary comes first: the master has to be able to say why before its Job ends.
    wait_for("the Job's failure", lambda: "Failed" in job.conditions(), 60.0)


@pytest.mark.timeout(900)
def test_a_stopped_job_and_a_deleted_namespace_leave_nothing(ready: Testbed, tmp_path: Path) -> None:
    name = "elsewhere"
    ready.kubectl("create", "namespace", name)
    api = api_of(ready, name)
    for body in rbac.objects(name):
        ready.kubectl("apply", "-f", "-", stdin=json.dumps(body))
    settings = paced(tmp_path)
    job = Job.submit(ready, api, tmp_path, settings)
    try:
        job.past(3, workers=3)
        stop = [ELASTICDL, "stop", job.name, f"--namespace={name}"]
        subprocess.run(stop, env=environment(ready), check=True, timeout=SECONDS)
        wait_for("the end of all that the job made", lambda: not left(api), 120.0)
        assert job.process.wait(SECONDS) == 0
        assert (job.data / "paced.npz").exists()
        # The namespace's end is looked for again after half of what its pods may take, whenever they have ended.
        soon = json.dumps({"spec": {"terminationGracePeriodSeconds": 4}})
        more = {"job_name": "second", "pod_template": soon}
        second = Job.submit(ready, api, tmp_path, {**settings, **more})
        second.past(3, workers=3)
        ready.kubectl("delete", "namespace", name, "--timeout=120s")
        assert second.process.wait(SECONDS) == 1
        assert "the job second was deleted" in second.output.read_text()
    finally:
        ready.kubectl("delete", "namespace", name, "--ignore-not-found", "--wait=false")
