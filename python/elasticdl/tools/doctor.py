"""Whether a job on Kubernetes could be submitted and would begin: judgements of what was found in the cluster, each with what to do.

Pure: what is looked at, and how, is `survey.py`'s business. A submission refuses what these checks call wrong, so that it and
`elasticdl doctor` never disagree; what would only make a job wait is for the doctor to say, since a cluster that is full today is no error.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum
from typing import Any

from elasticdl.cluster.cluster import Role
from elasticdl.cluster.kubernetes import manifests, networkpolicy
from elasticdl.cluster.kubernetes.api import resource_of
from elasticdl.cluster.kubernetes.manifests import SERVICE_ACCOUNT, Object, Protection
from elasticdl.spec import pods
from elasticdl.spec.jobspec import JobSpec


class Level(StrEnum):
    """What a finding means for a job."""

    OK = "ok"
    UNKNOWN = "not known"
    WARNING = "warning"
    WAITS = "waits"
    """The job could be submitted, and would wait."""
    WRONG = "wrong"
    """The job can't be submitted, or could never begin."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was checked.

    Attributes:
        level: what it means.
        text: what was found.
        todo: what to do about it, or empty.
    """

    level: Level
    text: str
    todo: str = ""

    def __str__(self) -> str:
        return f"{self.text}; {self.todo}" if self.todo else self.text


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """An object that a job needs, or that is in its way."""

    kind: str
    name: str


@dataclass(frozen=True, slots=True, order=True)
class Right:
    """Something that the person has to be allowed."""

    verb: str
    kind: str
    subresource: str = ""


SUBMIT = (
    *(Right(verb, "Job") for verb in ("create", "patch", "delete")),
    *(Right("create", kind) for kind in ("Service", "Secret", "ConfigMap")),
)
WATCH = (Right("get", "Job"), Right("get", "ConfigMap"), Right("list", "Pod"))
LOGS = (Right("get", "Pod", "log"),)
PROBE = (Right("create", "Pod"), Right("get", "Pod"), Right("delete", "Pod"))
OWN_ACCOUNT = tuple(Right("create", kind) for kind in ("ServiceAccount", "Role", "RoleBinding"))
OWN_POLICY = (Right("create", "NetworkPolicy"),)
"""Rights by what they are for; the last two are for what a job can do without."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What was found in the cluster.

    Attributes:
        rights: which of the person's rights are there.
        found: the objects of `wanted` that are there.
        missing: those that are not; what is in neither could not be looked at.
        master_lacks: rights that the master's account lacks, as `create pods`; None: nobody could say.
        protection: what the job can have of its own.
        policies: the NetworkPolicies of the namespace, None if they could not be looked at.
        quotas: of the namespace, None if they could not be looked at.
        refused: what the API said to an object such as `worker's pod`, empty if it takes it; what it could not be asked about is left out.
    """

    rights: Mapping[Right, bool] = field(default_factory=dict)
    found: Mapping[Key, Object] = field(default_factory=dict)
    missing: frozenset[Key] = frozenset()
    master_lacks: tuple[str, ...] | None = None
    protection: Protection = field(default_factory=Protection)
    policies: tuple[Object, ...] | None = None
    quotas: tuple[Object, ...] | None = None
    refused: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Tried:
    """What came of running an image.

    Attributes:
        image: which.
        version: of this package in it, or empty.
        failure: why it could not be pulled or run, or empty.
        unknown: why that could not be found out, or empty.
        cpu_framework: the framework in it that can't use GPUs, with its version, or empty.
    """

    image: str
    version: str = ""
    failure: str = ""
    unknown: str = ""
    cpu_framework: str = ""


def bodies(spec: JobSpec) -> dict[str, tuple[Right, Object]]:
    """Return objects that the API can be asked about, and the right that this takes."""
    words = {Role.MASTER: "master", Role.WORKER: "worker", Role.PS: "parameter server"}
    found = {"master's Job": (SUBMIT[0], manifests.master_job(spec))}
    for role in manifests.roles(spec):
        pod = manifests.pod_of(spec, role)
        # It is judged by itself, and one of the job's own is not there yet.
        pod["spec"].pop("serviceAccountName", None)
        found[f"{words[role]}'s pod"] = (PROBE[0], pod)
    return found


def images(spec: JobSpec) -> dict[str, Role]:
    """Return the job's images, each with a role that has it: workers run on more nodes."""
    found = sorted(manifests.roles(spec), key=lambda role: role is Role.WORKER)
    return {manifests.pod_of(spec, role)["spec"]["containers"][0]["image"]: role for role in found}


