"""The test cluster itself: real nodes that run pods, can be lost, and come back."""

from __future__ import annotations

import functools
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from .conftest import need
from .node import PAUSE
from .processes import wait_for
from .testbed import Testbed, missing

SECONDS = 60.0


def pod(name: str, node: str) -> str:
    container = {"name": "pause", "image": PAUSE, "imagePullPolicy": "Never"}
    tolerations = [
        {
            "key": f"node.kubernetes.io/{state}",
            "operator": "Exists",
            "effect": "NoExecute",
            "tolerationSeconds": 2,
        }
        for state in ("not-ready", "unreachable")
    ]
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name},
            "spec": {
                "containers": [container],
                "nodeSelector": {"kubernetes.io/hostname": node},
                "tolerations": tolerations,
                "terminationGracePeriodSeconds": 1,
            },
        }
    )


def state(cluster: Testbed, name: str) -> dict[str, Any]:
    """Return a pod, empty if there is none."""
    text = cluster.control_plane.get(f"/api/v1/namespaces/default/pods/{name}")
    return dict(json.loads(text)) if text else {}


def phase(cluster: Testbed, name: str) -> str:
    return str(state(cluster, name).get("status", {}).get("phase", ""))


def runs(cluster: Testbed, name: str) -> bool:
    return phase(cluster, name) == "Running"


def is_evicted(cluster: Testbed, name: str) -> bool:
    pod = state(cluster, name)
    reasons = [one.get("reason") for one in pod.get("status", {}).get("conditions", [])]
    return "deletionTimestamp" in pod.get("metadata", {}) and "DeletionByTaintManager" in reasons


def test_pods_run_on_real_nodes_and_a_lost_node_is_seen(cluster: Testbed) -> None:
    for node in cluster.nodes:
        cluster.kubectl("apply", "-f", "-", stdin=pod(f"on-{node.name}", node.name))
    for node in cluster.nodes:
        wait_for(node.name, functools.partial(runs, cluster, f"on-{node.name}"), SECONDS)
    _, lost = cluster.nodes
    cluster.lose(lost)
    wait_for("the eviction of a lost node's pod", lambda: is_evicted(cluster, f"on-{lost.name}"), SECONDS)
    cluster.recover(lost)
    wait_for("the end of the evicted pod", lambda: phase(cluster, f"on-{lost.name}") == "", SECONDS)
    cluster.kubectl("delete", "pod", "--all", "--wait=false")


@pytest.mark.pods
def test_nothing_stays_behind() -> None:
    def shared() -> set[str]:
        """Return what is of no one cluster: other processes of these tests may have one."""
        places = ("/run/containerd/*", "/var/lib/cni/*", "/var/log/pods/*")
        return {str(path) for place in places for path in Path("/").glob(place[1:])}

    def traces() -> set[str]:
        """Return what there is of this cluster."""
        spaces = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
        links = subprocess.run(["ip", "-br", "link"], capture_output=True, text=True, check=True).stdout
        groups = [str(path) for path in Path("/sys/fs/cgroup").glob(f"*/{bed.network.name}-*")]
        mounts = Path("/proc/mounts").read_text().splitlines()
        commands = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
        lines = (*spaces.splitlines(), *links.splitlines(), *groups, *mounts, *commands.splitlines())
        files = {str(bed.folder)} & {str(path) for path in bed.folder.parent.iterdir()}
        return files | {line for line in lines if bed.network.name in line or str(bed.folder) in line}

    need(missing())
    before = shared()
    with Testbed(nodes=1) as bed:
        kinds = traces()
        assert any(line.startswith(bed.network.name) for line in kinds)
        assert str(bed.folder) in kinds
    assert traces() == set()
    assert shared() == before
