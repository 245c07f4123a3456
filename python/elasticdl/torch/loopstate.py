"""What a custom training loop trains: the models, optimizers, schedulers, scaler and values that a program has named, as one state.

All of it is one image: workers that join get it, and checkpoints have it. An optimizer's own `step` runs here, at commits only.
"""

from __future__ import annotations

import gc
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from elasticdl.checkpoint.stateimage import StateImage
from elasticdl.errors import BadModel, TransferFailed
from elasticdl.torch.building import parameters_of, plain
from elasticdl.torch.export import on_cpu
from elasticdl.torch.gradients import Gradients
from elasticdl.torch.namedvalues import NamedValues
from elasticdl.torch.state import check_optimizer, tensors_of
from elasticdl.torch.trees import UNLIKE, TensorTrees, fitting, like, trees_in
from elasticdl.worker.loop.result import written_by

WHOLE_EVERY = 100
"""Steps between two comparisons of all bits."""
_NAMES = ("model", "optimizers", "schedulers", "scaler", "marks", "values")


@dataclass(slots=True)
class Mark:
    """When a scheduler or a scaler did its part last; it is a part of the state.

    Attributes:
        step: committed steps then.
        epoch: epochs that had ended then.
    """

    step: int = 0
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class Trained:
    """What a program has named in `elastic()`.

    Attributes:
        models: the names of their tensors have the number of the model before them if there are several.
        optimizers: of their parameters; each parameter has one.
        schedulers: step once for each commit, or for each epoch.
        scaler: of the losses, or None.
        averaged: names of the large buffers that change.
        alternate: whether a pass of the body is for one of the optimizers.
        marks: of the schedulers, in order, and of the scaler.
    """

    models: tuple[torch.nn.Module, ...]
    optimizers: tuple[torch.optim.Optimizer, ...]
    schedulers: tuple[Any, ...] = ()
    scaler: Any = None
    averaged: frozenset[str] = frozenset()
    alternate: bool = False
    marks: tuple[Mark, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "marks", tuple(Mark() for _ in range(len(self.schedulers) + 1)))

    def named(self, of: Callable[[torch.nn.Module], Iterable[tuple[str, Any]]]) -> dict[str, Any]:
        """Return what `of` yields of each model, by name."""
        if len(self.models) == 1:
            return dict(of(plain(self.models[0])))
        return {
            f"{number}.{name}": one
            for number, model in enumerate(self.models)
            for name, one in of(plain(model))
        }

    def lacks_a_scheduler(self) -> bool:
        """Tell whether an optimizer has a scheduler, and none is named: its marks are in the groups of parameters."""
        groups = (group for optimizer in self.optimizers for group in optimizer.param_groups)
        return not self.schedulers and any("initial_lr" in group for group in groups)

    def has_forgotten(self) -> bool:
        """Tell whether an optimizer has a scheduler that leaves no mark in its groups, and that is not named; it takes 30 ms to look."""
        plateaus = (
            one
            for optimizer in self.optimizers
            for one in gc.get_referrers(optimizer)
            if isinstance(one, torch.optim.lr_scheduler.ReduceLROnPlateau)
        )
        return any(all(one is not known for known in self.schedulers) for one in plateaus)


@dataclass(frozen=True, slots=True)
class Clip:
    """A call of `clip_grad_norm_`, as it is carried out at each commit."""

    parameters: tuple[torch.Tensor, ...]
    limit: float
    options: Mapping[str, Any]


