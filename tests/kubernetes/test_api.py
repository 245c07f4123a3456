"""The master's hands and eyes against a real API server; the tests play kubelet and scheduler."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from elasticdl.cluster.cluster import (
    RELEASED,
    Blame,
    ClusterEvent,
    ProcessEnded,
    ProcessGone,
    ProcessName,
    ProcessPending,
    ProcessStarted,
    Role,
    ScaleAsked,
    StopAsked,
)
from elasticdl.cluster.kubernetes import manifests, pods
from elasticdl.cluster.kubernetes.api import Api, ApiError, Unreachable
from elasticdl.cluster.kubernetes.items import ConfigMapItem, Stale
from elasticdl.cluster.kubernetes.podcluster import KubernetesCluster
from elasticdl.errors import JournalConflict
from elasticdl.master.core.journal import Journal
from elasticdl.master.core.objectpages import ObjectPages
from elasticdl.master.core.records import EpochRecord, WantedRecord
from elasticdl.spec.edge import build, from_arguments
from elasticdl.spec.jobspec import JobSpec

from .control_plane import ControlPlane

SECONDS = 60.0


def worker(index: int, life: int = 1) -> ProcessName:
    return ProcessName(Role.WORKER, index, life)


def server(index: int, life: int = 1) -> ProcessName:
    return ProcessName(Role.PS, index, life)


class Rig:
    """A job's objects in a namespace, and the cluster as its master sees it."""

    def __init__(self, api: Api, plane: ControlPlane) -> None:
        self.api = api
        self.plane = plane
        settings = {
            "model_def": "m.model",
            "training_data": "/data",
            "job_name": "job",
            "image_name": "image",
            "namespace": api.namespace,
        }
        self.spec: JobSpec = build(from_arguments(settings))
        self.uid: str = api.create(manifests.master_job(self.spec))["metadata"]["uid"]
        self.cluster = self.connect()

    def connect(self) -> KubernetesCluster:
        return KubernetesCluster(
            self.api,
            "job",
            self.uid,
            lambda name, memory: manifests.process_pod(self.spec, self.uid, name, memory),
        )

    def item(self, name: str) -> ConfigMapItem:
        self.api.create(manifests.empty_item(self.spec, self.uid, name))
        return ConfigMapItem(self.api, name)

    def until(self, wanted: ClusterEvent) -> list[ClusterEvent]:
        """Wait for an event, and return what came before it."""
        before: list[ClusterEvent] = []
        while True:
            found = self.cluster.events(SECONDS)
            assert found, f"{wanted} did not come; there were {before}"
            for at, event in enumerate(found):
                if event == wanted:
                    return [*before, *found[:at]]
            before += found

    def pod(self, name: ProcessName) -> dict[str, Any]:
        return self.api.get("Pod", f"job-{name}")

    def report(self, name: ProcessName, **status: Any) -> None:
        """Say something as the pod's kubelet."""
        assert self.plane.patch(f"{self._path(name)}/status", {"status": status}) is not None

    def container(self, name: ProcessName, phase: str, beside: tuple[str, ...] = (), **state: Any) -> None:
        plain = {"image": "image", "imageID": "", "ready": False, "restartCount": 0}
        others = [{**plain, "name": other, "state": {"running": {}}} for other in beside]
        self.report(
            name, phase=phase, containerStatuses=[*others, {**plain, "name": name.role, "state": state}]
        )

    def place(self, name: ProcessName) -> None:
        """Give a pod a node, as the scheduler does."""
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": f"job-{name}"},
            "target": {"apiVersion": "v1", "kind": "Node", "name": "somewhere"},
        }
        self.plane.post(f"{self._path(name)}/binding", binding)

    def _path(self, name: ProcessName) -> str:
        return f"/api/v1/namespaces/{self.api.namespace}/pods/job-{name}"


@pytest.fixture
def rig(api: Api, control_plane: ControlPlane) -> Iterator[Rig]:
    made = Rig(api, control_plane)
    yield made
    made.cluster.close()


def pending(rig: Rig, name: ProcessName) -> None:
    """Launch a worker and wait until the scheduler has said that there is no room for it."""
    rig.cluster.launch(name)
    rig.until(ProcessPending(name, "no nodes available to schedule pods"))


def test_the_life_of_a_pod(rig: Rig) -> None:
    name = worker(0)
    pending(rig, name)
    rig.cluster.launch(name)  # it is there: nothing happens
    rig.container(name, "Running", running={"startedAt": "2026-01-01T00:00:00Z"})
    rig.until(ProcessStarted(name, None))
    rig.container(name, "Failed", terminated={"exitCode": 1, "reason": "Error", "message": "ValueError: no"})
    assert rig.until(ProcessEnded(name, 1, None, Blame.PROGRAM, "ValueError: no")) == []


