"""The cluster of the experiments: two nodes on this machine, with units that stand for CPUs, the image, and classes of priority."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from elasticdl.cluster.kubernetes import rbac
from elasticdl.cluster.kubernetes.api import Api, connect
from tests.kubernetes import layers
from tests.kubernetes.image import IMAGE, build_image
from tests.kubernetes.testbed import Testbed

UNIT = "example.com/unit"
UNITS = 24
"""Of the whole cluster; half of them on each node."""
HIGH, LOW = "high", "low"
"""Classes of priority: what is of the first takes the place of what is of the second."""
START_SECONDS = 600.0


@contextmanager
def cluster(folder: Path, archive: Path | None) -> Iterator[Api]:
    """Run a cluster that can begin with jobs at once, and give its default namespace.

    Args:
        folder: for what is built.
        archive: of the image; without one it is built, and the nodes have the layers that it shares with the tests' image already.
    """
    lent = None if archive else layers.prepare()
    built = archive or build_image(folder, layers.digests(lent) if lent else frozenset())
    with Testbed(lent=lent) as bed:
        # The commands that submit jobs find it there, too.
        os.environ["KUBECONFIG"] = str(bed.kubeconfig)
        _prepare(bed, built)
        yield connect("default")


def _prepare(bed: Testbed, archive: Path) -> None:
    """Give the nodes the image and their units, the masters their rights, and the cluster its classes."""
    for node in bed.nodes:
        node.load(archive)
        patch = {"op": "add", "path": f"/status/capacity/{UNIT.replace('/', '~1')}", "value": f"{UNITS // 2}"}
        bed.kubectl(
            *("patch", "node", node.name, "--subresource=status", "--type=json"),
            f"--patch={json.dumps([patch])}",
        )
        bed.kubectl("create", "-f", "-", stdin=json.dumps(_first_use(node.name)))
    for body in (*rbac.objects("default"), _priority_class(HIGH, 1000), _priority_class(LOW, 100)):
        bed.kubectl("apply", "-f", "-", stdin=json.dumps(body))
    pods = [f"pod/first-use-{node.name}" for node in bed.nodes]
    bed.kubectl("wait", "--for=jsonpath={.status.phase}=Succeeded", f"--timeout={START_SECONDS:.0f}s", *pods)
    bed.kubectl("delete", *pods)


def _priority_class(name: str, value: int) -> dict[str, Any]:
    return {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": name},
        "value": value,
    }


def _first_use(node: str) -> dict[str, Any]:
    """Return a pod that uses the image on a node once: unpacking it takes a minute, which is no part of any job."""
    container = {
        "name": "import",
        "image": IMAGE,
        "imagePullPolicy": "Never",
        "command": ["python3", "-c", "import elasticdl, keras"],
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"first-use-{node}"},
        "spec": {
            "nodeName": node,
            "restartPolicy": "Never",
            "containers": [container],
            "volumes": [{"name": "tmp", "emptyDir": {}}],
        },
    }
