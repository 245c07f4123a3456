"""Files of records: finding them, telling their kind, keeping their indexes.

It reads no record. An index of a large file lies beside the file, where the next job finds it; small files
are indexed faster than a person notices, so their indexes go to the job's folder and leave no trace in the
user's.
"""

from __future__ import annotations

import glob
import hashlib
import os
from collections.abc import Callable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import assert_never

from elasticdl._core import index_csv, index_lines, index_tfrecord, looks_like_tfrecord
from elasticdl.errors import BadData, BadSetting, MissingData
from elasticdl.files import reading
from elasticdl.files.folders import INDEX_SUFFIX, advice, find

LARGE = 64 << 20
"""Bytes from which on a file's index is worth a place beside the file."""

LOOKED_AT = 4096
"""Bytes from the beginning of a file that say of which kind it is."""

GZIP = b"\x1f\x8b"
"""How files begin that are compressed by gzip."""

Progress = Callable[[int, int], None]
"""Told now and then: bytes scanned, bytes in all."""


class Kind(StrEnum):
    """The kinds of record files."""

    TFRECORD = "TFRecord"
    RECORDIO = "RecordIO"
    CSV = "CSV"
    JSON_LINES = "JSON lines"
    PARQUET = "Parquet"
    ARROW = "Arrow"


RECORDIO_START = b"\x04\x03\x02\x01"
"""How a chunk of RecordIO begins."""
_MAGIC = {RECORDIO_START: Kind.RECORDIO, b"PAR1": Kind.PARQUET, b"ARROW1\0\0": Kind.ARROW}
"""How files of a kind begin."""
_UNREADABLE = {
    GZIP: "is compressed (gzip) twice; unpack it: gunzip {name}",
    b"\x28\xb5\x2f\xfd": "is compressed (Zstandard), which can't be read at any place; unpack it: unzstd {name}",
    b"BZh": "is compressed (bzip2), which can't be read at any place; unpack it: bunzip2 {name}",
    b"\xfd7zXZ\0": "is compressed (xz), which can't be read at any place; unpack it: unxz {name}",
    b"PARE": "is encrypted (Parquet); write it without encryption",
    b"FEA1": "is a Feather file of version 1; read it with pyarrow.feather.read_table, and write it with write_feather",
    b"\xff\xff\xff\xff": "seems to be a stream of Arrow; random access needs a file: copy its batches to pyarrow.ipc.new_file",
}
"""How files begin that are like these and can't be read, and what to do."""
_SUFFIXES = {
    ".tfrecord": Kind.TFRECORD,
    ".tfrecords": Kind.TFRECORD,
    ".tfrec": Kind.TFRECORD,
    ".recordio": Kind.RECORDIO,
    ".csv": Kind.CSV,
    ".tsv": Kind.CSV,
    ".jsonl": Kind.JSON_LINES,
    ".ndjson": Kind.JSON_LINES,
    ".json": Kind.JSON_LINES,
    ".parquet": Kind.PARQUET,
    ".arrow": Kind.ARROW,
    ".feather": Kind.ARROW,
}


def find_files(origin: str) -> list[Path]:
    """Return the files that a path, a directory or a glob stands for, sorted by name.

    Of a directory these are the files directly in it, without those whose names begin with `.` or `_`. Raises
    BadData if there is none, or if one is a link to nothing or no regular file.
    """
    path = Path(origin)
    try:
        files = [file.absolute() for file in find(origin)]
    except OSError as error:
        raise BadData(f"can't look for data at {origin}: {error.strerror}") from error
    if not files and not glob.has_magic(origin) and not path.exists():
        raise MissingData(
            f"{origin} does not exist (looked from {Path.cwd()}); give a file, a directory or a glob in quotes"
        )
    if not files:
        instead = advice(origin)
        raise BadData(
            f"no file {'in' if path.is_dir() else 'matches'} {origin}" + (f": {instead}" if instead else "")
        )
    for file in files:
        if not reading.is_utf8(str(file)):
            raise BadData(
                f"{str(file)!r} has a name that is not text in UTF-8; rename the file, or the directory that it lies in"
            )
    return sorted(files)


