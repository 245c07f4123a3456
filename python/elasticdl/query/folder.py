"""Files of a directory as tables: NAME.csv, NAME.parquet or NAME.json is table NAME, and results become NAME.parquet.

DuckDB in memory reads them. It is asked about a file when a statement names its table and there is none, so other files may be anything.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import chain
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet

from elasticdl.errors import BadData, BadSetting, Unwritable
from elasticdl.query.duckdb import DuckDBSource
from elasticdl.query.folderfiles import FolderFiles
from elasticdl.query.results import plain, refuse_existing
from elasticdl.query.source import Into, Params
from elasticdl.spec.databases import text

_READ = {".csv": "read_csv", ".parquet": "read_parquet", ".json": "read_json"}
_COMMENT = b"elasticdl.comment"


class FolderSource:
    """A directory, for `Source`."""

    dialect = "duckdb"

    def __init__(self, folder: FolderFiles, tables: Mapping[str, object] | None = None) -> None:
        """`tables`: data frames that are tables, too."""
        self.name = folder.name
        self._folder = folder
        self._tables = tables or {}
        self._duckdb = DuckDBSource("duckdb://", tables, self._origin, self._known, self.name)

    def schema(self, select: str, params: Params = ()) -> pa.Schema:
        """Return names and types of the columns of a query. Raises DatabaseRefused."""
        return self._duckdb.schema(select, params)

    def rows(self, select: str, params: Params = ()) -> Iterator[pa.RecordBatch]:
        """Run a query, and yield its rows. Raises DatabaseRefused."""
        return self._duckdb.rows(select, params)

    def run(self, text: str, params: Params = ()) -> pa.Table | None:
        """Do what another statement says; what it makes is in memory. Raises DatabaseRefused."""
        return self._duckdb.run(text, params)

    def check(self, table: str, mode: Into) -> None:
        """Raise BadSetting if results can't go to a file."""
        if table in self._tables or "/" in table or table.startswith(".") or "\0" in table:
            raise BadSetting(f"{table!r} can't be the name of a file for results; name another table")
        self._duckdb.forget(table)
        self._duckdb.check_existing(table, Into.NEW)  # one that a statement made in memory
        found = self._files(table)
        if found and mode is Into.NEW:
            raise refuse_existing(table, self.name, f"delete {self._folder.path(found[0])}")
        if any(_suffix(name) != ".parquet" for name in found):
            raise BadSetting(
                f"the table {table} is {self._folder.path(found[0])}, and results go to files of Parquet only; name another table"
            )

    def comment(self, table: str) -> str:
        """Return the comment in the file of a table. Raises nothing for one that can't be read."""
        with suppress(OSError, pa.ArrowException):
            for name in self._files(table):
                with self._folder.opened(name) as file:
                    kept = pyarrow.parquet.read_metadata(file).metadata or {}
                return str(kept.get(_COMMENT, b"").decode())
        return ""

    def write(self, table: str, rows: Iterator[pa.RecordBatch], mode: Into, comment: str) -> int:
        """Write rows into a file, which is whole or not there. Raises what `Source.write` says."""
        self.check(table, mode)
        there = self._files(table)
        name = there[0] if there else f"{table}.parquet"
        count = 0
        first = plain(next(rows))
        schema = first.schema
        try:
            with self._folder.replacing(name) as file, pyarrow.parquet.ParquetWriter(file, schema) as writer:
                if mode is Into.APPEND and there:
                    for batch in self._old(name, schema):
                        writer.write_batch(batch)
                for batch in chain([first], map(plain, rows)):
                    writer.write_batch(batch.cast(schema))
                    count += batch.num_rows
                writer.add_key_value_metadata({_COMMENT: comment})
        except OSError as error:
            place = self._folder.path(name)
            raise Unwritable(f"the table {table} can't be written to {place}", error, "try again") from error
        return count

    def close(self) -> None:
        """End DuckDB; what was made in memory is gone."""
        self._duckdb.close()

    def _origin(self, table: str) -> str | None:
        found = self._files(table)
        if len(found) > 1:
            raise BadSetting(
                f"the table {table} may be {' and '.join(found)} of {self.name}; rename one of them, or say which one: "
                f"{_READ[_suffix(found[0])]}({text(self._folder.path(found[0]))})"
            )
        return f"{_READ[_suffix(found[0])]}({text(self._folder.path(found[0]))})" if found else None

    def _known(self) -> list[str]:
        """Return the names of all tables that files are."""
        return [Path(name).stem for name in self._folder.names() if _suffix(name) in _READ]

    def _files(self, table: str) -> list[str]:
        """Return the names of a table's files, whose case does not matter."""
        wanted = table.lower()
        return sorted(
            name
            for name in self._folder.names()
            if _suffix(name) in _READ and Path(name).stem.lower() == wanted
        )

    def _old(self, name: str, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a file that is appended to. Raises BadData if it has other columns."""
        with self._folder.opened(name) as file, pyarrow.parquet.ParquetFile(file) as old:
            there = old.schema_arrow.remove_metadata()
            if not there.equals(schema):
                raise BadData(
                    f"{self._folder.path(name)} has other columns than the results: {', '.join(map(str, there))}, not "
                    f"{', '.join(map(str, schema))}; name another table"
                )
            yield from old.iter_batches()


def _suffix(name: str) -> str:
    return Path(name).suffix.lower()
