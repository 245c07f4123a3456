"""Files of RecordIO: chunks of records that are compressed as a whole.

The core finds, checks and decompresses them; a chunk is a block, so no task of training splits one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

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


class RecordIOReader:
    """Reads records of RecordIO files; a chunk that is corrupt can't be read, and no record of it is skipped.

    Attributes:
        metadata: there are no columns.
        fingerprints: of each file that has content.
        block: records of the largest chunk.
    """

    metadata = Metadata()

    def __init__(self, paths: Sequence[Path], records_per_task: int, empty: Sequence[str] = ()) -> None:
        """Read the heads of the chunks; `empty` names files without content. Raises BadData."""
        self._open: OrderedDict[str, RecordIOFile] = OrderedDict()
        self.fingerprints: dict[str, str] = {}
        blocks = {}
        for path in map(str, paths):
            file = self._file(path)
            self.fingerprints[path] = file.fingerprint
            blocks[path] = file.chunks
        self._blocks = Blocks(blocks, empty, records_per_task, self._decode)
        self.block = self._blocks.largest

    def create_shards(self) -> list[tuple[str, int, int]]:
        """Return ranges of the files, each of which has whole chunks however it is cut in tasks."""
        return self._blocks.shards()

    def read(self, task: Task, records: Sequence[int]) -> list[bytes]:
        """Return `records` of the task's file in the order asked. Raises BadData."""
        decoded = self._blocks.decoded(task.shard.name, task.start, task.end).records
        return [decoded[record - task.start] for record in records]

    def _decode(self, path: str, pieces: Sequence[Piece]) -> _Chunks:
        file = self._file(path)
        if file.fingerprint != self.fingerprints[path]:
            raise BadData(
                f"{path} has changed since it was opened; data must not change while a job runs, start the job again"
            )
        return _Chunks(
            [record for piece in pieces for record in file.read(piece.block)[piece.start : piece.end]]
        )

    def _file(self, path: str) -> RecordIOFile:
        if path in self._open:
            self._open.move_to_end(path)
            return self._open[path]
        file = self._open[path] = RecordIOFile(path)
        if len(self._open) > _OPEN_FILES:
            self._open.popitem(last=False)
        return file
