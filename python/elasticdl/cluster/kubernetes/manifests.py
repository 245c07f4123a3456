"""The objects of a job on Kubernetes, from its settings: pure functions, so that what is created can be read before it is.

Everything is owned by the master's Job, which is created suspended, before the others, and resumed when they exist. Pods of workers
and parameter servers are no children of the Job in its own eyes: they don't carry its selector's labels, and their owner reference is not
that of a controller.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from elasticdl.cluster import allocator
from elasticdl.cluster.cluster import ProcessName, Role
from elasticdl.cluster.kubernetes import podplace
from elasticdl.control.transport.keys import Key, derive
from elasticdl.control.transport.tls import Identity
from elasticdl.spec import fragments
from elasticdl.spec.jobspec import JobSpec
from elasticdl.spec.pods import Volume

Object = dict[str, Any]

SERVICE_ACCOUNT = "elasticdl"
"""What masters ask the API as whose jobs have no account of their own; `elasticdl rbac` prints it with the Role that it needs."""
PROBE = "probe"
"""Name of the container that tries an image."""
STOP, DEAD = "elasticdl.org/stop", "elasticdl.org/dead"
WORKERS, SERVERS = "elasticdl.org/workers", "elasticdl.org/servers"
"""Annotations of the Job by which people steer it: the reason of an early end, which workers are dead of which the cluster can't say it any
more, and how many workers and parameter servers are wanted."""
OWN_POLICY = "elasticdl.org/own-network-policy"
"""Label of the pods of jobs that have a NetworkPolicy of their own."""
_METRICS = "metrics"
"""Name of the port at which a master has its figures."""
PROGRESS = "elasticdl.org/progress"
"""Annotation of the Job with one line about how it stands."""

UID_TO_COME = "uid-of-the-job"
"""In manifests of a job that does not exist yet."""
_USER = 1000
_GRACE = 30
_AWAY_SECONDS = 5
"""How long pods stay bound to a node that is not ready; the group itself notices much earlier."""
_MASTERS = 1000
"""Masters that a job may have one after the other. Each is an index of the Job that fails or succeeds once, because the next index
begins at once, where another try of the same one waits longer each time, up to ten minutes (design note 7)."""
_DISK, _MEMORY = "10Gi", "1Gi"
"""What an empty directory may hold, on disk and in memory, where no limit of the pod's resources says so: a program that writes without
end costs its own pod, not the others of its node."""
_SAY_VERSION = """\
from importlib.metadata import PackageNotFoundError, version
said = [version("elasticdl")]
try:
    said.append(f"tensorflow-cpu {version('tensorflow-cpu')}")
except PackageNotFoundError:
    pass
open("/dev/termination-log", "w").write("\\n".join(said))
"""
"""What a container writes there appears in its pod's status: the version of this package, and TensorFlow's if that is the one for CPUs."""


@dataclass(frozen=True, slots=True)
class Names:
    """The names of a job's objects."""

    job: str

    @property
    def secret(self) -> str:
        """Return the name of the Secret with token and certificates."""
        return f"{self.job}-secret"

    @property
    def spec(self) -> str:
        """Return the name of the ConfigMap with the settings and the model zoo."""
        return f"{self.job}-spec"

    @property
    def journal(self) -> str:
        """Return the name of the ConfigMap with the master's journal."""
        return f"{self.job}-journal"

    @property
    def store(self) -> str:
        """Return the name of the ConfigMap with how the job stands, and ended."""
        return f"{self.job}-status"

    @property
    def events(self) -> str:
        """Return the name of the ConfigMap with what has happened."""
        return f"{self.job}-events"

    @property
    def metrics(self) -> str:
        """Return the name of what Prometheus needs: the Secret with token and authority, and the NetworkPolicy that lets it in."""
        return f"{self.job}-metrics"

    @property
    def account(self) -> str:
        """Return the name of the master's own ServiceAccount, of its Role and of their RoleBinding."""
        return f"{self.job}-master"

    def pod(self, name: ProcessName) -> str:
        """Return the name of the pod of a worker or a parameter server."""
        return f"{self.job}-{name}"


