"""The page of a job on Kubernetes, served by the command that asks for it out of the objects that `elasticdl status` reads.

So it needs no way to the pods, it survives every master, and what a user may not see by themselves the page does not show either.
"""

from __future__ import annotations

import contextlib
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from elasticdl.cluster.kubernetes.api import ApiError
from elasticdl.errors import JobFailed
from elasticdl.job.page import serve_here
from elasticdl.job.podjob import LOOK_SECONDS, PodJob, Seen, patiently
from elasticdl.page.recording import Recording


class PodLogs:
    """The logs of a job's pods."""

    def __init__(self, job: PodJob) -> None:
        self._job = job

    def processes(self) -> Sequence[str]:
        """Return the processes of which there is a log. Raises JobFailed, Unreachable."""
        try:
            return self._job.processes()
        except ApiError as error:
            raise JobFailed(str(error)) from error

    def tail(self, process: str, lines: int) -> Sequence[str]:
        """Return the last lines of a log. Raises JobFailed, Unreachable."""
        try:
            return self._job.log_tail(process, lines)
        except ApiError as error:
            raise JobFailed(str(error)) from error


class Following:
    """Brings what is seen of a job into a recording."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._curves = ""

    def take(self, seen: Seen) -> None:
        """Take one look at the job."""
        if seen.curves != self._curves:
            self._curves = seen.curves
            with contextlib.suppress(ValueError):  # another version wrote them
                self._recording.recall(seen.curves)
        for event in seen.events:
            self._recording.event(event)
        if seen.status is not None:
            self._recording.status(seen.status)


def kept_recording(job: PodJob) -> Recording:
    """Return what the objects of a job have of it: its curves, and its last events. Raises Unreachable, ApiError, JobFailed."""
    recording = Recording(job.submitted_at())
    Following(recording).take(job.anew().look())
    return recording


def follow(job: PodJob, say: Callable[[str], None], stopped: threading.Event) -> Recording:
    """Return a recording into which a thread brings what is seen of a job, until its end or until it is `stopped`.

    `say` hears of a cluster that does not answer. Raises Unreachable, ApiError, JobFailed.
    """
    recording = Recording(job.submitted_at())
    following = Following(recording)
    following.take(job.look())

    def look_again() -> None:
        while not stopped.wait(2 * LOOK_SECONDS):
            try:
                seen = patiently(job.look, say)
            except JobFailed as error:
                say(str(error))
                return
            following.take(seen)
            if seen.summary is not None:
                return

    threading.Thread(target=look_again, name="follow", daemon=True).start()
    return recording


def serve_pods(
    job: PodJob,
    say: Callable[[str], None],
    until: Callable[[], object] = lambda: threading.Event().wait(),
) -> None:
    """Serve a job's page from this process until Ctrl-C, or until `until` returns. Raises Unreachable, ApiError, JobFailed."""
    stopped = threading.Event()
    recording = follow(job, say, stopped)
    try:
        with tempfile.TemporaryDirectory(prefix="elasticdl-") as folder:
            serve_here(recording, PodLogs(job), Path(folder), say, until)
    finally:
        stopped.set()
