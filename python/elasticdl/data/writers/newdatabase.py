"""A database in a file that is not there yet: it is made in a folder beside its place, and put there when all of it is committed.

A loader that fails, or is killed, leaves no database without rows under the name that the user has given. The next one finds what it had
made, and continues with that.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from elasticdl.errors import Unwritable

_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
"""What file systems without hard links say of one."""


def make_database(file: Path, draft: Path, fill: Callable[[Path], None]) -> bool:
    """Let a database be filled in the folder `draft`, then put it at `file`; return whether that was done.

    It was not if another process has made a file of this name meanwhile, which stays. After an error of `fill`, which is raised again,
    nothing is left. Raises Unwritable.
    """
    try:
        draft.mkdir(exist_ok=True)
    except OSError as error:
        raise Unwritable(f"no database can be made at {file}", error, "start the job again") from error
    try:
        fill(draft / file.name)
        return _put(draft / file.name, file)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _put(made: Path, file: Path) -> bool:
    try:
        try:
            os.link(made, file)
        except OSError as error:
            if error.errno not in _NO_LINKS or file.exists():
                raise
            made.rename(file)
        descriptor = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except (FileExistsError, FileNotFoundError) as error:
        if not file.exists():  # else another loader of this job, or somebody else, was first
            raise Unwritable(f"no database can be made at {file}", error, "start the job again") from error
        return False
    except OSError as error:
        raise Unwritable(f"no database can be made at {file}", error, "start the job again") from error
    return True