def wanted(spec: JobSpec) -> tuple[Key, ...]:
    """Return the objects to look for."""
    kinds = {"claim_name": "PersistentVolumeClaim", "secret": "Secret", "config_map": "ConfigMap"}
    keys = [
        Key("Namespace", spec.namespace),
        Key("Job", spec.job_name),
        Key("ServiceAccount", SERVICE_ACCOUNT),
        *(Key("PriorityClass", name) for names in _classes(spec).values() for name in names),
        *(Key(kinds[volume.kind], volume.source) for volume in spec.volume if volume.kind in kinds),
        *(Key("Secret", name) for name in _pull_secrets(spec)),
    ]
    return tuple(dict.fromkeys(keys))


def judge(spec: JobSpec, facts: Facts) -> Iterator[Finding]:
    """Yield what there is to say about a job before its image is tried."""
    if Key("Namespace", spec.namespace) in facts.missing:
        yield Finding(
            Level.WRONG,
            f"--namespace: the cluster has no namespace {spec.namespace!r}",
            f"`kubectl create namespace {spec.namespace}` makes it",
        )
        return
    yield Finding(Level.OK, f"the cluster answers, for the namespace {spec.namespace}")
    found = [
        *_rights(spec, facts),
        *_name(spec, facts),
        *_account(spec, facts),
        *_network(spec, facts),
        *_priorities(spec, facts),
        *_volumes(spec, facts),
        *_quotas(spec, facts),
    ]
    yield from found
    # The API refuses pods also for what has been said above.
    if not any(finding.level is Level.WRONG for finding in found):
        yield from _refusals(facts)


def judge_image(tried: Tried, own: str) -> Finding:
    """Say what came of trying an image; `own`: the client's version."""
    if tried.unknown:
        return Finding(Level.UNKNOWN, f"the image {tried.image} was not tried: {tried.unknown}")
    if tried.failure:
        return Finding(
            Level.WRONG,
            f"the image {tried.image} can't be used: {tried.failure}",
            "look at --image_name, --image_pull_policy and the imagePullSecrets of --pod_template; `elasticdl zoo push` brings an image "
            "to its registry",
        )
    if tried.version != own:
        return Finding(
            Level.WRONG,
            f"the image {tried.image} has elasticdl {tried.version}, and you submit with {own}: all processes of a job are of one version",
            "build the image again, or submit with its version",
        )
    return Finding(Level.OK, f"the image {tried.image} can be pulled, and has elasticdl {own} like you")


def judge_gpus(spec: JobSpec, tried: Tried) -> Iterator[Finding]:
    """Say whether the workers' image can use the GPUs that are reserved for them; whether it really sees them, the first worker says."""
    reserved = pods.gpus(spec.worker_resource_request, spec.worker_resource_limit)
    if reserved and tried.cpu_framework:
        yield Finding(
            Level.WARNING,
            f"each worker reserves {reserved} GPU{'s' if reserved > 1 else ''}, and the image {tried.image} has {tried.cpu_framework}, "
            "which can't use GPUs: it would train on CPUs",
            "build the image with `elasticdl zoo build --gpu`, or leave gpu out of --worker_resource_request",
        )


def _rights(spec: JobSpec, facts: Facts) -> Iterator[Finding]:
    needed = SUBMIT if spec.detach else (*SUBMIT, *WATCH)
    lacking = [right for right in needed if not facts.rights.get(right, True)]
    if lacking:
        yield Finding(
            Level.WRONG,
            f"in the namespace {spec.namespace} you may not {_list(lacking)}",
            "the namespace's administrator can allow it; the Role `edit` of most clusters does",
        )
    else:
        yield Finding(Level.OK, f"you may submit jobs{'' if spec.detach else ' and watch them'}")
    if not all(facts.rights.get(right, True) for right in LOGS):
        yield Finding(
            Level.WARNING,
            f"in the namespace {spec.namespace} you may not read logs of pods",
            "`elasticdl logs` and the reasons of errors need it",
        )


