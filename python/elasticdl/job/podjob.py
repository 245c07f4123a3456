"""A job on Kubernetes from the submitter's side: create its objects, watch it, steer it, end with its exit code.

Nothing of this is needed by the job: a client may go at any time. What it sees, it reads from the objects that the master writes; what
it wants, it says by annotations of the Job. So a client needs no way to the pods, only to the cluster's API.
"""

from __future__ import annotations

import contextlib
import math
import queue
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

from elasticdl.cluster.cluster import Role
from elasticdl.cluster.kubernetes import manifests, pods
from elasticdl.cluster.kubernetes.api import Api, ApiError, Object, Unreachable
from elasticdl.control.protocol.status import JobEvent, JobStatus, status_from_json
from elasticdl.errors import BadSetting, JobFailed
from elasticdl.files import reading
from elasticdl.master.reporting.history import event_from_line
from elasticdl.master.reporting.statusstore import CURVES, EVENTS, STATUS, SUMMARY, TOLD
from elasticdl.spec.jobspec import JobSpec, from_text
from elasticdl.spec.machine import check_scale
from elasticdl.spec.nearest import nearest

_ROLE = re.compile(r"master|(worker|ps)(-[0-9]+){0,2}")
LOOK_SECONDS = 0.5
"""Between two looks at a job."""
_SILENT_SECONDS = 15.0
"""After so long without news of a master, which writes about once a second, people are notified."""
_NO_REASONS = frozenset({"MissingClusterDNS"})
"""Warnings about a pod that keep it from nothing."""
_LOG_LINES = 20
_MASTERS = 3
"""Masters that fail without a word before nobody waits for the next."""


@dataclass(frozen=True, slots=True)
class Seen:
    """One look at a job.

    Attributes:
        status: how it stands, None before its master has said so.
        events: what has happened since the last look.
        summary: how it ended, None while it runs.
        waits_for: why the master does not run yet, empty once it does.
        stuck: the master will not run by itself.
        curves: what its master keeps of the job's curves, as text; empty if nothing.
    """

    status: JobStatus | None
    events: tuple[JobEvent, ...]
    summary: dict[str, Any] | None
    waits_for: str
    stuck: bool = False
    curves: str = ""


class SignedOut(JobFailed):
    """The cluster does not know this user any more, or does not let them look: that says nothing about the job."""


