"""Looking at a cluster on behalf of `doctor.py`: asks what has to be known before a job is submitted, and tries its images.

Decides nothing, and leaves nothing behind: the pods that try the images are deleted, however that ends.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Iterator
from importlib.metadata import version

from elasticdl.cluster.cluster import Role
from elasticdl.cluster.kubernetes import manifests, networkpolicy, pods, rbac
from elasticdl.cluster.kubernetes.api import Api, ApiError, Object
from elasticdl.cluster.kubernetes.manifests import SERVICE_ACCOUNT, UID_TO_COME, Protection
from elasticdl.spec.jobspec import JobSpec
from elasticdl.tools import doctor
from elasticdl.tools.doctor import Facts, Finding, Key, Level, Tried

_LOOK_SECONDS = 0.5
ROOM_SECONDS = 30.0
"""How long a probe may wait for a node: a full cluster says nothing about an image."""
PULL_SECONDS = 300.0
"""How long it may take from there: images are gigabytes."""


def examine(spec: JobSpec, api: Api) -> Iterator[Finding]:
    """Yield everything that there is to say about a job that might be submitted. Raises ApiError, Unreachable."""
    facts = gather(spec, api)
    yield from doctor.judge(spec, facts)
    if Key("Namespace", spec.namespace) in facts.missing:
        return
    own = version("elasticdl")
    lacking = [right for right in doctor.PROBE if not facts.rights[right]]
    for image, role in doctor.images(spec).items():
        if lacking:
            tried = Tried(image, unknown=f"you may not {lacking[0].verb} pods in the namespace")
        else:
            tried = try_image(api, manifests.pod_of(spec, role), image, spec.job_name)
        yield doctor.judge_image(tried, own)
        if role is Role.WORKER:
            yield from doctor.judge_gpus(spec, tried)


def gather(spec: JobSpec, api: Api) -> Facts:
    """Look at everything but the images. Raises Unreachable, or ApiError if the cluster does not know this user."""
    found: dict[Key, Object] = {}
    missing: set[Key] = set()
    for key in doctor.wanted(spec):
        try:
            found[key] = api.get(key.kind, key.name)
        except ApiError as error:
            if error.status == 401:
                raise
            if error.status == 404:
                missing.add(key)
    if Key("Namespace", spec.namespace) in missing:
        return Facts(missing=frozenset(missing))
    rights = {
        right: api.may(right.verb, right.kind, right.subresource)
        for right in (
            *doctor.SUBMIT, *doctor.WATCH, *doctor.LOGS, *doctor.PROBE, *doctor.OWN_ACCOUNT, *doctor.OWN_POLICY
        )
    }  # fmt: skip
    quotas: tuple[Object, ...] | None = None
    policies: tuple[Object, ...] | None = None
    with contextlib.suppress(ApiError):
        quotas = tuple(api.list("ResourceQuota")[0])
    with contextlib.suppress(ApiError):
        policies = tuple(api.list("NetworkPolicy")[0])
    refused = {
        what: _refusal(api, body) for what, (right, body) in doctor.bodies(spec).items() if rights[right]
    }
    protection = Protection(
        account=all(rights[right] for right in doctor.OWN_ACCOUNT)
        # Who may make Roles may not grant in them what they lack themselves: a dry run says so. It would also say that the Role which a
        # RoleBinding names does not exist, so that one is not asked about.
        and not any(_refusal(api, body) for body in rbac.of_job(spec, UID_TO_COME)[:2]),
        policy=all(rights[right] for right in doctor.OWN_POLICY)
        and not _refusal(api, networkpolicy.of_job(spec, UID_TO_COME)),
    )
    return Facts(rights, found, frozenset(missing), _master_lacks(api), protection, policies, quotas, refused)


def of_protection(spec: JobSpec, uid: str, facts: Facts) -> list[Object]:
    """Return what a job gets of its own beside what it needs."""
    shared = facts.found.get(Key("ServiceAccount", SERVICE_ACCOUNT), {})
    account = rbac.of_job(spec, uid, shared.get("imagePullSecrets") or ())
    return [
        *(account if facts.protection.account else ()),
        *((networkpolicy.of_job(spec, uid),) if facts.protection.policy else ()),
        *((networkpolicy.of_metrics(spec, uid),) if facts.protection.policy and spec.metrics_port else ()),
    ]


def _master_lacks(api: Api) -> tuple[str, ...] | None:
    lacks = []
    try:
        for group, resource, verbs in rbac.RULES:
            lacks += [
                f"{verb} {resource}"
                for verb in verbs
                if not api.may_account(SERVICE_ACCOUNT, verb, group, resource)
            ]
    except ApiError:
        return None
    return tuple(lacks)


def _refusal(api: Api, body: Object) -> str:
    try:
        api.create(body, dry_run=True)
    except ApiError as error:
        return "" if error.status == 409 else str(error)
    return ""


# ---------------------------------------------------------------------- images


def try_image(api: Api, pod: Object, image: str, job: str) -> Tried:
    """Run an image where a pod of the job would run, and say what came of it. Raises ApiError, Unreachable."""
    name = f"{job}-probe-{secrets.token_hex(3)}"
    try:
        try:
            api.create(manifests.probe_pod(pod, name, int(ROOM_SECONDS + PULL_SECONDS)))
        except ApiError as error:
            return Tried(image, unknown=f"the cluster refuses a pod that tries it: {error}")
        return _wait(api, name, image)
    finally:
        api.delete("Pod", name, grace=0)


def _wait(api: Api, name: str, image: str) -> Tried:
    began = time.monotonic()
    placed: float | None = None
    while True:
        try:
            pod = api.get("Pod", name)
        except ApiError as error:
            return Tried(image, unknown=f"the pod that tried it is gone: {error}")
        tried = read_probe(pod, image)
        if tried is not None:
            return tried
        now = time.monotonic()
        if placed is None and pod.get("spec", {}).get("nodeName"):
            placed = now
        if placed is None and now - began > ROOM_SECONDS:
            return Tried(image, unknown=f"no node took a pod of it within {ROOM_SECONDS:.0f} s: {_why(pod)}")
        if placed is not None and now - placed > PULL_SECONDS:
            return Tried(image, unknown=f"it was not pulled and run within {PULL_SECONDS:.0f} s: {_why(pod)}")
        time.sleep(_LOOK_SECONDS)


def read_probe(pod: Object, image: str) -> Tried | None:
    """Return what came of a probe, None while that is open."""
    status = pod.get("status", {})
    state = pods.own_container(status.get("containerStatuses"), (manifests.PROBE,)).get("state", {})
    if "terminated" in state:
        said = str(state["terminated"].get("message", "")).strip()
        if state["terminated"].get("exitCode") == 0:
            own, _, framework = said.partition("\n")
            return Tried(image, version=own, cpu_framework=framework)
        last = said.splitlines()[-1] if said else f"exit code {state['terminated'].get('exitCode')}"
        return Tried(image, failure=f"it can't say which version of elasticdl it has: {last}")
    if status.get("phase") == "Failed":
        return Tried(image, unknown=f"{status.get('reason', '')}: {status.get('message', '')}".strip(": "))
    waiting = state.get("waiting", {})
    if waiting.get("reason") == "ErrImagePull":
        return Tried(image, failure=f"ErrImagePull: {waiting.get('message', '')}")
    text = pods.unrecoverable(waiting)
    return Tried(image, failure=text) if text else None


def _why(pod: Object) -> str:
    return pods.waits_for(pod.get("status", {}))


def refuse(spec: JobSpec, facts: Facts) -> str:
    """Return why a job can't be submitted, empty if it can."""
    wrong = [finding for finding in doctor.judge(spec, facts) if finding.level is Level.WRONG]
    if not wrong:
        return ""
    more = len(wrong) - 1
    return f"{wrong[0]}" + (f" (and {more} more; `elasticdl doctor` shows all)" if more else "")
