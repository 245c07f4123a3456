"""Files of a folder that is tables: of this machine, or behind s3://, which fsspec reads and writes."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Protocol

from elasticdl.data.readers.remotefiles import file_system
from elasticdl.errors import BadData, BadSetting
from elasticdl.files.drafts import replacing

SERVERS = ("s3",)
"""Schemes of URLs that are folders and that statements may name."""
_OPTIONS = {"use_listings_cache": False, "default_block_size": 5 << 20}
"""Of fsspec: others write into a bucket while a script runs; and a part of a file is no reason to fetch 50 MB."""


class FolderFiles(Protocol):
    """A folder with files."""

    name: str
    """For messages."""

    def names(self) -> list[str]:
        """Return the names of its files; none if it is not there."""

    def path(self, name: str) -> str:
        """Return the path or URL of a file."""

    def opened(self, name: str) -> AbstractContextManager[Any]:
        """Open a file to read."""

    def replacing(self, name: str) -> AbstractContextManager[Any]:
        """Yield a file to write, which is whole in its place at the end, or not there. Raises OSError."""


class LocalFolder:
    """A directory of this machine, for `FolderFiles`."""

    def __init__(self, folder: Path) -> None:
        """Raises BadSetting if there is none."""
        if not folder.is_dir():
            raise BadSetting(f"--database: there is no directory {folder}")
        self.name = f"the directory {folder.absolute()}"
        self._folder = folder

    def names(self) -> list[str]:
        """Return the names of its files."""
        try:
            return [path.name for path in self._folder.iterdir() if path.is_file()]
        except OSError:
            return []

    def path(self, name: str) -> str:
        """Return the path of a file."""
        return str(self._folder.absolute() / name)

    def opened(self, name: str) -> AbstractContextManager[Any]:
        """Open a file to read."""
        return open(self.path(name), "rb")

    def replacing(self, name: str) -> AbstractContextManager[Any]:
        """Yield a file to write, which gets its name at the end. Raises OSError."""
        return replacing(self._folder / name)


class RemoteFolder:
    """What a URL of a server begins, for `FolderFiles`."""

    def __init__(self, url: str) -> None:
        """Raises BadSetting for a URL that fsspec does not know, or that needs a package."""
        self._files, self._path = opened_server(url)
        if not self._path.strip("/"):
            raise BadSetting(f"--database: {url} names no bucket; write s3://BUCKET/FOLDER")
        self.name = f"the folder {url}"
        self._url = url.rstrip("/")

    def names(self) -> list[str]:
        """Return the names of its files. Raises BadData if the server does not tell."""
        try:
            found = self._files.ls(self._path, detail=True)
        except FileNotFoundError:
            return []
        except Exception as error:  # each file system of fsspec has its own
            raise BadData(f"{self._url} can't be read: {_said(error)}") from error
        return [entry["name"].rpartition("/")[2] for entry in found if entry["type"] == "file"]

    def path(self, name: str) -> str:
        """Return the URL of a file."""
        return f"{self._url}/{name}"

    def opened(self, name: str) -> AbstractContextManager[Any]:
        """Open a file to read."""
        opened: AbstractContextManager[Any] = self._files.open(f"{self._path}/{name}", "rb")
        return opened

    @contextmanager
    def replacing(self, name: str) -> Iterator[Any]:
        """Yield a file to write, which is sent at the end: an object appears when all of it has come. Raises OSError."""
        with tempfile.TemporaryDirectory(prefix="elasticdl-") as directory:
            file = Path(directory, "rows")
            with file.open("wb") as opened:
                yield opened
            try:
                self._files.put_file(os.fspath(file), f"{self._path}/{name}")
            except OSError:
                raise
            except Exception as error:  # as above, without OSError
                raise OSError(_said(error)) from error


def opened_server(url: str) -> tuple[Any, str]:
    """Return the server of a URL, and the path there. Raises BadSetting."""
    return file_system(url, _OPTIONS)


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