def _name(spec: JobSpec, facts: Facts) -> Iterator[Finding]:
    if Key("Job", spec.job_name) in facts.found:
        yield Finding(
            Level.WRONG,
            f"--job_name: the namespace {spec.namespace} has a job named {spec.job_name!r}",
            f"name it otherwise, or remove that one with `elasticdl stop {spec.job_name} --namespace={spec.namespace}`",
        )


def _account(spec: JobSpec, facts: Facts) -> Iterator[Finding]:
    apply = f"run `elasticdl rbac --namespace={spec.namespace} | kubectl apply -f -` once"
    if facts.protection.account:
        yield Finding(
            Level.OK, "the job's master gets a service account of its own, with a Role for this job"
        )
    elif Key("ServiceAccount", SERVICE_ACCOUNT) in facts.missing:
        yield Finding(
            Level.WRONG,
            f"the namespace {spec.namespace} has no service account {SERVICE_ACCOUNT!r} for masters",
            apply,
        )
    elif facts.master_lacks is None:
        yield Finding(
            Level.UNKNOWN,
            f"whether the service account {SERVICE_ACCOUNT!r} has its rights is not for you to ask",
            f"if masters are refused, {apply}",
        )
    elif facts.master_lacks:
        yield Finding(
            Level.WRONG,
            f"the service account {SERVICE_ACCOUNT!r}, which masters have, may not {', '.join(facts.master_lacks)}",
            apply,
        )
    else:
        yield Finding(Level.OK, f"the service account {SERVICE_ACCOUNT!r} has the rights that masters need")


def _network(spec: JobSpec, facts: Facts) -> Iterator[Finding]:
    if facts.protection.policy:
        yield Finding(
            Level.OK,
            "the job gets a NetworkPolicy of its own: only its pods reach its ports, where the network obeys",
        )
    elif facts.policies is None:
        yield Finding(
            Level.UNKNOWN,
            f"whether a NetworkPolicy of the namespace {spec.namespace} selects the job's pods is not for you to see",
        )
    elif open_to_all := [
        role.value
        for role in manifests.roles(spec)
        if not _is_selected(manifests.pod_of(spec, role), facts.policies)
    ]:
        yield Finding(
            Level.WARNING,
            f"no NetworkPolicy selects the job's pods ({', '.join(open_to_all)}): every pod of the cluster reaches their ports",
            f"`elasticdl rbac --namespace={spec.namespace} | kubectl apply -f -` makes one",
        )
    else:
        yield Finding(Level.OK, "NetworkPolicies of the namespace say who reaches the job's pods")


def _is_selected(pod: Object, policies: Iterable[Object]) -> bool:
    return any(networkpolicy.selects(policy, pod["metadata"]["labels"]) for policy in policies)


def _priorities(spec: JobSpec, facts: Facts) -> Iterator[Finding]:
    for flag, names in _classes(spec).items():
        for name in names:
            if Key("PriorityClass", name) in facts.missing:
                yield Finding(
                    Level.WRONG,
                    f"--{flag}: the cluster has no PriorityClass {name!r}",
                    "`kubectl get priorityclasses` shows those it has",
                )
            else:
                yield _seen(facts, Key("PriorityClass", name), f"the PriorityClass {name!r}")


def _classes(spec: JobSpec) -> dict[str, list[str]]:
    workers = range(spec.num_workers.maximum)
    classes = {
        "master_pod_priority": {spec.master_pod_priority},
        "worker_pod_priority": {spec.worker_pod_priority.of(index, len(workers)) for index in workers},
        "ps_pod_priority": {spec.ps_pod_priority} if spec.num_ps_pods else set(),
    }
    return {flag: sorted(names - {""}) for flag, names in classes.items()}


