"""Places of data: which files are meant by one, and what to write instead of a directory whose files lie deeper.

No file is opened; what is in one is the readers' business.
"""

from __future__ import annotations

import glob
import os
import stat
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from elasticdl.errors import BadData

INDEX_SUFFIX = ".records-index"
"""Ends the name of an index that a reader keeps beside a large file."""

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".gif", ".bmp", ".webp")
"""End the names of image files, in small letters."""

_NOTES = ("readme", "license", "licence", "copying", "notice", "authors", "citation", "changelog")
"""Names of files for people, in small letters, without a suffix or with one of `_OF_TEXTS`."""
_OF_TEXTS = ("", ".txt", ".md", ".rst", ".html", ".pdf")
_OF_FILE_MANAGERS = ("thumbs.db", "ehthumbs.db", "desktop.ini")

_LOOKED_AT = 10_000
"""Files that a glob is derived from at most; a directory of millions is not searched for the sake of a message."""


def is_data(name: str) -> bool:
    """Tell whether a file or directory of this name in a directory may be data: no hidden file, mark or index."""
    return not name.startswith((".", "_")) and not name.endswith(INDEX_SUFFIX)


def is_note(name: str) -> bool:
    """Tell whether a file of this name is for people or a file manager, such as README.md and Thumbs.db, and never data in a directory."""
    path = Path(name.lower())
    return (path.stem in _NOTES and path.suffix in _OF_TEXTS) or path.name in _OF_FILE_MANAGERS


def is_data_file(name: str) -> bool:
    """Tell whether a file of this name in a directory is data."""
    return is_data(name) and not is_note(name)


def find(origin: str) -> list[Path]:
    """Return the files that a path, a directory or a glob stands for; of a directory those directly in it that are data by their names.

    Raises BadData for what is there under such a name and is neither a file nor a directory: a job that left it out would train on
    less data than it was given. Raises OSError.
    """
    path = Path(origin)
    if path.is_dir():
        found = [child for child in path.iterdir() if is_data_file(child.name)]
    elif os.path.lexists(path):
        found = [path]
    else:
        found = [Path(match) for match in glob.glob(origin, recursive=True)]  # noqa: PTH207  (absolute patterns)
    return [file for file in found if not file.name.endswith(INDEX_SUFFIX) and is_file(file)]


def is_image(name: str) -> bool:
    """Tell whether a file of this name is an image."""
    return name.lower().endswith(IMAGE_SUFFIXES)


def class_folders(origin: str, classes: Sequence[str] = ()) -> list[Path]:
    """Return the directories in a directory, by name, if each stands for a class of images: in the first one that has any file there are
    images. Empty otherwise.

    Args:
        origin: the directory.
        classes: their names as far as the user gives them, who then means the images whatever lies beside the directories.

    Raises BadData if data lies beside the directories, and OSError.
    """
    path = Path(origin)
    if not path.is_dir():
        return []
    inside = [child for child in path.iterdir() if is_data(child.name)]
    found = sorted(child for child in inside if child.is_dir())
    for folder in found:
        files = (name for _, _, files in os.walk(folder) for name in files if is_data_file(name))
        names = list(islice(files, _LOOKED_AT))
        if names and not any(map(is_image, names)):  # what is none is refused by its name later
            return []
        if names:
            if not classes:
                beside = [child.name for child in inside if child not in found]
                check_beside(origin, [folder.name for folder in found], beside)
            return found
    return []


def check_beside(origin: str, classes: Sequence[str], files: Sequence[str]) -> None:
    """Raise BadData if data lies in a directory beside directories that have images: nobody can tell which of them is meant."""
    data = sorted(name for name in files if not is_note(name))
    if not data:
        return
    suffix = Counter(Path(name).suffix for name in data).most_common(1)[0][0]
    pattern = f"a glob in quotes: '{glob.escape(origin.rstrip('/'))}/*{glob.escape(suffix)}'"
    instead = (
        "the URL of one" if origin.startswith(("http://", "https://")) else pattern
    )  # HTTP knows no globs
    raise BadData(
        f"{origin} has directories with images, {_some(classes)}, and beside them {_some(data)}: which of them is the data? For images, "
        f"with a directory for each class, name the classes: --data_reader_params=\"classes=['{classes[0]}', …]\". For the files beside "
        f"them, give {instead}. Files that are no data may be moved, or renamed so that they begin with '_'"
    )


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3:,} more" if len(names) > 3 else "")


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
        for name in filter(is_data_file, files):
            yield depth, Path(name).suffix
