"""Reading all of a checkpoint to compare it with its checksums, of both kinds, where nobody wants to know what is in it.

Files are read in pieces, several at a time, so that memory is bounded and storage is what is waited for.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from elasticdl._core import crc32c
from elasticdl.checkpoint.group import GroupManifest
from elasticdl.checkpoint.manifest import Manifest
from elasticdl.control.protocol.psmessages import SlotSection
from elasticdl.errors import BadData

_AT_ONCE = 4
"""Slots or parts that are read at the same time; one reader has rarely all that network storage can give."""
_PIECE = 8 << 20
_ROWS = 1
"""Kind of a piece of a slot that holds rows."""


@dataclass(frozen=True, slots=True)
class _Bytes:
    """Some bytes of a file that have a checksum, and what that is called."""

    file: Path
    start: int
    length: int
    crc: int
    checksum: str


def compare(manifest: Manifest | GroupManifest) -> None:
    """Compare all of a checkpoint with its manifest. Raises BadData, naming the file, and the slot."""
    with ThreadPoolExecutor(_AT_ONCE, "compare") as readers:
        try:
            for _ in readers.map(_compare, _all_of(manifest)):
                pass
        finally:
            readers.shutdown(cancel_futures=True)


def _all_of(manifest: Manifest | GroupManifest) -> Iterator[_Bytes]:
    if isinstance(manifest, GroupManifest):
        for part in manifest.parts:
            yield _Bytes(part.file, 0, part.size, part.crc, "its checksum")
        return
    for file, section in manifest.sections:
        yield _Bytes(
            file, section.offset, section.length, section.crc, f"the checksum of slot {section.slot}"
        )


def _compare(expected: _Bytes) -> None:
    crc, left = 0, expected.length
    try:
        # not mapped: a file that is cut meanwhile would end this process
        with open(expected.file, "rb") as stream:
            stream.seek(expected.start)
            while left and (piece := stream.read(min(left, _PIECE))):
                crc = crc32c(piece, crc)
                left -= len(piece)
    except OSError as error:
        raise BadData(f"{expected.file}: the checkpoint can't be read: {error.strerror}") from None
    if left or crc != expected.crc:
        raise BadData(f"{expected.file}: the checkpoint is damaged: {expected.checksum} does not hold")


def rows_by_table(manifest: Manifest) -> Counter[int]:
    """Compare all of a checkpoint of servers with its manifest; return how many rows each table has, by number.

    Raises BadData, naming file and slot.
    """
    compare(manifest)
    rows = Counter[int]()
    for file, section in manifest.sections:
        try:
            with open(file, "rb") as stream:
                for table, count in _rows_of(stream, section):
                    rows[table] += count
        except (OSError, struct.error) as error:
            raise BadData(f"{file}: slot {section.slot} of the checkpoint can't be read: {error}") from None
    return rows


def _rows_of(stream: BinaryIO, slot: SlotSection) -> Iterator[tuple[int, int]]:
    """Yield table and number of rows of the pieces of a slot; only their beginnings are read. Raises OSError or struct.error."""

    def at(place: int, size: int) -> bytes:
        stream.seek(slot.offset + place)
        return stream.read(min(size, max(slot.length - place, 0)))

    (stamps,) = struct.unpack("<Q", at(24, 8))
    place = 32 + 8 * stamps
    while length := struct.unpack("<Q", at(place, 8))[0]:
        kind, table, count = struct.unpack("<IIQ", at(place + 8, 16))
        if kind == _ROWS:
            yield table, count
        place += 8 + 8 * length
