"""Where a `Job` of Python is: on this machine or on Kubernetes. Each backend asks its own way, with the functions of the commands."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from elasticdl.cluster.local import place as places
from elasticdl.cluster.local.place import JobPlace
from elasticdl.control.protocol.status import JobStatus
from elasticdl.errors import BadSetting, JobFailed, MasterAway
from elasticdl.job import page
from elasticdl.job.asking import ask, ends
from elasticdl.job.display import Display
from elasticdl.job.launcher import Watch
from elasticdl.job.logs import merged
from elasticdl.job.profile import IN_PODS, Profile, profile
from elasticdl.page.recording import Recording
from elasticdl.spec.jobspec import JobSpec

if TYPE_CHECKING:
    from elasticdl.job.podjob import PodJob
    from elasticdl.page.server import Logs, PageServer

_LOOK_SECONDS = 0.1


class Backend(Protocol):
    """What a `Job` asks. Calls raise MasterAway if no answer comes, JobFailed if the job is gone."""

    @property
    def name(self) -> str:
        """Return the job's unique name."""

    @property
    def namespace(self) -> str:
        """Return the namespace of a job on Kubernetes, else nothing."""

    def submitted_at(self) -> float:
        """Return when it was submitted, in seconds since the Unix epoch."""

    def spec(self) -> JobSpec:
        """Return its settings."""

    def status(self) -> JobStatus:
        """Return how it stands, or how it ended."""

    def recording(self) -> Recording:
        """Return what is kept of its curves and events."""

    def summary(self) -> Mapping[str, Any] | None:
        """Return its summary, None while it runs."""

    def wait(self, display: Callable[[], Display], until: float) -> Mapping[str, Any] | None:
        """Show the job until its end and return its summary; None if it runs still at `until`, on the monotonic clock."""

    def stop(self, reason: str) -> None:
        """Ask for an early end; do nothing if it has ended."""

    def scale(self, workers: int | None, servers: int | None) -> None:
        """Ask for other numbers. Raises BadSetting if they are refused, or it has ended."""

    def profile(self, steps: int, output: Path) -> Profile:
        """Record steps of its workers, and write them. Raises BadSetting if they can't be recorded, JobFailed if none was, Unwritable."""

    def lines(self, process: str, most: int) -> list[str]:
        """Return the last lines of logs. Raises BadSetting if there is no such process."""

    def page(self) -> str:
        """Return the address of its page."""


class _Served:
    """A page that this program serves until it ends, from when it is first asked for."""

    def __init__(self) -> None:
        self._server: PageServer | None = None
        self._address = ""

    def address(self, recording: Callable[[], Recording], logs: Logs) -> str:
        """Return the page's address; `recording`: makes what it shows."""
        if self._server is None:
            self._server, self._address = page.open_here(recording(), logs)
        return self._address


class LocalBackend:
    """A job on this machine: its folder, and its master while it runs."""

    namespace = ""

    def __init__(self, place: JobPlace) -> None:
        """Reach the job of a place."""
        self._place = place
        self._shown_until = 0.0
        self._served = _Served()

    @property
    def name(self) -> str:
        """Return the job's unique name."""
        return self._place.name

    def submitted_at(self) -> float:
        """Return when it was submitted."""
        return self._place.submitted_at

    def spec(self) -> JobSpec:
        """Read its settings."""
        return self._place.spec()

    def status(self) -> JobStatus:
        """Ask its master; of one that has ended look at the summary."""
        if self._place.running():
            try:
                return ask(self._place, lambda client: client.status())
            except (BadSetting, MasterAway):
                if not ends(self._place):
                    raise
        return page.status_at_the_end(self.name, self.spec(), self._place.summary() or {})

    def recording(self) -> Recording:
        """Read what its folder has."""
        return page.kept_recording(self._place)

    def summary(self) -> Mapping[str, Any] | None:
        """Read its summary; one whose launcher was killed has none, and has failed."""
        if self._place.running():
            return None
        reason = "it has ended without a summary: its launcher was killed"
        return self._place.summary() or {
            "job": self.name,
            "status": "failed",
            "reason": reason,
            "exit_code": 1,
        }

    def wait(self, display: Callable[[], Display], until: float) -> Mapping[str, Any] | None:
        """Watch its master; events that an earlier call has shown are not shown again."""
        watch = None
        with contextlib.suppress(BadSetting):  # it has just ended
            watch = Watch(self._place, display, self._shown_until)
            watch.start()
        try:
            while (left := until - time.monotonic()) > 0 and self._place.running():
                time.sleep(min(left, _LOOK_SECONDS))
        finally:
            if watch is not None:
                if self._place.running():
                    watch.leave()
                else:
                    watch.close()
                self._shown_until = watch.since
        return self.summary()

    def stop(self, reason: str) -> None:
        """Ask its master."""
        try:
            ask(self._place, lambda client: client.stop(reason))
        except (BadSetting, MasterAway):
            if not ends(self._place):
                raise

    def scale(self, workers: int | None, servers: int | None) -> None:
        """Ask its master."""
        ask(self._place, lambda client: client.scale(workers, servers))

    def profile(self, steps: int, output: Path) -> Profile:
        """Ask its master."""
        return profile(self._place, steps, output)

    def lines(self, process: str, most: int) -> list[str]:
        """Read the logs in its folder."""
        return list(deque(merged(self._place, process), most))

    def page(self) -> str:
        """Return the address of the master's page; that of a job that has ended is served here."""
        found = page.await_address(self._place)
        return found or self._served.address(
            lambda: page.recording_at_the_end(self._place), page.LocalLogs(self._place)
        )