class PodJob:
    """A job on a cluster, found by its name."""

    def __init__(self, api: Api, name: str) -> None:
        self._api = api
        self.name = name
        self._told = 0.0
        self._mark = ""
        self._version = ""
        self._heard_at = time.monotonic()
        self._not_running_at = -math.inf

    @property
    def namespace(self) -> str:
        """Return where the job lives."""
        return self._api.namespace

    def anew(self) -> PodJob:
        """Return the same job as if nobody had looked at it yet: its next look has all events."""
        return PodJob(self._api, self.name)

    def exists(self) -> bool:
        """Tell whether the cluster knows the job. Raises Unreachable."""
        return self._api.has("Job", self.name)

    def look(self) -> Seen:
        """Look at the job. Raises Unreachable, JobFailed if it was deleted, SignedOut."""
        try:
            job = self._api.get("Job", self.name)
        except ApiError as error:
            if error.status == 404:
                raise JobFailed(f"the job {self.name} was deleted") from None
            raise self._unseen(error) from None
        try:
            store = self._api.get("ConfigMap", manifests.Names(self.name).store)
        except ApiError as error:
            if error.status == 404:
                return self._without_store(job)
            raise self._unseen(error) from None
        texts = store.get("data") or {}
        summary = _summary(texts[SUMMARY]) if SUMMARY in texts else None
        status = _status(texts[STATUS]) if STATUS in texts else None
        if summary is None:
            summary = self._ended_by_itself(job)
        waits_for, stuck = "", False
        if summary is None and not (status is not None and self._has_news(store)):
            waits_for, stuck = self._why_no_master(told=status is not None)
        return Seen(status, self._news(texts.get(TOLD, "")), summary, waits_for, stuck, texts.get(CURVES, ""))

    def _unseen(self, error: ApiError) -> JobFailed:
        text = f"the job {self.name} can't be looked at: {error}"
        return SignedOut(text) if error.status in (401, 403) else JobFailed(text)

    def _without_store(self, job: Object) -> Seen:
        """Return what is seen of a Job alone. It is resumed once all is there, and a namespace's end takes objects in any order."""
        if job["spec"].get("suspend"):
            return Seen(None, (), None, "its objects are not all there: its submission broke off", True)
        summary = self._ended_by_itself(job)
        return Seen(None, (), summary, "" if summary else "objects that it needs have been deleted")

    def _ended_by_itself(self, job: Object) -> dict[str, Any] | None:
        """Return what is known of a Job that has ended although its master has not said how, None if it has not."""
        if reason := _condition(job, "Failed"):
            return {
                "job": self.name,
                "status": "failed",
                "reason": f"the master has failed: {reason}",
                "exit_code": 1,
            }
        if _condition(job, "Complete"):
            reason = "its master has ended in order, and could not write more of it"
            return {"job": self.name, "status": "finished", "reason": reason, "exit_code": 0}
        return None

    def _has_news(self, store: Object) -> bool:
        """Tell whether the master has written something lately, as far as this client has seen."""
        version = str(store["metadata"].get("resourceVersion", ""))
        if version != self._version:
            self._version, self._heard_at = version, time.monotonic()
        return time.monotonic() - self._heard_at < _SILENT_SECONDS

    def explained(self, summary: Mapping[str, Any]) -> dict[str, Any]:
        """Return the summary of a failed job with the end of the log of the process that failed: `log_of` and `log`, or nothing more."""
        whole = dict(summary)
        if summary.get("exit_code") not in (1, 2):
            return whole
        # A summary without steps was not written by a master: there has been none that could.
        process = summary.get("failed_worker") or ("" if "steps" in summary else str(Role.MASTER))
        if process:
            try:
                lines = list(self._api.log(self._pod_of(process), process.partition("-")[0], _LOG_LINES))
            except (ApiError, Unreachable):
                lines = []  # it never ran, or has been deleted; the reason says so
            whole |= {"log_of": process, "log": lines} if lines else {}
        return whole

    def _pod_of(self, process: str) -> str:
        if process != Role.MASTER:
            return f"{self.name}-{process}"
        masters = self._masters()
        return str(masters[-1]["metadata"]["name"]) if masters else ""

    def _masters(self) -> list[Object]:
        """Return the masters' pods, the newest last."""
        found, _ = self._api.list(
            "Pod", f"elasticdl.org/job-name={self.name},elasticdl.org/role={Role.MASTER}"
        )
        return sorted(found, key=lambda pod: str(pod["metadata"].get("creationTimestamp", "")))

    def ask_to_stop(self, reason: str) -> None:
        """Ask for an early end. Raises Unreachable, JobFailed."""
        self._annotate({manifests.STOP: reason})

    def ask_to_scale(self, workers: int | None, servers: int | None = None) -> None:
        """Ask for another number of workers or parameter servers; None: as many as now.

        Raises BadSetting, Unreachable, JobFailed, also if the job has ended.
        """
        if self.look().summary is not None:
            raise JobFailed(f"the job {self.name} has ended")
        check_scale(self.spec(), workers, servers)
        wanted = {manifests.WORKERS: workers, manifests.SERVERS: servers}
        self._annotate({name: str(number) for name, number in wanted.items() if number is not None})

    def spec(self) -> JobSpec:
        """Return the job's settings. Raises JobFailed, Unreachable."""
        try:
            texts = self._api.get("ConfigMap", manifests.Names(self.name).spec)["data"]
        except ApiError as error:
            raise JobFailed(f"the settings of the job {self.name} can't be read: {error}") from None
        return from_text(texts["spec.json"])

    def logs(self, role: str = "", *, follow: bool = False) -> Iterator[str]:
        """Yield the lines of the job's pods, merged as they come, each with its process's name; `role` picks some.

        Raises BadSetting for what is no role; ApiError, Unreachable.
        """
        if role and not _ROLE.fullmatch(role):
            raise BadSetting(
                f"--role: expected master, worker, worker-INDEX or worker-INDEX-LIFE, or such a name with ps, received {role!r}"
            )
        lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        reading: set[str] = set()
        running = 0
        while True:
            for pod, process in self._pods_with_logs(role, follow):
                if pod not in reading:
                    reading.add(pod)
                    running += 1
                    threading.Thread(
                        target=self._read_log, args=(pod, process, follow, lines), daemon=True
                    ).start()
            look = time.monotonic() + 2 * LOOK_SECONDS
            while running and (not follow or time.monotonic() < look):
                try:
                    line = lines.get(timeout=2 * LOOK_SECONDS)
                except queue.Empty:
                    continue
                if line is None:
                    running -= 1
                else:
                    yield line
            if not running and (not follow or self._is_over()):
                return
            if not running:
                time.sleep(LOOK_SECONDS)

    def _pods_with_logs(self, role: str, follow: bool) -> list[tuple[str, str]]:
        """Return (pod, process) of those that have begun, in a role or all."""
        try:
            found, _ = self._api.list("Pod", f"elasticdl.org/job-name={self.name}")
        except Unreachable:
            if not follow:
                raise
            return []
        begun = [pod for pod in found if pod.get("status", {}).get("phase") not in (None, "Pending")]
        named = [(pod["metadata"]["name"], str(pods.process_of(pod) or Role.MASTER)) for pod in begun]
        return [one for one in named if f"{one[1]}-".startswith(f"{role}-" if role else "")]

    def _is_over(self) -> bool:
        try:
            return self.look().summary is not None
        except Unreachable:
            return False
        except JobFailed:
            return True  # deleted, or out of this user's sight

    def _read_log(self, pod: str, process: str, follow: bool, lines: queue.SimpleQueue[str | None]) -> None:
        container, last = process.partition("-")[0], ""
        try:
            if not follow:
                for line in self._api.log(pod, container):
                    lines.put(f"{process} | {line}")
            while follow:
                try:
                    for stamp, line in self._api.follow_log(pod, container, last):
                        last = stamp
                        lines.put(f"{process} | {line}")
                    return
                except Unreachable:
                    # The pod may go on although the stream has broken off; of one whose node is lost nothing comes any more.
                    if self._is_over():
                        return
                    time.sleep(LOOK_SECONDS)
        except (ApiError, Unreachable) as error:
            lines.put(f"{process} | (no more of this log: {error})")
        finally:
            lines.put(None)

    def processes(self) -> list[str]:
        """Return the processes of which there is a log. Raises ApiError, Unreachable."""
        return sorted(process for _, process in self._pods_with_logs("", follow=False))

    def log_tail(self, process: str, lines: int) -> list[str]:
        """Return the last lines of the log of one of `processes`. Raises ApiError, Unreachable."""
        for pod, found in self._pods_with_logs("", follow=False):
            if found == process:
                return list(self._api.log(pod, process.partition("-")[0], lines))
        return []

    def submitted_at(self) -> float:
        """Return when the job was made, in seconds since the Unix epoch. Raises ApiError, Unreachable."""
        made = str(self._api.get("Job", self.name)["metadata"]["creationTimestamp"])
        return datetime.fromisoformat(made).timestamp()

    def remove(self, seconds: float) -> bool:
        """Delete the job with all that it made; tell whether all of it was seen to end within `seconds`. Raises ApiError, Unreachable."""
        self._api.delete("Job", self.name)
        until = time.monotonic() + seconds
        with contextlib.suppress(ApiError):  # this user may not look at pods
            while self._api.list("Pod", f"elasticdl.org/job-name={self.name}")[0] or self._has_objects():
                if time.monotonic() >= until:
                    return False
                time.sleep(LOOK_SECONDS)
            return True
        return False

    def _has_objects(self) -> bool:
        """Tell whether objects of the job are still there, which keep another one from taking its name."""
        names = manifests.Names(self.name)
        kept = {
            "ConfigMap": (names.spec, names.journal, names.store, names.events), "NetworkPolicy": (self.name, names.metrics),
            "Role": (names.account,), "RoleBinding": (names.account,), "Service": (self.name,), "ServiceAccount": (names.account,),
        }  # fmt: skip
        return any(self._has_object(kind, name) for kind, several in kept.items() for name in several) or any(
            map(self._has_secret, (names.secret, names.metrics))
        )

    def _has_object(self, kind: str, name: str) -> bool:
        """Tell whether an object is seen to be there still; who may not look at some kinds may not have been able to make them."""
        try:
            self._api.get(kind, name)
        except ApiError as error:
            if error.status in (403, 404):
                return False
            raise
        return True

    def _has_secret(self, name: str) -> bool:
        """Tell whether a Secret is there still, by whether its name is taken: who may make jobs need not be allowed to read keys."""
        try:
            self._api.create(
                {
                    "apiVersion": "v1",
                    "kind": "Secret",
                    "metadata": {"name": name, "namespace": self.namespace},
                },
                dry_run=True,
            )
        except ApiError as error:
            if error.status in (403, 409):
                return error.status == 409
            raise
        return False

    def _annotate(self, annotations: Mapping[str, str]) -> None:
        try:
            self._api.patch("Job", self.name, {"metadata": {"annotations": dict(annotations)}})
        except ApiError as error:
            raise JobFailed(f"the job {self.name} can't be asked: {error}") from None

    def _news(self, mark: str) -> tuple[JobEvent, ...]:
        """Return the events since the last look; `mark` is another than then if there are any."""
        if mark == self._mark:
            return ()
        try:
            texts = self._api.get("ConfigMap", manifests.Names(self.name).events).get("data") or {}
        except ApiError:
            return ()  # the job is just being removed
        self._mark, after = mark, self._told
        told = [event_from_line(line) for line in texts.get(EVENTS, "").splitlines()]
        events = tuple(one.event for one in told if one is not None and one.event.time > after)
        self._told = max((event.time for event in events), default=after)
        return events

    def master_lacks(self) -> str:
        """Return why no master of a job that has begun runs, empty if one does. Raises Unreachable, ApiError."""
        return self._why_no_master(told=True)[0]

    def _why_no_master(self, *, told: bool) -> tuple[str, bool]:
        """Return why nothing comes from a master, and whether that will stay so; nothing if one runs that has `told` something."""
        try:
            masters = self._masters()
        except ApiError as error:
            return f"the master's pod can't be looked at: {error}", False
        if not masters:
            said = self._warning("Job", self.name)
            return (
                f"the master's pod can't be made: {said}" if said else "the master's pod is being made"
            ), False
        name, phase = masters[-1]["metadata"]["name"], masters[-1].get("status", {}).get("phase")
        if told and phase == "Running":
            return "", False
        if told and phase in ("Failed", "Succeeded"):
            return "the master has ended, and another one is made", False
        waits_for, stuck = master_state(masters[-1:] if told else masters)
        if waits_for:
            # A job that trains continues meanwhile, and its master may come yet.
            return waits_for, stuck and not told
        if said := self._warning("Pod", name):
            return f"the master's pod waits: {said}", False
        if phase != "Running":
            self._not_running_at = time.monotonic()
        if time.monotonic() - max(self._heard_at, self._not_running_at) < _SILENT_SECONDS:
            return "the master starts", False
        return f"nothing is heard of the master{self._last_words(name)}", False

    def _last_words(self, pod: str) -> str:
        try:
            lines = list(self._api.log(pod, Role.MASTER, 1))
        except (ApiError, Unreachable):
            return ""
        return f"; the last line of its log: {lines[0]}" if lines else ""

    def _warning(self, kind: str, name: str) -> str:
        """Return the last warning about an object, empty if there is none or this user may not see it."""
        try:
            found, _ = self._api.list(
                "Event", fields=f"involvedObject.kind={kind},involvedObject.name={name},type=Warning"
            )
        except ApiError:
            return ""
        told = sorted(
            (event for event in found if event.get("reason") not in _NO_REASONS),
            key=lambda event: str(event.get("lastTimestamp") or event.get("eventTime")),
        )
        return str(told[-1].get("message", "")) if told else ""


