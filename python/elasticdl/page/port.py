"""Where a job's page listens: on this machine only, because connections from elsewhere need TLS beneath. Figures have it."""

from __future__ import annotations

import socket

from elasticdl.errors import BadSetting

HOST = "127.0.0.1"


def listen(port: int) -> socket.socket:
    """Return a socket that listens on this machine. Raises BadSetting if the port is in use or can't be had."""
    try:
        return socket.create_server((HOST, port))
    except OSError as error:
        raise BadSetting(
            f"--status_port: the port {port} of this machine can't be had ({error.strerror}); name another one, or leave it out for any "
            "free one"
        ) from error


def address_of(listening: socket.socket) -> str:
    """Return the address of the page that is served there."""
    return f"http://{HOST}:{listening.getsockname()[1]}"


def listen_in_pod(address: str, port: int, setting: str) -> socket.socket:
    """Return a socket that listens at all addresses of the kind of a pod's: `kubectl port-forward` comes to the loopback one.

    Raises BadSetting, naming the setting, if the port can't be had.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        return socket.create_server(("", port), family=family)
    except OSError as error:
        raise BadSetting(f"{setting}: the port {port} can't be had ({error.strerror})") from error


def check_port(port: int) -> None:
    """Check that a port is free. Raises BadSetting."""
    listen(port).close()
