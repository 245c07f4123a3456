"""Databases that are files: they are there, or the script makes them with its first statement.

A name that is spelt wrong must not leave an empty database behind, so a file that is not there is made only by a script that begins with
`CREATE`, and what fails to make it leaves nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from elasticdl.errors import BadSetting
from elasticdl.query.statements import Native, Statement

_CREATES = re.compile(r"CREATE\s+(?!(OR\s+REPLACE\s+)?(GLOBAL\s+|LOCAL\s+)?TEMP(ORARY)?\b)", re.IGNORECASE)
_BESIDE = (".wal", ".tmp", "-journal", "-wal", "-shm")
"""Ends of the names of files that DuckDB and SQLite make beside a database."""


def creates(statements: Sequence[Statement]) -> bool:
    """Tell whether a script begins with a statement that makes something which stays in a database."""
    first = next(iter(statements), None)
    return isinstance(first, Native) and _CREATES.match(first.text) is not None


def check_file(name: str, file: str, scheme: str, *, is_new: bool) -> None:
    """Check that a database's file is there, or can be made.

    `name`: of the database, for messages; `is_new`: the script makes it. Raises BadSetting.
    """
    if file and Path(file).is_file():
        return
    if not file or not is_new:
        raise BadSetting(
            f"--database: {name}: there is no file {file or '(none is named)'}; write {scheme}:///x.db, or with four slashes an absolute "
            f"path: {scheme}:////data/x.db. A script that begins with CREATE TABLE makes the file"
        )
    if not Path(file).absolute().parent.is_dir():
        raise BadSetting(
            f"--database: {name}: there is no directory {Path(file).absolute().parent} to make the file in"
        )


@contextmanager
def whole_or_none(file: str, close: Callable[[], None]) -> Iterator[None]:
    """Remove a database that was not there before if what is done meanwhile fails; `close` ends the connection to it."""
    if not file or Path(file).exists():
        yield
        return
    try:
        yield
    except BaseException:
        close()
        for end in ("", *_BESIDE):
            Path(f"{file}{end}").unlink(missing_ok=True)
        raise