def master_state(masters: Sequence[Object]) -> tuple[str, bool]:
    """Return why none of a job's masters, the newest last, has said anything, empty if nothing shows it; and whether that will stay so."""
    failed = [pod for pod in masters if pods.failed(pod)]
    status = masters[-1].get("status", {})
    state = pods.own_container(status.get("containerStatuses")).get("state", {})
    waiting = state.get("waiting", {})
    if text := pods.unrecoverable(waiting):
        return f"the master's pod can't start: {text}", True
    if failed:
        number = "1 master has" if len(failed) == 1 else f"{len(failed)} masters have"
        last = pods.last_line(failed[-1])
        return f"{number} ended by an error before saying anything{f' ({last})' if last else ''}", len(
            failed
        ) >= _MASTERS
    for condition in status.get("conditions") or []:
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return f"the master's pod waits: {condition.get('message', '')}", False
    if waiting.get("message"):
        return f"the master's pod waits: {waiting.get('reason')}: {waiting['message']}", False
    return "", False


def find(api: Api, name: str) -> PodJob:
    """Return a job that is there. Raises BadSetting if it is not, Unreachable."""
    job = PodJob(api, name)
    if not job.exists():
        _check_namespace(api)
        near = ""
        with contextlib.suppress(ApiError):  # this user may not list jobs
            near = nearest(name, [known for known, _, _ in jobs(api)])
        raise BadSetting(
            f"the namespace {api.namespace} has no job named {name!r}{near}; `elasticdl list --namespace={api.namespace}` shows all"
        )
    return job


