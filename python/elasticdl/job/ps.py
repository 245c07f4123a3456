"""The entry point of a parameter server: the core holds the slots and serves them; here the master's decisions are carried out.

It decides nothing. All that it must say to the master it says again on a new connection, so a master may come and go.
"""

from __future__ import annotations

import logging
import os
import queue
import secrets
import signal
import sys
import threading
import time
import traceback
from dataclasses import dataclass
from pathlib import Path

from elasticdl._core import Heart, Listener, ParameterServer, exit_without_memory
from elasticdl.catalog.catalog import read_catalog
from elasticdl.checkpoint.layout import make_draft
from elasticdl.checkpoint.manifest import read_manifest
from elasticdl.cluster.cluster import EVICTED, FINISHED, NO_MEMORY, RELEASED
from elasticdl.cluster.kubernetes import podplace
from elasticdl.cluster.local import exiting
from elasticdl.cluster.local.parentdeath import watch_parent
from elasticdl.cluster.local.place import PROCESS_ENVIRONMENT, Place, own_place
from elasticdl.control.protocol.messages import (
    Evicted,
    Failed,
    Finished,
    MasterMessage,
    MemberMessage,
    ProgramFailed,
    Verdict,
)
from elasticdl.control.protocol.psmessages import (
    Accounts,
    AccountsWanted,
    CopiesVoid,
    CopyOrdered,
    CopyReady,
    CutOrdered,
    DrainRequest,
    Enroll,
    Enrolled,
    Leave,
    Limits,
    Model,
    Placed,
    SlotAccount,
    SlotsCut,
    SlotSection,
    Unreached,
    Workers,
)
from elasticdl.control.protocol.view import MemberId
from elasticdl.control.transport.coredumps import forbid_core_dumps
from elasticdl.control.transport.keys import Key
from elasticdl.control.transport.memberstream import (
    MemberStream,
    StreamEvent,
    StreamOpened,
    StreamReceived,
    StreamRefused,
)
from elasticdl.control.transport.refusals import RefusalLog
from elasticdl.errors import BadData
from elasticdl.job.heap import keep_freed_memory

_log = logging.getLogger(__name__)

_TICK_SECONDS = 0.2
"""How often copies that could not be begun are tried again, and servers that can't be reached are reported."""


@dataclass(frozen=True, slots=True)
class _Term:
    """SIGTERM came."""


@dataclass(frozen=True, slots=True)
class _Broken:
    """The core can't go on."""

    why: str


_Incoming = StreamEvent | CopyReady | SlotsCut | _Term | _Broken


