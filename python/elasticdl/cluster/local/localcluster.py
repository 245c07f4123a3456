"""The master's connection to the launcher of a local job: `Cluster` over a Unix socket."""

from __future__ import annotations

import secrets
import socket
import threading
import time
from collections.abc import Iterable

from elasticdl.cluster.cluster import ProcessName
from elasticdl.cluster.local import wire
from elasticdl.control.transport.credentials import is_proof, proof
from elasticdl.control.transport.keys import Key, derive

_CONNECT_SECONDS = 10.0


class LocalCluster:
    """The master's side: `Cluster` over a connection to the launcher. Calls may come from several threads."""

    def __init__(self, address: str, token: bytes) -> None:
        """Connect to `unix:PATH`; both ends prove that they know the job's token. The launcher repeats its history at once.

        Raises OSError if no launcher listens there, or one of another job.
        """
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(_CONNECT_SECONDS)
        self._socket.connect(address.removeprefix("unix:"))
        self._sending = threading.Lock()
        self._incoming = bytearray()
        try:
            self._introduce(derive(token, Key.LAUNCHER))
        except BaseException:
            self._socket.close()
            raise

    def _introduce(self, key: bytes) -> None:
        nonce = secrets.token_hex(16)
        self._ask(wire.Hello(nonce))
        # Without a limit: a launcher that is stopped for a while is no reason to end, and one that dies ends the connection.
        challenge = wire.read_challenge(self._lines(None)[0])
        nonces = (nonce, challenge.nonce)
        if not is_proof(challenge.proof, key, "launcher", *nonces):
            raise ConnectionError("what listens at the launcher's address does not know the job's token")
        self._ask(wire.Proof(proof(key, "master", *nonces)))

    def launch(self, name: ProcessName, memory: int = 0) -> None:
        """Start a process; a name that was launched before is ignored."""
        self._ask(wire.Launch(name))

    def keep_spare(self) -> None:
        """Have a spare process ready; the launcher ignores it if there is one, or the job has none."""
        self._ask(wire.KeepSpare())

    def signal(self, name: ProcessName, number: int) -> None:
        """Send a signal; no error if the process has ended."""
        self._ask(wire.Signal(name, number))

    def expect(self, names: Iterable[ProcessName]) -> None:
        """Do nothing: the launcher is the parent of all, and knows how each has ended."""

    def events(self, seconds: float) -> list[wire.Event]:
        """Wait at most `seconds` for events. Raises ConnectionError if the launcher has gone."""
        return [wire.read_event(line) for line in self._lines(seconds)]

    def _lines(self, seconds: float | None) -> list[bytes]:
        """Wait for lines, without a limit if `seconds` is None; return none if the time is over before."""
        import select

        until = None if seconds is None else time.monotonic() + seconds
        while not (lines := wire.cut_lines(self._incoming)):
            # poll, not select: the latter fails for descriptors above 1023.
            poll = select.poll()
            poll.register(self._socket, select.POLLIN)
            if not poll.poll(None if until is None else max(0.0, until - time.monotonic()) * 1000):
                return []
            received = self._socket.recv(65536)
            if not received:
                raise ConnectionError("the launcher closed the connection")
            self._incoming += received
        return lines

    def close(self) -> None:
        """Release the connection; processes go on."""
        self._socket.close()

    def _ask(self, request: wire.Request) -> None:
        with self._sending:
            self._socket.sendall(wire.write_request(request))
