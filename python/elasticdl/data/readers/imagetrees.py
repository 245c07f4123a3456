"""Directories of images, with what lies beside them: here, or on a server (`remoteimages.py`).

Paths are strings that begin at a directory, with slashes. It tells names and sizes, and reads whole files; what they mean is not its
business.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from elasticdl.errors import BadData
from elasticdl.files import folders


@dataclass(frozen=True, slots=True)
class Entry:
    """What is in a directory.

    Attributes:
        name: its name.
        folder: whether it is a directory.
        size: its bytes, None if it is no file.
    """

    name: str
    folder: bool
    size: int | None


class Tree(Protocol):
    """A directory, and what can be reached from it."""

    def named(self, path: str) -> str:
        """Return what people call a file or directory."""

    def entries(self, path: str) -> list[Entry] | None:
        """Return what is in a directory, by name; None if there is none. Raises BadData."""

    def is_file(self, path: str) -> bool:
        """Tell a file from a directory. Raises BadData for all else."""

    def contents(self, paths: Sequence[str]) -> list[bytes]:
        """Return the contents of files. Raises BadData."""


@dataclass(frozen=True, slots=True)
class LocalTree:
    """A directory of this machine; absolute paths are as they are."""

    root: Path

    def named(self, path: str) -> str:
        """Return the whole path."""
        return str(self.root / path)

    def entries(self, path: str) -> list[Entry] | None:
        """Return what is in a directory, by name; None if there is none. Raises BadData."""
        try:
            with os.scandir(self.root / path) as entries:
                found = [
                    Entry(
                        entry.name,
                        entry.is_dir(follow_symlinks=False),
                        entry.stat().st_size if entry.is_file() else None,
                    )
                    for entry in entries
                ]
        except FileNotFoundError:
            return None
        except OSError as error:
            raise BadData(f"can't read {self.root / path}: {error.strerror}") from error
        return sorted(found, key=lambda entry: entry.name)

    def is_file(self, path: str) -> bool:
        """Tell a file from a directory. Raises BadData for all else."""
        return folders.is_file(self.root / path)

    def contents(self, paths: Sequence[str]) -> list[bytes]:
        """Return the contents of files. Raises BadData."""
        return [self._content(self.root / path) for path in paths]

    def _content(self, path: Path) -> bytes:
        try:
            return path.read_bytes()
        except OSError as error:
            raise BadData(f"can't read {path}: {error.strerror}") from error