def _volumes(spec: JobSpec, facts: Facts) -> Iterator[Finding]:
    for volume in spec.volume:
        match volume.kind:
            case "claim_name":
                yield from _claim(spec, facts, volume)
            case "secret" | "config_map" as kind:
                key = Key("Secret" if kind == "secret" else "ConfigMap", volume.source)
                word = "Secret" if kind == "secret" else "ConfigMap"
                if key in facts.missing:
                    yield Finding(
                        Level.WRONG,
                        f"--volume: the namespace {spec.namespace} has no {word} {volume.source!r}",
                        f"`kubectl get {word.lower()}s --namespace={spec.namespace}` shows those it has",
                    )
                else:
                    yield _seen(facts, key, f"the {word} {volume.source!r}")
    for name in _pull_secrets(spec):
        if Key("Secret", name) in facts.missing:
            yield Finding(
                Level.WARNING,
                f"the namespace {spec.namespace} has no Secret {name!r}, which imagePullSecrets name",
                "nodes will pull the image without it, if the registry lets them",
            )


def _claim(spec: JobSpec, facts: Facts, volume: pods.Volume) -> Iterator[Finding]:
    key = Key("PersistentVolumeClaim", volume.source)
    if key in facts.missing:
        yield Finding(
            Level.WRONG,
            f"--volume: the namespace {spec.namespace} has no claim {volume.source!r}",
            f"`kubectl get persistentvolumeclaims --namespace={spec.namespace}` shows those it has",
        )
        return
    yield _seen(facts, key, f"the claim {volume.source!r}")
    modes = set(facts.found.get(key, {}).get("spec", {}).get("accessModes", []))
    on_it = [flag for flag, path in _written(spec).items() if path_is_on(path, volume)]
    if modes and modes <= {"ReadWriteOnce", "ReadWriteOncePod"}:
        what = f", with {' and '.join(on_it)} on it," if on_it else ""
        one = "pod" if modes == {"ReadWriteOncePod"} else "node"
        yield Finding(
            Level.WARNING,
            f"the claim {volume.source!r}{what} can be mounted by one {one} at a time ({', '.join(sorted(modes))}), "
            f"and every pod of the job mounts it: all of them have to be on that {one}",
            "use a claim with the access mode ReadWriteMany",
        )
    elif modes == {"ReadOnlyMany"} and on_it:
        yield Finding(
            Level.WRONG,
            f"{' and '.join(on_it)}: the claim {volume.source!r} can only be read (ReadOnlyMany)",
            "use a claim with the access mode ReadWriteMany",
        )


def path_is_on(path: str, volume: pods.Volume) -> bool:
    """Tell whether a path of the pods lies on a volume."""
    return path == volume.mount_path or path.startswith(f"{volume.mount_path}/")


def _written(spec: JobSpec) -> dict[str, str]:
    paths = {
        "--output": spec.path_written,
        "--audit": spec.audit,
        "--data_cache": spec.data_cache,
        "--checkpoint_dir": spec.checkpoint_dir,
    }
    return {flag: path for flag, path in paths.items() if path}


def _pull_secrets(spec: JobSpec) -> list[str]:
    found = [
        one.get("name", "")
        for role in manifests.roles(spec)
        for one in manifests.pod_of(spec, role)["spec"].get("imagePullSecrets") or []
    ]
    return [name for name in dict.fromkeys(found) if name]


def _seen(facts: Facts, key: Key, what: str) -> Finding:
    if key in facts.found:
        return Finding(Level.OK, f"{what} is there")
    return Finding(Level.UNKNOWN, f"whether {what} is there is not for you to see")


def _refusals(facts: Facts) -> Iterator[Finding]:
    for what, said in facts.refused.items():
        if not said:
            yield Finding(Level.OK, f"the cluster takes the {what}")
        elif "spec.successPolicy" in said:
            yield Finding(Level.WRONG, "the cluster's Kubernetes is older than 1.31, which jobs need")
        elif "exceeded quota" not in said:  # that has been said in other words
            yield Finding(
                Level.WRONG,
                f"the cluster refuses the {what}: {said}",
                "change the settings of pods, or ask the namespace's administrator",
            )


# ---------------------------------------------------------------------- quotas


