"""Users of the test cluster that may do some things and nothing else."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from elasticdl.cluster.kubernetes import rbac
from elasticdl.cluster.kubernetes.api import Api, connect

from .control_plane import ControlPlane


def limited(plane: ControlPlane, namespace: str, rules: list[dict[str, Any]]) -> Api:
    """Return the API as a user with these rights only."""
    role = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": {"name": "limited", "namespace": namespace},
        "rules": rules,
    }
    account = {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"name": "limited", "namespace": namespace},
    }
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": {"name": "limited", "namespace": namespace},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "limited"},
        "subjects": [{"kind": "ServiceAccount", "name": "limited", "namespace": namespace}],
    }
    for body in (account, role, binding):
        plane.kubectl("create", "-f", "-", stdin=json.dumps(body))
    token = plane.kubectl("create", "token", "limited", f"--namespace={namespace}").strip()
    path = plane.write_kubeconfig(f"limited-{namespace}", token, namespace)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KUBECONFIG", str(path))
        return connect(namespace)


def with_cluster_role(plane: ControlPlane, namespace: str, cluster_role: str) -> Api:
    """Return the API as a user with one of Kubernetes' own roles in a namespace."""
    user = limited(plane, namespace, [])
    binding = [
        "create",
        "rolebinding",
        "own",
        f"--clusterrole={cluster_role}",
        f"--serviceaccount={namespace}:limited",
    ]
    plane.kubectl(*binding, f"--namespace={namespace}")
    return user


def rules(of: Sequence[tuple[str, str, tuple[str, ...]]]) -> list[dict[str, Any]]:
    """Return the rules of a Role with these rights, in the form of `rbac.RULES`."""
    return [
        {"apiGroups": [group], "resources": [resource], "verbs": list(verbs)} for group, resource, verbs in of
    ]


def without(resource: str, verb: str) -> list[dict[str, Any]]:
    """Return the rules of a master that lacks one right."""
    left = [
        (group, name, tuple(one for one in verbs if (name, one) != (resource, verb)))
        for group, name, verbs in rbac.RULES
    ]
    return rules([rule for rule in left if rule[2]])
