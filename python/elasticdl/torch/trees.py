"""Trees of tensors as images of a state: their description, their bytes and their digest, on whatever device they are.

`bfloat16`, which NumPy does not have, travels as the 16-bit numbers of its bits, and its description says so.
"""

from __future__ import annotations

import functools
import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from elasticdl.checkpoint.stateimage import StateImage
from elasticdl.errors import TransferFailed
from elasticdl.worker import tree
from elasticdl.worker.imagepart import copied

Array = npt.NDArray[Any]
UNLIKE = "the state does not fit this model and its optimizer"
"""How messages about states begin."""
_BITS = "bfloat16 as int16"
"""The only name of a dictionary that stands for a tensor."""


class TensorTrees:
    """Copies named trees out. What they are made of may grow, so their structure is looked at each time, or after each change."""

    def __init__(self, kept: Callable[[], Mapping[str, Any]], *, watched: bool = False) -> None:
        """`kept`: called for the trees; functions in them are left out. `watched`: who changes something says so (`changed`)."""
        self._kept, self._watched = kept, watched
        self._found: tuple[dict[str, Any], list[torch.Tensor]] | None = None

    def changed(self) -> None:
        """Look at the structure again, when somebody asks for it."""
        self._found = None

    def found(self) -> tuple[dict[str, Any], list[torch.Tensor]]:
        """Return the description of the trees, and their tensors themselves in that order. Raises TypeError for what can't be described."""
        if self._found is None or not self._watched:
            self._found = self._look()
        return self._found

    def _look(self) -> tuple[dict[str, Any], list[torch.Tensor]]:
        tensors: list[torch.Tensor] = []

        def plain(one: Any) -> Any:
            if isinstance(one, torch.Tensor | np.ndarray):
                tensors.append(torch.as_tensor(one))
                # without memory: nothing is copied yet
                shown = np.broadcast_to(np.zeros((), _dtype(tensors[-1])), one.shape)
                return {_BITS: shown} if tensors[-1].dtype == torch.bfloat16 else shown
            return None if callable(one) else one

        return {name: tree.describe(mapped(one, plain), []) for name, one in self._kept().items()}, tensors

    def describe(self) -> tuple[dict[str, Any], int]:
        """Return the description of an image, and the bytes of its body."""
        described, tensors = self.found()
        return {"arrays": described}, sum(one.nbytes for one in tensors)

    def part(self, first: int, end: int) -> npt.NDArray[np.uint8]:
        """Copy these bytes of an image's body."""
        tensors = self.found()[1]
        sizes = [one.nbytes for one in tensors]
        return copied(first, end, sizes, lambda place, low, high: _bytes(tensors[place], low, high))

    def image(self) -> StateImage:
        """Copy the trees."""
        meta, size = self.describe()
        return StateImage(meta, self.part(0, size))

    def digest(self) -> str:
        """Return the BLAKE2b digest of the image's body, without making one."""
        digest = hashlib.blake2b(digest_size=16)
        for one in self.found()[1]:
            digest.update(_bytes(one, 0, one.nbytes).data)
        return digest.hexdigest()


def trees_in(image: StateImage, names: Sequence[str], what: str) -> dict[str, Any]:
    """Return the trees of an image, with tensors; it has these and no others. Raises TransferFailed for anything else: it is no `what`."""
    described = image.meta.get("arrays")
    if not isinstance(described, Mapping) or described.keys() != set(names):
        raise TransferFailed(f"the state is not one of {what}")
    nodes = [described[name] for name in names]
    arrays = iter(tree.split(image.body, [one for node in nodes for one in tree.sizes(node)]))
    return {name: _with_tensors(tree.build(node, arrays)) for name, node in zip(names, nodes, strict=True)}


def fitting(found: Any, wanted: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return tensors by name. Raises TransferFailed if names, types or shapes are others."""
    theirs = {name: _shown(one) for name, one in found.items()} if isinstance(found, dict) else {}
    mine = {name: _shown(one) for name, one in wanted.items()}
    for name in (*mine, *theirs):
        if mine.get(name) != theirs.get(name):
            raise TransferFailed(
                f"{UNLIKE}: {name}: expected {mine.get(name, 'nothing')}, received {theirs.get(name, 'nothing')}"
            )
    return dict(found) if isinstance(found, dict) else {}


def _shown(one: Any) -> str:
    if not isinstance(one, torch.Tensor):
        return f"a {type(one).__name__}"
    return f"{str(one.dtype).removeprefix('torch.')} {list(one.shape)}"


@functools.cache
def _dtype_of(kind: torch.dtype) -> np.dtype[Any]:
    found: np.dtype[Any] = torch.empty(0, dtype=torch.int16 if kind == torch.bfloat16 else kind).numpy().dtype
    return found


def _dtype(tensor: torch.Tensor) -> np.dtype[Any]:
    """Return the type of a tensor's bits."""
    return _dtype_of(tensor.dtype)


def _bytes(tensor: torch.Tensor, first: int, end: int) -> npt.NDArray[np.uint8]:
    """Return these bytes of a tensor; of one on another device no more is copied."""
    tensor = tensor.detach().contiguous().reshape(-1)
    found: npt.NDArray[np.uint8] = tensor.view(torch.uint8)[first:end].cpu().numpy()
    return found


def _tensor(array: Array) -> torch.Tensor:
    return torch.from_numpy(np.array(array))


def _with_tensors(kept: Any) -> Any:
    if isinstance(kept, dict):
        if kept.keys() == {_BITS} and isinstance(kept[_BITS], np.ndarray) and kept[_BITS].dtype == np.int16:
            return _tensor(kept[_BITS]).view(torch.bfloat16)
        return {key: _with_tensors(value) for key, value in kept.items()}
    if isinstance(kept, list | tuple):
        return type(kept)(map(_with_tensors, kept))
    return _tensor(kept) if isinstance(kept, np.ndarray) else kept


def mapped(kept: Any, change: Callable[[Any], Any]) -> Any:
    """Return a tree with other leaves."""
    if isinstance(kept, Mapping):
        return {key: mapped(value, change) for key, value in kept.items()}
    if isinstance(kept, list | tuple):
        return (
            type(kept)(mapped(value, change) for value in kept)
            if type(kept) in (list, tuple)
            else tuple(kept)
        )
    return change(kept)


def like(mine: Any, theirs: Any) -> Any:
    """Return a tree with what `mine` has for functions, and its kinds of dictionaries."""
    if isinstance(theirs, dict) and isinstance(mine, Mapping):
        merged = {key: like(mine.get(key), value) for key, value in theirs.items()}
        return Counter(merged) if isinstance(mine, Counter) else merged
    if isinstance(theirs, list | tuple) and isinstance(mine, list | tuple) and len(mine) == len(theirs):
        return type(theirs)(like(a, b) for a, b in zip(mine, theirs, strict=True))
    return mine if callable(mine) else theirs