@dataclass(frozen=True, slots=True)
class Protection:
    """What a job has of its own where the user may make it.

    Attributes:
        account: a service account, whose Role names the job's objects; else the namespace's.
        policy: a NetworkPolicy, which lets the job's own pods reach its ports; else what the namespace has.
    """

    account: bool = False
    policy: bool = False


def labels(job: str, role: Role, uid: str = "", *, own_policy: bool = False) -> dict[str, str]:
    """Return the labels of an object: the well-known ones for people, own ones for selectors."""
    found = {
        "app.kubernetes.io/name": "elasticdl",
        "app.kubernetes.io/instance": job,
        "app.kubernetes.io/component": role.value,
        "app.kubernetes.io/part-of": job,
        "app.kubernetes.io/managed-by": "elasticdl",
        "elasticdl.org/job-name": job,
        "elasticdl.org/role": role.value,
    }
    return (
        found | ({"elasticdl.org/job-uid": uid} if uid else {}) | ({OWN_POLICY: "true"} if own_policy else {})
    )


def master_job(spec: JobSpec, protection: Protection = Protection()) -> Object:
    """Return the master's Job, suspended: it is resumed when the objects that it owns exist."""
    job = spec.job_name
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": job,
            "namespace": spec.namespace,
            "labels": labels(job, Role.MASTER),
            "annotations": {PROGRESS: "submitted"},
        },
        "spec": {
            "suspend": True,
            "parallelism": 1,
            "completionMode": "Indexed",
            "completions": _MASTERS,
            "backoffLimitPerIndex": 0,
            # One that ends well ends the Job; one that ends the job as failed lowers `backoffLimit` first.
            "successPolicy": {"rules": [{"succeededCount": 1}]},
            # A master on a lost node is replaced, not waited for.
            "podReplacementPolicy": "TerminatingOrFailed",
            "template": _fitted(
                spec,
                Role.MASTER,
                {
                    "metadata": {"labels": labels(job, Role.MASTER, own_policy=protection.policy)},
                    "spec": {
                        **_pod_spec(spec, Role.MASTER, "master-0-1"),
                        "serviceAccountName": Names(job).account if protection.account else SERVICE_ACCOUNT,
                        **_priority(spec.master_pod_priority),
                    },
                },
            ),
        },
    }


def process_pod(
    spec: JobSpec, uid: str, name: ProcessName, memory: int = 0, *, own_policy: bool = False
) -> Object:
    """Return the pod of one life of one worker or parameter server.

    Args:
        spec: the job's settings.
        uid: of the job's own object.
        name: of the process.
        memory: bytes that it may use, 0 for what the settings say.
        own_policy: whether the job has a NetworkPolicy of its own.
    """
    job = spec.job_name
    priority = (
        spec.ps_pod_priority
        if name.role is Role.PS
        else spec.worker_pod_priority.of(name.index, spec.num_workers.maximum)
    )
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": Names(job).pod(name),
            "namespace": spec.namespace,
            "labels": {
                **labels(job, name.role, uid, own_policy=own_policy),
                "elasticdl.org/index": str(name.index),
                "elasticdl.org/incarnation": str(name.life),
            },
            "ownerReferences": [owner(job, uid)],
        },
        "spec": {
            **_pod_spec(spec, name.role, str(name), memory),
            # They need nothing of the cluster's API.
            "automountServiceAccountToken": False,
            **_apart(uid, name),
            **_priority(priority),
        },
    }
    return _fitted(spec, name.role, pod)


