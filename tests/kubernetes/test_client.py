"""What people are told when the cluster does not answer, refuses, or has nothing by that name: a sentence, never a traceback."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from elasticdl import cli
from elasticdl.cluster.kubernetes.api import Api
from elasticdl.job import podsubmit

from .control_plane import ControlPlane
from .rights import limited
from .submitting import spec

Run = Callable[..., tuple[int, str]]

LOOKING = [
    ("status", "test-job"),
    ("logs", "test-job"),
    ("list",),
    ("stop", "test-job"),
    ("scale", "test-job", "--num_workers=2"),
]
MODEL = "def custom_model(): ...\ndef loss(a, b): ...\ndef optimizer(): ...\ndef feed(d, m, n): ...\n"


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command, and return its exit code and its one line of error."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.py").write_text(MODEL)

    def call(*arguments: str) -> tuple[int, str]:
        code = cli.run(arguments)
        out, err = capsys.readouterr()
        assert "Traceback" not in out + err
        assert err.count("\n") == bool(err)
        return code, err

    return call


def submission(command: str, namespace: str) -> list[str]:
    return [
        *(command, "--model_def=model.custom_model", "--training_data=/data/train", "--job_name=test-job"),
        *("--image_name=elasticdl:test", f"--namespace={namespace}"),
    ]


@pytest.fixture
def nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A cluster at an address where nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # taken, but not listened at: connections are refused
        server = f"https://127.0.0.1:{taken.getsockname()[1]}"
        body = {
            "clusters": [{"name": "c", "cluster": {"server": server}}],
            "users": [{"name": "u", "user": {"token": "t"}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }
        path = tmp_path / "kubeconfig"
        path.touch(mode=0o600)
        path.write_text(json.dumps(body))
        monkeypatch.setenv("KUBECONFIG", str(path))
        yield


@pytest.mark.parametrize("text", ["{", "clusters: [{name: c, cluster: {certificate-authority-data: '?'}}]"])
def test_a_kubeconfig_that_is_none(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    (tmp_path / "kubeconfig").write_text(text)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    code, said = run("list", "--namespace=training")
    assert code == 2
    assert said.startswith(f"error: no Kubernetes cluster: {tmp_path / 'kubeconfig'} can't be used (")


def test_in_a_pod_without_a_kubeconfig_its_own_account_is_taken(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    code, said = run("list", "--namespace=training")
    assert code == 2
    assert "the pod has no service account that may ask the cluster's API" in said


@pytest.mark.usefixtures("nobody")
@pytest.mark.parametrize("command", LOOKING, ids=lambda command: command[0])
def test_a_cluster_that_does_not_answer(run: Run, command: list[str]) -> None:
    code, said = run(*command, "--namespace=training")
    assert code == 1
    assert said.startswith("error: the cluster's API does not answer: ")
    assert said.endswith("is the cluster up, and does KUBECONFIG name the right one?\n")


@pytest.mark.usefixtures("nobody")
@pytest.mark.parametrize(("command", "expected"), [("train", 2), ("doctor", 1)])
def test_a_submission_to_a_cluster_that_does_not_answer(run: Run, command: str, expected: int) -> None:
    code, said = run(*submission(command, "training"))
    assert code == expected
    assert "the cluster's API does not answer: " in said


@pytest.mark.parametrize("command", LOOKING, ids=lambda command: command[0])
def test_a_namespace_that_is_not_there(run: Run, api: Api, command: list[str]) -> None:
    code, said = run(*command, "--namespace=nowhere")
    assert code == 2
    assert said == (
        "error: --namespace: the cluster has no namespace 'nowhere'; `kubectl get namespaces` shows those it has\n"
    )


@pytest.mark.parametrize(
    "command", [one for one in LOOKING if one != ("list",)], ids=lambda command: command[0]
)
def test_a_job_that_is_not_there(run: Run, api: Api, command: list[str]) -> None:
    code, said = run(*command, f"--namespace={api.namespace}")
    assert code == 2
    assert f"the namespace {api.namespace} has no job named 'test-job'; `elasticdl list --namespace=" in said


def test_somebody_without_rights(
    run: Run, control_plane: ControlPlane, api: Api, zoo: Path, rights: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    podsubmit.submit(spec(api, zoo), api)
    limited(control_plane, api.namespace, [])
    monkeypatch.setenv("KUBECONFIG", str(control_plane.folder / f"limited-{api.namespace}.kubeconfig"))
    for command in LOOKING:
        code, said = run(*command, f"--namespace={api.namespace}")
        assert code == 1
        assert "forbidden" in said
    code, said = run(*submission("train", api.namespace), "--job_name=another")
    assert (code, "you may not create jobs" in said) == (2, True)
    assert cli.run([*submission("doctor", api.namespace), "--job_name=another"]) == 2


def test_somebody_whom_the_cluster_does_not_know(
    run: Run, control_plane: ControlPlane, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = control_plane.write_kubeconfig("stranger", "wrong", api.namespace)
    monkeypatch.setenv("KUBECONFIG", str(path))
    for command in (*LOOKING, submission("doctor", api.namespace)):
        code, said = run(*command, *([] if command[0] == "doctor" else [f"--namespace={api.namespace}"]))
        assert code == 1
        assert "the cluster does not know you" in said or "Unauthorized" in said


def test_fewer_or_more_workers_than_a_job_can_have(run: Run, api: Api, zoo: Path, rights: None) -> None:
    podsubmit.submit(spec(api, zoo, num_workers="2:4"), api)
    for workers, said in (
        (1025, "has at most 1,024 workers"),
        (1, "has a minimum of 2 workers"),
    ):
        code, error = run("scale", "test-job", f"--num_workers={workers}", f"--namespace={api.namespace}")
        assert code == 2
        assert said in error
    assert run("scale", "test-job", "--num_workers=3", f"--namespace={api.namespace}") == (0, "")
