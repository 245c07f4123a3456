"""Files that are written beside their place and renamed into it: each is whole or not there, also where others may write in its folder.

A draft's name is random, and the file is created for it alone: where somebody has put a link of a name that could be guessed, what
the link leads to would be overwritten. A process that is killed leaves its draft, `.NAME.16-DIGITS.draft`, beside the place.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

_NAME_LENGTH = 50
"""Characters of a file's name in its draft's: with at most four bytes each, all of it stays below a name's 255."""
_DRAFT = re.compile(r"\..*\.[0-9a-f]{16}\.draft", re.DOTALL)


def new_draft(path: Path, mode: int = 0o666) -> tuple[Path, int]:
    """Create an empty draft of `path` beside it; return its path and a descriptor to write it. Raises OSError.

    `mode`: permissions, of which the umask is taken away.
    """
    draft = path.with_name(f".{path.name[:_NAME_LENGTH]}.{secrets.token_hex(8)}.draft")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return draft, os.open(draft, flags, mode)


def is_special(path: Path) -> bool:
    """Tell whether what has this name is a device, a pipe or a socket, which no file is to replace."""
    return path.exists() and not path.is_file() and not path.is_dir()


@contextlib.contextmanager
def replacing(path: Path, mode: int = 0o666) -> Iterator[BinaryIO]:
    """Yield a file to write; it is synced and gets the name `path` at the end.

    After an error, which is raised again, there is no draft, and what was at `path` is still there. Raises OSError (no space, no
    permission; what has the name is a device, a pipe or a socket). `mode`: as in `new_draft`.
    """
    if is_special(path):
        raise FileExistsError(
            errno.EEXIST, "a device, a pipe or a socket is not replaced by a file", str(path)
        )
    draft, descriptor = new_draft(path, mode)
    try:
        with open(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
        raise


def replace_file(path: Path, text: str, mode: int = 0o666) -> None:
    """Write a text file as `replacing` does. Raises OSError."""
    with replacing(path, mode) as file:
        file.write(text.encode())


def drafts_in(directory: Path) -> list[Path]:
    """Return the drafts of files in a directory, those of killed processes among them. Raises OSError."""
    return [path for path in directory.iterdir() if _DRAFT.fullmatch(path.name)]
