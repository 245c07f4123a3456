"""Files that can't be read at any place at once, because they are compressed or on a server: a task's part of them is fetched and read.

One pass over the file finds where its records can be cut. What a record is, and whether it is whole, is the core's to say here as for files
of this machine: it is given a part as bytes, or in a file if it is long, for the time that it is needed.
"""

from __future__ import annotations

import re
import struct
import tempfile
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, assert_never

import pyarrow as pa
import pyarrow.parquet

from elasticdl._core import CSVFile, LinesFile, TFRecordFile, index_csv, index_lines, index_tfrecord
from elasticdl.data.plan.shard import Task
from elasticdl.data.readers.csvparams import NO_PARAMS, CSVColumns, check_columns, csv_metadata, csv_params
from elasticdl.data.readers.files import Kind, one_kind, refuse_params
from elasticdl.data.readers.madetables import Made, MadeTables, about
from elasticdl.data.readers.reader import BadRecords, Metadata, Reader, filled
from elasticdl.data.readers.writing import masked_crc
from elasticdl.errors import BadData
from elasticdl.files.permissions import PRIVATE_FOLDER

PART = 64 << 10
"""Bytes of the parts in which a file is cut, at least: what a task fetches more than it needs."""
_LONGEST = 64 << 20
"""Bytes of a record, or of a row whose quote is never closed."""
_KEPT = 8
"""Tasks whose parts are kept."""
_IN_MEMORY = 4 << 20
"""Bytes of a part that is kept in memory, at most."""


class PartSource(Protocol):
    """Where the content of a file comes from."""

    def fingerprint(self) -> str:
        """Return what names its present content. Raises BadData."""

    def stream(self) -> Iterator[bytes]:
        """Yield the content from the beginning to the end, some MiB at a time. Raises BadData."""

    def part(self, start: int, end: int) -> bytes:
        """Return the bytes from `start` to before `end`. Raises BadData."""


@dataclass(frozen=True, slots=True)
class RecordForm:
    """What a record of a file is.

    Attributes:
        kind: TFRecord, CSV or JSON lines.
        delimiter: of CSV, what separates fields.
        header: of CSV, whether the first row names the columns; None: by its fields.
    """

    kind: Kind
    delimiter: str = ","
    header: bool | None = None

    def within(
        self, name: str, content: bytes, header: bool | None = False
    ) -> TFRecordFile | CSVFile | LinesFile:
        """Find the records of some bytes, which errors call `name`. Raises BadData."""
        match self.kind:
            case Kind.TFRECORD:
                return TFRecordFile.within(name, content)
            case Kind.CSV:
                return CSVFile.within(name, content, self.delimiter, header)
            case Kind.JSON_LINES:
                return LinesFile.within(name, content)
            case Kind.RECORDIO | Kind.PARQUET | Kind.ARROW:
                raise AssertionError(f"files of {self.kind} have another reader")
        assert_never(self.kind)

    def open(self, path: Path) -> TFRecordFile | CSVFile | LinesFile:
        """Find the records of a file, rows of a header included. Raises BadData."""
        name, index = str(path), str(path.with_suffix(".index"))
        match self.kind:
            case Kind.TFRECORD:
                index_tfrecord(name, index)
                return TFRecordFile(name, index)
            case Kind.CSV:
                index_csv(name, index, self.delimiter)
                return CSVFile(name, index, self.delimiter, False)
            case Kind.JSON_LINES:
                index_lines(name, index)
                return LinesFile(name, index)
            case Kind.RECORDIO | Kind.PARQUET | Kind.ARROW:
                raise AssertionError(f"files of {self.kind} have another reader")
        assert_never(self.kind)

    def end_of(self, content: bytes, begin: int, least: int) -> int:
        """Return the first place at or behind `least` where a record that is not quoted may end, 0 if there is none; at `begin` one begins.

        Raises ValueError if the content is damaged.
        """
        if self.kind is not Kind.TFRECORD:
            return content.find(b"\n", least - 1) + 1
        at = begin
        while at < least:
            if at + 12 > len(content):
                return 0
            (length,) = struct.unpack_from("<Q", content, at)
            if masked_crc(content[at : at + 8]) != content[at + 8 : at + 12]:
                raise ValueError(f"the length that follows {at - begin:,} bytes later has another checksum")
            at += 16 + length
        return at if at <= len(content) else 0


