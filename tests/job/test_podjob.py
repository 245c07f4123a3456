"""What a client makes of the pods that it sees, and of a job that has failed."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, cast

import pytest

from elasticdl.cluster.kubernetes.api import Api, ApiError, Object, Unreachable
from elasticdl.control.protocol.status import EventKind, JobEvent, WorkerStatus, status_from_json
from elasticdl.errors import BadSetting, JobFailed
from elasticdl.job import display, podjob, podrun
from elasticdl.job.podjob import PodJob, master_state, patiently
from elasticdl.job.podsubmit import prepare
from elasticdl.master.reporting.history import HistoryEvent
from elasticdl.spec.edge import build, from_arguments
from elasticdl.spec.jobspec import JobSpec
from elasticdl.spec.machine import check_pods, check_workers


def pod(phase: str = "Pending", reason: str = "", message: str = "", **status: Any) -> Object:
    state = {"waiting": {"reason": reason, "message": message}} if reason else {}
    return {
        "metadata": {"name": "m"},
        "status": {"phase": phase, "containerStatuses": [{"name": "master", "state": state}], **status},
    }


def ended(message: str = "", **status: Any) -> Object:
    state = {"terminated": {"exitCode": 1, "message": message}}
    return pod("Failed", containerStatuses=[{"name": "master", "state": state}], **status)


PREEMPTED = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler", "message": ""}
FULL = {"type": "PodScheduled", "status": "False", "message": "0/2 nodes are available"}


@pytest.mark.parametrize(
    ("masters", "said", "stuck"),
    [
        ([pod()], "", False),
        ([pod(conditions=[FULL])], "the master's pod waits: 0/2 nodes are available", False),
        ([pod(reason="ContainerCreating")], "", False),
        ([pod(reason="ErrImagePull", message="no such host")], "the master's pod waits: ErrImagePull: no such host", False),
        (
            [pod(reason="ImagePullBackOff", message="Back-off pulling image")],
            "the master's pod can't start: ImagePullBackOff: Back-off pulling image",
            True,
        ),
        ([pod(reason="ErrImageNeverPull")], "the master's pod can't start: ErrImageNeverPull", True),
        (
            [ended("Traceback\nModuleNotFoundError: No module named 'elasticdl'\n"), pod()],
            "1 master has ended by an error before saying anything (ModuleNotFoundError: No module named 'elasticdl')",
            False,
        ),
        ([ended(), ended(), ended()], "3 masters have ended by an error before saying anything", True),
        ([*[ended(conditions=[PREEMPTED])] * 5, pod()], "", False),
    ],
)  # fmt: skip
def test_why_a_master_does_not_run(masters: list[Object], said: str, stuck: bool) -> None:
    assert master_state(masters) == (said, stuck)


class Logs:
    """An API that has one log."""

    namespace = "default"

    def __init__(self, pod: str, lines: list[str], error: Exception | None = None) -> None:
        self.pod, self.lines, self.error = pod, lines, error

    def log(self, pod: str, container: str, last: int) -> Iterator[str]:
        if self.error:
            raise self.error
        assert pod == self.pod
        assert container == ("worker" if "worker" in pod else "master")
        yield from self.lines[-last:]

    def list(self, kind: str, labels: str) -> tuple[list[Object], str]:
        names = {"job-0-b": "2026-01-02", "job-0-a": "2026-01-01"}
        return [{"metadata": {"name": one, "creationTimestamp": when}} for one, when in names.items()], ""


def explained(api: Logs, **summary: object) -> dict[str, Any]:
    return PodJob(cast(Api, api), "job").explained({"job": "job", "exit_code": 1, **summary})


def test_the_log_of_the_guilty_worker() -> None:
    lines = [f"line {number}" for number in range(100)]
    found = explained(Logs("job-worker-1-2", lines), steps=7, failed_worker="worker-1-2")
    assert found["log_of"] == "worker-1-2"
    assert found["log"] == lines[-20:]


def test_the_log_of_a_master_that_said_nothing() -> None:
    found = explained(Logs("job-0-b", ["the end"]))
    assert (found["log_of"], found["log"]) == ("master", ["the end"])


@pytest.mark.parametrize(
    ("api", "summary"),
    [
        (Logs("", [], Unreachable("away")), {"failed_worker": "worker-0-1"}),
        (Logs("", [], ApiError(400, "BadRequest", "waiting to start")), {"failed_worker": "worker-0-1"}),
        (Logs("", ["x"]), {"steps": 3, "failed_worker": ""}),
        (Logs("", ["x"]), {"exit_code": 0}),
        (Logs("", ["x"]), {"exit_code": 130}),
    ],
)
def test_no_log_where_there_is_none(api: Logs, summary: dict[str, object]) -> None:
    found = explained(api, **summary)
    assert "log" not in found
    assert found["job"] == "job"


STATUS = {
    "job_name": "job", "state": "training", "reason": "", "view": 1, "step": 3, "epoch": 0, "num_epochs": 1, "done": 0.5, "loss": 0.1,
    "records": 1, "records_per_second": None, "seconds_left": None, "wanted_workers": 1, "workers": [],
}  # fmt: skip


class Objects:
    """An API with one job: its conditions, the texts of its status store (None: there is no such object), and its masters."""

    namespace = "default"

    def __init__(
        self, condition: str = "", store: dict[str, str] | None = None, masters: tuple[Object, ...] = ()
    ) -> None:
        self.condition, self.store, self.masters, self.version = condition, store, masters, 1
        self.events, self.asked, self.suspended, self.denied, self.hides_pods = "", 0, False, 0, False
        self.removed, self.left = False, dict[str, int]()

    def get(self, kind: str, name: str) -> Object:
        if self.denied:
            raise ApiError(self.denied, "Unauthorized", "who are you?")
        if self.removed and not self._is_left(f"{kind}/{name}"):
            raise ApiError(404, "NotFound", "no such object")
        if kind == "Job":
            conditions = [{"type": self.condition, "status": "True"}]
            return {"spec": {"suspend": self.suspended}, "status": {"conditions": conditions}}
        if name.endswith("-events"):
            self.asked += 1
            return {"data": {"events": self.events}}
        if self.store is None:
            raise ApiError(404, "NotFound", "no such object")
        return {"metadata": {"resourceVersion": str(self.version)}, "data": self.store}

    def delete(self, kind: str, name: str) -> None:
        self.removed, self.store = True, {}

    def create(self, body: Object, *, dry_run: bool) -> Object:
        """Find out about a name; this user may make Secrets, and read none."""
        assert dry_run
        assert body["kind"] == "Secret"
        if self._is_left(f"Secret/{body['metadata']['name']}"):
            raise ApiError(409, "AlreadyExists", "there is one")
        return body

    def _is_left(self, name: str) -> bool:
        """Tell whether an object is still there the next time that somebody asks."""
        looks = self.left.get(name, 0)
        self.left[name] = max(looks - 1, 0)
        return looks > 0

    def list(self, kind: str, labels: str = "", fields: str = "") -> tuple[list[Object], str]:
        if kind == "Pod" and self.hides_pods:
            raise ApiError(403, "Forbidden", "you may not list pods")
        return (list(self.masters) if kind == "Pod" else []), ""

    def log(self, pod: str, container: str, last: int) -> Iterator[str]:
        yield "the last line"

    def job(self) -> PodJob:
        return PodJob(cast(Api, self), "job")


@pytest.mark.parametrize(
    ("condition", "status", "code"), [("Complete", "finished", 0), ("Failed", "failed", 1)]
)
def test_a_job_that_has_ended_without_a_summary_has_ended(condition: str, status: str, code: int) -> None:
    summary = Objects(condition, {"status": json.dumps(STATUS)}).job().look().summary
    assert summary is not None
    assert (summary["status"], summary["exit_code"]) == (status, code)


def test_events_are_read_when_there_are_new_ones_and_told_once() -> None:
    told = [HistoryEvent(JobEvent(n + 1.0, EventKind.NOTE, "", 1, n, f"event {n}")) for n in range(3)]
    api = Objects(store={"status": json.dumps(STATUS)})
    job = api.job()
    assert job.look().events == ()
    found = []
    for upto in (1, 1, 3, 3):
        api.events = "".join(one.to_line() for one in told[:upto])
        assert api.store is not None
        api.store["told"] = str(upto)
        found.append([event.text for event in job.look().events])
    assert found == [["event 0"], [], ["event 1", "event 2"], []]
    assert api.asked == 2


def test_a_submission_that_broke_off_is_said_and_can_be_removed() -> None:
    api = Objects()
    api.suspended = True
    seen = api.job().look()
    assert (seen.status, seen.summary, seen.stuck) == (None, None, True)
    assert "its submission broke off" in seen.waits_for


@pytest.mark.parametrize(
    "name",
    [
        "ConfigMap/job-events",
        "ConfigMap/job-spec",
        "NetworkPolicy/job-metrics",
        "Secret/job-metrics",
        "Secret/job-secret",
        "Service/job",
    ],
)
def test_what_a_removed_job_made_is_waited_for(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The cluster removes what belongs to a Job in no order, and who submits it again needs all of its names."""
    monkeypatch.setattr(podjob, "LOOK_SECONDS", 0.0)
    api = Objects(store={})
    api.left = {name: 3}
    assert api.job().remove(60.0)
    assert api.left[name] == 0
    api.left = {name: 1_000_000_000}
    assert not api.job().remove(0.0)