def test_parameter_servers_live_as_workers_do(rig: Rig) -> None:
    pending(rig, server(0))
    pending(rig, worker(0))
    rig.container(server(0), "Running", running={})
    rig.until(ProcessStarted(server(0), None))
    again = rig.connect()
    assert ProcessStarted(server(0), None) in again.events(SECONDS)
    again.close()
    oom = {"exitCode": 137, "reason": "OOMKilled"}
    rig.container(server(0), "Failed", terminated=oom)
    said = "it needed more memory than its pod may have"
    rig.until(ProcessEnded(server(0), None, signal.SIGKILL, Blame.MEMORY, said))


def test_what_there_is_is_the_history(rig: Rig) -> None:
    for index in range(3):
        pending(rig, worker(index))
    rig.container(worker(1), "Running", running={})
    rig.until(ProcessStarted(worker(1), None))
    again = rig.connect()
    found = {
        event.name: event for event in again.events(SECONDS) if not isinstance(event, StopAsked | ScaleAsked)
    }
    again.close()
    assert isinstance(found[worker(0)], ProcessPending)
    assert found[worker(1)] == ProcessStarted(worker(1), None)
    assert isinstance(found[worker(2)], ProcessPending)


def test_a_pod_deleted_before_it_ran_is_dead(rig: Rig) -> None:
    pending(rig, worker(0))
    rig.cluster.signal(worker(0), signal.SIGTERM)
    rig.until(ProcessEnded(worker(0), None, None, Blame.CLUSTER, "it was deleted before it ran"))


def test_old_lives_do_not_pile_up(rig: Rig) -> None:
    """Those that the cluster ended go once there are two later ones; those that failed by themselves count, and stay."""
    for life, code in enumerate((RELEASED, 1, RELEASED, RELEASED), 1):
        pending(rig, worker(0, life))
        rig.container(worker(0, life), "Failed", terminated={"exitCode": code, "reason": "Error"})
        rig.until(ProcessEnded(worker(0, life), code, None))
    pending(rig, worker(0, 5))
    kept = ["job-worker-0-2", "job-worker-0-4", "job-worker-0-5"]
    wait(lambda: sorted(pod["metadata"]["name"] for pod in rig.api.list("Pod")[0]) == kept)


def test_lives_of_another_role_are_no_older_ones(rig: Rig) -> None:
    pending(rig, worker(0))
    rig.container(worker(0), "Failed", terminated={"exitCode": RELEASED, "reason": "Error"})
    rig.until(ProcessEnded(worker(0), RELEASED, None))
    for life in (1, 2, 3):
        pending(rig, server(0, life))
        rig.container(server(0, life), "Failed", terminated={"exitCode": RELEASED, "reason": "Error"})
        rig.until(ProcessEnded(server(0, life), RELEASED, None))
    kept = ["job-ps-0-2", "job-ps-0-3", "job-worker-0-1"]
    wait(lambda: sorted(pod["metadata"]["name"] for pod in rig.api.list("Pod")[0]) == kept)


def test_a_pod_deleted_by_force_is_no_proof(rig: Rig) -> None:
    pending(rig, worker(0))
    rig.place(worker(0))
    rig.container(worker(0), "Running", running={})
    rig.until(ProcessStarted(worker(0), None))
    rig.api.delete("Pod", "job-worker-0-1", grace=0)
    rig.until(ProcessGone(worker(0)))


def test_a_killed_pod_has_a_moment_and_stays_known_until_its_kubelet_has_spoken(rig: Rig) -> None:
    pending(rig, worker(0))
    rig.place(worker(0))
    rig.container(worker(0), "Running", running={})
    rig.until(ProcessStarted(worker(0), None))
    rig.cluster.signal(worker(0), signal.SIGKILL)
    wait(lambda: rig.pod(worker(0))["metadata"].get("deletionGracePeriodSeconds") == 1)
    rig.container(worker(0), "Failed", terminated={"exitCode": 137, "reason": "Error"})
    rig.until(ProcessEnded(worker(0), None, signal.SIGKILL))


def test_the_api_server_is_away_for_a_while(rig: Rig) -> None:
    pending(rig, worker(0))
    rig.plane.lose_api_server()
    with pytest.raises(Unreachable):
        rig.api.list("Pod")
    rig.cluster.launch(worker(1))
    rig.cluster.signal(worker(0), signal.SIGTERM)
    rig.plane.recover_api_server()
    seen = rig.until(ProcessEnded(worker(0), None, None, Blame.CLUSTER, "it was deleted before it ran"))
    if not any(isinstance(event, ProcessPending) and event.name == worker(1) for event in seen):
        rig.until(ProcessPending(worker(1), "no nodes available to schedule pods"))


