"""Processes of a local job: the launcher that is their parent, with its end of the connection to the master (`localcluster.py`).

The launcher lives in the process that submitted the job (or in one of its own with `--detach`), so that children outlive any
master and their wait statuses, the proof of death, are never lost: it repeats them all to every master that connects. It
starts, signals, and starts the master again; what workers there should be is not its business. That a process was killed is
proven a little earlier by what its threads do (`exiting.py`).
"""

from __future__ import annotations

import contextlib
import errno
import os
import queue
import secrets
import selectors
import signal
import socket
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from elasticdl.cluster.cluster import Blame, ProcessEnded, ProcessName, ProcessStarted, Role
from elasticdl.cluster.local import wire
from elasticdl.cluster.local.children import Child, Program, Starter
from elasticdl.cluster.local.place import JobPlace
from elasticdl.cluster.local.supervision import JobEnded, Record, Restart, after_master, launcher_failed
from elasticdl.control.transport.credentials import is_proof, proof
from elasticdl.control.transport.keys import Key, derive

CANNOT_START = 126
"""Code reported for a process that could not be started at all."""

_LEAVE_SECONDS = 3.0
_FAILED_LEAVE_SECONDS = 0.5
"""After a failure some workers may not even have been heard of; nobody waits for what they are preparing."""
_TERMINATE_SECONDS = 2.0
_SHORT = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
"""Errors of `accept` that say that this process or its machine lacks something; the connection waits in the kernel's queue."""
_ACCEPT_PAUSE = 0.1
"""Seconds until the next attempt to accept a connection after such an error."""
_HELLO_SECONDS = 5.0
"""How long a connection may take to prove itself once descriptors are short."""
_SPARES_LOST = 3
"""So many spare processes that end by themselves are the last: the next would too."""


@dataclass(slots=True)
class _Connection:
    """One who speaks to the launcher.

    Attributes:
        socket: non-blocking.
        since: when it was accepted, by the monotonic clock.
        nonces: the client's and the launcher's, once it has said hello.
        authenticated: it has proven that it has the launcher's key.
        incoming: bytes without a line's end yet.
        outgoing: bytes that the socket has not taken yet.
    """

    socket: socket.socket
    since: float
    nonces: tuple[str, str] | None = None
    authenticated: bool = False
    incoming: bytearray = field(default_factory=bytearray)
    outgoing: bytearray = field(default_factory=bytearray)