def test_a_namespace_may_lose_the_objects_of_a_job_before_the_job() -> None:
    seen = Objects().job().look()
    assert (seen.status, seen.summary, seen.stuck) == (None, None, False)
    assert seen.waits_for == "objects that it needs have been deleted"
    summary = Objects("Failed").job().look().summary
    assert summary is not None
    assert summary["exit_code"] == 1


def test_a_status_of_another_version() -> None:
    with pytest.raises(JobFailed, match="another version"):
        Objects(store={"status": json.dumps(STATUS | {"mood": "good"})}).job().look()


@pytest.mark.parametrize(
    ("master", "said"),
    [
        (pod("Running"), ""),
        (pod(conditions=[FULL]), "the master's pod waits: 0/2 nodes are available"),
        (pod("Pending"), "the master starts"),
        (ended("killed"), "the master has ended, and another one is made"),
    ],
)
def test_a_master_that_falls_silent(monkeypatch: pytest.MonkeyPatch, master: Object, said: str) -> None:
    now = [100.0]
    monkeypatch.setattr("elasticdl.job.podjob.time.monotonic", lambda: now[0])
    api = Objects(store={"status": json.dumps(STATUS)}, masters=(*[ended()] * 3, master))
    job = api.job()
    assert job.look().waits_for == ""
    now[0] += 14
    assert job.look().waits_for == ""
    api.version += 1
    assert job.look().waits_for == ""
    now[0] += 16
    assert (job.look().waits_for, job.look().stuck) == (said, False)
    assert job.master_lacks() == said


