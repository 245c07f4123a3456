"""Files of RecordIO: chunks of records that are compressed as a whole.

The core finds, checks and decompresses them; a chunk is a block, so no task of training splits one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from elasticdl._core import RecordIOFile
from elasticdl.data.plan.shard import Task
from elasticdl.data.readers.blocks import Blocks, Piece
from elasticdl.data.readers.reader import Metadata
from elasticdl.errors import BadData

_OPEN_FILES = 128


@dataclass(frozen=True, slots=True)
class _Chunks:
    records: list[bytes]

    @property
    def size(self) -> int:
        """Return the bytes of memory."""
        return sum(map(len, self.records))


class ChunkFile(Protocol):
    """An open file."""

    @property
    def fingerprint(self) -> str:
        """Return what named its content when its heads were read."""

    @property
    def chunks(self) -> Sequence[int]:
        """Return the number of records of each chunk."""

    def read(self, first: int, end: int) -> list[list[bytes]]:
        """Return the records of each chunk from `first` to before `end`. Raises BadData."""


class LocalChunks:
    """A file of this machine."""

    def __init__(self, path: str) -> None:
        """Read the heads of its chunks. Raises BadData."""
        self._file = RecordIOFile(path)
        self.fingerprint, self.chunks = self._file.fingerprint, self._file.chunks

    def read(self, first: int, end: int) -> list[list[bytes]]:
        """Return the records of each chunk from `first` to before `end`. Raises BadData."""
        return [self._file.read(number) for number in range(first, end)]


class RecordIOReader:
    """Reads records of RecordIO files; a chunk that is corrupt can't be read, and no record of it is skipped.

    Attributes:
        metadata: there are no columns.
        fingerprints: of each file that has content.
        block: records of the largest chunk.
    """

    metadata = Metadata()

    def __init__(
        self,
        names: Sequence[str],
        open_file: Callable[[str], ChunkFile],
        records_per_task: int,
        empty: Sequence[str] = (),
    ) -> None:
        """Read the heads of the chunks; `empty` names files without content. Raises BadData."""
        self._open: OrderedDict[str, ChunkFile] = OrderedDict()
        self._open_file = open_file
        self.fingerprints: dict[str, str] = {}
        blocks = {}
        for name in names:
            file = self._file(name)
            self.fingerprints[name] = file.fingerprint
            blocks[name] = file.chunks
        self._blocks = Blocks(blocks, empty, records_per_task, self._decode)
        self.block = self._blocks.largest

    def create_shards(self) -> list[tuple[str, int, int]]:
        """Return ranges of the files, each of which has whole chunks however it is cut in tasks."""
        return self._blocks.shards()

    def read(self, task: Task, records: Sequence[int]) -> list[bytes]:
        """Return `records` of the task's file in the order asked. Raises BadData."""
        decoded = self._blocks.decoded(task.shard.name, task.start, task.end).records
        return [decoded[record - task.start] for record in records]

    def _decode(self, name: str, pieces: Sequence[Piece]) -> _Chunks:
        file = self._file(name)
        if file.fingerprint != self.fingerprints[name]:
            raise BadData(
                f"{name} has changed since it was opened; data must not change while a job runs, start the job again"
            )
        first = pieces[0].block if pieces else 0
        chunks = file.read(first, pieces[-1].block + 1 if pieces else 0)
        return _Chunks(
            [record for piece in pieces for record in chunks[piece.block - first][piece.start : piece.end]]
        )

    def _file(self, name: str) -> ChunkFile:
        if name in self._open:
            self._open.move_to_end(name)
            return self._open[name]
        file = self._open[name] = self._open_file(name)
        if len(self._open) > _OPEN_FILES:
            self._open.popitem(last=False)
        return file
