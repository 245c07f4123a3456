"""Writing record files, for the tools that prepare data; jobs only read.

A file appears under its name when it is whole. CSV needs nothing beyond Python's own `csv` module, so only
TFRecord is here.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from pathlib import Path

from elasticdl._core import crc32c


def write_tfrecord(path: Path, records: Iterable[bytes]) -> int:
    """Write a TFRecord file and return the number of records.

    Format: https://www.tensorflow.org/tutorials/load_data/tfrecord#tfrecords_format_details
    """
    beside = path.with_name(path.name + ".tmp")
    count = 0
    with beside.open("wb") as file:
        for record in records:
            length = struct.pack("<Q", len(record))
            file.write(length + _masked_crc(length) + record + _masked_crc(record))
            count += 1
    beside.replace(path)
    return count


def _masked_crc(data: bytes) -> bytes:
    crc = crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)
