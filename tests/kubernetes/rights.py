"""Users of the test cluster that may do some things and nothing else."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from elasticdl.cluster.kubernetes import rbac
from elasticdl.cluster.kubernetes.api import PATHS, Api, connect

from .control_plane import ControlPlane
from .processes import wait_for

_SECONDS = 60.0


def may(
    plane: ControlPlane,
    namespace: str,
    user: str,
    verb: str,
    group: str,
    resource: str,
    *,
    name: str = "",
    subresource: str = "",
    groups: Sequence[str] = (),
) -> bool:
    """Tell whether the cluster allows a user, as a member of groups, something in a namespace."""
    asked = {
        "namespace": namespace,
        "verb": verb,
        "group": group,
        "resource": resource,
        "name": name,
        "subresource": subresource,
    }
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {"user": user, "groups": list(groups), "resourceAttributes": asked},
    }
    answer = plane.post("/apis/authorization.k8s.io/v1/subjectaccessreviews", review)
    return bool(answer["status"]["allowed"])


def group_of(kind: str) -> str:
    """Return the API group of a kind, empty for the core's."""
    _, prefix, group, *_ = PATHS[kind].split("/")
    return group if prefix == "apis" else ""


def account_name(namespace: str, account: str) -> str:
    """Return a service account's name as a user."""
    return f"system:serviceaccount:{namespace}:{account}"


def masters_may(plane: ControlPlane, administrator: Api) -> None:
    """Make what `elasticdl rbac` prints, and wait until it holds."""
    for body in rbac.objects(administrator.namespace):
        administrator.create(body)
    _wait_for_rights(plane, administrator.namespace, rbac.SERVICE_ACCOUNT, rbac.rules())


def _wait_for_rights(
    plane: ControlPlane, namespace: str, account: str, rules: Sequence[Mapping[str, Any]]
) -> None:
    """Wait until the API server's authorizer has learnt of a Role, as it does a moment after it was made."""
    user = account_name(namespace, account)
    for rule in rules[:1]:  # it learns of all of them at once
        (group, *_), (resource, *_), (verb, *_) = rule["apiGroups"], rule["resources"], rule["verbs"]
        name = next(iter(rule.get("resourceNames", ())), "")
        wait_for(
            f"the rights of {account}",
            functools.partial(may, plane, namespace, user, verb, group, resource, name=name),
            _SECONDS,
        )


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
        plane.post(PATHS[str(body["kind"])].format(namespace=namespace), body)
    _wait_for_rights(plane, namespace, "limited", rules)
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    answer = plane.post(f"/api/v1/namespaces/{namespace}/serviceaccounts/limited/token", request)
    path = plane.write_kubeconfig(f"limited-{namespace}", answer["status"]["token"], namespace)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KUBECONFIG", str(path))
        return connect(namespace)


def with_cluster_role(plane: ControlPlane, namespace: str, cluster_role: str) -> Api:
    """Return the API as a user with one of Kubernetes' own roles in a namespace."""
    user = limited(plane, namespace, [])
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": {"name": "own"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": cluster_role},
        "subjects": [{"kind": "ServiceAccount", "name": "limited", "namespace": namespace}],
    }
    plane.post(PATHS["RoleBinding"].format(namespace=namespace), binding)
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