class Cutter:
    """Finds where a file may be cut."""

    def __init__(self, name: str, form: RecordForm, scratch: Path) -> None:
        """`scratch`: a folder for parts."""
        self._name = name
        self._form = form
        self._path = scratch / "cut"
        self._records = 0

    def parts(self, pieces: Iterator[bytes]) -> Iterator[tuple[int, int]]:
        """Yield bytes and number of records of the parts of a file, one after the other. Raises BadData."""
        content = b""
        for piece in pieces:
            content += piece
            begin = 0
            while found := self._next(content, begin):
                end, count = found
                yield end - begin, count
                self._records += count
                begin = end
            content = content[begin:]
            if len(content) > _LONGEST + PART:
                raise BadData(
                    f"record {self._records} of {self._name} (counted from 0) is longer than 64 MiB; is a quote never closed, or was "
                    "the file damaged?"
                )
        if content:
            try:
                yield len(content), self._count(content)
            except BadData as error:
                raise BadData(in_file(str(error), self._path, self._name, self._records)) from None

    def _next(self, content: bytes, begin: int) -> tuple[int, int] | None:
        """Return where the part that begins at a place ends, and how many records it has; None if its end is not there yet."""
        least = begin + PART
        while least <= len(content):
            try:
                end = self._form.end_of(content, begin, least)
            except ValueError as error:
                raise BadData(
                    f"{self._name} is corrupt behind record {self._records} (counted from 0): {error}; copy it again"
                ) from None
            if not end:
                return None
            try:
                return end, self._count(content[begin:end])
            except BadData as error:
                if self._form.kind is not Kind.CSV:
                    raise BadData(in_file(str(error), self._path, self._name, self._records)) from None
                least = (
                    2 * end - begin
                )  # a quote is open at this end of a line, or rows are damaged, which the last part shows
        return None

    def _count(self, content: bytes) -> int:
        return len(self._form.within(str(self._path), content))


def in_file(message: str, path: Path, name: str, first: int) -> str:
    """Return what was said of a part as if it was said of the file."""
    numbered = re.sub(
        rf"record (\d+) of {re.escape(str(path))} \(counted from 0(, [^)]*)?\)",
        lambda found: f"record {int(found[1]) + first} of {name} (counted from 0)",
        message,
    )
    ending = re.sub(
        rf"{re.escape(str(path))} ends in the middle of record (\d+): .*",
        lambda found: (
            f"{name} ends in the middle of record {int(found[1]) + first}; the file was cut, copy it again"
        ),
        numbered,
    )
    return ending.replace(str(path), name)


class _Cuts:
    """Where a file may be cut.

    Attributes:
        offsets: bytes before each part, and all of them.
        records: records before each part, and all of them.
        header: names of columns of a CSV file that has some.
        columns: number of columns of a CSV file.
    """

    def __init__(self, path: Path) -> None:
        table = pyarrow.parquet.read_table(path)
        self.offsets: list[int] = table["offset"].to_pylist()
        self.records: list[int] = table["record"].to_pylist()
        said = about(path)[1]
        self.fingerprint: str = said["fingerprint"]
        self.header: list[str] | None = said["header"]
        self.columns: int = said["columns"]

    @property
    def count(self) -> int:
        """Return the number of records, without a header."""
        return self.records[-1] - bool(self.header)


@dataclass(slots=True)
class _Part:
    """Some records of a file by themselves: the first of them, and how many stand before it there; long ones lie in a file at `path`."""

    path: Path
    file: TFRecordFile | CSVFile | LinesFile
    first: int
    before: int


