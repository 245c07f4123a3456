"""Records that come in blocks: which blocks of a file a task needs, and what was decoded of them lately.

It decodes nothing itself. A task of training has whole blocks, so one entry for each task that is under way is enough; who asks for other
ranges gets those, too.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from elasticdl.data.plan.blocks import unsplit
from elasticdl.errors import BadData

KEPT = 256 << 20
"""Bytes of decoded blocks that are kept; one task's are, however large."""


class Sized(Protocol):
    """What was decoded."""

    @property
    def size(self) -> int:
        """Return the bytes of memory that it keeps."""


_Decoded = TypeVar("_Decoded", bound=Sized)


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a range.

    Attributes:
        block: number of the block in its file.
        records: of the whole block.
        start: first of its records that belongs to the range.
        end: one past the last.
    """

    block: int
    records: int
    start: int
    end: int


class Blocks(Generic[_Decoded]):
    """The blocks of some files.

    Attributes:
        largest: records of the largest block, 1 at least.
    """

    def __init__(
        self,
        blocks: Mapping[str, Sequence[int]],
        empty: Sequence[str],
        records_per_task: int,
        decode: Callable[[str, Sequence[Piece]], _Decoded],
    ) -> None:
        """`blocks`: records of each block of each file; `empty`: files without any; `decode`: decodes a range of a file."""
        self._blocks = blocks
        self._empty = empty
        self._decode = decode
        self.largest = max((records for sizes in blocks.values() for records in sizes), default=1) or 1
        self._per_task = max(records_per_task, self.largest)
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[str, int, int], _Decoded] = OrderedDict()

    def shards(self) -> list[tuple[str, int, int]]:
        """Return ranges of the files, each of which has whole blocks however it is cut in tasks."""
        found = [
            (path, start, count)
            for path, sizes in self._blocks.items()
            for start, count in unsplit(sizes, self._per_task) or [(0, 0)]
        ]
        return [*found, *((path, 0, 0) for path in self._empty)]

    def decoded(self, path: str, start: int, end: int) -> _Decoded:
        """Return what the records of a range are decoded to, once while it is kept. Raises BadData if there are no such records."""
        key = path, start, end
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
            made = self._kept[key] = self._decode(path, self._pieces(path, start, end))
            size = sum(one.size for one in self._kept.values())
            while size > KEPT and len(self._kept) > 1:
                _, oldest = self._kept.popitem(last=False)
                size -= oldest.size
            return made

    def _pieces(self, path: str, start: int, end: int) -> list[Piece]:
        if path not in self._blocks:
            raise BadData(f"there is no data file {path}")
        pieces, first = [], 0
        for block, records in enumerate(self._blocks[path]):
            if records and first < end and start < first + records:
                pieces.append(Piece(block, records, max(0, start - first), min(end - first, records)))
            first += records
        if end > first:
            raise BadData(f"{path} has {first} records; record {end - 1} (counted from 0) does not exist")
        return pieces
