"""The doctor on real nodes: images that are pulled, or are not, and what the client says when a job's pods can't start."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import pytest

from elasticdl.cluster.kubernetes import manifests
from elasticdl.cluster.kubernetes.api import Api
from elasticdl.tools import doctor, survey

from .image import IMAGE
from .namespaces import own_namespace
from .node import PAUSE
from .processes import wait_for
from .rights import masters_may
from .submitting import spec
from .testbed import Testbed

ELASTICDL = str(Path(sys.executable).with_name("elasticdl"))
MODEL = "def custom_model(): ...\ndef loss(a, b): ...\ndef optimizer(): ...\ndef feed(d, m, n): ...\n"
NOWHERE = "127.0.0.1:1/elasticdl:none"
"""Nobody listens there, so a pull fails at once."""


@pytest.fixture
def api(cluster: Testbed, monkeypatch: pytest.MonkeyPatch) -> Iterator[Api]:
    """A namespace of its own, in which masters have their rights."""
    monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig))
    with own_namespace(cluster.control_plane) as made:
        masters_may(cluster.control_plane, made)
        yield made


def tried(api: Api, zoo: Path, image: str, policy: str) -> doctor.Tried:
    """Try an image, and see that no pod is left."""
    job = spec(api, zoo, image_name=image, image_pull_policy=policy)
    found = survey.try_image(api, manifests.pod_of(job, doctor.images(job)[image]), image, job.job_name)
    wait_for("the end of the probe", lambda: api.list("Pod")[0] == [], 60.0)
    return found


@pytest.mark.timeout(300)
def test_an_image_that_is_nowhere(api: Api, zoo: Path) -> None:
    found = tried(api, zoo, NOWHERE, "IfNotPresent")
    assert found.failure.startswith(("ErrImagePull", "ImagePullBackOff"))


@pytest.mark.timeout(300)
def test_an_image_that_the_nodes_do_not_have(api: Api, zoo: Path) -> None:
    assert tried(api, zoo, "elasticdl:none", "Never").failure.startswith("ErrImageNeverPull")


@pytest.mark.timeout(300)
def test_a_name_that_is_none(api: Api, zoo: Path) -> None:
    assert tried(api, zoo, "Elastic DL!", "IfNotPresent").failure.startswith("InvalidImageName")


@pytest.mark.timeout(300)
def test_an_image_without_python(api: Api, zoo: Path) -> None:
    found = tried(api, zoo, PAUSE, "Never")
    assert "python3" in found.failure


@pytest.mark.timeout(300)
def test_a_cluster_without_room(api: Api, zoo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(survey, "ROOM_SECONDS", 3.0)
    job = spec(api, zoo, pod_template={"spec": {"nodeSelector": {"no": "such-node"}}})
    found = survey.try_image(
        api, manifests.pod_of(job, doctor.images(job)[job.image_name]), "i", job.job_name
    )
    assert "didn't match Pod's node affinity/selector" in found.unknown


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("absent", "reason"), [(NOWHERE, "ImagePullBackOff"), ("elasticdl:none", "ErrImageNeverPull")]
)
def test_a_master_whose_image_is_not_there_ends_the_command(
    cluster: Testbed, api: Api, tmp_path: Path, absent: str, reason: str
) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    policy = "Never" if reason == "ErrImageNeverPull" else "IfNotPresent"
    command = [
        *(
            ELASTICDL,
            "train",
            "--model_def=model.custom_model",
            "--training_data=/data/train",
            "--job_name=test-job",
        ),
        *(f"--image_name={absent}", f"--image_pull_policy={policy}", f"--namespace={api.namespace}"),
    ]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=240)
    assert run.returncode == 1, run.stdout + run.stderr
    assert f"the master's pod can't start: {reason}" in run.stderr
    assert f"elasticdl stop test-job --namespace={api.namespace}" in run.stderr
    assert api.has("Job", "test-job")


@pytest.mark.timeout(300)
def test_the_command_prints_a_line_for_each_thing(cluster: Testbed, api: Api, tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    command = [
        *(
            ELASTICDL,
            "doctor",
            "--model_def=model.custom_model",
            "--training_data=/data/train",
            "--job_name=test-job",
        ),
        *("--image_name=elasticdl:none", "--image_pull_policy=Never", f"--namespace={api.namespace}"),
    ]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=240)
    assert run.returncode == 2, run.stdout + run.stderr
    *good, wrong, todo = run.stdout.splitlines()
    assert len(good) == 8
    assert all(line.startswith("ok        ") for line in good)
    assert wrong.startswith("wrong     the image elasticdl:none can't be used: ErrImageNeverPull")
    assert todo.startswith("          look at --image_name")
    assert api.list("Job")[0] == []


@pytest.mark.timeout(900)
def test_the_image_of_a_model_zoo(ready: Testbed, api: Api, zoo: Path) -> None:
    found = tried(api, zoo, IMAGE, "Never")
    assert replace(found, cpu_framework="") == doctor.Tried(IMAGE, version=version("elasticdl"))
    assert found.cpu_framework.startswith("tensorflow-cpu 2.")
