"""What people add to a job's pods and its Service in the words of Kubernetes: fragments of manifests, checked before anything is created.

A fragment is merged into what ElasticDL makes as RFC 7396 says (JSON Merge Patch): mappings are merged key by key, null removes, everything
else, lists too, is replaced. What the job's life depends on is refused here, with the setting that serves instead. Nothing here knows how
a pod looks: that is `cluster/kubernetes/manifests.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from elasticdl.spec.nearest import nearest

Fragment = dict[str, Any]

_POD = ("metadata", "spec")
_ROLES = ("master", "worker", "ps")
_METADATA = ("annotations", "labels")
_POD_SPEC = (
    "affinity", "dnsConfig", "dnsPolicy", "hostAliases", "hostIPC", "hostNetwork", "hostPID", "hostUsers", "imagePullSecrets",
    "nodeName", "nodeSelector", "preemptionPolicy", "resourceClaims", "runtimeClassName", "schedulerName", "securityContext",
    "shareProcessNamespace", "terminationGracePeriodSeconds", "tolerations", "topologySpreadConstraints",
)  # fmt: skip
_SERVICE_SPEC = (
    "externalTrafficPolicy", "internalTrafficPolicy", "ipFamilies", "ipFamilyPolicy", "sessionAffinity", "trafficDistribution",
)  # fmt: skip
_OWNED = {
    "containers": "--envs, --volume and --worker_resource_request with their like change what runs in a pod",
    "volumes": "use --volume",
    "priorityClassName": "use --master_pod_priority, --worker_pod_priority and --ps_pod_priority",
    "priority": "use --master_pod_priority, --worker_pod_priority and --ps_pod_priority",
    "serviceAccountName": "`elasticdl rbac` prints the account that masters need, and others have none",
    "serviceAccount": "`elasticdl rbac` prints the account that masters need, and others have none",
    "automountServiceAccountToken": "masters need the API, and others don't",
    "restartPolicy": "every life of a process is a pod of its own",
    "initContainers": "prepare the image instead",
    "activeDeadlineSeconds": "--max_step and `elasticdl stop` end a job",
    "enableServiceLinks": "variables of other services would mix with the job's",
    "selector": "the Service leads to the master",
    "ports": "the Service leads to the master's ports",
    "clusterIP": "the cluster gives the Service its address",
    "type": "only the job's own pods use the Service",
    "publishNotReadyAddresses": "a master on a lost node must not be found",
    "name": "pods are named after the job",
    "namespace": "use --namespace",
    "ownerReferences": "what a job makes must go with it",
}
"""What ElasticDL sets itself, and why or what to use instead."""
OWN_PREFIXES = ("elasticdl.org/", "app.kubernetes.io/", "batch.kubernetes.io/")
"""Of labels and annotations that ElasticDL, or the Job's controller, finds objects by."""


def pod_fragments(body: Mapping[str, Any], where: str = "") -> Fragment:
    """Check fragments of pods: `metadata` and `spec` for all, the same below each role for its pods; return a copy.

    Raises ValueError naming the key.
    """
    _check_keys(body, (*_POD, *_ROLES), where)
    for role in _ROLES:
        if role in body:
            _check_object(_mapping(body[role], f"{where}{role}"), f"{where}{role}.", _POD_SPEC)
    _check_object({key: body[key] for key in _POD if key in body}, where, _POD_SPEC)
    return _whole({key: _plain(value, f"{where}{key}.") for key, value in body.items()})


def _whole(fragment: Fragment) -> Fragment:
    """Return a fragment without what YAML leaves empty (`labels:` and nothing after it): null would remove what every pod has."""
    whole = {key: value for key, value in fragment.items() if value is not None}
    for key in ("metadata", *_ROLES):
        if key in whole:
            whole[key] = _whole(whole[key])
    return whole


def cluster_fragments(body: Mapping[str, Any]) -> Fragment:
    """Check `{"pod_spec": …, "service_spec": …}`: fragments of the pods, and one of the Service; return a copy. Raises ValueError."""
    _check_keys(body, ("pod_spec", "service_spec"), "")
    checked: Fragment = {}
    if "pod_spec" in body:
        checked["pod_spec"] = pod_fragments(_mapping(body["pod_spec"], "pod_spec"), "pod_spec.")
    if "service_spec" in body:
        service = _mapping(body["service_spec"], "service_spec")
        _check_object(service, "service_spec.", _SERVICE_SPEC)
        checked["service_spec"] = _plain(service, "service_spec.")
    return checked


def of_role(fragments: Mapping[str, Any], role: str) -> list[Fragment]:
    """Return what of `pod_fragments` is for the pods of a role, in the order in which it is merged."""
    return [{key: fragments[key] for key in _POD if key in fragments}, dict(fragments.get(role, {}))]


def merge(target: Any, patch: Any) -> Any:
    """Return `target` with `patch` merged into it (RFC 7396)."""
    if not isinstance(patch, Mapping):
        return patch
    merged = dict(target) if isinstance(target, Mapping) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge(merged.get(key), value)
    return merged


def difference(before: Any, after: Any) -> Fragment:
    """Return the patch that `merge` makes `after` from `before` with; both are mappings."""
    patch: Fragment = {key: None for key in before if key not in after}
    for key, value in after.items():
        if key in before and before[key] == value:
            continue
        old = before.get(key)
        patch[key] = (
            difference(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
        )
    return patch


def _check_object(body: Mapping[str, Any], where: str, known: tuple[str, ...]) -> None:
    _check_keys(body, _POD, where)
    metadata = _mapping(body.get("metadata", {}), f"{where}metadata")
    _check_keys(metadata, _METADATA, f"{where}metadata.")
    for kind in _METADATA:
        for name in _mapping(metadata.get(kind, {}), f"{where}metadata.{kind}"):
            if name.startswith(OWN_PREFIXES):
                raise ValueError(
                    f"{where}metadata.{kind}: {name!r} belongs to ElasticDL, which finds a job's objects by it; name it otherwise"
                )
    _check_keys(_mapping(body.get("spec", {}), f"{where}spec"), known, f"{where}spec.")


def _check_keys(body: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
    for key in body:
        if not isinstance(key, str):
            raise ValueError(f"{where or 'the fragment'}: {key!r} is no key; keys are text")
        if key in known:
            continue
        if key in _OWNED:
            raise ValueError(f"{where}{key} is ElasticDL's own: {_OWNED[key]}")
        raise ValueError(
            f"{where}{key} is unknown{nearest(key, known).replace(';', ',')}; known are {', '.join(known)}"
        )


def _mapping(value: Any, where: str) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ValueError(f"{where}: expected a mapping, received {value!r}")
    return value


def _plain(value: Any, where: str) -> Any:
    """Return a copy that JSON can carry; YAML also knows dates and sets."""
    if isinstance(value, Mapping):
        return {key: _plain(one, f"{where}{key}.") for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one, where) for one in value]
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    raise ValueError(
        f"{where.rstrip('.')}: {value!r} is none of text, number, true, false, null, list, mapping"
    )
