"""A proxy with a server of this process behind it, and workers that come to it."""

from __future__ import annotations

import contextlib
import socket
import ssl
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from elasticdl import _core
from elasticdl.cluster.cluster import Role
from elasticdl.cluster.kubernetes.certificates import Identity

SECONDS = 20.0


@dataclass(frozen=True)
class Gateway:
    """Attributes: where the proxy listens, where it carries connections to, and what a worker shows it."""

    address: str
    server: socket.socket
    context: ssl.SSLContext

    @contextlib.contextmanager
    def worker(self) -> Iterator[tuple[ssl.SSLSocket, socket.socket]]:
        """Yield a worker's end of a connection that the proxy carries, and the other one."""
        host, _, port = self.address.removeprefix("tcp:").rpartition(":")
        plain = socket.create_connection((host, int(port)), timeout=SECONDS)
        with self.context.wrap_socket(plain, server_hostname="master.elasticdl") as worker:
            served = self.server.accept()[0]
            with served:
                yield worker, served


@contextlib.contextmanager
def gateway(job: Mapping[Role, Identity], folder: Path) -> Iterator[Gateway]:
    """Open a proxy of a job; `folder` gets the worker's certificate."""
    context = ssl.create_default_context(cadata=job[Role.WORKER].authority.decode())
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    (folder / "both").write_bytes(job[Role.WORKER].certificate + job[Role.WORKER].key)
    context.load_cert_chain(folder / "both")
    # Paths of sockets are short.
    with tempfile.TemporaryDirectory(prefix="edl-") as sockets, socket.socket(socket.AF_UNIX) as server:
        server.bind(f"{sockets}/grpc")
        server.listen()
        server.settimeout(SECONDS)
        proxy = _core.TlsProxy("tcp:127.0.0.1:0", f"{sockets}/grpc", job[Role.MASTER])
        with contextlib.closing(proxy):
            yield Gateway(proxy.address, server, context)
