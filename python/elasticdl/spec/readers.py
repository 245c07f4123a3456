"""How the reader of another package is found: by the name before `://` in `--training_data`.

Looking it up loads nothing of the package. What such a reader is, is the contract in `data/readers/installed.py`.
"""

from __future__ import annotations

from elasticdl.errors import BadSetting
from elasticdl.spec import entrypoints

GROUP = "elasticdl.readers"
"""Entry point group: name of a reader → a function that opens it (`OpenReader` in `data/readers/installed.py`)."""


def reader_of(origin: str) -> str:
    """Return the name of the reader that data asks for, empty if files are meant. Raises BadSetting if it is not installed."""
    name, separator, _ = origin.partition("://")
    if not separator:
        return ""
    known = entrypoints.names(GROUP)
    if name not in known:
        there = f"installed are {', '.join(known)}" if known else "none is installed"
        raise BadSetting(
            f"--training_data: {origin} is a URL, and no reader of the name {name!r} is installed ({there}); give a local path, a "
            "directory or a glob, or install a package with that reader"
        )
    return name