class PodBackend:
    """A job on Kubernetes: its objects, as far as this user may look at them."""

    def __init__(self, job: PodJob) -> None:
        """Reach a job of a cluster."""
        self._job = job
        self._shown = job.anew()
        self._served = _Served()

    @property
    def name(self) -> str:
        """Return the job's name."""
        return self._job.name

    @property
    def namespace(self) -> str:
        """Return its namespace."""
        return self._job.namespace

    def submitted_at(self) -> float:
        """Return when its Job was made."""
        with _answers():
            return self._job.submitted_at()

    def spec(self) -> JobSpec:
        """Read its settings."""
        with _answers():
            return self._job.spec()

    def status(self) -> JobStatus:
        """Look at its objects."""
        with _answers():
            seen = self._job.look()
            if seen.summary is None and seen.status is not None:
                return seen.status
            # Nothing is known of one that has not begun but why not.
            said = seen.summary or {"status": "starting", "reason": seen.waits_for}
            return page.status_at_the_end(self.name, self._job.spec(), said)

    def recording(self) -> Recording:
        """Read what its master keeps in objects."""
        from elasticdl.job import podpage

        with _answers():
            return podpage.kept_recording(self._job)

    def summary(self) -> Mapping[str, Any] | None:
        """Look at its objects."""
        with _answers():
            return self._job.look().summary

    def wait(self, display: Callable[[], Display], until: float) -> Mapping[str, Any] | None:
        """Look at its objects again and again; a cluster that does not answer is waited for."""
        from elasticdl.job import podjob, podrun

        with _answers(), contextlib.ExitStack() as opened:
            try:
                podjob.patiently(self._job.exists, lambda text: print(text, file=sys.stderr), until)
                shown = display()
                opened.callback(shown.close)
                found = podjob.watch(self._shown, podrun.shown_on(shown), shown.notice, until)
            except TimeoutError:
                return None
            return podrun.advised(self._job, found)

    def stop(self, reason: str) -> None:
        """Annotate its Job."""
        with _answers():
            self._job.ask_to_stop(reason)

    def scale(self, workers: int | None, servers: int | None) -> None:
        """Annotate its Job."""
        with _answers():
            if self._job.look().summary is not None:
                raise BadSetting(f"the job {self.name} has ended")
            self._job.ask_to_scale(workers, servers)

    def profile(self, steps: int, output: Path) -> Profile:
        """Refuse that."""
        raise BadSetting(IN_PODS)

    def lines(self, process: str, most: int) -> list[str]:
        """Read the logs of its pods, in the order in which they come."""
        with _answers():
            return list(deque(self._job.logs(process), most))

    def page(self) -> str:
        """Serve it here, out of what this user may look at."""
        from elasticdl.job import podpage

        def follow() -> Recording:
            return podpage.follow(self._job.anew(), lambda text: None, threading.Event())

        with _answers():
            return self._served.address(follow, podpage.PodLogs(self._job))


@contextlib.contextmanager
def _answers() -> Iterator[None]:
    """Raise what people of Python know in place of the errors of a cluster's API.

    That this user may not ask says nothing about the job, which has not failed.
    """
    from elasticdl.cluster.kubernetes.api import ApiError, Unreachable
    from elasticdl.job.podjob import SignedOut

    try:
        yield
    except (Unreachable, SignedOut) as error:
        raise MasterAway(str(error)) from error
    except ApiError as error:
        kind = MasterAway if error.status in (401, 403) else JobFailed
        raise kind(str(error)) from error


def find_local(name: str) -> LocalBackend:
    """Find a job of this machine. Raises BadSetting."""
    return LocalBackend(places.find(name))


def find_pods(name: str, namespace: str) -> PodBackend:
    """Find a job of a namespace. Raises BadSetting, MasterAway."""
    from elasticdl.cluster.kubernetes.api import connect
    from elasticdl.job import podjob

    with _answers():
        return PodBackend(podjob.find(connect(namespace), name))
