"""Places of data: which files are meant by one, and what to write instead of a directory whose files lie deeper.

No file is opened; what is in one is the readers' business.
"""

from __future__ import annotations

import glob
import os
import stat
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from elasticdl.errors import BadData

INDEX_SUFFIX = ".records-index"
"""Ends the name of an index that a reader keeps beside a large file."""

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".gif", ".bmp", ".webp")
"""End the names of image files, in small letters."""

_LOOKED_AT = 10_000
"""Files that a glob is derived from at most; a directory of millions is not searched for the sake of a message."""


def is_data(name: str) -> bool:
    """Tell whether a file of this name in a directory is data: no hidden file, mark or index."""
    return not name.startswith((".", "_")) and not name.endswith(INDEX_SUFFIX)


def find(origin: str) -> list[Path]:
    """Return the files that a path, a directory or a glob stands for; of a directory those directly in it that are data by their names.

    Raises BadData for what is there under such a name and is neither a file nor a directory: a job that left it out would train on
    less data than it was given. Raises OSError.
    """
    path = Path(origin)
    if path.is_dir():
        found = [child for child in path.iterdir() if is_data(child.name)]
    elif os.path.lexists(path):
        found = [path]
    else:
        found = [Path(match) for match in glob.glob(origin, recursive=True)]  # noqa: PTH207  (absolute patterns)
    return [file for file in found if not file.name.endswith(INDEX_SUFFIX) and is_file(file)]


def is_image(name: str) -> bool:
    """Tell whether a file of this name is an image."""
    return name.lower().endswith(IMAGE_SUFFIXES)


def class_folders(origin: str) -> list[Path]:
    """Return the directories in a directory, by name, if each stands for a class of images: no data lies beside them, and in the first one
    that has any file there are images. Empty otherwise. Raises OSError.
    """
    path = Path(origin)
    if not path.is_dir():
        return []
    inside = [child for child in path.iterdir() if is_data(child.name)]
    found = sorted(child for child in inside if child.is_dir())
    if len(found) < len(inside):
        return []
    for folder in found:
        names = list(
            islice((name for _, _, files in os.walk(folder) for name in files if is_data(name)), _LOOKED_AT)
        )
        if names:
            return found if any(map(is_image, names)) else []  # what is none is refused by its name later
    return []


def is_voc(origin: Path) -> bool:
    """Tell whether a directory has images and annotations as Pascal VOC has them."""
    return (origin / "JPEGImages").is_dir() and (origin / "Annotations").is_dir()


def voc_of_split(path: Path) -> Path | None:
    """Return the directory of Pascal VOC to which a file belongs that names some of its images; None if it is no such file."""
    parents = path.absolute().parents
    is_split = (
        path.suffix == ".txt" and len(parents) > 2 and parents[1].name == "ImageSets" and path.is_file()
    )
    return parents[2] if is_split and is_voc(parents[2]) else None


_KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def is_file(path: Path) -> bool:
    """Tell a file from a directory. Raises BadData for all else."""
    try:
        kind = stat.S_IFMT(path.stat().st_mode)
    except OSError as error:
        if not path.is_symlink():
            raise
        raise BadData(
            f"{path} is a link to {path.readlink()}, which can't be reached ({error.strerror}); mend the link or remove it"
        ) from None
    if kind in _KINDS:
        raise BadData(
            f"{path} is {_KINDS[kind]}, and only regular files are read; remove it, or give a path or glob without it"
        )
    return kind == stat.S_IFREG


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