def _check_namespace(api: Api) -> None:
    if not api.has("Namespace", api.namespace):
        raise BadSetting(
            f"--namespace: the cluster has no namespace {api.namespace!r}; `kubectl get namespaces` shows those it has"
        )


def jobs(api: Api) -> list[tuple[str, str, str]]:
    """Return (name, how it stands, when it was made) of the namespace's jobs, the oldest first.

    Raises BadSetting if there is no such namespace, ApiError, Unreachable.
    """
    found, _ = api.list("Job", "app.kubernetes.io/managed-by=elasticdl")
    if not found:
        _check_namespace(api)
    rows = []
    for job in sorted(found, key=lambda one: str(one["metadata"]["creationTimestamp"])):
        metadata, conditions = job["metadata"], job.get("status", {}).get("conditions") or []
        ends = [
            one["type"].lower()
            for one in conditions
            if one["type"] in ("Complete", "Failed") and one["status"] == "True"
        ]
        stands = ends[0] if ends else metadata.get("annotations", {}).get(manifests.PROGRESS, "running")
        rows.append((metadata["name"], stands, metadata["creationTimestamp"]))
    return rows


_T = TypeVar("_T")


def patiently(ask: Callable[[], _T], say: Callable[[str], object], end: float = math.inf) -> _T:
    """Return what the cluster answers; one that does not answer is waited for, and `say` is called when that takes long.

    Raises TimeoutError if nothing has come at `end`, on the monotonic clock.
    """
    until, said = time.monotonic() + _SILENT_SECONDS, False
    while True:
        try:
            answer = ask()
        except Unreachable as error:
            if time.monotonic() >= end:
                raise TimeoutError(str(error)) from error
            if not said and time.monotonic() >= until:
                said = True
                say(f"{error}; the job continues without it, and this command waits")
            time.sleep(LOOK_SECONDS)
        else:
            if said:
                say("the cluster's API answers again")
            return answer


