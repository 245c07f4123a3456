"""The folder in which workers of one node have their Unix sockets, on a volume that their pods share.

Members whose sockets are in one folder take it that they reach each other there, so its name says for whom that is true: the node, and
whose kernel and file system it is. The volume may be the same on all nodes, pods in virtual machines have kernels of their own, and a
socket is found by its inode in the file system that a kernel has mounted. Who finds nobody there uses the network.
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
from elasticdl.files.sockets import MEMBER_LENGTH

_DEAD_SECONDS = 60.0
"""Age from which a socket without a process is removed: it is made a moment before its process listens."""


def enter(directory: Path, node: str) -> Path:
    """Make the folder of this node and user in a directory that the node's pods share, and remove dead workers' sockets from it.

    Raises BadSetting if it can't be made, or is another user's.
    """
    try:
        folder = directory / f"{os.getuid()}-{_place(directory, node)}"
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        found = folder.lstat()
    except OSError as error:
        raise BadSetting(
            f"--node_dir: user {os.getuid()} of the pods can't make a folder in {str(directory)!r} on node {node}: {error.strerror}; "
            "make the directory on each node so that this user can write there, such as with mode 1777"
        ) from None
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise BadSetting(
            f"--node_dir: {str(folder)!r} on node {node} is not a folder of user {os.getuid()}, as which this pod runs; remove it there, "
            "or name a volume that gives what is made there to who makes it"
        )
    # A network file system may be away for a moment, and nothing depends on this.
    with contextlib.suppress(OSError):
        folder.chmod(0o700)  # a volume with a group (`fsGroup`) is opened to it with each mount
        _sweep(folder)
    return folder


def _place(directory: Path, node: str) -> str:
    """Return what is the same for exactly those who reach each other's sockets in a directory."""
    try:
        kernel = Path("/proc/sys/kernel/random/boot_id").read_text()
    except OSError:
        kernel = ""
    found = directory.stat()
    return hashlib.sha256(f"{node} {kernel} {found.st_dev} {found.st_ino}".encode()).hexdigest()[:12]


def socket_of(folder: Path, member: str) -> Path:
    """Return where a member has its Unix socket; `member` is its id of 32 hexadecimal digits."""
    return folder / member[:MEMBER_LENGTH]


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
