"""The rights that a job needs in its namespace: a ServiceAccount for masters with the smallest Role that works."""

from __future__ import annotations

from elasticdl.cluster.manifests import SERVICE_ACCOUNT, Object

RULES: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("", "pods", ("create", "delete", "list", "watch")),
    ("", "configmaps", ("get", "update")),
    ("", "events", ("create",)),
    ("batch", "jobs", ("list", "patch", "watch")),
)
"""API group, resource and verbs of a master."""


def objects(namespace: str) -> list[Object]:
    """Return ServiceAccount, Role and RoleBinding, to be applied once in a namespace by somebody who may."""
    metadata = {"name": SERVICE_ACCOUNT, "namespace": namespace}
    rights = "rbac.authorization.k8s.io"
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata},
        {
            "apiVersion": f"{rights}/v1",
            "kind": "Role",
            "metadata": metadata,
            "rules": [
                {"apiGroups": [group], "resources": [resource], "verbs": list(verbs)}
                for group, resource, verbs in RULES
            ],
        },
        {
            "apiVersion": f"{rights}/v1",
            "kind": "RoleBinding",
            "metadata": metadata,
            "roleRef": {"apiGroup": rights, "kind": "Role", "name": SERVICE_ACCOUNT},
            "subjects": [{"kind": "ServiceAccount", "name": SERVICE_ACCOUNT, "namespace": namespace}],
        },
    ]
