"""The folder in which workers of one node have their Unix sockets, on a volume that their pods share.

Its name has that of the node: the volume may be mounted at the same path on all nodes, or be the same file system everywhere, and a
Unix socket is reached on one node only. Members whose sockets are in one folder take it that they are on one node.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import socket
import stat
import time
from pathlib import Path

from elasticdl.errors import BadSetting

_MEMBER_LENGTH = 16  # of 32 hexadecimal digits: 64 random bits are unique enough on one node
_DEAD_SECONDS = 60.0
"""Age from which a socket without a process is removed: it is made a moment before its process listens."""


def enter(directory: Path, node: str) -> Path:
    """Make the folder of this node and user in a directory that the node's pods share, and remove dead workers' sockets from it.

    Raises BadSetting if it can't be made, or is another user's.
    """
    folder = directory / f"{os.getuid()}-{hashlib.sha256(node.encode()).hexdigest()[:12]}"
    try:
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        found = folder.lstat()
    except OSError as error:
        raise BadSetting(
            f"--node_dir: user {os.getuid()} of the pods can't make a folder in {str(directory)!r} on node {node}: {error.strerror}; "
            f"make the directory on each node so that this user can write there, such as with mode 1777"
        ) from None
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise BadSetting(
            f"--node_dir: {str(folder)!r} on node {node} is not a folder of user {os.getuid()}, as which this pod runs; remove it there"
        )
    _sweep(folder)
    return folder


def socket_of(folder: Path, member: str) -> Path:
    """Return where a member has its Unix socket; `member` is its id of 32 hexadecimal digits."""
    return folder / member[:_MEMBER_LENGTH]


def _sweep(folder: Path) -> None:
    """Remove the sockets of workers that were killed, of any job of this user: nobody else does."""
    with os.scandir(folder) as found:
        for entry in found:
            with contextlib.suppress(OSError):  # another worker may do the same
                at = entry.stat(follow_symlinks=False)
                is_old = time.time() - at.st_mtime > _DEAD_SECONDS
                if stat.S_ISSOCK(at.st_mode) and is_old and _is_dead(entry.path):
                    os.unlink(entry.path)  # noqa: PTH108 (of a directory's entry)


def _is_dead(path: str) -> bool:
    """Tell whether no process listens at a socket. Who does is not disturbed: a datagram is not what it listens for."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
        return probe.connect_ex(path) == errno.ECONNREFUSED
