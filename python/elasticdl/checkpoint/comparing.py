"""Reading all of a checkpoint to compare it with its checksums, of both kinds, where nobody wants to know what is in it.

Files are read in pieces, several at a time, so that memory is bounded and storage is what is waited for.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from elasticdl._core import crc32c
from elasticdl.checkpoint.group import GroupManifest, verify_parts
from elasticdl.checkpoint.manifest import Manifest
from elasticdl.control.protocol.psmessages import SlotSection
from elasticdl.errors import BadData

_AT_ONCE = 4
"""Slots that are read at the same time; one reader has rarely all that network storage can give."""
_PIECE = 8 << 20


def compare(manifest: Manifest | GroupManifest) -> None:
    """Compare all of a checkpoint with its manifest. Raises BadData, naming file and slot."""
    if isinstance(manifest, GroupManifest):
        verify_parts(manifest)
        return
    with ThreadPoolExecutor(_AT_ONCE, "compare") as readers:
        try:
            for _ in readers.map(_compare_slot, manifest.sections):
                pass
        finally:
            readers.shutdown(cancel_futures=True)


def _compare_slot(placed: tuple[Path, SlotSection]) -> None:
    file, section = placed
    crc, left = 0, section.length
    try:
        # not mapped: a file that is cut meanwhile would end this process
        with open(file, "rb") as stream:
            stream.seek(section.offset)
            while left and (piece := stream.read(min(left, _PIECE))):
                crc = crc32c(piece, crc)
                left -= len(piece)
    except OSError as error:
        raise BadData(f"{file}: the checkpoint can't be read: {error.strerror}") from None
    if left or crc != section.crc:
        raise BadData(f"{file}: the checkpoint is damaged: the checksum of slot {section.slot} does not hold")
