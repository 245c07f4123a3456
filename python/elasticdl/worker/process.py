"""What every worker process has: a connection to the master, heartbeats, and the way of events to the loop that works.

It decides nothing. A process says who it is from its first second on; its loop is attached when there is one, and hears then what has
happened before.
"""

from __future__ import annotations

import logging
import os
import secrets
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from elasticdl._core import Endpoint, Heart
from elasticdl.cluster.cluster import RELEASED
from elasticdl.cluster.local.place import Place
from elasticdl.control.protocol.messages import (
    Data,
    Failed,
    FoundShards,
    MemberMessage,
    Note,
    UseCheckpoint,
    Verdict,
)
from elasticdl.control.protocol.profiling import RecordSteps
from elasticdl.control.protocol.psmessages import Model
from elasticdl.control.protocol.status import EventKind
from elasticdl.control.protocol.view import MemberId, ViewId
from elasticdl.control.transport.keys import Key
from elasticdl.control.transport.memberstream import (
    MemberStream,
    StreamClosed,
    StreamEvent,
    StreamOpened,
    StreamReceived,
    StreamRefused,
)
from elasticdl.control.transport.refusals import RefusalLog
from elasticdl.data.plan.ledger import Ledger
from elasticdl.data.plan.schedule import Schedule
from elasticdl.data.plan.shard import Shard
from elasticdl.errors import Cancelled
from elasticdl.spec.jobspec import JobSpec
from elasticdl.worker.beating import PatientHeart
from elasticdl.worker.events import (
    Connected,
    Disconnected,
    DrainRequested,
    Event,
    Exit,
    News,
    ProgramError,
    Received,
    Tick,
)
from elasticdl.worker.keptnotes import KeptNotes
from elasticdl.worker.steprecorder import StepRecorder
from elasticdl.worker.storagenotes import StorageNotes

_log = logging.getLogger(__name__)

_TICK_SECONDS = 1.0
"""How often unanswered messages are repeated; a lost connection repeats them at once."""
_COUNTED = (EventKind.BAD_RECORD, EventKind.IDLE_STEP)
"""Notes that the job's summary counts: none may be missing because there was no master."""
_LEAVE_SECONDS = 5.0
"""How long the main thread may take to end by itself once the member has ended; after that the process goes."""


def leave_soon(ended: Exit) -> None:
    """End this process if it does not end by itself: it is no longer part of its job."""
    timer = threading.Timer(_LEAVE_SECONDS, os._exit, (ended.code,))
    timer.daemon = True
    timer.start()


