"""The built-in readers: which one reads a file, and what the core reads itself, TFRecord, CSV and lines, one shard per file.

Bytes are found, checked and parsed by the Rust core; this picks the files and keeps a bounded number of them
open. A directory of ten thousand small files must not need ten thousand descriptors. Tables are read by pyarrow (`tablefiles.py`,
`jsonlines.py`), which is imported for them only.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, assert_never

from elasticdl._core import CSVFile, LinesFile, TFRecordFile
from elasticdl.data.plan.shard import Task
from elasticdl.data.readers.csvparams import (
    NO_PARAMS,
    CSVColumns,
    CSVParams,
    check_columns,
    csv_metadata,
    csv_params,
)
from elasticdl.data.readers.files import (
    GZIP,
    Kind,
    Progress,
    find_files,
    kind_of,
    make_index,
    one_kind,
    refuse_params,
    start_of,
)
from elasticdl.data.readers.imageorigins import image_origin
from elasticdl.data.readers.installed import Opening, open_installed
from elasticdl.data.readers.patience import Patience
from elasticdl.data.readers.reader import BadRecords, Reader, filled
from elasticdl.data.readers.recordiofiles import LocalChunks, RecordIOReader
from elasticdl.data.readers.spans import Spans
from elasticdl.errors import BadData
from elasticdl.files.permissions import PRIVATE_FOLDER
from elasticdl.spec.readers import By, reader_of, scheme_of

if TYPE_CHECKING:
    from elasticdl.data.readers.madetables import MadeTables

_OPEN_FILES = 128

_BLOCK = 256
"""Records that `read_records` fetches at a time."""


_File = TFRecordFile | CSVFile | LinesFile


class FileReader:
    """Reads records of files of one kind; lines are bytes, which are not looked at.

    Attributes:
        kind: what the files are.
        metadata: names of the columns (CSV without a header: `column_0`, `column_1`, …).
        fingerprints: of each file that has content.
        block: any record can be had by itself.
    """

    block = 1

    def __init__(
        self,
        kind: Kind,
        indexes: Mapping[Path, Path],
        bad_records: BadRecords,
        params: CSVParams = NO_PARAMS,
        empty: Sequence[str] = (),
    ) -> None:
        """Open the files that have content; `empty` names those without, which are shards of no records."""
        self.kind = kind
        self._indexes = {str(path): index for path, index in indexes.items()}
        self._params = params
        self._bad_records = bad_records
        self._lock = threading.Lock()
        self._open: OrderedDict[str, _File] = OrderedDict()
        self._spans = Spans()
        self._counts: dict[str, int] = {}
        self.fingerprints: dict[str, str] = {}
        first: CSVColumns | None = None
        for name in self._indexes:
            file = self._file(name)
            self._counts[name] = len(file)
            self.fingerprints[name] = file.fingerprint
            if isinstance(file, CSVFile) and file.columns:
                first = first or (name, file.header, file.columns)
                check_columns(first, (name, file.header, file.columns))
        self._counts |= dict.fromkeys(empty, 0)
        self.metadata = csv_metadata(first)

    def create_shards(self) -> list[tuple[str, int, int]]:
        """Return each file as a shard."""
        return [(name, 0, count) for name, count in self._counts.items()]

    def read_records(self, task: Task) -> Iterator[bytes | list[str]]:
        """Yield the records of `task` in their order in the file. Raises BadData."""
        for begin in range(task.start, task.end, _BLOCK):
            yield from self.read(task, range(begin, min(begin + _BLOCK, task.end)))

    def read(self, task: Task, records: Sequence[int]) -> list[Any]:
        """Return `records` of the task's file in the order asked, without bad ones if the policy allows them.

        Raises BadData.
        """
        name = task.shard.name
        file = self._file(name)
        span = self._spans.of(name, task.start, task.end, len(records), file.span)
        if self._bad_records.limit == 0 or isinstance(file, LinesFile):
            return list(file.read(records, span))
        good, bad = file.read_good(records, span)
        self._bad_records.allow(name, bad)
        return list(good)

    def _file(self, name: str) -> _File:
        with self._lock:
            if file := self._open.get(name):
                self._open.move_to_end(name)
                return file
            if name not in self._indexes:
                raise BadData(f"there is no data file {name}")
            index = str(self._indexes[name])
            match self.kind:
                case Kind.TFRECORD:
                    file = TFRecordFile(name, index)
                case Kind.JSON_LINES:
                    file = LinesFile(name, index)
                case Kind.RECORDIO | Kind.PARQUET | Kind.ARROW:
                    raise AssertionError(f"files of {self.kind} have another reader")
                case Kind.CSV:
                    file = CSVFile(name, index, self._params.delimiter_of(name), self._params.header)
                case _:
                    assert_never(self.kind)
            self._open[name] = file
            if len(self._open) > _OPEN_FILES:
                self._open.popitem(last=False)
            return file


def open_reader(
    origin: str,
    params: Mapping[str, Any],
    folder: Path,
    bad_records: BadRecords | None = None,
    progress: Progress | None = None,
    records_per_task: int = 1,
    made: MadeTables | None = None,
    patience: Patience | None = None,
) -> Reader:
    """Open the record files that `origin` stands for, indexing what has no fitting index yet, several files
    at a time, or images, or what another package reads.

    Args:
        origin: a file, a directory (the files in it) or a glob; all of one kind, told by their content or their suffix. `NAME://…` is
            the affair of an installed reader. A directory of directories of images is one, too.
        params: for CSV `header` (true, false or `auto`) and `delimiter`; for tables `rows` (`columns` or `strings`) and `columns`; for
            images `annotations` and `classes`.
        folder: a folder of the job, for indexes.
        bad_records: the policy for corrupt records; None allows none.
        progress: told now and then the bytes indexed and the bytes in all, from any thread.
        records_per_task: records of a task, unless blocks are larger.
        made: where tables lie that are made of data without numbers of records; None: in `folder`.
        patience: with servers of files that do not answer.

    Raises BadData or BadSetting, with the file and what to do.
    """
    bad_records = bad_records or BadRecords()
    if by := reader_of(origin):
        opening = Opening(folder, records_per_task, bad_records)
        return _open_url(by, origin, params, opening, made, patience or Patience())
    if images := image_origin(origin, params):
        from elasticdl.data.readers.images import ImageReader
        from elasticdl.data.readers.madetables import MadeTables

        name = str(Path(origin).absolute())
        reader = ImageReader(name, images, params, made or MadeTables(folder), bad_records)
        return filled(origin, reader, "there is no image in its directories")
    files = find_files(origin)
    starts = {str(path): start_of(path, len(GZIP)) for path in files}
    if GZIP in starts.values():
        from elasticdl.data.readers.gzipfiles import open_compressed
        from elasticdl.data.readers.madetables import MadeTables
        from elasticdl.data.readers.tablefiles import LocalFile

        tables = made or MadeTables(folder)
        return open_compressed(
            origin, starts, lambda name: LocalFile(Path(name)), params, folder, tables, bad_records, progress
        )
    kinds = {path: kind for path in files if (kind := kind_of(path))}
    kind = one_kind(origin, {str(path): kind for path, kind in kinds.items()}, len(files))
    # files such as _SUCCESS are marks, not data
    empty = [str(path) for path in files if path not in kinds and not path.name.startswith("_")]
    if kind in (Kind.PARQUET, Kind.ARROW):
        from elasticdl.data.readers.tablefiles import LocalFile, TableReader
        from elasticdl.data.readers.tables import table_params

        sources = {str(path): LocalFile(path) for path in kinds}
        rows = TableReader(kind, sources, table_params(params), records_per_task, bad_records, empty)
        return filled(origin, rows, "there is no row")
    if kind in (Kind.TFRECORD, Kind.RECORDIO):
        refuse_params(kind, params)
    if kind is Kind.RECORDIO:
        chunks = RecordIOReader(list(map(str, kinds)), LocalChunks, records_per_task, empty)
        return filled(origin, chunks, "its chunks are empty")
    csv = csv_params(params) if kind is Kind.CSV else NO_PARAMS
    folder.mkdir(PRIVATE_FOLDER, parents=True, exist_ok=True)
    indexes = _index_all(list(kinds), kind, csv, folder, progress)
    if kind is Kind.JSON_LINES:
        from elasticdl.data.readers.jsonlines import JSONLinesReader
        from elasticdl.data.readers.tables import table_params

        lines = filled(origin, FileReader(kind, indexes, BadRecords(), empty=empty), "there is no line")
        return JSONLinesReader(lines, table_params(params), bad_records)
    return filled(origin, FileReader(kind, indexes, bad_records, csv, empty), "there is only a header")


def _open_url(
    by: By,
    origin: str,
    params: Mapping[str, Any],
    opening: Opening,
    made: MadeTables | None,
    patience: Patience,
) -> Reader:
    folder = opening.folder
    folder.mkdir(PRIVATE_FOLDER, parents=True, exist_ok=True)
    if by is By.INSTALLED:
        return open_installed(scheme_of(origin), origin, params, opening)
    match by:
        case By.DATABASE:
            from elasticdl.data.readers.madetables import MadeTables
            from elasticdl.data.readers.sqltables import open_table_of

            return open_table_of(
                origin, params, made or MadeTables(folder), opening.records_per_task, opening.bad_records
            )
        case By.MAXCOMPUTE:
            from elasticdl.data.readers.maxcompute import open_maxcompute

            return open_maxcompute(origin, params)
        case By.SERVER:
            from elasticdl.data.readers.madetables import MadeTables
            from elasticdl.data.readers.remotefiles import open_remote

            per_task, policy = opening.records_per_task, opening.bad_records
            return open_remote(origin, params, folder, made or MadeTables(folder), per_task, policy, patience)
    assert_never(by)


def _index_all(
    paths: list[Path], kind: Kind, params: CSVParams, folder: Path, progress: Progress | None
) -> dict[Path, Path]:
    total = sum(path.stat().st_size for path in paths)
    done: dict[Path, int] = {}
    lock = threading.Lock()

    def index(path: Path) -> Path:
        def tell(scanned: int, _size: int) -> None:
            if progress:
                with lock:
                    done[path] = scanned
                    progress(sum(done.values()), total)

        return make_index(path, kind, params.delimiter_of(str(path)), folder, tell)

    if len(paths) == 1:
        return {paths[0]: index(paths[0])}
    with ThreadPoolExecutor(min(len(paths), os.cpu_count() or 1, 16), "index") as pool:
        futures = [pool.submit(index, path) for path in paths]
        try:
            return {path: future.result() for path, future in zip(paths, futures, strict=True)}
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
