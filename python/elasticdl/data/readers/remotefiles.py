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

from elasticdl.data.readers.files import GZIP, LOOKED_AT, Kind, kind_by, one_kind, refuse_params
from elasticdl.data.readers.gzipfiles import open_compressed
from elasticdl.data.readers.images import ImageReader
from elasticdl.data.readers.madetables import MadeTables
from elasticdl.data.readers.parts import open_parts
from elasticdl.data.readers.patience import Patience
from elasticdl.data.readers.reader import BadRecords, Reader, filled
from elasticdl.data.readers.recordiofiles import RecordIOReader
from elasticdl.data.readers.remotechunks import RemoteChunks
from elasticdl.data.readers.remoteimages import contents, remote_image_origin
from elasticdl.data.readers.seekable import Seekable
from elasticdl.errors import BadData, BadSetting, StorageAway
from elasticdl.files import folders
from elasticdl.spec.readers import scheme_of

_PIECE = 8 << 20
_TOGETHER = 128
"""Files that a server is asked about at once, where it has to be asked about each."""
_HTTP_SECONDS = 20.0
"""How long a server of HTTP may be silent in a request."""
_ETAGS = ("ETag", "etag")
"""What servers call the name of a file's content."""
_MARKS = (
    "LastModified",
    "last_modified",
    "mtime",
    "generation",
    "md5Hash",
    "created",
    "modified",
)
"""What they say besides the size of what its content is, where they have no such name."""

_Answer = TypeVar("_Answer")


class Server:
    """Files on one server, asked with patience."""

    def __init__(self, origin: str, patience: Patience) -> None:
        """Raises BadSetting for a URL that fsspec does not know, or that needs a package."""
        self._files, self.path = file_system(origin, _options(origin), "--training_data")
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

    def find(self, origin: str) -> tuple[list[str], bool]:
        """Return the paths of the files that a URL stands for, as of this machine, and whether it is a directory. Raises BadData."""
        path, is_folder = self.path, False
        if glob.has_magic(origin) and scheme_of(origin) not in ("http", "https"):
            found = self.ask(path, lambda files: files.glob(path))
        else:
            listed = [{"name": path, "type": "file"}]
            # Of HTTP all is a file; the directories are those that the user writes as such.
            is_folder = (
                origin.endswith("/") or self.ask(path, lambda files: files.info(path)["type"]) == "directory"
            )
            if is_folder:
                listed = self.ask(path, lambda files: files.ls(path, detail=True))
            named = [(entry["name"], entry["type"]) for entry in listed]
            found = [
                name
                for name, kind in named
                if kind == "file" and folders.is_data_file(name.rstrip("/").rpartition("/")[2])
            ]
        return sorted(found), is_folder

    def mark(self, path: str) -> str:
        """Return what names a file's present content, as far as the server tells."""

        def ask(files: Any) -> Mapping[str, Any]:
            files.invalidate_cache()
            said: Mapping[str, Any] = files.info(path)
            return said

        said = self.ask(path, ask)
        marks = [str(said[name]) for name in _ETAGS if said.get(name) is not None]
        # The same content may have been put there again, later.
        marks = marks or [str(said[name]) for name in _MARKS if said.get(name) is not None]
        return hashlib.blake2b(repr((said.get("size"), marks)).encode(), digest_size=8).hexdigest()

    def together(self, paths: Sequence[str], ask: Callable[[Any, list[str]], list[_Answer]]) -> list[_Answer]:
        """Ask about several files at once; `ask` returns an answer for each. Raises BadData, which names the file."""

        def about(path: str) -> _Answer:
            return self.ask(path, lambda files: ask(files, [path]))[0]

        if not paths:
            return []
        try:
            return self.ask(paths[0], lambda files: ask(files, list(paths)))
        except BadData:
            # Which one it is, is said of one alone.
            return list(map(about, paths))

    def sizes(self, paths: Sequence[str]) -> list[int]:
        """Return the bytes of files. Raises BadData if the server does not say."""
        found: list[int] = []
        for first in range(0, len(paths), _TOGETHER):
            some = paths[first : first + _TOGETHER]
            for path, size in zip(
                some, self.together(some, lambda files, all: files.sizes(all)), strict=True
            ):
                if not isinstance(size, int):
                    raise BadData(
                        f"{self.url(path)}: the server does not say how many bytes it has, so parts of it can't be read; copy it"
                    )
                found.append(size)
        return found

    def starts(self, ends: Mapping[str, int]) -> dict[str, bytes]:
        """Return the beginnings of files, up to where they end. Raises BadData."""

        def ask(files: Any, some: list[str]) -> list[bytes]:
            return contents(files, some, [0] * len(some), [ends[path] for path in some])

        found = dict.fromkeys(ends, b"")
        wanted = [path for path, end in ends.items() if end]
        for first in range(0, len(wanted), _TOGETHER):
            some = wanted[first : first + _TOGETHER]
            for path, content in zip(some, self.together(some, ask), strict=True):
                found[path] = self._checked(path, content, ends[path])
        return found

    def part(self, path: str, start: int, end: int) -> bytes:
        """Return a part of a file. Raises BadData."""
        if end <= start:
            return b""
        content = self.ask(path, lambda files: files.cat_file(path, start=start, end=end))
        return self._checked(path, content, end - start)

    def _checked(self, path: str, content: bytes, wanted: int) -> bytes:
        """Return a part of a file if it has as many bytes as were wanted. Raises BadData."""
        if len(content) > wanted:
            raise BadData(
                f"{self.url(path)}: the server sends the whole file instead of a part (it knows no Range); copy the file"
            )
        if len(content) < wanted:
            raise BadData(
                f"{self.url(path)} has changed since it was opened; data must not change while a job runs, start the job again"
            )
        return bytes(content)


