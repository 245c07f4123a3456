"""What a job on Kubernetes would consist of, as text: nothing is created, and no cluster is needed.

What only a submission makes (token and keys, the Job's uid, the address of the Service) is named in its place. The model zoo's archive is
left out for its size. Account, Role and NetworkPolicy are among them, which a job has where its user may make them.
"""

from __future__ import annotations

import json

from elasticdl.cluster.cluster import ProcessName, Role
from elasticdl.cluster.kubernetes import manifests, networkpolicy, podplace, rbac
from elasticdl.cluster.kubernetes.manifests import UID_TO_COME, Object, Protection
from elasticdl.control.transport.tls import Identity
from elasticdl.errors import BadSetting
from elasticdl.job import podrun, podsubmit
from elasticdl.spec.jobspec import JobSpec

_ADDRESS = "address-of-the-service"
_MADE = "made at submission"


def text(spec: JobSpec, form: str) -> str:
    """Return the manifests of a job as `yaml` (one document each) or `json` (one List). Raises BadInput."""
    found = objects(spec)
    if form == "json":
        return json.dumps({"apiVersion": "v1", "kind": "List", "items": found}, indent=2) + "\n"
    import yaml

    return yaml.safe_dump_all(found, sort_keys=False, width=120)


def objects(spec: JobSpec) -> list[Object]:
    """Return the manifests in the order of their creation; the last are a pod of each role as the master will make it.

    Raises BadInput.
    """
    if not spec.on_kubernetes:
        raise BadSetting(
            "--dry_run prints the objects of a job on Kubernetes, and a local job has none; --image_name makes it one on Kubernetes"
        )
    podrun.check(spec)
    spec = podsubmit.prepare(spec)
    archive = podsubmit.packed_zoo(spec)
    empty = {role: Identity(b"", b"", b"") for role in (Role.MASTER, Role.WORKER)}
    secrets = [manifests.secret(spec, UID_TO_COME, b"", empty)]
    if spec.metrics_port:
        secrets.append(manifests.metrics_secret(spec, UID_TO_COME, b"", b""))
    for secret in secrets:
        secret["stringData"] = dict.fromkeys(secret.pop("data"), _MADE)
    texts = podsubmit.texts_of(spec, UID_TO_COME, _ADDRESS, 0.0, b"", own_policy=True)
    if archive:
        texts[0]["data"][podplace.ZOO_ARCHIVE] = f"the model zoo, {len(archive):,} bytes when packed"
    return [
        manifests.master_job(spec, Protection(account=True, policy=True)),
        *rbac.of_job(spec, UID_TO_COME),
        networkpolicy.of_job(spec, UID_TO_COME),
        *((networkpolicy.of_metrics(spec, UID_TO_COME),) if spec.metrics_port else ()),
        manifests.service(spec, UID_TO_COME),
        *secrets,
        *texts,
        *(
            manifests.process_pod(spec, UID_TO_COME, ProcessName(role, 0, 1), own_policy=True)
            for role in manifests.roles(spec)
            if role is not Role.MASTER
        ),
    ]
