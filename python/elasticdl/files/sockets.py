"""Directories and names of Unix sockets, whose paths end at 107 bytes."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

MEMBER_LENGTH = 16
"""Of the 32 hexadecimal digits of a member's id those that its socket has: 64 random bits are unique enough on one node."""
_SOCKET_LIMIT = 107


def base_for_sockets(longest: int) -> Path:
    """Return a directory below which a socket's path may have another `longest` bytes, the slash included. Raises OSError."""
    for base in (os.environ.get("XDG_RUNTIME_DIR", ""), tempfile.gettempdir(), "/tmp"):
        fits = Path(base).is_absolute() and len(os.fsencode(base)) + longest <= _SOCKET_LIMIT
        if fits and os.access(base, os.W_OK | os.X_OK) and Path(base).is_dir():
            return Path(base)
    raise OSError(0, "no directory for sockets: XDG_RUNTIME_DIR, TMPDIR and /tmp can't be written")
