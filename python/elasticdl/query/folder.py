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
from elasticdl.files.drafts import replacing
from elasticdl.query.duckdb import DuckDBSource
from elasticdl.query.results import plain, refuse_existing
from elasticdl.query.source import Into, Params
from elasticdl.spec.databases import text

_READ = {".csv": "read_csv", ".parquet": "read_parquet", ".json": "read_json"}
_COMMENT = b"elasticdl.comment"


class FolderSource:
    """A directory, for `Source`."""

    dialect = "duckdb"

    def __init__(self, folder: Path, tables: Mapping[str, object] | None = None) -> None:
        """`tables`: data frames that are tables, too. Raises BadSetting."""
        if not folder.is_dir():
            raise BadSetting(f"--database: there is no directory {folder}")
        self.name = f"the directory {folder.absolute()}"
        self._folder = folder
        self._tables = tables or {}
        self._duckdb = DuckDBSource("duckdb://", tables, self._origin, self.name)

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
        self._duckdb.check(table, Into.NEW)  # one that a statement made in memory
        found = self._files(table)
        if found and mode is Into.NEW:
            raise refuse_existing(table, self.name)
        if any(path.suffix.lower() != ".parquet" for path in found):
            raise BadSetting(
                f"the table {table} is {found[0]}, and results go to files of Parquet only; name another table"
            )

    def comment(self, table: str) -> str:
        """Return the comment in the file of a table. Raises nothing for one that can't be read."""
        with suppress(OSError, pa.ArrowException):
            for path in self._files(table):
                kept = pyarrow.parquet.read_metadata(path).metadata or {}
                return str(kept.get(_COMMENT, b"").decode())
        return ""

    def write(self, table: str, rows: Iterator[pa.RecordBatch], mode: Into, comment: str) -> int:
        """Write rows into a file, which is whole or not there. Raises what `Source.write` says."""
        self.check(table, mode)
        path = next(iter(self._files(table)), self._folder / f"{table}.parquet")
        count = 0
        first = plain(next(rows))
        schema = first.schema
        try:
            with replacing(path) as file, pyarrow.parquet.ParquetWriter(file, schema) as writer:
                if mode is Into.APPEND and path.exists():
                    for batch in _old(path, schema):
                        writer.write_batch(batch)
                for batch in chain([first], map(plain, rows)):
                    writer.write_batch(batch.cast(schema))
                    count += batch.num_rows
                writer.add_key_value_metadata({_COMMENT: comment})
        except OSError as error:
            raise Unwritable(f"the table {table} can't be written to {path}", error, "try again") from error
        return count

    def close(self) -> None:
        """End DuckDB; what was made in memory is gone."""
        self._duckdb.close()

    def _origin(self, table: str) -> str | None:
        found = self._files(table)
        if len(found) > 1:
            names = " and ".join(path.name for path in found)
            raise BadSetting(
                f"the table {table} may be {names} of {self._folder.absolute()}; rename one of them, or say which one: "
                f"{_READ[found[0].suffix.lower()]}('{found[0].name}')"
            )
        return f"{_READ[found[0].suffix.lower()]}({text(str(found[0].absolute()))})" if found else None

    def _files(self, table: str) -> list[Path]:
        """Return the files of a table, whose case does not matter."""
        wanted = table.lower()
        with suppress(OSError):
            return sorted(
                path
                for path in self._folder.iterdir()
                if path.suffix.lower() in _READ and path.stem.lower() == wanted and path.is_file()
            )
        return []


def _old(path: Path, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file that is appended to. Raises BadData if it has other columns."""
    with pyarrow.parquet.ParquetFile(path) as old:
        there = old.schema_arrow.remove_metadata()
        if not there.equals(schema):
            raise BadData(
                f"{path} has other columns than the results: {', '.join(map(str, there))}, not {', '.join(map(str, schema))}; name "
                "another table"
            )
        yield from old.iter_batches()
