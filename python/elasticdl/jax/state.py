"""The committed state of one worker: trees of arrays by name, copied as an image and put back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from elasticdl.jax.building import name_of


class Leaves:
    """The arrays of a tree, in order.

    Attributes:
        names: of the arrays: the keys on the way to each.
        arrays: their present values; each is an array that nothing else has.
    """

    def __init__(self, tree: Any) -> None:
        """Take a tree apart."""
        named = list(self.named(tree))
        self.names = [name for name, _ in named]
        # Copied, since an update is made in the memory of what it replaces; of a type that is not weak, as after an update.
        self.arrays = [_own(one) for _, one in named]
        self._structure = jax.tree.structure(tree)

    def tree(self, arrays: Any) -> Any:
        """Return a tree with other arrays, or with what stands for them."""
        return jax.tree.unflatten(self._structure, arrays)

    @staticmethod
    def named(tree: Any) -> Iterator[tuple[str, Any]]:
        """Yield the arrays of a tree with their names."""
        yield from ((name_of(path), one) for path, one in jax.tree_util.tree_leaves_with_path(tree))

    def variables(self, prefix: str) -> list[Variable]:
        """Return the arrays as `ModelState` takes them; their names begin with a prefix."""
        return [Variable(f"{prefix}{name}", self, place) for place, name in enumerate(self.names)]


class Variable:
    """A named array that can be replaced, as `ModelState` takes it."""

    def __init__(self, path: str, leaves: Leaves, place: int) -> None:
        self.path, self._leaves, self._place = path, leaves, place

    @property
    def value(self) -> npt.NDArray[Any]:
        """Return the array's bits; they may be in JAX's memory."""
        return bits(self._leaves.arrays[self._place])

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of the bits."""
        return self.value.shape

    def assign(self, value: npt.NDArray[Any]) -> None:
        """Replace the array."""
        self._leaves.arrays[self._place] = like(self._leaves.arrays[self._place], value)


def bits(array: jax.Array) -> npt.NDArray[Any]:
    """Return an array for NumPy: of keys their numbers."""
    return np.asarray(jax.random.key_data(array) if _is_key(array) else array)


def like(array: jax.Array, value: npt.NDArray[Any]) -> jax.Array:
    """Return an array of the same kind with other bits."""
    made = jnp.array(value, copy=True)
    return jax.random.wrap_key_data(made, impl=jax.random.key_impl(array)) if _is_key(array) else made


def _own(one: Any) -> jax.Array:
    array = jnp.asarray(one)
    return like(array, bits(array))


def _is_key(array: jax.Array) -> bool:
    return bool(jnp.issubdtype(array.dtype, jax.dtypes.prng_key))
