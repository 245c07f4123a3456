"""NetworkPolicies for the pods of jobs: who reaches their ports. What they reach themselves stays open.

A policy of one job lets in that job's pods only. It needs the job's name, so that one for a whole namespace, applied once, can only let in
the pods of all jobs there; since what several policies allow adds up, it leaves out the jobs that have their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from elasticdl.cluster.cluster import Role
from elasticdl.cluster.kubernetes import manifests
from elasticdl.cluster.kubernetes.manifests import Object
from elasticdl.spec.jobspec import JobSpec

SHARED = "elasticdl"
"""Name of the policy for a namespace."""
_JOB = "elasticdl.org/job-name"


def of_job(spec: JobSpec, uid: str) -> Object:
    """Return the policy of one job: only its own pods reach its pods."""
    protected, let_in = ({"matchLabels": {_JOB: spec.job_name}} for _ in range(2))
    return _policy(manifests.owned(spec, spec.job_name, uid), protected, let_in)


def of_metrics(spec: JobSpec, uid: str) -> Object:
    """Return the policy that lets everybody reach the figures of one job, at its master's pod; they want a token."""
    master = {"matchLabels": {_JOB: spec.job_name, "elasticdl.org/role": Role.MASTER.value}}
    body = _policy(manifests.owned(spec, manifests.Names(spec.job_name).metrics, uid), master, {})
    body["spec"]["ingress"] = [{"ports": [{"port": spec.metrics_port}]}]
    return body


def of_namespace(namespace: str) -> Object:
    """Return the policy of all jobs of a namespace that have none of their own: only pods of jobs there reach them."""
    protected, let_in = ({"key": _JOB, "operator": "Exists"} for _ in range(2))
    without = {"key": manifests.OWN_POLICY, "operator": "DoesNotExist"}
    metadata = {"name": SHARED, "namespace": namespace}
    return _policy(metadata, {"matchExpressions": [protected, without]}, {"matchExpressions": [let_in]})


def selects(policy: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Tell whether a policy limits who reaches a pod with these labels."""
    spec = policy.get("spec", {})
    if "Ingress" not in spec.get("policyTypes", ["Ingress"]):
        return False
    selector = spec.get("podSelector") or {}
    return all(
        labels.get(key) == value for key, value in (selector.get("matchLabels") or {}).items()
    ) and all(_meets(one, labels) for one in selector.get("matchExpressions") or [])


def _meets(expression: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    value, values = labels.get(expression["key"]), expression.get("values") or []
    match expression["operator"]:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case _:
            return value is None


def _policy(metadata: Object, protected: Object, let_in: Object) -> Object:
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata,
        "spec": {
            "podSelector": protected,
            "policyTypes": ["Ingress"],
            "ingress": [{"from": [{"podSelector": let_in}]}],
        },
    }
