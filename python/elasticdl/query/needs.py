"""Packages that statements need and other jobs don't: `pip install 'elasticdl[sql]'`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from elasticdl.errors import BadSetting

_PACKAGES = ("duckdb", "sqlglot")


@contextmanager
def needed() -> Iterator[None]:
    """Say what to install if one of them is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in _PACKAGES:
            raise
        raise BadSetting(
            f"`elasticdl sql` needs the package {error.name}: pip install 'elasticdl[sql]'"
        ) from None
