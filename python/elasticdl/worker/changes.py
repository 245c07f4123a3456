"""What variables that are not trained change by in a chunk, such as running means, as the end of a flat accumulator.

The changes of all floating-point variables are there twice, rounded and what the rounding left, so that before + change has all bits of the
value after a single chunk; the others are whole numbers. Everything is done on the host in float64, which some libraries do not have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from elasticdl.errors import BadModel

Array = npt.NDArray[Any]
_WHOLE = 1e-3
"""How far from a whole number the mean change of one may be: sums of weights have rounding errors."""


@dataclass(frozen=True, slots=True)
class Changing:
    """A variable.

    Attributes:
        name: in messages.
        kind: its type, in messages.
        size: its elements.
        is_real: it is of floating-point numbers, else of whole ones.
    """

    name: str
    kind: str
    size: int
    is_real: bool


class Changes:
    """Changes of some variables. `size`: elements in the accumulator, which is of type `dtype`."""

    def __init__(self, variables: Sequence[Changing], dtype: npt.DTypeLike, path: Any) -> None:
        """`path`: of the model file, for messages."""
        self._variables, self._dtype, self._path = variables, np.dtype(dtype), path
        self._reals = [place for place, one in enumerate(variables) if one.is_real]
        self._whole = [place for place, one in enumerate(variables) if not one.is_real]
        real, whole = (sum(variables[place].size for place in part) for part in (self._reals, self._whole))
        self._pieces = [real, 2 * real]
        self.size = 2 * real + whole

    def between(self, before: Sequence[Array], after: Sequence[Array]) -> Array:
        """Return how far a chunk has moved the variables, flat."""

        def moved(places: Sequence[int]) -> Array:
            return np.concatenate([np.zeros(0), *(_moved(before[place], after[place]) for place in places)])

        reals = moved(self._reals)
        near = reals.astype(self._dtype)
        left = (reals - near).astype(self._dtype)
        return np.concatenate([near, left, moved(self._whole).astype(self._dtype)])

    def after(self, before: Sequence[Array], flat: Array, factor: float) -> list[Array | None]:
        """Return the values after changes · `factor`, None of variables that stay. Raises BadModel for what workers can't agree on."""
        rounded, left, whole = np.split(flat.astype(np.float64) * factor, self._pieces)
        near = np.rint(whole)
        if (np.abs(whole - near) > _WHOLE).any():
            raise self._not_whole(np.abs(whole - near))
        found: list[Array | None] = [None] * len(self._variables)
        for places, changes in ((self._reals, rounded + left), (self._whole, near)):
            start = 0
            for place in places:
                old = before[place]
                change = changes[start : start + old.size].reshape(old.shape)
                start += old.size
                if change.any():
                    found[place] = (old.astype(np.float64) + change).astype(old.dtype)
        return found

    def _not_whole(self, distances: Array) -> BadModel:
        start = 0
        for place in self._whole:
            one = self._variables[place]
            if (distances[start : start + one.size] > _WHOLE).any():
                break
            start += one.size
        return BadModel(
            f"{self._path}: training changes the variable {one.name!r}, which is of type {one.kind}, by another number in each chunk: "
            "workers can't agree on it; make it a floating-point variable"
        )


def _moved(before: Array, after: Array) -> Array:
    """Return how far a variable was moved, as float64; an infinite one that stays is not moved."""
    same = before == after
    with np.errstate(invalid="ignore"):
        change = after.astype(np.float64) - before.astype(np.float64)
    return np.where(same, 0.0, change).reshape(-1)
