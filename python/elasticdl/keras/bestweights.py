"""The weights that `EarlyStopping(restore_best_weights=True)` keeps, as arrays of the model's state.

The callback keeps them in an attribute. What callbacks know is replayed in a member that joins, which never had those weights: the replay
says when they were kept, and these arrays, which come with the state, say what they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import numpy.typing as npt

from elasticdl.keras.library import callbacks_of, library_of


class BestWeight:
    """One array, as `worker/modelstate.py` takes it; zeros while no weights are kept."""

    def __init__(
        self, path: str, like: Any, kept: Callable[[], list[npt.NDArray[Any]] | None], place: int
    ) -> None:
        """`kept` returns the callback's list, in which this array has its place."""
        self.path = path
        self.shape = tuple(like.shape)
        self._dtype = np.dtype(keras.backend.standardize_dtype(like.dtype))
        self._kept = kept
        self._place = place

    @property
    def value(self) -> npt.NDArray[Any]:
        """Return the array."""
        kept = self._kept()
        return (
            np.zeros(self.shape, self._dtype) if kept is None else np.asarray(kept[self._place], self._dtype)
        )

    def assign(self, value: npt.NDArray[Any]) -> None:
        """Replace the array, if weights are kept at all."""
        kept = self._kept()
        if kept is not None:
            kept[self._place] = np.array(value)


def keeps_weights(callback: Any) -> bool:
    """Tell whether a callback keeps the best weights so far."""
    return isinstance(callback, callbacks_of(callback).EarlyStopping) and bool(callback.restore_best_weights)


def best_weights(callbacks: Callable[[], Sequence[Any]], model: Any) -> Iterator[BestWeight]:
    """Yield the arrays of the callbacks that keep weights; `callbacks` returns them, also after they were made anew."""
    for number, callback in enumerate(callbacks()):
        if not keeps_weights(callback):
            continue

        def kept(number: int = number) -> list[npt.NDArray[Any]] | None:
            found: list[npt.NDArray[Any]] | None = callbacks()[number].best_weights
            return found

        for place, weight in enumerate(library_of(model).weights(model)):
            yield BestWeight(f"best_weights_{number}/{weight.path}", weight, kept, place)
