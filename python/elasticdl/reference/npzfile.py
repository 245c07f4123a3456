"""Reading the .npz file of a trained model: arrays of numbers by name.

NumPy's own messages are not shown: of what it can't read it advises to trust it.
"""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path

import numpy as np

from elasticdl.errors import BadModel
from elasticdl.reference.models import Arrays

_DAMAGED = (ValueError, EOFError, zipfile.BadZipFile, zlib.error)
_REMEDY = "copy the file again, or give one that `elasticdl train --output=NAME.npz` has written"


def read_npz(path: Path) -> Arrays:
    """Return the arrays of a file. Raises BadModel."""
    what = f"--trained_model: {path}"
    try:
        with path.open("rb") as stream:
            if not zipfile.is_zipfile(stream):
                raise BadModel(f"{what} is no whole .npz file, which is a zip archive of arrays; {_REMEDY}")
        with np.load(path, allow_pickle=False) as file:
            return {name: _array(what, file, name) for name in file.files}
    except OSError as error:
        raise BadModel(f"{what} can't be read: {error.strerror or error}") from None
    except _DAMAGED:
        raise BadModel(f"{what} is damaged; {_REMEDY}") from None


def _array(
    what: str, file: np.lib.npyio.NpzFile, name: str
) -> np.ndarray[tuple[int, ...], np.dtype[np.generic]]:
    try:
        found = file[name]
    except _DAMAGED:
        found = None
    if not isinstance(found, np.ndarray):  # a file that is no array comes as bytes
        raise BadModel(
            f"{what}: the array {name!r} in it is damaged, or has objects of Python instead of numbers, which are not read; {_REMEDY}"
        )
    return found
