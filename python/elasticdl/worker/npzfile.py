"""The .npz file of a trained model, for frameworks that have no format of their own: arrays of numbers by name, which `numpy.load` reads.

NumPy's own messages are not shown: of what it can't read it advises to trust it.
"""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from elasticdl.errors import BadModel
from elasticdl.files.output import made_beside

_DAMAGED = (ValueError, EOFError, zipfile.BadZipFile, zlib.error)
_REMEDY = "copy the file again, or give one that `elasticdl train --output=NAME.npz` has written"


def write_npz(path: str, values: Mapping[str, npt.NDArray[Any]]) -> None:
    """Write to exactly `path`; what was there is replaced at the end. Raises OSError with what was there intact."""
    written = io.BytesIO()
    np.savez(written, allow_pickle=False, **values)
    with made_beside(path, "model.npz") as target:
        target.write_bytes(written.getbuffer())


def read_npz(path: Path) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays of a file of --trained_model. Raises BadModel."""
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
