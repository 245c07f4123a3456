"""Processes of a local job: the launcher that is their parent, and the master's connection to it.

The launcher lives in the process that submitted the job (or in one of its own with `--detach`), so that children outlive any
master and their wait statuses, the proof of death, are never lost: it repeats them all to every master that connects. It
starts, signals, and starts the master again; what workers there should be is not its business.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import queue
import selectors
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from elasticdl.cluster import lifeline, wire
from elasticdl.cluster.cluster import Blame, ProcessEnded, ProcessName, ProcessStarted, Role
from elasticdl.cluster.supervision import JobEnded, Record, Restart, after_master
from elasticdl.spec import place as places
from elasticdl.spec.place import JobPlace

PROCESS_ENVIRONMENT = "ELASTICDL_PROCESS"
"""Environment variable with a process's own name, `worker-3-2`."""

CANNOT_START = 126
"""Code reported for a process that could not be started at all."""

_LEAVE_SECONDS = 3.0
_FAILED_LEAVE_SECONDS = 0.5
"""After a failure some workers may not even have been heard of; nobody waits for what they are preparing."""
_TERMINATE_SECONDS = 2.0
_CONNECT_SECONDS = 10.0


@dataclass(slots=True)
class _Child:
    """One process.

    Attributes:
        process: its handle, None if it could not be started.
        started: by the monotonic clock.
        reaped: its pid may belong to somebody else by now.
        ended: its end, once it has been told to the master.
    """

    process: subprocess.Popen[bytes] | None
    started: float
    reaped: bool = False
    ended: ProcessEnded | None = None


@dataclass(slots=True)
class _Connection:
    socket: socket.socket
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
    ) -> None:
        """Prepare; nothing is started yet.

        Args:
            place: the job's place; its lock is the caller's.
            argv: command of each role.
            first: processes to start beside the master because it is going to ask for them anyway; its own request for
                them is then one that was fulfilled before.
            notice: called from the launcher's thread with a sentence when the master is started again.
        """
        self._place = place
        self._argv = argv
        self._notice = notice
        self._first = first
        self._token = place.token()
        self._lock = threading.Lock()  # children, and `_killed`
        self._children: dict[ProcessName, _Child] = {}
        self._killed = False
        self._inbox: queue.SimpleQueue[ProcessEnded] = queue.SimpleQueue()
        self._selector = selectors.DefaultSelector()
        self._record = Record()
        self._master = ProcessName(Role.MASTER, 0, 1)
        self._restart_at: float | None = None
        self._result: JobEnded | None = None
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="launcher", daemon=True)

    def start(self) -> None:
        """Start the master, and the processes that it is going to ask for, then listen to it."""
        self._lifeline, self._own_end = os.pipe()
        self._wake, self._waker = socket.socketpair()
        for end in (self._wake, self._waker):
            end.setblocking(False)
        # Listening comes first: a master may connect as soon as it runs.
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(self._place.launcher_address.removeprefix("unix:"))
        self._listener.listen()
        self._listener.setblocking(False)
        for name in (self._master, *self._first):
            self._launch(name)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._wake, selectors.EVENT_READ)
        self._thread.start()

    def wait(self, seconds: float | None = None) -> JobEnded | None:
        """Wait for the job's end and the end of all its processes; None if the time is over before."""
        return self._result if self._done.wait(seconds) else None

    def kill(self) -> None:
        """Kill everything at once; `wait` returns soon after, with the code of an interruption."""
        with self._lock:
            self._killed = True
            for child in self._children.values():
                _send(child, signal.SIGKILL)
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
            self._serve()
            self._end_all()
        finally:
            self._close()

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
        for key, _ in self._selector.select(seconds):
            if key.fileobj is self._wake:
                with contextlib.suppress(BlockingIOError):
                    self._wake.recv(4096)
            elif key.fileobj is self._listener:
                self._accept()
            else:
                self._exchange(key.data)
        while True:
            try:
                ended = self._inbox.get_nowait()
            except queue.Empty:
                return
            self._tell(ended)
            if ended.name == self._master:
                self._master_ended(ended)

    def _master_ended(self, ended: ProcessEnded) -> None:
        lived = time.monotonic() - self._children[ended.name].started
        match after_master(self._record, lived, ended.code, ended.signal):
            case JobEnded() as result:
                self._result = result
            case Restart(record, delay, reason):
                self._record = record
                self._master = ProcessName(Role.MASTER, 0, self._master.life + 1)
                self._restart_at = time.monotonic() + delay
                if not self._killed:
                    self._notice(f"{reason}; it is started again, training goes on meanwhile")

    def _end_all(self) -> None:
        """Let the workers leave by themselves, then ask, then kill; return when all have ended."""
        with self._lock:
            killed, self._killed = self._killed, True  # from here on nothing is launched
        in_order = self._result is not None and self._result.code in (0, 130)
        leave = _LEAVE_SECONDS if in_order else _FAILED_LEAVE_SECONDS
        steps = ((0.0, signal.SIGKILL),) if killed else (
            (leave, signal.SIGTERM),
            (_TERMINATE_SECONDS, signal.SIGKILL),
        )  # fmt: skip
        for seconds, number in steps:
            until = time.monotonic() + seconds
            while self.processes() and (left := until - time.monotonic()) > 0:
                self._poll(left)
            with self._lock:
                for child in self._children.values():
                    _send(child, number)
        while self.processes():
            self._poll(None)

    def _close(self) -> None:
        for key in list(self._selector.get_map().values()):
            if isinstance(key.fileobj, socket.socket):
                key.fileobj.close()
        self._selector.close()
        self._waker.close()
        os.close(self._own_end)
        os.close(self._lifeline)
        self._done.set()

    # ------------------------------------------------------------------ children

    def _launch(self, name: ProcessName) -> None:
        with self._lock:
            if self._killed or name in self._children:
                return
            try:
                process = self._spawn(name)
            except OSError as error:
                self._children[name] = _Child(None, time.monotonic())
                self._notice(f"{name} can't be started: {error}")
                self._inbox.put(ProcessEnded(name, CANNOT_START, None, Blame.START, str(error)))
                self._poke()
                return
            self._children[name] = child = _Child(process, time.monotonic())
        threading.Thread(target=self._await, args=(name, child), name=f"wait {name}", daemon=True).start()
        self._tell(ProcessStarted(name, process.pid))

    def _spawn(self, name: ProcessName) -> subprocess.Popen[bytes]:
        environment = dict(os.environ)
        environment[places.ENVIRONMENT] = str(self._place.path)
        environment[PROCESS_ENVIRONMENT] = str(name)
        environment[lifeline.ENVIRONMENT] = str(self._lifeline)
        environment["PYTHONUNBUFFERED"] = "1"  # a killed process's last words must be in its log
        log = os.open(
            self._place.log_path(str(name)), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600
        )
        try:
            return subprocess.Popen(
                self._argv[name.role],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                cwd=self._place.directory,
                pass_fds=(self._lifeline,),
                start_new_session=True,
            )
        finally:
            os.close(log)

    def _await(self, name: ProcessName, child: _Child) -> None:
        """Wait for one child, take what it started with it, and report its end. Runs in a thread of its own."""
        process = child.process
        assert process is not None
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        # Not reaped yet, so neither its pid nor its group can have been used again.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        with self._lock:
            status = process.wait()
            child.reaped = True
        self._inbox.put(ProcessEnded(name, status if status >= 0 else None, -status if status < 0 else None))
        self._poke()

    def _poke(self) -> None:
        with contextlib.suppress(BlockingIOError, OSError):
            self._waker.send(b"\0")

    # ------------------------------------------------------------------ the master's connection

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError):
            accepted, _ = self._listener.accept()
            accepted.setblocking(False)
            self._selector.register(accepted, selectors.EVENT_READ, _Connection(accepted))

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
        except (wire.Malformed, ConnectionError) as error:
            if isinstance(error, wire.Malformed):
                self._notice(f"a connection to the launcher was refused: {error}")
            self._drop(connection)
            return
        self._watch(connection)

    def _carry_out(self, connection: _Connection, request: wire.Request) -> None:
        match request:
            case wire.Hello(token):
                if not hmac.compare_digest(token, self._token):
                    raise wire.Malformed("wrong token")
                connection.authenticated = True
                for event in self._history():
                    connection.outgoing += wire.write_event(event)
            case _ if not connection.authenticated:
                raise wire.Malformed("no hello")
            case wire.Launch(name):
                self._launch(name)
            case wire.Signal(name, number):
                with self._lock:
                    child = self._children.get(name)
                    if child is not None:
                        _send(child, number)

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


