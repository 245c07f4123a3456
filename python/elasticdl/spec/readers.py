"""What reads the data that a URL names: the reader of another package, a database, MaxCompute, or a server of files.

Looking it up loads nothing. What a reader of another package is, is the contract in `data/readers/installed.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

from elasticdl.errors import BadSetting
from elasticdl.spec import entrypoints

GROUP = "elasticdl.readers"
"""Entry point group: name of a reader → a function that opens it (`OpenReader` in `data/readers/installed.py`)."""


class By(StrEnum):
    """What reads the data of a URL."""

    INSTALLED = "a reader of another package"
    DATABASE = "a database"
    MAXCOMPUTE = "MaxCompute"
    SERVER = "a server of files"


FILE_DATABASES = ("sqlite", "duckdb")
"""Databases that are files."""
DATABASES = (*FILE_DATABASES, "postgresql", "postgres")
_BUILT_IN = {
    **dict.fromkeys(DATABASES, By.DATABASE),
    **dict.fromkeys(("odps", "maxcompute"), By.MAXCOMPUTE),
    **dict.fromkeys(
        ("s3", "gs", "hdfs", "http", "https", "abfs", "ftp", "sftp", "webhdfs", "memory", "file"), By.SERVER
    ),
}


def scheme_of(origin: str) -> str:
    """Return what stands before `://`, empty if files of this machine are meant."""
    name, separator, _ = origin.partition("://")
    return name if separator else ""


def reader_of(origin: str) -> By | None:
    """Return what reads the data of a URL, None if it is none. Raises BadSetting if nothing does."""
    name = scheme_of(origin)
    if not name:
        return None
    known = entrypoints.names(GROUP)
    if name in known:
        return By.INSTALLED
    if name in _BUILT_IN:
        return _BUILT_IN[name]
    there = f"installed are {', '.join(known)}" if known else "none is installed"
    raise BadSetting(
        f"--training_data: {origin} is a URL, and no reader of the name {name!r} is installed ({there}); give a local path, a "
        f"directory or a glob, a URL that begins with one of {', '.join(_BUILT_IN)}, or install a package with that reader"
    )


def database_url(given: str) -> str:
    """Return the URL of a database that is a file and is named as people do, too, `duckdb:x.db`; anything else as it is."""
    scheme, colon, file = given.partition(":")
    if not colon or scheme not in FILE_DATABASES or not file or file.startswith("//"):
        return given
    return f"{scheme}:///{file}"


def database_file(origin: str) -> str:
    """Return the path of a database that is a file; empty if it is none, or lies in memory.

    `sqlite:///a` is relative, `sqlite:////a` is not, as in SQLAlchemy: https://docs.sqlalchemy.org/en/20/core/engines.html#sqlite
    Raises BadSetting for two slashes, behind which a server would be.
    """
    scheme = scheme_of(origin)
    if scheme not in FILE_DATABASES:
        return ""
    place = origin.partition("://")[2].partition("?")[0]
    if place and not place.startswith("/"):
        raise BadSetting(
            f"{scheme}://{place}: a server would be behind two slashes, and {scheme} has none; the path of a file has three if it is "
            f"relative, {scheme}:///{place}, and four if it is absolute, {scheme}:////data/x.db"
        )
    return place.removeprefix("/")


def with_whole_path(origin: str, full: Callable[[str], str]) -> str:
    """Return a URL in which the path of a database that is a file is absolute."""
    path = database_file(origin)
    if not path:
        return origin
    _, mark, query = origin.partition("?")
    return f"{scheme_of(origin)}:///{full(path)}{mark}{query}"
