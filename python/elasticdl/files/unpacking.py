"""Plain files out of an archive whose maker nobody vouches for.

`tarfile.data_filter` is not in every Python that we support: Debian 12 has 3.11.2, and it came with 3.11.4.
"""

from __future__ import annotations

import shutil
import tarfile
from pathlib import Path


class NoPlainFile(ValueError):
    """An archive has something else than files below the folder.

    Attributes:
        name: of the first such entry.
    """

    def __init__(self, name: str) -> None:
        super().__init__(f"{name!r} is no file below the folder")
        self.name = name


def unpack(archive: tarfile.TarFile, folder: Path) -> None:
    """Write the files of an archive below a folder, one after the other. Raises NoPlainFile, OSError, and what the archive raises."""
    folder.mkdir(parents=True, exist_ok=True)
    for entry in archive:
        target = (folder / entry.name).resolve()
        content = archive.extractfile(entry) if entry.isfile() else None
        if content is None or folder.resolve() not in target.parents:
            raise NoPlainFile(entry.name)
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("wb") as file:
            shutil.copyfileobj(content, file)