def file_system(origin: str, options: Mapping[str, Any], setting: str = "--database") -> tuple[Any, str]:
    """Return the server of a URL as fsspec has it, and the path there; `setting`: for messages.

    Raises BadSetting for a URL that fsspec does not know, or that needs a package.
    """
    try:
        from fsspec.core import url_to_fs
    except ImportError:
        raise BadSetting(f"{origin} needs the package fsspec: pip install 'elasticdl[remote]'") from None
    try:
        files, path = url_to_fs(origin, **options)
    except ImportError as error:
        raise BadSetting(f"{origin} needs another package: {error}") from None
    except (ValueError, OSError) as error:
        raise BadSetting(f"{setting}: {origin} can't be read: {error}") from error
    return files, str(path)


def _options(origin: str) -> dict[str, Any]:
    scheme = scheme_of(origin)
    if scheme == "s3":
        from fsspec.config import conf

        # Tries of botocore's own would take a minute in which nobody hears that the job waits.
        set_by_user = conf.get("s3", {}).get("config_kwargs", {})
        return {"config_kwargs": {"retries": {"total_max_attempts": 1}, **set_by_user}}
    if scheme not in ("http", "https"):
        return {}
    import aiohttp

    return {
        "client_kwargs": {
            "timeout": aiohttp.ClientTimeout(sock_connect=_HTTP_SECONDS, sock_read=_HTTP_SECONDS)
        }
    }


class RemoteFile:
    """A file on a server: for its parts, and for readers of tables.

    Attributes:
        size: its bytes.
    """

    def __init__(self, server: Server, path: str, size: int) -> None:
        """`path`: on the server."""
        self._server, self._path, self.size = server, path, size

    def fingerprint(self) -> str:
        """Return what names its present content. Raises BadData."""
        return self._server.mark(self._path)

    def stream(self) -> Any:
        """Yield the content from the beginning to the end. Raises BadData."""
        for start in range(0, self.size, _PIECE):
            yield self._server.part(self._path, start, min(start + _PIECE, self.size))

    def part(self, start: int, end: int) -> bytes:
        """Return the bytes from `start` to before `end`. Raises BadData."""
        return self._server.part(self._path, start, end)

    def opened(self) -> io.RawIOBase:
        """Return a file of which any part can be read."""
        return Seekable(self.part, self.size)


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
    found, is_folder = server.find(origin)
    if images := remote_image_origin(server, origin, params, found, is_folder):
        return filled(
            origin,
            ImageReader(origin, images, params, tables, bad_records),
            "there is no image in its directories",
        )
    if not found:
        raise BadData(f"there is no file at {origin}")
    sizes = dict(zip(found, server.sizes(found), strict=True))
    files = {server.url(path): RemoteFile(server, path, size) for path, size in sizes.items()}
    begun = server.starts({path: min(LOOKED_AT, size) for path, size in sizes.items()})
    starts = {server.url(path): start for path, start in begun.items()}
    if any(start.startswith(GZIP) for start in starts.values()):
        return open_compressed(origin, starts, files.__getitem__, params, folder, tables, bad_records)
    kinds = {url: kind for url, start in starts.items() if (kind := kind_by(start, url.partition("?")[0]))}
    empty = [url for url in files if url not in kinds and not url.rpartition("/")[2].startswith("_")]
    kind = one_kind(origin, kinds, len(files))
    if kind is Kind.RECORDIO:
        refuse_params(kind, params)
        chunks = RecordIOReader(
            list(kinds),
            lambda url: RemoteChunks(url, files[url], tables, folder),
            records_per_task,
            empty,
        )
        return filled(origin, chunks, "its chunks are empty")
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