def watch(
    job: PodJob, show: Callable[[Seen], None], say: Callable[[str], None], end: float = math.inf
) -> Mapping[str, Any]:
    """Show a job until it has ended, or can't begin by itself, and return its summary; `say` hears of a cluster that does not answer.

    Raises TimeoutError if that has not come at `end`, on the monotonic clock.
    """
    while True:
        seen = patiently(job.look, say, end)
        show(seen)
        if seen.summary is not None:
            return job.explained(seen.summary)
        if seen.stuck:
            return job.explained(
                {"job": job.name, "status": "stuck", "reason": seen.waits_for, "exit_code": 1}
            )
        if time.monotonic() >= end:
            raise TimeoutError(f"the job {job.name} runs still")
        time.sleep(LOOK_SECONDS)


def _condition(job: Object, kind: str) -> str:
    """Return what a Job says of a condition that it has, empty if it has it not."""
    for condition in job.get("status", {}).get("conditions") or []:
        if condition.get("type") == kind and condition.get("status") == "True":
            return str(condition.get("message") or kind)
    return ""


def _status(content: str) -> JobStatus:
    """Read a status; raises JobFailed if another version wrote it."""
    try:
        return status_from_json(reading.load(content))
    except ValueError:
        raise JobFailed(
            "the job's status was written by another version of elasticdl; look with that one"
        ) from None


def _summary(content: str) -> dict[str, Any]:
    """Read a summary with what every one has; raises JobFailed for anything else."""
    try:
        body = reading.fields(reading.load(content))
        reading.text(reading.field(body, "status"))
        reading.text(reading.field(body, "reason"))
        reading.integer(reading.field(body, "exit_code"), most=255)
    except ValueError as error:
        raise JobFailed(f"the job's summary can't be read: {error}") from None
    return body
