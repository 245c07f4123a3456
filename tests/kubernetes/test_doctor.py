"""What the doctor finds, against a real API server; the tests play the kubelet where an image is tried."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from elasticdl.cluster.kubernetes import rbac
from elasticdl.cluster.kubernetes.api import Api, connect
from elasticdl.errors import BadSetting
from elasticdl.job import podsubmit
from elasticdl.spec.jobspec import JobSpec
from elasticdl.tools import survey
from elasticdl.tools.doctor import Finding, Level, Tried

from .control_plane import ControlPlane
from .processes import wait_for
from .rights import limited, with_cluster_role
from .submitting import spec

pytestmark = pytest.mark.usefixtures("rights")

SECONDS = 60.0
SUBMIT = [
    {"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["create", "patch", "delete", "get"]},
    {"apiGroups": [""], "resources": ["services", "secrets"], "verbs": ["create"]},
    {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["create", "get"]},
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]},
]

ASK = {"apiGroups": ["authorization.k8s.io"], "resources": ["localsubjectaccessreviews"], "verbs": ["create"]}


@pytest.fixture
def good_image(monkeypatch: pytest.MonkeyPatch) -> None:
    """Images are as they should be; without nodes none could be tried."""
    own = version("elasticdl")
    monkeypatch.setattr(survey, "try_image", lambda api, pod, image, job: Tried(image, version=own))


def bad(job: JobSpec, api: Api) -> list[Finding]:
    """Return the findings that are not good."""
    return [one for one in survey.examine(job, api) if one.level is not Level.OK]


def only(job: JobSpec, api: Api, level: Level) -> str:
    """Return the one finding that is not good, in words."""
    (found,) = bad(job, api)
    assert found.level is level, found
    return str(found)


def make(plane: ControlPlane, api: Api, kind: str, name: str, **body: Any) -> None:
    given = {"apiVersion": "v1", "kind": kind, "metadata": {"name": name}, **body}
    plane.kubectl("create", "-f", "-", f"--namespace={api.namespace}", stdin=json.dumps(given))


def quota(plane: ControlPlane, api: Api, **hard: str) -> None:
    make(
        plane,
        api,
        "ResourceQuota",
        "small",
        spec={"hard": {key.replace("_", "."): one for key, one in hard.items()}},
    )
    wait_for("the quota", lambda: "used" in api.get("ResourceQuota", "small").get("status", {}), SECONDS)


@pytest.mark.usefixtures("good_image")
def test_nothing_is_wrong(api: Api, zoo: Path) -> None:
    said = [
        str(one) for one in survey.examine(spec(api, zoo, master_pod_priority="system-cluster-critical"), api)
    ]
    assert said == [
        f"the cluster answers, for the namespace {api.namespace}",
        "you may submit jobs and watch them",
        "the job's master gets a service account of its own, with a Role for this job",
        "the job gets a NetworkPolicy of its own: only its pods reach its ports, where the network obeys",
        "the PriorityClass 'system-cluster-critical' is there",
        "the cluster takes the master's Job",
        "the cluster takes the master's pod",
        "the cluster takes the worker's pod",
        f"the image elasticdl:test can be pulled, and has elasticdl {version('elasticdl')} like you",
    ]
    assert [api.list(kind)[0] for kind in ("Pod", "Job")] == [[], []]


@pytest.mark.usefixtures("good_image")
def test_no_namespace(api: Api, zoo: Path) -> None:
    elsewhere = connect("nowhere")
    said = only(spec(elsewhere, zoo), elsewhere, Level.WRONG)
    assert said == (
        "--namespace: the cluster has no namespace 'nowhere'; `kubectl create namespace nowhere` makes it"
    )


def test_no_rights(control_plane: ControlPlane, api: Api, zoo: Path) -> None:
    found = bad(spec(api, zoo), limited(control_plane, api.namespace, []))
    assert str(found[0]) == (
        f"in the namespace {api.namespace} you may not create jobs, patch jobs, delete jobs, create services, create secrets, "
        "create configmaps, get jobs, get configmaps, list pods; "
        "the namespace's administrator can allow it; the Role `edit` of most clusters does"
    )
    assert [(one.level, one.text) for one in found[1:]] == [
        (Level.WARNING, f"in the namespace {api.namespace} you may not read logs of pods"),
        (Level.UNKNOWN, "whether the service account 'elasticdl' has its rights is not for you to ask"),
        (
            Level.UNKNOWN,
            f"whether a NetworkPolicy of the namespace {api.namespace} selects the job's pods is not for you to see",
        ),
        (Level.UNKNOWN, f"whether the namespace {api.namespace} has quotas is not for you to see"),
        (Level.UNKNOWN, "the image elasticdl:test was not tried: you may not create pods in the namespace"),
    ]


@pytest.mark.parametrize("number", range(len(SUBMIT)))
def test_each_right_is_missed(control_plane: ControlPlane, api: Api, zoo: Path, number: int) -> None:
    user = limited(control_plane, api.namespace, [*SUBMIT[:number], *SUBMIT[number + 1 :]])
    (wrong,) = [one for one in bad(spec(api, zoo), user) if one.level is Level.WRONG]
    for verb in SUBMIT[number]["verbs"]:
        for resource in SUBMIT[number]["resources"]:
            assert f"{verb} {resource}" in wrong.text
    with pytest.raises(BadSetting, match=r"no job was submitted: in the namespace .* you may not"):
        podsubmit.submit(spec(api, zoo), user)


def test_these_rights_are_enough_to_submit(control_plane: ControlPlane, api: Api, zoo: Path) -> None:
    user = limited(control_plane, api.namespace, SUBMIT)
    assert not [one for one in bad(spec(api, zoo), user) if one.level is Level.WRONG]
    job = podsubmit.submit(spec(api, zoo), user)
    assert job.look().summary is None
    job.remove(60.0)


@pytest.mark.usefixtures("good_image")
def test_no_service_account(control_plane: ControlPlane, api: Api, zoo: Path) -> None:
    """Whoever may not make one for the job needs the namespace's."""
    api.delete("ServiceAccount", "elasticdl")
    user = with_cluster_role(control_plane, api.namespace, "edit")
    wait_for("the user's rights", lambda: user.may("create", "NetworkPolicy"), SECONDS)
    assert only(spec(api, zoo), user, Level.WRONG) == (
        f"the namespace {api.namespace} has no service account 'elasticdl' for masters; "
        f"run `elasticdl rbac --namespace={api.namespace} | kubectl apply -f -` once"
    )


