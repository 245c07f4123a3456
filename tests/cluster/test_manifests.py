"""The objects of a job, held against files; `python -m tests.cluster.test_manifests` writes them anew."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from elasticdl.cluster.cluster import ProcessName, Role
from elasticdl.cluster.kubernetes import manifests, networkpolicy, rbac
from elasticdl.control.transport.tls import MASTER, Identity
from elasticdl.spec.edge import build, from_arguments
from elasticdl.spec.jobspec import JobSpec

GOLDEN = Path(__file__).parent / "golden"
GUIDE = Path(__file__).resolve().parents[2] / "docs/guides/watching.md"
UID = "0a1b2c3d-0000-4000-8000-000000000001"
COMMON = {
    "model_def": "mnist.mnist_functional_api.custom_model",
    "training_data": "/data/mnist/train",
    "job_name": "test-mnist",
    "image_name": "elasticdl:mnist",
}
PLAIN = {**COMMON, "num_workers": "2"}
FULL = {
    **COMMON,
    "namespace": "training",
    "num_workers": "2:5",
    "worker_image": "elasticdl:gpu",
    "image_pull_policy": "Always",
    "master_resource_request": "cpu=250m,memory=1Gi",
    "master_resource_limit": "memory=2Gi",
    "worker_resource_request": "cpu=2,memory=4Gi,gpu=1,vendor.com/card=2",
    "worker_resource_limit": "memory=8Gi",
    "oom_memory_limit": "12Gi",
    "master_pod_priority": "high",
    "metrics_port": "9464",
    "worker_pod_priority": "0.5",
    "envs": "TF_CPP_MIN_LOG_LEVEL=2,GREETING=hello\\, world",
    "volume": "claim_name=data,mount_path=/data,sub_path=mnist,read_only=true;"
    "host_path=/mnt/out,mount_path=/out,type=Directory;secret=keys,mount_path=/keys;"
    "config_map=lists,mount_path=/lists;empty_dir=memory,mount_path=/scratch;nfs=files:/export,mount_path=/nfs",
    "pod_template": """
        metadata: {annotations: {example.com/team: vision}}
        spec: {imagePullSecrets: [{name: registry}]}
        worker: {spec: {nodeSelector: {disk: fast}, tolerations: [{key: gpu, operator: Exists}]}}
    """,
    "cluster_spec_json": '{"service_spec": {"metadata": {"annotations": {"example.com/team": "vision"}}}}',
}
SERVERS = {
    **COMMON,
    "num_workers": "2",
    "num_ps_pods": "2",
    "worker_image": "elasticdl:gpu",
    "ps_resource_request": "cpu=2,memory=16Gi",
    "ps_resource_limit": "memory=24Gi",
    "ps_pod_priority": "steady",
    "pod_template": """
        metadata: {annotations: {example.com/team: vision}}
        ps: {spec: {nodeSelector: {memory: much}, affinity: {nodeAffinity: {}}}}
    """,
}


def spec(settings: dict[str, str]) -> JobSpec:
    return build(from_arguments(settings))


def objects() -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for name, settings in (("plain", PLAIN), ("full", FULL)):
        job = spec(settings)
        names = manifests.Names(job.job_name)
        identities = {
            role: Identity(b"authority", f"{role} certificate".encode(), f"{role} key".encode())
            for role in (Role.MASTER, Role.WORKER)
        }
        found[name] = [
            manifests.master_job(job),
            manifests.service(job, UID),
            manifests.secret(job, UID, b"token", identities),
            *(
                (
                    manifests.metrics_secret(job, UID, b"token", b"authority"),
                    networkpolicy.of_metrics(job, UID),
                )
                if job.metrics_port
                else ()
            ),
            manifests.settings(
                job, UID, {"spec.json": "{}", "job.json": "{}"}, b"zoo" if name == "full" else b""
            ),
            manifests.empty_item(job, UID, names.journal),
            manifests.empty_item(job, UID, names.store),
            manifests.empty_item(job, UID, names.events),
            manifests.process_pod(job, UID, ProcessName(Role.WORKER, 0, 1)),
            manifests.process_pod(
                job, UID, ProcessName(Role.WORKER, 4, 12), 10 << 30 if name == "full" else 0
            ),
        ]
    job = spec(SERVERS)
    found["servers"] = [
        *(manifests.process_pod(job, UID, ProcessName(Role.PS, index, 1)) for index in range(2)),
        manifests.process_pod(job, UID, ProcessName(Role.WORKER, 0, 1)),
    ]
    found["rbac"] = rbac.objects("training")
    job = spec(PLAIN)
    found["protected"] = [
        manifests.master_job(job, manifests.Protection(account=True, policy=True))["spec"]["template"],
        *rbac.of_job(job, UID, [{"name": "registry"}]),
        networkpolicy.of_job(job, UID),
        manifests.process_pod(job, UID, ProcessName(Role.WORKER, 0, 1), own_policy=True),
    ]
    return found


def text(name: str) -> str:
    return yaml.safe_dump_all(objects()[name], sort_keys=False, width=120)


@pytest.mark.parametrize("name", ["plain", "full", "servers", "rbac", "protected"])
def test_objects_are_as_written(name: str) -> None:
    assert text(name) == (GOLDEN / f"{name}.yaml").read_text()


def test_only_workers_run_the_user_s_program() -> None:
    loop = build(
        from_arguments({"job_command": "python train.py", "image_name": "i", "job_name": "j", "envs": "A=1"})
    )
    commands = {
        role: manifests.pod_of(loop, role)["spec"]["containers"][0]["command"]
        for role in manifests.roles(loop)
    }
    assert commands == {
        Role.MASTER: ["python3", "-P", "-m", "elasticdl.job.master"],
        Role.WORKER: ["python3", "-P", "-m", "elasticdl.job.program"],
    }


def test_no_secret_stands_in_the_open() -> None:
    """Token and keys are in the Secret only, and each role sees its own key only."""
    for body in objects()["full"]:
        if body["kind"] != "Secret":
            assert "key" not in str(body.get("data", "")).lower()
    for role, own in ((Role.MASTER, "master"), (Role.WORKER, "worker"), (Role.PS, "worker")):
        pod = manifests.pod_of(spec(SERVERS), role)["spec"]
        (mounted,) = [volume for volume in pod["volumes"] if volume["name"] == "secret"]
        keys = [item["key"] for item in mounted["secret"]["items"] if item["key"].endswith(".key")]
        assert keys == [f"{own}.key"]


def labels(job: str, *, own_policy: bool) -> dict[str, str]:
    return manifests.labels(job, Role.WORKER, UID, own_policy=own_policy)


def test_a_role_of_one_job_reaches_no_other_job_by_name() -> None:
    _, role, _ = rbac.of_job(spec(PLAIN), UID)
    named = {rule["resources"][0]: rule.get("resourceNames") for rule in role["rules"]}
    assert named == {
        "pods": None,  # the master makes them, with new names
        "configmaps": ["test-mnist-journal", "test-mnist-status", "test-mnist-events"],
        "events": None,
        "jobs": ["test-mnist"],
    }


def test_pods_of_one_job_only_are_let_in() -> None:
    policy = networkpolicy.of_job(spec(PLAIN), UID)
    assert networkpolicy.selects(policy, labels("test-mnist", own_policy=True))
    assert not networkpolicy.selects(policy, labels("other", own_policy=True))
    (rule,) = policy["spec"]["ingress"]
    assert rule == {"from": [{"podSelector": {"matchLabels": {"elasticdl.org/job-name": "test-mnist"}}}]}
    assert policy["spec"]["policyTypes"] == ["Ingress"]  # what they reach themselves stays open


def test_everybody_is_let_in_to_the_figures_at_the_master_s_pod_only() -> None:
    policy = networkpolicy.of_metrics(spec(FULL), UID)
    master = manifests.labels("test-mnist", Role.MASTER, UID)
    assert networkpolicy.selects(policy, master)
    assert not networkpolicy.selects(policy, labels("test-mnist", own_policy=True))
    assert not networkpolicy.selects(policy, master | {"elasticdl.org/job-name": "other"})
    assert policy["spec"]["ingress"] == [{"ports": [{"port": 9464}]}]


MONITOR = {
    "": {"apiVersion", "kind", "metadata", "spec"},
    "spec": {"podMetricsEndpoints", "selector"},
    "endpoint": {"authorization", "port", "relabelings", "scheme", "tlsConfig"},
    "authorization": {"credentials"},
    "tlsConfig": {"ca", "serverName"},
    "relabeling": {"sourceLabels", "targetLabel"},
}
"""Fields of a PodMonitor that the guide may use: https://prometheus-operator.dev/docs/api-reference/api/"""


