"""The file that a program makes of a task: written beside its place, linked there when the task is done; what exists stays."""

from __future__ import annotations

import errno
import os
import re
import secrets
from contextlib import suppress
from pathlib import Path

from elasticdl.errors import BadSetting, Unwritable

_SUFFIX = re.compile(r"(\.[A-Za-z0-9_-]+)*")
_PART = re.compile(r"part-(\d{8,})(\..*)?")
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EMLINK, errno.ENOSYS)
"""What file systems say that have no hard links."""


def parts_in(directory: Path) -> frozenset[int]:
    """Return the numbers of the tasks whose files are there. Raises OSError."""
    return frozenset(
        int(found[1]) for path in directory.iterdir() if (found := _PART.fullmatch(path.name)) is not None
    )


class TaskOutput(os.PathLike[str]):
    """A path at which the file of a task is to be made; it can be opened at once, or be the target of a `with`.

    An exception inside the `with` drops what was written.
    """

    def __init__(self, directory: Path, task: int, suffix: str) -> None:
        """Choose a path; nothing is there. Raises BadSetting for a suffix that is none."""
        if not _SUFFIX.fullmatch(suffix):
            raise BadSetting(f'task.output: expected a suffix such as ".csv", received {suffix!r}')
        self._place = directory / f"part-{task:08d}{suffix}"
        # Beside the directory, which becomes the result; the suffix stays, as libraries tell formats by it.
        self._draft = directory.parent / f".part-{task:08d}.{secrets.token_hex(8)}{suffix}"

    def __fspath__(self) -> str:
        """Return the path."""
        return str(self._draft)

    def __enter__(self) -> Path:
        """Return the path."""
        return self._draft

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        """Drop the file after an exception."""
        if kind is not None:
            self.drop()

    def publish(self) -> None:
        """Let the file be that of its task, unless there is one. Raises BadSetting if nothing was written, or Unwritable."""
        if not self._draft.is_file():
            raise BadSetting(
                "task.output: no file was written to the path that it gave, or it was moved away; write one file to it, or call it only "
                "when there is something to write"
            )
        try:
            descriptor = os.open(self._draft, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            self._link()
        except OSError as error:
            if not self._place.parent.exists():
                return  # another worker was as fast, and the job has ended
            raise Unwritable(
                f"the file of a task can't be written to {self._place}", error, "start the job again"
            ) from None
        finally:
            self.drop()

    def _link(self) -> None:
        try:
            os.link(self._draft, self._place)
        except FileExistsError:
            return
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            if not self._place.exists():
                self._draft.replace(self._place)

    def drop(self) -> None:
        """Leave nothing but what was published."""
        with suppress(OSError):
            self._draft.unlink(missing_ok=True)