class LocalCluster:
    """The master's side: `Cluster` over a connection to the launcher. Calls may come from several threads."""

    def __init__(self, address: str, token: bytes) -> None:
        """Connect to `unix:PATH`. The launcher repeats its history at once."""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(_CONNECT_SECONDS)
        self._socket.connect(address.removeprefix("unix:"))
        self._sending = threading.Lock()
        self._incoming = bytearray()
        self._ask(wire.Hello(token))

    def launch(self, name: ProcessName, memory: int = 0) -> None:
        """Start a process; a name that was launched before is ignored."""
        self._ask(wire.Launch(name))

    def signal(self, name: ProcessName, number: int) -> None:
        """Send a signal; no error if the process has ended."""
        self._ask(wire.Signal(name, number))

    def expect(self, names: Iterable[ProcessName]) -> None:
        """Do nothing: the launcher is the parent of all, and knows how each has ended."""

    def events(self, seconds: float) -> list[wire.Event]:
        """Wait at most `seconds` for events. Raises ConnectionError if the launcher has gone."""
        import select

        until = time.monotonic() + seconds
        while not (lines := wire.cut_lines(self._incoming)):
            # poll, not select: the latter fails for descriptors above 1023.
            poll = select.poll()
            poll.register(self._socket, select.POLLIN)
            if not poll.poll(max(0.0, until - time.monotonic()) * 1000):
                return []
            received = self._socket.recv(65536)
            if not received:
                raise ConnectionError("the launcher closed the connection")
            self._incoming += received
        return [wire.read_event(line) for line in lines]

    def close(self) -> None:
        """Release the connection; processes go on."""
        self._socket.close()

    def _ask(self, request: wire.Request) -> None:
        with self._sending:
            self._socket.sendall(wire.write_request(request))


def _send(child: _Child, number: int) -> None:
    """Signal a child that has not been reaped; the caller holds the lock that reaping takes."""
    if child.process is not None and not child.reaped:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child.process.pid, number)


def _flush(connection: _Connection) -> None:
    with contextlib.suppress(BlockingIOError):
        while connection.outgoing:
            sent = connection.socket.send(connection.outgoing)
            del connection.outgoing[:sent]
