"""The page of a job: served by the master of a local one, and by the command that asks for it where no master can.

The master's page has an address and tokens, which lie in the job's folder for its owner. A page of a command ends with the command. A
master in a pod serves figures for Prometheus alone.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import logging
import os
import secrets
import selectors
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from elasticdl.cluster.local.place import JobPlace
from elasticdl.control.protocol.status import JobEvent, JobStatus
from elasticdl.control.transport.keys import Key, derive
from elasticdl.errors import BadSetting
from elasticdl.files import reading
from elasticdl.files.drafts import replace_file
from elasticdl.files.permissions import PRIVATE
from elasticdl.page.port import address_of, listen
from elasticdl.page.recording import Recording
from elasticdl.spec.jobspec import JobSpec

if TYPE_CHECKING:
    from elasticdl.cluster.kubernetes.podplace import PodPlace
    from elasticdl.page.figures import FiguresServer
    from elasticdl.page.server import Logs, PageServer

_log = logging.getLogger(__name__)

_IMPORT_NICENESS = 5
_LATEST_SECONDS = 5.0
"""After which a job without a step gets its page, too: people want to see what it waits for."""
_START_SECONDS = 2.0
"""For which the end of a job waits for a page that is just being started."""
_AWAIT_SECONDS = 20.0
"""For which a page is waited for: it comes after the first step, or some seconds after the job has begun."""
_RETRY_SECONDS = 0.1
_LINE_BYTES = 400
"""Of a line of a log, generously."""
_MOST_BYTES = 1 << 20


class LocalLogs:
    """The logs in a local job's folder."""

    def __init__(self, place: JobPlace) -> None:
        self._folder = place.logs

    def processes(self) -> Sequence[str]:
        """Return the processes that have a log."""
        return sorted(path.stem for path in self._folder.glob("*.log"))

    def tail(self, process: str, lines: int) -> Sequence[str]:
        """Return the last lines of a log. Raises OSError."""
        with open(self._folder / f"{process}.log", "rb") as file:
            size = file.seek(0, os.SEEK_END)
            begin = max(0, size - min(lines * _LINE_BYTES, _MOST_BYTES))
            file.seek(begin)
            found = file.read().decode(errors="replace").splitlines()
        return found[-lines:] if begin == 0 else found[1:][-lines:]


class Server(Protocol):
    """What a master serves."""

    def part(self) -> None:
        """Let those who look see how the job has ended."""

    def close(self) -> None:
        """Stop serving."""


class LateServer:
    """Something that a master serves of its job, which it observes to know when there is time for it."""

    what = "page"

    def __init__(self, recording: Recording) -> None:
        """Serve on threads of its own, once the first step is made: until then every core belongs to the workers, which start."""
        self._recording = recording
        self._server: Server | None = None
        self._due = threading.Event()
        self._closed = False
        self.progress(recording.step, None)
        self._start = threading.Thread(target=self._open, name="page start", daemon=True)
        self._start.start()

    def event(self, event: JobEvent) -> None:
        """Do nothing: the recording has it."""

    def status(self, status: JobStatus) -> None:
        """Look whether there has been a step, or a record of a job that makes none."""
        self.progress(status.step or status.records, status.loss)

    def progress(self, step: int, loss: float | None) -> None:
        """Take that a step is committed."""
        if step >= 1:
            self._due.set()

    def close(self) -> None:
        """Let a page that is open see how the job has ended, and serve no more: the process may live on."""
        self._closed = True
        self._due.set()
        self._start.join(_START_SECONDS)
        if self._server is not None:
            self._server.part()
            self._server.close()

    def _open(self) -> None:
        self._due.wait(_LATEST_SECONDS)
        if self._closed:
            return
        try:
            self._server = server = self._serve()
            if server is not None and self._closed:
                server.close()
        except Exception as error:  # no thread of a master may end by an error, and no job by its page
            _log.warning("the job has no %s: %s", self.what, error)

    def _serve(self) -> Server | None:
        """Begin to serve; None: it is closed before."""
        raise NotImplementedError


class MasterPage(LateServer):
    """The page of a local job. Nobody looks at most jobs, so what serves it is imported when the first caller has connected."""

    def __init__(self, place: JobPlace, spec: JobSpec, recording: Recording) -> None:
        """Serve the job of a place."""
        self._place = place
        self._port = spec.status_port
        self._woken, self._waking = socket.socketpair()
        super().__init__(recording)

    def close(self) -> None:
        """Let a page that is open see how the job has ended, and serve no more: the process may live on."""
        self._waking.close()
        super().close()
        self._woken.close()

    def _serve(self) -> PageServer | None:
        place = self._place
        try:
            # Where the master before this one had it: pages that are open find it again.
            listening = listen(self._port or _port_before(place.page_path))
        except BadSetting as error:
            _log.warning("%s", error)
            listening = listen(0)
        page, metrics = place.key(Key.PAGE).hex(), place.key(Key.METRICS).hex()
        body = {"address": address_of(listening), "token": page, "metrics_token": metrics}
        replace_file(place.page_path, json.dumps(body, indent=1) + "\n", PRIVATE)
        if not self._is_called(listening):
            listening.close()
            return None
        _import_quietly()
        from elasticdl.page.server import PageServer, Tokens

        return PageServer(self._recording, LocalLogs(place), Tokens(page, metrics), listening)

    def _is_called(self, listening: socket.socket) -> bool:
        """Wait until somebody has connected, and return True; False once this is closed."""
        with selectors.DefaultSelector() as selector:
            for one in (listening, self._woken):
                selector.register(one, selectors.EVENT_READ)
            return self._woken not in [key.fileobj for key, _ in selector.select()]