def _apart(uid: str, name: ProcessName) -> Object:
    """Return what keeps the pods of a role on different nodes where there is room."""
    nodes = "kubernetes.io/hostname"
    same = {"matchLabels": {"elasticdl.org/job-uid": uid, "elasticdl.org/role": name.role.value}}
    if name.role is Role.PS:
        # Two servers hold each part of the model, and a node that has both takes it along. An earlier life that has just ended is still
        # on its node in the scheduler's eyes, and would make it look taken.
        others = {"key": "elasticdl.org/index", "operator": "NotIn", "values": [str(name.index)]}
        place = {"topologyKey": nodes, "labelSelector": {**same, "matchExpressions": [others]}}
        term = {"weight": 100, "podAffinityTerm": place}
        return {"affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [term]}}}
    spread = {
        "maxSkew": 1,
        "topologyKey": nodes,
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": same,
    }
    return {"topologySpreadConstraints": [spread]}


def master_pod(spec: JobSpec) -> Object:
    """Return the pod that the master's Job makes, to be looked at."""
    template = master_job(spec)["spec"]["template"]
    metadata = {"name": f"{spec.job_name}-master", "namespace": spec.namespace, **template["metadata"]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}


def roles(spec: JobSpec) -> tuple[Role, ...]:
    """Return the roles that a job's pods have."""
    return (Role.MASTER, Role.WORKER, *((Role.PS,) if spec.num_ps_pods else ()))


def pod_of(spec: JobSpec, role: Role, index: int = 0) -> Object:
    """Return a pod of a role as it would be made for a job that does not exist yet."""
    return (
        master_pod(spec)
        if role is Role.MASTER
        else process_pod(spec, UID_TO_COME, ProcessName(role, index, 1))
    )


def probe_pod(pod: Object, name: str, seconds: int) -> Object:
    """Return a pod that says which version of this package another one's image has, where that one would run.

    Args:
        pod: the other one.
        name: of the new one.
        seconds: after which it ends in any case.
    """
    metadata, spec, container = pod["metadata"], pod["spec"], pod["spec"]["containers"][0]
    small = {
        "name": PROBE,
        "command": ["python3", "-P", "-c", _SAY_VERSION],
        "resources": {
            "requests": {"cpu": "10m", "memory": "32Mi"},
            "limits": {"cpu": "200m", "memory": "128Mi"},
        },
    }
    same = ("image", "imagePullPolicy", "securityContext", "terminationMessagePolicy")
    # It needs nothing of the job, and may take nobody's place.
    left_out = ("priorityClassName", "serviceAccountName", "topologySpreadConstraints", "volumes")
    own = {
        "app.kubernetes.io/name": "elasticdl",
        "app.kubernetes.io/component": "probe",
        "app.kubernetes.io/managed-by": "elasticdl",
    }
    theirs = {
        label: value
        for label, value in metadata["labels"].items()
        if not label.startswith(fragments.OWN_PREFIXES)
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": metadata["namespace"],
            "labels": {**theirs, **own},
            "annotations": metadata.get("annotations", {}),
        },
        "spec": {
            **{key: value for key, value in spec.items() if key not in left_out},
            "automountServiceAccountToken": False,
            "activeDeadlineSeconds": seconds,
            "terminationGracePeriodSeconds": 1,
            "containers": [{**{key: container[key] for key in same}, **small}],
        },
    }


def service(spec: JobSpec, uid: str) -> Object:
    """Return the Service behind which the master is found, wherever it runs."""
    ports = {"control": podplace.CONTROL_PORT, "heart": podplace.HEART_PORT}
    if spec.metrics_port:
        ports[_METRICS] = spec.metrics_port
    body = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": owned(spec, spec.job_name, uid),
        "spec": {
            "selector": {"elasticdl.org/job-name": spec.job_name, "elasticdl.org/role": Role.MASTER.value},
            "ports": [{"name": name, "port": port, "targetPort": port} for name, port in ports.items()],
        },
    }
    fitted: Object = fragments.merge(body, spec.cluster_spec_json.get("service_spec", {}))
    return fitted


_KEYS: Mapping[Role, tuple[Key, ...]] = {
    Role.MASTER: (),
    Role.WORKER: (Key.WORKER, Key.DATA),
    Role.PS: (Key.PS, Key.SERVERS, Key.DATA),
}
"""The keys that each role's pods see; the master has the token, from which all follow."""


def secret(spec: JobSpec, uid: str, token: bytes, identities: Mapping[Role, Identity]) -> Object:
    """Return the Secret with the token, and the keys and certificates of each role."""
    files = {"token": token}
    files |= {podplace.key_file(key): derive(token, key) for keys in _KEYS.values() for key in keys}
    for role, identity in identities.items():
        files["ca.crt"] = identity.authority
        files[f"{role}.crt"], files[f"{role}.key"] = identity.certificate, identity.key
    return _secret(owned(spec, Names(spec.job_name).secret, uid), files)


