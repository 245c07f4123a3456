"""Serves a job's page: the page itself to everybody who can connect, everything about the job to those with a token only.

It reads what it shows from a `Recording` and changes nothing of the job.
"""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from aiohttp import web

from elasticdl.errors import ElasticDLError
from elasticdl.page.figures import figures
from elasticdl.page.httpserver import Handler, HttpServer, healthy, problem, shows_token
from elasticdl.page.port import HOST, address_of
from elasticdl.page.recording import Recording

MOST_LINES = 2000
"""Lines of a log in one answer."""
_STATIC = Path(__file__).parent / "static"
_FILES = {
    "/": "index.html",
    "/page.js": "page.js",
    "/drawing.js": "drawing.js",
    "/page.css": "page.css",
    "/icon.svg": "icon.svg",
}
_TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
_OPEN_SECONDS = 2.0
"""A page that is open looks more often."""
_PART_SECONDS = 4.0
"""For which the end of a job waits until an open page has all of it."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """What callers have to know.

    Attributes:
        page: for the API, as hexadecimal digits.
        metrics: for `/metrics`, which programs of others read.
    """

    page: str
    metrics: str


class Logs(Protocol):
    """The logs of a job's processes; calls may take long."""

    def processes(self) -> Sequence[str]:
        """Return the names of the processes that have a log. Raises OSError, ElasticDLError."""

    def tail(self, process: str, lines: int) -> Sequence[str]:
        """Return the last lines of the log of one of these. Raises OSError, ElasticDLError."""


class PageServer:
    """A job's page, from when it is made until it is closed."""

    def __init__(self, recording: Recording, logs: Logs, tokens: Tokens, listening: socket.socket) -> None:
        """Serve on this machine.

        Args:
            recording: what is shown.
            logs: the logs.
            tokens: callers that have them may read.
            listening: where, of `listen`; it is closed in the end.
        """
        self._recording = recording
        self._logs = logs
        self._tokens = tokens
        self._looked_at = 0.0
        self._looks = threading.Semaphore(0)
        self.address = address_of(listening)
        """Where the page is."""
        routes: dict[str, Handler] = dict.fromkeys(_FILES, self._file)
        routes |= {
            "/healthz": healthy,
            "/metrics": self._metrics,
            "/api/v1/status": self._status,
            "/api/v1/timeline": self._timeline,
            "/api/v1/series": self._series,
            "/api/v1/events": self._events,
            "/api/v1/logs": self._logs_of,
        }
        self._server = HttpServer(listening, routes, self._refused)

    def part(self) -> None:
        """Let an open page look once more, so that it shows how the job has ended; wait for nobody if none is open.

        A look begins with the status. The one after it says that the page has the rest, too: events, curves and the log.
        """
        while self._looks.acquire(blocking=False):
            pass
        until = time.monotonic() + _PART_SECONDS
        if time.monotonic() - self._looked_at < _OPEN_SECONDS:
            for _ in range(2):
                self._looks.acquire(timeout=max(0.0, until - time.monotonic()))

    def close(self) -> None:
        """Stop serving."""
        self._server.close()

    def _refused(self, request: web.Request) -> web.Response | None:
        """Return why a caller may not see something, None if it may."""
        # A page of somebody else, whose name was made to lead here, is of another origin for the browser only.
        if request.url.host not in (HOST, "localhost"):
            return problem(403, f"this page is at {self.address}, or at localhost")
        if request.path in _FILES or request.path == "/healthz":
            return None
        expected = self._tokens.metrics if request.path == "/metrics" else self._tokens.page
        if not shows_token(request, expected):
            return problem(
                401, "the job's token is needed; `elasticdl status JOB --open` says the address with it"
            )
        return None

    # ------------------------------------------------------------------ answers

    async def _file(self, request: web.Request) -> web.Response:
        path = _STATIC / _FILES[request.path]
        return web.Response(body=path.read_bytes(), content_type=_TYPES[path.suffix], charset="utf-8")

    async def _metrics(self, request: web.Request) -> web.Response:
        return figures(self._recording)

    async def _status(self, request: web.Request) -> web.Response:
        self._looked_at = time.monotonic()
        self._looks.release()
        return _json(self._recording.status_json())

    async def _timeline(self, request: web.Request) -> web.Response:
        return _json(self._recording.timeline_json())

    async def _series(self, request: web.Request) -> web.Response:
        return _json(self._recording.series_json())

    async def _events(self, request: web.Request) -> web.Response:
        try:
            since = float(request.query.get("since", "0"))
        except ValueError:
            return problem(400, "since: expected seconds since the Unix epoch")
        lines = [json.dumps(asdict(event)) for event in self._recording.events_after(since)]
        return web.Response(text="".join(f"{line}\n" for line in lines), content_type="application/x-ndjson")

    async def _log_lines(self, process: str, lines: int) -> dict[str, Any]:
        loop = asyncio.get_running_loop()
        processes = await loop.run_in_executor(None, self._logs.processes)
        if process and process not in processes:
            raise web.HTTPNotFound(reason="there is no log of this process")
        found = await loop.run_in_executor(None, self._logs.tail, process, lines) if process else []
        return {"processes": list(processes), "process": process, "lines": list(found)}

    async def _logs_of(self, request: web.Request) -> web.Response:
        text = request.query.get("lines", "200")
        if not text.isdecimal() or not 1 <= int(text) <= MOST_LINES:
            return problem(400, f"lines: expected a whole number from 1 to {MOST_LINES}")
        try:
            return _json(await self._log_lines(request.query.get("process", ""), int(text)))
        except (OSError, ElasticDLError) as error:
            return problem(503, f"the log can't be read: {error}")


def _json(body: dict[str, Any]) -> web.Response:
    return web.Response(text=json.dumps(body), content_type="application/json")
