"""What the submitting side adds to pods: its environment, and what a Python file of the person's changes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from elasticdl.cluster.cluster import ProcessName, Role
from elasticdl.cluster.kubernetes import manifests, podplace
from elasticdl.cluster.kubernetes.attributes import key_of
from elasticdl.errors import BadSetting
from elasticdl.job.clusterspec import settle
from elasticdl.spec.edge import build, from_arguments
from elasticdl.spec.jobspec import JobSpec, from_json
from kubernetes import client

FILE = """
class Cluster:
    def with_pod(self, pod):
        pod["metadata"]["labels"]["team"] = "vision"
        pod["spec"].setdefault("tolerations", []).append({"key": "gpu", "operator": "Exists"})
        if pod["metadata"]["labels"]["elasticdl.org/role"] == "worker":
            pod["spec"]["nodeSelector"] = {"disk": "fast"}
            del pod["spec"]["securityContext"]["fsGroup"]
        return pod

    def with_service(self, service):
        service["metadata"]["annotations"] = {"team": "vision"}
        return service

cluster = Cluster()
"""


def spec(**settings: object) -> JobSpec:
    given = {"model_def": "m.model", "training_data": "/data", "job_name": "job", "image_name": "image"}
    return build(from_arguments(given | settings))


def worker(job: JobSpec, index: int = 0) -> dict[str, Any]:
    return manifests.process_pod(job, "uid", ProcessName(Role.WORKER, index, 1))


def master(job: JobSpec) -> dict[str, Any]:
    template: dict[str, Any] = manifests.master_job(job)["spec"]["template"]
    return template


def test_the_file_changes_pods_that_are_made_without_it(tmp_path: Path) -> None:
    file = tmp_path / "cluster.py"
    file.write_text(FILE)
    settled = settle(spec(cluster_spec=str(file)))
    file.unlink()
    sent = from_json(settled.to_json())  # as the master reads it
    assert settle(sent) == sent == settled
    plain, pod = worker(spec(), 7), worker(sent, 7)
    assert pod["metadata"]["name"] == "job-worker-7-1"
    assert pod["metadata"]["labels"]["team"] == master(sent)["metadata"]["labels"]["team"] == "vision"
    assert pod["spec"]["nodeSelector"] == {"disk": "fast"}
    assert "nodeSelector" not in master(sent)["spec"]
    assert "fsGroup" not in pod["spec"]["securityContext"]
    assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
    added = {"key": "gpu", "operator": "Exists"}
    assert pod["spec"]["tolerations"] == [*plain["spec"]["tolerations"], added]
    assert pod["spec"]["containers"] == plain["spec"]["containers"]
    assert manifests.service(sent, "uid")["metadata"]["annotations"] == {"team": "vision"}


ATTRIBUTES = """
from kubernetes import client

class Cluster:
    def with_pod(self, pod):
        assert pod.spec.node_selector is None and pod.metadata.annotations is None
        assert pod.spec.containers[0].env[0].name == pod["spec"]["containers"][0]["env"][0]["name"]
        pod.metadata.annotations = {"team": "vision"}
        pod.metadata.labels["team"] = "vision"
        pod.spec.host_network = True
        pod.spec.dns_policy = "ClusterFirstWithHostNet"
        pod.spec.tolerations.append(client.V1Toleration(key="gpu", operator="Exists", toleration_seconds=9))
        pod["spec"]["hostIPC"] = False
        pod.spec.security_context.fs_group = None
        term = client.V1NodeSelectorTerm(
            match_expressions=[client.V1NodeSelectorRequirement(key="disk", operator="In", values=["fast"])]
        )
        pod.spec.affinity = client.V1Affinity(node_affinity=client.V1NodeAffinity(
            required_during_scheduling_ignored_during_execution=client.V1NodeSelector(node_selector_terms=[term])))
        pod.spec.containers[0].env.append(client.V1EnvVar(name="MODE", value="fast"))
        pod.spec.containers[0].env.append({"name": "LEVEL", "value": "3"})
        return pod

    def with_service(self, service):
        service.metadata.annotations = {"team": "vision"}
        service.spec.session_affinity = "ClientIP"
        return service

