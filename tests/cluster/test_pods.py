"""What pods say of their processes, by the words of real API objects."""

from __future__ import annotations

from typing import Any

import pytest

from elasticdl.cluster.cluster import (
    Blame,
    ProcessEnded,
    ProcessGone,
    ProcessName,
    ProcessPending,
    ProcessStarted,
    Role,
)
from elasticdl.cluster.kubernetes import pods
from elasticdl.cluster.kubernetes.api import ApiError
from elasticdl.master.processes.replicas import cause_of, is_fault

NAME = ProcessName(Role.WORKER, 3, 2)
LABELS = {"elasticdl.org/role": "worker", "elasticdl.org/index": "3", "elasticdl.org/incarnation": "2"}


def pod(
    phase: str = "Running", conditions: list[dict[str, str]] | None = None, **state: Any
) -> dict[str, Any]:
    return {
        "metadata": {"name": "job-worker-3-2", "labels": LABELS},
        "spec": {"nodeName": "node1"},
        "status": {
            "phase": phase,
            "conditions": conditions or [],
            "containerStatuses": [{"name": "worker", "state": state}] if state else [],
        },
    }


def disrupted(reason: str, message: str = "") -> list[dict[str, str]]:
    return [{"type": "DisruptionTarget", "status": "True", "reason": reason, "message": message}]


def ended(code: int, **more: Any) -> dict[str, Any]:
    return {"exitCode": code, **more}


def test_a_pod_of_somebody_else_is_no_process() -> None:
    assert pods.read({"metadata": {"name": "x", "labels": {"elasticdl.org/role": "master"}}}) is None
    assert pods.read({"metadata": {"name": "x"}}) is None


def test_waiting_for_room() -> None:
    unschedulable = [
        {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": "0/2 nodes are available: 2 Insufficient cpu.",
        }
    ]
    assert pods.read(pod("Pending", unschedulable)) == ProcessPending(
        NAME, "0/2 nodes are available: 2 Insufficient cpu."
    )
    assert pods.read(pod("Pending")) == ProcessPending(NAME, "its node is preparing it", has_room=True)
    first_try = pod("Pending", waiting={"reason": "ErrImagePull", "message": "no such image"})
    assert pods.read(first_try) == ProcessPending(NAME, "no such image", has_room=True)


def test_running() -> None:
    assert pods.read(pod(running={"startedAt": "2026-01-01T00:00:00Z"})) == ProcessStarted(NAME, None)


@pytest.mark.parametrize(
    "reason", ["ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName", "CreateContainerConfigError"]
)
def test_what_will_never_run(reason: str) -> None:
    seen = pods.read(pod("Pending", waiting={"reason": reason, "message": "why"}))
    assert seen == ProcessEnded(NAME, None, None, Blame.START, f"{reason}: why")


@pytest.mark.parametrize(
    "message",
    [
        "context deadline exceeded",
        'failed to reserve container name "worker_0": name "worker_0" is reserved for "1f"',
        "failed to sync secret cache: timed out waiting for the condition",
        "failed to sync configmap cache: timed out waiting for the condition",
    ],
)
def test_a_kubelet_that_asks_again(message: str) -> None:
    seen = pods.read(pod("Pending", waiting={"reason": "CreateContainerError", "message": message}))
    assert seen == ProcessPending(NAME, message, has_room=True)


@pytest.mark.parametrize(
    ("terminated", "event"),
    [
        (ended(0, reason="Completed"), ProcessEnded(NAME, 0, None)),
        (ended(3, reason="Error"), ProcessEnded(NAME, 3, None)),
        (
            ended(1, reason="Error", message="ValueError: no"),
            ProcessEnded(NAME, 1, None, Blame.PROGRAM, "ValueError: no"),
        ),
        (ended(137, reason="Error"), ProcessEnded(NAME, None, 9)),
        (ended(139, reason="Error"), ProcessEnded(NAME, None, 11)),
        (
            ended(137, reason="OOMKilled"),
            ProcessEnded(NAME, None, 9, Blame.MEMORY, "it needed more memory than its pod may have"),
        ),
        (
            ended(128, reason="StartError", message="no exec"),
            ProcessEnded(NAME, None, None, Blame.START, "no exec"),
        ),
    ],
)
def test_ends(terminated: dict[str, Any], event: ProcessEnded) -> None:
    assert pods.read(pod("Failed", terminated=terminated)) == event


