"""What a custom training loop keeps in `job.state`: named trees of values, copied as an image, and put back where they were.

A value is put back in place, so that the program's other names for it stay right: NumPy arrays are written into, variables assigned,
objects with a `state_dict` load one; numbers, texts, and arrays that can't be written into (JAX) are replaced inside what has them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any

import numpy as np
import numpy.typing as npt

from elasticdl.checkpoint.stateimage import StateImage
from elasticdl.errors import BadInput, TransferFailed
from elasticdl.worker import tree

Array = npt.NDArray[Any]
_SMALL = 4096
"""Bytes of an array that is compared in every step."""


class Values(MutableMapping[str, Any]):
    """Named values of a program: numbers, texts, arrays, variables, objects with a `state_dict`, and dictionaries and lists of those."""

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        """Return a value."""
        return self._values[name]

    def __setitem__(self, name: str, value: Any) -> None:
        """Keep a value. Raises BadInput for what can't be kept."""
        if not isinstance(name, str):
            raise BadInput(f"job.state[{name!r:.40}]: names are strings")
        try:
            tree.describe(_plain(value), [])
        except TypeError as error:
            raise BadInput(
                f"job.state[{name!r}]: {error}; it takes numbers, texts, arrays, variables, what has a state_dict, and "
                "dictionaries and lists of those"
            ) from None
        self._values[name] = value

    def __delitem__(self, name: str) -> None:
        """Keep a value no longer."""
        del self._values[name]

    def __iter__(self) -> Iterator[str]:
        """Yield the names."""
        return iter(self._values)

    def __len__(self) -> int:
        """Return how many values there are."""
        return len(self._values)

    # ------------------------------------------------------------------ images

    def describe(self) -> tuple[dict[str, Any], list[Array]]:
        """Return the structure of all values, and their arrays, which may be views of them."""
        arrays: list[Array] = []
        return tree.describe(_plain(self._values), arrays), arrays

    def image(self) -> StateImage:
        """Copy all values."""
        described, arrays = self.describe()
        parts = [np.ascontiguousarray(one).reshape(-1).view(np.uint8) for one in arrays]
        return StateImage({"values": described}, np.concatenate(parts) if parts else np.zeros(0, np.uint8))

    def load(self, image: StateImage) -> None:
        """Put all values back. Raises TransferFailed, with nothing changed, if they do not fit."""
        described = image.meta.get("values")
        arrays = tree.split(image.body, list(tree.sizes(described)))
        found = tree.build(described, iter(arrays))
        if not isinstance(found, dict):
            raise TransferFailed("the state is not that of a custom training loop")
        for name, value in self._values.items():
            if name not in found:
                raise TransferFailed(f"the state has no {name!r}; the program keeps it in job.state")
            _check(name, value, found[name])
        for name, value in found.items():
            self._values[name] = _put(self._values.get(name), value)

    def digest(self) -> str:
        """Return a digest of all bits (hexadecimal)."""
        digest: str = self._hash(None).hexdigest()
        return digest

    def fingerprint(self, *, whole: bool) -> int:
        """Return 20 bits of a hash: of all that is small, or of everything."""
        return int.from_bytes(self._hash(None if whole else _SMALL).digest()[:3], "little") >> 4

    def _hash(self, largest: int | None) -> Any:
        """Return a hash of all values, or of structure and arrays of so many bytes at most."""
        described, arrays = self.describe()
        total = hashlib.blake2b(json.dumps(described).encode(), digest_size=16)
        for one in arrays:
            if largest is None or one.nbytes <= largest:
                total.update(np.ascontiguousarray(one).tobytes())
        return total


def _plain(value: Any) -> Any:
    """Return a tree of arrays, numbers and texts, in which the order of a dictionary's names is one."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {name: _plain(value[name]) for name in sorted(value, key=str)}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if hasattr(value, "state_dict"):
        return _plain(value.state_dict())
    return np.asarray(value) if hasattr(value, "__array__") else value


def _check(name: str, present: Any, value: Any) -> None:
    """Raise TransferFailed if a value can't take the place of the present one."""
    if isinstance(present, Mapping) and not hasattr(present, "state_dict"):
        if not isinstance(value, dict) or value.keys() != present.keys():
            raise TransferFailed(f"{name!r} has other entries there")
        for key, one in present.items():
            _check(f"{name}/{key}", one, value[key])
    elif isinstance(present, list | tuple):
        if not isinstance(value, list):
            raise TransferFailed(f"{name!r} is a list here, and {type(value).__name__} there")
        common = min(len(present), len(value))
        # Lists of numbers grow, as those of losses do; one of arrays is what a model has.
        if len(present) != len(value) and not (
            isinstance(present, list) and _simple(_plain(present[common:])) and _simple(value[common:])
        ):
            raise TransferFailed(f"{name!r} is a list of another length there")
        for place in range(common):
            _check(f"{name}/{place}", present[place], value[place])
    elif not hasattr(present, "state_dict") and hasattr(present, "__array__"):
        mine = np.asarray(present)
        if not isinstance(value, np.ndarray) or (value.shape, value.dtype) != (mine.shape, mine.dtype):
            shown = f"{value.dtype} {value.shape}" if isinstance(value, np.ndarray) else type(value).__name__
            raise TransferFailed(f"{name!r} is {mine.dtype} {mine.shape} here, and {shown} there")


def _simple(value: Any) -> bool:
    """Tell whether a tree has only numbers and texts."""
    if isinstance(value, list):
        return all(map(_simple, value))
    if isinstance(value, dict):
        return all(map(_simple, value.values()))
    return not isinstance(value, np.ndarray) or not value.shape


def _put(present: Any, value: Any) -> Any:
    """Put a value in the place of the present one, inside it where that can be; return what is there now."""
    if hasattr(present, "load_state_dict"):
        present.load_state_dict(value)
        return present
    if isinstance(present, dict):
        for name, one in value.items():
            present[name] = _put(present.get(name), one)
        return present
    if isinstance(present, list):
        common = zip(present, value, strict=False)
        present[:] = [*(_put(one, other) for one, other in common), *value[len(present) :]]
        return present
    if isinstance(present, tuple):
        parts = [_put(one, other) for one, other in zip(present, value, strict=True)]
        return type(present)(*parts) if hasattr(present, "_fields") else tuple(parts)
    if hasattr(present, "assign"):
        present.assign(value)
        return present
    if isinstance(present, np.ndarray) and present.flags.writeable:
        present[...] = value
        return present
    return value
