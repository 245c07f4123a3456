"""Writing a model as a `.keras` file, whatever Keras computes with; and what its libraries make of errors of the file system."""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from elasticdl.files.output import made_beside


def write(model: Any, path: str) -> None:
    """Write a model to exactly `path`; what was there is replaced at the end. Raises OSError with what was there intact."""
    with os_errors(), made_beside(path, "model.keras") as written:
        model.save(written)


_HDF5 = re.compile(r"errno = (\d+)")


@contextmanager
def os_errors() -> Iterator[None]:
    """Let what HDF5 and TensorFlow make of an error of the file system be that error again, without descriptors and drafts' names."""
    try:
        yield
    except Exception as error:
        number = _errno(error)
        if number is None:
            raise
        raise OSError(number, os.strerror(number)) from error


def _errno(error: Exception) -> int | None:
    tensorflow = sys.modules.get("tensorflow")  # other backends do without it
    if tensorflow is not None and isinstance(error, tensorflow.errors.OpError):
        # It has only the text; the longest, because one may be part of another.
        said = [number for number in errno.errorcode if os.strerror(number) in error.message]
        return max(said, key=lambda number: len(os.strerror(number)), default=None)
    if not isinstance(error, OSError | RuntimeError):
        return None
    if found := _HDF5.search(str(error)):
        return int(found[1])
    return error.errno if isinstance(error, OSError) else None
