"""Files on servers, by URLs that fsspec knows: s3://, gs://, hdfs://, http:// and others.

A task's part of a file is one request; nothing is copied as a whole. Servers that do not answer are waited for.
"""

from __future__ import annotations

import glob
import hashlib
import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from elasticdl.data.readers.files import LOOKED_AT, Kind, kind_by, one_kind
from elasticdl.data.readers.madetables import MadeTables
from elasticdl.data.readers.parts import open_parts
from elasticdl.data.readers.patience import Patience
from elasticdl.data.readers.reader import BadRecords, Reader, filled
from elasticdl.errors import BadData, BadSetting, StorageAway
from elasticdl.files import folders
from elasticdl.spec.readers import scheme_of

_PIECE = 8 << 20
_HTTP_SECONDS = 20.0
"""How long a server of HTTP may be silent in a request."""
_MARKS = (
    "ETag",
    "etag",
    "LastModified",
    "last_modified",
    "mtime",
    "generation",
    "md5Hash",
    "created",
    "modified",
)
"""What servers say besides the size of what a file's content is."""

_Answer = TypeVar("_Answer")


class Server:
    """Files on one server, asked with patience."""

    def __init__(self, origin: str, patience: Patience) -> None:
        """Raises BadSetting for a URL that fsspec does not know, or that needs a package."""
        try:
            from fsspec.core import url_to_fs
        except ImportError:
            raise BadSetting(f"{origin} needs the package fsspec: pip install 'elasticdl[remote]'") from None
        try:
            self._files, self.path = url_to_fs(origin, **_options(origin))
        except ImportError as error:
            raise BadSetting(f"{origin} needs another package: {error}") from None
        except (ValueError, OSError) as error:
            raise BadSetting(f"--training_data: {origin} can't be read: {error}") from error
        self._patience = patience

    def url(self, path: str) -> str:
        """Return the whole URL of a path."""
        return str(self._files.unstrip_protocol(path))

    def ask(self, path: str, ask: Callable[[Any], _Answer]) -> _Answer:
        """Ask the server until it answers. Raises BadData for what can't be read, StorageAway if it is silent for too long."""
        url = self.url(path)
        try:
            return self._patience.call(url, lambda: ask(self._files))
        except FileNotFoundError:
            raise BadData(f"{url} does not exist") from None
        except StorageAway:
            raise
        except Exception as error:  # each file system of fsspec has its own
            reason = " ".join(str(error).split())[:300]
            raise BadData(f"{url} can't be read: {type(error).__name__}: {reason}") from error

    def find(self, origin: str) -> list[str]:
        """Return the paths that a URL stands for, as of files of this machine. Raises BadData."""
        path = self.path
        if glob.has_magic(origin) and scheme_of(origin) not in ("http", "https"):
            found = self.ask(path, lambda files: files.glob(path))
        else:
            listed = [{"name": path, "type": "file"}]
            # Of HTTP all is a file; the directories are those that the user writes as such.
            if origin.endswith("/") or self.ask(path, lambda files: files.info(path)["type"]) == "directory":
                listed = self.ask(path, lambda files: files.ls(path, detail=True))
            named = [(entry["name"], entry["type"]) for entry in listed]
            found = [
                name
                for name, kind in named
                if kind == "file" and folders.is_data(name.rstrip("/").rpartition("/")[2])
            ]
        if not found:
            raise BadData(f"there is no file at {origin}")
        return sorted(found)

    def mark(self, path: str) -> str:
        """Return what names a file's present content, as far as the server tells."""

        def ask(files: Any) -> Mapping[str, Any]:
            files.invalidate_cache()
            said: Mapping[str, Any] = files.info(path)
            return said

        said = self.ask(path, ask)
        marks = [str(said[name]) for name in _MARKS if said.get(name) is not None]
        return hashlib.blake2b(repr((said.get("size"), marks)).encode(), digest_size=8).hexdigest()

    def size(self, path: str) -> int:
        """Return the bytes of a file. Raises BadData if the server does not say."""
        size = self.ask(path, lambda files: files.info(path).get("size"))
        if not isinstance(size, int):
            raise BadData(
                f"{self.url(path)}: the server does not say how many bytes it has, so parts of it can't be read; copy it"
            )
        return size

    def part(self, path: str, start: int, end: int) -> bytes:
        """Return a part of a file. Raises BadData."""
        content = (
            self.ask(path, lambda files: files.cat_file(path, start=start, end=end)) if end > start else b""
        )
        if len(content) > end - start:
            raise BadData(
                f"{self.url(path)}: the server sends the whole file instead of a part (it knows no Range); copy the file"
            )
        if len(content) < end - start:
            raise BadData(
                f"{self.url(path)} has changed since it was opened; data must not change while a job runs, start the job again"
            )
        return bytes(content)


