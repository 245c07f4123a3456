"""The rights that masters need, with the smallest Roles that work: one for a namespace, or one for each job.

The Role of a job names its objects wherever Kubernetes can limit a right by name. It can't for what is created, nor for pods, whose names
are new with each life: with these rights a master reaches all pods of its namespace, so the namespace is the boundary between tenants.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from elasticdl.cluster.kubernetes import manifests, networkpolicy
from elasticdl.cluster.kubernetes.manifests import SERVICE_ACCOUNT, Names, Object
from elasticdl.spec.jobspec import JobSpec

RULES: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("", "pods", ("create", "delete", "list", "watch")),
    ("", "configmaps", ("get", "update")),
    ("", "events", ("create",)),
    ("batch", "jobs", ("list", "patch", "watch")),
)
"""API group, resource and verbs of a master. It lists and watches jobs by its own one's name only, so that a Role may name it."""
_GROUP = "rbac.authorization.k8s.io"


def objects(namespace: str) -> list[Object]:
    """Return what is applied once in a namespace by somebody who may: ServiceAccount, Role, RoleBinding, NetworkPolicy."""
    metadata = {"name": SERVICE_ACCOUNT, "namespace": namespace}
    return [*_granted(metadata, rules()), networkpolicy.of_namespace(namespace)]


def of_job(spec: JobSpec, uid: str, pull_secrets: Sequence[Object] = ()) -> list[Object]:
    """Return ServiceAccount, Role and RoleBinding of one job's master.

    Args:
        spec: the job's settings.
        uid: of the job's own object.
        pull_secrets: what masters pull their image with, beside the pods' own.
    """
    metadata = manifests.owned(spec, Names(spec.job_name).account, uid)
    account, *others = _granted(metadata, rules(spec.job_name))
    if pull_secrets:
        account["imagePullSecrets"] = list(pull_secrets)
    return [account, *others]


def rules(job: str = "") -> list[dict[str, Any]]:
    """Return the rules of a master's Role: of one for a job, or of one for all jobs of a namespace."""
    names = Names(job)
    named = {"configmaps": [names.journal, names.store, names.events], "jobs": [job]} if job else {}
    return [
        {"apiGroups": [group], "resources": [resource], "verbs": list(verbs)}
        | ({"resourceNames": named[resource]} if resource in named else {})
        for group, resource, verbs in RULES
    ]


def _granted(metadata: Object, rules: list[dict[str, Any]]) -> list[Object]:
    name, namespace = metadata["name"], metadata["namespace"]
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata},
        {"apiVersion": f"{_GROUP}/v1", "kind": "Role", "metadata": metadata, "rules": rules},
        {
            "apiVersion": f"{_GROUP}/v1",
            "kind": "RoleBinding",
            "metadata": metadata,
            "roleRef": {"apiGroup": _GROUP, "kind": "Role", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": namespace}],
        },
    ]
