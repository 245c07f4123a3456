"""The keys of a job's roles, derived from its token: a process holds those of its own role, and no other follows from them.

The token is 32 random bytes, so that HMAC-SHA256 of a label under it is a sound derivation (the expansion of RFC 5869, one block).
Who has the token has all keys: the launcher, the master, and the commands of the user who submitted the job.
"""

from __future__ import annotations

import hashlib
import hmac
from enum import StrEnum


class Key(StrEnum):
    """What a key is for."""

    CLIENT = "client"
    """The user's commands, towards the master: to read, to stop and to scale."""
    WORKER = "worker"
    """Workers, towards the master."""
    PS = "ps"
    """Parameter servers, towards the master."""
    LAUNCHER = "launcher"
    """The master, towards the launcher."""
    SERVERS = "servers"
    """The data plane between parameter servers; `DATA` follows from it."""
    DATA = "data"
    """The data plane of all members, and their heartbeats."""
    PAGE = "page"
    """The job's page: it reads, and nothing else."""
    METRICS = "metrics"
    """The job's figures for Prometheus, whose settings may lie where others read them."""


def derive(token: bytes, key: Key) -> bytes:
    """Return a key of the job whose token this is."""
    if key is Key.DATA:
        return data_key(derive(token, Key.SERVERS))
    return _expand(token, key)


def data_key(servers: bytes) -> bytes:
    """Return the key of the data plane that everybody holds, as a holder of `Key.SERVERS` finds it."""
    return _expand(servers, Key.DATA)


def _expand(key: bytes, label: str) -> bytes:
    return hmac.new(key, b"elasticdl key " + label.encode() + b"\x01", hashlib.sha256).digest()
