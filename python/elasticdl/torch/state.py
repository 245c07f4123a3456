"""The committed state of one worker: the model's tensors by name, and what its optimizer and its scheduler keep.

Both keep dictionaries that grow while they train, so their structure is a part of the state's description.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from elasticdl.checkpoint.stateimage import StateImage
from elasticdl.errors import BadModel, TransferFailed
from elasticdl.torch.building import Schedule, plain
from elasticdl.torch.trees import UNLIKE, TensorTrees, fitting, like, trees_in

_NAMES = ("model", "optimizer", "schedule")


class TorchState:
    """Copies the state of a model, an optimizer and a scheduler out and in."""

    def __init__(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, schedule: Schedule | None, path: Any
    ) -> None:
        """`path`: of the model file. Raises BadModel if the optimizer or the scheduler keeps what can't be written."""
        self._tensors = tensors_of(model)
        self._optimizer, self._schedule = optimizer, schedule
        self._trees = TensorTrees(self._kept, watched=True)
        try:
            self._trees.found()
        except TypeError as error:
            raise BadModel(
                f"{path}: the state of the optimizer and its scheduler can't be copied to other workers: {error}; it may have tensors, "
                "numbers, texts, lists and dictionaries"
            ) from None

    def changed(self) -> None:
        """Forget how the state was described: the optimizer or the schedule may have changed since."""
        self._trees.changed()

    def _kept(self) -> dict[str, Any]:
        # functions, which a scheduler takes from the model file again, are left out
        schedule = None if self._schedule is None else self._schedule.scheduler.state_dict()
        return {"model": self._tensors, "optimizer": self._optimizer.state_dict(), "schedule": schedule}

    def describe(self) -> tuple[dict[str, Any], int]:
        """Return the description of an image, and the bytes of its body."""
        return self._trees.describe()

    def part(self, first: int, end: int) -> npt.NDArray[np.uint8]:
        """Copy these bytes of an image's body."""
        return self._trees.part(first, end)

    def image(self) -> StateImage:
        """Copy the state."""
        return self._trees.image()

    def load(self, image: StateImage) -> None:
        """Replace the state. Raises TransferFailed, with nothing replaced, if the image does not fit."""
        trees = trees_of(image)
        values = fitting(trees["model"], self._tensors)
        optimizer = trees["optimizer"]
        check_optimizer(self._optimizer, optimizer)
        if (trees["schedule"] is None) is not (self._schedule is None):
            raise TransferFailed(
                f"{UNLIKE}: {'no ' if trees['schedule'] is None else 'a '}learning-rate scheduler was expected"
            )
        self.changed()
        with torch.no_grad():
            for name, value in values.items():
                self._tensors[name].copy_(value)
        self._optimizer.load_state_dict(optimizer)
        if self._schedule is not None:
            scheduler = self._schedule.scheduler
            scheduler.load_state_dict(like(scheduler.state_dict(), trees["schedule"]))

    def digest(self) -> str:
        """Return the BLAKE2b digest of the image's body, without making one."""
        return self._trees.digest()


def tensors_of(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return the parameters and buffers of a model by name, those too that a state_dict does not have."""
    model = plain(model)
    return {name: one.detach() for name, one in (*model.named_parameters(), *model.named_buffers())}


def trees_of(image: StateImage) -> Mapping[str, Any]:
    """Return the trees of a state: model, optimizer and schedule, with arrays. Raises TransferFailed for anything else."""
    return trees_in(image, _NAMES, "a PyTorch model")


def check_optimizer(optimizer: torch.optim.Optimizer, theirs: Any) -> None:
    """Raise TransferFailed if what an optimizer kept is not of one like this."""
    mine = optimizer.state_dict()
    groups = theirs.get("param_groups") if isinstance(theirs, dict) else None
    if not isinstance(groups, list) or not isinstance(theirs.get("state"), dict):
        raise TransferFailed(f"{UNLIKE}: the optimizer's is missing")
    if not all(isinstance(one, dict) and isinstance(one.get("params"), list) for one in groups):
        raise TransferFailed(f"{UNLIKE}: its groups of parameters are none")
    if [(len(one["params"]), sorted(one)) for one in groups] != [
        (len(one["params"]), sorted(one)) for one in mine["param_groups"]
    ]:
        raise TransferFailed(f"{UNLIKE}: its groups of parameters are others")
    parameters = [one for group in optimizer.param_groups for one in group["params"]]
    for place, kept in theirs["state"].items():
        if not isinstance(place, int) or not 0 <= place < len(parameters) or not isinstance(kept, dict):
            raise TransferFailed(f"{UNLIKE}: it has the parameter {place!r} of {len(parameters)}")
        for name, value in kept.items():
            if isinstance(value, torch.Tensor) and value.dim() and value.shape != parameters[place].shape:
                raise TransferFailed(
                    f"{UNLIKE}: {name} of parameter {place} has the shape {list(value.shape)}"
                )
