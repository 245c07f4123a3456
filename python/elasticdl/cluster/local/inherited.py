"""Descriptors that a launcher leaves open for a process that it starts, named in the environment by number and inode.

Programs that the process starts have the environment, too, but not the descriptors, and their numbers may be other files there.
"""

from __future__ import annotations

import os


def written(descriptor: int) -> str:
    """Return what the environment has of a descriptor."""
    return f"{descriptor}:{os.fstat(descriptor).st_ino}"


def found(text: str) -> int | None:
    """Return the descriptor, not inherited by others any more; None if it is closed or something else in this process."""
    descriptor, inode = map(int, text.split(":"))
    try:
        if os.fstat(descriptor).st_ino != inode:
            return None
    except OSError:
        return None
    os.set_inheritable(descriptor, False)
    return descriptor
