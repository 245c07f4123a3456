"""What a pod says of its process: a pure reading of the API's objects, in the order in which causes count.

A disruption says so itself (`DisruptionTarget`); running out of memory and a bad image have words of their own; what is left is the
exit code. Dead is only what a kubelet reports as terminated, or what garbage collection declares failed with its node (rule D2).
"""

from __future__ import annotations

import re
import signal as signals
from collections.abc import Mapping, Sequence
from typing import Any

from elasticdl.cluster.cluster import (
    EVICTED,
    RELEASED,
    Blame,
    ProcessEnded,
    ProcessEvent,
    ProcessGone,
    ProcessName,
    ProcessPending,
    ProcessStarted,
    Role,
)
from elasticdl.cluster.kubernetes.api import ApiError
from elasticdl.spec.pods import amount

_UNRECOVERABLE = frozenset(
    {
        "ErrImageNeverPull",
        "InvalidImageName",
        "CreateContainerConfigError",
        "CreateContainerError",
        "RunContainerError",
        "ImagePullBackOff",
    }
)
"""Reasons of a container that waits for something that will not come by itself. `ErrImagePull` is the first try of several."""
_BUSY = (
    "context deadline exceeded",
    "is reserved for",
    "services have not yet been read",
    "cache: timed out waiting",
)
"""What kubelets say, under the same reasons, of a container runtime that has not done in time what they asked, or when they have just
started themselves, or have not got a Secret or a ConfigMap from an API server that was away: they ask again."""
_TOO_MUCH = re.compile(r"[Uu]sage.* exceeds |exceeded its local ephemeral storage limit")
"""What kubelets say of a pod that they end because it has written more to its disk than its own limits allow."""
_SIGNALS = 128
"""Exit codes above it are signals, in the words of every container runtime."""


def process_of(pod: Mapping[str, Any]) -> ProcessName | None:
    """Return the process that a pod is, by its labels; None if it is none of ours."""
    labels = pod["metadata"].get("labels", {})
    try:
        return ProcessName(
            Role(labels["elasticdl.org/role"]),
            int(labels["elasticdl.org/index"]),
            int(labels["elasticdl.org/incarnation"]),
        )
    except (KeyError, ValueError):
        return None


def read(pod: Mapping[str, Any]) -> ProcessEvent | None:
    """Return what a pod shows, None if it is on its way between two states."""
    name = process_of(pod)
    if name is None:
        return None
    status = pod.get("status", {})
    state = own_container(status.get("containerStatuses")).get("state", {})
    if "terminated" in state:
        return _ended(name, pod, state["terminated"])
    if status.get("phase") in ("Failed", "Succeeded"):
        if _wrote_too_much(status):
            return ProcessEnded(name, None, None, Blame.PROGRAM, _said(status))
        # No kubelet has said more: preempted before it ran, or its node was declared lost for good.
        blame, text = _disruption(status) or (Blame.CLUSTER, _said(status))
        return ProcessEnded(name, None, None, blame, text)
    if "running" in state:
        return (
            ProcessGone(name, pod["spec"]["nodeName"])
            if _is_on_lost_node(pod)
            else ProcessStarted(name, None)
        )
    waiting = state.get("waiting", {})
    if text := unrecoverable(waiting):
        return ProcessEnded(name, None, None, Blame.START, text)
    return ProcessPending(name, waits_for(status), has_room=not _lacks(status))


def own_container(
    containers: Sequence[Mapping[str, Any]] | None, names: Sequence[str] = tuple(Role)
) -> Mapping[str, Any]:
    """Return the container, or its status, that is the process: a cluster may have put others beside it. Empty if there is none yet."""
    return next((one for one in containers or () if one.get("name") in names), {})


def unrecoverable(waiting: Mapping[str, Any]) -> str:
    """Return the kubelet's words if a container waits for what will not come by itself, else nothing."""
    reason, message = waiting.get("reason", ""), waiting.get("message", "")
    if reason not in _UNRECOVERABLE or any(word in message for word in _BUSY):
        return ""
    return f"{reason}: {message}".rstrip(": ")


def may_pass(refusal: ApiError) -> bool:
    """Tell whether a pod that the API refused to make may be welcome later.

    A quota is room that is taken: like a full cluster, it may become free. Two requests at once may conflict over it, and a token may just
    have run out.
    """
    return refusal.status in (401, 409) or (refusal.status == 403 and "exceeded quota" in str(refusal))


def takes_room(pod: Mapping[str, Any]) -> bool:
    """Tell whether a pod has a node's room, or waits for it; its process may have ended while others in the pod go on."""
    status = pod.get("status", {})
    containers = status.get("containerStatuses") or ()
    ended = bool(containers) and all("terminated" in one.get("state", {}) for one in containers)
    return not ended and status.get("phase") not in ("Failed", "Succeeded")


