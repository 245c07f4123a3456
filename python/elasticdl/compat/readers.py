"""Readers of ElasticDL 0.2, for model files whose `custom_data_reader` derives from one or makes one.

They are readers of the contract that `data/readers/custom.py` wraps. Without `custom_data_reader` today's own readers read the same files,
by their content.
"""

from __future__ import annotations

import itertools
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from elasticdl._core import RecordIOFile
from elasticdl.compat.constants import MaxComputeConfig
from elasticdl.data.readers.custom import TaskRange
from elasticdl.errors import BadData

_TENSOR_TYPES = {"bigint": "int64", "double": "float64", "string": "string"}


def is_odps_configured() -> bool:
    """Tell whether the environment has what tables of MaxCompute need."""
    needed = (MaxComputeConfig.PROJECT_NAME, MaxComputeConfig.ACCESS_ID, MaxComputeConfig.ACCESS_KEY)
    return all(name in os.environ for name in needed)


class Metadata:
    """What a reader knows of its columns."""

    def __init__(
        self, column_names: Sequence[str] | None, column_dtypes: Mapping[str, str] | None = None
    ) -> None:
        """`column_dtypes`: a table's types by column."""
        self.column_names = column_names
        self.column_dtypes = column_dtypes

    def get_tf_dtype_from_maxcompute_column(self, column_name: str) -> Any:
        """Return TensorFlow's type of a column. Raises ValueError for a column or type that it does not know."""
        kind = (self.column_dtypes or {}).get(column_name)
        if kind not in _TENSOR_TYPES:
            known = ", ".join(_TENSOR_TYPES)
            raise ValueError(f"the column {column_name!r} has the type {kind}; expected one of {known}")
        import tensorflow as tf  # here: readers are for every framework

        return tf.as_dtype(_TENSOR_TYPES[kind])


class AbstractDataReader(ABC):
    """The base class of readers."""

    def __init__(self, **kwargs: Any) -> None:
        self.kwargs = kwargs

    @abstractmethod
    def read_records(self, task: TaskRange) -> Iterator[Any]:
        """Yield the records of a task."""

    @abstractmethod
    def create_shards(self) -> Any:
        """Return names with the first record and the number of records of each."""

    @property
    def records_output_types(self) -> Any:
        """Return TensorFlow's types of a record; nobody asks for them any more."""
        return None

    @property
    def metadata(self) -> Metadata:
        """Return what is known of the columns."""
        return Metadata(column_names=None)


class RecordIODataReader(AbstractDataReader):
    """Reads the RecordIO files of a directory; each is a shard, and empty records are left out."""

    def __init__(self, data_dir: str, **kwargs: Any) -> None:
        """`data_dir`: the directory. Raises BadData if it is none, or has no file."""
        super().__init__(**kwargs)
        found = Path(data_dir)
        self._names = [str(path) for path in sorted(found.iterdir())] if found.is_dir() else []
        if not self._names:
            raise BadData(f"{data_dir} is no directory with files of RecordIO")

    def create_shards(self) -> dict[str, tuple[int, int]]:
        """Return each file with all its records."""
        return {name: (0, sum(RecordIOFile(name).chunks)) for name in self._names}

    def read_records(self, task: TaskRange) -> Iterator[bytes]:
        """Yield the records of a task."""
        file, start = RecordIOFile(task.shard_name), 0
        for number, count in enumerate(file.chunks):
            if start < task.end and start + count > task.start:
                wanted = slice(max(0, task.start - start), task.end - start)
                yield from filter(None, file.read(number)[wanted])
            start += count


class TextDataReader(AbstractDataReader):
    """Reads the lines of a file, each with its newline; ranges of `records_per_task` are shards."""

    def __init__(self, filename: str, records_per_task: int | None = None, **kwargs: Any) -> None:
        """`records_per_task`: lines of a shard; all if it is not given."""
        super().__init__(**kwargs)
        self._name, self._size = filename, records_per_task

    def create_shards(self) -> dict[str, list[tuple[int, int]]]:
        """Return the file with its ranges."""
        with open(self._name, encoding="utf-8") as file:
            lines = sum(1 for _ in file)
        size = self._size or max(1, lines)
        return {self._name: [(start, min(size, lines - start)) for start in range(0, lines, size)]}

    def read_records(self, task: TaskRange) -> Iterator[str]:
        """Yield the lines of a task."""
        with open(task.shard_name, encoding="utf-8") as file:
            yield from itertools.islice(file, task.start, task.end)
