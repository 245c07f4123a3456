"""Where the real scheduler puts the master's own pods, and which of them it takes away; the nodes are fake, and the tests play kubelet."""

from __future__ import annotations

import functools
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from elasticdl.cluster.cluster import ProcessName, Role
from elasticdl.cluster.kubernetes import manifests
from elasticdl.cluster.kubernetes.api import Api
from elasticdl.spec.edge import build, from_arguments

from .control_plane import ControlPlane
from .fake_nodes import FakeNodes
from .processes import wait_for

UNIT = "example.com/unit"
NODES, EACH = 3, 4
SECONDS = 60.0
QUIET_SECONDS = 0.5
"""How long the scheduler may have nothing to do before a placement counts as final."""

Object = dict[str, Any]


@pytest.fixture(scope="module")
def nodes(control_plane: ControlPlane) -> Iterator[FakeNodes]:
    """Three nodes of four units, and two priorities."""
    for name, value in (("high", 1000), ("low", 10)):
        control_plane.kubectl("create", "priorityclass", name, f"--value={value}")
    made = FakeNodes(control_plane, NODES, {UNIT: str(EACH)})
    yield made
    made.close()
    control_plane.kubectl("delete", "priorityclass", "high", "low")


class Room:
    """A namespace on these nodes: what is submitted there, and what becomes of it."""

    def __init__(self, api: Api, plane: ControlPlane) -> None:
        self._api = api
        self._plane = plane

    def submit(self, job: str, workers: int, priority: str = "") -> None:
        """Make the workers of a job as its master does."""
        settings = {
            "model_def": "m.model",
            "training_data": "/data",
            "job_name": job,
            "image_name": "image",
            "namespace": self._api.namespace,
            "num_workers": f"1:{workers}",
            "worker_resource_request": f"cpu=50m,memory=400Mi,{UNIT}=1",
            "worker_pod_priority": priority,
        }
        spec = build(from_arguments(settings))
        uid = self._api.create(manifests.master_job(spec))["metadata"]["uid"]
        for index in range(workers):
            self._api.create(manifests.process_pod(spec, uid, ProcessName(Role.WORKER, index, 1)))

    def intrude(self, name: str, units: int) -> None:
        """Make somebody else's pod of high priority."""
        container = {"name": "main", "image": "image", "resources": {"limits": {UNIT: str(units)}}}
        body = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": self._api.namespace},
            "spec": {"priorityClassName": "high", "containers": [container]},
        }
        self._api.create(body)

    def pods(self) -> dict[str, Object]:
        """Return the pods by name."""
        return {pod["metadata"]["name"]: pod for pod in self._api.list("Pod")[0]}

    def placed(self) -> dict[str, str]:
        """Return the nodes of the pods that have one and may stay."""
        return {
            name: pod["spec"]["nodeName"]
            for name, pod in self.pods().items()
            if _has_node(pod) and not _goes(pod)
        }

    def settle(self, what: str, ready: Callable[[], bool]) -> None:
        """Wait until something holds, and see that it still does when nothing more happens; pods that are to go do go."""
        wait_for(what, lambda: self._end_those_who_go() or ready(), SECONDS, (self._plane.scheduler,))
        before = self._shape()
        since = time.monotonic()
        while time.monotonic() - since < QUIET_SECONDS:
            self._end_those_who_go()
            shape = self._shape()
            if shape != before or self._plane.is_scheduling():
                before, since = shape, time.monotonic()
            time.sleep(0.1)
        assert ready(), what

    def end(self, name: str) -> None:
        """Let a pod be gone, as nobody ends those on nodes that are none."""
        self._api.delete("Pod", name, 0)

    def _end_those_who_go(self) -> bool:
        """Say as a kubelet that the pods that were asked to end have ended."""
        for name, pod in self.pods().items():
            if _goes(pod):
                self.end(name)
        return False

    def _shape(self) -> dict[str, str | None]:
        return {name: pod["spec"].get("nodeName") for name, pod in self.pods().items()}