def test_a_master_that_never_says_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("elasticdl.job.podjob.time.monotonic", lambda: now[0])
    api = Objects(store={}, masters=(pod("Pending"),))
    job = api.job()
    now[0] += 60  # its image is fetched
    assert job.look().waits_for == "the master starts"
    api.masters = (pod("Running"),)
    now[0] += 14
    assert job.look().waits_for == "the master starts"
    now[0] += 2
    assert job.look().waits_for == "nothing is heard of the master; the last line of its log: the last line"


@pytest.mark.parametrize(
    ("state", "why", "said"),
    [
        ("pending", "no room", "worker-1-1 waits: no room"),
        ("starting", "for 48 s; it is replaced if it is not ready after 600 s", ""),
    ],
)
def test_what_workers_wait_for(state: str, why: str, said: str) -> None:
    worker = WorkerStatus("worker-1-1", state, None, None, why)
    status = replace(status_from_json(STATUS), state="starting", workers=(worker,))
    assert podrun._waits(status) == said


def test_a_master_that_this_user_may_not_look_at() -> None:
    api = Objects(store={})
    api.hides_pods = True
    assert api.job().look().waits_for == "the master's pod can't be looked at: you may not list pods"


def test_a_cluster_that_does_not_answer_is_waited_for_aloud(monkeypatch: pytest.MonkeyPatch) -> None:
    now, said = [100.0], list[str]()
    monkeypatch.setattr("elasticdl.job.podjob.time.monotonic", lambda: now[0])
    monkeypatch.setattr(
        "elasticdl.job.podjob.time.sleep", lambda seconds: now.__setitem__(0, now[0] + seconds)
    )

    def ask() -> int:
        if now[0] < 160:
            raise Unreachable("the API is away")
        return 7

    assert patiently(ask, said.append) == 7
    assert said == [
        "the API is away; the job continues without it, and this command waits",
        "the cluster's API answers again",
    ]


