"""What statements need whose jobs are pods: a store that all of them share, and a Secret. Decisions, of settings alone."""

from __future__ import annotations

import re
from collections.abc import Sequence

from elasticdl.cluster.kubernetes.datapod import SecretKey
from elasticdl.errors import BadSetting
from elasticdl.spec.jobspec import JobSpec
from elasticdl.spec.pods import Volume
from elasticdl.tools.doctor import path_is_on

KEY = "url"
"""Of a Secret, if nothing else is said."""
_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_KEY = re.compile(r"[A-Za-z0-9._-]{1,253}")
_SHARED = (
    "name a directory on a --volume that all pods share: claim_name=CLAIM,mount_path=/data, of a claim with the access mode ReadWriteMany, "
    "or nfs=SERVER:/PATH,mount_path=/data"
)


def secret_key(text: str) -> SecretKey:
    """Read `NAME[/KEY]`. Raises BadSetting, whose message has no URL that somebody took for a name."""
    name, slash, key = text.partition("/")
    if "://" in text:
        raise BadSetting(
            "--database_secret names a Secret of the namespace, and the key in it that has the URL: NAME or NAME/KEY; received a URL"
        )
    if not _NAME.fullmatch(name) or (slash and not _KEY.fullmatch(key)):
        raise BadSetting(f"--database_secret: expected NAME or NAME/KEY, received {text!r}")
    return SecretKey(name, key or KEY)


def volume_of_store(store: str, volumes: Sequence[Volume]) -> Volume:
    """Return the volume that a store is on, which still may be a claim of another access mode. Raises BadSetting if it is on none."""
    if not store:
        raise BadSetting(f"--store is required if the jobs of statements are on Kubernetes: {_SHARED}")
    if "://" in store:
        raise BadSetting(
            f"--store: jobs write models and audits to directories, and not to URLs: {_SHARED}; received {store!r}"
        )
    if not store.startswith("/"):
        raise BadSetting(
            f"--store: on Kubernetes it is a path of the pods, and begins with '/': {_SHARED}; received {store!r}"
        )
    volume = max(
        (one for one in volumes if path_is_on(store, one)), key=lambda one: len(one.mount_path), default=None
    )
    if volume is None:
        raise BadSetting(f"--store: {store!r} is on no --volume; {_SHARED}")
    if volume.kind not in ("claim_name", "nfs"):
        other = {"host_path": "is another directory on each node", "empty_dir": "ends with its pod"}
        raise BadSetting(
            f"--store: {store!r} is on the {volume.kind} at {volume.mount_path}, which "
            f"{other.get(volume.kind, 'can not be written to')}; {_SHARED}"
        )
    if volume.read_only:
        raise BadSetting(
            f"--store: {store!r} is on a volume that can't be written to ({volume.mount_path}); leave read_only out"
        )
    return volume


def check_claim(store: str, volume: Volume, modes: Sequence[str] | None) -> None:
    """Check the access modes of the claim that a store is on; None: this user may not look at it. Raises BadSetting."""
    if modes is not None and "ReadWriteMany" not in modes:
        raise BadSetting(
            f"--store: {store!r} is on the claim {volume.source!r}, which has the access mode {' and '.join(modes)}, and every pod "
            f"writes there: {_SHARED}"
        )


def check_owner(store: str, own: int, pods: int | None) -> None:
    """Check that pods can use what this process makes in a store: it is for one user alone. Raises BadSetting.

    Args:
        store: its path.
        own: the user of this process.
        pods: the user of the pods, None if only the image says.
    """
    if pods is not None and own != pods:
        raise BadSetting(
            f"--store: what is made in {store} is for its user alone, and that is {own} here and {pods} in the pods; run this as {pods}, "
            "set runAsUser with --pod_template, or give --database_secret: then pods read the rows as well"
        )


def user_of_pods(spec: JobSpec) -> int | None:
    """Return the number of the user that workers run as; None if only the image says."""
    from elasticdl.cluster.cluster import Role
    from elasticdl.cluster.kubernetes import manifests

    pod = manifests.pod_of(spec, Role.WORKER)["spec"]
    contexts = [one.get("securityContext") or {} for one in (*pod["containers"][:1], pod)]
    return next((int(one["runAsUser"]) for one in contexts if "runAsUser" in one), None)