class PartReader:
    """Reads records of files of one kind, a task's part at a time.

    Attributes:
        metadata: names of the columns, of CSV.
        fingerprints: of each file that has content.
        block: any record can be had by itself.
    """

    block = 1

    def __init__(
        self,
        forms: Mapping[str, RecordForm],
        sources: Mapping[str, PartSource],
        params: Mapping[str, Any],
        tables: MadeTables,
        scratch: Path,
        bad_records: BadRecords,
        empty: Sequence[str] = (),
    ) -> None:
        """Find where the files may be cut, unless that is known; `scratch`: a folder for parts. Raises BadData."""
        self._forms, self._sources, self._bad_records, self._empty = forms, sources, bad_records, empty
        self._folder = tempfile.TemporaryDirectory(prefix="parts-", dir=scratch)
        self._kept: OrderedDict[tuple[str, int, int], _Part] = OrderedDict()
        self._number = 0
        self._cuts = {
            name: _Cuts(tables.once(name, params, lambda name=name: self._made(name)))  # type: ignore[misc]
            for name in sources
        }
        self.fingerprints = {name: found.fingerprint for name, found in self._cuts.items()}
        columns: list[CSVColumns] = [
            (name, cuts.header, cuts.columns) for name, cuts in self._cuts.items() if cuts.columns
        ]
        for other in columns[1:]:
            check_columns(columns[0], other)
        self.metadata: Metadata = csv_metadata(columns[0] if columns else None)

    def create_shards(self) -> list[tuple[str, int, int]]:
        """Return each file as a shard."""
        return [
            *((name, 0, cuts.count) for name, cuts in self._cuts.items()),
            *((name, 0, 0) for name in self._empty),
        ]

    def read(self, task: Task, records: Sequence[int]) -> list[Any]:
        """Return `records` of the task's file in the order asked, without bad ones if the policy allows them. Raises BadData."""
        name = task.shard.name
        if name not in self._cuts:
            raise BadData(f"there is no data file {name}")
        part = self._part(name, task.start, task.end)
        shift = part.before - part.first
        inside = [record + shift for record in records]
        try:
            if self._bad_records.limit == 0 or isinstance(part.file, LinesFile):
                return list(part.file.read(inside))
            good, bad = part.file.read_good(inside)
        except BadData as error:
            raise BadData(in_file(str(error), part.path, name, -shift)) from None
        self._bad_records.allow(
            name, [(record - shift, in_file(what, part.path, name, -shift)) for record, what in bad]
        )
        return list(good)

    def _part(self, name: str, start: int, end: int) -> _Part:
        """Return the part of a file that has some records in a row."""
        key = name, start, end
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key]
        cuts, form, source = self._cuts[name], self._forms[name], self._sources[name]
        if source.fingerprint() != cuts.fingerprint:
            raise BadData(
                f"{name} has changed since it was indexed; data must not change while a job runs, start the job again"
            )
        if not 0 <= start <= end <= cuts.count:
            raise BadData(
                f"{name} has {cuts.count} records; record {end - 1} (counted from 0) does not exist"
            )
        header = bool(cuts.header)
        first = bisect_right(cuts.records, start + header) - 1
        last = bisect_right(cuts.records, max(start, end - 1) + header)
        content, before = source.part(cuts.offsets[first], cuts.offsets[last]), 0
        if first and form.kind is Kind.CSV:
            # All rows must have as many fields as the first one of the file.
            content, before = self._first_row(name) + content, 1
        self._number += 1
        path = Path(self._folder.name) / f"{self._number}.part"
        if len(content) <= _IN_MEMORY:
            file = form.within(str(path), content)
        else:
            path.write_bytes(content)
            file = form.open(path)
        part = _Part(path, file, cuts.records[first] - header, before)
        self._kept[key] = part
        if len(self._kept) > _KEPT:
            _, old = self._kept.popitem(last=False)
            for one in (old.path, old.path.with_suffix(".index")):
                one.unlink(missing_ok=True)
        return part

    def _first_row(self, name: str) -> bytes:
        cuts = self._cuts[name]
        return (",".join(["x"] * cuts.columns).replace(",", self._forms[name].delimiter) + "\n").encode()

    def _made(self, name: str) -> Made:
        """Return where a file may be cut, as a table."""
        form, source = self._forms[name], self._sources[name]
        fingerprint = source.fingerprint()
        offsets, records = [0], [0]
        for size, count in Cutter(name, form, Path(self._folder.name)).parts(source.stream()):
            offsets.append(offsets[-1] + size)
            records.append(records[-1] + count)
        said: dict[str, Any] = {"fingerprint": fingerprint, "header": None, "columns": 0}
        if form.kind is Kind.CSV and records[-1]:
            opened = form.within(name, source.part(0, offsets[1]), form.header)
            assert isinstance(opened, CSVFile)
            said |= {"header": opened.header, "columns": opened.columns}
        schema = pa.schema([("offset", pa.int64()), ("record", pa.int64())])
        return Made(schema, [pa.record_batch([offsets, records], schema=schema)], said)


def open_parts(
    origin: str,
    kinds: Mapping[str, Kind],
    empty: Sequence[str],
    source_of: Callable[[str], PartSource],
    params: Mapping[str, Any],
    tables: MadeTables,
    folder: Path,
    bad_records: BadRecords,
) -> Reader:
    """Open files of which a task's part is fetched, by their names. Raises BadData or BadSetting."""
    kind = one_kind(origin, kinds, len(kinds) + len(empty))
    if kind is Kind.TFRECORD:
        refuse_params(kind, params)
    csv = csv_params(params) if kind is Kind.CSV else NO_PARAMS
    forms = {name: RecordForm(kind, csv.delimiter_of(name), csv.header) for name in kinds}
    sources = {name: source_of(name) for name in kinds}
    folder.mkdir(PRIVATE_FOLDER, parents=True, exist_ok=True)
    policy = BadRecords() if kind is Kind.JSON_LINES else bad_records
    reader = PartReader(forms, sources, params, tables, folder, policy, empty)
    reader = filled(
        origin, reader, "there is no line" if kind is Kind.JSON_LINES else "there is only a header"
    )
    if kind is not Kind.JSON_LINES:
        return reader
    from elasticdl.data.readers.jsonlines import JSONLinesReader
    from elasticdl.data.readers.tables import table_params

    return JSONLinesReader(reader, table_params(params), bad_records)
