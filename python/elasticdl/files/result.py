"""Which directories a job's result may replace: none that holds anything else."""

from __future__ import annotations

from pathlib import Path

_SAVED_MODEL = frozenset({"saved_model.pb", "fingerprint.pb", "variables", "assets"})
_PARQUET = frozenset({"variables.parquet", "tables"})
_GLUON = frozenset({"model-symbol.json", "model-0000.params"})


def foreign(directory: Path) -> str | None:
    """Return something in a directory that is no part of an earlier result; None if nothing is. Raises OSError."""
    names = {path.name for path in directory.iterdir()}
    marks = {"saved_model.pb": _SAVED_MODEL, "variables.parquet": _PARQUET, "model-symbol.json": _GLUON}
    for mark, parts in marks.items():
        if mark in names:
            return min(names - parts, default=None)
    return min(names, default=None)


def check_replaceable(path: Path) -> None:
    """Raise FileExistsError if a result at `path` would remove what is no earlier result; its `strerror` says what."""
    if path.is_dir() and (found := foreign(path)) is not None:
        raise FileExistsError(17, f"it is a directory with other things in it, such as {found!r}", str(path))