def metrics_secret(spec: JobSpec, uid: str, token: bytes, authority: bytes) -> Object:
    """Return the Secret with what Prometheus needs, and nothing else of the job: the token of figures, and the authority in PEM."""
    files = {"token": derive(token, Key.METRICS).hex().encode(), "ca.crt": authority}
    return _secret(owned(spec, Names(spec.job_name).metrics, uid), files)


def _secret(metadata: Object, files: Mapping[str, bytes]) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": metadata,
        "type": "Opaque",
        "immutable": True,
        "data": {name: b64encode(content).decode() for name, content in sorted(files.items())},
    }


def settings(spec: JobSpec, uid: str, texts: Mapping[str, str], archive: bytes) -> Object:
    """Return the ConfigMap with the job's settings, and the model zoo as an archive (empty: it is in the image)."""
    body: Object = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": owned(spec, Names(spec.job_name).spec, uid),
        "immutable": True,
        "data": dict(texts),
    }
    if archive:
        body["binaryData"] = {podplace.ZOO_ARCHIVE: b64encode(archive).decode()}
    return body


def empty_item(spec: JobSpec, uid: str, name: str) -> Object:
    """Return a ConfigMap for the master to write to."""
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": owned(spec, name, uid), "data": {}}


def owner(job: str, uid: str) -> Object:
    """Return the reference to the Job that owns everything."""
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "name": job,
        "uid": uid,
        "controller": False,
        "blockOwnerDeletion": False,
    }


def owned(spec: JobSpec, name: str, uid: str) -> Object:
    """Return the metadata of an object that goes with the job."""
    return {
        "name": name,
        "namespace": spec.namespace,
        "labels": labels(spec.job_name, Role.MASTER, uid),
        "ownerReferences": [owner(spec.job_name, uid)],
    }


def _fitted(spec: JobSpec, role: Role, pod: Object) -> Object:
    """Merge what people want of the pods of a role; how soon a pod leaves a lost node stays as it is unless they say otherwise."""
    own = pod["spec"]["tolerations"]
    for body in (spec.pod_template, spec.cluster_spec_json.get("pod_spec", {})):
        for fragment in fragments.of_role(body, role.value):
            pod = fragments.merge(pod, fragment)
    given = pod["spec"].get("tolerations") or []
    if given is not own:
        said = {one.get("key") for one in given}
        pod["spec"]["tolerations"] = [*(one for one in own if one["key"] not in said), *given]
    return pod


def _priority(name: str) -> Object:
    return {"priorityClassName": name} if name else {}


def _pod_spec(spec: JobSpec, role: Role, process: str, memory: int = 0) -> Object:
    names, resources = Names(spec.job_name), _resources(spec, role, memory)
    limits = resources.get("limits", {})
    sizes = {"disk": limits.get("ephemeral-storage", _DISK), "memory": limits.get("memory", _MEMORY)}
    volumes = [
        {"name": "job", "configMap": {"name": names.spec}},
        {"name": "secret", "secret": {"secretName": names.secret, "items": _secret_items(role)}},
        {"name": "work", "emptyDir": {"sizeLimit": sizes["disk"]}},
        *(_volume(f"volume-{number}", volume, sizes) for number, volume in enumerate(spec.volume)),
    ]
    mounts = [
        {"name": "job", "mountPath": podplace.JOB_FOLDER, "readOnly": True},
        {"name": "secret", "mountPath": podplace.SECRET_FOLDER, "readOnly": True},
        {"name": "work", "mountPath": podplace.WORK_FOLDER},
        {"name": "work", "mountPath": "/tmp", "subPath": "tmp"},
        *(_mount(f"volume-{number}", volume) for number, volume in enumerate(spec.volume)),
    ]
    is_program = role is Role.WORKER and bool(spec.job_command)
    container: Object = {
        "name": role.value,
        "image": (spec.worker_image if role is Role.WORKER else "") or spec.image_name,
        "imagePullPolicy": spec.image_pull_policy.value,
        "command": ["python3", "-P", "-m", f"elasticdl.job.{'program' if is_program else role.value}"],
        "env": _environment(spec, role, process),
        "resources": resources,
        "volumeMounts": mounts,
        # The end of the log of a pod that failed is then part of its status.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
    }
    if role is Role.MASTER and spec.metrics_port:
        container["ports"] = [{"name": _METRICS, "containerPort": spec.metrics_port}]
    return {
        "restartPolicy": "Never",
        # The first process of a container ignores a signal that it has not asked for: a master would outlive its pod's deletion by the
        # whole grace period, and a worker that is asked to leave while it starts would never know. So neither is the first.
        "shareProcessNamespace": True,
        "terminationGracePeriodSeconds": _GRACE,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _USER,
            "runAsGroup": _USER,
            "fsGroup": _USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "tolerations": [
            {"key": f"node.kubernetes.io/{state}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": _AWAY_SECONDS}
            for state in ("not-ready", "unreachable")
        ],
        "containers": [container],
        "volumes": volumes,
    }  # fmt: skip


