"""Submission against a real API server: all objects or none, and what a person is told."""

from __future__ import annotations

import base64
import functools
import json
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from elasticdl.cluster.cluster import ProcessName, Role
from elasticdl.cluster.kubernetes import manifests, rbac
from elasticdl.cluster.kubernetes.api import Api, Unreachable, connect
from elasticdl.cluster.kubernetes.items import ConfigMapItem
from elasticdl.cluster.kubernetes.podplace import PodPlace, open_pod
from elasticdl.control.transport.keys import Key
from elasticdl.errors import BadSetting, JobFailed
from elasticdl.job import pod, podjob, podrun, podsubmit
from elasticdl.job.podjob import PodJob
from elasticdl.master.reporting.statusstore import ObjectStatusStore

from .control_plane import ControlPlane
from .processes import wait_for
from .rights import account_name, limited, may, with_cluster_role
from .submitting import spec

pytestmark = pytest.mark.usefixtures("rights")

OWNED = ("ConfigMap", "NetworkPolicy", "Role", "RoleBinding", "Secret", "Service", "ServiceAccount")


def owned(api: Api) -> dict[str, dict[str, Any]]:
    """Return what the job owns, by kind and name; the API server makes things of its own in every namespace."""
    found = {}
    for kind in OWNED:
        for body in api.list(kind)[0]:
            if any(one["name"] == "test-job" for one in body["metadata"].get("ownerReferences", [])):
                found[f"{kind}/{body['metadata']['name']}"] = body
    return found


def test_all_objects_are_made_and_owned_by_the_job(api: Api, zoo: Path, tmp_path: Path) -> None:
    job = podsubmit.submit(spec(api, zoo), api)
    assert sorted(owned(api)) == [
        "ConfigMap/test-job-events",
        "ConfigMap/test-job-journal",
        "ConfigMap/test-job-spec",
        "ConfigMap/test-job-status",
        "NetworkPolicy/test-job",
        "Role/test-job-master",
        "RoleBinding/test-job-master",
        "Secret/test-job-secret",
        "Service/test-job",
        "ServiceAccount/test-job-master",
    ]
    body = api.get("Job", "test-job")
    assert body["spec"]["suspend"] is False
    assert job.look().summary is None


def account(api: Api) -> str:
    return str(api.get("Job", "test-job")["spec"]["template"]["spec"]["serviceAccountName"])


def test_who_may_make_roles_gives_each_job_its_own_account(
    control_plane: ControlPlane, api: Api, zoo: Path
) -> None:
    """As the ClusterRole `admin` of a namespace, with no shared account in it."""
    for kind in ("ServiceAccount", "RoleBinding", "Role"):
        api.delete(kind, "elasticdl")
    user = with_cluster_role(control_plane, api.namespace, "admin")
    wait_for("the user's rights", lambda: user.may("create", "Role") and user.may("create", "Pod"), 60.0)
    podsubmit.submit(spec(api, zoo), user)
    assert account(api) == "test-job-master"
    may_master = functools.partial(
        may, control_plane, api.namespace, account_name(api.namespace, "test-job-master")
    )
    assert {"ServiceAccount/test-job-master", "Role/test-job-master", "RoleBinding/test-job-master"} <= set(
        owned(api)
    )
    for right in rbac.rules("test-job"):
        (resource,), (group,) = right["resources"], right["apiGroups"]
        for verb in right["verbs"]:
            for name in right.get("resourceNames", [""]):
                allowed = functools.partial(may_master, verb, group, resource, name=name)
                wait_for(f"the right to {verb} {resource} {name}", allowed, 60.0)
    assert not may_master("patch", "batch", "jobs", name="other")


def test_who_may_not_make_roles_shares_the_account_of_the_namespace(
    control_plane: ControlPlane, api: Api, zoo: Path
) -> None:
    """As the ClusterRole `edit`, which may make a NetworkPolicy."""
    user = with_cluster_role(control_plane, api.namespace, "edit")
    wait_for("the user's rights", lambda: user.may("create", "NetworkPolicy"), 60.0)
    podsubmit.submit(spec(api, zoo), user)
    assert account(api) == "elasticdl"
    assert [name for name in owned(api) if name.startswith(("Role", "ServiceA", "Net"))] == [
        "NetworkPolicy/test-job"
    ]


