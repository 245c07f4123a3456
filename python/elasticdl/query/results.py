"""Results into a table: all rows or none, whichever process is killed meanwhile, with a comment that names what wrote them.

What is done in which order is here, whatever the database; `Target` is what differs. After a COMMIT whose answer was lost, the comment on
the table tells whether it was done.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import chain
from typing import Protocol

import pyarrow as pa

from elasticdl.errors import BadInput, BadSetting, JobFailed, Unwritable
from elasticdl.query.source import Into, Source

_FULL = (
    "No space left",
    "disk is full",
    "disk full",
    "The table is full",
    "File too large",
    "max_temp_directory_size",
)
"""Are in what databases say of a full disk."""


def write(source: Source, table: str, rows: Iterator[pa.RecordBatch], mode: Into, comment: str) -> int:
    """Write rows into a table in one transaction, and return their number.

    Args:
        source: the database.
        table: perhaps behind the name of a schema and a dot.
        rows: a batch at least, which may be empty, all of the same columns.
        mode: what becomes of a table that exists.
        comment: names this write and no other: `MODEL@VERSION ID`.

    Raises BadSetting if the table exists and is to be new, DatabaseRefused, Unwritable, and what `rows` raises.
    """
    return source.write(table, rows, mode, comment)


def once(
    source: Source, table: str, rows: Callable[[], Iterator[pa.RecordBatch]], mode: Into, comment: str
) -> None:
    """Write rows as `write` does, unless a write of this comment has been done: by a process that was lost, or that seemed to be.

    `rows` begins anew with each call. Raises as `write`.
    """
    if source.comment(table) == comment:
        return
    try:
        write(source, table, rows(), mode, comment)
    except BadInput:
        # two at a time: the other one was first, and the database has made this one wait for it
        if source.comment(table) != comment:
            raise


class Target(Protocol):
    """A connection that writes into one table. Errors are the driver's, or those that its source makes of them."""

    def begin(self) -> None:
        """Begin a transaction."""

    def start(self, schema: pa.Schema, mode: Into) -> int:
        """Make the table, or a new one in its place, or none; return how many rows it has."""

    def insert(self, rows: pa.RecordBatch) -> None:
        """Add rows."""

    def count(self) -> int:
        """Return how many rows the table has."""

    def mark(self, comment: str) -> None:
        """Leave a comment on the table."""

    def commit(self) -> None:
        """Make all of it last."""

    def rollback(self) -> None:
        """Undo all of it. Never raises."""


def written(target: Target, rows: Iterator[pa.RecordBatch], mode: Into, comment: str) -> int:
    """Write rows, of which there is a batch at least, and return their number. Raises what `rows` and the target raise."""
    first = next(rows)
    count = 0
    target.begin()
    try:
        before = target.start(plain(first).schema, mode)
        for batch in chain([first], rows):
            if batch.num_rows:
                target.insert(plain(batch))
                count += batch.num_rows
        found = target.count()
        if found != before + count:
            raise JobFailed(
                f"the table has {found:,} rows after {count:,} were written to {before:,}: nothing is changed; try again"
            )
        target.mark(comment)
        target.commit()
    except BaseException:
        with suppress(Exception):
            target.rollback()
        raise
    return count


def plain(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows without dictionaries, extension types and columns without a type, which are text."""
    columns = [_plain(column) for column in batch.columns]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _plain(column: pa.Array) -> pa.Array:
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    return column.cast(pa.string()) if pa.types.is_null(column.type) else column


def refuse_existing(table: str, name: str, removal: str = "drop it") -> BadSetting:
    """Return what is said of a table that exists; `removal`: how a person gets rid of it."""
    return BadSetting(
        f"the table {table} of {name} exists, and results go to a new table; name another one, {removal}, or say WITH "
        "predict.into='replace' or 'append'"
    )


def refuse_view(table: str, name: str) -> BadSetting:
    """Return what is said of a view, or a data frame, where a table is wanted."""
    return BadSetting(f"{table} of {name} is no table but a view or a data frame; name another table")


def is_full(reason: str) -> bool:
    """Tell whether a database says that its disk is full."""
    return any(sign in reason for sign in _FULL)


def full_disk(table: str) -> Unwritable:
    """Return what is said of that."""
    full = OSError(errno.ENOSPC, "no space left on its disk")
    return Unwritable(f"the table {table} can't be written", full, "try again")
