"""The accumulator of a loop whose gradients are arrays: what a session adds up and gives back, without a framework.

A chunk of n examples weighs n / batch_size, and the sum is multiplied by batch_size / N, N the examples of the step: both are 1 for one
worker's full batch, which so has the bits of the plain loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from elasticdl.checkpoint.stateimage import StateImage
from elasticdl.errors import BadInput
from elasticdl.worker.loop.result import written_by
from elasticdl.worker.loop.values import Values

Array = npt.NDArray[Any]
WHOLE_EVERY = 100
"""Steps between two comparisons of all bits."""


def leaves(value: Any, name: str = "") -> list[tuple[str, Any]]:
    """Return the arrays of a tree of dictionaries and lists, each with the way to it; the order of a dictionary's names does not count."""
    if isinstance(value, Mapping):
        return [leaf for key in sorted(value, key=str) for leaf in leaves(value[key], f"{name}/{key}")]
    if isinstance(value, list | tuple):
        return [leaf for place, one in enumerate(value) for leaf in leaves(one, f"{name}/{place}")]
    return [(name or "/", value)]


def filled(value: Any, arrays: list[Array]) -> Any:
    """Return a tree of the same structure, with these arrays; they are taken from the list."""
    if isinstance(value, Mapping):
        return {key: filled(value[key], arrays) for key in sorted(value, key=str)}
    if isinstance(value, list | tuple):
        parts = [filled(one, arrays) for one in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    return arrays.pop(0)


def _array(one: Any, call: str) -> Array:
    """Return the array that something of a framework is. Raises BadInput for what NumPy can't read."""
    try:
        return np.asarray(one)
    except (TypeError, ValueError, RuntimeError):
        kind = f"{type(one).__module__}.{type(one).__qualname__}"
        raise BadInput(f"{call}: NumPy can't read a {kind}; give arrays of NumPy") from None


class SumState:
    """Implements `elasticdl.worker.contract.loop.LoopState` for trees of arrays."""

    def __init__(self, like: Any, batch_size: int, values: Values) -> None:
        """`like`: a tree of what gradients are of, its arrays with their shapes. Raises BadInput for what has no array."""
        self.values = values
        self.write: Callable[[str], object] | None = None
        """Writes the program's result."""
        self._like, self._full = like, batch_size
        found = leaves(like)
        self._shapes = [(name, np.shape(one)) for name, one in found]
        types = [_array(one, "job.chunks(parameters=...)").dtype for _, one in found]
        if not found or not all(np.issubdtype(kind, np.floating) for kind in types):
            raise BadInput(
                "job.chunks(parameters=...): expected the arrays that gradients are of, all of them floating-point"
            )
        self.dtype: npt.DTypeLike = np.float64 if np.dtype(np.float64) in types else np.float32
        self._sizes = [int(np.prod(shape, dtype=np.int64)) for _, shape in self._shapes]
        self.size = self.gradient_size = sum(self._sizes)
        self._sum: Array = np.zeros(self.size, self.dtype)
        self.mean: Any = None
        """Gradients of the last committed step: a tree like the parameters, None if the step had no example."""

    def add(self, gradients: Any, examples: float) -> None:
        """Add the mean gradients of so many examples. Raises BadInput for other shapes than the parameters have."""
        found = leaves(gradients)
        if [(name, np.shape(one)) for name, one in found] != self._shapes:
            raise BadInput(
                f"job.step: the gradients are {_shown(found)}; expected those of the parameters, {_shown(leaves(self._like))}"
            )
        weight, start = examples / self._full, 0
        for (_, one), size in zip(found, self._sizes, strict=True):
            part = _array(one, "job.step").reshape(-1)
            self._sum[start : start + size] += part if weight == 1 else part * np.asarray(weight, self.dtype)
            start += size

    # ------------------------------------------------------------------ the contract

    def zero(self) -> None:
        """Empty the accumulator."""
        self._sum[:] = 0

    def accumulator(self) -> memoryview:
        """Return the accumulator's elements."""
        return self._sum.data

    def apply(self, result: Array, examples: float) -> None:
        """Keep the step's mean gradients for the program, which commits them itself; the accumulator becomes empty."""
        self.mean = None
        if examples:
            mean = result * np.asarray(self._full / examples, self.dtype)
            parts, start = [], 0
            for (_, shape), size in zip(self._shapes, self._sizes, strict=True):
                parts.append(mean[start : start + size].reshape(shape))
                start += size
            self.mean = filled(self._like, parts)
        self.zero()

    def image(self) -> StateImage:
        """Copy the program's values."""
        return self.values.image()

    def describe_image(self) -> tuple[Mapping[str, Any], int]:
        """Return the `meta` of an image, and the bytes of its body."""
        described, arrays = self.values.describe()
        return {"values": described}, sum(one.nbytes for one in arrays)

    def image_part(self, first: int, end: int) -> npt.NDArray[np.uint8]:
        """Copy these bytes of an image's body."""
        parts, start = [np.zeros(0, np.uint8)], 0
        for one in self.values.describe()[1]:
            if start < end and first < start + one.nbytes:
                flat = np.ascontiguousarray(one).reshape(-1).view(np.uint8)
                parts.append(flat[max(0, first - start) : end - start])
            start += one.nbytes
        return np.concatenate(parts)

    def load(self, image: StateImage) -> None:
        """Put the program's values back. Raises TransferFailed if they do not fit."""
        self.values.load(image)

    def digest(self) -> str:
        """Return a digest of the values' bits (hexadecimal)."""
        return self.values.digest()

    def fingerprint(self, step: int) -> int:
        """Return a hash of the program's values: of all bits in every hundredth step, of what is small always."""
        return self.values.fingerprint(whole=step % WHOLE_EVERY == 0)

    def export(self, path: str) -> str:
        """Let the program write its result; return the digest. Raises BadModel if it has not said how, or writes nothing."""
        if path:
            written_by(self.write, path)
        return self.digest()

    @property
    def moved(self) -> bool:
        """Tell whether the gradients of the last committed step are not all 0."""
        return self.mean is not None and any(np.any(one) for _, one in leaves(self.mean))

    @property
    def has_result(self) -> bool:
        """Tell whether the program has said how its result is written."""
        return self.write is not None


def _shown(found: list[tuple[str, Any]]) -> str:
    if [name for name, _ in found] == ["/"]:
        one = found[0][1]
        return f"one array of shape {list(np.shape(one))}" if np.shape(one) else f"a {type(one).__name__}"
    shapes = [f"{name.lstrip('/')} {list(np.shape(one))}" for name, one in found]
    return ", ".join(shapes[:5]) + (f", ... ({len(shapes)} in all)" if len(shapes) > 5 else "")
