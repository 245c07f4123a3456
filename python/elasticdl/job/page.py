"""The page of a job: served by the master of a local one, and by the command that asks for it where no master can.

The master's page has an address and tokens, which lie in the job's folder for its owner. A page of a command ends with the command.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import logging
import os
import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elasticdl.cluster.local.place import JobPlace
from elasticdl.control.protocol.status import JobStatus
from elasticdl.control.transport.keys import Key
from elasticdl.errors import BadSetting
from elasticdl.files import reading
from elasticdl.files.drafts import replace_file
from elasticdl.files.permissions import PRIVATE
from elasticdl.page.recording import Recording
from elasticdl.spec.jobspec import JobSpec

if TYPE_CHECKING:
    from elasticdl.page.server import Logs, PageServer

_log = logging.getLogger(__name__)

_IMPORT_NICENESS = 5
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


class MasterPage:
    """The page of a local job, in its master's process."""

    def __init__(self, place: JobPlace, spec: JobSpec, recording: Recording) -> None:
        """Begin on a thread of its own: what the page needs is imported at the end of the queue for the processor."""
        self._place = place
        self._port = spec.status_port
        self._recording = recording
        self._server: PageServer | None = None
        threading.Thread(target=self._open, name="page start", daemon=True).start()

    def part(self) -> None:
        """Let those who look see how the job has ended."""
        if self._server is not None:
            self._server.part()

    def _open(self) -> None:
        quiet = threading.Thread(target=_import_quietly, name="imports", daemon=True)
        quiet.start()
        quiet.join()
        try:
            self._server = self._serve()
        except Exception as error:  # no thread of a master may end by an error, and no job by its page
            _log.warning("the job has no page: %s", error)

    def _serve(self) -> PageServer:
        from elasticdl.page.server import PageServer, Tokens

        place = self._place
        tokens = Tokens(place.key(Key.PAGE).hex(), place.key(Key.METRICS).hex())
        logs = LocalLogs(place)
        try:
            # Where the master before this one had it: pages that are open find it again.
            server = PageServer(self._recording, logs, tokens, self._port or _port_before(place.page_path))
        except BadSetting as error:
            _log.warning("%s", error)
            server = PageServer(self._recording, logs, tokens)
        body = {"address": server.address, "token": tokens.page, "metrics_token": tokens.metrics}
        replace_file(place.page_path, json.dumps(body, indent=1) + "\n", PRIVATE)
        return server


def serve_ended(place: JobPlace, say: Callable[[str], None]) -> None:
    """Serve the page of a job that has ended, from what it left in its folder, until Ctrl-C."""
    from elasticdl.master.reporting.statusstore import FileStatusStore

    store, recording = FileStatusStore(place), Recording(place.submitted_at)
    with contextlib.suppress(ValueError):
        recording.recall(store.recall_curves())
    for told in store.recall():
        recording.event(told.event)
    recording.status(status_at_the_end(place.name, place.spec(), place.summary() or {}))
    serve_here(recording, LocalLogs(place), place.path, say)


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
    from elasticdl.page.server import PageServer, Tokens

    tokens = Tokens(secrets.token_hex(32), secrets.token_hex(32))
    server = PageServer(recording, logs, tokens)
    try:
        address = f"{server.address}/#token={tokens.page}"
        say(address)
        say("the page is served until Ctrl-C")
        browsing.show(address, folder)
        with contextlib.suppress(KeyboardInterrupt):
            until()
    finally:
        server.close()


def status_at_the_end(name: str, spec: JobSpec, summary: Mapping[str, Any]) -> JobStatus:
    """Return how a job stands that has ended, from its summary."""
    state, loss = str(summary.get("status", "killed")), summary.get("loss")
    total = summary.get("records_trained") or 0
    return JobStatus(
        job_name=name,
        state=state,
        reason=str(summary.get("reason", "it has ended without a summary")),
        view=0,
        step=int(summary.get("steps") or 0),
        epoch=int(summary.get("epochs") or 0),
        num_epochs=spec.num_epochs,
        done=1.0 if state == "finished" else None,
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


def _port_before(path: Path) -> int:
    try:
        return int(reading.text(reading.field(reading.load_file(path), "address")).rpartition(":")[2])
    except (OSError, ValueError):
        return 0


def _import_quietly() -> None:
    """Import what serving needs at the end of the queue for the processor: workers that start need it more."""
    with contextlib.suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _IMPORT_NICENESS)
    with contextlib.suppress(ImportError):
        importlib.import_module("elasticdl.page.server")
