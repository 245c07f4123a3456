"""The committed state of one worker: the model's tensors by name, and what its optimizer and its scheduler keep, on whatever device.

Both keep dictionaries that grow while they train, so their structure is a part of the state's description. `bfloat16`, which NumPy does not
have, travels as the 16-bit numbers of its bits.
"""

from __future__ import annotations

import functools
import hashlib
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from elasticdl.checkpoint.stateimage import StateImage
from elasticdl.errors import BadModel, TransferFailed
from elasticdl.torch.building import Schedule, plain
from elasticdl.worker import tree

Array = npt.NDArray[Any]
_UNLIKE = "the state does not fit this model and its optimizer"


class TorchState:
    """Copies the state of a model, an optimizer and a scheduler out and in."""

    def __init__(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, schedule: Schedule | None, path: Any
    ) -> None:
        """`path`: of the model file. Raises BadModel if the optimizer or the scheduler keeps what can't be written."""
        self._tensors = tensors_of(model)
        self._optimizer, self._schedule = optimizer, schedule
        self._described: tuple[dict[str, Any], list[torch.Tensor]] | None = None
        """The description of the state, and its tensors themselves in that order; None until somebody asks after a change."""
        try:
            self._found()
        except TypeError as error:
            raise BadModel(
                f"{path}: the state of the optimizer and its scheduler can't be copied to other workers: {error}; it may have tensors, "
                "numbers, texts, lists and dictionaries"
            ) from None

    def changed(self) -> None:
        """Forget how the state was described: the optimizer or the schedule may have changed since."""
        self._described = None

    def _found(self) -> tuple[dict[str, Any], list[torch.Tensor]]:
        """Return the description of the state, and its tensors; of all parts of an image it is made once."""
        if self._described is None:
            self._described = self._describe()
        return self._described

    def _describe(self) -> tuple[dict[str, Any], list[torch.Tensor]]:
        tensors: list[torch.Tensor] = []

        def plain(one: Any) -> Any:
            if isinstance(one, torch.Tensor | np.ndarray):
                tensors.append(torch.as_tensor(one))
                return np.broadcast_to(
                    np.zeros((), _dtype(tensors[-1])), one.shape
                )  # without memory: nothing is copied yet
            return (
                None if callable(one) else one
            )  # functions, which a scheduler takes from the model file again, are left out

        schedule = None if self._schedule is None else self._schedule.scheduler.state_dict()
        kept = {"model": self._tensors, "optimizer": self._optimizer.state_dict(), "schedule": schedule}
        return {name: tree.describe(_mapped(one, plain), []) for name, one in kept.items()}, tensors

    def describe(self) -> tuple[dict[str, Any], int]:
        """Return the description of an image, and the bytes of its body."""
        described, tensors = self._found()
        return {"arrays": described}, sum(one.nbytes for one in tensors)

    def part(self, first: int, end: int) -> npt.NDArray[np.uint8]:
        """Copy these bytes of an image's body."""
        body, start = np.empty(end - first, np.uint8), 0
        for one in self._found()[1]:
            stop = start + one.nbytes
            low, high = max(start, first), min(stop, end)
            if low < high:
                body[low - first : high - first] = _bytes(one, low - start, high - start)
            start = stop
        return body

    def image(self) -> StateImage:
        """Copy the state."""
        meta, size = self.describe()
        return StateImage(meta, self.part(0, size))

    def load(self, image: StateImage) -> None:
        """Replace the state. Raises TransferFailed, with nothing replaced, if the image does not fit."""
        trees = trees_of(image)
        values = fitting(trees["model"], self._tensors)
        optimizer = _tensors(trees["optimizer"])
        self._check_optimizer(optimizer)
        if (trees["schedule"] is None) is not (self._schedule is None):
            raise TransferFailed(
                f"{_UNLIKE}: {'no ' if trees['schedule'] is None else 'a '}learning-rate scheduler was expected"
            )
        self.changed()
        with torch.no_grad():
            for name, value in values.items():
                self._tensors[name].copy_(value)
        self._optimizer.load_state_dict(optimizer)
        if self._schedule is not None:
            scheduler = self._schedule.scheduler
            scheduler.load_state_dict(_like(scheduler.state_dict(), _tensors(trees["schedule"])))

    def _check_optimizer(self, theirs: Any) -> None:
        mine = self._optimizer.state_dict()
        groups = theirs.get("param_groups") if isinstance(theirs, dict) else None
        if not isinstance(groups, list) or not isinstance(theirs.get("state"), dict):
            raise TransferFailed(f"{_UNLIKE}: the optimizer's is missing")
        if not all(isinstance(one, dict) and isinstance(one.get("params"), list) for one in groups):
            raise TransferFailed(f"{_UNLIKE}: its groups of parameters are none")
        if [(len(one["params"]), sorted(one)) for one in groups] != [
            (len(one["params"]), sorted(one)) for one in mine["param_groups"]
        ]:
            raise TransferFailed(f"{_UNLIKE}: its groups of parameters are others")
        parameters = [one for group in self._optimizer.param_groups for one in group["params"]]
        for place, kept in theirs["state"].items():
            if not isinstance(place, int) or not 0 <= place < len(parameters) or not isinstance(kept, dict):
                raise TransferFailed(f"{_UNLIKE}: it has the parameter {place!r} of {len(parameters)}")
            for name, value in kept.items():
                if isinstance(value, torch.Tensor) and value.dim() and value.shape != parameters[place].shape:
                    raise TransferFailed(
                        f"{_UNLIKE}: {name} of parameter {place} has the shape {list(value.shape)}"
                    )

    def digest(self) -> str:
        """Return the BLAKE2b digest of the image's body, without making one."""
        digest = hashlib.blake2b(digest_size=16)
        for one in self._found()[1]:
            digest.update(_bytes(one, 0, one.nbytes).data)
        return digest.hexdigest()


