"""Submit a job to Kubernetes: check its settings and the cluster, and create its objects, all of them or none.

Watching and steering the job is `podjob.py`; nothing here is needed once the objects are there.
"""

from __future__ import annotations

import json
import posixpath
import re
import secrets
import time
from dataclasses import replace
from pathlib import Path

from elasticdl.cluster.cluster import Role
from elasticdl.cluster.kubernetes import manifests, podplace
from elasticdl.cluster.kubernetes.api import Api, ApiError, Object, Unreachable, connect
from elasticdl.cluster.kubernetes.certificates import make_identities
from elasticdl.cluster.kubernetes.images import check_image
from elasticdl.cluster.kubernetes.manifests import Protection
from elasticdl.cluster.kubernetes.podplace import pack_zoo
from elasticdl.errors import BadSetting
from elasticdl.job.clusterspec import settle
from elasticdl.job.podjob import PodJob
from elasticdl.spec import edge
from elasticdl.spec.framework import recorded
from elasticdl.spec.jobspec import JobSpec, Strategy
from elasticdl.spec.machine import check_pods, check_servers
from elasticdl.spec.pods import Volume, amount
from elasticdl.spec.readers import database_file
from elasticdl.tools import doctor, survey
from elasticdl.tools.doctor import Facts

_NAME = re.compile(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?")
_TOKEN_BYTES = 32
_ZOO_LIMIT = 700_000
"""Bytes of a packed model zoo: an object holds a million, and texts of bytes are a third longer."""


def submit(spec: JobSpec, api: Api | None = None) -> PodJob:
    """Create a job's objects; if one can't be created, none stays.

    Raises BadSetting, naming what is missing.
    """
    spec = prepare(spec)
    api = api or connect(spec.namespace)
    facts = _check_cluster(spec, api)
    name, archive = spec.job_name, packed_zoo(spec)
    uid = _create_job(api, spec, facts.protection)
    try:
        for body in survey.of_protection(spec, uid, facts):
            api.create(body)
        service = api.create(manifests.service(spec, uid))
        token = secrets.token_bytes(_TOKEN_BYTES)
        identities = make_identities()
        api.create(manifests.secret(spec, uid, token, identities))
        if spec.metrics_port:
            api.create(manifests.metrics_secret(spec, uid, token, identities[Role.MASTER].authority))
        address, own_policy = service["spec"]["clusterIP"], facts.protection.policy
        for body in texts_of(spec, uid, address, time.time(), archive, own_policy=own_policy):
            api.create(body)
        api.patch("Job", name, {"spec": {"suspend": False}})
    except BaseException as error:
        left = _left_after_deleting(api, name)
        if isinstance(error, ApiError):
            raise BadSetting(f"the job {name} can't be created: {error}{left}") from None
        if isinstance(error, Unreachable):
            raise BadSetting(
                f"the job {name} can't be created, the cluster stopped answering: {error}{left}"
            ) from None
        raise
    return PodJob(api, name)


def _left_after_deleting(api: Api, name: str) -> str:
    """Delete a job that can't be submitted; return what to do if that fails too, else nothing."""
    try:
        api.delete("Job", name)
    except (ApiError, Unreachable):
        return f"; remove what was made of it with `elasticdl stop {name} --namespace={api.namespace}`"
    return ""


def prepare(spec: JobSpec) -> JobSpec:
    """Check the settings of a job for Kubernetes, and put in what this machine knows; needs no cluster. Raises BadSetting."""
    _check(spec)
    if spec.model_def and Path(spec.model_zoo).is_dir():
        spec = recorded(spec)
    # A pod sees all cores of its node, and nodes differ: what it may use is in the settings.
    cores = {**spec.worker_resource_request, **spec.worker_resource_limit}.get("cpu", "1")
    return settle(replace(spec, threads_per_worker=spec.threads_per_worker or max(1, int(amount(cores)))))


def packed_zoo(spec: JobSpec) -> bytes:
    """Return the model zoo as an archive, empty if it is one of the image's. Raises BadSetting if it is too large."""
    zoo = Path(spec.model_zoo)
    return pack_zoo(zoo, _ZOO_LIMIT) if spec.model_zoo and zoo.is_dir() else b""


def texts_of(
    spec: JobSpec, uid: str, address: str, submitted_at: float, archive: bytes, *, own_policy: bool
) -> list[Object]:
    """Return the ConfigMaps of a job, given the address of its Service."""
    names = manifests.Names(spec.job_name)
    texts = {
        "spec.json": json.dumps(spec.to_json(), indent=1),
        "job.json": podplace.job_text(
            spec.job_name, spec.namespace, uid, submitted_at, address, own_policy=own_policy
        ),
    }
    return [
        manifests.settings(spec, uid, texts, archive),
        manifests.empty_item(spec, uid, names.journal),
        manifests.empty_item(spec, uid, names.store),
        manifests.empty_item(spec, uid, names.events),
    ]


def _check(spec: JobSpec) -> None:
    if not spec.image_name:
        raise BadSetting(
            "--image_name is required on Kubernetes: the image of the pods, made by `elasticdl zoo build`"
        )
    if not _NAME.fullmatch(spec.job_name):
        raise BadSetting(
            f"--job_name: on Kubernetes a name has at most 40 lower-case letters, digits and '-', and begins with a letter; "
            f"received {spec.job_name!r}"
        )
    for flag, image in (("image_name", spec.image_name), ("worker_image", spec.worker_image)):
        if image:
            check_image(flag, image)
    if spec.metrics_port in (podplace.CONTROL_PORT, podplace.HEART_PORT):
        raise BadSetting(
            f"--metrics_port: the job itself needs the ports {podplace.CONTROL_PORT} and {podplace.HEART_PORT}; 9464 is usual for figures"
        )
    if spec.distribution_strategy is Strategy.LOCAL:
        raise BadSetting(
            "--distribution_strategy: Local trains in the process that starts it, and not on Kubernetes; leave it out, "
            "or take --num_workers=1"
        )
    check_pods(spec.num_workers.maximum, spec.num_workers.minimum, "--num_workers")
    if spec.num_ps_pods:
        check_servers(spec, spec.num_ps_pods, "--num_ps_pods")
    for flag in (
        "training_data",
        "validation_data",
        "prediction_data",
        "trained_model",
        "output",
        "audit",
        "data_cache",
        "checkpoint_dir",
        "checkpoint_dir_for_init",
        "tensorboard_log_dir",
        "node_dir",
    ):
        _check_absolute(flag, getattr(spec, flag))
    for flag in ("audit", "data_cache", "checkpoint_dir", "tensorboard_log_dir", "node_dir"):
        _check_kept(spec, flag, getattr(spec, flag))
    _check_kept(spec, "output", spec.path_written)
    # The summary is written on the machine of the person, the others in pods, whose links nobody knows here.
    edge.check_apart(spec, [flag for flag in edge.WRITTEN if flag != "summary"], posixpath.normpath)
    if spec.output_table is not None and not spec.data_cache:
        raise BadSetting(
            "--data_cache is required on Kubernetes if --output is a table: what workers have predicted lies there until it is loaded; "
            "name a directory on a --volume that all pods mount"
        )
    _check_mounted(spec, "checkpoint_dir_for_init", spec.checkpoint_dir_for_init)


def _check_absolute(flag: str, given: str) -> None:
    """Check that a path means the same to all pods. Raises BadSetting."""
    path = database_file(given) if "://" in given else given
    if path and not path.startswith("/"):
        slashes = "; an absolute path has four slashes, as in sqlite:////data/x.db" if path != given else ""
        raise BadSetting(
            f"--{flag}: on Kubernetes a path is one inside the pods, where a --volume is mounted, and begins with '/'; "
            f"received {given!r}{slashes}"
        )


def _check_kept(spec: JobSpec, flag: str, path: str) -> None:
    """Check that what a job writes outlives its pods, whose own file systems are read-only besides."""
    volume = _check_mounted(spec, flag, path)
    if volume is None:
        return
    if volume.read_only or volume.kind in ("secret", "config_map"):
        raise BadSetting(
            f"--{flag}: {path!r} lies on a volume that can't be written to ({volume.mount_path})"
        )


def _check_mounted(spec: JobSpec, flag: str, path: str) -> Volume | None:
    """Return the volume on which a path lies, None if there is no path. Raises BadSetting if it lies on none."""
    if not path:
        return None
    volume = max(
        (one for one in spec.volume if doctor.path_is_on(path, one)),
        key=lambda one: len(one.mount_path),
        default=None,
    )
    if volume is None or volume.kind == "empty_dir":
        where = (
            "no --volume"
            if volume is None
            else f"an empty directory ({volume.mount_path}) that ends with its pod"
        )
        raise BadSetting(
            f"--{flag}: {path!r} lies on {where}; mount what keeps it, such as --volume=claim_name=NAME,mount_path=/data"
        )
    return volume


def _check_cluster(spec: JobSpec, api: Api) -> Facts:
    """Check what pods would otherwise wait for without a word that reaches the person, and return what was found."""
    try:
        facts = survey.gather(spec, api)
    except (ApiError, Unreachable) as error:
        raise BadSetting(f"no job was submitted: {error}") from None
    if reason := survey.refuse(spec, facts):
        raise BadSetting(f"no job was submitted: {reason}")
    return facts


def _create_job(api: Api, spec: JobSpec, protection: Protection) -> str:
    try:
        return str(api.create(manifests.master_job(spec, protection))["metadata"]["uid"])
    except Unreachable as error:
        raise BadSetting(f"no job was submitted: {error}") from None
    except ApiError as error:
        if error.reason == "AlreadyExists":
            raise BadSetting(
                f"--job_name: the namespace {spec.namespace} has had a job named {spec.job_name!r} since a moment ago"
            ) from None
        raise BadSetting(f"no job was submitted: {error}") from None
