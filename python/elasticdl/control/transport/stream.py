"""The control plane's connections: the master's end (`ControlServer`) and a member's (`MemberStream`), over gRPC.

They carry messages and say when a connection comes and goes; what a message means is decided elsewhere. A member makes a new channel
for every attempt, because gRPC's own reconnection waits longer and longer, and a restarted master should be found at once. Nothing
starts at import, and gRPC is imported when the first connection is made.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import queue
import tempfile
import threading
import time
import urllib.parse
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from elasticdl.control.protocol.messages import MasterMessage, MemberMessage, Progress
from elasticdl.control.protocol.status import JobEvent, JobStatus
from elasticdl.control.protocol.view import MemberId, ViewId
from elasticdl.control.transport import credentials as proofs
from elasticdl.control.transport.rights import objection
from elasticdl.control.transport.tls import MASTER, Identity
from elasticdl.errors import BadSetting
from elasticdl.files.sockets import base_for_sockets

if TYPE_CHECKING:
    import grpc

    from elasticdl._core import TlsProxy

_log = logging.getLogger(__name__)

MESSAGE_LIMIT = 16 * 1024 * 1024
"""Bytes of one message; the longest is a list of shards, about 100 bytes each."""
_STREAMS = 2048
"""Connections at once, each with a thread while it lasts: 1,024 workers, and others in their place before their end is noticed."""
_EVENTS = 10_000
"""Events that are kept for those who begin to watch."""
_UNREAD = 2 * _EVENTS
"""Messages that a watcher may leave unread: all that are kept, which it gets at once, and as many again."""
_ANSWER_SECONDS = 30.0
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.01, 0.1
"""Seconds between two attempts to reach a master: a restart takes some tenths of a second and nothing else waits for it."""
_KEEPALIVE = (
    ("grpc.keepalive_time_ms", 5000),
    ("grpc.keepalive_timeout_ms", 5000),
    ("grpc.http2.ping_timeout_ms", 5000),  # a minute otherwise, whatever the one before says
    ("grpc.http2.max_pings_without_data", 0),
)
_FLUSH_SECONDS = 2.0
_BEHIND_PROXY = len("/edl-12345678/") + 64
"""Bytes that the proxy's sockets need behind their directory: each is called as the address that it is for."""
_PROGRESS_SECONDS = 0.05
"""Least time between two messages of progress within one view."""


def options() -> list[tuple[str, int | str]]:
    """Return the options of every channel and server of the control plane."""
    return [
        ("grpc.max_receive_message_length", MESSAGE_LIMIT),
        ("grpc.max_send_message_length", MESSAGE_LIMIT),
        ("grpc.so_reuseport", 0),  # otherwise a second server on a taken port goes unnoticed
        ("grpc.use_local_subchannel_pool", 1),  # otherwise new channels inherit the waiting times of old ones
        ("grpc.min_reconnect_backoff_ms", 2000),  # this is also the longest time that one attempt takes
        ("grpc.enable_retries", 0),
        ("grpc.enable_http_proxy", 0),  # the environment's are for the world outside
    ]


def target(address: str, identity: Identity | None = None) -> str:
    """Return gRPC's name of `unix:PATH` or `tcp:HOST:PORT`. Raises BadSetting for anything else, and for other machines without TLS."""
    kind, _, rest = address.partition(":")
    if kind == "unix" and rest:
        if len(rest.encode()) > 107:
            raise BadSetting(f"the socket's path is longer than the 107 bytes that Unix allows: {rest}")
        return address
    host = rest.rpartition(":")[0]
    if kind == "tcp" and host:
        if identity is None and host not in ("127.0.0.1", "[::1]", "localhost"):
            raise BadSetting(
                f"the control plane leaves this machine only with the job's certificates; received {address!r} without any"
            )
        return rest
    raise BadSetting(f"an address is unix:PATH or tcp:HOST:PORT; received {address!r}")