def test_who_can_not_grant_what_masters_need_shares_the_account(
    control_plane: ControlPlane, api: Api, zoo: Path
) -> None:
    """Kubernetes lets nobody grant rights that they lack."""
    group = "rbac.authorization.k8s.io"
    may = [
        {
            "apiGroups": [""],
            "resources": ["services", "secrets", "configmaps", "serviceaccounts"],
            "verbs": ["create", "get"],
        },
        {"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["*"]},
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]},
        {"apiGroups": [group], "resources": ["roles", "rolebindings"], "verbs": ["create"]},
    ]
    user = limited(control_plane, api.namespace, may)
    wait_for("the user's rights", lambda: user.may("create", "Role"), 60.0)
    podsubmit.submit(spec(api, zoo), user)
    assert account(api) == "elasticdl"
    assert not [name for name in owned(api) if name.startswith(("Role", "ServiceA", "Net"))]
    (pod,) = [api.get("Job", "test-job")["spec"]["template"]]
    assert manifests.OWN_POLICY not in pod["metadata"]["labels"]


def test_a_master_of_its_own_account_pulls_as_the_shared_one(
    control_plane: ControlPlane, api: Api, zoo: Path
) -> None:
    secrets = {"imagePullSecrets": [{"name": "registry"}]}
    api.patch("ServiceAccount", "elasticdl", secrets)
    podsubmit.submit(spec(api, zoo), api)
    assert owned(api)["ServiceAccount/test-job-master"]["imagePullSecrets"] == secrets["imagePullSecrets"]


def test_what_a_pod_is_given_is_what_was_submitted(api: Api, zoo: Path, tmp_path: Path) -> None:
    """Lay out the mounted files as a kubelet does, and open the place."""
    submitted = spec(api, zoo, num_workers="2:4", envs={"A": "1"})
    podsubmit.submit(submitted, api)
    found = owned(api)
    folder, secret, work = (tmp_path / name for name in ("job", "secret", "work"))
    for path in (folder, secret, work):
        path.mkdir()
    settings = found["ConfigMap/test-job-spec"]
    for name, text in settings["data"].items():
        (folder / name).write_text(text)
    for name, data in settings["binaryData"].items():
        (folder / name).write_bytes(base64.b64decode(data))
    body = manifests.process_pod(submitted, "uid", ProcessName(Role.WORKER, 0, 1))
    (mounted,) = [one["secret"] for one in body["spec"]["volumes"] if one["name"] == "secret"]
    for item in mounted["items"]:
        data = found["Secret/test-job-secret"]["data"][item["key"]]
        (secret / item["path"]).write_bytes(base64.b64decode(data))
    place = open_pod(folder, secret, work, "10.1.2.3", is_master=False)
    assert place.name == "test-job"
    assert place.control_address.startswith("tcp:10.96.")
    assert place.data_address("m") == "tcp:10.1.2.3:0"
    read = place.spec()
    assert Path(read.model_zoo, "parts", "loss.py").read_text() == "def loss(labels, predictions): ...\n"
    assert not Path(read.model_zoo, ".git").exists()
    assert read.num_workers == submitted.num_workers
    assert place.key(Key.WORKER) != place.key(Key.DATA)
    assert "token" not in [item["path"] for item in mounted["items"]]
    with pytest.raises(BadSetting, match="the job's token can't be read"):
        place.token()
    with pytest.raises(BadSetting, match="can't be read"):
        place.key(Key.CLIENT)
    told = json.loads((folder / "job.json").read_text())
    (folder / "job.json").write_text(json.dumps({**told, "version": "0.0.7"}))
    with pytest.raises(
        BadSetting, match=rf"submitted with elasticdl 0\.0\.7, and this image has {told['version']}"
    ):
        open_pod(folder, secret, work, "10.1.2.3", is_master=False)


def test_a_name_that_is_taken(api: Api, zoo: Path) -> None:
    podsubmit.submit(spec(api, zoo), api)
    before = owned(api)
    with pytest.raises(BadSetting, match="has a job named 'test-job'"):
        podsubmit.submit(spec(api, zoo), api)
    assert owned(api) == before


def test_a_namespace_that_is_not_there(api: Api, zoo: Path) -> None:
    elsewhere = connect("nowhere")
    with pytest.raises(BadSetting, match=r"no namespace 'nowhere'.*kubectl create namespace nowhere"):
        podsubmit.submit(spec(elsewhere, zoo), elsewhere)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"job_name": "Test_Job"}, "lower-case letters"),
        ({"job_name": "x" * 41}, "at most 40"),
        ({"training_data": "data/train"}, "--training_data: on Kubernetes a path is one inside the pods"),
        ({"output": "model.keras"}, "--output: on Kubernetes"),
        ({"platform": "kubernetes", "image_name": ""}, "--image_name is required on Kubernetes"),
    ],
)
def test_what_can_be_known_before_is_refused_before(
    api: Api, zoo: Path, settings: dict[str, str], said: str
) -> None:
    with pytest.raises(BadSetting, match=said):
        podsubmit.submit(spec(api, zoo, **settings), api)
    assert api.list("Job")[0] == []


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"worker_pod_priority": "0.5"}, "--worker_pod_priority: the cluster has no PriorityClass 'high'"),
        ({"worker_pod_priority": "batch"}, "no PriorityClass 'batch'"),
        (
            {"master_pod_priority": "urgent"},
            "--master_pod_priority: the cluster has no PriorityClass 'urgent'",
        ),
        ({"volume": "claim_name=data,mount_path=/data"}, "has no claim 'data'"),
    ],
)
def test_what_pods_would_wait_for_in_silence_is_said_before(
    api: Api, zoo: Path, settings: dict[str, str], said: str
) -> None:
    with pytest.raises(BadSetting, match=said):
        podsubmit.submit(spec(api, zoo, **settings), api)
    assert api.list("Job")[0] == []


