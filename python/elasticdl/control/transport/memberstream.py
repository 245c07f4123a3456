"""A member's end of the control plane's connection: `MemberStream`.

It carries messages and says when the connection comes and goes; what a message means is decided elsewhere. It makes a new channel for
every attempt, because gRPC's own reconnection waits longer and longer, and a restarted master should be found at once. Nothing starts at
import, and gRPC is imported when the first connection is made.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from msgspec import Struct

from elasticdl.control.protocol.messages import MasterMessage, MemberMessage, NewView, Progress
from elasticdl.control.protocol.view import MemberId, ViewId
from elasticdl.control.transport import credentials as proofs
from elasticdl.control.transport.channels import FLUSH_SECONDS, connect, refusal, target
from elasticdl.control.transport.tls import Identity

_log = logging.getLogger(__name__)

_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.01, 0.1
"""Seconds between two attempts to reach a master: a restart takes some tenths of a second and nothing else waits for it."""
_SHORT = 64 * 1024
"""Bytes up to which messages are sent as one."""
_PROGRESS_SECONDS = 0.05
"""Least time between two messages of progress within one view."""


class StreamOpened(Struct, frozen=True):
    """The connection to a master stands (again); the first message is to be `Register`."""


class StreamClosed(Struct, frozen=True):
    """The connection broke; the next attempt is under way."""


class StreamReceived(Struct, frozen=True):
    """The master's message; those of one connection come in order."""

    message: MasterMessage


class StreamRefused(Struct, frozen=True):
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
        self._thread.join(FLUSH_SECONDS)
        if self._thread.is_alive() and call is not None:
            call.cancel()
            self._thread.join(FLUSH_SECONDS)

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
            call: Any = stub.Member(_outgoing(outbox), metadata=opening.metadata())
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
        if call.add_callback(ended.set) and not ended.wait(FLUSH_SECONDS):
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

        view = None
        try:
            for message in call:
                received = codec.decode_master(message, view)
                if isinstance(received, NewView):
                    view = received.view
                self._tell(StreamReceived(received))
        except codec.Malformed as error:
            _log.warning("the connection to the master is closed: %s", error)
        except grpc.RpcError as error:
            _log.debug("the connection to the master broke: %s", error)
            return refusal(call, grpc)
        return None

    def _tell(self, event: StreamEvent) -> None:
        if not self._closing.is_set():
            self._on_event(event)


def _outgoing(outbox: queue.SimpleQueue[Any]) -> Iterator[Any]:
    """Yield what is put into an outbox, up to None; short messages that wait there together are one, which costs the master little more."""
    from elasticdl.control.protocol import codec

    waiting: list[Any] = []
    size = 0
    while True:
        if waiting and outbox.empty():
            yield codec.joined(waiting)
            waiting, size = [], 0
        message = outbox.get()  # nobody else takes from it, so it waits only while nothing is there
        length = 0 if message is None else message.ByteSize()
        if waiting and (message is None or size + length > _SHORT or len(waiting) == codec.MOST_JOINED):
            yield codec.joined(waiting)
            waiting, size = [], 0
        if message is None:
            return
        waiting.append(message)
        size += length