def test_the_pod_monitor_of_the_guide_fits_the_master_s_pod() -> None:
    job = spec(FULL)
    (text,) = re.findall(
        r"```yaml\n(apiVersion: monitoring\.coreos\.com/v1\n.*?)```", GUIDE.read_text(), re.DOTALL
    )
    monitor = yaml.safe_load(text)
    assert monitor.keys() == MONITOR[""]
    assert monitor["kind"] == "PodMonitor"
    assert monitor["spec"].keys() == MONITOR["spec"]
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    (relabeling,) = endpoint["relabelings"]
    used = {"endpoint": endpoint, "relabeling": relabeling} | {
        name: endpoint[name] for name in ("authorization", "tlsConfig")
    }
    assert {name: set(fields) for name, fields in used.items()} == {name: MONITOR[name] for name in used}

    template = manifests.master_job(job)["spec"]["template"]
    assert monitor["metadata"]["namespace"] == job.namespace
    chosen = monitor["spec"]["selector"]["matchLabels"].items()
    assert chosen <= template["metadata"]["labels"].items()
    assert not chosen <= labels(job.job_name, own_policy=True).items(), "a worker has no figures"
    (container,) = template["spec"]["containers"]
    assert container["ports"] == [{"name": endpoint["port"], "containerPort": 9464}]
    assert endpoint["scheme"] == "https"
    assert endpoint["tlsConfig"]["serverName"] == MASTER
    secret = manifests.metrics_secret(job, UID, b"token", b"authority")
    for key, named in (
        ("token", endpoint["authorization"]["credentials"]),
        ("ca.crt", endpoint["tlsConfig"]["ca"]["secret"]),
    ):
        assert named == {"name": secret["metadata"]["name"], "key": key}
        assert key in secret["data"]
    (label,) = relabeling["sourceLabels"]
    seen = {
        "__meta_kubernetes_pod_label_" + re.sub(r"\W", "_", name) for name in template["metadata"]["labels"]
    }
    assert label in seen


