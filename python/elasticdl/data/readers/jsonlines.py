"""Files of JSON lines: each line is an object, and the fields of the objects are the columns of a table.

The core finds the lines, pyarrow parses those of a chunk. Which columns there are, and of which types, is what the first MiB shows: so no
file is parsed twice, and every worker comes to the same answer.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.json

from elasticdl.data.plan.shard import Shard, Task
from elasticdl.data.readers.reader import BadRecords, Metadata
from elasticdl.data.readers.records import Records
from elasticdl.data.readers.tables import TableForm, TableParams, corrupt
from elasticdl.errors import BadData

_LOOKED_AT = 1 << 20
"""Bytes of the first file that say which columns there are."""
_TOGETHER = 16
"""Lines that are read at a time for that; one may have megabytes."""


class Lines(Protocol):
    """Who reads the raw lines."""

    @property
    def fingerprints(self) -> Mapping[str, str]:
        """Return what names the present content of each file."""

    def create_shards(self) -> list[tuple[str, int, int]]:
        """Return each file as a shard."""

    def read(self, task: Task, records: Sequence[int]) -> list[Any]:
        """Return lines of a task's file in the order asked, without their ends. Raises BadData."""


class JSONLinesReader:
    """Reads records of files whose lines are JSON objects.

    Attributes:
        metadata: names and types of the columns.
        fingerprints: of each file that has content.
        block: any line can be had by itself.
    """

    block = 1

    def __init__(self, lines: Lines, params: TableParams, bad_records: BadRecords) -> None:
        """`lines` reads the raw lines of files, of which one has some. Raises BadData or BadSetting."""
        self._lines = lines
        self._bad_records = bad_records
        self.fingerprints: Mapping[str, str] = lines.fingerprints
        name, _, many = next(shard for shard in lines.create_shards() if shard[2])
        self._form = TableForm(_schema(name, _first(lines, Shard(name, 0, many))), params, name)
        self.metadata: Metadata = self._form.metadata

    def create_shards(self) -> list[tuple[str, int, int]]:
        """Return each file as a shard."""
        return self._lines.create_shards()

    def read(self, task: Task, records: Sequence[int]) -> Records:
        """Return `records` of the task's file in the order asked, without bad ones if the policy allows them.

        Raises BadData.
        """
        path, numbers = task.shard.name, list(records)
        lines = self._lines.read(task, numbers)
        bad: list[tuple[int, str]] = []
        table = _parsed(lines, self._form.schema)
        if isinstance(table, str):
            alone = [_parsed([line], self._form.schema) for line in lines]
            found = zip(numbers, alone, strict=True)
            bad = [(number, what) for number, what in found if isinstance(what, str)]
            good = [row for row, one in enumerate(alone) if not isinstance(one, str)]
            numbers = [numbers[row] for row in good]
            table = pa.concat_tables([self._form.schema.empty_table(), *(alone[row] for row in good)])
        decoded = self._form.decoded(table)
        bad += [(numbers[row], what) for row, what in decoded.bad.items()]
        self._bad_records.allow(path, [(number, corrupt(path, number, what)) for number, what in bad])
        return decoded.records(np.arange(len(table)))


def _first(lines: Lines, shard: Shard) -> list[bytes]:
    """Return the lines with which a file begins."""
    found: list[bytes] = []
    size = 0
    task = Task(0, 0, shard, 0, shard.count)
    for begin in range(0, shard.count, _TOGETHER):
        for line in lines.read(task, range(begin, min(begin + _TOGETHER, shard.count))):
            size += len(line)
            if found and size > _LOOKED_AT:
                return found
            found.append(line)
    return found


def _schema(path: str, lines: list[bytes]) -> pa.Schema:
    """Return the columns of lines. Raises BadData unless most of these are objects, and most of those agree on the type of each field."""
    table = _parsed(lines, None)
    if isinstance(table, str):
        # A bad record is nothing that says which columns there are.
        objects = _agreeing(lines)
        why, table = table, _parsed(objects, None) if objects else table
        if isinstance(table, str):
            raise BadData(
                f"{path} can't be read as JSON lines, each of which is an object with the same fields: {table if objects else why}"
            )
    return pa.schema([(column.name, _as_written(column.type)) for column in table.schema])


def _agreeing(lines: Sequence[bytes]) -> list[bytes]:
    """Return the lines that are objects, and whose fields have the type that more than half of those with a value give them."""
    alone = ((line, _parsed([line], None)) for line in lines)
    objects = [
        (line, {column.name: _family(column.type) for column in table.schema})
        for line, table in alone
        if not isinstance(table, str)
    ]
    votes: dict[str, Counter[str]] = defaultdict(Counter)
    for _, families in objects:
        for name, family in families.items():
            if family:
                votes[name][family] += 1
    chosen = {
        name: next((family for family, many in of_one.items() if 2 * many > of_one.total()), None)
        for name, of_one in votes.items()
    }
    if None in chosen.values():
        return [line for line, _ in objects]  # which of them is wrong is for a person to say
    return [
        line
        for line, families in objects
        if all(not family or family == chosen[name] for name, family in families.items())
    ]


def _family(kind: pa.DataType) -> str:
    """Return a name for all types of which a column can be if its values are written like this one; empty if any can."""
    if pa.types.is_null(kind):
        return ""
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return "number"
    if pa.types.is_list(kind):
        return f"list {_family(kind.value_type)}".rstrip()
    return str(_as_written(kind))


def _as_written(kind: pa.DataType) -> pa.DataType:
    """Return text for what pyarrow takes for times: the next one may look different."""
    if pa.types.is_temporal(kind):
        return pa.string()
    return pa.list_(_as_written(kind.value_type)) if pa.types.is_list(kind) else kind


def _parsed(lines: Sequence[bytes], schema: pa.Schema | None) -> pa.Table | str:
    """Return a table with one row for each line, or what is wrong; without a schema the lines say what the columns are."""
    text = b"\n".join(lines)
    others = "infer" if schema is None else "ignore"
    try:
        table = pa.json.read_json(
            pa.BufferReader(text),
            read_options=pa.json.ReadOptions(use_threads=False, block_size=len(text) + 1),
            parse_options=pa.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior=others),
        )
    except pa.ArrowInvalid as error:
        return re.sub(r" in row \d+$", "", " ".join(str(error).split()))
    return table if len(table) == len(lines) else "it is not one object on one line"
