"""Writing record files, for the tools that prepare data; jobs only read.

CSV needs nothing beyond Python's own `csv` module, so only TFRecord, RecordIO and the usual content of their records are
here. The encoding of an Example is written out because importing a framework for it would take seconds.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from enum import IntEnum
from pathlib import Path

from elasticdl._core import crc32c, recordio_chunk
from elasticdl.errors import BadData
from elasticdl.files.drafts import replacing


def write_tfrecord(path: str | Path, records: Iterable[bytes]) -> int:
    """Write a TFRecord file, which appears under its name when it is whole; return the number of records.

    Format: https://www.tensorflow.org/tutorials/load_data/tfrecord#tfrecords_format_details
    """
    count = 0
    with replacing(Path(path)) as file:
        for record in records:
            length = struct.pack("<Q", len(record))
            file.write(length + masked_crc(length) + record + masked_crc(record))
            count += 1
    return count


class Compressor(IntEnum):
    """How the chunks of a RecordIO file are compressed, by the numbers in their heads."""

    NONE = 0
    SNAPPY = 1
    GZIP = 2


CHUNK = 32 << 20
"""Bytes of the records of a chunk of RecordIO, which are fewer in all."""


def write_recordio(
    path: str | Path, records: Iterable[bytes], compressor: Compressor = Compressor.SNAPPY, chunk: int = CHUNK
) -> int:
    """Write a RecordIO file, which appears under its name when it is whole; return the number of records.

    `chunk`: the bytes of a chunk's records, at most `CHUNK`; jobs decompress a chunk as a whole, and no task splits one. Raises BadData for
    a record that has as many bytes itself.

    Format: that of the RecordIO of ElasticDL 0.2 (the page "Data").
    """
    count = size = 0
    waiting: list[bytes] = []
    with replacing(Path(path)) as file:
        for record in records:
            if len(record) >= chunk:
                raise BadData(
                    f"record {count} (counted from 0) has {len(record):,} bytes; a chunk of {Path(path).name} has less than {chunk:,}"
                )
            if size + len(record) >= chunk:
                file.write(recordio_chunk(waiting, compressor))
                waiting, size = [], 0
            waiting.append(record)
            size += len(record)
            count += 1
        if waiting:
            file.write(recordio_chunk(waiting, compressor))
    return count


def encode_example(features: Mapping[str, bytes | int]) -> bytes:
    """Return a serialised tf.train.Example; bytes become a bytes_list, integers an int64_list, of one value each.

    Format: tensorflow/core/example/{example,feature}.proto and
    https://protobuf.dev/programming-guides/encoding/.
    """
    entries = b""
    for name, value in features.items():
        if isinstance(value, bytes):
            feature = _field(1, _field(1, value))
        else:
            feature = _field(3, _field(1, _varint(value & 0xFFFF_FFFF_FFFF_FFFF)))
        entries += _field(1, _field(1, name.encode()) + _field(2, feature))
    return _field(1, entries)


def _field(number: int, content: bytes) -> bytes:
    """Return a length-delimited field."""
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def masked_crc(data: bytes) -> bytes:
    """Return the checksum that TFRecord has of some bytes, of 4 bytes."""
    crc = crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)
