"""The doctor's judgements, where no cluster is needed to see them."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pytest

from elasticdl.cluster.cluster import Role
from elasticdl.cluster.kubernetes import manifests, networkpolicy
from elasticdl.cluster.kubernetes.manifests import Protection
from elasticdl.spec.edge import build, from_arguments
from elasticdl.spec.jobspec import JobSpec
from elasticdl.tools import doctor, survey
from elasticdl.tools.doctor import Facts, Finding, Key, Level, Tried


def spec(**settings: object) -> JobSpec:
    given = {"model_def": "m.model", "training_data": "/data", "job_name": "job", "image_name": "image"}
    return build(from_arguments(given | settings))


def quota(hard: dict[str, str], used: dict[str, str] | None = None, **more: Any) -> dict[str, Any]:
    return {"metadata": {"name": "q"}, "spec": {"hard": hard, **more}, "status": {"used": used or {}}}


def of_quotas(job: JobSpec, *quotas: dict[str, Any]) -> list[tuple[Level, str]]:
    found = doctor.judge(job, Facts(quotas=quotas))
    return [(one.level, one.text) for one in found if "quota" in one.text]


@pytest.mark.parametrize(
    ("hard", "used", "level"),
    [
        ({"requests.cpu": "2100m"}, "0", Level.OK),
        ({"requests.cpu": "2099m"}, "0", Level.WRONG),
        ({"cpu": "4"}, "1900m", Level.OK),
        ({"cpu": "4"}, "1901m", Level.WAITS),
        ({"memory": "4608Mi"}, "0", Level.OK),
        ({"requests.memory": "4Gi"}, "0", Level.WRONG),
        ({"limits.memory": "1Gi"}, "0", Level.OK),  # nothing is asked for by these settings
        ({"pods": "3"}, "0", Level.OK),
        ({"count/pods": "3"}, "1", Level.WAITS),
        ({"pods": "2"}, "0", Level.WRONG),
        ({"count/jobs.batch": "5"}, "5", Level.WAITS),
        ({"configmaps": "2"}, "0", Level.WRONG),
        ({"persistentvolumeclaims": "0"}, "0", Level.OK),
        ({"requests.nvidia.com/gpu": "0"}, "0", Level.OK),
    ],
)
def test_quotas(hard: dict[str, str], used: str, level: Level) -> None:
    job = spec(num_workers="2:9")
    (found,) = of_quotas(job, quota(hard, dict.fromkeys(hard, used)))
    assert found[0] is level


def test_resources_of_vendors_count() -> None:
    job = spec(num_workers="2:2", worker_resource_request="cpu=1,gpu=2")
    (found,) = of_quotas(job, quota({"requests.nvidia.com/gpu": "3"}))
    assert found == (
        Level.WRONG,
        "the master and 2 workers (the least of --num_workers) ask for 4 of requests.nvidia.com/gpu, and the quota 'q' of the "
        "namespace default allows 3 in all",
    )


def test_parameter_servers_count() -> None:
    job = spec(num_ps_pods=2, ps_resource_request="cpu=3", ps_pod_priority="steady", worker_image="other")
    (found,) = of_quotas(job, quota({"requests.cpu": "7"}))
    assert found == (
        Level.WRONG,
        "the master, 2 parameter servers and 1 worker (the least of --num_workers) ask for 7.1 of requests.cpu, and the quota 'q' of "
        "the namespace default allows 7 in all",
    )
    assert Key("PriorityClass", "steady") in doctor.wanted(job)
    assert "parameter server's pod" in doctor.bodies(job)
    assert doctor.images(job) == {"image": Role.PS, "other": Role.WORKER}


@pytest.mark.parametrize(
    ("more", "covered"),
    [
        ({"scopes": ["BestEffort"]}, False),
        ({"scopes": ["NotBestEffort", "NotTerminating"]}, True),
        ({"scopes": ["Terminating"]}, False),
        ({"scopes": ["PriorityClass"]}, True),
        ({"scopeSelector": {"matchExpressions": [{"scopeName": "PriorityClass", "operator": "In", "values": ["a"]}]}}, True),
        ({"scopeSelector": {"matchExpressions": [{"scopeName": "PriorityClass", "operator": "In", "values": ["b"]}]}}, False),
        ({"scopeSelector": {"matchExpressions": [{"scopeName": "PriorityClass", "operator": "NotIn", "values": ["b"]}]}}, True),
        ({"scopeSelector": {"matchExpressions": [{"scopeName": "PriorityClass", "operator": "DoesNotExist"}]}}, False),
    ],
)  # fmt: skip
def test_quotas_of_some_pods_only(more: dict[str, Any], covered: bool) -> None:
    job = spec(worker_pod_priority="a", master_pod_priority="a")
    (found,) = of_quotas(job, quota({"pods": "1"}, **more))
    assert found[0] is (Level.WRONG if covered else Level.OK)


def test_what_can_not_be_seen_is_not_called_missing() -> None:
    job = spec(worker_pod_priority="high", volume="claim_name=data,mount_path=/data")
    found = {one.text: one.level for one in doctor.judge(job, Facts())}
    assert found["whether the PriorityClass 'high' is there is not for you to see"] is Level.UNKNOWN
    assert found["whether the claim 'data' is there is not for you to see"] is Level.UNKNOWN
    assert Level.WRONG not in found.values()


@pytest.mark.parametrize(
    ("modes", "settings", "said"),
    [
        (["ReadWriteMany"], {"audit": "/data/a"}, ""),
        (["ReadWriteOnce", "ReadOnlyMany"], {"audit": "/data/a"}, ""),
        (["ReadWriteOnce"], {"audit": "/data/a"}, "the claim 'c', with --audit on it, can be mounted by one node at a time"),
        (["ReadWriteOnce"], {"audit": "/database/a"}, "the claim 'c' can be mounted by one node at a time"),
        (["ReadWriteOncePod"], {}, "can be mounted by one pod at a time"),
        (["ReadOnlyMany"], {}, ""),
        (["ReadOnlyMany"], {"checkpoint_dir": "/data"}, "--checkpoint_dir: the claim 'c' can only be read (ReadOnlyMany)"),
    ],
)  # fmt: skip
def test_access_modes(modes: list[str], settings: dict[str, str], said: str) -> None:
    key = Key("PersistentVolumeClaim", "c")
    job = spec(volume="claim_name=c,mount_path=/data", **settings)
    facts = Facts(found={key: {"spec": {"accessModes": modes}}})
    found = [
        str(one)
        for one in doctor.judge(job, facts)
        if "claim" in one.text and one.level in (Level.WARNING, Level.WRONG)
    ]
    assert bool(found) == bool(said)
    assert not said or said in found[0]


def of_network(facts: Facts) -> list[tuple[Level, str]]:
    return [(one.level, str(one)) for one in doctor.judge(spec(), facts) if "NetworkPolic" in one.text]


def test_pods_that_no_network_policy_selects_are_said() -> None:
    open_to_all = (
        Level.WARNING,
        "no NetworkPolicy selects the job's pods (master, worker): every pod of the cluster reaches their ports; "
        "`elasticdl rbac --namespace=default | kubectl apply -f -` makes one",
    )
    assert of_network(Facts(policies=())) == [open_to_all]
    other = {"spec": {"podSelector": {"matchLabels": {"app": "web"}}}}
    assert of_network(Facts(policies=(other,))) == [open_to_all]
    masters = {"spec": {"podSelector": {"matchLabels": {"elasticdl.org/role": "master"}}}}
    assert "(worker)" in of_network(Facts(policies=(other, masters)))[0][1]
    for enough in ({"spec": {"podSelector": {}}}, networkpolicy.of_namespace("default")):
        assert of_network(Facts(policies=(enough,)))[0][0] is Level.OK
    assert of_network(Facts())[0][0] is Level.UNKNOWN
    assert of_network(Facts(policies=(), protection=Protection(policy=True)))[0][0] is Level.OK


def test_a_job_with_an_account_of_its_own_needs_no_shared_one() -> None:
    missing = frozenset({Key("ServiceAccount", "elasticdl")})
    assert any(one.level is Level.WRONG for one in doctor.judge(spec(), Facts(missing=missing)))
    facts = Facts(missing=missing, protection=Protection(account=True))
    assert not [one for one in doctor.judge(spec(), facts) if one.level is Level.WRONG]


def test_pull_secrets_are_looked_for() -> None:
    job = spec(pod_template={"worker": {"spec": {"imagePullSecrets": [{"name": "registry"}]}}})
    key = Key("Secret", "registry")
    assert key in doctor.wanted(job)
    found = [one for one in doctor.judge(job, Facts(missing=frozenset({key}))) if "registry" in one.text]
    assert [one.level for one in found] == [Level.WARNING]


def test_an_old_cluster() -> None:
    said = 'strict decoding error: unknown field "spec.successPolicy"'
    found = list(doctor.judge(spec(), Facts(refused={"master's Job": said})))
    assert found[-1] == Finding(Level.WRONG, "the cluster's Kubernetes is older than 1.31, which jobs need")


def test_images_are_tried_where_they_run() -> None:
    assert list(doctor.images(spec())) == ["image"]
    assert doctor.images(spec(worker_image="gpu")) == {"gpu": "worker", "image": "master"}


def test_two_versions_are_both_named() -> None:
    found = doctor.judge_image(Tried("image", version="1.2.3"), "1.2.4")
    assert found.level is Level.WRONG
    assert "1.2.3" in found.text
    assert "1.2.4" in found.text


@pytest.mark.parametrize(
    ("reserved", "framework", "warned"),
    [
        ("cpu=1,gpu=2", "tensorflow-cpu 2.21.0", True),
        ("cpu=1,nvidia.com/gpu=1", "tensorflow-cpu 2.21.0", True),
        ("cpu=1,gpu=1", "", False),
        ("cpu=1", "tensorflow-cpu 2.21.0", False),
    ],
)
def test_a_gpu_that_the_image_can_not_use(reserved: str, framework: str, warned: bool) -> None:
    tried = Tried("image", version="1", cpu_framework=framework)
    found = list(doctor.judge_gpus(spec(worker_resource_request=reserved), tried))
    assert [one.level for one in found] == [Level.WARNING] * warned
    if warned:
        assert "image has tensorflow-cpu 2.21.0, which can't use GPUs" in found[0].text
        assert "elasticdl zoo build --gpu" in found[0].todo


def test_a_probe_says_version_and_framework(tmp_path: Path) -> None:
    """What the image is asked, in the environment of this test; its words are read as the pod's status has them."""
    pod = manifests.pod_of(spec(), Role.WORKER)
    (container,) = manifests.probe_pod(pod, "probe", 60)["spec"]["containers"]
    program = container["command"][-1].replace("/dev/termination-log", str(tmp_path / "said"))
    subprocess.run([sys.executable, "-P", "-c", program], check=True, timeout=60)
    ended = {"exitCode": 0, "message": (tmp_path / "said").read_text()}
    status = {"containerStatuses": [{"name": "probe", "state": {"terminated": ended}}]}
    tried = survey.read_probe({"status": status}, "image")
    assert tried is not None
    assert tried.version == version("elasticdl")
    try:
        assert tried.cpu_framework == f"tensorflow-cpu {version('tensorflow-cpu')}"
    except PackageNotFoundError:
        assert not tried.cpu_framework
