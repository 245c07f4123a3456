"""The load of Parquet files into a new table: all rows or none, and once, however often it is tried.

Rows and a row of a table of the project's own, the mark of the load, are one transaction. Who finds the mark has nothing to do: a loader
before it has committed, and may have been killed before it could say so.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet

from elasticdl.data.readers.patience import Patience, Silence
from elasticdl.data.writers.database import Connection, Driver, driver_of, plain
from elasticdl.data.writers.newdatabase import make_database
from elasticdl.errors import BadData, BadSetting, Cancelled, JobFailed, Unwritable
from elasticdl.files.predictions import marked_draft_of
from elasticdl.spec.databases import LOADS, OutputTable, quoted, text

ROWS = 4096
"""That are in memory and inserted at a time."""
_SIGN_SECONDS = 1.0
_FULL = ("disk is full", "No space left", "disk full")


def check(table: OutputTable, patience: Patience | None = None) -> None:
    """Check that a table can be made, and leave nothing behind.

    `patience`: with a database that does not answer; without it, that is refused. Raises BadSetting, or StorageAway.
    """
    driver = driver_of(table)
    if table.file and not Path(table.file).exists():
        if not Path(table.file).parent.is_dir():
            raise BadSetting(
                f"--output: there is no directory {str(Path(table.file).parent)!r} for the database; make it, or name another one"
            )
        return  # opening would make it
    if patience is not None:
        patience.call(table.name, lambda: _try_to_make(driver, table), _passing(driver))
        return
    try:
        _try_to_make(driver, table)
    except driver.errors as error:
        raise BadSetting(f"--output: {table.name}: the database says: {_said(error)}") from error


def _try_to_make(driver: Driver, table: OutputTable) -> None:
    with _refused(driver, table), closing(driver.connect()) as connection:
        _refuse_existing(driver, connection, table)
        connection.run(f"CREATE TABLE {table.quoted} (shard {driver.column_type(pa.string())})")
        _make_loads(connection, table)


class TableLoad:
    """The load of one job's predictions."""

    def __init__(self, table: OutputTable, mark: str, patience: Patience) -> None:
        """`mark` names the load, and no other one of any job. Raises BadSetting if a package is missing."""
        self.table = table
        self._driver = driver_of(table)
        self._mark = mark
        self._patience = patience
        self._cancelled = threading.Event()

    def check_columns(self, schema: pa.Schema) -> None:
        """Raise BadSetting if no table of the database has columns such as those."""
        if len(schema) > self._driver.most_columns:
            raise BadSetting(
                f"--output: a table of {self.table.scheme} has {self._driver.most_columns:,} columns at most, and the predictions have "
                f"{len(schema):,}; write files instead: --output=DIRECTORY"
            )
        known: dict[str, str] = {}
        for name in schema.names:
            self.table.check_name(name, "the column")
            other = known.setdefault(name.lower(), name)
            if other != name:
                raise BadSetting(
                    f"--output: {other!r} and {name!r} are one name to databases; rename one of the columns or outputs"
                )
        self._columns(schema)

    def load(self, parts: Sequence[Path], records: int) -> None:
        """Write the rows of all parts, unless that was done before; `records`: how many there are.

        Raises BadSetting if the table can't be made, BadData for values that it does not take, Unwritable if the disk is full, StorageAway
        if the database does not answer for too long, and Cancelled.
        """
        silence = Silence(self._patience, self.table.name)
        with _signs_of_life(silence):
            self._patience.call(
                self.table.name,
                lambda: self._try(parts, records, silence),
                _passing(self._driver),
                silence,
            )

    def cancel(self) -> None:
        """Let a load that has not committed end with Cancelled. May be called from any thread."""
        self._cancelled.set()

    # ------------------------------------------------------------------ a try

    def _try(self, parts: Sequence[Path], records: int, silence: Silence) -> None:
        self._check_cancelled()
        file = Path(self.table.file)
        if self.table.file and not file.exists():
            draft = marked_draft_of(file, self._mark)
            if make_database(file, draft, lambda path: self._write(self._at(path), parts, records, silence)):
                return
        self._write(self._driver, parts, records, silence)

    def _at(self, path: Path) -> Driver:
        """Return what writes into another file instead."""
        return driver_of(replace(self.table, url=f"{self.table.scheme}:///{path}"))

    def _write(self, driver: Driver, parts: Sequence[Path], records: int, silence: Silence) -> None:
        with _refused(driver, self.table), closing(driver.connect()) as connection:
            if self._is_loaded(connection):
                return
            _refuse_existing(driver, connection, self.table)
            with _readable(parts[0]):
                schema = pyarrow.parquet.read_schema(parts[0])
            _make_loads(connection, self.table)
            connection.run(f"CREATE TABLE {self.table.quoted} ({self._columns(schema)})")
            form = pa.schema([(column.name, plain(column.type)) for column in schema])
            count = 0
            for rows in _rows_of(parts, form):
                connection.insert(rows)
                count += rows.num_rows
                # Not the connection alone: while a lock is never free, one may connect as often as one likes.
                silence.answered()
                self._check_cancelled()
            if count != records:
                raise JobFailed(f"the parts have {count:,} rows for {records:,} records; start the job again")
            now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S")
            row = f"{text(self._mark)}, {text(self.table.table)}, {count}, {text(now)}"
            connection.run(f"INSERT INTO {self.table.loads} VALUES ({row})")
            self._check_cancelled()
            connection.commit()

    def _is_loaded(self, connection: Connection) -> bool:
        """Tell whether a loader before this one has committed."""
        if not _exists(self._driver, connection, self.table, LOADS):
            return False
        mark = f"SELECT 1 FROM {self.table.loads} WHERE load_id = {text(self._mark)}"
        return bool(connection.run(mark))

    def _columns(self, schema: pa.Schema) -> str:
        types = ((column.name, self._driver.column_type(plain(column.type))) for column in schema)
        return ", ".join(f"{quoted(name)} {kind}" for name, kind in types)

    def _check_cancelled(self) -> None:
        if self._cancelled.is_set():
            raise Cancelled(f"{self.table.name} is not loaded: the job has ended")


