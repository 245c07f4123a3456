"""Namespaces of tests' own."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from elasticdl.cluster.kubernetes.api import Api, connect

from .control_plane import ControlPlane
from .processes import wait_for

_SECONDS = 60.0


@contextmanager
def own_namespace(plane: ControlPlane) -> Iterator[Api]:
    """Make a namespace in which pods can be made, as the user of KUBECONFIG; nobody waits for its end."""
    name = f"test-{uuid.uuid4().hex[:8]}"
    plane.post("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    account = f"/api/v1/namespaces/{name}/serviceaccounts/default"
    wait_for("the service account", lambda: plane.get(account) is not None, _SECONDS, (plane.controllers,))
    yield connect(name)
    plane.delete(f"/api/v1/namespaces/{name}")
