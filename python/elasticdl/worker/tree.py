"""Trees of arrays, numbers and texts as a JSON-able description and one flat run of bytes, for states that are no list of variables.

Optimizers and schedulers of some frameworks keep dictionaries that grow while they train. What is described here is their structure; an
array's bytes are not in it. Nothing is pickled: a tree has dictionaries, lists, tuples, arrays, numbers, texts, truth values and None.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from elasticdl.errors import TransferFailed

Array = npt.NDArray[Any]
_DEPTH = 32
"""Levels of a tree; those of optimizers have five."""


def describe(tree: object, arrays: list[Array], depth: int = 0) -> dict[str, Any]:
    """Return the structure of a tree, and add its arrays to `arrays` in the order in which `build` takes them.

    Raises TypeError for what a tree can't have.
    """
    if depth > _DEPTH:
        raise TypeError(f"it is nested more than {_DEPTH} levels deep")
    match tree:
        case np.ndarray():
            arrays.append(tree)
            return {"array": [str(tree.dtype), list(tree.shape)]}
        case None | bool() | int() | str():
            return {"value": tree}
        case float():
            return {"float": tree.hex()}  # JSON has neither all bits nor infinity
        case Mapping():
            for key in tree:
                if not isinstance(key, int | str):
                    raise TypeError(f"it has the key {key!r:.100}")
            return {"dict": [[key, describe(value, arrays, depth + 1)] for key, value in tree.items()]}
        case list() | tuple():
            name = "list" if isinstance(tree, list) else "tuple"
            return {name: [describe(value, arrays, depth + 1) for value in tree]}
    raise TypeError(f"it has a {type(tree).__module__}.{type(tree).__qualname__}")


def sizes(described: object) -> Iterator[tuple[str, tuple[int, ...], int]]:
    """Yield type, shape and bytes of each array of a structure, in order. Raises TransferFailed for what `describe` never returned."""
    match described:
        case {"array": [str(dtype), [*shape]]} if all(isinstance(size, int) and size >= 0 for size in shape):
            try:
                kind = np.dtype(dtype)
            except TypeError:
                raise TransferFailed(f"the state has an array of the type {dtype!r:.40}") from None
            yield dtype, tuple(shape), int(np.prod(shape, dtype=np.int64)) * kind.itemsize
        case {"value": _} | {"float": _}:
            return
        case {"dict": [*pairs]}:
            for pair in pairs:
                if not isinstance(pair, list) or len(pair) != 2:
                    raise TransferFailed("the state has a dictionary that is none")
                yield from sizes(pair[1])
        case {"list": [*nodes]} | {"tuple": [*nodes]}:
            for node in nodes:
                yield from sizes(node)
        case _:
            raise TransferFailed("the state has a structure that is none")


def build(described: Any, arrays: Iterator[Array]) -> Any:
    """Return the tree that `describe` was given; `sizes` has accepted its structure, and `arrays` are as it says."""
    match described:
        case {"array": _}:
            return next(arrays)
        case {"value": value}:
            return value
        case {"float": text}:
            try:
                return float.fromhex(text)
            except (TypeError, ValueError):
                raise TransferFailed(f"the state has the number {text!r:.40}") from None
        case {"dict": pairs}:
            return {key: build(value, arrays) for key, value in pairs}
        case {"list": nodes}:
            return [build(node, arrays) for node in nodes]
    return tuple(build(node, arrays) for node in described["tuple"])


def split(body: npt.NDArray[np.uint8], described: Sequence[tuple[str, tuple[int, ...], int]]) -> list[Array]:
    """Return copies of the arrays whose bytes lie one after the other in `body`. Raises TransferFailed for another length."""
    if sum(size for _, _, size in described) != body.nbytes:
        raise TransferFailed(
            f"the state has {body.nbytes} bytes, and its arrays have {sum(size for _, _, size in described)}"
        )
    found, start = [], 0
    for dtype, shape, size in described:
        # copied: a slice may be unaligned
        found.append(np.frombuffer(body[start : start + size].tobytes(), dtype).reshape(shape))
        start += size
    return found
