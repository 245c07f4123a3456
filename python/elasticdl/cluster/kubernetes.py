"""Workers as pods: the master's hands on the cluster, and its eyes.

One thread carries out what is asked, with patience, because the API may be away for a while; one watches the pods, and one the Job
by whose annotations people steer. What should be is decided elsewhere. After a restart of the master the list of pods is the history.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import signal
import threading
import time
from collections.abc import Callable

from elasticdl.cluster import manifests, pods
from elasticdl.cluster.api import Api, ApiError, Object, Unreachable
from elasticdl.cluster.cluster import (
    Blame,
    ClusterEvent,
    ProcessEnded,
    ProcessEvent,
    ProcessGone,
    ProcessName,
    ProcessPending,
    StopAsked,
    WorkersAsked,
)

_log = logging.getLogger(__name__)

_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.2, 10.0
_QUOTA_SECONDS = 2.0
"""Between two attempts to make a pod for which a quota has no room."""
_KILL_GRACE = 1
"""Seconds; with 0 the API would forget the pod at once, and nobody could say when it is dead."""


class _Patience:
    """Pauses that double from one failure to the next, and end when the cluster is closed."""

    def __init__(self, closed: threading.Event) -> None:
        self._closed = closed
        self.reset()

    def reset(self) -> None:
        """Begin with the shortest again: something has succeeded."""
        self._pause = _SHORTEST_PAUSE

    def wait(self) -> None:
        self._closed.wait(self._pause)
        self._pause = min(_LONGEST_PAUSE, 2 * self._pause)


class KubernetesCluster:
    """The pods of one job."""

    def __init__(self, api: Api, job: str, uid: str, make_pod: Callable[[ProcessName, int], Object]) -> None:
        """Begin to watch; returns when the pods that there are have been listed.

        Args:
            api: the job's namespace.
            job: the job's name.
            uid: of the job's own object.
            make_pod: returns the pod of a process, given the bytes of memory that it may use (0: what the settings say).
        """
        self._api = api
        self._job = job
        self._selector = f"elasticdl.org/job-uid={uid},elasticdl.org/role=worker"
        self._make_pod = make_pod
        self._names = manifests.Names(job)
        self._requests: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._news: queue.SimpleQueue[ClusterEvent] = queue.SimpleQueue()
        self._closed = threading.Event()
        self._told: dict[ProcessName, ProcessEvent] = {}
        self._seen: dict[str, Object] = {}
        self._asked: tuple[str, str] = ("", "")
        version = self._list_patiently()
        for target, arguments in (
            (self._carry_out, ()),
            (self._watch_pods, (version,)),
            (self._watch_job, ()),
        ):
            threading.Thread(target=target, args=arguments, name="kubernetes", daemon=True).start()

    def launch(self, name: ProcessName, memory: int = 0) -> None:
        """Create a pod; a name that was launched before is ignored."""
        self._requests.put(lambda: self._create(name, memory))

    def signal(self, name: ProcessName, number: int) -> None:
        """End a pod: with its grace period for SIGTERM, at once for SIGKILL. No error if it has gone."""
        if number not in (signal.SIGTERM, signal.SIGKILL):
            raise ValueError(f"a pod can be asked to end or killed, not sent signal {number}")
        grace = None if number == signal.SIGTERM else _KILL_GRACE
        self._requests.put(lambda: self._api.delete("Pod", self._names.pod(name), grace))

    def events(self, seconds: float) -> list[ClusterEvent]:
        """Wait at most `seconds` for events."""
        try:
            found = [self._news.get(timeout=seconds)]
        except queue.Empty:
            return []
        while True:
            try:
                found.append(self._news.get_nowait())
            except queue.Empty:
                return found

    def clear(self, seconds: float) -> None:
        """Delete the pods that still wait, and after `seconds` also those that have not ended by themselves."""
        until = time.monotonic() + seconds
        while True:
            over = time.monotonic() >= until
            left = [event for event in list(self._told.values()) if not isinstance(event, ProcessEnded)]
            for event in left:
                if over or isinstance(event, ProcessPending):
                    with contextlib.suppress(ApiError, Unreachable):
                        self._api.delete("Pod", self._names.pod(event.name))
            if over or not left:
                return
            self._closed.wait(_SHORTEST_PAUSE)

    def close(self) -> None:
        """Stop watching; pods go on."""
        self._closed.set()
        self._requests.put(None)

    # ------------------------------------------------------------------ requests

    def _carry_out(self) -> None:
        while (request := self._requests.get()) is not None:
            patience = _Patience(self._closed)
            while not self._closed.is_set():
                try:
                    request()
                    break
                except Unreachable as error:
                    _log.warning("the cluster's API does not answer, trying again: %s", error)
                except ApiError as error:
                    _log.error("the cluster refuses: %s", error)
                    break
                patience.wait()

    def _create(self, name: ProcessName, memory: int) -> None:
        try:
            self._api.create(self._make_pod(name, memory))
            self._tidy(name)
        except ApiError as error:
            if error.status == 409 and error.reason == "AlreadyExists":
                return
            if error.status != 403 or "quota" not in str(error):
                self._tell(ProcessEnded(name, None, None, Blame.START, str(error)))
                return
            # A quota is room that is taken: like a full cluster, it may become free. What else is asked for does not wait for it.
            self._tell(ProcessPending(name, str(error)))
            again = threading.Timer(_QUOTA_SECONDS, self.launch, (name, memory))
            again.daemon = True
            again.start()

    def _tidy(self, name: ProcessName) -> None:
        """Delete pods of earlier lives that say nothing to people or to the next master: preempted often, they would pile up."""
        for event in list(self._told.values()):
            if (
                isinstance(event, ProcessEnded)
                and event.name.index == name.index
                and event.name.life < name.life - 1  # the log of the last one may be asked for
                and (event.blame is Blame.CLUSTER or event.code == 0)
                and self._names.pod(event.name) in self._seen
            ):
                self._api.delete("Pod", self._names.pod(event.name))

    # ------------------------------------------------------------------ pods

    def _watch_pods(self, version: str) -> None:
        patience = _Patience(self._closed)
        while not self._closed.is_set():
            try:
                for kind, pod in self._api.watch("Pod", version, self._selector):
                    version = pod["metadata"]["resourceVersion"]
                    patience.reset()
                    if kind == "DELETED":
                        self._forget(pod)
                    elif kind != "BOOKMARK":
                        self._look(pod)
            except Unreachable as error:
                _log.info("the pods can't be watched, trying again: %s", error)
                patience.wait()
            except ApiError as error:
                # What happened since that version is forgotten, or this may not be watched.
                _log.info("watching the pods begins anew: %s", error)
                patience.wait()
                version = self._list_patiently()

    def _list_patiently(self) -> str:
        """Look at all pods, and return the version from which to watch."""
        found: list[Object] = []
        patience, version = _Patience(self._closed), ""
        while not self._closed.is_set():
            try:
                found, version = self._api.list("Pod", self._selector)
                break
            except (Unreachable, ApiError) as error:
                _log.warning("the pods can't be listed, trying again: %s", error)
            patience.wait()
        if self._closed.is_set():
            return version
        names = {pod["metadata"]["name"] for pod in found}
        for name, pod in list(self._seen.items()):
            if name not in names:
                self._forget(pod)
        for pod in found:
            self._look(pod)
        return version

    def _look(self, pod: Object) -> None:
        self._seen[pod["metadata"]["name"]] = pod
        event = pods.read(pod)
        if event is not None:
            self._tell(event)

    def _forget(self, pod: Object) -> None:
        self._look(pod)  # the last thing that it says may be how it ended
        del self._seen[pod["metadata"]["name"]]
        name = pods.process_of(pod)
        if name is None or isinstance(self._told.get(name), ProcessEnded):
            return
        if pods.never_ran(pod):
            self._tell(ProcessEnded(name, None, None, Blame.CLUSTER, "it was deleted before it ran"))
        elif not isinstance(self._told.get(name), ProcessGone):
            self._tell(ProcessGone(name))

    def _tell(self, event: ProcessEvent) -> None:
        before = self._told.get(event.name)
        if event == before or isinstance(before, ProcessEnded):
            return
        self._told[event.name] = event
        self._news.put(event)

    # ------------------------------------------------------------------ the job

    def _watch_job(self) -> None:
        patience, version = _Patience(self._closed), ""
        only = f"metadata.name={self._job}"
        while not self._closed.is_set():
            try:
                if not version:
                    found, version = self._api.list("Job", fields=only)
                    for job in found:
                        self._obey(job)
                for kind, job in self._api.watch("Job", version, fields=only):
                    version = job["metadata"]["resourceVersion"]
                    patience.reset()
                    if kind in ("ADDED", "MODIFIED"):
                        self._obey(job)
            except (ApiError, Unreachable) as error:
                _log.info("watching the job begins anew: %s", error)
                version = ""
                patience.wait()

    def _obey(self, job: Object) -> None:
        """Tell what people ask for by annotations, once for each value."""
        annotations = job["metadata"].get("annotations", {})
        stop, workers = annotations.get(manifests.STOP, ""), annotations.get(manifests.WORKERS, "")
        told_stop, told_workers = self._asked
        self._asked = stop, workers
        if workers and workers != told_workers:
            if workers.isascii() and workers.isdigit() and int(workers) > 0:
                self._news.put(WorkersAsked(int(workers)))
            else:
                _log.error("%s=%r is not a number of workers", manifests.WORKERS, workers)
        if stop and stop != told_stop:
            self._news.put(StopAsked(stop))