class MemberProcess:
    """One life of one worker, whatever it works on.

    Attributes:
        place: where the job keeps what its processes share.
        name: what people call this process, `worker-3-2`.
        spec: the job.
        id: as a member.
        data: what the master says of the data.
        model: what the job has on parameter servers, as the master says it.
        checkpoint: manifest of the checkpoint with whose weights the job evaluates or predicts, as the master says it.
        heart: sends heartbeats.
        storage: says when storage does not answer.
        kept: says what must not be missing, also after a time without a master.
        recorder: records steps that somebody has asked for.
    """

    def __init__(self, place: Place, name: str) -> None:
        """Connect."""
        self.place = place
        self.name = name
        self.spec: JobSpec = place.spec()
        self.id = MemberId(secrets.token_hex(16))
        self.data: Future[Data] = Future()
        self.model: Future[str] = Future()
        self.checkpoint: Future[str] = Future()
        self._lock = threading.Lock()
        self._worker: Callable[[News], None] | None = None
        self._connected = False
        self._draining = False
        self._verdict: Received | None = None
        self._found: FoundShards | None = None
        self._refusals: RefusalLog | None = None
        self._ended = threading.Event()
        # From the first second on: what loads the model may hang, or hold the interpreter's lock for long without that.
        self.heart = PatientHeart(
            Heart(
                place.heart_address, self.id, place.key(Key.DATA), self.spec.heartbeat_seconds, place.identity
            )
        )
        self.storage = StorageNotes(self.send)
        self.kept = KeptNotes(lambda note: self._stream.send(note))
        self.recorder = StepRecorder(self.send)
        self._stream = MemberStream(
            place.control_address, place.key(Key.WORKER), name, self.id, self._on_stream, place.identity
        )

    # ------------------------------------------------------------------ events, on other threads

    def _on_stream(self, event: StreamEvent) -> None:
        match event:
            case StreamReceived(Data() as data):
                if not self.data.done():
                    self.data.set_result(data)
            case StreamReceived(Model(catalog)) if not self.model.done():
                self.model.set_result(catalog)
                self._give(Received(Model(catalog)))
            case StreamReceived(UseCheckpoint(manifest)):
                if not self.checkpoint.done():
                    self.checkpoint.set_result(manifest)
            case StreamReceived(RecordSteps() as wanted):
                self.recorder.ask(wanted)
            case StreamReceived(message):
                awaited: tuple[Future[Any], ...] = (self.data, self.model, self.checkpoint)
                for one in awaited if isinstance(message, Verdict) else ():
                    if not one.done():
                        one.set_exception(Cancelled(getattr(message, "reason", "")))
                self._give(Received(message))
            case StreamOpened():
                with self._lock:
                    self._connected = True
                    found = self._found
                if found is not None and not self.data.done():
                    self._stream.send(found)
                self.storage.connected()
                self.kept.connected()
                self._give(Connected())
            case StreamClosed():
                with self._lock:
                    self._connected = False
                self._give(Disconnected())
            case StreamRefused(reason):
                _log.error("the master refuses this worker: %s", reason)
                os._exit(1)

    def _give(self, event: News) -> None:
        """Hand an event to the loop; before it exists only connections and the job's end matter, and they are made up for."""
        with self._lock:
            worker = self._worker
            if worker is None and isinstance(event, Received) and isinstance(event.message, Verdict):
                self._verdict = event
        if worker is not None:
            worker(event)

    def drain(self, end: Callable[[], object] = lambda: os._exit(RELEASED)) -> None:
        """Ask the member to leave at the next step boundary; a worker that has not joined yet just ends, by `end`."""
        with self._lock:
            self._draining = True
            worker = self._worker
        if worker is None:
            end()
            return
        worker(DrainRequested())

    def fail(self, reason: str) -> None:
        """End this worker as if the master had said that the job has failed: there is no master any more."""
        self._on_stream(StreamReceived(Failed(reason)))

    # ------------------------------------------------------------------ what is said

    def send(self, message: MemberMessage) -> bool:
        """Send a message, or keep it for the next connection if it is counted; return False if it was dropped."""
        if isinstance(message, Note) and message.kind in _COUNTED:
            self.kept.add(message)
            return True
        return self._stream.send(message)

    def note(self, text: str) -> bool:
        """Say something in the job's log; return whether there was a connection."""
        return self.send(Note(EventKind.NOTE, ViewId(0), 0, text))

    def warn(self, text: str) -> None:
        """Tell the job what all its workers would say: the first one as soon as it is connected, the others their logs."""
        if text and not self.name.startswith("worker-0-"):
            _log.warning("%s", text)
        elif text:
            self.kept.say(f"warning: {text}")

    def found(self, found: FoundShards) -> None:
        """Say what data there is, on each connection until the master has answered."""
        with self._lock:
            self._found = found
        self.send(found)

    # ------------------------------------------------------------------ the loop

    def endpoint(self) -> Endpoint:
        """Return this member's end of the data plane; connections that it refuses are logged."""
        key = self.place.key(Key.DATA)
        endpoint = Endpoint(self.place.data_address(self.id), self.id, key, self.place.identity)
        self._refusals = RefusalLog(endpoint, "data plane")
        return endpoint

    def attach(self, feed: Callable[[News], None]) -> None:
        """Connect the loop to what happens; what happened before is delivered now."""
        with self._lock:
            self._worker = feed
            connected, draining, verdict = self._connected, self._draining, self._verdict
        if draining:
            feed(DrainRequested())
        if verdict is not None:
            feed(verdict)
        elif connected:
            feed(Connected())
        threading.Thread(target=self._tick, args=(feed,), name="tick", daemon=True).start()

    def _tick(self, feed: Callable[[News], None]) -> None:
        while not self._ended.wait(_TICK_SECONDS):
            feed(Tick())
            if self._refusals is not None:
                self._refusals.look(time.monotonic())

    def leave(self, ended: Exit) -> int:
        """Close the connection; return the exit code."""
        _log.info("ends with code %d: %s", ended.code, ended.reason)
        self._ended.set()
        self._stream.close()
        return ended.code

    def report(self, error: ProgramError) -> Exit:
        """Tell the master why this worker can't start, and wait for its answer; without one it counts as a crash."""
        from elasticdl.worker.allreduce.machine import Member

        member = Member(self.id, self.name, "", _no_schedule())
        ended: Future[Exit] = Future()
        lock = threading.RLock()

        def feed(event: Event) -> None:
            nonlocal member
            with lock:
                member, instructions = member.handle(event)
                for instruction in instructions:
                    if isinstance(instruction, Exit):
                        ended.set_result(instruction)
                    message = getattr(instruction, "message", None)
                    if message is not None:
                        self.send(message)

        feed(error)
        self.attach(feed)
        return ended.result()


def _no_schedule() -> Schedule:
    """Return a schedule for a member that will never train: it only has an error to report."""
    return Schedule(Ledger([Shard("none", 0, 1)], 1, 1, 0, False), 1, 0)
