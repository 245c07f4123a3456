"""Serves a job's page: the page itself to everybody who can connect, everything about the job to those with a token only.

It reads what it shows from a `Recording` and changes nothing of the job. The event loop has a thread of its own, of which no error ends
the process: a job does not need its page. Importing this module takes most of a second of a processor, so a master imports it
once its workers have been launched.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from aiohttp import web

from elasticdl.errors import ElasticDLError
from elasticdl.page.exposition import CONTENT_TYPE, exposed
from elasticdl.page.port import HOST, listen
from elasticdl.page.recording import Recording

_log = logging.getLogger(__name__)

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
_LONGEST_LINE = 2048
"""Bytes of a request's line and of each of its headers; the page sends a few hundred."""
_LONGEST_TOKEN = 128
_MOST_CONNECTIONS = 100
"""At once: every user of the machine may connect, and the master needs its descriptors for the job. A browser takes six."""
_AT_A_TIME = 10
_START_SECONDS = 10.0
_OPEN_SECONDS = 2.0
"""A page that is open looks more often."""
_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


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

    def __init__(self, recording: Recording, logs: Logs, tokens: Tokens, port: int = 0) -> None:
        """Listen on this machine.

        Args:
            recording: what is shown.
            logs: the logs.
            tokens: callers that have them may read.
            port: 0 for any free one.

        Raises BadSetting if the port is in use or can't be had.
        """
        self._recording = recording
        self._logs = logs
        self._tokens = tokens
        self._socket = listen(port)
        self._loop = asyncio.new_event_loop()
        self._stopped = asyncio.Event()
        self._looked_at = 0.0
        self._looked = threading.Event()
        self._ready = threading.Event()
        self.address = f"http://{HOST}:{self._socket.getsockname()[1]}"
        """Where the page is."""
        self._thread = threading.Thread(target=self._serve, name="page", daemon=True)
        self._thread.start()
        self._ready.wait(_START_SECONDS)

    def part(self) -> None:
        """Let an open page look once more, so that it shows how the job has ended; wait for nobody if none is open."""
        self._looked.clear()
        if time.monotonic() - self._looked_at < _OPEN_SECONDS:
            self._looked.wait(_OPEN_SECONDS)

    def close(self) -> None:
        """Stop serving."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stopped.set)
            self._thread.join(_START_SECONDS)

    # ------------------------------------------------------------------ the thread

    def _serve(self) -> None:
        try:
            self._loop.run_until_complete(self._run())
        except Exception:  # a thread of the master, which no error may end
            _log.exception("the page has ended; the job does not need it")
        finally:
            self._ready.set()
            self._loop.close()

    async def _run(self) -> None:
        application = web.Application(middlewares=[self._guard], client_max_size=_LONGEST_LINE)
        for path in _FILES:
            application.router.add_get(path, self._file)
        application.router.add_get("/healthz", self._health)
        application.router.add_get("/metrics", self._metrics)
        application.router.add_get("/api/v1/status", self._status)
        application.router.add_get("/api/v1/timeline", self._timeline)
        application.router.add_get("/api/v1/series", self._series)
        application.router.add_get("/api/v1/events", self._events)
        application.router.add_get("/api/v1/logs", self._logs_of)
        runner = web.AppRunner(
            application,
            access_log=None,
            handle_signals=False,
            max_line_size=_LONGEST_LINE,
            max_field_size=_LONGEST_LINE,
            shutdown_timeout=0.5,
        )
        await runner.setup()
        made = runner.server
        assert made is not None, "it is set up"

        def protocol() -> asyncio.BaseProtocol:
            return made() if len(made.connections) < _MOST_CONNECTIONS else _Refused()

        # As many are accepted before the first of them counts as open.
        listening = await self._loop.create_server(protocol, sock=self._socket, backlog=_AT_A_TIME)
        self._ready.set()
        try:
            await self._stopped.wait()
        finally:
            listening.close()
            await runner.cleanup()

    # ------------------------------------------------------------------ who may see what

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            refused = self._refused(request)
            answer = await handler(request) if refused is None else refused
        except web.HTTPException as error:
            answer = _problem(error.status, error.reason)
        except Exception:  # one bad answer must not end the others
            _log.exception("the page can't answer %s", request.path)
            answer = _problem(500, "the page can't answer this; the log of the master says why")
        answer.headers.update(_HEADERS)
        return answer

    def _refused(self, request: web.Request) -> web.Response | None:
        """Return why a caller may not see something, None if it may."""
        # A page of somebody else, whose name was made to lead here, is of another origin for the browser only.
        if request.url.host not in (HOST, "localhost"):
            return _problem(403, f"this page is at {self.address}, or at localhost")
        if request.path in _FILES or request.path == "/healthz":
            return None
        expected = self._tokens.metrics if request.path == "/metrics" else self._tokens.page
        given = request.headers.get("Authorization", "")
        scheme, _, token = given.partition(" ")
        is_known = len(token) <= _LONGEST_TOKEN and hmac.compare_digest(
            token.encode(errors="backslashreplace"), expected.encode()
        )
        if scheme != "Bearer" or not is_known:
            return _problem(
                401, "the job's token is needed; `elasticdl status JOB --open` says the address with it"
            )
        return None

    # ------------------------------------------------------------------ answers

    async def _file(self, request: web.Request) -> web.Response:
        path = _STATIC / _FILES[request.path]
        return web.Response(body=path.read_bytes(), content_type=_TYPES[path.suffix], charset="utf-8")

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _metrics(self, request: web.Request) -> web.Response:
        body = exposed(self._recording.moment())
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE})

    async def _status(self, request: web.Request) -> web.Response:
        self._looked_at = time.monotonic()
        self._looked.set()
        return _json(self._recording.status_json())

    async def _timeline(self, request: web.Request) -> web.Response:
        return _json(self._recording.timeline_json())

    async def _series(self, request: web.Request) -> web.Response:
        return _json(self._recording.series_json())

    async def _events(self, request: web.Request) -> web.Response:
        try:
            since = float(request.query.get("since", "0"))
        except ValueError:
            return _problem(400, "since: expected seconds since the Unix epoch")
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
            return _problem(400, f"lines: expected a whole number from 1 to {MOST_LINES}")
        try:
            return _json(await self._log_lines(request.query.get("process", ""), int(text)))
        except (OSError, ElasticDLError) as error:
            return _problem(503, f"the log can't be read: {error}")


class _Refused(asyncio.Protocol):
    """A connection too many."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """End it at once."""
        assert isinstance(transport, asyncio.Transport)
        transport.abort()


def _json(body: dict[str, Any]) -> web.Response:
    return web.Response(text=json.dumps(body), content_type="application/json")


def _problem(status: int, text: str) -> web.Response:
    return web.json_response({"error": text}, status=status)