class Launcher:
    """Parent of a local job's master and workers; one thread of its own, and one per child that waits for its end."""

    def __init__(
        self,
        place: JobPlace,
        argv: Mapping[Role, Sequence[str]],
        notice: Callable[[str], None] = lambda text: None,
        first: Sequence[ProcessName] = (),
        program: Program | None = None,
        spare: Sequence[str] = (),
    ) -> None:
        """Prepare; nothing is started yet.

        Args:
            place: the job's place; its lock is the caller's.
            argv: command of each role.
            first: processes to start beside the master because it is going to ask for them anyway; its own request for
                them is then one that was fulfilled before.
            notice: called from the launcher's thread with a sentence when the master is started again.
            program: what workers run, if that is the user's own.
            spare: command of a spare process, empty if the job has none.
        """
        self._place = place
        self._starter = Starter(place, argv, program, spare)
        self._notice = notice
        self._first = first
        self._key = derive(place.token(), Key.LAUNCHER)
        self._lock = threading.Lock()  # children, the spare, and `_killed`
        self._children: dict[ProcessName, Child] = {}
        self._waiting: list[ProcessName] = []
        """What is launched as soon as the life before has been reaped."""
        self._spare: Child | None = None
        self._spares_lost = 0
        self._killed = False
        self._inbox: queue.SimpleQueue[ProcessEnded | Child | None] = queue.SimpleQueue()
        """Ends of processes, spares that have ended, and None when a process has been reaped whose end is known."""
        self._selector = selectors.DefaultSelector()
        self._record = Record()
        self._master = ProcessName(Role.MASTER, 0, 1)
        self._restart_at: float | None = None
        self._accept_at: float | None = None
        """When connections are accepted again; None: they are."""
        self._opened = contextlib.ExitStack()
        self._result: JobEnded | None = None
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="launcher", daemon=True)

    def start(self) -> None:
        """Start the master, and the processes that it is going to ask for, then listen to it.

        Where that fails the job has ended: `wait` says why, and nothing of it runs.
        """
        try:
            self._open()
            for name in (self._master, *self._first):
                self._launch(name)
            self._thread.start()
        except Exception as error:
            self._fail(error)
            self._kill_all()
            self._close()

    def _open(self) -> None:
        """Open all descriptors. Listening comes before launching: a master may connect as soon as it runs."""
        self._opened.callback(self._selector.close)
        self._parent_pipe, own_end = os.pipe()
        for end in (self._parent_pipe, own_end):
            self._opened.callback(os.close, end)
        self._wake, self._waker = map(self._opened.enter_context, socket.socketpair())
        for side in (self._wake, self._waker):
            side.setblocking(False)
        self._listener = self._opened.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        self._listener.bind(self._place.launcher_address.removeprefix("unix:"))
        self._listener.listen()
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._wake, selectors.EVENT_READ)

    def wait(self, seconds: float | None = None) -> JobEnded | None:
        """Wait for the job's end and the end of all its processes; None if the time is over before."""
        if not self._done.wait(seconds):
            return None
        assert self._result is not None, "every way to the end leaves a result"
        return self._result

    def kill(self) -> None:
        """Kill everything at once; `wait` returns soon after, with the code of an interruption."""
        with self._lock:
            self._killed = True
            self._send_all(signal.SIGKILL)
        self._poke()

    def processes(self) -> dict[ProcessName, int]:
        """Return the pids of the children that live."""
        with self._lock:
            return {
                name: child.process.pid
                for name, child in self._children.items()
                if child.process is not None and not child.reaped
            }

    # ------------------------------------------------------------------ the launcher's thread

    def _run(self) -> None:
        try:
            try:
                self._serve()
            except Exception as error:
                self._fail(error)
            self._end_all()
        except Exception as error:
            self._fail(error)
            self._kill_all()
        finally:
            self._close()

    def _fail(self, error: Exception) -> None:
        """End the job by an error of the launcher's, unless it has ended already."""
        traceback.print_exception(error)
        if self._result is None:
            self._result = launcher_failed(error)

    def _serve(self) -> None:
        while self._result is None:
            wait = None if self._restart_at is None else max(0.0, self._restart_at - time.monotonic())
            self._poll(wait)
            if self._killed:
                self._result = JobEnded(130, "killed")
            elif self._restart_at is not None and time.monotonic() >= self._restart_at:
                self._restart_at = None
                self._launch(self._master)

    def _poll(self, seconds: float | None) -> None:
        if self._accept_at is not None:
            left = max(0.0, self._accept_at - time.monotonic())
            seconds = left if seconds is None else min(seconds, left)
            if left == 0.0:
                self._accept_at = None
                self._selector.register(self._listener, selectors.EVENT_READ)
        for key, _ in self._selector.select(seconds):
            if key.fileobj is self._wake:
                with contextlib.suppress(BlockingIOError):
                    self._wake.recv(4096)
            elif key.fileobj is self._listener:
                self._accept()
            elif key.data.socket.fileno() >= 0:  # not dropped a moment ago
                self._exchange(key.data)
        while True:
            try:
                ended = self._inbox.get_nowait()
            except queue.Empty:
                return
            if ended is None:
                self._launch_waiting()
                continue
            if isinstance(ended, Child):
                self._spare_ended()
                continue
            self._tell(ended)
            if ended.name == self._master:
                self._master_ended(ended)

    def _master_ended(self, ended: ProcessEnded) -> None:
        lived = time.monotonic() - self._children[ended.name].started
        match after_master(self._record, lived, ended.code, ended.signal, ended.text):
            case JobEnded() as result:
                self._result = result
            case Restart(record, delay, reason):
                self._record = record
                self._master = ProcessName(Role.MASTER, 0, self._master.life + 1)
                self._restart_at = time.monotonic() + delay
                if not self._killed:
                    self._notice(f"{reason}; it is started again, training continues meanwhile")

    def _end_all(self) -> None:
        """Let the workers leave by themselves, then ask, then kill; return when all have ended."""
        with self._lock:
            killed, self._killed = self._killed, True  # from here on nothing is launched
            if self._spare is not None:
                self._spare.send(signal.SIGKILL)
        in_order = self._result is not None and self._result.code in (0, 130)
        leave = _LEAVE_SECONDS if in_order else _FAILED_LEAVE_SECONDS
        steps = ((0.0, signal.SIGKILL),) if killed else (
            (leave, signal.SIGTERM),
            (_TERMINATE_SECONDS, signal.SIGKILL),
        )  # fmt: skip
        for seconds, number in steps:
            until = time.monotonic() + seconds
            while self._lives() and (left := until - time.monotonic()) > 0:
                self._poll(left)
            with self._lock:
                self._send_all(number)
        while self._lives():
            self._poll(None)

    def _kill_all(self) -> None:
        """Kill all children and wait until they have ended, with nothing but what waits for each of them."""
        with self._lock:
            self._killed = True
            self._send_all(signal.SIGKILL)
        while self._lives():
            self._inbox.get()

    def _lives(self) -> bool:
        """Tell whether a child lives, or the spare."""
        with self._lock:
            spare = self._spare is not None and not self._spare.reaped
            return spare or any(
                child.process is not None and not child.reaped for child in self._children.values()
            )

    def _send_all(self, number: int) -> None:
        """Signal all children, and the spare; the caller holds the lock."""
        for child in (*self._children.values(), *(() if self._spare is None else (self._spare,))):
            child.send(number)

    def _close(self) -> None:
        try:
            self._starter.remove_log_of_spare()
            for key in list((self._selector.get_map() or {}).values()):
                if isinstance(key.data, _Connection):
                    key.data.socket.close()
            self._opened.close()
        finally:
            self._done.set()

    # ------------------------------------------------------------------ children

    def _launch(self, name: ProcessName) -> None:
        with self._lock:
            if self._killed or name in self._children or name in self._waiting:
                return
            if self._leaves_memory(name):
                self._waiting.append(name)
                return
            spare = self._take_spare(name)
            try:
                child = spare or self._watched(self._starter.start(name, self._parent_pipe))
            except (OSError, RuntimeError) as error:
                child, why = Child(name, None), str(error)
            self._children[name] = child
        if child.process is None:
            self._notice(f"{name} can't be started: {why}")
            self._inbox.put(ProcessEnded(name, CANNOT_START, None, Blame.START, why))
            self._poke()
        else:
            self._tell(ProcessStarted(name, child.process.pid, spare is not None))

    def _leaves_memory(self, name: ProcessName) -> bool:
        """Tell whether the life before is known to have ended and still has its memory, also that of a GPU. The caller holds the lock."""
        return any(
            (one.role, one.index) == (name.role, name.index)
            and child.process is not None
            and child.ended is not None
            and not child.reaped
            for one, child in self._children.items()
        )

    def _launch_waiting(self) -> None:
        """Launch what has waited for the memory of its life before."""
        with self._lock:
            waiting, self._waiting = self._waiting, []
        for name in waiting:
            self._launch(name)

    def _watched(self, child: Child) -> Child:
        """Start the thread that waits for a child's end; without that there is no child. Raises RuntimeError."""
        assert child.process is not None
        try:
            name = f"wait {child.name or 'spare'}"
            threading.Thread(target=self._await, args=(child,), name=name, daemon=True).start()
        except RuntimeError:
            child.kill_group()
            child.process.wait()
            raise
        return child

    def _keep_spare(self) -> None:
        """Have a spare process, unless the job has none, or those before have ended by themselves."""
        with self._lock:
            enough = self._spare is not None or self._spares_lost >= _SPARES_LOST
            if self._killed or enough or not self._starter.has_spares:
                return
            try:
                self._spare = self._watched(self._starter.start_spare(self._parent_pipe))
            except (OSError, RuntimeError) as error:
                self._spares_lost += 1
                why = str(error)
            else:
                return
        self._notice(f"no spare process can be started: {why}")

    def _take_spare(self, name: ProcessName) -> Child | None:
        """Return the spare as the worker that it is from now on; None if there is none that lives. The caller holds the lock."""
        if self._spare is None or name.role is not Role.WORKER:
            return None
        if not self._starter.name_spare(self._spare, name):
            self._spare.send(signal.SIGKILL)
            return None
        spare, self._spare, self._spares_lost = self._spare, None, 0
        return spare

    def _spare_ended(self) -> None:
        """Replace a spare that has ended by itself, or say that there is none any more."""
        with self._lock:
            self._spare = None
            if self._killed:
                return
            self._spares_lost += 1
            self._starter.keep_log_of_spare(self._spares_lost)
        if self._spares_lost < _SPARES_LOST:
            self._keep_spare()
        else:
            self._notice(
                f"{_SPARES_LOST} spare processes in a row have ended; workers are started as new processes from now on, and "
                f"`elasticdl logs {self._place.name} spare` shows why"
            )

    def _await(self, child: Child) -> None:
        """Wait for one child, take what it started with it, and report its end. Runs in a thread of its own."""
        process = child.process
        assert process is not None
        told = self._await_kill(child)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        # Not reaped yet, so neither its pid nor its group can have been used again.
        child.kill_group()
        with self._lock:
            status = process.wait()
            child.reaped = True
            name = child.name
        if name is None:
            self._inbox.put(child)
        elif told:
            self._inbox.put(None)
        else:
            code, number = (status, None) if status >= 0 else (None, -status)
            self._inbox.put(ProcessEnded(name, code, number))
        self._poke()

    def _await_kill(self, child: Child) -> bool:
        """Wait for the end of a child; return whether it was reported, because a signal kills it and it has a name."""
        assert child.process is not None
        with contextlib.closing(child.ends):
            number = child.ends.wait_killed(child.process.pid)
        if number is None:
            return False
        child.kill_group()
        with self._lock:
            name = child.name
        if name is not None:
            self._inbox.put(ProcessEnded(name, None, number))
            self._poke()
        return name is not None

    def _poke(self) -> None:
        with contextlib.suppress(BlockingIOError, OSError):
            self._waker.send(b"\0")

    # ------------------------------------------------------------------ the master's connection

    def _accept(self) -> None:
        try:
            accepted, _ = self._listener.accept()
        except OSError as error:
            if error.errno in _SHORT:
                self._pause_accepting(error)
            return  # otherwise it has gone again
        accepted.setblocking(False)
        self._selector.register(accepted, selectors.EVENT_READ, _Connection(accepted, time.monotonic()))

    def _pause_accepting(self, error: OSError) -> None:
        """Let connections wait in the kernel's queue for a moment; who has not proven itself in time makes room."""
        self._notice(f"a connection to the launcher has to wait: {error.strerror}")
        self._accept_at = time.monotonic() + _ACCEPT_PAUSE
        self._selector.unregister(self._listener)
        strangers = [
            key.data
            for key in self._selector.get_map().values()
            if isinstance(key.data, _Connection) and not key.data.authenticated
        ]
        for connection in strangers:
            if time.monotonic() > connection.since + _HELLO_SECONDS:
                self._drop(connection)

    def _exchange(self, connection: _Connection) -> None:
        try:
            _flush(connection)
            received = connection.socket.recv(65536)
            if not received:
                raise ConnectionError
            connection.incoming += received
            for line in wire.cut_lines(connection.incoming):
                self._carry_out(connection, wire.read_request(line))
        except BlockingIOError:
            pass
        except OSError:
            self._drop(connection)
            return
        except Exception as error:
            if connection.authenticated and not isinstance(error, wire.Malformed):
                raise  # carrying out what the master wants failed: no fault of what was said
            self._notice(f"a connection to the launcher was refused: {error}")
            self._drop(connection)
            return
        self._watch(connection)

    def _carry_out(self, connection: _Connection, request: wire.Request) -> None:
        match request:
            case wire.Hello(nonce):
                if connection.nonces is not None:
                    raise wire.Malformed("a second hello")
                connection.nonces = nonces = (nonce, secrets.token_hex(16))
                challenge = wire.Challenge(nonces[1], proof(self._key, "launcher", *nonces))
                connection.outgoing += wire.write_challenge(challenge)
            case wire.Proof(given):
                if connection.nonces is None or not is_proof(given, self._key, "master", *connection.nonces):
                    raise wire.Malformed("it does not know the job's token")
                connection.authenticated = True
                for event in self._history():
                    connection.outgoing += wire.write_event(event)
            case _ if not connection.authenticated:
                raise wire.Malformed("no hello")
            case wire.Launch(name):
                self._launch(name)
            case wire.KeepSpare():
                self._keep_spare()
            case wire.Signal(name, number):
                with self._lock:
                    child = self._children.get(name)
                    if child is not None:
                        child.send(number)

    def _history(self) -> list[wire.Event]:
        """Return all events told so far, the master's own lives excepted."""
        with self._lock:
            events: list[wire.Event] = []
            for name, child in self._children.items():
                if name.role is not Role.MASTER:
                    if child.process is not None:
                        events.append(ProcessStarted(name, child.process.pid))
                    if child.ended is not None:
                        events.append(child.ended)
            return events

    def _tell(self, event: wire.Event) -> None:
        if isinstance(event, ProcessEnded):
            self._children[event.name].ended = event
        if event.name.role is Role.MASTER:
            return
        for key in list(self._selector.get_map().values()):
            if isinstance(key.data, _Connection) and key.data.authenticated:
                key.data.outgoing += wire.write_event(event)
                self._watch(key.data)

    def _watch(self, connection: _Connection) -> None:
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.outgoing else 0)
        self._selector.modify(connection.socket, wanted, connection)

    def _drop(self, connection: _Connection) -> None:
        self._selector.unregister(connection.socket)
        connection.socket.close()


def _flush(connection: _Connection) -> None:
    with contextlib.suppress(BlockingIOError):
        while connection.outgoing:
            sent = connection.socket.send(connection.outgoing)
            del connection.outgoing[:sent]