def test_the_policy_of_a_namespace_leaves_out_jobs_with_their_own() -> None:
    """What policies allow adds up: it would let pods of other jobs in."""
    policy = networkpolicy.of_namespace("training")
    assert networkpolicy.selects(policy, labels("a", own_policy=False))
    assert not networkpolicy.selects(policy, labels("a", own_policy=True))
    assert not networkpolicy.selects(policy, {"app": "web"})


@pytest.mark.parametrize(
    ("body", "selected"),
    [
        ({"podSelector": {}}, True),
        ({"podSelector": {}, "policyTypes": ["Egress"]}, False),
        ({"podSelector": {"matchLabels": {"a": "1"}}}, True),
        ({"podSelector": {"matchLabels": {"a": "1", "b": "1"}}}, False),
        ({"podSelector": {"matchExpressions": [{"key": "a", "operator": "In", "values": ["1", "2"]}]}}, True),
        ({"podSelector": {"matchExpressions": [{"key": "a", "operator": "NotIn", "values": ["1"]}]}}, False),
        ({"podSelector": {"matchExpressions": [{"key": "b", "operator": "NotIn", "values": ["1"]}]}}, True),
        ({"podSelector": {"matchExpressions": [{"key": "b", "operator": "Exists"}]}}, False),
        ({"podSelector": {"matchExpressions": [{"key": "b", "operator": "DoesNotExist"}]}}, True),
    ],
)
def test_which_pods_a_policy_selects(body: dict[str, Any], selected: bool) -> None:
    assert networkpolicy.selects({"spec": body}, {"a": "1"}) is selected


@pytest.mark.parametrize(
    ("limit", "memory", "disk", "in_memory"),
    [
        ("", 0, "10Gi", "1Gi"),
        ("memory=8Gi", 0, "10Gi", "8Gi"),
        ("memory=8Gi", 12 << 30, "10Gi", str(12 << 30)),
        ("disk=50Gi", 0, "50Gi", "1Gi"),
    ],
)
def test_an_empty_directory_has_a_limit(limit: str, memory: int, disk: str, in_memory: str) -> None:
    """That of the pod's own resources, if it has one."""
    volumes = "empty_dir=memory,mount_path=/fast;empty_dir=disk,mount_path=/scratch"
    job = spec({**COMMON, "volume": volumes, "worker_resource_limit": limit})
    pod = manifests.process_pod(job, UID, ProcessName(Role.WORKER, 0, 1), memory)
    found = {one["name"]: one["emptyDir"] for one in pod["spec"]["volumes"] if "emptyDir" in one}
    assert found == {
        "work": {"sizeLimit": disk},
        "volume-0": {"medium": "Memory", "sizeLimit": in_memory},
        "volume-1": {"sizeLimit": disk},
    }


@pytest.mark.parametrize("role", Role)
def test_no_empty_directory_is_without_a_limit(role: Role) -> None:
    pod = manifests.pod_of(spec(SERVERS), role)
    assert all("sizeLimit" in one["emptyDir"] for one in pod["spec"]["volumes"] if "emptyDir" in one)


def test_names_fit() -> None:
    longest = "a" * 40
    assert len(manifests.Names(longest).pod(ProcessName(Role.WORKER, 9999, 999_999))) <= 63


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    for page in objects():
        (GOLDEN / f"{page}.yaml").write_text(text(page))
