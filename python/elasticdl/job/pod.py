"""A master in a pod: its hands on the cluster, its memory in objects, and how its end becomes its Job's."""

from __future__ import annotations

import logging
import os
import time

from elasticdl.cluster.kubernetes import manifests
from elasticdl.cluster.kubernetes.announcer import Announcement, Announcer
from elasticdl.cluster.kubernetes.api import Api, ApiError, Unreachable, connect_from_pod
from elasticdl.cluster.kubernetes.items import ConfigMapItem
from elasticdl.cluster.kubernetes.podcluster import KubernetesCluster
from elasticdl.cluster.kubernetes.podplace import PodPlace
from elasticdl.control.protocol.status import EventKind, JobEvent
from elasticdl.master.core.journal import REPLACED
from elasticdl.master.core.objectpages import ObjectPages
from elasticdl.master.reporting.statusstore import ObjectStatusStore
from elasticdl.spec.jobspec import JobSpec

_log = logging.getLogger(__name__)

_WARNINGS = frozenset(
    {
        EventKind.BAD_RECORD,
        EventKind.DIVERGED,
        EventKind.EVICTED,
        EventKind.FAILED,
        EventKind.IDLE_STEP,
        EventKind.LOST,
        EventKind.UNSAVED,
        EventKind.WAITING,
    }
)
_INDEX = "JOB_COMPLETION_INDEX"
"""Which life of the master this is, from 0; Kubernetes puts it into the environment of an indexed Job's pods."""
_LEAVE_SECONDS = 10.0
_RETRY_SECONDS = 1.0
AGAIN_SECONDS = 10.0
"""The next master starts at once after this one; one that fails by itself holds it up, not to fail at a cluster's expense."""


class MasterPod:
    """What one life of a master on Kubernetes works with."""

    def __init__(self, place: PodPlace, spec: JobSpec) -> None:
        """Connect to the cluster as the pod's service account."""
        names = manifests.Names(place.name)
        self._api: Api = connect_from_pod(place.namespace)
        self._place = place
        self.cluster = KubernetesCluster(
            self._api,
            place.name,
            place.uid,
            lambda name, memory: manifests.process_pod(
                spec, place.uid, name, memory, own_policy=place.own_policy
            ),
        )
        self.pages = ObjectPages(ConfigMapItem(self._api, names.journal), f"ConfigMap {names.journal}")
        self._announcer = Announcer(self._api, place.name, place.uid)
        store, events = (ConfigMapItem(self._api, name) for name in (names.store, names.events))
        self.store = ObjectStatusStore(store, events, self._annotate, self._announce)

    def _announce(self, event: JobEvent) -> None:
        reason = event.kind.title().replace("-", "")
        self._announcer.tell(Announcement(event.time, reason, event.text, event.kind in _WARNINGS))

    def _annotate(self, line: str) -> None:
        """Show one line with the Job; kubectl can show it as a column."""
        try:
            self._api.patch(
                "Job", self._place.name, {"metadata": {"annotations": {manifests.PROGRESS: line}}}
            )
        except ApiError as error:
            raise Unreachable(str(error)) from error

    def finish(self, code: int) -> int:
        """Clear up after the job's end, and return the exit code that makes the Job end in the same way.

        A Job ends by a success of its pod, or by a failure that it may not repeat. Everything else starts a master again.
        """
        self._announcer.close(_LEAVE_SECONDS)
        if code not in (0, 1, 2, 130):
            if code != REPLACED:  # who was replaced must not stand in the next one's way
                time.sleep(AGAIN_SECONDS)
            return code
        self.cluster.clear(_LEAVE_SECONDS)
        if code in (0, 130):
            return 0
        while True:
            try:
                # As many failures as there have been; the one that comes now is too many. The Job may not have counted all of them yet,
                # and would end with this pod and its log when it does: each master before this one was one.
                found, _ = self._api.list("Job", fields=f"metadata.name={self._place.name}")
                failed = sum(job.get("status", {}).get("failed", 0) for job in found)
                failed = max(failed, int(os.environ.get(_INDEX, "0")))
                self._api.patch("Job", self._place.name, {"spec": {"backoffLimit": failed}})
                return 1
            except Unreachable as error:
                _log.warning("the Job can't be told that it has failed, trying again: %s", error)
            except ApiError as error:
                _log.error("the Job can't be told that it has failed: %s", error)
                return 1
            time.sleep(_RETRY_SECONDS)