def start_of(path: Path, size: int) -> bytes:
    """Return the first bytes of a file, so many at most. Raises BadData."""
    try:
        with path.open("rb") as file:
            return file.read(size)
    except OSError as error:
        raise BadData(f"can't read {path}: {error.strerror}") from error


def kind_of(path: Path) -> Kind | None:
    """Return the kind of a file by its content, then by its suffix; None if it is empty.

    Raises BadData for another kind.
    """
    return kind_by(start_of(path, LOOKED_AT), str(path))


def kind_by(start: bytes, path: str) -> Kind | None:
    """Return the kind of a file that begins so (`LOOKED_AT` bytes), then by its suffix; None if it is empty. Raises BadData."""
    if not start:
        return None
    name = path.rpartition("/")[2]
    if looks_like_tfrecord(start):
        return Kind.TFRECORD
    for magic, kind in _MAGIC.items():
        if start.startswith(magic):
            return kind
    for magic, what in _UNREADABLE.items():
        if start.startswith(magic):
            raise BadData(f"{path} {what.format(name=name)}")
    by_suffix = _SUFFIXES.get(Path(name.removesuffix(".gz")).suffix.lower())
    if by_suffix is Kind.JSON_LINES and start.lstrip().startswith(b"["):
        raise BadData(
            f"{path} is one array of JSON; write each of its objects on a line of its own: jq -c '.[]'"
        )
    if by_suffix:
        return by_suffix
    text = start
    if len(start) == LOOKED_AT:  # the last line may be cut in mid-character
        text = start[: max(start.rfind(b"\n"), 1) + 1]
    try:
        text.decode()
        is_text = b"\0" not in text
    except UnicodeDecodeError:
        is_text = False
    if not is_text:
        *kinds, last = Kind
        raise BadData(
            f"{path} is none of {', '.join(kinds)} and {last}; other kinds need a custom_data_reader"
        )
    return Kind.JSON_LINES if text.lstrip().startswith(b"{") else Kind.CSV


def refuse_params(kind: Kind, params: Mapping[str, object]) -> None:
    """Raise BadSetting if a reader that has no parameters gets some."""
    if params:
        raise BadSetting(f"the {kind} reader has no parameters; data_reader_params gives {', '.join(params)}")


def one_kind(origin: str, kinds: Mapping[str, Kind], files: int) -> Kind:
    """Return the kind of all files that have content, of so many. Raises BadData if there are several kinds, or none has content."""
    if not kinds:
        what = "the file is" if files == 1 else "all files are"
        raise BadData(f"{origin} has no records: {what} empty")
    path, kind = next(iter(kinds.items()))
    for other, other_kind in kinds.items():
        if other_kind is not kind:
            raise BadData(
                f"{origin} mixes kinds: {path.rpartition('/')[2]} is {kind}, {other.rpartition('/')[2]} is {other_kind}; "
                "give files of one kind"
            )
    return kind


def make_index(path: Path, kind: Kind, delimiter: str, folder: Path, progress: Progress | None) -> Path:
    """Make sure that a fitting index of `path` exists and return where.

    A large file's goes beside it, or to `folder` if that can't be written; a small file's goes to `folder`.
    Raises BadData.
    """
    key = hashlib.blake2b(os.fsencode(path), digest_size=8).hexdigest()
    places = [folder / f"{path.name[:100]}-{key}{INDEX_SUFFIX}"]
    try:
        if path.stat().st_size >= LARGE:
            places.insert(0, path.with_name(path.name + INDEX_SUFFIX))
        for place in places:
            try:
                match kind:
                    case Kind.TFRECORD:
                        index_tfrecord(str(path), str(place), progress)
                    case Kind.CSV:
                        index_csv(str(path), str(place), delimiter, progress)
                    case Kind.JSON_LINES:
                        index_lines(str(path), str(place), progress)
                    case Kind.RECORDIO | Kind.PARQUET | Kind.ARROW:
                        raise AssertionError(f"files of {kind} have an index of their own")
                    case _:
                        assert_never(kind)
                return place
            except OSError:
                if place == places[-1]:
                    raise
    except OSError as error:
        raise BadData(f"can't index {path}: {error.strerror or error} ({error.filename})") from error
    raise AssertionError("one of the places succeeds or raises")