def _secret_items(role: Role) -> list[Object]:
    """Return what a role sees of the Secret: its own keys. A parameter server's certificate is that of a worker."""
    own = Role.WORKER if role is Role.PS else role
    names = [podplace.key_file(key) for key in _KEYS[role]] or ["token"]
    files = {name: name for name in (*names, "ca.crt")} | {f"{own}.crt": "tls.crt", f"{own}.key": "tls.key"}
    return [{"key": key, "path": path, "mode": 0o440} for key, path in files.items()]


def _environment(spec: JobSpec, role: Role, process: str) -> list[Object]:
    fixed = {
        podplace.PROCESS_ENVIRONMENT: process,
        podplace.POD_ENVIRONMENT: podplace.JOB_FOLDER,
        "HOME": podplace.WORK_FOLDER,
        "PYTHONUNBUFFERED": "1",
    }
    found = {podplace.ADDRESS_ENVIRONMENT: "status.podIP"}
    if role is Role.WORKER and spec.node_dir:
        fixed[podplace.NODE_DIR_ENVIRONMENT] = spec.node_dir
        found[podplace.NODE_ENVIRONMENT] = "spec.nodeName"
    return [
        *(
            {"name": name, "value": value}
            for name, value in {**allocator.environment(role), **spec.envs, **fixed}.items()
        ),
        *({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in found.items()),
    ]


def _resources(spec: JobSpec, role: Role, memory: int) -> Object:
    match role:
        case Role.MASTER:
            request, limit = spec.master_resource_request, spec.master_resource_limit
        case Role.WORKER:
            request, limit = spec.worker_resource_request, spec.worker_resource_limit
        case Role.PS:
            request, limit = spec.ps_resource_request, spec.ps_resource_limit
    # Vendors' resources can't be shared: Kubernetes wants the same amount as request and limit.
    vendors = {name: value for name, value in request.items() if "/" in name}
    limits = {**vendors, **limit}
    if memory:  # asked for too: a node that can't give it would end the pod again
        request, limits = {**request, "memory": str(memory)}, {**limits, "memory": str(memory)}
    return {"requests": dict(request)} | ({"limits": limits} if limits else {})


def _volume(name: str, volume: Volume, sizes: Mapping[str, str]) -> Object:
    """Return a volume of a pod; `sizes`: what an empty directory of each medium may hold."""
    match volume.kind:
        case "claim_name":
            source: Object = {
                "persistentVolumeClaim": {"claimName": volume.source, "readOnly": volume.read_only}
            }
        case "host_path":
            kind = {"type": volume.type} if volume.type else {}
            source = {"hostPath": {"path": volume.source, **kind}}
        case "secret":
            source = {"secret": {"secretName": volume.source}}
        case "config_map":
            source = {"configMap": {"name": volume.source}}
        case "empty_dir":
            medium = {"medium": "Memory"} if volume.source == "memory" else {}
            source = {"emptyDir": {**medium, "sizeLimit": sizes[volume.source]}}
        case _:
            server, _, path = volume.source.partition(":")
            source = {"nfs": {"server": server, "path": path, "readOnly": volume.read_only}}
    return {"name": name, **source}


def _mount(name: str, volume: Volume) -> Object:
    body: Object = {"name": name, "mountPath": volume.mount_path}
    if volume.sub_path:
        body["subPath"] = volume.sub_path
    if volume.read_only:
        body["readOnly"] = True
    return body
