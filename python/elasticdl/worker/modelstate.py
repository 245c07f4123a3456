"""The state of a model and its optimizer as one flat image.

Which variables, in which order; no files, no wire. The description is compared before anything is replaced: a state that does not
fit leaves the model as it was.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from elasticdl.checkpoint.stateimage import StateImage
from elasticdl.errors import TransferFailed


class ModelState:
    """Copies variables out and in, always in the same order."""

    def __init__(self, variables: Sequence[Any]) -> None:
        unique = {id(variable): variable for variable in variables}
        self._variables = list(unique.values())
        self._arrays = [_describe(variable) for variable in self._variables]

    def image(self, callbacks: Any) -> StateImage:
        """Copy the variables; `callbacks` is JSON-able and travels in the description."""
        body = np.empty(sum(array["bytes"] for array in self._arrays), np.uint8)
        start = 0
        for variable, array in zip(self._variables, self._arrays, strict=True):
            body[start : start + array["bytes"]] = _bytes(variable)
            start += array["bytes"]
        return StateImage({"arrays": self._arrays, "callbacks": callbacks}, body)

    def check(self, image: StateImage) -> None:
        """Raise TransferFailed if the image is not of this model."""
        theirs = image.meta.get("arrays")
        if not isinstance(theirs, list) or len(theirs) != len(self._arrays):
            count = len(theirs) if isinstance(theirs, list) else "no"
            raise TransferFailed(
                f"the state has {count} arrays, this model and its optimizer have {len(self._arrays)}"
            )
        for mine, other in zip(self._arrays, theirs, strict=True):
            if mine != other:
                raise TransferFailed(
                    f"the state does not fit this model: expected {_show(mine)}, received {_show(other)}"
                )
        size = sum(array["bytes"] for array in self._arrays)
        if image.body.nbytes != size:
            raise TransferFailed(
                f"the state has {image.body.nbytes} bytes, this model and its optimizer have {size}"
            )

    def load(self, image: StateImage) -> None:
        """Replace the variables' values. Raises TransferFailed, with nothing replaced, if the image is not of this model."""
        self.check(image)
        start = 0
        for variable, array in zip(self._variables, self._arrays, strict=True):
            piece = image.body[start : start + array["bytes"]]
            start += array["bytes"]
            # copied: a slice may be unaligned, and TensorFlow may keep what it is given
            values = np.frombuffer(piece.tobytes(), _numpy_type(array["dtype"]))
            variable.assign(values.reshape(array["shape"]))

    def digest(self) -> str:
        """Return the BLAKE2b digest of the image's body, without making one."""
        digest = hashlib.blake2b(digest_size=16)
        for variable in self._variables:
            digest.update(memoryview(_bytes(variable)))
        return digest.hexdigest()


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
    return (
        f"{array.get('name')} {array.get('dtype')} {array.get('shape')}"
        if isinstance(array, dict)
        else repr(array)
    )
