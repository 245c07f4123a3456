"""RecordIO on servers: where the chunks of a file are is found once; those of a task are one request.

A chunk is decompressed and checked by the core, which reads files: what was fetched lies in one for that moment.
"""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

import pyarrow as pa
import pyarrow.parquet

from elasticdl._core import RecordIOFile
from elasticdl.data.readers.files import RECORDIO_START
from elasticdl.data.readers.madetables import Made, MadeTables, about
from elasticdl.data.readers.parts import in_file
from elasticdl.errors import BadData

_HEAD = struct.Struct("<4sIIII")
"""What a chunk begins with: magic, checksum, compressor, bytes of the rest, records (`rust/core/src/records/recordio.rs`)."""
_FETCHED = 256 << 10
"""Bytes that are fetched to find heads: many small chunks, or the head of a large one."""


class RemoteSource(Protocol):
    """A file on a server."""

    size: int

    def fingerprint(self) -> str:
        """Return what names its present content. Raises BadData."""

    def part(self, start: int, end: int) -> bytes:
        """Return the bytes from `start` to before `end`. Raises BadData."""


class RemoteChunks:
    """An open file.

    Attributes:
        fingerprint: what named its content when its heads were read.
        chunks: records of each chunk.
    """

    def __init__(self, name: str, source: RemoteSource, tables: MadeTables, scratch: Path) -> None:
        """Find the chunks, unless that was done; `scratch`: a folder for parts. Raises BadData."""
        self._name, self._source, self._scratch = name, source, scratch
        path = tables.once(name, {}, self._made)
        table = pyarrow.parquet.read_table(path)
        self._offsets: list[int] = table["offset"].to_pylist()
        self.chunks: Sequence[int] = table["records"].to_pylist()[:-1]
        self.fingerprint: str = about(path)[1]

    def read(self, first: int, end: int) -> list[list[bytes]]:
        """Return the records of each chunk from `first` to before `end`. Raises BadData."""
        if self._source.fingerprint() != self.fingerprint:
            raise BadData(
                f"{self._name} has changed since it was opened; data must not change while a job runs, start the job again"
            )
        content = self._source.part(self._offsets[first], self._offsets[end])
        with tempfile.NamedTemporaryFile(dir=self._scratch, prefix="chunks-") as file:
            file.write(content)
            file.flush()
            try:
                part = RecordIOFile(file.name)
                return [part.read(number) for number in range(end - first)]
            except BadData as error:
                raise BadData(
                    in_file(str(error), Path(file.name), self._name, sum(self.chunks[:first]))
                ) from None

    def _made(self) -> Made:
        """Return where each chunk begins, and the end of the last one, with the records of each."""
        fingerprint = self._source.fingerprint()
        offsets = []
        # The heads alone, at their places in a file that is otherwise empty: what is wrong with them is the core's to say.
        with tempfile.NamedTemporaryFile(dir=self._scratch, prefix="heads-") as file:
            for at, head in self._heads():
                file.seek(at)
                file.write(head)
                offsets.append(at)
            file.truncate(self._source.size)
            file.flush()
            try:
                records = RecordIOFile(file.name).chunks
            except BadData as error:
                raise BadData(in_file(str(error), Path(file.name), self._name, 0)) from None
        schema = pa.schema([("offset", pa.int64()), ("records", pa.int64())])
        rows = [[*offsets, self._source.size], [*records, 0]]
        return Made(schema, [pa.record_batch(rows, schema=schema)], fingerprint)

    def _heads(self) -> Iterator[tuple[int, bytes]]:
        """Yield the heads of chunks with their places, to the first that is none."""
        at, size = 0, self._source.size
        content, begin = b"", 0
        while at < size:
            if at + _HEAD.size > begin + len(content):
                content, begin = self._source.part(at, min(at + _FETCHED, size)), at
            head = content[at - begin : at - begin + _HEAD.size]
            yield at, head
            if len(head) < _HEAD.size or not head.startswith(RECORDIO_START):
                return
            at += _HEAD.size + _HEAD.unpack(head)[3]
