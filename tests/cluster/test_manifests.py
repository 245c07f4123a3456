"""The objects of a job, held against files; `python -m tests.cluster.test_manifests` writes them anew."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from elasticdl.cluster import manifests, rbac
from elasticdl.cluster.cluster import ProcessName, Role
from elasticdl.spec.edge import build, from_arguments
from elasticdl.spec.jobspec import JobSpec
from elasticdl.spec.tls import Identity

GOLDEN = Path(__file__).parent / "golden"
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
            manifests.settings(
                job, UID, {"spec.json": "{}", "job.json": "{}"}, b"zoo" if name == "full" else b""
            ),
            manifests.empty_item(job, UID, names.journal),
            manifests.empty_item(job, UID, names.board),
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
    return found


def text(name: str) -> str:
    return yaml.safe_dump_all(objects()[name], sort_keys=False, width=120)


@pytest.mark.parametrize("name", ["plain", "full", "servers", "rbac"])
def test_objects_are_as_written(name: str) -> None:
    assert text(name) == (GOLDEN / f"{name}.yaml").read_text()


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


def test_names_fit() -> None:
    longest = "a" * 40
    assert len(manifests.Names(longest).pod(ProcessName(Role.WORKER, 9999, 999_999))) <= 63


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    for page in objects():
        (GOLDEN / f"{page}.yaml").write_text(text(page))
