"""Raw parts of a snapshot: batches of a database as files, each with the types that the values came with; nothing is converted but integers
among floats.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet

from elasticdl.errors import BadData
from elasticdl.query.columns import is_list, takes
from elasticdl.spec.databases import quoted


@dataclass(slots=True)
class RawParts:
    """Parts in the order of their rows.

    Attributes:
        files: one for each change of types.
        schemas: of each.
        counts: rows of each.
        nulls: how many rows lack a value, by columns.
        inner_nulls: columns of lists in which a value is missing.
    """

    files: list[Path] = field(default_factory=list)
    schemas: list[pa.Schema] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    nulls: dict[str, int] = field(default_factory=dict)
    inner_nulls: set[str] = field(default_factory=set)

    @property
    def rows(self) -> int:
        """Return how many rows there are in all."""
        return sum(self.counts)


def streamed(batches: Iterator[pa.RecordBatch], directory: Path) -> RawParts:
    """Write batches, of which there is one at least, into a directory. Raises BadData, OSError, and what `batches` raises."""
    raw = RawParts()
    writer: pyarrow.parquet.ParquetWriter | None = None
    try:
        for batch in batches:
            if writer is None:
                _check(batch.schema)
                raw.nulls = dict.fromkeys(batch.schema.names, 0)
            if writer is None or not all(map(takes, raw.schemas[-1].types, batch.schema.types)):
                if writer is not None:
                    writer.close()
                raw.files.append(directory / f"{len(raw.files):05}.parquet")
                raw.schemas.append(batch.schema)
                raw.counts.append(0)
                writer = pyarrow.parquet.ParquetWriter(
                    raw.files[-1],
                    batch.schema,
                    compression="lz4",
                    use_dictionary=False,
                    write_statistics=False,
                )
            _look_for_nulls(raw, batch)
            if batch.num_rows:
                writer.write_batch(_fitting(batch, raw.schemas[-1]))
                raw.counts[-1] += batch.num_rows
    finally:
        if writer is not None:
            writer.close()
    return raw


def _fitting(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    columns = [
        column
        if column.type.equals(one.type)
        else column.cast(one.type, safe=False)  # of 2⁵³ and more the last bits go
        for column, one in zip(batch.columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _look_for_nulls(raw: RawParts, batch: pa.RecordBatch) -> None:
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        raw.nulls[name] += column.null_count
        if is_list(column.type) and name not in raw.inner_nulls and pc.list_flatten(column).null_count:
            raw.inner_nulls.add(name)


def _check(schema: pa.Schema) -> None:
    """Raise BadData for columns that can't be told apart, or that files of Parquet can't have."""
    seen: dict[str, str] = {}
    for at, one in enumerate(schema):
        if not one.name:
            raise BadData(f"column {at + 1} of the SELECT has no name; give it one: AS name")
        if (other := seen.get(one.name.lower())) is not None:
            alike = (
                f" (beside {other!r}: capitals make no difference to databases)" if other != one.name else ""
            )
            raise BadData(
                f"the SELECT gives two columns of the name {one.name!r}{alike}; give one of them another name: AS {quoted(one.name + '_2')}"
            )
        seen[one.name.lower()] = one.name
        if pa.types.is_interval(one.type) or pa.types.is_duration(one.type):
            raise BadData(
                f"the column {one.name!r} is an interval, which no model takes; SELECT its seconds, or leave it out"
            )
