"""Reading a file of parameters as data: named arrays, as `mx.nd.save` wrote them. Nothing is unpickled, and nothing of MXNet reads it.

MXNet's own reader trusts the sizes that a file states, and is not mended any more. The format, of little-endian numbers: a magic number
and a reserved one; how many arrays, and each; how many names, and each with its length. An array is a magic number, the kind of its
storage, its dimensions, its device, its type and its values (`NDArray::Save` of MXNet 1.x).
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from elasticdl.errors import BadModel

_FILE, _ARRAY = 0x112, 0xF993FAC9
_DENSE = 0
_TYPES = ("float32", "float64", "float16", "uint8", "int32", "int8", "int64", "bool")
"""By their numbers in a file."""


def read_parameters(path: Path) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays of a file by name, without the `arg:` and `aux:` of exported ones. Raises BadModel or OSError."""
    reader = _Reader(path.read_bytes())
    try:
        magic, _ = reader.numbers("<QQ")
        if magic != _FILE:
            raise ValueError("it does not begin as one")
        (count,) = reader.numbers("<Q")
        arrays = [_array(reader) for _ in range(count)]
        (count,) = reader.numbers("<Q")
        names = [reader.take(*reader.numbers("<Q")).decode() for _ in range(count)]
        if len(names) != len(arrays) or reader.left:
            raise ValueError(f"it has {len(arrays)} arrays, {len(names)} names and {reader.left} bytes more")
    except ValueError as error:
        raise BadModel(
            f"--trained_model: {path} is damaged, or no file of parameters that a job or save_parameters wrote: {error}"
        ) from None
    return {
        name.removeprefix("arg:").removeprefix("aux:"): one for name, one in zip(names, arrays, strict=True)
    }


class _Reader:
    """Takes pieces from the beginning of some bytes."""

    def __init__(self, content: bytes) -> None:
        self._content, self._at = memoryview(content), 0

    @property
    def left(self) -> int:
        """Return the bytes that are left."""
        return len(self._content) - self._at

    def take(self, size: int) -> bytes:
        """Take so many bytes. Raises ValueError if there are less."""
        if size > self.left:
            raise ValueError(f"it ends {size - self.left} bytes too early")
        self._at += size
        return bytes(self._content[self._at - size : self._at])

    def numbers(self, form: str) -> tuple[Any, ...]:
        """Take numbers of a form of `struct`."""
        return struct.unpack(form, self.take(struct.calcsize(form)))


def _array(reader: _Reader) -> npt.NDArray[Any]:
    magic, storage, dimensions = reader.numbers("<Iii")
    if magic != _ARRAY or storage != _DENSE or not 0 < dimensions <= 32:
        raise ValueError("an array of it is sparse, or of another version of the format")
    shape = reader.numbers(f"<{dimensions}q")
    *_, kind = reader.numbers("<iii")
    if not 0 <= kind < len(_TYPES) or min(shape) < 0:
        raise ValueError(f"an array of it has the type {kind} and the shape {list(shape)}")
    dtype, size = np.dtype(_TYPES[kind]), 1
    for one in shape:
        size *= one
    return np.frombuffer(reader.take(size * dtype.itemsize), dtype).reshape(shape)
