"""Statements whose halves run in pods, against a real API server: what is made, what follows a pod's end, and that nothing stays."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from elasticdl.cluster.kubernetes import datapod
from elasticdl.cluster.kubernetes.api import Api
from elasticdl.errors import BadInput, BadSetting, Interrupted, JobFailed
from elasticdl.query import inpods, jobs
from elasticdl.query.run import run
from elasticdl.spec.edge import Given

from .control_plane import ControlPlane
from .processes import wait_for

SECONDS = 60.0


def settings(api: Api, **more: str) -> dict[str, Given]:
    given = {
        "image_name": "elasticdl:test",
        "namespace": api.namespace,
        "volume": "claim_name=models,mount_path=/data",
        "envs": "LANG=C.UTF-8",
        **more,
    }
    return {name: Given(value, f"--{name}") for name, value in given.items()}


@pytest.fixture
def claim(control_plane: ControlPlane, api: Api) -> Callable[[str], None]:
    """Make the claim that models are on, with an access mode."""

    def make(mode: str) -> None:
        body = {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": "models", "namespace": api.namespace},
            "spec": {
                "accessModes": [mode],
                "storageClassName": "",
                "resources": {"requests": {"storage": "1Gi"}},
            },
        }
        control_plane.post(f"/api/v1/namespaces/{api.namespace}/persistentvolumeclaims", body)

    return make


def left(api: Api) -> list[str]:
    """Return what there is of any half."""
    return [
        f"{kind}/{one['metadata']['name']}"
        for kind in ("Job", "ConfigMap", "Pod")
        for one in api.list(kind, "app.kubernetes.io/component=data")[0]
    ]


class Kubelet:
    """Stands for nodes: gives each pod the next of some ends, and has its log."""

    def __init__(self, plane: ControlPlane, api: Api, ends: list[Mapping[str, Any] | str]) -> None:
        self._plane, self._api, self._ends = plane, api, ends
        self.pods: list[dict[str, Any]] = []
        self.requests: list[dict[str, Any]] = []
        self._logs: dict[str, str] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Kubelet:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def log(self, pod: str, container: str, last: int | None = None) -> Iterator[str]:
        assert container == datapod.CONTAINER
        yield "a library's warning"
        yield self._logs[pod]

    def _run(self) -> None:
        seen: set[str] = set()
        while not self._over.wait(0.1):
            for pod in self._api.list("Pod", "app.kubernetes.io/component=data")[0]:
                name = pod["metadata"]["name"]
                if name in seen or not self._ends:
                    continue
                seen.add(name)
                self.pods.append(pod)
                job = pod["metadata"]["labels"]["batch.kubernetes.io/job-name"]
                self.requests.append(json.loads(self._api.get("ConfigMap", job)["data"]["request.json"]))
                self._end(name, self._ends.pop(0))

    def _end(self, pod: str, end: Mapping[str, Any] | str) -> None:
        state: dict[str, Any] = {"exitCode": 137, "reason": "Error"}
        if not isinstance(end, str):
            self._logs[pod] = f"{datapod.ANSWER}{json.dumps({'told': [], **end})}"
            state = {"exitCode": 0}
        container = {
            "name": datapod.CONTAINER, "image": "x", "imageID": "x", "ready": False, "restartCount": 0,
            "state": {"terminated": state},
        }  # fmt: skip
        status = {
            "phase": "Failed" if isinstance(end, str) else "Succeeded",
            "containerStatuses": [container],
        }
        path = f"/api/v1/namespaces/{self._api.namespace}/pods/{pod}/status"
        assert self._plane.patch(path, {"status": status}) is not None


HALF = {
    "kind": "predict",
    "name": "Income_2026",
    "made": {
        "model_zoo": "/data/models/Income_2026/v",
        "model_def": "model.custom_model",
        "trained_model": "/data/models/Income_2026/v/model.keras",
        "prediction_data": "/data/models/.work/w/rows/training",
        "output": "/data/models/.work/w/predictions",
        "output_format": "parquet",
    },
    "derived": {"minibatch_size": 64},
    "asked": {},
    "state": {"work": "/data/models/.work/w"},
    "notes": [],
    "reasons": {},
}
ANSWER = {"statement": "s", "columns": {"rows": [7]}, "model": None, "notes": []}


def begin(api: Api, told: list[str], **more: str) -> Any:
    """Give a statement as a person does."""
    return run(
        "SELECT 1 TO PREDICT a.b USING Income_2026",
        flags=settings(api, **more),
        tell=told.append,
        database_secret="hr",
        store=Path("/data/models"),
    )


def test_both_halves_with_the_job_between_them_and_a_pod_killed_in_each(
    control_plane: ControlPlane, api: Api, claim: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    claim("ReadWriteMany")
    specs = []
    monkeypatch.setattr(
        jobs, "run", lambda spec: (specs.append(spec), {"metrics": {"loss": 0.5}, "steps": 3})[1]
    )
    ends: list[Any] = [
        "killed",
        {"count": 1, "half": HALF},
        "killed",
        {"count": 1, "answer": ANSWER, "told": ["a line"]},
    ]
    told: list[str] = []
    with Kubelet(control_plane, api, ends) as kubelet:
        monkeypatch.setattr(Api, "log", lambda _, *given: kubelet.log(*given))
        answer = begin(api, told, worker_image="elasticdl:gpu", worker_resource_request="gpu=1")
    assert answer.table.to_pylist() == [{"rows": 7}]
    assert told == ["a line"]
    (spec,) = specs
    assert spec.job_name.startswith("sql-income-2026-")
    assert spec.prediction_data == "/data/models/.work/w/rows/training"
    first, second = kubelet.requests[0], kubelet.requests[-1]
    assert [one["act"] for one in kubelet.requests] == ["begin", "begin", "end", "end"]
    assert first["text"] == "SELECT 1 TO PREDICT a.b USING Income_2026"
    assert (second["half"]["state"], second["summary"]) == (HALF["state"], {"metrics": {"loss": 0.5}})
    (container,) = kubelet.pods[0]["spec"]["containers"]
    assert container["image"] == "elasticdl:test"
    assert "nvidia.com/gpu" not in container["resources"]["requests"]
    variables = {one["name"]: one for one in container["env"]}
    assert variables["LANG"]["value"] == "C.UTF-8"
    assert variables[datapod.URL_ENVIRONMENT]["valueFrom"] == {"secretKeyRef": {"name": "hr", "key": "url"}}
    assert "/data" in [one["mountPath"] for one in container["volumeMounts"]]
    assert kubelet.pods[0]["spec"]["automountServiceAccountToken"] is False
    wait_for("the end of all objects", lambda: not left(api), SECONDS)


def test_a_job_that_fails_lets_a_pod_keep_the_rows(
    control_plane: ControlPlane, api: Api, claim: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    claim("ReadWriteMany")

    def fail(spec: object) -> None:
        raise JobFailed("worker-0 has failed")

    monkeypatch.setattr(jobs, "run", fail)
    told: list[str] = []
    ends: list[Any] = [{"count": 1, "half": HALF}, {"kept": ["/data/models/.work/w"]}]
    with Kubelet(control_plane, api, ends) as kubelet:
        monkeypatch.setattr(Api, "log", lambda _, *given: kubelet.log(*given))
        with pytest.raises(JobFailed, match="worker-0 has failed"):
            begin(api, told)
    assert [(one["act"], one["why"]) for one in kubelet.requests] == [
        ("begin", ""),
        ("forget", "worker-0 has failed"),
    ]
    assert told == ["the rows are kept in /data/models/.work/w for a week"]


def test_what_a_pod_refuses_and_a_person_who_leaves(
    control_plane: ControlPlane, api: Api, claim: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    claim("ReadWriteMany")
    with Kubelet(control_plane, api, [{"error": "sql:1: no column 'a'", "is_input": True}]) as kubelet:
        monkeypatch.setattr(Api, "log", lambda _, *given: kubelet.log(*given))
        with pytest.raises(BadInput, match="sql:1: no column 'a'"):
            begin(api, [])

    def leave(seconds: float) -> None:
        assert left(api)
        raise KeyboardInterrupt

    monkeypatch.setattr(inpods.time, "sleep", leave)  # type: ignore[attr-defined]
    with pytest.raises(Interrupted, match="what was made in the cluster has been removed"):
        begin(api, [])
    monkeypatch.undo()
    wait_for("the end of all objects", lambda: not left(api), SECONDS)


def test_what_cannot_work_is_refused_before_anything_is_made(api: Api, claim: Callable[[str], None]) -> None:
    with pytest.raises(BadSetting, match="has no claim 'models'"):
        begin(api, [])
    claim("ReadWriteOnce")
    with pytest.raises(
        BadSetting, match="which has the access mode ReadWriteOnce, and every pod writes there"
    ):
        begin(api, [])
    assert not left(api)


def test_the_manifests_are_shown_and_the_api_takes_them(api: Api, capsys: pytest.CaptureFixture[str]) -> None:
    import yaml

    told: list[str] = []
    run(
        "SELECT 1 TO PREDICT a.b USING m",
        flags=settings(api),
        tell=told.append,
        database_secret="hr/POSTGRES",
        store=Path("/data/models"),
        dry_run=True,
    )
    (text,) = told
    job, request = yaml.safe_load_all(text)
    assert "{'name': 'hr', 'key': 'POSTGRES'}" in str(job)
    for body in (job, request):
        api.create(body, dry_run=True)
    assert not left(api)


def test_rows_that_are_read_here_need_a_user_and_a_place_that_pods_share(
    api: Api, claim: Callable[[str], None], tmp_path: Path
) -> None:
    claim("ReadWriteMany")

    def user(number: int) -> str:
        return json.dumps({"spec": {"securityContext": {"runAsUser": number}}})

    own = os.geteuid()
    for store, template, says in (
        (
            "/data/models",
            user(own + 1),
            f"is for its user alone, and that is {own} here and {own + 1} in the pods",
        ),
        ("/data/models", user(own), "is on a volume of the pods and not on this machine"),
        (str(tmp_path / "models"), "{}", "is on no --volume"),
    ):
        with pytest.raises(BadSetting, match=says):
            run(
                "SELECT 1 LABEL a INTO m",
                flags=settings(api, pod_template=template),
                tell=print,
                store=Path(store),
            )
    assert not left(api)
