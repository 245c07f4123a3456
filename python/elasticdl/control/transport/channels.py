"""What both ends of the control plane's connections agree on: addresses, gRPC's options, channels, and how a refusal looks.

gRPC is imported when the first channel is made, and nothing starts at import.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from elasticdl.control.transport import credentials as proofs
from elasticdl.control.transport.tls import MASTER, Identity
from elasticdl.errors import BadSetting

if TYPE_CHECKING:
    import grpc

MESSAGE_LIMIT = 16 * 1024 * 1024
"""Bytes of one message; the longest is a list of shards, about 100 bytes each."""
FLUSH_SECONDS = 2.0
"""For what was sent before an end was closed."""
_KEEPALIVE = (
    ("grpc.keepalive_time_ms", 5000),
    ("grpc.keepalive_timeout_ms", 5000),
    ("grpc.http2.ping_timeout_ms", 5000),  # a minute otherwise, whatever the one before says
    ("grpc.http2.max_pings_without_data", 0),
)


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
        # Otherwise each end pings the other one after what it receives, to guess how fast the line is: more frames than messages.
        ("grpc.http2.bdp_probe", 0),
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
