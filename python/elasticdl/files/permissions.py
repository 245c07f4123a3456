"""Permissions of what a job creates, whatever the umask is: private for what it keeps for itself, guarded for what others may read.

What is not created with one of these, as a result at `--output`, follows the umask alone.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

PRIVATE = 0o600
"""A file for this user alone."""
PRIVATE_FOLDER = 0o700
"""A directory for this user alone."""
GUARDED = 0o644
"""A file that only this user may write."""
_GUARDED_FOLDER = 0o755


def private(path: str, flags: int) -> int:
    """Open a file for `open`, as its `opener`; one that it creates is private."""
    return os.open(path, flags, PRIVATE)


def guarded(path: str, flags: int) -> int:
    """Open a file for `open`, as its `opener`; one that it creates is guarded."""
    return os.open(path, flags, GUARDED)


def make_guarded(folder: Path) -> None:
    """Make a directory and those above it that are missing, in which only this user may put or remove things. Raises OSError."""
    for part in (*reversed(folder.parents), folder):
        with contextlib.suppress(FileExistsError):
            part.mkdir(mode=_GUARDED_FOLDER)
