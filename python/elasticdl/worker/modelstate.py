"""The state of a model and its optimizer as one flat image.

Which variables, in which order; no files, no wire. The description is compared before anything is replaced: a state that does not
fit leaves the model as it was.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Any

import numpy as np
import numpy.typing as npt

from elasticdl.checkpoint.stateimage import StateImage
from elasticdl.errors import TransferFailed
from elasticdl.worker.imagepart import copied


class ModelState:
    """Copies variables out and in, always in the same order."""

    def __init__(self, variables: Sequence[Any]) -> None:
        unique = {id(variable): variable for variable in variables}
        self._variables = list(unique.values())
        self._arrays = [_describe(variable) for variable in self._variables]
        self.size: int = sum(array["bytes"] for array in self._arrays)
        """Bytes of the image's body."""

    def image(self, callbacks: Sequence[Any] = ()) -> StateImage:
        """Copy the variables; what callbacks keep is JSON-able and travels in the description."""
        meta, size = self.describe(callbacks)
        return StateImage(meta, self.part(0, size))

    def describe(self, callbacks: Sequence[Any] = ()) -> tuple[dict[str, Any], int]:
        """Return the description of an image, and the bytes of its body."""
        return {"arrays": self._arrays, "callbacks": list(callbacks)}, self.size

    def part(self, first: int, end: int) -> npt.NDArray[np.uint8]:
        """Copy these bytes of the image's body, and look at no variable that has none of them."""
        sizes = [array["bytes"] for array in self._arrays]
        return copied(first, end, sizes, lambda place, low, high: _bytes(self._variables[place])[low:high])

    def check(self, image: StateImage) -> None:
        """Raise TransferFailed if the image is not of this model."""
        theirs = image.meta.get("arrays")
        if not isinstance(theirs, list):
            raise TransferFailed("the state has no arrays")
        for mine, other in zip_longest(self._arrays, theirs):
            if mine != other:
                raise TransferFailed(
                    f"the state does not fit this model and its optimizer: expected {_show(mine)}, received {_show(other)}"
                )
        if image.body.nbytes != self.size:
            raise TransferFailed(
                f"the state has {image.body.nbytes} bytes, this model and its optimizer have {self.size}"
            )

    def load(self, image: StateImage) -> None:
        """Replace the variables' values. Raises TransferFailed, with nothing replaced, if the image is not of this model."""
        self.check(image)
        for variable, values in zip(self._variables, _values(self._arrays, image), strict=True):
            variable.assign(values)

    def digest(self) -> str:
        """Return the BLAKE2b digest of the image's body, without making one."""
        digest = hashlib.blake2b(digest_size=16)
        for variable in self._variables:
            digest.update(memoryview(_bytes(variable)))
        return digest.hexdigest()


def arrays_of(image: StateImage) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays of a state by name, copied. Raises TransferFailed if it does not describe its bytes."""
    arrays: Any = image.meta.get("arrays")
    try:
        found = {
            str(array["name"]): value for array, value in zip(arrays, _values(arrays, image), strict=True)
        }
        if len(found) == len(arrays) and sum(array["bytes"] for array in arrays) == image.body.nbytes:
            return found
    except (TypeError, ValueError, KeyError):
        pass
    raise TransferFailed("the state does not describe its arrays")


def _values(arrays: Sequence[Any], image: StateImage) -> Iterator[npt.NDArray[Any]]:
    start = 0
    for array in arrays:
        piece = image.body[start : start + array["bytes"]]
        start += array["bytes"]
        # copied: a slice may be unaligned, and TensorFlow may keep what it is given
        yield np.frombuffer(piece.tobytes(), _numpy_type(array["dtype"])).reshape(array["shape"])


def _describe(variable: Any) -> dict[str, Any]:
    dtype = str(np.asarray(variable.value).dtype)
    size = int(np.prod(variable.shape, dtype=np.int64)) * _numpy_type(dtype).itemsize
    return {"name": variable.path, "shape": list(variable.shape), "dtype": dtype, "bytes": size}


def _numpy_type(name: str) -> np.dtype[Any]:
    # bfloat16 and its like are numpy types only once ml_dtypes, which TensorFlow imports, has registered them
    return np.dtype(name)


def _bytes(variable: Any) -> Any:
    return np.ascontiguousarray(np.asarray(variable.value)).reshape(-1).view(np.uint8)


def _show(array: Any) -> str:
    if array is None:
        return "no further array"
    return (
        f"{array.get('name')} {array.get('dtype')} {array.get('shape')}"
        if isinstance(array, dict)
        else repr(array)
    )