class TorchLoopState:
    """Implements `elasticdl.worker.contract.loop.LoopState`, and `DeviceSums`.

    Attributes:
        committing: an optimizer's own step is running, and not the program's call of it.
        clips: what is clipped at a commit, by the parameters.
        write: writes the result to a path; None: the weights of the models are it.
        gradients: the accumulator.
    """

    def __init__(self, trained: Trained, values: NamedValues, full: int, program: str) -> None:
        """`full`: records of a full batch; `program`: for messages. Raises BadModel for what can't be copied to other workers."""
        self._trained, self._values = trained, values
        self._parameters = [one for optimizer in trained.optimizers for one in parameters_of(optimizer)]
        self._tensors = trained.named(lambda model: tensors_of(model).items())
        self.gradients = Gradients(
            self._parameters,
            trained.named(lambda model: model.named_buffers()),
            full,
            program,
            averaged=trained.averaged,
            remedy="name it in edl.elastic(averaged=[…]), and it is averaged like smaller ones",
        )
        self.size, self.dtype, self.result = self.gradients.size, self.gradients.dtype, self.gradients.result
        self.gradient_size = self.gradients.gradient_size
        self.committing = False
        self.clips: dict[tuple[int, ...], Clip] = {}
        self.write: Callable[[str], object] | None = None
        self._trees = TensorTrees(self._kept)
        try:
            self._trees.found()
        except TypeError as error:
            raise BadModel(
                f"{program}: the state can't be copied to other workers: {error}; optimizers, schedulers and job.state may have tensors, "
                "arrays, numbers, texts, lists and dictionaries"
            ) from None

    # ------------------------------------------------------------------ steps

    def zero(self) -> None:
        """Empty the accumulator."""
        self.gradients.zero()

    def accumulator(self) -> memoryview:
        """Return the accumulator's elements, valid until the next batch or `zero`."""
        return self.gradients.accumulator()

    def apply(self, result: npt.NDArray[Any], examples: float) -> None:
        """Commit `result` / `examples`; the accumulator becomes empty."""
        np.copyto(self.result, result)
        self.take(alone=False)
        self.commit(examples)

    def take(self, *, alone: bool) -> bool:
        """Take the sum that is in `result`, or, of a member that is alone, the accumulator; return whether all of it is finite.

        With a scaler it always is: an overflow is a step without a change, as the scaler wants it.
        """
        finite = self.gradients.take(alone=alone)
        return finite or (self._trained.scaler is not None and self._trained.scaler.is_enabled())

    def commit(self, examples: float) -> None:
        """Commit the sum that was taken / `examples`; the accumulator becomes empty."""
        if examples:
            self.gradients.give(examples)
            self.committing = True
            try:
                self._step()
            finally:
                self.committing = False
            for parameter in self._parameters:
                parameter.grad = None  # it is the accumulator's memory
        self.zero()

    def _step(self) -> None:
        scaler = self._trained.scaler
        stepping = [one for one in self._trained.optimizers if self._has_part(one)]
        if scaler is not None and scaler.is_enabled():
            stepping = [one for one in stepping if _has_gradient(one)]
            for optimizer in stepping:
                scaler.unscale_(optimizer)
        for clip in self.clips.values():
            torch.nn.utils.clip_grad_norm_(clip.parameters, clip.limit, **clip.options)
        for optimizer in stepping:
            if scaler is None:
                optimizer.step()
            else:
                scaler.step(optimizer)
            optimizer._opt_called = True  # what a scheduler looks for

    def _has_part(self, optimizer: torch.optim.Optimizer) -> bool:
        return not self._trained.alternate or _has_gradient(optimizer)

    # ------------------------------------------------------------------ the state

    def _kept(self) -> dict[str, Any]:
        trained = self._trained
        return {
            "model": self._tensors,
            "optimizers": [one.state_dict() for one in trained.optimizers],
            "schedulers": [one.state_dict() for one in trained.schedulers],
            "scaler": None if trained.scaler is None else trained.scaler.state_dict(),
            "marks": [[mark.step, mark.epoch] for mark in trained.marks],
            "values": self._values.kept(),
        }

    def image(self) -> StateImage:
        """Copy the committed state."""
        return self._trees.image()

    def describe_image(self) -> tuple[Mapping[str, Any], int]:
        """Return the `meta` of an image, and the bytes of its body."""
        return self._trees.describe()

    def image_part(self, first: int, end: int) -> npt.NDArray[np.uint8]:
        """Copy these bytes of an image's body."""
        return self._trees.part(first, end)

    def digest(self) -> str:
        """Return a digest of the state's bits (hexadecimal)."""
        return self._trees.digest()

    def fingerprint(self, step: int) -> int:
        """Return a hash of what has to be equal in all workers before a step: of all bits in every hundredth, else of its numbers."""
        if step % WHOLE_EVERY == 0:
            return int(self.digest()[:5], 16)
        described = json.dumps(TensorTrees(self._numbers).describe()[0])
        return int(hashlib.blake2b(described.encode(), digest_size=4).hexdigest()[:5], 16)

    def _numbers(self) -> dict[str, Any]:
        """Return what has few tensors, if any."""
        kept = (
            {name: value for name, value in group.items() if name != "params"}
            for optimizer in self._trained.optimizers
            for group in optimizer.param_groups
        )
        schedulers = [one.state_dict() for one in self._trained.schedulers]
        marks = [[mark.step, mark.epoch] for mark in self._trained.marks]
        return {"groups": list(kept), "schedulers": schedulers, "marks": marks, "values": self._values.kept()}

    def load(self, image: StateImage) -> None:
        """Replace the state. Raises TransferFailed, with nothing replaced, if the image does not fit."""
        trees, trained = trees_in(image, _NAMES, "a custom training loop of PyTorch"), self._trained
        values = fitting(trees["model"], self._tensors)
        optimizers, schedulers = (trees[name] for name in ("optimizers", "schedulers"))
        _check_counts(optimizers, trained.optimizers, "optimizers")
        for optimizer, theirs in zip(trained.optimizers, optimizers, strict=True):
            check_optimizer(optimizer, theirs)
        _check_counts(schedulers, trained.schedulers, "learning-rate schedulers")
        _check_counts(trees["marks"], trained.marks, "marks")
        if not all(_is_mark(one) for one in trees["marks"]):
            raise TransferFailed(f"{UNLIKE}: its marks are none")
        mine = None if trained.scaler is None else trained.scaler.state_dict()
        for name, one, other in (
            ("the scaler's state", mine, trees["scaler"]),
            *((f"the state of scheduler {place}", one.state_dict(), schedulers[place]) for place, one in enumerate(trained.schedulers)),
        ):  # fmt: skip
            if _keys(one) != _keys(other):
                raise TransferFailed(f"{UNLIKE}: {name} has other names")
        self._values.load(trees["values"])  # all or nothing, like what follows
        with torch.no_grad():
            for name, value in values.items():
                self._tensors[name].copy_(value)
        for optimizer, theirs in zip(trained.optimizers, optimizers, strict=True):
            optimizer.load_state_dict(theirs)
        for scheduler, theirs in zip(trained.schedulers, schedulers, strict=True):
            scheduler.load_state_dict(like(scheduler.state_dict(), theirs))
        if trained.scaler is not None and trees["scaler"]:
            trained.scaler.load_state_dict(trees["scaler"])
        for mark, (step, epoch) in zip(trained.marks, trees["marks"], strict=True):
            mark.step, mark.epoch = step, epoch

    def export(self, path: str) -> str:
        """Let the program write its result, or write the weights; return the state's digest. Raises BadModel if it writes nothing."""
        if path:
            written_by(self.write or self._write_weights, path)
        return self.digest()

    def _write_weights(self, path: str) -> None:
        weights = [on_cpu(plain(model).state_dict()) for model in self._trained.models]
        torch.save(weights[0] if len(weights) == 1 else weights, path)

    @property
    def has_result(self) -> bool:
        """Tell that there is one: a program that saves its model after the loop says how only then, or leaves it to us."""
        return True


def _has_gradient(optimizer: torch.optim.Optimizer) -> bool:
    return any(one.grad is not None for one in parameters_of(optimizer))


def _check_counts(theirs: Any, mine: tuple[Any, ...], what: str) -> None:
    if not isinstance(theirs, list) or len(theirs) != len(mine):
        raise TransferFailed(f"{UNLIKE}: it has other {what}")


def _is_mark(one: Any) -> bool:
    return isinstance(one, list) and len(one) == 2 and all(type(value) is int for value in one)


def _keys(state: Any) -> Any:
    return sorted(map(str, state)) if isinstance(state, Mapping) else type(state)
