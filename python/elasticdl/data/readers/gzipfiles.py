"""Files that are compressed as a whole by gzip, with random access.

indexed_gzip keeps points at which decompression can begin, about 32 kB each: to find a task's part costs a few milliseconds, and of a file
on a server it is one request.
"""

from __future__ import annotations

import gzip
import io
import threading
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from elasticdl.data.readers.files import GZIP, LOOKED_AT, Kind, Progress, kind_by
from elasticdl.data.readers.madetables import MadeTables
from elasticdl.data.readers.parts import open_parts
from elasticdl.data.readers.reader import BadRecords, Reader
from elasticdl.data.readers.seekable import Seekable
from elasticdl.data.readers.tablefiles import Source
from elasticdl.errors import BadData, BadSetting, ElasticDLError

_PIECE = 4 << 20
_SPACING = 512 << 10
"""Bytes of content between two points: half as much would be twice as fast for small tasks, and keep 12 % of the content."""
_BUFFER = 16 << 10
"""Bytes that are read at a time to look at the beginning of a file, and that indexed_gzip's own buffer has, which is not used."""
_END = 1 << 62
"""Stands for the end of a file."""


def open_compressed(
    origin: str,
    starts: Mapping[str, bytes],
    source_of: Callable[[str], Source],
    params: Mapping[str, Any],
    folder: Path,
    tables: MadeTables,
    bad_records: BadRecords,
    progress: Progress | None = None,
) -> Reader:
    """Open files of which some are compressed, by their names; `starts`: how each begins, empty if it is. Raises BadData or BadSetting."""
    kinds, empty = {}, []
    for name, start in starts.items():
        last = name.rpartition("/")[2]
        if not start:
            empty.append(name)
            continue
        if not start.startswith(GZIP):
            raise BadData(
                f"{origin} mixes files that are compressed (gzip) and others, such as {last}; give one or the other"
            )
        kind = kind_by(_beginning(name, source_of(name)), name.partition("?")[0] if "://" in name else name)
        if kind in (Kind.PARQUET, Kind.ARROW, Kind.RECORDIO):
            raise BadData(
                f"{name} is {kind}, compressed (gzip) as a whole; such files are compressed inside: gunzip {last}"
            )
        if kind is None:
            empty.append(name)
        else:
            kinds[name] = kind
    return open_parts(
        origin,
        kinds,
        empty,
        lambda name: GzipSource(name, source_of(name), params, tables, progress),
        params,
        tables,
        folder,
        bad_records,
    )


def _opened(source: Source, piece: int = _PIECE) -> BinaryIO:
    """Open a file to be read from its beginning; `piece`: bytes that a server is asked for at a time. Raises BadData or OSError."""
    file = source.opened()
    return Path(file).open("rb") if isinstance(file, str) else io.BufferedReader(file, piece)


def _beginning(name: str, source: Source) -> bytes:
    """Return the first bytes of what a file has inside. Raises BadData."""
    try:
        with _opened(source, _BUFFER) as compressed, gzip.open(compressed) as file:
            return file.read(LOOKED_AT)
    except (OSError, EOFError, zlib.error) as error:
        raise _damaged(name, error) from error


def _damaged(name: str, error: Exception) -> ElasticDLError:
    if isinstance(error.__cause__, ElasticDLError):
        return error.__cause__  # what a server said, as indexed_gzip passes it on
    return BadData(f"{name} can't be decompressed (gzip): {error}; was it cut or damaged? Copy it again")


class GzipSource:
    """A file that is compressed."""

    def __init__(
        self,
        name: str,
        source: Source,
        params: Mapping[str, Any],
        tables: MadeTables,
        progress: Progress | None,
    ) -> None:
        """`tables`: where the points of decompression are kept. Raises BadSetting without indexed_gzip."""
        try:
            import indexed_gzip
        except ImportError:
            raise BadSetting(
                f"{name} is compressed (gzip); random access needs the package indexed_gzip: pip install 'elasticdl[gzip]', or gunzip it"
            ) from None
        self._name, self._source, self._progress, self._tables = name, source, progress, tables
        self._points = tables.path(name, params, ".gzip-index")
        self._open = indexed_gzip.IndexedGzipFile
        self._errors = (OSError, EOFError, zlib.error, indexed_gzip.ZranError, indexed_gzip.NotCoveredError)
        self._file: Any = None
        self._remote: Seekable | None = None
        self._places: list[tuple[int, int]] = []
        """Of the points: where one is in the content, and in the file."""
        self._lock = threading.Lock()

    def fingerprint(self) -> str:
        """Return what names the present content of the compressed file. Raises BadData."""
        return self._source.fingerprint()

    def stream(self) -> Iterator[bytes]:
        """Yield the content from the beginning to the end, then keep the points. Raises BadData."""
        # Not by indexed_gzip, which takes the end of a file that was cut for the end of its content.
        try:
            with _opened(self._source) as compressed, gzip.open(compressed) as file:
                size = compressed.seek(0, io.SEEK_END)
                compressed.seek(0)
                while piece := file.read(_PIECE):
                    yield piece
                    if self._progress:
                        self._progress(compressed.tell(), size)
            with (
                _opened(self._source) as compressed,
                self._open(fileobj=compressed, spacing=_SPACING, skip_crc_check=True) as points,
            ):
                points.build_full_index()
                self._tables.put(self._name, self._points, lambda target: points.export_index(fileobj=target))
        except self._errors as error:
            raise _damaged(self._name, error) from error

    def part(self, start: int, end: int) -> bytes:
        """Return the bytes from `start` to before `end`. Raises BadData."""
        with self._lock:
            try:
                file = self._opened_once()
                if self._remote is not None:
                    self._remote.fetch(*self._compressed(start, end))
                # Past its buffer, which would ask twice for what is long: each time decompression begins anew at a point.
                content: bytes = file.raw.pread(end - start, start)
            except self._errors as error:
                raise _damaged(self._name, error) from error
        if len(content) < end - start:
            raise BadData(
                f"{self._name} has changed since it was indexed; data must not change while a job runs, start the job again"
            )
        return content

    def _opened_once(self) -> Any:
        if self._file is None:
            source = self._source.opened()
            of = {"filename": source} if isinstance(source, str) else {"fileobj": source}
            self._file = self._open(**of, index_file=str(self._points), buffer_size=_BUFFER)
            if isinstance(source, Seekable):
                self._remote = source
                self._places = list(self._file.seek_points())
        return self._file

    def _compressed(self, start: int, end: int) -> tuple[int, int]:
        """Return the bytes of the file that are needed for those of its content from `start` to before `end`."""
        first = bisect_right(self._places, start, key=lambda place: place[0]) - 1
        last = bisect_left(self._places, end, key=lambda place: place[0])
        # A point may lie within a byte, which then is the one before.
        return max(0, self._places[first][1] - 1), self._places[last][1] if last < len(self._places) else _END
