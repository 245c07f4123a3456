"""The journal's pages on a local disk: numbered files.

A page is one file, made by `link(2)` from a synced draft, because that is the one step of a file system that fails if somebody else
was first: a lock on one long file would be kept by a stopped master, or lost by it unknowingly.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from elasticdl.errors import JournalConflict
from elasticdl.files.drafts import drafts_in, new_draft

_MANY = 2000
"""Files that are read in some tenths of a second."""


class FilePages:
    """Files `000001`, `000002`, … of a directory; an emptied one stays as an empty file."""

    def __init__(self, directory: Path) -> None:
        """Use `directory`, which exists."""
        self._directory = directory
        self._written = 0
        """Files since the last compaction."""

    @property
    def where(self) -> str:
        """Return the directory."""
        return str(self._directory)

    @property
    def crowded(self) -> bool:
        """Tell whether there are so many files that a reader would have to wait."""
        return self._written >= _MANY

    def numbers(self) -> list[int]:
        """Return the numbers of the files that there are."""
        names = [path.name for path in self._directory.iterdir()]
        return sorted(int(name) for name in names if name.isascii() and name.isdigit())

    def read(self, number: int) -> bytes:
        """Return a file's content."""
        return self._path(number).read_bytes()

    def write(self, number: int, body: bytes) -> None:
        """Write a file that is not there yet, and sync it."""
        draft, descriptor = new_draft(self._path(number), 0o600)
        try:
            try:
                _write_all(descriptor, body)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            self._link(draft, number, body)
            self._sync_directory()
            self._written += 1
        finally:
            with contextlib.suppress(OSError):
                draft.unlink(missing_ok=True)

    def compact(self, number: int, body: bytes) -> None:
        """Write a file, then replace those before it by empty ones."""
        self.write(number, body)
        self._written = 0
        with contextlib.suppress(OSError):  # the next compaction empties them as well
            for earlier in range(number - 1, 0, -1):
                path = self._path(earlier)
                if path.stat().st_size == 0:
                    break  # this one and all before it were emptied some time ago
                draft, descriptor = new_draft(path, 0o600)
                os.close(descriptor)
                draft.rename(path)

    def tidy(self) -> None:
        """Remove drafts that killed masters left; a live one whose draft goes writes it again."""
        for path in drafts_in(self._directory):
            path.unlink(missing_ok=True)

    def _link(self, draft: Path, number: int, body: bytes) -> None:
        if number > 1 and not self._path(number - 1).exists():
            raise JournalConflict(
                f"record {number} of the journal can't follow: there is no record {number - 1}"
            )
        try:
            os.link(draft, self._path(number))
        except FileExistsError:
            if self._path(number).read_bytes() != body:
                raise JournalConflict(
                    f"record {number} of the journal exists, another master wrote it"
                ) from None

    def _sync_directory(self) -> None:
        descriptor = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _path(self, number: int) -> Path:
        return self._directory / f"{number:06d}"


def _write_all(descriptor: int, body: bytes) -> None:
    view = memoryview(body)
    while view:
        view = view[os.write(descriptor, view) :]
