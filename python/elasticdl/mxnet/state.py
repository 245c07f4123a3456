"""The committed state of one worker: the model's values by name, and what its optimizer and the optimizer's scheduler keep.

`Trainer.save_states` pickles the optimizer. Here it is a tree of arrays, numbers and texts: the arrays that it has for each parameter, and
its attributes, among them the numbers of updates, by which schedulers go. Functions in it are the model file's, and stay as they are.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any

import mxnet as mx
import numpy as np
import numpy.typing as npt

from elasticdl.checkpoint.stateimage import StateImage
from elasticdl.errors import BadModel, TransferFailed
from elasticdl.mxnet.building import parameters_of
from elasticdl.worker import tree

UNLIKE = "the state does not fit this model and its optimizer"
"""How messages about states begin."""
_TREES = {"model", "inputs", "optimizer"}
_OF_THE_FILE = ("param_dict", "idx2name", "sym_info", "lr_scheduler", "_index_update_count")
"""Attributes of an optimizer that are no state of its own; the last one is a part of another attribute."""


class MxnetState:
    """Copies the state of a model and an optimizer out and in."""

    def __init__(
        self, model: Any, inputs: int, updater: Any, path: Any, template: Mapping[int, Any] | None = None
    ) -> None:
        """`inputs`: of the model; `updater`: of the optimizer; `path`: of the model file.

        `template`: what the optimizer has kept of each parameter in a trial. Raises BadModel if it keeps what can't be written.
        """
        self._parameters, self._inputs, self._updater = parameters_of(model), inputs, updater
        self._template = {place: _structure(kept) for place, kept in (template or {}).items()}
        self._found: tuple[dict[str, Any], list[Any]] | None = None
        try:
            self._look()
        except TypeError as error:
            raise BadModel(
                f"{path}: the state of the optimizer and its scheduler can't be copied to other workers: {error}; it may have arrays, "
                "numbers, texts, lists and dictionaries"
            ) from None

    def changed(self) -> None:
        """Forget how the state was described: it may have changed since."""
        self._found = None

    def _look(self) -> tuple[dict[str, Any], list[Any]]:
        """Return the description, and the arrays in its order."""
        if self._found is None:
            arrays: list[Any] = []
            trees = {
                "model": {name: one.data() for name, one in self._parameters.items()},
                "inputs": self._inputs,
                "optimizer": self._kept(),
            }
            self._found = (
                {name: tree.describe(_mapped(one, _stand_in(arrays)), []) for name, one in trees.items()},
                arrays,
            )
        return self._found

    def _kept(self) -> dict[str, Any]:
        optimizer = self._updater.optimizer
        schedule = optimizer.lr_scheduler
        return {
            "kind": type(optimizer).__name__,
            "states": self._updater.states,
            "attributes": _attributes(optimizer),
            "schedule": None
            if schedule is None
            else {"kind": type(schedule).__name__, **_attributes(schedule)},
        }

    def describe(self) -> tuple[dict[str, Any], int]:
        """Return the description of an image, and the bytes of its body."""
        described, arrays = self._look()
        return {"arrays": described}, sum(map(_bytes, arrays))

    def part(self, first: int, end: int) -> npt.NDArray[np.uint8]:
        """Copy these bytes of an image's body."""
        body, start = np.empty(end - first, np.uint8), 0
        for one in self._look()[1]:
            stop = start + _bytes(one)
            low, high = max(start, first), min(stop, end)
            if low < high:
                body[low - first : high - first] = _part(one, low - start, high - start)
            start = stop
        return body

    def image(self) -> StateImage:
        """Copy the state."""
        meta, size = self.describe()
        return StateImage(meta, self.part(0, size))

    def digest(self) -> str:
        """Return a BLAKE2b digest of the state's description and its bytes: numbers of updates are in the description."""
        described, arrays = self._look()
        digest = hashlib.blake2b(json.dumps(described).encode(), digest_size=16)
        for one in arrays:
            digest.update(_part(one, 0, _bytes(one)).data)
        return digest.hexdigest()

    def load(self, image: StateImage) -> None:
        """Replace the state. Raises TransferFailed, with nothing replaced, if the image does not fit."""
        trees = trees_of(image)
        values = fitting(trees["model"], self._parameters)
        if trees["inputs"] != self._inputs:
            raise TransferFailed(
                f"{UNLIKE}: expected {self._inputs} inputs, received {trees['inputs']!r:.20}"
            )
        optimizer, schedule = self._updater.optimizer, self._updater.optimizer.lr_scheduler
        theirs = trees["optimizer"]
        if not isinstance(theirs, dict) or theirs.keys() != self._kept().keys():
            raise TransferFailed(f"{UNLIKE}: the optimizer's is missing")
        for name in ("kind", "schedule", "attributes"):
            mine, other = (_names(one[name]) for one in (self._kept(), theirs))
            if mine != other:
                raise TransferFailed(f"{UNLIKE}: the optimizer's {name}: expected {mine}, received {other}")
        self._check_states(theirs["states"])
        self.changed()
        for name, value in values.items():
            self._parameters[name].set_data(_array(value))
        self._updater.states = {place: _mapped(kept, _array) for place, kept in theirs["states"].items()}
        self._updater.states_synced = dict.fromkeys(self._updater.states, True)
        _give(optimizer, theirs["attributes"])
        optimizer._set_current_context(0)  # the count of updates is that of the device again
        if schedule is not None:
            _give(schedule, {name: one for name, one in theirs["schedule"].items() if name != "kind"})
        mx.nd.waitall()

    def _check_states(self, states: Any) -> None:
        if not isinstance(states, dict):
            raise TransferFailed(f"{UNLIKE}: what the optimizer keeps for parameters is missing")
        for place, kept in states.items():
            if place not in self._updater.optimizer.param_dict:
                raise TransferFailed(f"{UNLIKE}: it has the parameter {place!r:.20}")
            structure = _structure(kept)
            if structure != self._template.get(place, structure):
                name = self._updater.optimizer.param_dict[place].name
                raise TransferFailed(
                    f"{UNLIKE}: what the optimizer keeps for {name}: expected {self._template[place]}, received {structure}"
                )


