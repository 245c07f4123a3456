"""Readers and the writer of tables of MaxCompute of ElasticDL 0.2, for `custom_data_reader` and processors that make one.

Jobs themselves read such tables without them: `--training_data=odps://PROJECT/TABLE`. Rows here are as they were then: what is missing is
the text "None".
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from elasticdl.compat.constants import MaxComputeConfig, ReaderType
from elasticdl.compat.readers import (
    AbstractDataReader,
    Metadata,
    RecordIODataReader,
    TextDataReader,
    is_odps_configured,
)
from elasticdl.data.readers.custom import TaskRange
from elasticdl.errors import BadData, BadSetting

_TRIES = 3
_PAUSE = 5.0
"""Seconds before a read is tried again."""
_WORKER = "worker"
"""The column of partitions that the writer writes."""


class _Table:
    """A table, looked for when it is first needed."""

    def __init__(
        self, project: str, access_id: str, access_key: str, endpoint: str | None, table: str
    ) -> None:
        """`table`: perhaps behind a project and a dot, which wins over `project`."""
        above, _, self.name = table.rpartition(".")
        self.project = above or project
        self._keys = access_id, access_key
        self._endpoint = endpoint

    def client(self) -> Any:
        """Return a client of the project. Raises BadSetting."""
        try:
            from odps import ODPS
        except ImportError:
            raise BadSetting(
                f"the table {self.name} of MaxCompute needs the package pyodps: pip install 'elasticdl[maxcompute]'"
            ) from None
        tunnel = os.environ.get(MaxComputeConfig.TUNNEL_ENDPOINT) or None
        return ODPS(*self._keys, self.project, self._endpoint or None, tunnel_endpoint=tunnel)

    def found(self) -> Any:
        """Return the table."""
        return self.client().get_table(self.name)


class ODPSReader:
    """Reads a table, or a partition of it; rows are lists of values."""

    def __init__(
        self,
        project: str,
        access_id: str,
        access_key: str,
        endpoint: str | None,
        table: str,
        partition: str | None = None,
        num_processes: int | None = None,
        options: Mapping[str, Any] | None = None,
        transform_fn: Callable[[Any], Any] | None = None,
        columns: Sequence[str] | None = None,
    ) -> None:
        """`num_processes` and `options` change nothing: rows are read by this process, as pyodps does it.

        `transform_fn`: is applied to each row; `columns`: all if they are not given.
        """
        self._table = _Table(project, access_id, access_key, endpoint, table)
        self._partition, self._transform, self._columns = partition, transform_fn, columns

    def get_table_size(self) -> int:
        """Return the number of rows. Raises BadData."""
        return int(self._again(lambda: self._reading(lambda reader: reader.count)))

    def read_batch(self, start: int, end: int, columns: Sequence[str] | None = None) -> list[Any]:
        """Return rows `start` to `end` - 1. Raises BadData."""
        names = columns or self._columns or column_names(self._table.found())

        def rows(reader: Any) -> list[Any]:
            return [[row[name] for name in names] for row in reader[start:end]]

        found = self._again(lambda: self._reading(rows))
        return found if self._transform is None else [self._transform(row) for row in found]

    def to_iterator(
        self,
        num_workers: int,
        worker_index: int,
        batch_size: int,
        epochs: int = 1,
        shuffle: bool = False,
        columns: Sequence[str] | None = None,
        cache_batch_count: int | None = None,
        limit: int = -1,
    ) -> Iterator[list[Any]]:
        """Yield the batches of a worker, which reads each `num_workers`-th block of `cache_batch_count` batches.

        Raises ValueError, BadData.
        """
        if not 0 <= worker_index < num_workers or batch_size <= 0:
            raise ValueError(
                f"worker_index is below num_workers and batch_size is positive; received {worker_index}, {num_workers}, {batch_size}"
            )
        size = self.get_table_size()
        if limit > 0:
            size = min(size, limit)
        block = batch_size * (cache_batch_count or 1)
        starts = [*range(0, size, block)][worker_index::num_workers]
        for _ in range(epochs):
            if shuffle:
                random.shuffle(starts)
            for start in starts:
                rows = self.read_batch(start, min(start + block, size), columns)
                yield from (rows[at : at + batch_size] for at in range(0, len(rows), batch_size))

    def _reading(self, look: Callable[[Any], Any]) -> Any:
        with self._table.found().open_reader(partition=self._partition) as reader:
            return look(reader)

    def _again(self, read: Callable[[], Any]) -> Any:
        for left in reversed(range(_TRIES)):
            try:
                return read()
            except (BadSetting, KeyError):
                raise
            except Exception as error:  # whatever pyodps raises
                if not left:
                    raise BadData(
                        f"the table {self._table.project}.{self._table.name} can't be read: {error}"
                    ) from error
                time.sleep(_PAUSE)
        raise AssertionError("the last try returns or raises")


class ODPSWriter:
    """Writes rows into a table, those of each worker into a partition."""

    def __init__(
        self,
        project: str,
        access_id: str,
        access_key: str,
        endpoint: str | None,
        table: str,
        columns: Sequence[str] | None = None,
        column_types: Sequence[str] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """`columns` and `column_types`: of the table if it is made; `options` change nothing."""
        self._table = _Table(project, access_id, access_key, endpoint, table)
        self._columns, self._types = columns, column_types

    def from_iterator(self, records_iter: Iterable[Any], worker_index: int) -> None:
        """Add rows, or lists of them, to the partition of a worker. Raises ValueError if the table is not there and can't be made."""
        client = self._table.client()
        if not client.exist_table(self._table.name):
            if not self._columns or not self._types:
                raise ValueError(
                    f"the table {self._table.project}.{self._table.name} is not there; columns and column_types are needed to make it"
                )
            columns = ", ".join(
                f"{name} {kind}" for name, kind in zip(self._columns, self._types, strict=True)
            )
            client.create_table(self._table.name, (columns, f"{_WORKER} string"), if_not_exists=True)
        partition = f"{_WORKER}={worker_index}"
        with client.get_table(self._table.name).open_writer(
            partition=partition, create_partition=True
        ) as writer:
            for record in records_iter:
                rows = record if len(record) and isinstance(record[0], list | tuple) else [record]
                writer.write([list(row) for row in rows])


