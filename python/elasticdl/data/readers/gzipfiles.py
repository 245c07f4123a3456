"""Files that are compressed as a whole by gzip, with random access.

indexed_gzip keeps points at which decompression can begin, about 32 kB each: to find a task's part costs a few milliseconds.
"""

from __future__ import annotations

import gzip
import threading
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from elasticdl._core import fingerprint
from elasticdl.data.readers.files import LOOKED_AT, Kind, Progress, is_gzip, kind_by
from elasticdl.data.readers.madetables import MadeTables
from elasticdl.data.readers.parts import open_parts
from elasticdl.data.readers.reader import BadRecords, Reader
from elasticdl.errors import BadData, BadSetting

_PIECE = 4 << 20
_SPACING = 512 << 10
"""Bytes of content between two points: half as much would be twice as fast for small tasks, and keep 12 % of the content."""
_BUFFER = 16 << 10
"""Bytes that are decompressed at a time; with indexed_gzip's own MiB, a task would decompress one more."""


def open_compressed(
    origin: str,
    files: Sequence[Path],
    params: Mapping[str, Any],
    folder: Path,
    tables: MadeTables,
    bad_records: BadRecords,
    progress: Progress | None,
) -> Reader:
    """Open files of which some are compressed. Raises BadData or BadSetting."""
    kinds, empty = {}, []
    for path in files:
        if not path.stat().st_size:
            empty.append(str(path))
            continue
        if not is_gzip(path):
            raise BadData(
                f"{origin} mixes files that are compressed (gzip) and others, such as {path.name}; give one or the other"
            )
        kind = kind_by(_beginning(path), str(path))
        if kind in (Kind.PARQUET, Kind.ARROW, Kind.RECORDIO):
            raise BadData(
                f"{path} is {kind}, compressed (gzip) as a whole; such files are compressed inside: gunzip {path.name}"
            )
        if kind is None:
            empty.append(str(path))
        else:
            kinds[str(path)] = kind
    return open_parts(
        origin,
        kinds,
        empty,
        lambda name: GzipSource(Path(name), params, tables, progress),
        params,
        tables,
        folder,
        bad_records,
    )


def _beginning(path: Path) -> bytes:
    """Return the first bytes of what a file has inside. Raises BadData."""
    try:
        with gzip.open(path) as file:
            return file.read(LOOKED_AT)
    except (OSError, EOFError, zlib.error) as error:
        raise _damaged(path, error) from error


def _damaged(path: Path, error: Exception) -> BadData:
    return BadData(f"{path} can't be decompressed (gzip): {error}; was it cut or damaged? Copy it again")


class GzipSource:
    """A file that is compressed."""

    def __init__(
        self, path: Path, params: Mapping[str, Any], tables: MadeTables, progress: Progress | None
    ) -> None:
        """`tables`: where the points of decompression are kept. Raises BadSetting without indexed_gzip."""
        try:
            import indexed_gzip
        except ImportError:
            raise BadSetting(
                f"{path} is compressed (gzip); random access needs the package indexed_gzip: pip install 'elasticdl[gzip]', or gunzip it"
            ) from None
        self._path, self._progress, self._tables = path, progress, tables
        self._points = tables.path(str(path), params, ".gzip-index")
        self._open = indexed_gzip.IndexedGzipFile
        self._errors = (OSError, EOFError, zlib.error, indexed_gzip.ZranError, indexed_gzip.NotCoveredError)
        self._file: Any = None
        self._lock = threading.Lock()

    def fingerprint(self) -> str:
        """Return what names the present content of the compressed file. Raises BadData."""
        return fingerprint(str(self._path))

    def stream(self) -> Iterator[bytes]:
        """Yield the content from the beginning to the end, then keep the points. Raises BadData."""
        # Not by indexed_gzip, which takes the end of a file that was cut for the end of its content.
        try:
            with self._path.open("rb") as compressed, gzip.open(compressed) as file:
                size = self._path.stat().st_size
                while piece := file.read(_PIECE):
                    yield piece
                    if self._progress:
                        self._progress(compressed.tell(), size)
            with self._open(str(self._path), spacing=_SPACING, skip_crc_check=True) as points:
                points.build_full_index()
                self._tables.put(
                    str(self._path), self._points, lambda target: points.export_index(fileobj=target)
                )
        except self._errors as error:
            raise _damaged(self._path, error) from error

    def part(self, start: int, end: int) -> bytes:
        """Return the bytes from `start` to before `end`. Raises BadData."""
        with self._lock:
            try:
                if self._file is None:
                    self._file = self._open(
                        str(self._path), index_file=str(self._points), buffer_size=_BUFFER
                    )
                self._file.seek(start)
                content: bytes = self._file.read(end - start)
            except self._errors as error:
                raise _damaged(self._path, error) from error
        if len(content) < end - start:
            raise BadData(
                f"{self._path} has changed since it was indexed; data must not change while a job runs, start the job again"
            )
        return content
