"""Directories in which only this user and root can put, replace or remove things, whatever the umask was when they were made.

As OpenSSH's StrictModes looks at the files of a user (`safe_path` in its misc.c), but at every directory on the way, links included:
a user who may write in one of them can put another directory in the place of the next. A sticky directory such as /tmp is good enough,
because there nobody can take away what belongs to somebody else.
"""

from __future__ import annotations

import errno
import grp
import os
import pwd
import stat
from collections.abc import Iterator
from pathlib import Path

from elasticdl.errors import BadSetting

_LINKS = 40
"""Links on one way, as in the kernel."""
_ALL_IDS = 2**32 - 1


def make_own(path: Path, remedy: str) -> None:
    """Make a directory and those above it that are missing, each for this user alone (0700), and check the others as `check_own` does.

    Raises BadSetting, OSError.
    """
    for part in _way(path):
        try:
            part.mkdir(mode=0o700)
        except FileExistsError:
            _check(part, part.stat(), remedy)


def check_own(path: Path, remedy: str) -> None:
    """Check that only this user and root can change what a path means, as far as it exists; `remedy`: what to do about it.

    Raises BadSetting naming the directory that others own or may write, OSError for one that can't be looked at.
    """
    for part in _way(path):
        try:
            found = part.stat()
        except FileNotFoundError:
            return
        _check(part, found, remedy)


def _way(path: Path) -> Iterator[Path]:
    """Yield the directories that a path leads through, from the root on, each after what was done with the one before."""
    where, links = Path("/"), 0
    yield where
    left = list(reversed(path.absolute().parts[1:]))
    while left:
        part = left.pop()
        if part == "..":
            where = where.parent
            continue
        step = where / part
        if step.is_symlink():
            links += 1
            if links > _LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
            target = step.readlink()
            where = Path("/") if target.is_absolute() else where
            left += reversed(target.parts[1:] if target.is_absolute() else target.parts)
            continue
        where = step
        yield where


def _check(part: Path, found: os.stat_result, remedy: str) -> None:
    if not stat.S_ISDIR(found.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(part))
    if found.st_uid not in (0, os.geteuid()) and not _is_unmapped(found.st_uid):
        raise BadSetting(f"{part} belongs to {_user(found.st_uid)}, who could change what is in it; {remedy}")
    if found.st_mode & stat.S_ISVTX:
        return
    writers = found.st_mode & stat.S_IWOTH or (found.st_mode & stat.S_IWGRP and not _is_private(found.st_gid))
    if writers:
        raise BadSetting(
            f"others may write in {part} (mode {stat.S_IMODE(found.st_mode):04o}); `chmod go-w {part}`, or {remedy}"
        )


def _is_private(group: int) -> bool:
    """Tell whether a group is this user's private one, which many systems give to every user, with a umask of 002."""
    try:
        user, entry = pwd.getpwuid(os.geteuid()), grp.getgrgid(group)
    except KeyError:
        return False
    return user.pw_gid == group and entry.gr_name == user.pw_name and set(entry.gr_mem) <= {user.pw_name}


def _is_unmapped(user: int) -> bool:
    """Tell whether an owner is one that this user namespace has no number for, as root is in most sandboxes."""
    try:
        overflow = int(Path("/proc/sys/kernel/overflowuid").read_text(encoding="ascii"))
        lines = Path("/proc/self/uid_map").read_text(encoding="ascii").splitlines()
        mapped = sum(int(line.split()[2]) for line in lines)
    except (OSError, ValueError, IndexError):
        return False
    return user == overflow and mapped < _ALL_IDS


def _user(number: int) -> str:
    try:
        return f"the user {pwd.getpwuid(number).pw_name}"
    except KeyError:
        return f"the user with the number {number}"