def is_blameless(ended: ProcessEnded) -> bool:
    """Tell whether a process ended without a fault of its program, so that nobody will ask for its log."""
    if ended.blame in (Blame.CLUSTER, Blame.START):
        return True
    if ended.blame is Blame.MEMORY:
        return False  # the next master reads from it how much memory workers need
    return ended.code in (RELEASED, EVICTED) or ended.signal in (signals.SIGKILL, signals.SIGTERM)


def _is_on_lost_node(pod: Mapping[str, Any]) -> bool:
    """Tell whether a pod is to go because its node does not answer: nobody will say for a while whether it is dead."""
    conditions = pod.get("status", {}).get("conditions") or []
    tainted = any(
        condition.get("type") == "DisruptionTarget" and condition.get("reason") == "DeletionByTaintManager"
        for condition in conditions
    )
    return tainted and "deletionTimestamp" in pod["metadata"]


def never_ran(pod: Mapping[str, Any]) -> bool:
    """Tell whether a pod that was deleted had no node yet: then there is nothing that could live on."""
    return not pod.get("spec", {}).get("nodeName")


def failed(pod: Mapping[str, Any]) -> bool:
    """Tell whether a pod has ended by an error of its own, and not by the cluster's doing."""
    status = pod.get("status", {})
    return status.get("phase") == "Failed" and _disruption(status) is None


def last_line(pod: Mapping[str, Any], names: Sequence[str] = tuple(Role)) -> str:
    """Return the last line of what a pod that has ended said, empty if its status does not show it."""
    container = own_container(pod.get("status", {}).get("containerStatuses"), names)
    lines = str(container.get("state", {}).get("terminated", {}).get("message", "")).strip().splitlines()
    return lines[-1] if lines else ""


def _ended(name: ProcessName, pod: Mapping[str, Any], terminated: Mapping[str, Any]) -> ProcessEnded:
    code, signal = _outcome(terminated)
    words = str(terminated.get("message", ""))
    disruption = _disruption(pod["status"])
    if disruption is not None:
        return ProcessEnded(name, code, signal, *disruption)
    if _wrote_too_much(pod["status"]):
        # The kubelet's SIGKILL would look like somebody's, which never counts, and the next life would write as much.
        return ProcessEnded(name, None, None, Blame.PROGRAM, _said(pod["status"]))
    if terminated.get("reason") == "OOMKilled":
        text = "it needed more memory than its pod may have"
        return ProcessEnded(name, code, signal, Blame.MEMORY, text, _memory(pod))
    if terminated.get("reason") in ("StartError", "ContainerCannotRun"):
        return ProcessEnded(name, None, None, Blame.START, words)
    return ProcessEnded(name, code, signal, Blame.PROGRAM, words)


def _memory(pod: Mapping[str, Any]) -> int:
    container = own_container(pod.get("spec", {}).get("containers"))
    limit = container.get("resources", {}).get("limits", {}).get("memory", "")
    try:
        return int(amount(limit)) if limit else 0
    except ValueError:
        return 0  # a form of numbers that nobody writes by hand


def _outcome(terminated: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """Return exit code and signal, one of them None."""
    code, signal = int(terminated.get("exitCode", 0)), int(terminated.get("signal", 0))
    if _SIGNALS < code <= _SIGNALS + 64:
        signal = code - _SIGNALS
    return (None, signal) if signal else (code, None)


def _disruption(status: Mapping[str, Any]) -> tuple[Blame, str] | None:
    for condition in status.get("conditions") or []:
        if condition.get("type") == "DisruptionTarget" and condition.get("status") == "True":
            return Blame.CLUSTER, f"{condition.get('reason', '')}: {condition.get('message', '')}".strip(": ")
    return None


def _wrote_too_much(status: Mapping[str, Any]) -> bool:
    return status.get("reason") == "Evicted" and bool(_TOO_MUCH.search(str(status.get("message", ""))))


def _said(status: Mapping[str, Any]) -> str:
    return f"{status.get('reason', '')}: {status.get('message', '')}".strip(": ") or "the cluster gave it up"


def waits_for(status: Mapping[str, Any], names: Sequence[str] = tuple(Role)) -> str:
    """Return why a pod does not run yet, by its status."""
    waiting = own_container(status.get("containerStatuses"), names).get("state", {}).get("waiting", {})
    return _lacks(status) or str(
        waiting.get("message") or waiting.get("reason") or "its node is preparing it"
    )


def _lacks(status: Mapping[str, Any]) -> str:
    """Return why the scheduler has found no node for a pod, empty if it has not said so."""
    for condition in status.get("conditions") or []:
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return str(condition.get("message") or condition.get("reason") or "no node yet")
    return ""