class ODPSDataReader(AbstractDataReader):
    """Reads a table by ranges of `records_per_task`; records are vectors of texts."""

    def __init__(self, **kwargs: Any) -> None:
        """`table` is needed; project, access_id, access_key and endpoint are those of the environment if they are not given.

        Raises BadSetting for what is missing.
        """
        super().__init__(**kwargs)
        variables = {
            "project": MaxComputeConfig.PROJECT_NAME,
            "access_id": MaxComputeConfig.ACCESS_ID,
            "access_key": MaxComputeConfig.ACCESS_KEY,
            "endpoint": MaxComputeConfig.ENDPOINT,
        }
        self._where: dict[str, Any] = {
            name: kwargs.get(name) or os.environ.get(variable) for name, variable in variables.items()
        }
        self._where["table"] = kwargs.get("table")
        missing = [name for name, value in self._where.items() if not value and name != "endpoint"]
        if missing:
            raise BadSetting(
                f"a reader of MaxCompute needs {', '.join(missing)}; the variables {', '.join(variables.values())} give all but the table"
            )
        self._reader = ODPSReader(
            **self._where, partition=kwargs.get("partition"), columns=kwargs.get("columns")
        )

    def create_shards(self) -> dict[str, list[tuple[int, int]]]:
        """Return the table with its ranges; all of it is one if `records_per_task` is not given."""
        rows = self._reader.get_table_size()
        size = self.kwargs.get("records_per_task") or max(1, rows)
        return {
            str(self._where["table"]): [(start, min(size, rows - start)) for start in range(0, rows, size)]
        }

    def read_records(self, task: TaskRange) -> Iterator[Any]:
        """Yield the rows of a task."""
        for row in self._reader.read_batch(task.start, task.end):
            yield [str(value) for value in row]

    @property
    def metadata(self) -> Metadata:
        """Return names and types of the columns."""
        found = _Table(**self._where).found()
        kinds = {column.name: str(column.type).lower() for column in found.table_schema.columns}
        names = self.kwargs.get("columns") or column_names(found)
        return Metadata(column_names=list(names), column_dtypes={name: kinds[name] for name in names})


class ParallelODPSDataReader(ODPSDataReader):
    """Reads a table; a record is what `parse_fn` makes of a row."""

    def __init__(self, parse_fn: Callable[[Any], Any], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._parse = parse_fn

    def read_records(self, task: TaskRange) -> Iterator[Any]:
        """Yield the records of a task."""
        yield from map(self._parse, super().read_records(task))


def column_names(table: Any) -> list[str]:
    """Return the names of a table's columns without those of its partitions."""
    return [column.name for column in table.table_schema.simple_columns]


def create_data_reader(
    data_origin: str, records_per_task: int | None = None, reader_type: str | None = None, **kwargs: Any
) -> AbstractDataReader:
    """Return the reader of some data: of `reader_type`, or by the environment and the name. Raises BadData, BadSetting."""
    if reader_type is None and is_odps_configured():
        reader_type = ReaderType.ODPS_READER
    if reader_type == ReaderType.ODPS_READER:
        return ODPSDataReader(table=data_origin, records_per_task=records_per_task, **kwargs)
    if reader_type == ReaderType.CSV_READER or (reader_type is None and data_origin.endswith(".csv")):
        return TextDataReader(filename=data_origin, records_per_task=records_per_task, **kwargs)
    if reader_type in (None, ReaderType.RECORDIO_READER):
        return RecordIODataReader(data_dir=data_origin, **kwargs)
    kinds = (ReaderType.CSV_READER, ReaderType.ODPS_READER, ReaderType.RECORDIO_READER)
    raise BadSetting(f"reader_type is one of {', '.join(kinds)}; received {reader_type!r}")