def trees_of(image: StateImage) -> Mapping[str, Any]:
    """Return the trees of a state, with arrays of NumPy. Raises TransferFailed for anything else."""
    described = image.meta.get("arrays")
    if not isinstance(described, Mapping) or described.keys() != _TREES:
        raise TransferFailed("the state is not one of an MXNet model")
    names = sorted(described, key=["model", "inputs", "optimizer"].index)
    arrays = iter(tree.split(image.body, [one for name in names for one in tree.sizes(described[name])]))
    return {name: tree.build(described[name], arrays) for name in names}


def fitting(found: Any, parameters: Mapping[str, Any]) -> dict[str, npt.NDArray[Any]]:
    """Return the values of a model's parameters by name. Raises TransferFailed if names, types or shapes are others.

    A shape that the model leaves open fits any.
    """
    theirs: dict[str, Any] = found if isinstance(found, dict) else {}
    for name in (*parameters.keys(), *theirs):
        mine, value = parameters.get(name), theirs.get(name)
        wanted = "nothing" if mine is None else _shown(mine.dtype, mine.shape)
        received = _shown(value.dtype, value.shape) if isinstance(value, np.ndarray) else "nothing"
        if wanted != received and not (
            mine is not None and isinstance(value, np.ndarray) and _fits(mine, value)
        ):
            raise TransferFailed(f"{UNLIKE}: {name}: expected {wanted}, received {received}")
    return dict(theirs)


def _fits(parameter: Any, value: npt.NDArray[Any]) -> bool:
    if np.dtype(parameter.dtype) != value.dtype:
        return False
    shape = parameter.shape
    return shape is None or (
        len(shape) == value.ndim
        and all(size in (0, other) for size, other in zip(shape, value.shape, strict=True))
    )


def _shown(dtype: Any, shape: Any) -> str:
    return f"{np.dtype(dtype)} {list(shape or ())}"


def _attributes(owner: Any) -> dict[str, Any]:
    """Return the attributes that are state; what a tree can't have is found when it is described."""
    return {
        name: value for name, value in vars(owner).items() if name not in _OF_THE_FILE and not callable(value)
    }


def _give(owner: Any, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        setattr(owner, name, _mapped(value, _array))


def _names(kept: Any) -> Any:
    """Return a text, or the names of a dictionary with the kind that is in it."""
    return [kept.get("kind", ""), *sorted(map(str, kept))] if isinstance(kept, dict) else kept


def _mapped(kept: Any, change: Callable[[Any], Any]) -> Any:
    """Return a tree with other leaves."""
    if isinstance(kept, Mapping):
        return {key: _mapped(value, change) for key, value in kept.items()}
    if isinstance(kept, list | tuple):
        return type(kept)(_mapped(value, change) for value in kept)
    return change(kept)


def _stand_in(arrays: list[Any]) -> Callable[[Any], Any]:
    """Return what adds arrays to a list and describes them, without a copy."""

    def plain(one: Any) -> Any:
        if isinstance(one, mx.nd.NDArray | np.ndarray):
            arrays.append(one)
            return np.broadcast_to(np.zeros((), one.dtype), one.shape)
        return one.item() if isinstance(one, np.generic) else one

    return plain


def _array(value: Any) -> Any:
    return mx.nd.array(value, dtype=value.dtype) if isinstance(value, np.ndarray) else value


def _structure(kept: Any) -> Any:
    return tree.describe(_mapped(kept, _stand_in([])), [])


def _bytes(array: Any) -> int:
    return int(array.size) * int(np.dtype(array.dtype).itemsize)


def _part(array: Any, first: int, end: int) -> npt.NDArray[np.uint8]:
    """Return these bytes of an array, and copy not much more."""
    width = np.dtype(array.dtype).itemsize
    low, high = first // width, -(-end // width)
    flat = array.reshape(-1)[low:high]
    found: npt.NDArray[Any] = flat if isinstance(flat, np.ndarray) else flat.asnumpy()
    return np.ascontiguousarray(found).view(np.uint8)[first - low * width : end - low * width]


def give_values(parameters: Mapping[str, Any], values: Mapping[str, npt.NDArray[Any]]) -> None:
    """Give parameters their values, and their shapes where a model leaves them open."""
    for name, value in values.items():
        one = parameters[name]
        if one.shape != value.shape:
            one.shape = value.shape
            one.initialize(ctx=mx.cpu(), force_reinit=True)
        one.set_data(_array(value))