def tensors_of(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return the parameters and buffers of a model by name, those too that a state_dict does not have."""
    model = plain(model)
    return {name: one.detach() for name, one in (*model.named_parameters(), *model.named_buffers())}


def trees_of(image: StateImage) -> Mapping[str, Any]:
    """Return the trees of a state: model, optimizer and schedule, with arrays. Raises TransferFailed for anything else."""
    described = image.meta.get("arrays")
    if not isinstance(described, Mapping) or described.keys() != {"model", "optimizer", "schedule"}:
        raise TransferFailed("the state is not one of a PyTorch model")
    nodes = [described[name] for name in ("model", "optimizer", "schedule")]
    arrays = iter(tree.split(image.body, [one for node in nodes for one in tree.sizes(node)]))
    model, optimizer, schedule = (tree.build(node, arrays) for node in nodes)
    return {"model": model, "optimizer": optimizer, "schedule": schedule}


def fitting(found: Any, wanted: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return arrays as tensors of these types. Raises TransferFailed if names, types or shapes are others."""
    theirs = (
        {name: (str(value.dtype), value.shape) for name, value in found.items()}
        if isinstance(found, dict)
        else {}
    )
    mine = {name: (str(_dtype(one)), tuple(one.shape)) for name, one in wanted.items()}
    for name in (*mine, *theirs):
        if mine.get(name) != theirs.get(name):
            raise TransferFailed(
                f"{_UNLIKE}: {name}: expected {_shown(mine.get(name))}, received {_shown(theirs.get(name))}"
            )
    return {name: _tensor(value).view(wanted[name].dtype) for name, value in found.items()}


def _shown(described: tuple[str, tuple[int, ...]] | None) -> str:
    return "nothing" if described is None else f"{described[0]} {list(described[1])}"


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


def _tensors(kept: Any) -> Any:
    return _mapped(kept, lambda one: _tensor(one) if isinstance(one, np.ndarray) else one)


def _mapped(kept: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(kept, Mapping):
        return {key: _mapped(value, change) for key, value in kept.items()}
    if isinstance(kept, list | tuple):
        return (
            type(kept)(_mapped(value, change) for value in kept)
            if type(kept) in (list, tuple)
            else tuple(kept)
        )
    return change(kept)


def _like(mine: Any, theirs: Any) -> Any:
    """Return a tree with what `mine` has for functions, and its kinds of dictionaries."""
    if isinstance(theirs, dict) and isinstance(mine, Mapping):
        merged = {key: _like(mine.get(key), value) for key, value in theirs.items()}
        return Counter(merged) if isinstance(mine, Counter) else merged
    if isinstance(theirs, list | tuple) and isinstance(mine, list | tuple) and len(mine) == len(theirs):
        return type(theirs)(_like(a, b) for a, b in zip(mine, theirs, strict=True))
    return mine if callable(mine) else theirs
