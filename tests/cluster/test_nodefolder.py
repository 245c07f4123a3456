"""The folder of a node in which workers have their sockets: whose it is, and what is removed from it."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

import pytest

from elasticdl.cluster.kubernetes.nodefolder import enter, socket_of
from elasticdl.errors import BadSetting


def listener(path: Path, *, seconds_ago: float) -> socket.socket:
    """Listen at a socket that was made some time ago."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    made.bind(str(path))
    made.listen()
    made.setblocking(False)
    then = time.time() - seconds_ago
    os.utime(path, (then, then))
    return made


def test_each_node_has_a_folder_that_only_this_user_can_open(tmp_path: Path) -> None:
    one, other = enter(tmp_path, "node-1"), enter(tmp_path, "node-2")
    assert one != other
    assert enter(tmp_path, "node-1") == one
    assert one.parent == tmp_path
    assert one.stat().st_mode & 0o777 == 0o700
    one.chmod(0o770)  # as a volume does that belongs to a group
    assert enter(tmp_path, "node-1").stat().st_mode & 0o777 == 0o700


def test_folders_of_pods_that_share_nothing_have_other_names(tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
    names = {enter(tmp_path / name, "node").name for name in ("one", "other")}
    assert len(names) == 2


def test_addresses_are_short(tmp_path: Path) -> None:
    """A directory of the longest name that is accepted leaves room for the rest, also for users of large numbers."""
    appended = socket_of(enter(tmp_path, "n" * 253), "f" * 32).relative_to(tmp_path)
    digits = len(str(os.getuid()))
    assert 60 + 1 + len(str(appended)) - digits + len(str(2**32 - 1)) <= 107


def test_sockets_of_dead_workers_are_removed_and_nothing_else(tmp_path: Path) -> None:
    folder = enter(tmp_path, "node")
    living = listener(socket_of(folder, "1" * 32), seconds_ago=100)
    listener(socket_of(folder, "2" * 32), seconds_ago=100).close()
    listener(socket_of(folder, "3" * 32), seconds_ago=0).close()  # perhaps about to listen
    (folder / "file").touch()
    os.utime(folder / "file", (0, 0))
    enter(tmp_path, "node")
    assert {path.name for path in folder.iterdir()} == {"1" * 16, "3" * 16, "file"}
    with living, pytest.raises(BlockingIOError):
        living.accept()  # who asked whether it lives was not noticed


def test_a_folder_of_somebody_else_is_refused(tmp_path: Path) -> None:
    folder = enter(tmp_path, "node")
    folder.rmdir()
    folder.symlink_to("/")
    with pytest.raises(BadSetting, match="on node node is not a folder of user"):
        enter(tmp_path, "node")
    with pytest.raises(BadSetting, match=r"can't make a folder in .*/nowhere' on node n: No such file"):
        enter(tmp_path / "nowhere", "n")
