"""What the client says of masters that don't come up, against a real API server; the tests play the kubelet."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from elasticdl.cluster.kubernetes.api import Api
from elasticdl.job import podjob, podrun, podsubmit

from .control_plane import ControlPlane
from .processes import wait_for
from .submitting import spec

pytestmark = pytest.mark.usefixtures("rights")

SECONDS = 60.0


def report(plane: ControlPlane, api: Api, **status: Any) -> None:
    """Say something as the kubelet of the newest master."""

    def waiting() -> list[str]:
        found = api.list("Pod", "elasticdl.org/role=master")[0]
        return [one["metadata"]["name"] for one in found if one["status"]["phase"] == "Pending"]

    wait_for("a master's pod", lambda: bool(waiting()), SECONDS)
    path = f"/api/v1/namespaces/{api.namespace}/pods/{waiting()[0]}/status"
    assert plane.patch(path, {"status": status}) is not None


def container(**state: Any) -> list[dict[str, Any]]:
    return [
        {"name": "master", "image": "i", "imageID": "", "ready": False, "restartCount": 0, "state": state}
    ]


def test_an_image_that_can_not_be_pulled_ends_the_wait(
    control_plane: ControlPlane, api: Api, zoo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = podsubmit.submit(spec(api, zoo), api)
    monkeypatch.setattr(podrun, "submit", lambda spec: job)
    text = 'Back-off pulling image "elasticdl:test": no such host'
    report(
        control_plane,
        api,
        containerStatuses=container(waiting={"reason": "ImagePullBackOff", "message": text}),
    )
    summary = podrun.run(spec(api, zoo))
    assert (summary["status"], summary["exit_code"]) == ("stuck", 1)
    assert summary["reason"].startswith(f"the master's pod can't start: ImagePullBackOff: {text}. ")
    assert f"`elasticdl stop test-job --namespace={api.namespace}`" in summary["reason"]
    assert job.exists()


def test_masters_that_end_without_a_word_end_the_wait(
    control_plane: ControlPlane, api: Api, zoo: Path
) -> None:
    job = podsubmit.submit(spec(api, zoo), api)
    last = "ModuleNotFoundError: No module named 'elasticdl'"
    for _ in range(3):
        report(
            control_plane, api, phase="Failed",
            containerStatuses=container(terminated={"exitCode": 1, "message": f"Traceback\n{last}\n"}),
        )  # fmt: skip
    summary = podjob.watch(job, lambda seen: None, print)
    assert summary["exit_code"] == 1
    assert f"masters have ended by an error before saying anything ({last})" in summary["reason"]
    assert job.exists()


def test_a_pod_that_can_not_be_made_is_said(
    control_plane: ControlPlane, api: Api, zoo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "none"},
        "spec": {"hard": {"pods": "0"}},
    }
    control_plane.kubectl("create", "-f", "-", f"--namespace={api.namespace}", stdin=json.dumps(body))
    wait_for("the quota", lambda: "hard" in api.get("ResourceQuota", "none").get("status", {}), SECONDS)
    monkeypatch.setattr("elasticdl.tools.survey.refuse", lambda spec, facts: "")
    job = podsubmit.submit(spec(api, zoo), api)
    wait_for("the reason", lambda: "exceeded quota: none" in job.look().waits_for, SECONDS)
    assert job.look().waits_for.startswith("the master's pod can't be made: ")
