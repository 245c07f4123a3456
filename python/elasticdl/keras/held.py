"""Variables of Keras as `worker/modelstate.py` takes them, whatever Keras computes with."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import keras
import numpy as np
import numpy.typing as npt


class Held:
    """One variable."""

    def __init__(self, variable: Any) -> None:
        self._variable = variable
        self.path: str = variable.path
        self.shape = tuple(variable.shape)

    @property
    def value(self) -> npt.NDArray[Any]:
        """Return its bits; they may be in the library's memory."""
        return array_of(self._variable.value)

    def assign(self, value: npt.NDArray[Any]) -> None:
        """Replace them."""
        self._variable.assign(value)


def held(variables: Iterable[Any]) -> list[Held]:
    """Return variables, each once."""
    return [Held(one) for one in {id(variable): variable for variable in variables}.values()]


def array_of(tensor: Any) -> npt.NDArray[Any]:
    """Return the bits of a tensor; they may be in the library's memory."""
    if hasattr(tensor, "detach"):  # PyTorch's can't be read while gradients are taken by them
        return np.asarray(keras.ops.convert_to_numpy(tensor))
    # TensorFlow's of bfloat16 give no array otherwise
    return np.asarray(tensor.numpy() if hasattr(tensor, "numpy") else tensor)