def test_what_is_there_is_no_obstacle(control_plane: ControlPlane, api: Api, zoo: Path) -> None:
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "data", "namespace": api.namespace},
        "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}},
    }
    api.create(claim)
    settings = {
        "worker_pod_priority": "system-cluster-critical",
        "volume": "claim_name=data,mount_path=/data",
    }
    podsubmit.submit(spec(api, zoo, **settings), api)
    assert len(api.list("Job")[0]) == 1


def test_without_the_service_account_nothing_is_submitted(
    control_plane: ControlPlane, api: Api, zoo: Path
) -> None:
    api.delete("ServiceAccount", "elasticdl")
    user = with_cluster_role(control_plane, api.namespace, "edit")
    wait_for("the user's rights", lambda: user.may("create", "NetworkPolicy"), 60.0)
    with pytest.raises(BadSetting, match=r"no service account 'elasticdl'.*elasticdl rbac"):
        podsubmit.submit(spec(api, zoo), user)
    assert api.list("Job")[0] == []


def test_a_model_zoo_that_does_not_fit(api: Api, zoo: Path) -> None:
    (zoo / "weights.bin").write_bytes(os.urandom(800_000))
    with pytest.raises(BadSetting, match="more than the 700,000 bytes that fit"):
        podsubmit.submit(spec(api, zoo), api)
    assert api.list("Job")[0] == []


