"""The pod in which half a statement of SQL runs: the one place of a cluster that has a database's URL, by reference to a Secret.

It is a Job of its own, so that a pod that was killed, evicted or lost with its node has a successor at once, and owns the ConfigMap with
what is asked of it. What is made and what is read from it are pure functions; who watches it is elsewhere. Its answer is a line of its log.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from elasticdl.cluster.kubernetes import manifests, podplace, pods
from elasticdl.cluster.kubernetes.manifests import Object
from elasticdl.spec import fragments
from elasticdl.spec.jobspec import JobSpec

CONTAINER = "data"
REQUEST_FOLDER, REQUEST = "/elasticdl/request", "request.json"
URL_ENVIRONMENT = "ELASTICDL_DATABASE"
"""Environment variable of this pod, and of no other, with the URL of the database."""
ANSWER = "elasticdl-answer "
"""Begins the line of the log that is the answer, in JSON."""
_MODULE = "elasticdl.query.pod"
_TRIES = 5
"""Pods that end without an answer, and not by the cluster's doing, before nobody waits for the next."""
_PODS = 1000
"""That a Job may have one after the other: an index each, since the next index begins at once (design note 7)."""
_KEPT_SECONDS = 3600
"""For which what has ended stays, if the one who asked is not there any more to remove it."""


@dataclass(frozen=True, slots=True)
class SecretKey:
    """Where the URL of a database is.

    Attributes:
        name: of the Secret.
        key: in it.
    """

    name: str
    key: str

    def __str__(self) -> str:
        return f"{self.name}/{self.key}"


def job(spec: JobSpec, name: str, secret: SecretKey) -> Object:
    """Return the Job, suspended: it is resumed when what is asked of it exists.

    Args:
        spec: the settings of jobs: image, volumes, variables, and what a master's pod may use.
        name: of the object.
        secret: with the URL.
    """
    master = manifests.master_pod(spec)
    own = _labels(name)
    theirs = {
        label: value
        for label, value in master["metadata"]["labels"].items()
        if not label.startswith(fragments.OWN_PREFIXES)
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": name,
            "namespace": spec.namespace,
            "labels": own,
            "annotations": {manifests.PROGRESS: "half a statement of SQL"},
        },
        "spec": {
            "suspend": True,
            "parallelism": 1,
            "completionMode": "Indexed",
            "completions": _PODS,
            "backoffLimitPerIndex": 0,
            "successPolicy": {"rules": [{"succeededCount": 1}]},
            # One on a lost node is replaced, not waited for: no harm comes of two at a time.
            "podReplacementPolicy": "TerminatingOrFailed",
            "ttlSecondsAfterFinished": _KEPT_SECONDS,
            "template": {
                "metadata": {
                    "labels": {**theirs, **own},
                    "annotations": master["metadata"].get("annotations", {}),
                },
                "spec": _pod_spec(master["spec"], name, secret),
            },
        },
    }


def request(spec: JobSpec, name: str, uid: str, body: Mapping[str, Any]) -> Object:
    """Return the ConfigMap with what is asked of a Job, by which it is owned."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": name,
            "namespace": spec.namespace,
            "labels": _labels(name),
            "ownerReferences": [manifests.owner(name, uid)],
        },
        "immutable": True,
        "data": {REQUEST: json.dumps(body, ensure_ascii=False)},
    }


def selector(name: str) -> str:
    """Return the selector of a Job's pods."""
    return f"batch.kubernetes.io/job-name={name}"


def _labels(name: str) -> dict[str, str]:
    return {
        "app.kubernetes.io/name": "elasticdl",
        "app.kubernetes.io/instance": name,
        "app.kubernetes.io/component": CONTAINER,
        "app.kubernetes.io/managed-by": "elasticdl",
    }


def _pod_spec(master: Object, name: str, secret: SecretKey) -> Object:
    """Return what a master's pod would be, without what only a job has, and with the database."""
    (container,) = [one for one in master["containers"] if one["name"] == "master"]
    others = [one for one in master["containers"] if one is not container]
    of_jobs = ("job", "secret")
    reference = {"secretKeyRef": {"name": secret.name, "key": secret.key}}
    own = (podplace.PROCESS_ENVIRONMENT, podplace.POD_ENVIRONMENT, podplace.ADDRESS_ENVIRONMENT)
    left_out = ("serviceAccountName", "topologySpreadConstraints")
    return {
        **{key: value for key, value in master.items() if key not in left_out},
        "automountServiceAccountToken": False,
        "containers": [
            {
                **{key: value for key, value in container.items() if key != "ports"},
                "name": CONTAINER,
                "command": ["python3", "-P", "-m", _MODULE, f"{REQUEST_FOLDER}/{REQUEST}"],
                "env": [
                    *(one for one in container["env"] if one["name"] not in (*own, URL_ENVIRONMENT)),
                    {"name": URL_ENVIRONMENT, "valueFrom": reference},
                ],
                "volumeMounts": [
                    *(one for one in container["volumeMounts"] if one["name"] not in of_jobs),
                    {"name": "request", "mountPath": REQUEST_FOLDER, "readOnly": True},
                ],
            },
            *others,
        ],
        "volumes": [
            *(one for one in master["volumes"] if one["name"] not in of_jobs),
            {"name": "request", "configMap": {"name": name}},
        ],
    }


# ------------------------------------------------------------------ what its pods show


@dataclass(frozen=True, slots=True)
class Waiting:
    """There is no answer yet; `why` a person should know of, if anything."""

    why: str = ""


@dataclass(frozen=True, slots=True)
class Answered:
    """A pod has ended in order, and its log has the answer."""

    pod: str


@dataclass(frozen=True, slots=True)
class GivenUp:
    """No pod will answer, and why."""

    why: str


def decide(found: Sequence[Mapping[str, Any]]) -> Waiting | Answered | GivenUp:
    """Return what the pods of a Job amount to.

    One that the cluster has ended, or that is gone, never counts: the Job makes another one. One that can't start, or for which its memory
    was too little, would fail again.
    """
    there = sorted(found, key=lambda pod: str(pod["metadata"].get("creationTimestamp", "")))
    failed = []
    for pod in there:
        status = pod.get("status", {})
        state = pods.own_container(status.get("containerStatuses"), (CONTAINER,)).get("state", {})
        if status.get("phase") == "Succeeded":
            return Answered(str(pod["metadata"]["name"]))
        if text := pods.unrecoverable(state.get("waiting", {})):
            return GivenUp(f"the pod {pod['metadata']['name']} can't start: {text}")
        if state.get("terminated", {}).get("reason") == "OOMKilled":
            return GivenUp(
                f"the pod {pod['metadata']['name']} needed more memory than it may have; give more with "
                "--master_resource_limit=memory=AMOUNT, or leave the limit out"
            )
        if pods.failed(pod):
            failed.append(pod)
    if len(failed) >= _TRIES:
        last = pods.last_line(failed[-1], (CONTAINER,))
        return GivenUp(f"{len(failed)} pods have ended without an answer{f' ({last})' if last else ''}")
    return Waiting(_why(there))


def _why(there: Sequence[Mapping[str, Any]]) -> str:
    if not there:
        return ""
    newest, status = there[-1], there[-1].get("status", {})
    if status.get("phase") == "Failed" or "deletionTimestamp" in newest["metadata"]:
        last = pods.last_line(newest, (CONTAINER,))
        return f"the pod {newest['metadata']['name']} has ended{f' ({last})' if last else ''}, and another one is made"
    if status.get("phase") == "Pending":
        return f"the pod {newest['metadata']['name']} waits: {pods.waits_for(status, (CONTAINER,))}"
    return ""
