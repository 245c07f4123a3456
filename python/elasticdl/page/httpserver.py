"""An HTTP server for a job's page or its figures, on a thread of its own: no error of it ends the process, because no job needs it.

Callers cost little whatever they send: requests are short, and connections few. Importing this module takes most of a second of a
processor, so a master of a local job imports it when somebody calls, and one of a pod once its workers have been launched.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import socket
import ssl
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Mapping

from aiohttp import web

_log = logging.getLogger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_LONGEST_LINE = 2048
"""Bytes of a request's line and of each of its headers; the page sends a few hundred."""
_LONGEST_TOKEN = 128
_MOST_CONNECTIONS = 100
"""At once: strangers may connect, and the master needs its descriptors for the job. A browser takes six. As many may be in a handshake."""
_AT_A_TIME = 10
_HANDSHAKE_SECONDS = 5.0
_START_SECONDS = 10.0
_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class HttpServer:
    """Serves from when it is made until it is closed."""

    def __init__(
        self,
        listening: socket.socket,
        routes: Mapping[str, Handler],
        refuse: Callable[[web.Request], web.Response | None],
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """Serve on a thread.

        Args:
            listening: where; it is closed in the end.
            routes: what answers a GET of each path.
            refuse: returns the answer to a caller who may not see what it asks for, else None.
            tls: what makes connections private; None: nothing.
        """
        self._socket = listening
        self._routes = routes
        self._refuse = refuse
        self._tls = tls
        self._loop = asyncio.new_event_loop()
        self._stopped = asyncio.Event()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="page", daemon=True)
        self._thread.start()
        self._ready.wait(_START_SECONDS)

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
        for path, handler in self._routes.items():
            application.router.add_get(path, handler)
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
        handshakes: deque[float] = deque()

        def protocol() -> asyncio.BaseProtocol:
            has_room = len(made.connections) < _MOST_CONNECTIONS
            if self._tls is None:
                return made() if has_room else _Refused()
            now = self._loop.time()
            while handshakes and handshakes[0] < now - _HANDSHAKE_SECONDS:
                handshakes.popleft()
            if not has_room or len(handshakes) >= _MOST_CONNECTIONS:
                raise ConnectionRefusedError  # asyncio lets go of the connection, before any handshake
            handshakes.append(now)
            return made()

        patience = None if self._tls is None else _HANDSHAKE_SECONDS
        # As many are accepted before the first of them counts as open.
        listening = await self._loop.create_server(
            protocol,
            sock=self._socket,
            backlog=_AT_A_TIME,
            ssl=self._tls,
            ssl_handshake_timeout=patience,
            ssl_shutdown_timeout=patience,
        )
        self._ready.set()
        try:
            await self._stopped.wait()
        finally:
            listening.close()
            await runner.cleanup()

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            refused = self._refuse(request)
            answer = await handler(request) if refused is None else refused
        except web.HTTPException as error:
            answer = problem(error.status, error.reason)
        except Exception:  # one bad answer must not end the others
            _log.exception("the page can't answer %s", request.path)
            answer = problem(500, "the page can't answer this; the log of the master says why")
        answer.headers.update(_HEADERS)
        return answer


class _Refused(asyncio.Protocol):
    """A connection too many."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """End it at once."""
        assert isinstance(transport, asyncio.Transport)
        transport.abort()


def shows_token(request: web.Request, token: str) -> bool:
    """Tell whether a caller shows a token, in a time that tells nothing about it."""
    scheme, _, given = request.headers.get("Authorization", "").partition(" ")
    is_known = len(given) <= _LONGEST_TOKEN and hmac.compare_digest(
        given.encode(errors="backslashreplace"), token.encode()
    )
    return scheme == "Bearer" and is_known


def problem(status: int, text: str) -> web.Response:
    """Return an answer that says why there is no other."""
    return web.json_response({"error": text}, status=status)


async def healthy(request: web.Request) -> web.Response:
    """Answer that the server lives."""
    return web.Response(text="ok\n")