def connect(address: str, identity: Identity | None) -> grpc.Channel:
    """Return a new channel to the master; with an identity both ends have to show their certificates.

    A master whose machine is gone closes no connection: over TCP one that answers nothing for some seconds counts as broken.
    """
    import grpc

    at = target(address, identity)
    chosen = [*options(), *(_KEEPALIVE if address.startswith("tcp:") else ())]
    if identity is None:
        return grpc.insecure_channel(at, options=chosen)
    shown = grpc.ssl_channel_credentials(identity.authority, identity.key, identity.certificate)
    return grpc.secure_channel(at, shown, options=[*chosen, ("grpc.ssl_target_name_override", MASTER)])


def refusal(call: Any, grpc: Any) -> str | None:
    """Return why a master refuses this caller for good; None if the call ended otherwise, and may be made again."""
    codes = grpc.StatusCode
    if call.code() is codes.UNIMPLEMENTED:
        return (
            f"the job's master is of another version (control format 1), this process is of version {proofs.version()} "
            f"(control format {proofs.FORMAT}); all processes of a job must be of one version"
        )
    if call.code() in (codes.UNAUTHENTICATED, codes.FAILED_PRECONDITION, codes.PERMISSION_DENIED):
        return str(call.details())
    return None


# ------------------------------------------------------------------ the master's end


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
class _Refusal:
    """Put into a member's outbox: its process is refused, and hears nothing more."""

    reason: str


ServerEvent = MemberOpened | MemberSaid | MemberClosed | StopWanted | ScaleWanted


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
        self._closed = False
        self._refused = 0
        self._proxy: TlsProxy | None = None
        self._beside = contextlib.ExitStack()
        # Otherwise it takes the callers' questions whether it lives for an attack.
        patient = ("grpc.http2.max_ping_strikes", 0)
        self._server = grpc.server(ThreadPoolExecutor(_STREAMS, "control"), options=[*options(), patient])
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
        outbox.put(self._codec.encode_master(message))
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
        self._server.stop(_FLUSH_SECONDS).wait()
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


# ------------------------------------------------------------------ a member's end


@dataclass(frozen=True, slots=True)
class StreamOpened:
    """The connection to a master stands (again); the first message is to be `Register`."""


@dataclass(frozen=True, slots=True)
class StreamClosed:
    """The connection broke; the next attempt is under way."""


@dataclass(frozen=True, slots=True)
class StreamReceived:
    """The master's message; those of one connection come in order."""

    message: MasterMessage


@dataclass(frozen=True, slots=True)
class StreamRefused:
    """The master refuses this process for good: the token, another version, or what it said. No further attempt is made."""

    reason: str


StreamEvent = StreamOpened | StreamClosed | StreamReceived | StreamRefused


