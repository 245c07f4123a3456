"""The master's end of the control plane's connections: `ControlServer`, over gRPC.

It carries messages and says when a connection comes and goes; what a message means is decided elsewhere. All connections are served by one
thread with an event loop: with two threads for each, a message of a thousand members costs three times the processor time
(`docs/design/0048`). Nothing starts at import, and gRPC is imported when the server is made.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import logging
import secrets
import tempfile
import urllib.parse
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from elasticdl.control.protocol.messages import MasterMessage, MemberMessage, NewView
from elasticdl.control.protocol.profiling import Profiled
from elasticdl.control.protocol.status import JobEvent, JobStatus
from elasticdl.control.protocol.view import MemberId, View
from elasticdl.control.transport import credentials as proofs
from elasticdl.control.transport.channels import FLUSH_SECONDS, options, target
from elasticdl.control.transport.rights import objection
from elasticdl.control.transport.sharedloop import SharedLoop
from elasticdl.control.transport.tls import Identity
from elasticdl.errors import BadSetting
from elasticdl.files.sockets import base_for_sockets

if TYPE_CHECKING:
    import grpc
    import grpc.aio

    from elasticdl._core import TlsProxy

    Context = grpc.aio.ServicerContext[Any, Any]

_log = logging.getLogger(__name__)

_CALLS = 4096
"""Calls at once: the streams of 1,024 workers, others in their place before their end is noticed, and the challenges of as many."""
_WAITING_SECONDS = 600
"""For which a call may wait until it is taken up."""
_EVENTS = 10_000
"""Events that are kept for those who begin to watch."""
_UNREAD = 2 * _EVENTS
"""Messages that a watcher may leave unread: all that are kept, which it gets at once, and as many again."""
_ANSWER_SECONDS = 30.0
_BEHIND_PROXY = len("/edl-12345678/") + 64
"""Bytes that the proxy's sockets need behind their directory: each is called as the address that it is for."""


@dataclass(frozen=True, slots=True)
class MemberOpened:
    """A member that knows the token is there; it has said nothing yet.

    Attributes:
        connection: number of this connection, never reused in this process.
        worker: name of its process, `worker-3-2`.
        member: its member id.
    """

    connection: int
    worker: str
    member: MemberId


@dataclass(frozen=True, slots=True)
class MemberSaid:
    """A member's message; those of one connection come in order."""

    connection: int
    message: MemberMessage


@dataclass(frozen=True, slots=True)
class MemberClosed:
    """The connection is gone; nothing more comes from it."""

    connection: int


Answer = Callable[[bool, str], None]
"""Call once: accepted?, and a sentence."""


@dataclass(frozen=True, slots=True)
class StopWanted:
    """A client wants an early end of the job."""

    reason: str
    answer: Answer


@dataclass(frozen=True, slots=True)
class ScaleWanted:
    """A client wants another number of workers, of parameter servers, or of both; None: as many as now."""

    workers: int | None
    servers: int | None
    answer: Answer


@dataclass(frozen=True, slots=True)
class ProfileWanted:
    """A client wants the next steps of each worker.

    Attributes:
        request: number of this request; no other one has it, not even at another master.
        steps: how many.
        tell: takes what the client receives, None at the end; it does not block.
    """

    request: int
    steps: int
    tell: Callable[[Profiled | None], None]


@dataclass(frozen=True, slots=True)
class ProfileLeft:
    """Nobody waits any more for what was recorded for this request."""

    request: int


@dataclass(frozen=True, slots=True)
class _Refusal:
    """Put into a member's outbox: its process is refused, and hears nothing more."""

    reason: str


ServerEvent = (
    MemberOpened | MemberSaid | MemberClosed | StopWanted | ScaleWanted | ProfileWanted | ProfileLeft
)


class _Outbox(asyncio.Queue[Any]):
    """What a member has to be sent."""

    view: View | None = None
    """The last one that was put into it: of the next one the member hears what has changed."""


class _Watcher:
    """What one who watches has not read yet; bounded, because it may never read. Messages are shared by all watchers."""

    def __init__(self, peer: str) -> None:
        self.peer = peer
        self.outbox: asyncio.Queue[Any] = asyncio.Queue()
        self.is_behind = False
        self._task = asyncio.current_task()

    def put(self, message: Any) -> None:
        """Tell it something; if it has left too much unread, it is disconnected instead."""
        if self.is_behind:
            return
        if self.outbox.qsize() < _UNREAD:
            self.outbox.put_nowait(message)
            return
        self.is_behind = True
        assert self._task is not None, "made by the call's task"
        self._task.cancel()