def _options(origin: str) -> dict[str, Any]:
    if scheme_of(origin) not in ("http", "https"):
        return {}
    import aiohttp

    return {
        "client_kwargs": {
            "timeout": aiohttp.ClientTimeout(sock_connect=_HTTP_SECONDS, sock_read=_HTTP_SECONDS)
        }
    }


class RemoteFile:
    """A file on a server: for its parts, and for readers of tables."""

    def __init__(self, server: Server, path: str) -> None:
        """Ask for its size. Raises BadData."""
        self._server, self._path = server, path
        self._size = server.size(path)

    def fingerprint(self) -> str:
        """Return what names its present content. Raises BadData."""
        return self._server.mark(self._path)

    def stream(self) -> Any:
        """Yield the content from the beginning to the end. Raises BadData."""
        for start in range(0, self._size, _PIECE):
            yield self._server.part(self._path, start, min(start + _PIECE, self._size))

    def part(self, start: int, end: int) -> bytes:
        """Return the bytes from `start` to before `end`. Raises BadData."""
        return self._server.part(self._path, start, end)

    def opened(self) -> io.RawIOBase:
        """Return a file of which any part can be read."""
        return _Seekable(self, self._size)


class _Seekable(io.RawIOBase):
    """What readers of tables read: each read is one request."""

    def __init__(self, file: RemoteFile, size: int) -> None:
        self._file, self._size, self._at = file, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def read(self, size: int = -1) -> bytes:
        end = self._size if size < 0 else min(self._size, self._at + size)
        content = self._file.part(self._at, max(self._at, end))
        self._at += len(content)
        return content


def open_remote(
    origin: str,
    params: Mapping[str, Any],
    folder: Path,
    tables: MadeTables,
    records_per_task: int,
    bad_records: BadRecords,
    patience: Patience,
) -> Reader:
    """Open the record files that a URL stands for. Raises BadData, BadSetting or StorageAway."""
    server = Server(origin, patience)
    paths = {server.url(path): path for path in server.find(origin)}
    files = {url: RemoteFile(server, path) for url, path in paths.items()}
    kinds: dict[str, Kind] = {}
    for url, path in paths.items():
        start = server.part(path, 0, min(LOOKED_AT, server.size(path)))
        if start.startswith(b"\x1f\x8b"):
            raise BadData(
                f"{url} is compressed (gzip), which only files of this machine may be; unpack it: gunzip"
            )
        if kind := kind_by(start, url.partition("?")[0]):
            kinds[url] = kind
    empty = [url for url in files if url not in kinds and not url.rpartition("/")[2].startswith("_")]
    kind = one_kind(origin, kinds, len(files))
    if kind is Kind.RECORDIO:
        raise BadData(
            f"{origin} is RecordIO, which only files of this machine may be; copy it, or write it as Parquet"
        )
    if kind in (Kind.PARQUET, Kind.ARROW):
        return _tables(
            origin, kind, {url: files[url] for url in kinds}, params, records_per_task, bad_records, empty
        )
    return open_parts(origin, kinds, empty, files.__getitem__, params, tables, folder, bad_records)


def _tables(
    origin: str,
    kind: Kind,
    files: Mapping[str, RemoteFile],
    params: Mapping[str, Any],
    records_per_task: int,
    bad_records: BadRecords,
    empty: Sequence[str],
) -> Reader:
    from elasticdl.data.readers.tablefiles import TableReader
    from elasticdl.data.readers.tables import table_params

    reader = TableReader(kind, files, table_params(params), records_per_task, bad_records, empty)
    return filled(origin, reader, "there is no row")
