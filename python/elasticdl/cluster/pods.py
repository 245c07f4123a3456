"""What a pod says of its process: a pure reading of the API's objects, in the order in which causes count.

A disruption says so itself (`DisruptionTarget`); running out of memory and a bad image have words of their own; what is left is the
exit code. Dead is only what a kubelet reports as terminated, or what garbage collection declares failed with its node (rule D2).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from elasticdl.cluster.cluster import (
    Blame,
    ProcessEnded,
    ProcessEvent,
    ProcessGone,
    ProcessName,
    ProcessPending,
    ProcessStarted,
    Role,
)
from elasticdl.spec.pods import amount

_HOPELESS = frozenset(
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
_BUSY = ("context deadline exceeded", "is reserved for")
"""What kubelets say, under the same reasons, of a container runtime that has not done in time what they asked: they ask again."""
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
    container = (status.get("containerStatuses") or [{}])[0]
    state = container.get("state", {})
    if "terminated" in state:
        return _ended(name, pod, state["terminated"])
    if status.get("phase") in ("Failed", "Succeeded"):
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
    if text := hopeless(waiting):
        return ProcessEnded(name, None, None, Blame.START, text)
    return ProcessPending(name, waits_for(status))


def hopeless(waiting: Mapping[str, Any]) -> str:
    """Return the kubelet's words if a container waits for what will not come by itself, else nothing."""
    reason, message = waiting.get("reason", ""), waiting.get("message", "")
    if reason not in _HOPELESS or any(word in message for word in _BUSY):
        return ""
    return f"{reason}: {message}".rstrip(": ")


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


def last_line(pod: Mapping[str, Any]) -> str:
    """Return the last line of what a pod that has ended said, empty if its status does not show it."""
    container = (pod.get("status", {}).get("containerStatuses") or [{}])[0]
    lines = str(container.get("state", {}).get("terminated", {}).get("message", "")).strip().splitlines()
    return lines[-1] if lines else ""


def _ended(name: ProcessName, pod: Mapping[str, Any], terminated: Mapping[str, Any]) -> ProcessEnded:
    code, signal = _outcome(terminated)
    words = str(terminated.get("message", ""))
    disruption = _disruption(pod["status"])
    if disruption is not None:
        return ProcessEnded(name, code, signal, *disruption)
    if terminated.get("reason") == "OOMKilled":
        text = "it needed more memory than its pod may have"
        return ProcessEnded(name, code, signal, Blame.MEMORY, text, _memory(pod))
    if terminated.get("reason") in ("StartError", "ContainerCannotRun"):
        return ProcessEnded(name, None, None, Blame.START, words)
    return ProcessEnded(name, code, signal, Blame.PROGRAM, words)


def _memory(pod: Mapping[str, Any]) -> int:
    container = (pod.get("spec", {}).get("containers") or [{}])[0]
    limit = container.get("resources", {}).get("limits", {}).get("memory", "")
    return int(amount(limit)) if limit else 0


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


def _said(status: Mapping[str, Any]) -> str:
    return f"{status.get('reason', '')}: {status.get('message', '')}".strip(": ") or "the cluster gave it up"


def waits_for(status: Mapping[str, Any]) -> str:
    """Return why a pod does not run yet, by its status."""
    waiting = (status.get("containerStatuses") or [{}])[0].get("state", {}).get("waiting", {})
    for condition in status.get("conditions") or []:
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return str(condition.get("message") or condition.get("reason") or "no node yet")
    return str(waiting.get("message") or waiting.get("reason") or "its node is preparing it")
