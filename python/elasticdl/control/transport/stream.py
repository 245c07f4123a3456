"""The master's end of the control plane's connections: `ControlServer`, over gRPC.

It carries messages and says when a connection comes and goes; what a message means is decided elsewhere. Nothing starts at import, and
gRPC is imported when the server is made.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import queue
import secrets
import tempfile
import threading
import urllib.parse
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from elasticdl.control.protocol.messages import MasterMessage, MemberMessage
from elasticdl.control.protocol.profiling import Profiled
from elasticdl.control.protocol.status import JobEvent, JobStatus
from elasticdl.control.protocol.view import MemberId
from elasticdl.control.transport import credentials as proofs
from elasticdl.control.transport.channels import FLUSH_SECONDS, options, target
from elasticdl.control.transport.rights import objection
from elasticdl.control.transport.tls import Identity
from elasticdl.errors import BadSetting
from elasticdl.files.sockets import base_for_sockets

if TYPE_CHECKING:
    import grpc

    from elasticdl._core import TlsProxy

_log = logging.getLogger(__name__)

_STREAMS = 2048
"""Connections at once, each with a thread while it lasts: 1,024 workers, and others in their place before their end is noticed."""
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


class _Watcher:
    """What one who watches has not read yet; bounded, because it may never read. Messages are shared by all watchers."""

    def __init__(self, peer: str, disconnect: Callable[[], object]) -> None:
        self.peer = peer
        self.disconnect = disconnect
        self.outbox: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def put(self, message: Any) -> bool:
        """Tell it something; False if it has left too much unread."""
        if self.outbox.qsize() >= _UNREAD:
            return False
        self.outbox.put(message)
        return True


class ControlServer:
    """Where members and clients reach the master.

    A Unix socket left by a killed master is taken over. Events are delivered on gRPC's threads, so `deliver` must not block. With an
    identity gRPC itself is on a Unix socket in a folder of its own, and the core's proxy, which refuses strangers, is at the address.
    """

    def __init__(
        self,
        address: str,
        token: bytes,
        deliver: Callable[[ServerEvent], None],
        identity: Identity | None = None,
    ) -> None:
        """Bind and listen. Raises BadSetting if the address is in use or can't be had.

        Args:
            address: `unix:PATH` or `tcp:HOST:PORT`.
            token: the job's.
            deliver: takes events, on gRPC's threads.
            identity: the master's certificate; then only callers with one of the job's are heard.
        """
        import grpc

        from elasticdl.control.generated import control_pb2 as wire
        from elasticdl.control.generated import control_pb2_grpc as service
        from elasticdl.control.protocol import codec

        self._grpc = grpc
        self._codec = codec
        self._wire = wire
        self._challenges = proofs.Challenges(token)
        self._deliver = deliver
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._outboxes: dict[int, queue.SimpleQueue[Any]] = {}
        self._watchers: set[_Watcher] = set()
        self._status: JobStatus | None = None
        self._events: deque[tuple[float, Any]] = deque(
            maxlen=_EVENTS
        )  # with their times; encoded once for all
        self._last: tuple[MasterMessage | None, Any] = None, None
        """What was sent last, and its wire form: a view is sent to a thousand members, and has them all."""
        self._closed = False
        self._refused = 0
        self._proxy: TlsProxy | None = None
        self._beside = contextlib.ExitStack()
        # Otherwise it takes the callers' questions whether it lives for an attack.
        patient = ("grpc.http2.max_ping_strikes", 0)
        self._threads = ThreadPoolExecutor(_STREAMS, "control")
        self._server = grpc.server(self._threads, options=[*options(), patient])
        service.add_ControlServicer_to_server(self._servicer(service), self._server)
        if identity is None:
            self.address = self._listen(address)
            """Where it listens in fact."""
        else:
            self._proxy = self._open_proxy(address, identity)
            self.address = self._proxy.address
        self._server.start()

    def _listen(self, address: str) -> str:
        try:
            port = self._server.add_insecure_port(target(address))
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
        last, encoded = self._last
        if message != last:
            encoded = self._codec.encode_master(message)
            self._last = message, encoded
        outbox.put(encoded)
        return True

    def refuse(self, connection: int, reason: str) -> None:
        """End a member's connection for what it has said on it; its process makes no other one. Counted and logged as all refusals are."""
        outbox = self._outboxes.get(connection)
        if outbox is not None:
            outbox.put(_Refusal(reason))

    def publish(self, seen: JobStatus | JobEvent) -> None:
        """Show a status or an event to all who watch, and to those who will ask."""
        message = self._codec.encode_seen(seen)
        with self._lock:
            if isinstance(seen, JobStatus):
                self._status = seen
            else:
                self._events.append((seen.time, message))
            behind = [watcher for watcher in self._watchers if not watcher.put(message)]
            self._watchers.difference_update(behind)
        for watcher in behind:
            _log.warning(
                "%s watches the job and does not read what it is sent: disconnected with %d messages unread",
                watcher.peer,
                _UNREAD,
            )
            watcher.disconnect()

    def close(self) -> None:
        """End all connections once what was sent has been delivered, then stop listening and remove the socket.

        Not for a master that was replaced: the socket may be its successor's by now.
        """
        with self._lock:
            self._closed = True
            waiting = [*self._outboxes.values(), *(watcher.outbox for watcher in self._watchers)]
        for outbox in waiting:
            outbox.put(None)
        self._server.stop(FLUSH_SECONDS).wait()
        self._threads.shutdown(wait=False)
        self._beside.close()  # the proxy has carried then what gRPC has sent

    # ------------------------------------------------------------------ on gRPC's threads

    def _servicer(self, service: Any) -> Any:
        server = self

        class Servicer(service.ControlServicer):  # type: ignore[misc]
            """gRPC's face of the server."""

            def Challenge(self, request: Any, context: grpc.ServicerContext) -> Any:
                """Return what the caller's next call is to answer."""
                return server._challenge(context)

            def Member(self, requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
                """Carry one member's messages both ways."""
                return server._member(requests, context)

            def Status(self, request: Any, context: grpc.ServicerContext) -> Any:
                """Return the last status."""
                return server._show(context)

            def Watch(self, request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
                """Send what happened, then what happens."""
                return server._watch(request.since, context)

            def Stop(self, request: Any, context: grpc.ServicerContext) -> Any:
                """Ask for an early end."""
                return server._ask("Stop", lambda answer: StopWanted(request.reason, answer), context)

            def Scale(self, request: Any, context: grpc.ServicerContext) -> Any:
                """Ask for another number of workers or parameter servers."""
                workers = request.num_workers if request.HasField("num_workers") else None
                servers = request.num_ps_pods if request.HasField("num_ps_pods") else None
                return server._ask("Scale", lambda answer: ScaleWanted(workers, servers, answer), context)

            def Profile(self, request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
                """Send steps of workers as they come."""
                return server._profile(request.steps, context)

        return Servicer()

    def _challenge(self, context: grpc.ServicerContext) -> Any:
        if other := proofs.other_version(dict(context.invocation_metadata())):
            self._refuse(context, self._grpc.StatusCode.FAILED_PRECONDITION, other)
        return self._wire.ChallengeText(text=self._challenges.make())

    def _admit(self, method: str, context: grpc.ServicerContext) -> proofs.Admitted:
        codes = {
            proofs.Refusal.UNKNOWN: self._grpc.StatusCode.UNAUTHENTICATED,
            proofs.Refusal.OTHER_VERSION: self._grpc.StatusCode.FAILED_PRECONDITION,
            proofs.Refusal.STALE: self._grpc.StatusCode.ABORTED,
            proofs.Refusal.NOT_ALLOWED: self._grpc.StatusCode.PERMISSION_DENIED,
        }
        try:
            admitted = self._challenges.admit(dict(context.invocation_metadata()), method)
        except proofs.Refused as refused:
            self._refuse(context, codes[refused.kind], str(refused))
        context.send_initial_metadata(admitted.answer)
        return admitted

    def _refuse(self, context: grpc.ServicerContext, code: grpc.StatusCode, reason: str) -> NoReturn:
        with self._lock:
            self._refused += 1
        _log.warning("connection from %s refused: %s", self._peer(context), reason)
        context.abort(code, reason)
        raise AssertionError("abort raises")

    def _peer(self, context: grpc.ServicerContext) -> str:
        peer = urllib.parse.unquote(context.peer())
        if self._proxy is not None:
            # The proxy calls its ends of the socket as the addresses for which they are.
            _, _, peer = peer.rpartition("/")
        return peer or "a socket"

    def _member(self, requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
        admitted = self._admit("Member", context)
        outbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        with self._lock:
            if self._closed:
                return
            connection = next(self._numbers)
            self._outboxes[connection] = outbox
        self._deliver(MemberOpened(connection, admitted.name, MemberId(admitted.member)))
        reader = threading.Thread(
            target=self._read,
            args=(connection, admitted, requests),
            name=f"control-{connection}",
            daemon=True,
        )
        reader.start()
        while (message := outbox.get()) is not None:
            if isinstance(message, _Refusal):
                self._refuse(context, self._grpc.StatusCode.PERMISSION_DENIED, message.reason)
            yield message

    def _read(self, connection: int, admitted: proofs.Admitted, requests: Iterator[Any]) -> None:
        try:
            for request in requests:
                message = self._codec.decode_member(request)
                if why := objection(admitted, message):
                    raise self._codec.Malformed(why)
                self._deliver(MemberSaid(connection, message))
        except self._codec.Malformed as error:
            _log.warning("connection %d is closed: %s", connection, error)
        except Exception:
            # gRPC ends the iterator of a broken stream with a bare Exception; what is known is that it ended.
            _log.debug("connection %d broke", connection)
        with self._lock:
            outbox = self._outboxes.pop(connection)
        outbox.put(None)
        self._deliver(MemberClosed(connection))

    def _show(self, context: grpc.ServicerContext) -> Any:
        self._admit("Status", context)
        status = self._status
        if status is None:
            context.abort(self._grpc.StatusCode.UNAVAILABLE, "the master is starting")
            raise AssertionError("abort raises")
        return self._codec.encode_status(status)

    def _watch(self, since: float, context: grpc.ServicerContext) -> Iterator[Any]:
        self._admit("Watch", context)
        watcher = _Watcher(self._peer(context), context.cancel)
        context.add_callback(lambda: watcher.outbox.put(None))
        with self._lock:
            if self._closed:
                return
            for time_of, message in self._events:
                if time_of > since:
                    watcher.outbox.put(message)
            if self._status is not None:
                watcher.outbox.put(self._codec.encode_seen(self._status))
            self._watchers.add(watcher)
        try:
            while (message := watcher.outbox.get()) is not None:
                yield message
        finally:
            with self._lock:
                self._watchers.discard(watcher)

    def _profile(self, steps: int, context: grpc.ServicerContext) -> Iterator[Any]:
        self._admit("Profile", context)
        request = secrets.randbits(62)
        said: queue.SimpleQueue[Profiled | None] = queue.SimpleQueue()
        context.add_callback(lambda: said.put(None))
        self._deliver(ProfileWanted(request, steps, said.put))
        try:
            while (one := said.get()) is not None:
                yield self._codec.encode_profiled(one)
        finally:
            self._deliver(ProfileLeft(request))

    def _ask(self, method: str, make: Callable[[Answer], ServerEvent], context: grpc.ServicerContext) -> Any:
        self._admit(method, context)
        answers: queue.SimpleQueue[tuple[bool, str]] = queue.SimpleQueue()
        self._deliver(make(lambda accepted, text: answers.put((accepted, text))))
        try:
            accepted, text = answers.get(timeout=_ANSWER_SECONDS)
        except queue.Empty:
            context.abort(
                self._grpc.StatusCode.UNAVAILABLE, "the master could not record it in time; ask again"
            )
            raise AssertionError("abort raises") from None
        return self._wire.Answer(accepted=accepted, text=text)
