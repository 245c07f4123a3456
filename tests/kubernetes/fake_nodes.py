"""Nodes without a kubelet: objects that say that they are ready, so that the real scheduler places pods there. Nothing ever runs."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from datetime import UTC, datetime

from .control_plane import ControlPlane
from .processes import wait_for

_BEAT_SECONDS = 2.0
"""A quarter of the time after which the control plane takes a silent node for lost."""
_LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"


class FakeNodes:
    """Some nodes that are all alike; gone, with the pods on them, when they are closed."""

    def __init__(self, plane: ControlPlane, count: int, capacity: Mapping[str, str]) -> None:
        """Make them and wait until pods can be placed there; `capacity` is beside processors and memory, of which there is enough."""
        self._plane = plane
        self.names = [f"fake{number}" for number in range(1, count + 1)]
        status = {
            "capacity": {"cpu": "64", "memory": "256Gi", "pods": "110", **capacity},
            "conditions": [{"type": "Ready", "status": "True", "reason": "Test", "message": ""}],
        }
        lease = {"leaseDurationSeconds": 8}
        for name in self.names:
            self._make(
                {"apiVersion": "v1", "kind": "Node", "metadata": _named(name)},
                {
                    "apiVersion": "coordination.k8s.io/v1",
                    "kind": "Lease",
                    "metadata": {**_named(name), "namespace": "kube-node-lease"},
                    "spec": {**lease, "holderIdentity": name, "renewTime": _now()},
                },
            )
            done = plane.patch(
                f"/api/v1/nodes/{name}/status", {"status": {**status, "allocatable": status["capacity"]}}
            )
            assert done is not None, name
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="fake nodes", daemon=True)
        self._thread.start()
        wait_for(
            "nodes without taints",
            lambda: not any(map(self._tainted, self.names)),
            60.0,
            (plane.controllers,),
        )

    def close(self) -> None:
        """Remove them."""
        self._closed.set()
        self._thread.join()
        self._plane.kubectl("delete", "node", *self.names)
        self._plane.kubectl(
            "delete", "lease", *self.names, "--namespace=kube-node-lease", "--ignore-not-found"
        )

    def _make(self, *objects: Mapping[str, object]) -> None:
        items = {"apiVersion": "v1", "kind": "List", "items": objects}
        self._plane.kubectl("create", "--filename=-", stdin=json.dumps(items))

    def _tainted(self, name: str) -> bool:
        text = self._plane.get(f"/api/v1/nodes/{name}")
        return text is None or bool(json.loads(text)["spec"].get("taints"))

    def _beat(self) -> None:
        while not self._closed.wait(_BEAT_SECONDS):
            for name in self.names:
                self._plane.patch(f"{_LEASES}/{name}", {"spec": {"renewTime": _now()}})


def _named(name: str) -> dict[str, object]:
    return {"name": name, "labels": {"kubernetes.io/hostname": name}}


def _now() -> str:
    return datetime.fromtimestamp(time.time(), UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