class MemberStream:
    """A member's connection to whatever master there is; a missing master is no error, it is tried for ever.

    Events come on one thread of the stream, in order, none after `close`.
    """

    def __init__(
        self,
        address: str,
        key: bytes,
        name: str,
        member: MemberId,
        on_event: Callable[[StreamEvent], None],
        identity: Identity | None = None,
    ) -> None:
        """Begin to connect.

        Args:
            address: where the master listens.
            key: of its role.
            name: the process's, `worker-3-2`; its role follows from it.
            member: its member id.
            on_event: takes what happens, on the stream's thread.
            identity: the member's certificate; then the master has to show one too.
        """
        target(address, identity)  # refuses a bad address here, not on the thread
        self._identity = identity
        self._address = address
        role = proofs.role_of(name)
        assert role is not None, f"{name} is the name of no member's process"
        self._caller = proofs.Caller(key, role, name, member)
        self._on_event = on_event
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._outbox: queue.SimpleQueue[Any] | None = None
        self._call: Any = None
        self._shown_view, self._shown_at = ViewId(0), 0.0
        self._kept: Progress | None = None
        self._thread = threading.Thread(target=self._run, name="control", daemon=True)
        self._thread.start()

    def send(self, message: MemberMessage) -> bool:
        """Send to the master; False if it was dropped.

        Dropped is what comes while there is no connection. Progress that follows other progress of the same view closely
        is kept until something else is said, or newer progress: thousands of steps a second would cost more than they
        tell, but the last one counts.
        """
        from elasticdl.control.protocol import codec

        with self._lock:
            if self._outbox is None:
                return False
            if isinstance(message, Progress) and not self._is_due(message):
                self._kept = message
                return False
            if self._kept is not None and not isinstance(message, Progress):
                self._outbox.put(codec.encode_member(self._kept))
            self._kept = None
            self._outbox.put(codec.encode_member(message))
            return True

    def close(self) -> None:
        """Deliver what was sent, within two seconds, and end; callable from any thread, also from `on_event`."""
        with self._lock:
            self._closing.set()
            outbox, self._outbox = self._outbox, None
            call = self._call
        if outbox is not None:
            outbox.put(None)
        if threading.current_thread() is self._thread:
            return
        self._thread.join(_FLUSH_SECONDS)
        if self._thread.is_alive() and call is not None:
            call.cancel()
            self._thread.join(_FLUSH_SECONDS)

    def _is_due(self, progress: Progress) -> bool:
        now = time.monotonic()
        if progress.current == self._shown_view and now < self._shown_at + _PROGRESS_SECONDS:
            return False
        self._shown_view, self._shown_at = progress.current, now
        return True

    def _run(self) -> None:
        pause = _SHORTEST_PAUSE
        while not self._closing.is_set():
            opened = self._converse()
            if opened is None:
                return
            pause = _SHORTEST_PAUSE if opened else min(2 * pause, _LONGEST_PAUSE)
            self._closing.wait(pause)

    def _converse(self) -> bool | None:
        """Hold one connection as long as it lasts; return whether it was opened, None if the master refused for good."""
        import grpc

        from elasticdl.control.generated import control_pb2 as wire
        from elasticdl.control.generated import control_pb2_grpc as service

        outbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        with contextlib.closing(connect(self._address, self._identity)) as channel:
            stub = service.ControlStub(channel)
            asked: Any = stub.Challenge.future(wire.ChallengeRequest(), metadata=self._caller.announcement())
            if not self._hold(asked):
                return False
            try:
                opening = self._caller.answer(asked.result().text, "Member")
            except (grpc.RpcError, grpc.FutureCancelledError):
                return self._not_confirmed(asked, grpc)
            call: Any = stub.Member(iter(outbox.get, None), metadata=opening.metadata())
            if not self._hold(call):
                return False
            try:
                confirmed = opening.confirmed_by(dict(call.initial_metadata() or ()))
                if not confirmed:
                    return self._not_confirmed(call, grpc)
                with self._lock:
                    if not self._closing.is_set():
                        # what an earlier connection kept is no news any more, and may not come before `Register`
                        self._outbox, self._kept = outbox, None
                self._tell(StreamOpened())
                refused = self._receive(call, grpc)
            finally:
                with self._lock:
                    self._outbox = None
                    self._call = None
                outbox.put(None)  # ends gRPC's thread that waits for the next message
                call.cancel()
            self._tell(StreamClosed() if refused is None else StreamRefused(refused))
            return True if refused is None else None

    def _hold(self, call: Any) -> bool:
        """Let `close` cancel this call; False if it came before, then the call is cancelled."""
        with self._lock:
            if self._closing.is_set():
                call.cancel()
                return False
            self._call = call
            return True

    def _not_confirmed(self, call: Any, grpc: Any) -> bool | None:
        """Tell a master that is away from one that refuses, and from a process that is no master of this job."""
        ended = threading.Event()
        if call.add_callback(ended.set) and not ended.wait(_FLUSH_SECONDS):
            reason = f"what listens at {self._address} does not know the job's token"
        elif (refused := refusal(call, grpc)) is not None:
            reason = refused
        else:
            return False
        self._tell(StreamRefused(reason))
        return None

    def _receive(self, call: Any, grpc: Any) -> str | None:
        """Give on what the master says until the connection ends; return why it refuses this process, if it does."""
        from elasticdl.control.protocol import codec

        try:
            for message in call:
                self._tell(StreamReceived(codec.decode_master(message)))
        except codec.Malformed as error:
            _log.warning("the connection to the master is closed: %s", error)
        except grpc.RpcError as error:
            _log.debug("the connection to the master broke: %s", error)
            return refusal(call, grpc)
        return None

    def _tell(self, event: StreamEvent) -> None:
        if not self._closing.is_set():
            self._on_event(event)
