"""`job.state`: what a program keeps with the model, by name: trees of tensors, arrays and numbers, or objects with a `state_dict`."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import Any

import numpy as np
import torch

from elasticdl.errors import BadModel, TransferFailed
from elasticdl.torch.state import tensors_of
from elasticdl.torch.trees import UNLIKE, fitting


class NamedValues(MutableMapping[str, Any]):
    """A dictionary whose names are settled before the first batch.

    Where a state is received, tensors, arrays, lists and dictionaries are changed in place, so that a program may hold on to them.
    """

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}
        self.settled = False
        """Training has begun: the names, and the objects with a `state_dict`, are those of all workers."""

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __setitem__(self, name: str, value: Any) -> None:
        if not isinstance(name, str):
            raise BadModel(f"job.state: a name is a text; got {name!r:.100}")
        if self.settled and name not in self._values:
            raise BadModel(
                f"job.state[{name!r}]: it is new, and training has begun; give each name a value before the first batch, None if there is "
                "none yet"
            )
        if (
            self.settled
            and (_has_state(value) or _has_state(self._values[name]))
            and value is not self._values[name]
        ):
            raise BadModel(
                f"job.state[{name!r}]: an object with a state_dict can't be exchanged once training has begun"
            )
        self._values[name] = value

    def __delitem__(self, name: str) -> None:
        if self.settled:
            raise BadModel(
                f"job.state[{name!r}]: it can't be removed once training has begun; set it to None"
            )
        del self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def kept(self) -> dict[str, Any]:
        """Return all of it as a tree."""
        return {name: _state_of(value) for name, value in self._values.items()}

    def load(self, found: Any) -> None:
        """Replace all values. Raises TransferFailed, with nothing replaced, if names are others or an object does not take its state."""
        if not isinstance(found, dict) or found.keys() != self._values.keys():
            theirs = ", ".join(map(repr, found)) if isinstance(found, dict) else ""
            raise TransferFailed(
                f"{UNLIKE}: job.state has the names {', '.join(map(repr, self._values)) or '(none)'}, and there it had "
                f"{theirs or '(none)'}"
            )
        objects = [name for name, value in self._values.items() if _has_state(value)]
        for name in objects:
            if isinstance(self._values[name], torch.nn.Module):
                fitting(found[name], tensors_of(self._values[name]))
        before = {name: _copied(_state_of(self._values[name])) for name in objects}
        try:
            for name in objects:
                _give(self._values[name], found[name])
        except Exception as error:
            for name in objects:
                _give(self._values[name], before[name])
            raise TransferFailed(
                f"{UNLIKE}: job.state[{name!r}] does not take what it had there: {error}"
            ) from error
        for name in self._values.keys() - objects:
            self._values[name] = _filled(self._values[name], found[name])


def _has_state(value: Any) -> bool:
    return hasattr(value, "state_dict") and hasattr(value, "load_state_dict")


def _state_of(value: Any) -> Any:
    if isinstance(value, torch.nn.Module):
        return tensors_of(value)
    return value.state_dict() if _has_state(value) else value


def _give(value: Any, state: Any) -> None:
    if isinstance(value, torch.nn.Module):
        with torch.no_grad():
            for name, one in tensors_of(value).items():
                one.copy_(state[name])
    else:
        value.load_state_dict(state)


def _copied(state: Any) -> Any:
    if isinstance(state, dict):
        return {key: _copied(one) for key, one in state.items()}
    if isinstance(state, list | tuple):
        return (
            type(state)(map(_copied, state)) if type(state) in (list, tuple) else tuple(map(_copied, state))
        )
    if isinstance(state, torch.Tensor):
        return state.detach().clone()
    return np.array(state) if isinstance(state, np.ndarray) else state


def _filled(mine: Any, theirs: Any) -> Any:
    """Return `theirs`, in the memory and the containers of `mine` as far as they fit."""
    if isinstance(mine, dict) and isinstance(theirs, dict):
        made = {key: _filled(mine.get(key), value) for key, value in theirs.items()}
        mine.clear()
        mine.update(made)
        return mine
    if isinstance(mine, list) and isinstance(theirs, list):
        mine[:] = [
            _filled(mine[place] if place < len(mine) else None, value) for place, value in enumerate(theirs)
        ]
        return mine
    if isinstance(theirs, torch.Tensor):
        if isinstance(mine, torch.Tensor) and mine.shape == theirs.shape:
            with torch.no_grad():
                mine.copy_(theirs)
            return mine
        if isinstance(mine, np.ndarray):
            array: np.ndarray[Any, Any] = theirs.numpy()
            if mine.shape != array.shape or mine.dtype != array.dtype:
                return array
            mine[...] = array
            return mine
    return theirs