def _quotas(spec: JobSpec, facts: Facts) -> Iterator[Finding]:
    if facts.quotas is None:
        yield Finding(
            Level.UNKNOWN, f"whether the namespace {spec.namespace} has quotas is not for you to see"
        )
        return
    least, servers = spec.num_workers.minimum, spec.num_ps_pods
    counts = {Role.MASTER: 1, Role.WORKER: least, Role.PS: servers}
    job = [manifests.pod_of(spec, role, index) for role, count in counts.items() for index in range(count)]
    workers = f"{least} worker{'s' if least > 1 else ''} (the least of --num_workers)"
    who = f"the master and {workers}"
    requests = "--worker_resource_request, --master_resource_request"
    if servers:
        who = f"the master, {servers} parameter server{'s' if servers > 1 else ''} and {workers}"
        requests += ", --ps_resource_request"
    less = f"ask for less with {requests} or --num_workers"
    before = False
    for quota in facts.quotas:
        name = quota["metadata"]["name"]
        status = quota.get("status", {})
        hard = {**quota.get("spec", {}).get("hard", {}), **status.get("hard", {})}
        for resource, most, used, need in _needs(job, quota, hard, status.get("used", {})):
            if need <= most - used:
                continue
            before = True
            ask = f"{who} ask for {_shown(resource, need)} of {resource}"
            allowed = f"the quota {name!r} of the namespace {spec.namespace} allows {_shown(resource, most)}"
            if need > most:
                yield Finding(Level.WRONG, f"{ask}, and {allowed} in all", f"{less}, or get a larger quota")
            else:
                yield Finding(
                    Level.WAITS,
                    f"{ask}, and {allowed}, of which {_shown(resource, used)} are in use",
                    f"the job would wait until others leave; else {less}",
                )
    if facts.quotas and not before:
        yield Finding(Level.OK, f"the quotas of the namespace have room for {who}")


def _needs(
    job: list[Object], quota: Object, hard: Mapping[str, Any], used: Mapping[str, Any]
) -> Iterator[tuple[str, Decimal, Decimal, Decimal]]:
    """Yield (resource, most, used, need) for what a quota limits."""
    covered = [pod for pod in job if _covers(quota, pod)]
    scoped = bool(quota.get("spec", {}).get("scopes") or quota.get("spec", {}).get("scopeSelector"))
    for resource, limit in hard.items():
        need = sum((_usage(pod, resource) for pod in covered), Decimal(0))
        need += 0 if scoped else _OBJECTS.get(resource.removeprefix("count/"), 0)
        try:
            most, taken = pods.amount(str(limit)), pods.amount(str(used.get(resource, "0")))
        except ValueError:
            continue  # a form of numbers that people don't write
        if need:
            yield resource, most, taken, need


_OBJECTS = {"jobs.batch": 1, "services": 1, "secrets": 1, "configmaps": 4}
"""What a job consists of beside pods."""


def _usage(pod: Object, resource: str) -> Decimal:
    if resource in ("pods", "count/pods"):
        return Decimal(1)
    given = pod["spec"]["containers"][0]["resources"]
    requests, limits = given.get("requests", {}), given.get("limits", {})
    if resource.startswith("limits."):
        return pods.amount(limits.get(resource.removeprefix("limits."), "0"))
    name = resource.removeprefix("requests.")
    return pods.amount(requests.get(name) or limits.get(name, "0"))


def _covers(quota: Object, pod: Object) -> bool:
    spec = quota.get("spec", {})
    expressions = [
        *({"scopeName": scope, "operator": "Exists"} for scope in spec.get("scopes") or []),
        *(spec.get("scopeSelector") or {}).get("matchExpressions", []),
    ]
    return all(_matches(expression, pod) for expression in expressions)


def _matches(expression: Mapping[str, Any], pod: Object) -> bool:
    match expression.get("scopeName"):
        case "PriorityClass":
            name, values = pod["spec"].get("priorityClassName", ""), expression.get("values") or []
            return {
                "In": name in values,
                "NotIn": name not in values,
                "Exists": bool(name),
                "DoesNotExist": not name,
            }.get(str(expression.get("operator")), False)
        case "Terminating" | "BestEffort" | "CrossNamespacePodAffinity":
            return False  # the job's pods have no deadline, and ask for resources
        case _:
            return True


def _shown(resource: str, value: Decimal) -> str:
    if resource.rpartition(".")[2] in ("memory", "ephemeral-storage") and value >= 1024**2:
        unit, size = ("Gi", 1024**3) if value >= 1024**3 else ("Mi", 1024**2)
        return f"{float(value / size):.4g}{unit}"
    return f"{value.normalize():f}"


def _list(rights: Iterable[Right]) -> str:
    return ", ".join(f"{right.verb} {resource_of(right.kind)}" for right in rights)