def test_a_watch_from_too_long_ago_says_so(rig: Rig) -> None:
    with pytest.raises(ApiError) as error:
        next(rig.api.watch("Pod", "1"))
    assert error.value.status == 410


def test_people_steer_by_annotations(rig: Rig) -> None:
    rig.api.patch("Job", "job", {"metadata": {"annotations": {manifests.WORKERS: "5"}}})
    rig.until(ScaleAsked(5))
    rig.api.patch("Job", "job", {"metadata": {"annotations": {manifests.SERVERS: "3"}}})
    rig.until(ScaleAsked(None, 3))
    rig.api.patch("Job", "job", {"metadata": {"annotations": {manifests.WORKERS: "many"}}})
    rig.api.patch("Job", "job", {"metadata": {"annotations": {manifests.STOP: "enough"}}})
    assert rig.until(StopAsked("enough")) == []


def limit_pods(rig: Rig, most: int) -> None:
    body = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "small"},
        "spec": {"hard": {"pods": str(most)}},
    }
    namespace = f"--namespace={rig.api.namespace}"
    rig.plane.kubectl("apply", "-f", "-", namespace, stdin=json.dumps(body))
    path = "-o=jsonpath={.status.hard.pods}"
    wait(lambda: rig.plane.kubectl("get", "quota", "small", path, namespace) == str(most))


def test_a_quota_is_room_that_may_become_free(rig: Rig) -> None:
    limit_pods(rig, 1)
    pending(rig, worker(0))
    for index in (1, 2, 3):
        rig.cluster.launch(worker(index))
    told: set[ProcessName] = set()
    while len(told) < 3:
        said = rig.cluster.events(SECONDS)
        assert said
        told |= {
            event.name
            for event in said
            if isinstance(event, ProcessPending) and "exceeded quota: small" in event.why
        }
    rig.cluster.signal(worker(0), signal.SIGTERM)
    rig.until(ProcessPending(worker(1), "no nodes available to schedule pods"))
    limit_pods(rig, 5)
    wait(lambda: len(rig.api.list("Pod")[0]) == 3)


def test_what_takes_room_is_deleted_in_the_end(rig: Rig) -> None:
    for index in range(4):
        pending(rig, worker(index))
    for index in (1, 2, 3):
        rig.place(worker(index))
    rig.container(worker(1), "Pending", waiting={"reason": "ImagePullBackOff", "message": "away"})
    rig.until(ProcessEnded(worker(1), None, None, Blame.START, "ImagePullBackOff: away"))
    # Its own container has ended, and another one in the pod continues.
    rig.container(worker(2), "Running", ("mesh",), terminated={"exitCode": 1, "reason": "Error"})
    rig.until(ProcessEnded(worker(2), 1, None))
    rig.container(worker(3), "Failed", terminated={"exitCode": 1, "reason": "Error"})
    rig.until(ProcessEnded(worker(3), 1, None))
    rig.cluster.clear(0.0)

    def left() -> list[str]:
        found = rig.api.list("Pod")[0]
        return [one["metadata"]["name"] for one in found if "deletionTimestamp" not in one["metadata"]]

    wait(lambda: left() == ["job-worker-3-1"])


def test_somebody_says_that_a_lost_worker_is_dead(rig: Rig) -> None:
    for index in range(2):
        pending(rig, worker(index))
        rig.place(worker(index))
        rig.container(worker(index), "Running", running={})
        rig.until(ProcessStarted(worker(index), None))
    rig.api.delete("Pod", "job-worker-0-1", grace=0)
    rig.until(ProcessGone(worker(0)))
    rig.api.patch("Job", "job", {"metadata": {"annotations": {manifests.DEAD: "worker-0-1, worker-1-1"}}})
    dead = ProcessEnded(worker(0), None, None, Blame.CLUSTER, f"declared dead ({manifests.DEAD})")
    assert rig.until(dead) == []
    rig.container(worker(1), "Failed", terminated={"exitCode": 0, "reason": "Completed"})
    assert rig.until(ProcessEnded(worker(1), 0, None)) == [], "the cluster knows better of this one"


def test_a_worker_that_went_while_nobody_watched(rig: Rig) -> None:
    pending(rig, worker(0))
    rig.cluster.expect([worker(0), worker(1, 3)])
    assert rig.until(ProcessGone(worker(1, 3))) == []
    rig.api.patch("Job", "job", {"metadata": {"annotations": {manifests.DEAD: "worker-1-3"}}})
    dead = ProcessEnded(worker(1, 3), None, None, Blame.CLUSTER, f"declared dead ({manifests.DEAD})")
    assert rig.until(dead) == []