class ServerProcess:
    """One life of one parameter server."""

    def __init__(self, place: Place, name: str) -> None:
        """Connect to the master; nothing is served before it has given this server a number."""
        self._place = place
        self._name = name
        self._id = MemberId(secrets.token_hex(16))
        self._inbox: queue.SimpleQueue[_Incoming] = queue.SimpleQueue()
        self._epoch = 0
        self._number: int | None = None
        self._catalog: str | None = None
        self._server: ParameterServer | None = None
        self._refusals: RefusalLog | None = None
        self._terms: dict[int, int] = {}
        self._restored: dict[int, int] = {}
        self._orders: dict[int, CopyOrdered] = {}
        self._ready: dict[int, CopyReady] = {}
        self._leaving = False
        spec = place.spec()
        # The master tells others the address together with the number, without which nothing can be served: so it is taken before.
        self._listener = Listener(place.data_address(self._id))
        self._heart = Heart(
            place.heart_address, self._id, place.key(Key.DATA), spec.heartbeat_seconds, place.identity
        )
        self._stream = MemberStream(
            place.control_address, place.key(Key.PS), name, self._id, self._inbox.put, place.identity
        )

    def drain(self) -> None:
        """Ask to be emptied, then leave; callable from any thread."""
        self._inbox.put(_Term())

    def run(self) -> int:
        """Serve until the master says that this process ends; return its exit code."""
        look_at = 0.0
        while True:
            if time.monotonic() >= look_at:
                self._look_around()
                look_at = time.monotonic() + _TICK_SECONDS
            try:
                event = self._inbox.get(timeout=_TICK_SECONDS)
            except queue.Empty:
                continue
            match event:
                case StreamOpened():
                    self._enroll()
                case StreamReceived(message):
                    code = self._obey(message)
                    if code is not None:
                        self._stream.close()
                        return code
                case StreamRefused(reason):
                    _log.error("the master refuses this server: %s", reason)
                    return 1
                case CopyReady():
                    self._ready[event.slot] = event
                    self._stream.send(event)
                case SlotsCut():
                    self._stream.send(event)
                case _Term():
                    if self._server is None:
                        return RELEASED
                    self._leave()
                case _Broken(why):
                    _log.error("this server can't go on: %s", why)
                    return 1

    def _enroll(self) -> None:
        address = self._listener.address
        self._send(Enroll(self._id, self._name, address, self._epoch, self._number, (), 0, self._leaving))
        for ready in self._ready.values():
            self._send(ready)

    def _leave(self) -> None:
        self._leaving = True
        self._send(Leave((), 0))

    def _send(self, message: MemberMessage) -> None:
        self._stream.send(message)

    # ------------------------------------------------------------------ what the master says

    def _obey(self, message: MasterMessage) -> int | None:
        """Carry out what the master says; return an exit code if it ends this process."""
        match message:
            case Enrolled(epoch, number):
                self._epoch, self._number = max(self._epoch, epoch), number
                self._open()
            case Model(catalog):
                self._catalog = catalog
                self._open()
            case Placed():
                self._learn(message)
            case Limits():
                limits = message.roll_back, message.low, message.above, message.steps, message.end
                self._serving().limit(*limits)
            case Workers(names):
                self._serving().know(set(names))
            case CopyOrdered():
                self._orders[message.slot] = message
                self._begin_copies()
            case CopiesVoid(to):
                self._serving().give_up_copies(to)
                self._orders = {slot: order for slot, order in self._orders.items() if order.to != to}
            case CutOrdered():
                arguments = (self._serving(), message)
                threading.Thread(target=self._cut, args=arguments, name="snapshot", daemon=True).start()
            case DrainRequest():
                self._leave()
            case AccountsWanted():
                slots = tuple(SlotAccount(*one) for one in self._serving().accounts())
                self._send(Accounts(slots, *self._serving().complete()))
            case Failed() | Evicted():
                _log.info("ends: %s", message.reason)
                return 1 if isinstance(message, Failed) else EVICTED
            case Verdict():
                _log.info("ends: %s", message)
                return FINISHED if isinstance(message, Finished) else RELEASED
        return None

    def _open(self) -> None:
        """Serve as soon as number and model are known."""
        if self._server is not None or self._number is None or self._catalog is None:
            return
        spec = self._place.spec()
        self._server = ParameterServer(
            self._listener,
            self._number,
            self._place.key(Key.SERVERS),
            read_catalog(self._catalog)
            .core()
            .with_policy(
                spec.lr_staleness_modulation,
                spec.max_staleness or None,
                spec.embedding_expiry or None,
                spec.accumulates,
            ),
            self._place.identity,
        )
        self._refusals = RefusalLog(self._server, "data plane")
        threading.Thread(target=self._tell_ready, args=(self._server,), name="copies", daemon=True).start()
        _log.info("serves as number %d at %s", self._number, self._server.address)

    def _serving(self) -> ParameterServer:
        assert self._server is not None, "the master says this to servers that have a number"
        return self._server

    def _learn(self, placed: Placed) -> None:
        server = self._serving()
        addresses = dict(zip(placed.servers, placed.addresses, strict=True))
        server.learn(addresses, placed.entries, placed.roll_back, placed.tasks)
        self._terms.update((entry.slot, entry.term) for entry in placed.entries)
        self._orders = {slot: one for slot, one in self._orders.items() if one.term >= self._terms[slot]}
        self._ready = {slot: one for slot, one in self._ready.items() if one.term >= self._terms[slot]}
        restored = {
            one.slot: one.restored for one in placed.entries if one.restored and one.primary == self._number
        }
        # An entry that changes later says so, too: by then that snapshot may be removed, because a newer one is whole.
        mine = {slot for slot, number in restored.items() if self._restored.get(slot) != number}
        self._restored |= restored
        if mine and placed.snapshot:
            self._restore(server, placed, mine)
        elif mine:
            server.begin_anew(sorted(mine))

    def _restore(self, server: ParameterServer, placed: Placed, mine: set[int]) -> None:
        """Read slots from a snapshot; one that can't be read ends the job, and not this server: what else it has stays."""
        try:
            for file, section in read_manifest(Path(placed.snapshot)).sections:
                if section.slot in mine:
                    place = (section.offset, section.length, section.crc)
                    server.restore(str(file), section.slot, place, placed.renumbered)
        except (BadData, ValueError, OSError) as error:
            _log.error("slots can't be restored: %s", error)
            text = f"the checkpoint {Path(placed.snapshot).parent} can't be restored: {error}"
            self._send(ProgramFailed("bad-input", type(error).__name__, "", text, 0))

    def _begin_copies(self) -> None:
        server = self._serving()
        begun = [
            slot
            for slot, order in self._orders.items()
            if server.copy(slot, order.to, order.term, order.hands_over)
        ]
        for slot in begun:
            del self._orders[slot]

    def _look_around(self) -> None:
        if self._server is None or self._refusals is None:
            return
        self._refusals.look(time.monotonic())
        if self._orders:
            self._begin_copies()
        lost = self._server.take_lost()
        if lost:
            self._send(Unreached(tuple(lost)))

    # ------------------------------------------------------------------ other threads

    def _cut(self, server: ParameterServer, order: CutOrdered) -> None:
        """Write slots to a file of their own."""
        path = Path(order.directory) / f"{self._name}-{secrets.token_hex(4)}.slots"
        wanted = dict(zip(order.slots, order.primary_epochs, strict=True))
        try:
            make_draft(path.parent)
            position = (order.low, list(order.above))
            found = server.cut(str(path), list(wanted.items()), position, order.step)
        except OSError as error:
            self._inbox.put(SlotsCut(order.snapshot, str(path), (), error.strerror or str(error)))
            return
        sections = tuple(
            SlotSection(slot, wanted[slot], *place, *facts, *proof) for slot, place, facts, proof in found
        )
        self._inbox.put(SlotsCut(order.snapshot, str(path), sections, ""))

    def _tell_ready(self, server: ParameterServer) -> None:
        try:
            while True:
                for slot, term, to, hands_over in server.take_ready(3600.0):
                    self._inbox.put(CopyReady(slot, term, to, hands_over))
        except ValueError as error:
            self._inbox.put(_Broken(str(error)))


def main() -> int:
    """Run the parameter server that the environment names."""
    forbid_core_dumps()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # before any thread: all inherit it
    watch_parent()
    exiting.announce()
    exit_without_memory(NO_MEMORY)
    keep_freed_memory()
    place: Place = podplace.own_pod() if podplace.POD_ENVIRONMENT in os.environ else own_place()
    spec = place.spec()
    logging.basicConfig(level=spec.log_level.value.upper(), format="%(asctime)s %(levelname)s %(message)s")
    process = ServerProcess(place, os.environ[PROCESS_ENVIRONMENT])

    def await_term() -> None:
        signal.sigwait({signal.SIGTERM})
        process.drain()

    threading.Thread(target=await_term, name="sigterm", daemon=True).start()
    try:
        code = process.run()
    except MemoryError:
        code = NO_MEMORY
    except Exception:  # whatever it is, its log has to say it before this process goes
        traceback.print_exc()
        code = 1
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # connections of workers must not hold up an end that the master awaits


if __name__ == "__main__":
    main()