@pytest.mark.parametrize(
    "reason",
    ["PreemptionByScheduler", "EvictionByEvictionAPI", "DeletionByTaintManager", "TerminationByKubelet"],
)
def test_a_disruption_counts_before_all_else(reason: str) -> None:
    for terminated in (
        ended(137, reason="OOMKilled"),
        ended(1, reason="Error"),
        ended(0, reason="Completed"),
    ):
        seen = pods.read(pod("Failed", disrupted(reason, "make room"), terminated=terminated))
        assert isinstance(seen, ProcessEnded)
        assert (seen.blame, seen.text) == (Blame.CLUSTER, f"{reason}: make room")


def test_a_disruption_that_is_only_announced_is_no_end() -> None:
    running = pod(conditions=disrupted("DeletionByTaintManager"), running={})
    assert pods.read(running) == ProcessStarted(NAME, None)


def test_a_pod_whose_node_does_not_answer_is_gone_and_not_proven_dead() -> None:
    lost = pod(conditions=disrupted("DeletionByTaintManager"), running={})
    lost["metadata"] = {**lost["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}
    assert pods.read(lost) == ProcessGone(NAME, "node1")


def test_a_pod_of_a_node_that_is_out_of_service_is_dead() -> None:
    collected = pod("Failed", disrupted("DeletionByPodGC", "node is out of service"), running={})
    assert pods.read(collected) == ProcessEnded(
        NAME, None, None, Blame.CLUSTER, "DeletionByPodGC: node is out of service"
    )


def test_evicted_before_it_ran() -> None:
    body = pod("Failed")
    body["status"] |= {"reason": "Evicted", "message": "The node was low on resource: memory."}
    assert pods.read(body) == ProcessEnded(
        NAME, None, None, Blame.CLUSTER, "Evicted: The node was low on resource: memory."
    )


@pytest.mark.parametrize(
    "message",
    [
        'Usage of EmptyDir volume "work" exceeds the limit "10Gi".',
        "Pod ephemeral local storage usage exceeds the total limit of containers 1Gi.",
        'Container worker exceeded its local ephemeral storage limit "1Gi".',
    ],
)
def test_who_wrote_more_than_its_limit_is_to_blame(message: str) -> None:
    """The kubelet's SIGKILL must not look like somebody's, and the job begin again without end."""
    for state in ({}, {"terminated": ended(137, reason="Error")}):
        body = pod("Failed", **state)
        body["status"] |= {"reason": "Evicted", "message": message}
        seen = pods.read(body)
        assert seen == ProcessEnded(NAME, None, None, Blame.PROGRAM, f"Evicted: {message}")
        assert is_fault(seen)
        assert cause_of(seen) == f"Evicted: {message}"


def test_only_a_pod_without_a_node_never_ran() -> None:
    body = pod("Pending")
    assert not pods.never_ran(body)
    del body["spec"]["nodeName"]
    assert pods.never_ran(body)


def test_who_ran_out_of_memory_says_how_much_it_had() -> None:
    body = pod(terminated=ended(137, reason="OOMKilled"))
    body["spec"]["containers"] = [{"name": "worker", "resources": {"limits": {"memory": "1500Mi"}}}]
    seen = pods.read(body)
    assert isinstance(seen, ProcessEnded)
    assert (seen.blame, seen.memory) == (Blame.MEMORY, 1500 << 20)


@pytest.mark.parametrize(("limit", "bytes_"), [("1500Mi", 1500 << 20), ("1e9", 0), ("", 0)])
def test_memory_in_a_form_that_nobody_foresaw_hides_no_pod(limit: str, bytes_: int) -> None:
    killed = pod("Failed", terminated={"exitCode": 137, "reason": "OOMKilled"})
    killed["spec"]["containers"] = [{"name": "worker", "resources": {"limits": {"memory": limit}}}]
    found = pods.read(killed)
    assert isinstance(found, ProcessEnded)
    assert (found.blame, found.memory) == (Blame.MEMORY, bytes_)


def test_a_quota_that_can_never_be_met_does_not_pass() -> None:
    assert pods.may_pass(ApiError(403, "Forbidden", "exceeded quota: small, requested: pods=1"))
    assert not pods.may_pass(ApiError(403, "Forbidden", "failed quota: small: must specify limits.cpu"))
