"""The Role that `elasticdl rbac` prints: a master needs every verb of it, and nothing else."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

import pytest

from elasticdl.cluster.cluster import ProcessEnded, ProcessName, Role
from elasticdl.cluster.kubernetes import manifests, rbac
from elasticdl.cluster.kubernetes.announcer import Announcement, Announcer
from elasticdl.cluster.kubernetes.api import Api, ApiError
from elasticdl.cluster.kubernetes.items import ConfigMapItem
from elasticdl.cluster.kubernetes.podcluster import KubernetesCluster
from elasticdl.spec.edge import build, from_arguments

from .control_plane import ControlPlane
from .processes import wait_for
from .rights import limited, rules, without

RIGHTS = [(resource, verb) for _, resource, verbs in rbac.RULES for verb in verbs]
KINDS = {"pods": "Pod", "configmaps": "ConfigMap", "events": "Event", "jobs": "Job"}
NAME = ProcessName(Role.WORKER, 0, 1)
SECONDS = 60.0
SETTINGS = {"model_def": "m.model", "training_data": "/data", "job_name": "job", "image_name": "image"}


class AllReduceMaster:
    """What a master asks of the API, as a user, beside the administrator who makes what it finds there."""

    def __init__(self, administrator: Api, user: Api) -> None:
        self.spec = build(from_arguments({**SETTINGS, "namespace": user.namespace}))
        self.uid: str = administrator.create(manifests.master_job(self.spec))["metadata"]["uid"]
        administrator.create(manifests.empty_item(self.spec, self.uid, "job-journal"))
        self.user = user

    def pod(self) -> manifests.Object:
        return manifests.process_pod(self.spec, self.uid, NAME)

    def work(self) -> None:
        """Do everything once, through the same objects as a master in its pod."""
        user, spec, uid = self.user, self.spec, self.uid
        cluster = KubernetesCluster(
            user, "job", uid, lambda name, memory: manifests.process_pod(spec, uid, name, memory)
        )
        cluster.launch(NAME)
        assert cluster.events(SECONDS), "nothing was seen of the pod"
        cluster.signal(NAME, signal.SIGTERM)
        wait_for(
            "the end of the pod",
            lambda: any(isinstance(event, ProcessEnded) for event in cluster.events(1.0)),
            SECONDS,
        )
        cluster.close()
        item = ConfigMapItem(user, "job-journal")
        _, version = item.read()
        item.replace({"a": "1"}, version)
        user.patch("Job", "job", {"metadata": {"annotations": {manifests.PROGRESS: "training"}}})
        announcer = Announcer(user, "job", uid)
        announcer.tell(Announcement(time.time(), "Launched", "worker-0-1 is started", warns=False))
        announcer.close(SECONDS)

    def use(self, resource: str, verb: str) -> None:
        """Use one right as a master does."""
        kind, user = KINDS[resource], self.user
        name = {"Pod": f"job-{NAME}", "ConfigMap": "job-journal"}.get(kind, "job")
        requests: dict[tuple[str, str], Callable[[], object]] = {
            ("pods", "create"): lambda: user.create(self.pod()),
            ("events", "create"): lambda: user.create(
                {"kind": "Event", "metadata": {"name": "e"}, "involvedObject": {}}
            ),
            ("configmaps", "update"): lambda: user.replace({"kind": kind, "metadata": {"name": name}}),
            ("jobs", "patch"): lambda: user.patch(kind, name, {}),
        }
        asks: dict[str, Callable[[], object]] = {
            "get": lambda: user.get(kind, name),
            "list": lambda: user.list(kind),
            "watch": lambda: next(user.watch(kind, "1")),
            "delete": lambda: user.delete(kind, name),
        }
        (requests.get((resource, verb)) or asks[verb])()


def record(user: Api, patch: pytest.MonkeyPatch) -> set[tuple[str, str]]:
    """Return the set that what the user asks for is added to, as resource and verb."""
    seen: set[tuple[str, str]] = set()
    verbs = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
    send = user._send

    def recording(
        method: str, path: str, body: object, query: list[tuple[str, str]], *rest: object
    ) -> object:
        words = path.split("/namespaces/")[1].split("/")
        verb = verbs.get(method) or ("get" if len(words) > 2 else "list")
        seen.add((words[1], "watch" if ("watch", "true") in query else verb))
        return send(method, path, body, query, *rest)  # type: ignore[arg-type]

    patch.setattr(user, "_send", recording)
    return seen


@pytest.mark.parametrize("job", ["", "job"])
def test_a_master_uses_every_right_and_needs_no_other(
    control_plane: ControlPlane, api: Api, monkeypatch: pytest.MonkeyPatch, job: str
) -> None:
    """With the Role of a namespace as with that of the job itself."""
    user = limited(control_plane, api.namespace, rbac.rules(job))
    seen = record(user, monkeypatch)
    AllReduceMaster(api, user).work()
    assert seen == set(RIGHTS)
    said = api.list("Event", fields="involvedObject.kind=Job")[0]
    assert [(one["reason"], one["message"]) for one in said if one["source"]["component"] == "elasticdl"] == [
        ("Launched", "worker-0-1 is started")
    ]


@pytest.mark.parametrize(("resource", "verb"), RIGHTS)
def test_without_any_of_them_the_api_refuses(
    control_plane: ControlPlane, api: Api, resource: str, verb: str
) -> None:
    user = limited(control_plane, api.namespace, without(resource, verb))
    master = AllReduceMaster(api, user)
    with pytest.raises(ApiError, match=verb) as refused:
        master.use(resource, verb)
    assert refused.value.status == 403


def test_the_role_of_a_job_reaches_objects_of_no_other(control_plane: ControlPlane, api: Api) -> None:
    user = limited(control_plane, api.namespace, rbac.rules("job"))
    AllReduceMaster(api, user)
    other = build(from_arguments({**SETTINGS, "job_name": "other", "namespace": api.namespace}))
    uid = api.create(manifests.master_job(other))["metadata"]["uid"]
    api.create(manifests.empty_item(other, uid, "other-journal"))
    wait_for("the Role", lambda: user.may("create", "Pod"), SECONDS)
    asks: list[Callable[[], object]] = [
        lambda: user.get("ConfigMap", "other-journal"),
        lambda: user.replace(manifests.empty_item(other, uid, "other-journal")),
        lambda: user.patch("Job", "other", {"metadata": {"annotations": {manifests.STOP: "now"}}}),
        lambda: user.list("Job"),
        lambda: user.list("Job", fields="metadata.name=other"),
        lambda: user.get("ConfigMap", "job-spec"),
    ]
    for ask in asks:
        with pytest.raises(ApiError) as refused:
            ask()
        assert refused.value.status == 403
    user.get("ConfigMap", "job-journal")
    user.patch("Job", "job", {"metadata": {"annotations": {manifests.PROGRESS: "training"}}})
    # What Kubernetes can't limit by name: the namespace is the boundary.
    user.delete("Pod", "other-worker-0-1")


def test_the_role_gives_no_more_than_it_says(control_plane: ControlPlane, api: Api) -> None:
    user = limited(control_plane, api.namespace, rules(rbac.RULES))
    wait_for("the Role", lambda: user.may("create", "Pod"), SECONDS)
    assert not user.may("get", "Secret")
    assert not user.may("patch", "Pod")
    with pytest.raises(ApiError):
        user.list("Secret")
