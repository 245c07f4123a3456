"""What the master decides, told as Kubernetes Events of the job's object, with the reason: `kubectl describe job` shows them.

Telling never holds up the master: one thread creates the Events, at a pace that a cluster's API does not mind, and while the API is
away old ones make room for new ones. They belong to the namespace, not to the job, so that they outlive it as other Events do.
"""

from __future__ import annotations

import datetime
import logging
import threading
import uuid
from collections import deque
from dataclasses import dataclass

from elasticdl.cluster.kubernetes.api import Api, ApiError, Object, Unreachable

_log = logging.getLogger(__name__)

_COMPONENT = "elasticdl"
_PAUSE = 0.1
"""Seconds between two Events."""
_RETRY_SECONDS = 2.0
_KEPT = 500
_TEXT_LIMIT = 1024
"""Characters that the API takes as the text of an Event."""


@dataclass(frozen=True, slots=True)
class Announcement:
    """One Event.

    Attributes:
        time: seconds since the Unix epoch.
        reason: one word in CamelCase.
        text: a sentence.
        warns: whether somebody should look.
    """

    time: float
    reason: str
    text: str
    warns: bool


def event(namespace: str, job: str, uid: str, told: Announcement) -> Object:
    """Return the Event of the job's object that says `told`."""
    at = datetime.datetime.fromtimestamp(told.time, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    text = told.text if len(told.text) <= _TEXT_LIMIT else told.text[: _TEXT_LIMIT - 1] + "…"
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{job}.{uuid.uuid4().hex[:16]}", "namespace": namespace},
        "involvedObject": {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "name": job,
            "namespace": namespace,
            "uid": uid,
        },
        "reason": told.reason,
        "message": text,
        "type": "Warning" if told.warns else "Normal",
        "source": {"component": _COMPONENT},
        "firstTimestamp": at,
        "lastTimestamp": at,
        "count": 1,
    }


class Announcer:
    """The Events of one job."""

    def __init__(self, api: Api, job: str, uid: str) -> None:
        self._api = api
        self._job = job
        self._uid = uid
        self._waiting: deque[Announcement] = deque(maxlen=_KEPT)
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="announcer", daemon=True)
        self._thread.start()

    def tell(self, told: Announcement) -> None:
        """Tell something soon."""
        with self._changed:
            self._waiting.append(told)
            self._changed.notify_all()

    def close(self, seconds: float) -> None:
        """Tell what is left, for as long as `seconds`."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(seconds)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closed)
                if not self._waiting:
                    return
                told = self._waiting.popleft()
            again = not self._create(told)
            with self._changed:
                if again and len(self._waiting) < _KEPT:
                    self._waiting.appendleft(told)
                self._changed.wait_for(lambda: self._closed, _RETRY_SECONDS if again else _PAUSE)
                if self._closed and again:
                    return

    def _create(self, told: Announcement) -> bool:
        """Create an Event; return false if that should be tried again."""
        try:
            self._api.create(event(self._api.namespace, self._job, self._uid, told))
        except Unreachable as error:
            _log.info("an Event can't be told, trying again: %s", error)
            return False
        except ApiError as error:
            _log.warning("an Event can't be told: %s", error)
        return True