class MasterFigures(LateServer):
    """The figures of a job on Kubernetes for Prometheus, which its master serves where its Service leads to."""

    what = "figures for Prometheus"

    def __init__(self, place: PodPlace, spec: JobSpec, recording: Recording) -> None:
        """Serve the job of a pod."""
        self._place = place
        self._port = spec.metrics_port
        super().__init__(recording)

    def _serve(self) -> FiguresServer:
        _import_quietly()
        from elasticdl.page.figures import FiguresServer

        place = self._place
        token = derive(place.token(), Key.METRICS).hex()
        return FiguresServer(self._recording, token, (place.address, self._port), place.secret_folder)


def serve_ended(place: JobPlace, say: Callable[[str], None]) -> None:
    """Serve the page of a job that has ended, from what it left in its folder, until Ctrl-C."""
    serve_here(recording_at_the_end(place), LocalLogs(place), place.path, say)


def kept_recording(place: JobPlace) -> Recording:
    """Return what the folder of a local job has of it: its events, and its curves until some seconds ago."""
    from elasticdl.master.reporting.statusstore import FileStatusStore

    store, recording = FileStatusStore(place), Recording(place.submitted_at)
    with contextlib.suppress(ValueError):
        recording.recall(store.recall_curves())
    for told in store.peek():
        recording.event(told.event)
    return recording


def recording_at_the_end(place: JobPlace) -> Recording:
    """Return all that a local job left that has ended."""
    recording = kept_recording(place)
    recording.status(status_at_the_end(place.name, place.spec(), place.summary() or {}))
    return recording


def serve_here(
    recording: Recording,
    logs: Logs,
    folder: Path,
    say: Callable[[str], None],
    until: Callable[[], object] = lambda: threading.Event().wait(),
) -> None:
    """Serve a page from this process until Ctrl-C.

    Args:
        recording: what is shown.
        logs: the logs.
        folder: where a file that leads to the page may lie.
        say: takes lines for the person.
        until: returns when the page is to end, if that is before Ctrl-C.
    """
    from elasticdl.job import browsing

    server, address = open_here(recording, logs)
    try:
        say(address)
        say("the page is served until Ctrl-C")
        browsing.show(address, folder)
        with contextlib.suppress(KeyboardInterrupt):
            until()
    finally:
        server.close()


def open_here(recording: Recording, logs: Logs) -> tuple[PageServer, str]:
    """Begin to serve a page from this process; return its server, and its address with a token of its own."""
    from elasticdl.page.server import PageServer, Tokens

    tokens = Tokens(secrets.token_hex(32), secrets.token_hex(32))
    server = PageServer(recording, logs, tokens, listen(0))
    return server, f"{server.address}/#token={tokens.page}"


def status_at_the_end(name: str, spec: JobSpec, summary: Mapping[str, Any]) -> JobStatus:
    """Return how a job stands that has ended, from its summary."""
    state, loss = str(summary.get("status", "killed")), summary.get("loss")
    counted = ("records_trained", "records_evaluated", "records_predicted", "records_processed")
    total = next((summary[name] for name in counted if summary.get(name)), 0)
    # One that was stopped, or has trained its number of steps, is finished before the data is.
    steps, epochs = int(summary.get("steps") or 0), int(summary.get("epochs") or 0)
    num_epochs = int(summary.get("num_epochs", spec.num_epochs))
    is_all = not steps or 0 < num_epochs <= epochs
    return JobStatus(
        job_name=name,
        state=state,
        reason=str(summary.get("reason", "it has ended without a summary")),
        view=0,
        step=steps,
        epoch=epochs,
        num_epochs=num_epochs,
        done=1.0 if state == "finished" and is_all else None,
        loss=loss if isinstance(loss, (int, float)) else None,
        records=int(total),
        records_per_second=summary.get("records_per_second"),
        seconds_left=None,
        wanted_workers=spec.num_workers.maximum,
        workers=(),
        wanted_servers=spec.num_ps_pods,
    )


def address(place: JobPlace) -> str | None:
    """Return the address of a running job's page, with the token in the part that browsers keep to themselves; None if it has none yet."""
    try:
        body = reading.load_file(place.page_path)
        return f"{reading.text(reading.field(body, 'address'))}/#token={reading.text(reading.field(body, 'token'))}"
    except (OSError, ValueError):
        return None


def await_address(place: JobPlace) -> str | None:
    """Return the address of a job's page once it has one, None if the job ends before. Raises BadSetting if there is none in time."""
    until = time.monotonic() + _AWAIT_SECONDS
    while place.running():
        if (found := address(place)) is not None:
            return found
        if time.monotonic() > until:
            raise BadSetting(
                f"the job {place.name} has no page: its master is starting, or could not open one; "
                f"`elasticdl logs --role=master {place.name}` says why"
            )
        time.sleep(_RETRY_SECONDS)
    return None


def _port_before(path: Path) -> int:
    try:
        return int(reading.text(reading.field(reading.load_file(path), "address")).rpartition(":")[2])
    except (OSError, ValueError):
        return 0


def _import_quietly() -> None:
    """Import what serving needs, on a thread at the end of the queue for the processor: workers that start need it more."""
    quiet = threading.Thread(target=_import, name="imports", daemon=True)
    quiet.start()
    quiet.join()


def _import() -> None:
    with contextlib.suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _IMPORT_NICENESS)
    with contextlib.suppress(ImportError):
        importlib.import_module("elasticdl.page.server")