@pytest.mark.usefixtures("good_image")
@pytest.mark.parametrize(("group", "resource", "verbs"), rbac.RULES)
def test_masters_without_a_right(
    control_plane: ControlPlane, api: Api, zoo: Path, group: str, resource: str, verbs: tuple[str, ...]
) -> None:
    _, role, *_ = rbac.objects(api.namespace)
    role["rules"] = [rule for rule in role["rules"] if rule["resources"] != [resource]]
    api.replace(role)
    lacking = ", ".join(f"{verb} {resource}" for verb in verbs)
    wanted = f"the service account 'elasticdl', which masters have, may not {lacking}; run `elasticdl rbac"
    # The API server's authorizer learns of a new Role a moment later.
    user = limited(control_plane, api.namespace, [*SUBMIT, ASK])
    wait_for("the finding", lambda: any(wanted in str(one) for one in bad(spec(api, zoo), user)), SECONDS)


@pytest.mark.usefixtures("good_image")
@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"worker_pod_priority": "batch"}, "--worker_pod_priority: the cluster has no PriorityClass 'batch'"),
        (
            {"master_pod_priority": "urgent"},
            "--master_pod_priority: the cluster has no PriorityClass 'urgent'",
        ),
    ],
)
def test_no_priority_class(api: Api, zoo: Path, settings: dict[str, str], said: str) -> None:
    told = only(spec(api, zoo, **settings), api, Level.WRONG)
    assert told == f"{said}; `kubectl get priorityclasses` shows those it has"


