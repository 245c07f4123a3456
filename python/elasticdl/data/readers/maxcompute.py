"""Tables of MaxCompute: records are rows of strings, read by their numbers in one download session.

A session is a view of the table as it was when the master opened it, so all workers read the same rows, whatever is written meanwhile. Its
id is in the shard's name.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from elasticdl.data.plan.shard import Task
from elasticdl.data.readers.reader import Metadata, Reader
from elasticdl.errors import BadData, BadSetting

_VARIABLES = ("MAXCOMPUTE_AK", "MAXCOMPUTE_SK", "MAXCOMPUTE_ENDPOINT")
_KEPT = 8
"""Tasks whose rows are kept."""


@dataclass(frozen=True, slots=True)
class _Table:
    """What is read: `odps://PROJECT/TABLE`, and a partition such as `ds=20240101`."""

    project: str
    name: str
    partition: str | None
    columns: tuple[str, ...]


def _table_of(origin: str, params: Mapping[str, Any]) -> _Table:
    known = ("partition", "columns")
    for name in params:
        if name not in known:
            raise BadSetting(
                f"--data_reader_params: a table of MaxCompute has the parameters partition and columns; got {name}"
            )
    project, _, name = origin.partition("://")[2].partition("/")
    if not project or not name or "/" in name:
        raise BadSetting(
            f"--training_data: {origin} names no table of MaxCompute; write odps://PROJECT/TABLE"
        )
    partition, columns = params.get("partition"), params.get("columns", ())
    if partition is not None and not isinstance(partition, str):
        raise BadSetting(
            f"--data_reader_params: partition is a text such as 'ds=20240101'; got {partition!r}"
        )
    if not isinstance(columns, list | tuple) or not all(isinstance(one, str) for one in columns):
        raise BadSetting(f"--data_reader_params: columns is a list of names; got {columns!r}")
    return _Table(project, name, partition, tuple(columns))


def open_maxcompute(origin: str, params: Mapping[str, Any]) -> Reader:
    """Open a table. Raises BadData or BadSetting."""
    return MaxComputeReader(origin, _table_of(origin, params))


def connected(name: str, project: str) -> tuple[Any, tuple[type[Exception], ...]]:
    """Return a client of a project, and what it raises; `name`: for messages. Raises BadSetting if the package or keys are missing."""
    try:
        from odps import ODPS, errors
    except ImportError:
        raise BadSetting(f"{name} needs the package pyodps: pip install 'elasticdl[maxcompute]'") from None
    missing = [one for one in _VARIABLES if not os.environ.get(one)]
    if missing:
        raise BadSetting(
            f"{name} needs the environment variable{'s' * (len(missing) > 1)} {', '.join(missing)}; in pods, "
            f"--populate_env_names={','.join(_VARIABLES)} copies them"
        )
    access, secret, endpoint = (os.environ[one] for one in _VARIABLES)
    tunnel = os.environ.get("MAXCOMPUTE_TUNNEL_ENDPOINT") or None
    client = ODPS(access, secret, project, endpoint, tunnel_endpoint=tunnel)
    return client, (errors.BaseODPSError, OSError)


class MaxComputeReader:
    """Reads rows of a table as strings; NULL is an empty one.

    Attributes:
        metadata: names of the columns.
        fingerprints: none, a session never changes.
        block: any row can be had by itself.
    """

    block = 1
    fingerprints: Mapping[str, str] = MappingProxyType({})

    def __init__(self, origin: str, table: _Table) -> None:
        """Look for the table. Raises BadData or BadSetting."""
        self._name, self._of = origin, table
        self._rows: dict[tuple[str, int, int], list[list[str]]] = {}
        self._errors: tuple[type[Exception], ...] = (OSError,)
        self._source = self._found()
        names = table.columns or tuple(column.name for column in self._source.table_schema.simple_columns)
        self.metadata = Metadata(names, dict.fromkeys(names, "string"))

    def create_shards(self) -> list[tuple[str, int, int]]:
        """Open a download session, and return all its rows as one shard. Raises BadData."""
        try:
            with self._source.open_reader(self._of.partition, reopen=True) as reader:
                session, count = str(reader.download_id), int(reader.count)
        except self._errors as error:
            raise self._failed(error) from error
        if not count:
            raise BadData(f"{self._name} has no records: the table or partition has no row")
        return [(f"{self._name}#{session}", 0, count)]

    def read(self, task: Task, records: Sequence[int]) -> list[list[str]]:
        """Return `records` in the order asked. Raises BadData."""
        key = task.shard.name.rpartition("#")[2], task.start, task.end
        if key not in self._rows:
            if len(self._rows) >= _KEPT:
                del self._rows[next(iter(self._rows))]
            self._rows[key] = self._read(*key)
        rows = self._rows[key]
        return [rows[record - task.start] for record in records]

    def _read(self, session: str, start: int, end: int) -> list[list[str]]:
        names = self.metadata.column_names
        try:
            with self._source.open_reader(
                self._of.partition, download_id=session, columns=list(names)
            ) as reader:
                rows = [[_text(row[name]) for name in names] for row in reader[start:end]]
        except self._errors as error:
            raise self._failed(error) from error
        if len(rows) != end - start:
            raise BadData(f"{self._name} gave {len(rows)} rows for the rows {start} to {end - 1}")
        return rows

    def _found(self) -> Any:
        client, self._errors = connected(self._name, self._of.project)
        try:
            table = client.get_table(self._of.name)
            there = [column.name for column in table.table_schema.columns]
        except self._errors as error:
            raise self._failed(error) from error
        for name in self._of.columns:
            if name not in there:
                raise BadSetting(
                    f"--data_reader_params: {self._name} has no column {name!r}; it has {', '.join(there)}"
                )
        return table

    def _failed(self, error: Exception) -> BadData:
        reason = " ".join(str(error).split())
        return BadData(
            f"{self._name}: MaxCompute says: {reason[:500]}; is the table there, and may this user read it?"
        )


def _text(value: Any) -> str:
    return "" if value is None else str(value)