def _has_node(pod: Object) -> bool:
    return bool(pod["spec"].get("nodeName"))


def _goes(pod: Object) -> bool:
    return "deletionTimestamp" in pod["metadata"]


@pytest.fixture
def room(api: Api, control_plane: ControlPlane, nodes: FakeNodes) -> Iterator[Room]:
    accounts = f"/api/v1/namespaces/{api.namespace}/serviceaccounts/default"
    wait_for("the service account", lambda: control_plane.get(accounts) is not None, SECONDS)
    made = Room(api, control_plane)
    yield made
    for name in made.pods():
        made.end(name)


def workers(room: Room, job: str) -> set[str]:
    """Return the workers of a job that have a node."""
    return {name for name in room.placed() if name.startswith(f"{job}-worker-")}


def test_workers_beyond_the_capacity_stay_pending(room: Room) -> None:
    room.submit("job", NODES * EACH + 2)
    room.settle("a full cluster", lambda: len(room.placed()) == NODES * EACH)
    assert Counter(room.placed().values()) == dict.fromkeys((f"fake{n}" for n in (1, 2, 3)), EACH)
    waiting = [pod for pod in room.pods().values() if not _has_node(pod)]
    assert len(waiting) == 2
    for pod in waiting:
        (condition,) = [one for one in pod["status"]["conditions"] if one["type"] == "PodScheduled"]
        assert condition["reason"] == "Unschedulable"
        assert f"Insufficient {UNIT}" in condition["message"]


def test_workers_that_wait_get_the_room_that_becomes_free(room: Room) -> None:
    room.submit("first", NODES * EACH - 2)
    room.settle("the first job", lambda: len(workers(room, "first")) == NODES * EACH - 2)
    room.submit("second", 5)
    room.settle("what is left for the second", lambda: len(workers(room, "second")) == 2)
    for name in sorted(workers(room, "first"))[:3]:
        room.end(name)
    room.settle("all of the second job", lambda: len(workers(room, "second")) == 5)


def test_workers_spread_over_the_nodes(room: Room) -> None:
    room.submit("job", 6)
    room.settle("all workers", lambda: len(room.placed()) == 6)
    assert sorted(Counter(room.placed().values()).values()) == [2, 2, 2]


@pytest.mark.parametrize("units", [[1, 1, 1], [3]], ids=["three pods", "one pod of three units"])
def test_a_pod_of_high_priority_takes_as_many_workers_as_it_needs(room: Room, units: list[int]) -> None:
    for job in ("first", "second"):
        room.submit(job, NODES * EACH // 2, "low")
    room.settle("a full cluster", lambda: len(room.placed()) == NODES * EACH)
    for number, count in enumerate(units):
        # One after the other: of several at once the scheduler may take one worker more, in the race with a victim's end.
        name = f"intruder-{number}"
        room.intrude(name, count)
        room.settle(name, functools.partial(_is_placed, room, name))
    left = workers(room, "first") | workers(room, "second")
    assert len(left) == NODES * EACH - sum(units)
    assert set(room.pods()) == left | {f"intruder-{number}" for number in range(len(units))}


def test_the_high_half_of_the_workers_is_never_taken(room: Room) -> None:
    room.submit("job", NODES * EACH, "0.5")
    room.settle("a full cluster", lambda: len(room.placed()) == NODES * EACH)
    for number in range(NODES * EACH):
        room.intrude(f"intruder-{number}", 1)
    half = NODES * EACH // 2
    room.settle("all the room that low workers had", lambda: _intruders(room) == half)
    assert workers(room, "job") == {f"job-worker-{index}-1" for index in range(half)}


def _is_placed(room: Room, name: str) -> bool:
    return name in room.placed()


def _intruders(room: Room) -> int:
    return sum(name.startswith("intruder-") for name in room.placed())
