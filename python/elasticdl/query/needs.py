"""Packages that statements need and other jobs don't: `pip install 'elasticdl[sql]'`."""

from __future__ import annotations

from importlib.util import find_spec

from elasticdl.errors import BadSetting

_PACKAGES = ("duckdb", "sqlglot")


def check() -> None:
    """Raise BadSetting that says what to install if one of them is missing."""
    for package in _PACKAGES:
        if find_spec(package) is None:
            raise BadSetting(f"statements of SQL need the package {package}: pip install 'elasticdl[sql]'")