@pytest.mark.usefixtures("good_image")
@pytest.mark.parametrize(
    ("volume", "said"),
    [
        (
            "claim_name=data,mount_path=/data",
            "has no claim 'data'; `kubectl get persistentvolumeclaims --namespace=",
        ),
        ("secret=keys,mount_path=/keys", "has no Secret 'keys'; `kubectl get secrets --namespace="),
        (
            "config_map=lists,mount_path=/lists",
            "has no ConfigMap 'lists'; `kubectl get configmaps --namespace=",
        ),
    ],
)
def test_a_volume_that_is_not_there(api: Api, zoo: Path, volume: str, said: str) -> None:
    assert said in only(spec(api, zoo, volume=volume), api, Level.WRONG)


@pytest.mark.usefixtures("good_image")
def test_a_claim_that_nodes_can_not_share(control_plane: ControlPlane, api: Api, zoo: Path) -> None:
    make(
        control_plane, api, "PersistentVolumeClaim", "data",
        spec={"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    )  # fmt: skip
    job = spec(
        api, zoo, volume="claim_name=data,mount_path=/data", audit="/data/audit", output="/data/m.keras"
    )
    assert only(job, api, Level.WARNING) == (
        "the claim 'data', with --output and --audit on it, can be mounted by one node at a time (ReadWriteOnce), and every pod of "
        "the job mounts it: all of them have to be on that node; use a claim with the access mode ReadWriteMany"
    )


@pytest.mark.usefixtures("good_image")
def test_a_quota_that_is_too_small(control_plane: ControlPlane, api: Api, zoo: Path) -> None:
    quota(control_plane, api, requests_cpu="2", requests_memory="100Gi", pods="50")
    said = only(spec(api, zoo, num_workers="2:9"), api, Level.WRONG)
    assert said == (
        "the master and 2 workers (the least of --num_workers) ask for 2.1 of requests.cpu, and the quota 'small' of the namespace "
        f"{api.namespace} allows 2 in all; ask for less with --worker_resource_request, --master_resource_request or --num_workers, "
        "or get a larger quota"
    )
    assert bad(spec(api, zoo, num_workers="1:9"), api) == []
    with pytest.raises(BadSetting, match="no job was submitted: the master and 2 workers"):
        podsubmit.submit(spec(api, zoo, num_workers="2:9"), api)


@pytest.mark.usefixtures("good_image")
def test_a_quota_that_others_use(control_plane: ControlPlane, api: Api, zoo: Path) -> None:
    quota(control_plane, api, requests_memory="8Gi")
    container = {"name": "a", "image": "a", "resources": {"requests": {"memory": "6Gi"}}}
    make(control_plane, api, "Pod", "other", spec={"containers": [container]})
    wait_for(
        "its use",
        lambda: "6" in api.get("ResourceQuota", "small")["status"]["used"]["requests.memory"],
        SECONDS,
    )
    job = spec(api, zoo, num_workers=2)
    assert only(job, api, Level.WAITS) == (
        "the master and 1 worker (the least of --num_workers) ask for 2.5Gi of requests.memory, and the quota 'small' of the "
        f"namespace {api.namespace} allows 8Gi, of which 6Gi are in use; the job would wait until others leave; else ask for less "
        "with --worker_resource_request, --master_resource_request or --num_workers"
    )
    podsubmit.submit(job, api)  # it waits for its turn


@pytest.mark.usefixtures("good_image")
def test_a_limit_of_single_pods(control_plane: ControlPlane, api: Api, zoo: Path) -> None:
    make(
        control_plane,
        api,
        "LimitRange",
        "small",
        spec={"limits": [{"type": "Container", "max": {"memory": "1Gi"}}]},
    )
    job = spec(api, zoo, worker_resource_limit="memory=4Gi", master_resource_limit="memory=1Gi")
    wait_for("the limit", lambda: len(bad(job, api)) == 1, SECONDS)
    said = only(job, api, Level.WRONG)
    assert said.startswith("the cluster refuses the worker's pod: ")
    assert "maximum memory usage per Container is 1Gi, but limit is 4Gi" in said


@pytest.mark.usefixtures("good_image")
def test_a_template_that_the_cluster_does_not_understand(api: Api, zoo: Path) -> None:
    template = {"worker": {"spec": {"affinity": {"nodeAffinty": {}}}}}
    said = only(spec(api, zoo, pod_template=template), api, Level.WRONG)
    assert said.startswith("the cluster refuses the worker's pod: ")
    assert 'unknown field "spec.affinity.nodeAffinty"' in said


# ---------------------------------------------------------------------- images


@pytest.fixture
def kubelet(control_plane: ControlPlane, api: Api) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Let the next pod that tries an image have this status, as soon as there is one."""
    threads: list[threading.Thread] = []
    over = threading.Event()

    def report(status: dict[str, Any]) -> None:
        while not over.wait(0.05):
            for pod in api.list("Pod", "app.kubernetes.io/component=probe")[0]:
                path = f"/api/v1/namespaces/{api.namespace}/pods/{pod['metadata']['name']}/status"
                control_plane.patch(path, {"status": status})
                return

    def start(status: dict[str, Any]) -> None:
        threads.append(threading.Thread(target=report, args=(status,)))
        threads[-1].start()

    yield start
    over.set()
    for thread in threads:
        thread.join()
    assert not probes(api)


def probes(api: Api) -> list[str]:
    return [one["metadata"]["name"] for one in api.list("Pod", "app.kubernetes.io/component=probe")[0]]


def container(**state: Any) -> dict[str, Any]:
    one = {
        "name": "probe",
        "image": "image",
        "imageID": "",
        "ready": False,
        "restartCount": 0,
        "state": state,
    }
    return {"containerStatuses": [one]}


def terminated(code: int, message: str) -> dict[str, Any]:
    return container(terminated={"exitCode": code, "message": message})


@pytest.mark.parametrize(
    ("status", "level", "said"),
    [
        (
            container(waiting={"reason": "ErrImagePull", "message": "no such host"}), Level.WRONG,
            "the image elasticdl:test can't be used: ErrImagePull: no such host; look at --image_name",
        ),
        (
            container(waiting={"reason": "ErrImageNeverPull", "message": "not present with pull policy of Never"}), Level.WRONG,
            "can't be used: ErrImageNeverPull: not present with pull policy of Never; look at",
        ),
        (container(waiting={"reason": "InvalidImageName"}), Level.WRONG, "can't be used: InvalidImageName; look at"),
        (
            terminated(1, "Traceback\nPackageNotFoundError: elasticdl\n"), Level.WRONG,
            "it can't say which version of elasticdl it has: PackageNotFoundError: elasticdl; look at",
        ),
        (
            terminated(0, "0.0.7"), Level.WRONG,
            f"has elasticdl 0.0.7, and you submit with {version('elasticdl')}: all processes of a job are of one version; build",
        ),
        ({"phase": "Failed", "reason": "Evicted", "message": "no disk"}, Level.UNKNOWN, "was not tried: Evicted: no disk"),
    ],
)  # fmt: skip
def test_an_image_is_tried(
    api: Api,
    zoo: Path,
    kubelet: Callable[[dict[str, Any]], None],
    status: dict[str, Any],
    level: Level,
    said: str,
) -> None:
    kubelet(status)
    assert said in only(spec(api, zoo), api, level)


def test_an_image_of_this_version_is_good(
    api: Api, zoo: Path, kubelet: Callable[[dict[str, Any]], None]
) -> None:
    kubelet(terminated(0, version("elasticdl")))
    assert bad(spec(api, zoo), api) == []


def test_a_full_cluster_says_nothing_about_an_image(
    api: Api, zoo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(survey, "ROOM_SECONDS", 1.0)
    said = only(spec(api, zoo), api, Level.UNKNOWN)
    assert said.startswith("the image elasticdl:test was not tried: no node took a pod of it within 1 s: ")
    assert not probes(api)


def test_nothing_is_left_after_ctrl_c(api: Api, zoo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(pod: dict[str, Any], image: str) -> None:
        assert probes(api) == [pod["metadata"]["name"]]
        raise KeyboardInterrupt

    monkeypatch.setattr(survey, "read_probe", interrupt)
    with pytest.raises(KeyboardInterrupt):
        list(survey.examine(spec(api, zoo), api))
    assert not probes(api)
