"""Directories of data: which files in one are data, and what to write instead of one whose files lie deeper.

Only names are looked at; what is in a file is the readers' business.
"""

from __future__ import annotations

import glob
import os
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

INDEX_SUFFIX = ".records-index"
"""Ends the name of an index that a reader keeps beside a large file."""

_LOOKED_AT = 10_000
"""Files that a glob is derived from at most; a directory of millions is not searched for the sake of a message."""


def is_data(name: str) -> bool:
    """Tell whether a file of this name in a directory is data: no hidden file, mark or index."""
    return not name.startswith((".", "_")) and not name.endswith(INDEX_SUFFIX)


def has_files(directory: Path) -> bool:
    """Tell whether files directly in a directory are data. Raises OSError."""
    return any(is_data(child.name) and child.is_file() for child in directory.iterdir())


def advice(origin: str) -> str:
    """Return what to write instead of a directory, or a glob of directories, with data in the directories below; empty if none is there."""
    if Path(origin).is_dir():
        roots, prefix = [origin], glob.escape(origin)
    else:
        roots = [path for path in glob.glob(origin, recursive=True) if Path(path).is_dir()]  # noqa: PTH207  (absolute patterns)
        prefix = origin
    found = Counter(islice((kind for root in roots for kind in _below(root)), _LOOKED_AT))
    if not found:
        return ""
    suffixes: Counter[str] = Counter()
    for (_, suffix), files in found.items():
        suffixes[suffix] += files
    wanted = suffixes.most_common(1)[0][0]
    depths = {depth for depth, suffix in found if suffix == wanted}
    between = "/*" * depths.pop() if len(depths) == 1 else "/**"
    pattern = f"{prefix.rstrip('/')}{between}/*{glob.escape(wanted)}"
    return f"its files are in the directories below; to read those, give the glob '{pattern}' in quotes"


def _below(root: str) -> Iterator[tuple[int, str]]:
    """Yield how deep each file of data below `root` lies (1: in a directory of it), and the suffix of its name."""
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(name for name in folders if is_data(name))
        depth = len(Path(folder).relative_to(root).parts)
        for name in filter(is_data, files):
            yield depth, Path(name).suffix