def test_a_pod_that_was_made_although_the_answer_was_lost_is_deleted(rig: Rig) -> None:
    create = rig.api.create

    def lose_the_answer(body: dict[str, Any]) -> dict[str, Any]:
        create(body)
        raise Unreachable("the answer was lost")

    rig.api.create = lose_the_answer  # type: ignore[method-assign, assignment]
    rig.cluster.launch(worker(0))
    wait(lambda: len(rig.api.list("Pod")[0]) == 1)
    rig.cluster.signal(worker(0), signal.SIGTERM)
    rig.until(ProcessEnded(worker(0), None, None, Blame.CLUSTER, "it was deleted before it ran"))
    assert not rig.api.list("Pod")[0]


def test_who_is_not_wanted_any_more_does_not_come_when_there_is_room(rig: Rig) -> None:
    refused = iter([ApiError(409, "Conflict", "the quota was changed meanwhile")])
    create = rig.api.create

    def crowded(body: dict[str, Any]) -> dict[str, Any]:
        for error in refused:
            raise error
        return create(body)

    rig.api.create = crowded  # type: ignore[method-assign, assignment]
    rig.cluster.launch(worker(0))
    rig.cluster.launch(worker(1))
    rig.cluster.signal(worker(0), signal.SIGTERM)
    rig.until(ProcessEnded(worker(0), None, None, Blame.CLUSTER, "it was never made"))
    rig.cluster.launch(worker(0))  # as the timer would, had it just run out
    rig.cluster.launch(worker(2))
    rig.until(ProcessPending(worker(2), "no nodes available to schedule pods"))
    with pytest.raises(ApiError, match="not found"):
        rig.pod(worker(0))


def test_a_pod_of_an_earlier_job_is_not_taken_for_ones_own(rig: Rig) -> None:
    stranger = manifests.process_pod(rig.spec, "another-uid", worker(0))
    del stranger["metadata"]["ownerReferences"]
    rig.api.create(stranger)
    rig.cluster.launch(worker(0))
    rig.until(ProcessPending(worker(0), "a pod of an earlier job of this name has not ended yet"))
    rig.api.delete("Pod", "job-worker-0-1", grace=0)
    rig.until(ProcessPending(worker(0), "no nodes available to schedule pods"))
    assert rig.pod(worker(0))["metadata"]["ownerReferences"][0]["uid"] == rig.uid


def test_a_pod_that_can_not_start_goes_before_the_next_life(rig: Rig) -> None:
    pending(rig, worker(0))
    rig.place(worker(0))
    waits = {"reason": "ImagePullBackOff", "message": "a registry is away"}
    rig.container(worker(0), "Pending", waiting=waits)
    text = "ImagePullBackOff: a registry is away"
    rig.until(ProcessEnded(worker(0), None, None, Blame.START, text))
    rig.cluster.launch(worker(0, 2))
    rig.until(ProcessPending(worker(0, 2), "no nodes available to schedule pods"))
    wait(lambda: "deletionTimestamp" in rig.pod(worker(0))["metadata"])


def test_two_masters_on_one_journal(rig: Rig) -> None:
    item = rig.item("job-journal")
    old, new = (Journal(ObjectPages(one, "journal")) for one in (item, ConfigMapItem(rig.api, "job-journal")))
    old.append(1, EpochRecord(1))
    assert new.read() == ((EpochRecord(1),), 1)
    new.append(2, EpochRecord(2))
    with pytest.raises(JournalConflict):
        old.append(2, WantedRecord(3))
    _, version = item.read()
    item.replace({"a": "1"}, version)
    with pytest.raises(Stale):
        item.replace({"a": "2"}, version)
    owner = rig.api.get("ConfigMap", "job-journal")["metadata"]["ownerReferences"][0]["name"]
    assert owner == "job"


def test_racing_masters_share_no_number(rig: Rig) -> None:
    rig.item("job-journal")
    won: dict[int, list[int]] = {1: [], 2: [], 3: []}

    def race(epoch: int) -> None:
        journal = Journal(ObjectPages(ConfigMapItem(rig.api, "job-journal"), "journal"))
        for number in range(1, 16):
            try:
                journal.append(number, EpochRecord(epoch))
            except JournalConflict:
                continue
            won[epoch].append(number)

    threads = [threading.Thread(target=race, args=(epoch,)) for epoch in won]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    records, length = Journal(ObjectPages(ConfigMapItem(rig.api, "job-journal"), "journal")).read()
    assert length == 15
    for epoch, numbers in won.items():
        assert [at for at, record in enumerate(records, 1) if record == EpochRecord(epoch)] == numbers


def wait(ready: Callable[[], bool]) -> None:
    from .processes import wait_for

    wait_for("it", ready, SECONDS)


def test_every_label_of_a_worker_is_read_back() -> None:
    settings = {"model_def": "m.model", "training_data": "/data", "job_name": "job", "image_name": "image"}
    name = worker(12, 34)
    assert pods.process_of(manifests.process_pod(build(from_arguments(settings)), "uid", name)) == name
