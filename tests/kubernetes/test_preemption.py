"""The real scheduler takes workers for more urgent pods, and gives the room back: jobs shrink and grow, and lose nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from .conftest import Start
from .image import IMAGE
from .jobs import SECONDS, Job, api_of, paced
from .processes import wait_for
from .testbed import Testbed

UNIT = "example.com/unit"
"""A resource that the nodes have three of each: what a worker needs of it is what there may be too little of."""


@pytest.fixture(scope="module")
def six_units(ready: Testbed) -> Iterator[Testbed]:
    """The cluster with three units on each node, and two priority classes."""
    for name, value in (("high", 1000), ("low", 100)):
        body = {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": name},
            "value": value,
        }
        api_of(ready).create(body)
    for node in ready.nodes:
        capacity(ready, node.name, "3")
    yield ready
    for node in ready.nodes:
        capacity(ready, node.name, "0")
    for name in ("high", "low"):
        api_of(ready).delete("PriorityClass", name)


def capacity(cluster: Testbed, node: str, units: str) -> None:
    plane, path = cluster.control_plane, f"/api/v1/nodes/{node}"
    assert plane.patch(f"{path}/status", {"status": {"capacity": {UNIT: units}}})

    def allocatable() -> bool:
        return bool(
            json.loads(plane.get(path) or "{}").get("status", {}).get("allocatable", {}).get(UNIT) == units
        )

    wait_for(f"{units} units", allocatable, 60.0)


def urgent(cluster: Testbed, name: str, units: int) -> None:
    """Create a pod of high priority that needs units, and does nothing."""
    container = {
        "name": "main",
        "image": IMAGE,
        "imagePullPolicy": "Never",
        "command": ["sleep", "100000"],
        "resources": {"requests": {UNIT: str(units)}, "limits": {UNIT: str(units)}},
    }
    spec = {"priorityClassName": "high", "containers": [container], "terminationGracePeriodSeconds": 0}
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
    api_of(cluster).create(body)


def phase(cluster: Testbed, name: str) -> str:
    return str(api_of(cluster).get("Pod", name)["status"]["phase"])


def leave(cluster: Testbed, *names: str) -> None:
    """Delete urgent pods, and wait until they have gone."""
    api = api_of(cluster)
    for name in names:
        api.delete("Pod", name, grace=1)
    wait_for("the end of urgent pods", lambda: not any(api.has("Pod", name) for name in names), SECONDS)


def taken(job: Job) -> set[str]:
    """Return the workers that ended because the scheduler wanted their room."""
    return {event["worker"] for event in job.events("ended") if "preempt" in event["text"].lower()}


NEEDS = f"cpu=50m,memory=500Mi,{UNIT}=1"


@pytest.mark.timeout(1800)
def test_two_jobs_give_way_to_an_urgent_pod_and_grow_back(
    start: Start, six_units: Testbed, tmp_path: Path
) -> None:
    settings = {
        **paced(tmp_path),
        "num_workers": "1:3",
        "worker_resource_request": NEEDS,
        "worker_pod_priority": "low",
        "master_pod_priority": "high",
    }
    jobs = [start(**settings, job_name=name) for name in ("first", "second")]
    for job in jobs:
        job.past(3, workers=3)
    urgent(six_units, "urgent", 2)
    try:
        wait_for("the urgent pod", lambda: phase(six_units, "urgent") == "Running", SECONDS)
        wait_for("two workers less", lambda: sum(len(job.training()) for job in jobs) == 4, SECONDS)
        # They leave the group first: why they did is told when their pods have ended.
        wait_for("the reason", lambda: sum(len(taken(job)) for job in jobs) == 2, SECONDS)
        for job in jobs:
            job.further(workers=1)
        for job in jobs:
            for worker in job.status()["workers"]:
                assert worker["state"] in ("training", "evaluating", "pending", "ended")
    finally:
        leave(six_units, "urgent")
    for job in jobs:
        job.further(workers=3)
        job.go()
    for job in jobs:
        job.summary()
        job.proven()
    assert sum(len(taken(job)) for job in jobs) == 2


@pytest.mark.timeout(1800)
def test_the_high_half_of_a_job_is_never_taken(start: Start, six_units: Testbed, tmp_path: Path) -> None:
    job = start(
        **{
            **paced(tmp_path),
            "num_workers": "1:6",
            "global_batch_size": 48,
            "worker_resource_request": NEEDS,
            "worker_pod_priority": "0.5",
            "master_pod_priority": "high",
        }
    )
    job.past(3, workers=6)
    names = [f"urgent-{number}" for number in range(4)]
    try:
        for name in names:
            urgent(six_units, name, 1)
        running = lambda: [name for name in names if phase(six_units, name) == "Running"]  # noqa: E731
        wait_for("three urgent pods", lambda: len(running()) == 3, SECONDS)
        wait_for(
            "three workers",
            lambda: sorted(job.training()) == [f"worker-{index}-1" for index in range(3)],
            SECONDS,
        )
        job.further(workers=3, steps=20)
        assert len(running()) == 3
        assert taken(job) == {f"worker-{index}-1" for index in range(3, 6)}
    finally:
        leave(six_units, *names)
    job.further(workers=6)
    job.go()
    job.summary()
    job.proven()
    assert taken(job) == {f"worker-{index}-1" for index in range(3, 6)}
