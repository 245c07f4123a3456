"""Workers and parameter servers as pods: the master's hands on the cluster, and its eyes.

One thread carries out what is asked, with patience, because the API may be away for a while; one watches the pods, and one the Job
by whose annotations people steer. What should be is decided elsewhere. After a restart of the master the list of pods is the history.
"""

from __future__ import annotations

import logging
import queue
import re
import signal
import threading
import time
from collections.abc import Callable, Iterable

from elasticdl.cluster.cluster import (
    Blame,
    ClusterEvent,
    ProcessEnded,
    ProcessEvent,
    ProcessGone,
    ProcessName,
    ProcessPending,
    ProcessStarted,
    Role,
    ScaleAsked,
    StopAsked,
)
from elasticdl.cluster.kubernetes import manifests, pods
from elasticdl.cluster.kubernetes.api import Api, ApiError, Object, Unreachable

_log = logging.getLogger(__name__)

_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.2, 10.0
_AGAIN_SECONDS = 2.0
"""Between two attempts to make a pod that something keeps out which may pass."""
_KILL_GRACE = 1
"""Seconds; with 0 the API would forget the pod at once, and nobody could say when it is dead."""
_LAST_SECONDS = 60.0
"""Of attempts to delete what nobody would delete later."""


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
        self._selector = f"elasticdl.org/job-uid={uid},elasticdl.org/role in (worker,ps)"
        self._make_pod = make_pod
        self._names = manifests.Names(job)
        self._requests: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._news: queue.SimpleQueue[ClusterEvent] = queue.SimpleQueue()
        self._closed = threading.Event()
        self._told: dict[ProcessName, ProcessEvent] = {}
        self._lives: dict[tuple[Role, int], list[ProcessName]] = {}
        """The known lives by role and index: of a thousand processes a new life looks at its own earlier ones."""
        self._unmade: dict[ProcessName, int] = {}
        self._tries_again = False
        self._seen: dict[str, Object] = {}
        self._asked: dict[str, str] = {}
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

    def keep_spare(self) -> None:
        """Do nothing: a pod that waits would hold what a worker of this job, or of another, could have."""

    def signal(self, name: ProcessName, number: int) -> None:
        """End a pod: with its grace period for SIGTERM, at once for SIGKILL. No error if it has gone."""
        if number not in (signal.SIGTERM, signal.SIGKILL):
            raise ValueError(f"a pod can be asked to end or killed, not sent signal {number}")
        grace = None if number == signal.SIGTERM else _KILL_GRACE
        self._requests.put(lambda: self._end(name, grace))

    def expect(self, names: Iterable[ProcessName]) -> None:
        """Say of processes that have run and have no pod any more that they are gone: nobody watched while it went."""
        for name in names:
            if name not in self._told and self._names.pod(name) not in self._seen:
                self._tell(ProcessGone(name))

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
        """Delete the pods that still wait or only take room, and after `seconds` also those that have not ended by themselves."""
        until = time.monotonic() + seconds
        self._requests.put(self._unmade.clear)
        asked: set[str] = set()
        while not self._closed.is_set():
            over = time.monotonic() >= until
            left = [pod for pod in list(self._seen.values()) if pods.takes_room(pod)]
            due = [pod for pod in left if over or not isinstance(self._told_of(pod), ProcessStarted)]
            names = {pod["metadata"]["name"] for pod in due} - asked
            asked |= {name for name in names if self._delete(name)}
            done = not left or (over and names <= asked)
            if done or time.monotonic() >= until + _LAST_SECONDS:
                return
            self._closed.wait(_SHORTEST_PAUSE)

    def _told_of(self, pod: Object) -> ProcessEvent | None:
        name = pods.process_of(pod)
        return None if name is None else self._told.get(name)

    def _delete(self, pod: str) -> bool:
        """Delete a pod; false if the cluster could not be asked."""
        try:
            self._api.delete("Pod", pod)
        except (ApiError, Unreachable) as error:
            _log.warning("%s can't be deleted, trying again: %s", pod, error)
            return False
        return True

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

    def _create(self, name: ProcessName, memory: int) -> bool:
        """Make a pod, or remember it for later if what keeps it out may pass; true unless it is to be tried again."""
        if isinstance(self._told.get(name), ProcessEnded):
            return True  # it was asked to end before it could be made
        why = self._make(name, memory)
        if not why:
            self._requests.put(lambda: self._tidy(name))
            return True
        self._tell(ProcessPending(name, why))
        self._unmade[name] = memory
        if not self._tries_again:
            self._tries_again = True
            self._later(self._create_again)
        return False

    def _create_again(self) -> None:
        """Try the one that has waited longest: if there is room for it, there may be for the next one. So a full quota costs little."""
        self._tries_again = False
        name = next(iter(self._unmade), None)
        if name is not None and self._create(name, self._unmade.pop(name)) and self._unmade:
            self._tries_again = True
            self._requests.put(self._create_again)

    def _make(self, name: ProcessName, memory: int) -> str:
        """Make a pod; return what keeps it out if that may pass, else nothing."""
        try:
            self._api.create(self._make_pod(name, memory))
        except Unreachable as error:
            return str(error)
        except ApiError as error:
            if error.reason == "AlreadyExists":
                return self._whose(name)
            if pods.may_pass(error):
                return str(error)
            self._tell(ProcessEnded(name, None, None, Blame.START, str(error)))
        return ""

    def _whose(self, name: ProcessName) -> str:
        """Return why a pod of that name is not this job's; nothing if an answer was lost, or a master before this one made it."""
        try:
            found, _ = self._api.list("Pod", self._selector, f"metadata.name={self._names.pod(name)}")
        except (ApiError, Unreachable) as error:
            return str(error)
        return "" if found else "a pod of an earlier job of this name has not ended yet"

    def _end(self, name: ProcessName, grace: int | None) -> None:
        if name in self._unmade:
            # An attempt whose answer was lost may have made it.
            is_there = self._api.has("Pod", self._names.pod(name))
            del self._unmade[name]
            if not is_there:
                self._tell(ProcessEnded(name, None, None, Blame.CLUSTER, "it was never made"))
                return
        try:
            self._api.delete("Pod", self._names.pod(name), grace)
        except ApiError as error:
            # It is asked for once only, and a worker that hangs does not end by itself.
            _log.error("%s can't be ended, trying again: %s", name, error)
            self._later(lambda: self._end(name, grace))

    def _later(self, request: Callable[[], object]) -> None:
        """Ask for something again soon; what else is asked for does not wait for it."""
        timer = threading.Timer(_AGAIN_SECONDS, self._requests.put, (request,))
        timer.daemon = True
        timer.start()

    def _tidy(self, name: ProcessName) -> None:
        """Delete pods of earlier lives: those that still take room, and those whose log nobody needs, which would pile up."""
        for life in list(self._lives.get((name.role, name.index), ())):
            event, pod = self._told[life], self._seen.get(self._names.pod(life))
            if not isinstance(event, ProcessEnded) or pod is None:
                continue
            # The log of the last one may be asked for.
            is_old = life.life < name.life - 1 and pods.is_blameless(event)
            if is_old or (life.life < name.life and pods.takes_room(pod)):
                self._api.delete("Pod", self._names.pod(life))

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
        try:
            event = pods.read(pod)
        except (LookupError, TypeError, ValueError):  # one pod that nobody foresaw must not hide the others
            _log.exception("what the pod %s shows can't be read", pod["metadata"]["name"])
            return
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
        if before is None:
            self._lives.setdefault((event.name.role, event.name.index), []).append(event.name)
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
        annotations = job["metadata"].get("annotations") or {}
        self._believe(annotations.get(manifests.DEAD, ""))
        known = (manifests.STOP, manifests.WORKERS, manifests.SERVERS)
        asked = {name: annotations[name] for name in known if annotations.get(name)}
        news = {name: value for name, value in asked.items() if self._asked.get(name) != value}
        self._asked = asked
        workers, servers = (_number(name, news.get(name)) for name in (manifests.WORKERS, manifests.SERVERS))
        if (workers, servers) != (None, None):
            self._news.put(ScaleAsked(workers, servers))
        if manifests.STOP in news:
            self._news.put(StopAsked(news[manifests.STOP]))

    def _believe(self, names: str) -> None:
        """Take somebody's word that workers are dead of which the cluster can't say it any more."""
        dead = set(re.split(r"[ ,]+", names)) - {""}
        for event in list(self._told.values()) if dead else ():
            if isinstance(event, ProcessGone) and str(event.name) in dead:
                text = f"declared dead ({manifests.DEAD})"
                self._tell(ProcessEnded(event.name, None, None, Blame.CLUSTER, text))


def _number(name: str, text: str | None) -> int | None:
    """Read a number that somebody has written into an annotation; None if there is none."""
    if text is None or (text.isascii() and text.isdigit() and int(text) > 0):
        return None if text is None else int(text)
    _log.error("%s=%r is not a number of processes", name, text)
    return None
