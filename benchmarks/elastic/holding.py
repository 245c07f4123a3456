"""Who held which unit when: what the API tells of all pods that want one, by this machine's clock.

The times in a pod's own status are whole seconds; a watch tells of changes within milliseconds. It decides nothing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from benchmarks.elastic.cluster import UNIT, UNITS
from elasticdl.cluster.kubernetes.api import Api, ApiError, Object, Unreachable
from elasticdl.cluster.kubernetes.pods import process_of

_AGAIN_SECONDS = 0.5
"""Before an API server that did not answer is asked again."""
SERVICE = "service"
"""Owner of the pods that are no job's."""


@dataclass(slots=True)
class Life:
    """One pod that wanted a unit; times in seconds since the beginning, None for what has not happened.

    Attributes:
        pod: its name.
        owner: the job's name, or `SERVICE`.
        process: the job's process; empty if it is none.
        created: when it was there.
        asked: when it was asked to end.
        placed: when it had a node, and so held its unit.
        running: when its container ran.
        ended: when it held the unit no longer.
    """

    pod: str
    owner: str
    process: str
    created: float
    asked: float | None = None
    placed: float | None = None
    running: float | None = None
    ended: float | None = None


class Watching:
    """All lives since the beginning."""

    def __init__(self, api: Api) -> None:
        """Begin to watch: the beginning is now."""
        self.began = time.time()
        self._api = api
        self._lives: dict[str, Life] = {}
        self._lock = threading.Lock()
        self._closed = threading.Event()
        threading.Thread(target=self._run, name="watch", daemon=True).start()

    def now(self) -> float:
        """Return the seconds since the beginning."""
        return time.time() - self.began

    def lives(self) -> tuple[Life, ...]:
        """Return what is known now."""
        with self._lock:
            return tuple(self._lives.values())

    def close(self) -> None:
        """Watch no longer; a thread that waits for the API ends with its next answer."""
        self._closed.set()

    def _run(self) -> None:
        while not self._closed.is_set():
            try:
                pods, version = self._api.list("Pod")
                self._take_all(pods)
                for kind, pod in self._api.watch("Pod", version):
                    if self._closed.is_set():
                        return
                    if kind != "BOOKMARK":
                        self._take(pod, gone=kind == "DELETED")
            except (ApiError, Unreachable):
                self._closed.wait(_AGAIN_SECONDS)

    def _take_all(self, pods: Sequence[Object]) -> None:
        here = {pod["metadata"]["uid"] for pod in pods}
        with self._lock:
            for uid, life in self._lives.items():
                if uid not in here and life.ended is None:
                    life.ended = self.now()
        for pod in pods:
            self._take(pod, gone=False)

    def _take(self, pod: Object, *, gone: bool) -> None:
        metadata, status = pod["metadata"], pod.get("status", {})
        if not any(
            UNIT in container.get("resources", {}).get("requests", {})
            for container in pod["spec"]["containers"]
        ):
            return
        with self._lock:
            at, process = self.now(), process_of(pod)
            owner = SERVICE if process is None else metadata["labels"]["elasticdl.org/job-name"]
            life = self._lives.setdefault(
                metadata["uid"], Life(metadata["name"], owner, str(process or ""), at)
            )
            if metadata.get("deletionTimestamp") and life.asked is None:
                life.asked = at
            if pod["spec"].get("nodeName") and life.placed is None:
                life.placed = at
            if status.get("phase") == "Running" and life.running is None:
                life.running = at
            if (gone or status.get("phase") in ("Succeeded", "Failed")) and life.ended is None:
                life.ended = at


def held(lives: Iterable[Life]) -> list[tuple[float, int]]:
    """Return (time, units that pods hold from then on), in order."""
    changes = [
        (at, change)
        for life in lives
        if life.placed is not None
        for at, change in ((life.placed, 1), (life.ended, -1))
        if at is not None
    ]
    # Who takes a unit that another one gives back at the same moment, as far as was seen, has not had two.
    found, units = [(0.0, 0)], 0
    for at, change in sorted(changes):
        units += change
        found.append((at, min(units, UNITS)))
    return found