@contextmanager
def _signs_of_life(silence: Silence) -> Iterator[None]:
    """Give signs of life: what a database does with many rows takes its time, a commit above all, in calls that don't return meanwhile.

    However long that is: another loader would take as long. A server that has gone ends its connection.
    """
    over = threading.Event()

    def give() -> None:
        while not over.wait(_SIGN_SECONDS):
            silence.lasts()

    thread = threading.Thread(target=give, name="load", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _passing(driver: Driver) -> Callable[[Exception], bool]:
    """Return what tells a driver's own errors, of which `_refused` has left those that may pass, from others."""
    return lambda error: isinstance(error, driver.errors)


def _refuse_existing(driver: Driver, connection: Connection, table: OutputTable) -> None:
    if _exists(driver, connection, table, table.table.split(".")[-1]):
        raise BadSetting(
            f"--output: the table {table.table} of {table.url} exists; predictions go to a new table, so name another one, or drop it"
        )


def _exists(driver: Driver, connection: Connection, table: OutputTable, name: str) -> bool:
    schema = ".".join(table.table.split(".")[:-1][-1:])
    return bool(connection.run(driver.finding(schema, name)))


def _make_loads(connection: Connection, table: OutputTable) -> None:
    connection.run(
        f"CREATE TABLE IF NOT EXISTS {table.loads} (load_id VARCHAR(64) PRIMARY KEY, table_name TEXT NOT NULL, "
        "row_count BIGINT NOT NULL, loaded_at TIMESTAMP NOT NULL)"
    )


def _rows_of(parts: Sequence[Path], form: pa.Schema) -> Iterator[pa.Table]:
    """Yield the rows of parts in their order, some at a time. Raises JobFailed."""
    for part in parts:
        with _readable(part), pyarrow.parquet.ParquetFile(part) as file:
            for batch in file.iter_batches(ROWS):
                yield pa.table(batch).cast(form)


@contextmanager
def _readable(part: Path) -> Iterator[None]:
    """Raise JobFailed, which names the part, for what reading it raises."""
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        raise JobFailed(
            f"a part of the predictions can't be read: {part}: {error}; start the job again"
        ) from error


@contextmanager
def _refused(driver: Driver, table: OutputTable) -> Iterator[None]:
    """Raise what no other try would change as an error that says what to do; what may pass is raised as it is."""
    try:
        yield
    except driver.errors as error:
        if any(sign in str(error) for sign in _FULL):
            full = OSError(errno.ENOSPC, "no space left on its disk")
            raise Unwritable(
                f"predictions can't be written to {table.name}", full, "start the job again"
            ) from error
        if driver.may_pass(error):
            raise
        raise BadSetting(f"--output: {table.name}: the database says: {_said(error)}") from error
    except (OverflowError, UnicodeError, pa.ArrowException) as error:
        raise BadData(
            f"{table.name} does not take a value of the predictions: {_said(error)}; write files instead: --output=DIRECTORY"
        ) from error


def _said(error: Exception) -> str:
    return " ".join(str(error).split())[:500]