cluster = Cluster()
"""


def test_the_file_may_use_attributes_and_objects_of_kubernetes_client(tmp_path: Path) -> None:
    (tmp_path / "cluster.py").write_text(ATTRIBUTES)
    sent = from_json(json.loads(json.dumps(settle(spec(cluster_spec=tmp_path / "cluster.py")).to_json())))
    plain, pod = worker(spec(), 3), worker(sent, 3)
    for made in (pod, master(sent)):
        assert made["metadata"]["labels"]["team"] == made["metadata"]["annotations"]["team"] == "vision"
        assert (made["spec"]["hostNetwork"], made["spec"]["hostIPC"]) == (True, False)
        assert made["spec"]["dnsPolicy"] == "ClusterFirstWithHostNet"
        assert "fsGroup" not in made["spec"]["securityContext"]
        assert made["spec"]["affinity"] == {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [
                        {"matchExpressions": [{"key": "disk", "operator": "In", "values": ["fast"]}]}
                    ]
                }
            }
        }
        env = {one["name"]: one.get("value") for one in made["spec"]["containers"][0]["env"]}
        assert (env["MODE"], env["LEVEL"]) == ("fast", "3")
    added = {"key": "gpu", "operator": "Exists", "tolerationSeconds": 9}
    assert pod["spec"]["tolerations"] == [*plain["spec"]["tolerations"], added]
    process = {one["name"]: one.get("value") for one in pod["spec"]["containers"][0]["env"]}
    assert process[podplace.PROCESS_ENVIRONMENT] == "worker-3-1"
    service = manifests.service(sent, "uid")
    assert service["metadata"]["annotations"] == {"team": "vision"}
    assert service["spec"]["sessionAffinity"] == "ClientIP"


def test_attributes_are_named_as_in_kubernetes_client() -> None:
    seen: set[str] = set()
    rest = ["V1Pod", "V1Service"]
    while rest:
        name = rest.pop()
        model = getattr(client, name, None)
        if name in seen or model is None:
            continue
        seen.add(name)
        for attribute, key in model.attribute_map.items():
            if not attribute.startswith("_"):
                assert key_of(attribute) == key, name
            rest += re.findall(r"V1\w+", model.openapi_types[attribute])
    assert len(seen) > 100


def test_servers_are_shown_to_the_file_where_there_are_some(tmp_path: Path) -> None:
    (tmp_path / "cluster.py").write_text(
        "class cluster:\n  def with_pod(pod):\n"
        "    pod['metadata']['labels']['seen'] = pod['metadata']['labels']['elasticdl.org/role']\n    return pod\n"
    )
    for servers, roles in ((0, {"master", "worker"}), (2, {"master", "worker", "ps"})):
        job = settle(spec(cluster_spec=tmp_path / "cluster.py", num_ps_pods=servers))
        assert job.cluster_spec_json["pod_spec"].keys() == roles
        assert worker(job)["metadata"]["labels"]["seen"] == "worker"
    server = manifests.process_pod(job, "uid", ProcessName(Role.PS, 1, 3))
    assert server["metadata"]["labels"]["seen"] == "ps"


def test_templates_are_merged_in_order(tmp_path: Path) -> None:
    (tmp_path / "cluster.py").write_text(
        "class cluster:\n  def with_pod(pod):\n    pod['spec']['nodeSelector'].pop('a')\n    return pod\n"
    )
    job = settle(
        spec(
            pod_template={
                "spec": {"nodeSelector": {"a": "1", "b": "1"}},
                "worker": {"spec": {"nodeSelector": {"b": "2", "c": "2"}}},
            },
            cluster_spec_json={"pod_spec": {"spec": {"nodeSelector": {"c": "3"}}}},
            cluster_spec=tmp_path / "cluster.py",
        )
    )
    assert worker(job)["spec"]["nodeSelector"] == {"b": "2", "c": "3"}
    assert master(job)["spec"]["nodeSelector"] == {"b": "1", "c": "3"}


def test_a_toleration_of_ones_own_stands_in_place_of_ours() -> None:
    given = [{"key": "node.kubernetes.io/unreachable", "operator": "Exists", "tolerationSeconds": 60}]
    found = worker(spec(pod_template={"spec": {"tolerations": given}}))["spec"]["tolerations"]
    assert [(one["key"].rpartition("/")[2], one["tolerationSeconds"]) for one in found] == [
        ("not-ready", 5),
        ("unreachable", 60),
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "class cluster:\n  def with_pod(pod):\n    pod.spec.host_networks = True\n    return pod",
            "pod_spec.master.spec.hostNetworks is unknown, did you mean hostNetwork?",
        ),
        (
            "class cluster:\n  def with_pod(pod):\n    pod.spec.containers[0].env[0].value = 'x'\n    return pod",
            "pod_spec.master.spec.containers is ElasticDL's own: --envs",
        ),
        (
            "class cluster:\n  def with_pod(pod):\n"
            "    pod.spec.containers[0].env.append({'name': 'ELASTICDL_POD', 'value': 'x'})\n    return pod",
            "pod_spec.master.spec.containers is ElasticDL's own: --envs",
        ),
        (
            "class cluster:\n  def with_pod(pod):\n"
            "    pod.spec.containers[0].env.append({'name': 'ROLE', 'value': pod.spec.containers[0].name})\n    return pod",
            "with_pod adds other variables to pods of the role worker",
        ),
        (
            "class cluster:\n  def with_pod(pod):\n"
            "    pod.spec.containers[0].env.append({'name': '2', 'value': 'x'})\n    return pod",
            "'2' is no name of an environment variable",
        ),
        ("cluster = 1", "has to define `cluster`"),
        ("x = 1\n1 / 0", "failed at line 2: ZeroDivisionError"),
        ("class cluster:\n  def with_pod(pod):\n    return pod['nothing']", "failed at line 3: KeyError: 'nothing'"),
        ("class cluster:\n  def with_pod(pod): pass", "has to return the manifest that it got, changed; it returned None"),
        (
            "class cluster:\n  def with_pod(pod):\n    pod['spec']['containers'][0]['image'] = 'x'\n    return pod",
            "pod_spec.master.spec.containers is ElasticDL's own",
        ),
        (
            "class cluster:\n  def with_service(s):\n    s['metadata']['name'] = 'x'\n    return s",
            "service_spec.metadata.name is ElasticDL's own",
        ),
    ],
)  # fmt: skip
def test_mistakes_in_the_file_are_named(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "cluster.py").write_text(text)
    with pytest.raises(BadSetting) as error:
        settle(spec(cluster_spec=tmp_path / "cluster.py"))
    assert said in str(error.value)
    assert "cluster.py" in str(error.value)


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(BadSetting, match=r"'nowhere\.py' is not a file"):
        settle(spec(cluster_spec="nowhere.py"))


def test_variables_whose_whole_name_matches_are_copied() -> None:
    mine = {"AWS_KEY": " a,b\\ \n", "AWS_REGION": "x", "MY_AWS_KEY": "no", "BASH_FUNC_aws%%": "no"}
    job = settle(spec(populate_env_names="AWS_.*|BASH.*", envs="AWS_REGION=y"), mine)
    assert job.envs == {"AWS_KEY": " a,b\\ \n", "AWS_REGION": "y"}
    assert from_json(job.to_json()) == job
    found = {one["name"]: one.get("value") for one in worker(job)["spec"]["containers"][0]["env"]}
    assert found["AWS_KEY"] == " a,b\\ \n"


def test_nothing_is_copied_unasked() -> None:
    assert settle(spec(), {"SECRET": "x"}).envs == {}