def test_what_breaks_off_leaves_nothing(control_plane: ControlPlane, api: Api, zoo: Path) -> None:
    """An object that can't be created after others have been."""
    (zoo / "weights.bin").write_bytes(os.urandom(100_000))
    api.create(
        {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": "few"},
            "spec": {"hard": {"count/secrets": "0"}},
        }
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("elasticdl.tools.survey.refuse", lambda spec, facts: "")
        wait_for("the quota", lambda: "hard" in api.get("ResourceQuota", "few").get("status", {}), 60.0)
        with pytest.raises(BadSetting, match=r"can't be created: .*exceeded quota: few"):
            podsubmit.submit(spec(api, zoo), api)
    assert [job for job in api.list("Job")[0] if "deletionTimestamp" not in job["metadata"]] == []


def test_no_rights_at_all(control_plane: ControlPlane, api: Api, zoo: Path) -> None:
    user = limited(control_plane, api.namespace, [])
    with pytest.raises(BadSetting, match=r"no job was submitted: .*you may not create jobs, patch jobs"):
        podsubmit.submit(spec(api, zoo), user)
    assert api.list("Job")[0] == []


def test_a_master_that_ends_again_and_again_is_said(control_plane: ControlPlane, api: Api, zoo: Path) -> None:
    job = podsubmit.submit(spec(api, zoo), api)
    wait_for("the master's pod", lambda: bool(api.list("Pod")[0]), 60.0)
    name = api.list("Pod")[0][0]["metadata"]["name"]
    ends(control_plane, api, name, "Failed")
    said = "1 master has ended by an error before saying anything"
    wait_for("the sentence", lambda: said in job.look().waits_for, 60.0)


def next_master(api: Api, before: set[str]) -> str:
    """Wait for a master's pod that is not one of those before it."""

    def new() -> list[str]:
        return [
            pod["metadata"]["name"]
            for pod in api.list("Pod", "elasticdl.org/role=master")[0]
            if "deletionTimestamp" not in pod["metadata"] and pod["metadata"]["name"] not in before
        ]

    wait_for("the next master", lambda: bool(new()), 60.0)
    (name,) = new()
    before.add(name)
    return name


def ends(plane: ControlPlane, api: Api, pod: str, phase: str) -> None:
    path = f"/api/v1/namespaces/{api.namespace}/pods/{pod}/status"
    assert plane.patch(path, {"status": {"phase": phase}}) is not None


def condition(api: Api, kind: str) -> bool:
    conditions = api.get("Job", "test-job").get("status", {}).get("conditions") or []
    return any(one["type"] == kind and one["status"] == "True" for one in conditions)


@pytest.mark.parametrize(("code", "phase", "end"), [(0, "Succeeded", "Complete"), (1, "Failed", "Failed")])
def test_masters_come_back_at_once_and_the_job_ends_as_the_last_of_them(
    control_plane: ControlPlane,
    api: Api,
    zoo: Path,
    monkeypatch: pytest.MonkeyPatch,
    code: int,
    phase: str,
    end: str,
) -> None:
    submitted = spec(api, zoo)
    podsubmit.submit(submitted, api)
    masters: set[str] = set()
    began = time.monotonic()
    for lost in range(9):
        name = next_master(api, masters)
        if lost % 3:
            api.delete("Pod", name, grace=0)
        else:
            ends(control_plane, api, name, "Failed")
    last = next_master(api, masters)
    # Where each loss waits longer than the one before, the last of these alone would take the better part of an hour.
    assert time.monotonic() - began < 300.0
    monkeypatch.setattr(pod, "connect_from_pod", lambda namespace: api)
    monkeypatch.setenv("JOB_COMPLETION_INDEX", "9")
    uid = api.get("Job", "test-job")["metadata"]["uid"]
    place = SimpleNamespace(name="test-job", namespace=api.namespace, uid=uid)
    master = pod.MasterPod(cast(PodPlace, place), submitted)
    assert master.finish(code) == code
    master.cluster.close()
    ends(control_plane, api, last, phase)
    wait_for("the end of the Job", lambda: condition(api, end), 60.0)
    assert last in [one["metadata"]["name"] for one in api.list("Pod")[0]], "its log is what people ask for"


def test_a_job_that_has_not_begun_is_just_removed(api: Api, zoo: Path) -> None:
    job = podsubmit.submit(spec(api, zoo), api)
    said: list[str] = []
    podrun.stop(job, said.append)
    assert said == ["test-job had not begun; everything that it made in the cluster is removed"]
    assert not job.exists()
    assert owned(api) == {}


def test_a_submission_that_broke_off_is_removed(api: Api, zoo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    create, delete = api.create, api.delete

    def away(kind: str, *_: object) -> None:
        raise Unreachable("the API is away")

    monkeypatch.setattr(
        api,
        "create",
        lambda body, **how: away("") if body["kind"] == "Secret" and not how else create(body, **how),
    )
    monkeypatch.setattr(api, "delete", away)
    with pytest.raises(BadSetting, match=r"remove what was made of it with `elasticdl stop test-job"):
        podsubmit.submit(spec(api, zoo), api)
    monkeypatch.setattr(api, "create", create)
    monkeypatch.setattr(api, "delete", delete)
    job, said = podjob.find(api, "test-job"), list[str]()
    podrun.stop(job, said.append)
    assert said == ["test-job had not begun; everything that it made in the cluster is removed"]


def test_a_job_that_has_failed_is_said_before_it_is_removed(api: Api, zoo: Path) -> None:
    job, said = podsubmit.submit(spec(api, zoo), api), list[str]()
    store, events = (ConfigMapItem(api, f"test-job-{name}") for name in ("status", "events"))
    ObjectStatusStore(store, events, lambda line: None, lambda event: None).conclude(
        {"job": "test-job", "status": "failed", "reason": "the loss is not finite", "exit_code": 1}
    )
    podrun.stop(job, said.append)
    assert said == [
        "test-job: failed (the loss is not finite); everything that it made in the cluster is removed"
    ]


def test_a_deleted_job_is_said(api: Api, zoo: Path) -> None:
    job = podsubmit.submit(spec(api, zoo), api)
    assert job.remove(60.0)
    wait_for("the end of the job", lambda: not job.exists(), 60.0)
    with pytest.raises(JobFailed, match="was deleted"):
        job.look()


def test_steering(api: Api, zoo: Path) -> None:
    job = podsubmit.submit(spec(api, zoo), api)
    job.ask_to_scale(5)
    with pytest.raises(BadSetting, match="the job has no parameter servers"):
        job.ask_to_scale(None, 2)
    job.ask_to_stop("enough")
    notes = api.get("Job", "test-job")["metadata"]["annotations"]
    assert (notes[manifests.WORKERS], notes[manifests.STOP]) == ("5", "enough")
    with pytest.raises(JobFailed):
        PodJob(api, "nobody").ask_to_stop("enough")
    with pytest.raises(JobFailed):
        PodJob(api, "nobody").ask_to_scale(2)
    assert not PodJob(api, "nobody").exists()
    assert [row[0] for row in podjob.jobs(api)] == ["test-job"]