class ControlServer:
    """Where members and clients reach the master.

    A Unix socket left by a killed master is taken over. Events are delivered on the thread that serves all connections, so `deliver` must
    not block. With an identity gRPC itself is on a Unix socket in a folder of its own, and the core's proxy, which refuses strangers, is at
    the address.
    """

    def __init__(
        self,
        address: str,
        token: bytes,
        deliver: Callable[[ServerEvent], object],
        identity: Identity | None = None,
    ) -> None:
        """Bind and listen. Raises BadSetting if the address is in use or can't be had.

        Args:
            address: `unix:PATH` or `tcp:HOST:PORT`.
            token: the job's.
            deliver: takes events, on the server's thread, and does not block.
            identity: the master's certificate; then only callers with one of the job's are heard.
        """
        import grpc
        import grpc.aio
        from google.protobuf.message import DecodeError

        from elasticdl.control.generated import control_pb2 as wire
        from elasticdl.control.generated import control_pb2_grpc as service
        from elasticdl.control.protocol import codec

        self._grpc = grpc
        self._codec = codec
        self._wire = wire
        self._undecodable = DecodeError
        self._challenges = proofs.Challenges(token)
        self._deliver = deliver
        self._numbers = itertools.count(1)
        self._loop = SharedLoop.share()
        self._outboxes: dict[int, _Outbox] = {}
        self._watchers: set[_Watcher] = set()
        self._status: JobStatus | None = None
        self._events: deque[tuple[float, Any]] = deque(
            maxlen=_EVENTS
        )  # with their times; encoded once for all
        self._last: tuple[MasterMessage | None, dict[int, Any]] = None, {}
        """What was sent last, and its wire form after each view that was the last one of a stream: a view is sent to a thousand members."""
        self._posted: deque[tuple[asyncio.Queue[Any], Any]] = deque()
        """What other threads have said, for which the loop is woken once."""
        self._woken = False
        self._closed = False
        self._refused = 0
        self._proxy: TlsProxy | None = None
        self._beside = contextlib.ExitStack()
        self._server: Any = self._loop.run(self._make(service))
        try:
            if identity is None:
                self.address = self._listen(address)
                """Where it listens in fact."""
            else:
                self._proxy = self._open_proxy(address, identity)
                self.address = self._proxy.address
            self._loop.run(self._server.start())
        except BaseException:
            self._server = None
            self._loop.leave()
            raise

    async def _make(self, service: Any) -> grpc.aio.Server:
        """Return a server of the loop."""
        patient = [
            # Otherwise it takes the callers' questions whether it lives for an attack.
            ("grpc.http2.max_ping_strikes", 0),
            # Otherwise it cancels calls that this thread takes up half a minute late, and some of a thousand at once.
            ("grpc.server_max_unrequested_time_in_server", _WAITING_SECONDS),
            ("grpc.server.max_pending_requests", _CALLS),
            ("grpc.server.max_pending_requests_hard_limit", 2 * _CALLS),
        ]
        server = self._grpc.aio.server(options=[*options(), *patient], maximum_concurrent_rpcs=_CALLS)
        service.add_ControlServicer_to_server(self._servicer(service), server)
        return server

    def _listen(self, address: str) -> str:
        at = target(address)

        async def listen() -> int:
            found: int = self._server.add_insecure_port(at)
            return found

        try:
            port = self._loop.run(listen())
        except RuntimeError as error:
            raise BadSetting(
                f"the control plane can't listen at {address}: the port or socket is in use"
            ) from error
        if address.startswith("tcp:"):
            return f"{address.rpartition(':')[0]}:{port}"
        Path(address.removeprefix("unix:")).chmod(0o600)
        return address

    def _open_proxy(self, address: str, identity: Identity) -> TlsProxy:
        from elasticdl._core import TlsProxy

        base = base_for_sockets(_BEHIND_PROXY)
        with contextlib.ExitStack() as opened:
            folder = opened.enter_context(tempfile.TemporaryDirectory(prefix="edl-", dir=base))
            self._listen(f"unix:{folder}/grpc")
            proxy = TlsProxy(address, f"{folder}/grpc", identity)
            opened.callback(proxy.close)
            self._beside = opened.pop_all()
        return proxy

    @property
    def refused(self) -> int:
        """Return how many connections were refused so far: wrong certificate or token, another version, or words that can't be true."""
        return self._refused + (self._proxy.refused if self._proxy is not None else 0)

    def refusals(self) -> tuple[list[tuple[str, str]], int]:
        """Return the proxy's refusals since the last call, as `Acceptor`; a wrong token or another version is logged at once."""
        return self._proxy.refusals() if self._proxy is not None else ([], 0)

    def send(self, connection: int, message: MasterMessage) -> bool:
        """Send to a member; False if the connection is gone. What is sent to one connection arrives in order or not at all."""
        outbox = self._outboxes.get(connection)
        if outbox is None:
            return False
        last, forms = self._last
        if message != last:
            forms = {}
            self._last = message, forms
        before = None
        if isinstance(message, NewView):
            before, outbox.view = outbox.view, message.view
        number = 0 if before is None else before.id
        if number not in forms:
            forms[number] = self._codec.encode_master(message, before)
        self._post(outbox, forms[number])
        return True

    def refuse(self, connection: int, reason: str) -> None:
        """End a member's connection for what it has said on it; its process makes no other one. Counted and logged as all refusals are."""
        outbox = self._outboxes.get(connection)
        if outbox is not None:
            self._post(outbox, _Refusal(reason))

    def publish(self, seen: JobStatus | JobEvent) -> None:
        """Show a status or an event to all who watch, and to those who will ask."""
        if isinstance(seen, JobStatus):
            self._status = seen
        self._loop.soon(self._show_watchers, seen)

    def close(self) -> None:
        """End all connections once what was sent has been delivered, then stop listening and remove the socket.

        Not for a master that was replaced: the socket may be its successor's by now.
        """
        if self._server is None:
            return
        self._loop.run(self._close())
        self._beside.close()  # the proxy has carried then what gRPC has sent
        self._server = None  # gRPC's own thread ends with the last server
        self._loop.leave()

    def _post(self, outbox: asyncio.Queue[Any], message: Any) -> None:
        """Put something into an outbox, from any thread."""
        self._posted.append((outbox, message))
        if not self._woken:
            self._woken = True
            self._loop.soon(self._give_out)

    # ------------------------------------------------------------------ on the loop's thread

    def _give_out(self) -> None:
        self._woken = False  # first: what is posted from now on wakes the loop again
        while self._posted:
            outbox, message = self._posted.popleft()
            outbox.put_nowait(message)

    def _show_watchers(self, seen: JobStatus | JobEvent) -> None:
        if isinstance(seen, JobStatus) and not self._watchers:
            return  # a thousand workers are long to encode
        message = self._codec.encode_seen(seen)
        if isinstance(seen, JobEvent):
            self._events.append((seen.time, message))
        for watcher in self._watchers:
            watcher.put(message)

    async def _close(self) -> None:
        self._closed = True
        self._give_out()
        for outbox in (*self._outboxes.values(), *(watcher.outbox for watcher in self._watchers)):
            outbox.put_nowait(None)
        await self._server.stop(FLUSH_SECONDS)

    def _servicer(self, service: Any) -> Any:
        server = self

        class Servicer(service.ControlServicer):  # type: ignore[misc]
            """gRPC's face of the server."""

            async def Challenge(self, request: Any, context: Context) -> Any:
                """Return what the caller's next call is to answer."""
                return await server._challenge(context)

            async def Member(self, requests: AsyncIterator[Any], context: Context) -> None:
                """Carry one member's messages both ways."""
                await server._member(requests, context)

            async def Status(self, request: Any, context: Context) -> Any:
                """Return the last status."""
                return await server._show(context)

            async def Watch(self, request: Any, context: Context) -> None:
                """Send what happened, then what happens."""
                await server._watch(request.since, context)

            async def Stop(self, request: Any, context: Context) -> Any:
                """Ask for an early end."""
                return await server._ask("Stop", lambda answer: StopWanted(request.reason, answer), context)

            async def Scale(self, request: Any, context: Context) -> Any:
                """Ask for another number of workers or parameter servers."""
                workers = request.num_workers if request.HasField("num_workers") else None
                servers = request.num_ps_pods if request.HasField("num_ps_pods") else None
                return await server._ask(
                    "Scale", lambda answer: ScaleWanted(workers, servers, answer), context
                )

            async def Profile(self, request: Any, context: Context) -> None:
                """Send steps of workers as they come."""
                await server._profile(request.steps, context)

        return Servicer()

    async def _challenge(self, context: Context) -> Any:
        if other := proofs.other_version(_said(context)):
            await self._refuse(context, self._grpc.StatusCode.FAILED_PRECONDITION, other)
        return self._wire.ChallengeText(text=self._challenges.make())

    async def _admit(self, method: str, context: Context) -> proofs.Admitted:
        codes = {
            proofs.Refusal.UNKNOWN: self._grpc.StatusCode.UNAUTHENTICATED,
            proofs.Refusal.OTHER_VERSION: self._grpc.StatusCode.FAILED_PRECONDITION,
            proofs.Refusal.STALE: self._grpc.StatusCode.ABORTED,
            proofs.Refusal.NOT_ALLOWED: self._grpc.StatusCode.PERMISSION_DENIED,
        }
        try:
            admitted = self._challenges.admit(_said(context), method)
        except proofs.Refused as refused:
            await self._refuse(context, codes[refused.kind], str(refused))
        await context.send_initial_metadata(admitted.answer)
        return admitted

    async def _refuse(self, context: Context, code: grpc.StatusCode, reason: str) -> NoReturn:
        self._refused += 1
        _log.warning("connection from %s refused: %s", self._peer(context), reason)
        await context.abort(code, reason)
        raise AssertionError("abort raises")

    def _peer(self, context: Context) -> str:
        peer = urllib.parse.unquote(context.peer())
        if self._proxy is not None:
            # The proxy calls its ends of the socket as the addresses for which they are.
            _, _, peer = peer.rpartition("/")
        return peer or "a socket"

    async def _member(self, requests: AsyncIterator[Any], context: Context) -> None:
        admitted = await self._admit("Member", context)
        if self._closed:
            return
        connection, outbox = next(self._numbers), _Outbox()
        self._outboxes[connection] = outbox
        self._deliver(MemberOpened(connection, admitted.name, MemberId(admitted.member)))
        reading = asyncio.create_task(self._read(connection, admitted, requests, outbox))
        try:
            while (message := await outbox.get()) is not None:
                if isinstance(message, _Refusal):
                    await self._refuse(context, self._grpc.StatusCode.PERMISSION_DENIED, message.reason)
                await context.write(message)
        finally:
            reading.cancel()
            self._lose(connection)

    async def _read(
        self,
        connection: int,
        admitted: proofs.Admitted,
        requests: AsyncIterator[Any],
        outbox: asyncio.Queue[Any],
    ) -> None:
        """Deliver what a member says until it has said all, or says what is none of its business."""
        try:
            async for request in requests:
                for message in self._codec.decode_said(request):
                    if why := objection(admitted, message):
                        raise self._codec.Malformed(why)
                    self._deliver(MemberSaid(connection, message))
        except (self._codec.Malformed, self._undecodable) as error:
            _log.warning("connection %d is closed: %s", connection, error)
        except Exception:
            # gRPC has many words for a broken stream; what is known is that it ended.
            _log.debug("connection %d broke", connection)
        self._lose(connection)
        outbox.put_nowait(None)

    def _lose(self, connection: int) -> None:
        """Say that a connection is gone, once."""
        if self._outboxes.pop(connection, None) is not None:
            self._deliver(MemberClosed(connection))

    async def _show(self, context: Context) -> Any:
        await self._admit("Status", context)
        status = self._status
        if status is None:
            await context.abort(self._grpc.StatusCode.UNAVAILABLE, "the master is starting")
            raise AssertionError("abort raises")
        return self._codec.encode_status(status)

    async def _watch(self, since: float, context: Context) -> None:
        await self._admit("Watch", context)
        if self._closed:
            return
        watcher = _Watcher(self._peer(context))
        for time_of, message in self._events:
            if time_of > since:
                watcher.outbox.put_nowait(message)
        if self._status is not None:
            watcher.outbox.put_nowait(self._codec.encode_seen(self._status))
        self._watchers.add(watcher)
        try:
            while (message := await watcher.outbox.get()) is not None:
                await context.write(message)
        except asyncio.CancelledError:
            if not watcher.is_behind:
                raise
            unread = f"{_UNREAD} messages unread"
            _log.warning(
                "%s watches the job and does not read what it is sent: disconnected with %s",
                watcher.peer,
                unread,
            )
            # It waits behind what was sent, of which gRPC keeps little; what waited here is gone.
            await context.abort(self._grpc.StatusCode.CANCELLED, f"disconnected with {unread}")
        finally:
            self._watchers.discard(watcher)

    async def _profile(self, steps: int, context: Context) -> None:
        await self._admit("Profile", context)
        request = secrets.randbits(62)
        said = asyncio.Queue[Profiled | None]()
        self._deliver(ProfileWanted(request, steps, functools.partial(self._post, said)))
        try:
            while (one := await said.get()) is not None:
                await context.write(self._codec.encode_profiled(one))
        finally:
            self._deliver(ProfileLeft(request))

    async def _ask(self, method: str, make: Callable[[Answer], ServerEvent], context: Context) -> Any:
        await self._admit(method, context)
        answers = asyncio.Queue[tuple[bool, str]]()
        self._deliver(make(lambda accepted, text: self._post(answers, (accepted, text))))
        try:
            accepted, text = await asyncio.wait_for(answers.get(), _ANSWER_SECONDS)
        except TimeoutError:
            await context.abort(
                self._grpc.StatusCode.UNAVAILABLE, "the master could not record it in time; ask again"
            )
            raise AssertionError("abort raises") from None
        return self._wire.Answer(accepted=accepted, text=text)


def _said(context: Context) -> dict[str, str | bytes]:
    """Return what a caller says of itself."""
    return dict(context.invocation_metadata() or ())