def in_pods(**settings: object) -> JobSpec:
    given = {"model_def": "m.model", "training_data": "/data", "job_name": "job", "image_name": "image"}
    return build(from_arguments(given | settings))


@pytest.mark.parametrize("status", [401, 403])
def test_whoever_is_not_known_any_more_leaves_the_job_alone(
    monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    api = Objects(store={})
    api.denied = status
    monkeypatch.setattr(podrun, "submit", lambda spec: api.job())
    summary = podrun.run(in_pods())
    assert (summary["status"], summary["exit_code"]) == ("detached", 130)
    assert summary["reason"] == (
        "the job job can't be looked at: who are you?; the job continues. Sign in to the cluster again; "
        "`elasticdl status job --namespace=default` shows it"
    )


@pytest.mark.parametrize(
    ("settings", "threads"),
    [
        ({}, 1),
        ({"worker_resource_request": "cpu=4,memory=1Gi"}, 4),
        ({"worker_resource_request": "cpu=500m"}, 1),
        ({"worker_resource_limit": "cpu=2500m"}, 2),
        ({"worker_resource_request": "memory=1Gi"}, 1),
        ({"worker_resource_request": "cpu=4", "threads_per_worker": 3}, 3),
    ],
)
def test_a_worker_has_the_threads_of_its_pod(settings: dict[str, object], threads: int) -> None:
    assert prepare(in_pods(**settings)).threads_per_worker == threads


def test_local_training_is_not_for_pods() -> None:
    with pytest.raises(BadSetting, match="Local trains in the process"):
        prepare(in_pods(distribution_strategy="Local"))


def test_nothing_is_shown_twice() -> None:
    out = io.StringIO()
    traceback = "Traceback (most recent call last):\n  File x\nValueError: no"
    summary = {"traceback": traceback, "log_of": "worker-0-1", "log": ["it begins", *traceback.splitlines()]}
    display.print_log_end(summary, out)
    assert out.getvalue() == "the end of the log of worker-0-1:\n  it begins\n"
    for nothing in ({**summary, "log": traceback.splitlines()}, {"traceback": traceback}, {}):
        out = io.StringIO()
        display.print_log_end(nothing, out)
        assert out.getvalue() == ""


@pytest.mark.parametrize(
    ("workers", "said"),
    [(1025, "at most 1,024 workers"), (1, "has a minimum of 2 workers"), (2, ""), (1024, "")],
)
def test_how_many_workers_can_be_asked_for(workers: int, said: str) -> None:
    if not said:
        check_pods(workers, 2, "--num_workers")
        return
    with pytest.raises(BadSetting, match=said):
        check_pods(workers, 2, "--num_workers")


@pytest.mark.parametrize("check", [check_pods, check_workers])
def test_a_job_is_not_asked_for_less_than_its_minimum(check: Callable[[int, int, str], None]) -> None:
    check(2, 2, "--num_workers")
    for workers, said in ((1, "has a minimum of 2 workers"), (0, "has at least 1 worker")):
        with pytest.raises(BadSetting, match=said):
            check(workers, 2, "--num_workers")


def test_what_is_no_role_is_refused() -> None:
    with pytest.raises(BadSetting, match=r"--role: expected master, worker, worker-INDEX.* with ps"):
        next(PodJob(cast(Api, None), "job").logs("wrker"))


@pytest.mark.parametrize(
    ("image", "good"),
    [
        ("elasticdl:mnist", True),
        ("Registry.example.com:5000/me/elasticdl_v2.0:Mnist-1@sha256:" + "a" * 64, True),
        ("localhost/a/b/c", True),
        ("Bad Image", False),
        ("elasticdl:", False),
        ("me/ElasticDL", False),
    ],
)
def test_names_of_images_are_checked(image: str, good: bool) -> None:
    job = in_pods(image_name=image)
    if good:
        assert prepare(job).image_name == image
    else:
        with pytest.raises(BadSetting, match="--image_name: expected the name of an image"):
            prepare(job)
