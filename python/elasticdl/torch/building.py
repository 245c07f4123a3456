"""Making a user's model, optimizer, scheduler and batches, with errors that name the file and say what was expected."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from elasticdl.errors import BadData, BadInput, BadModel
from elasticdl.spec.jobspec import Mode
from elasticdl.torch.processgroups import refuse_grouped, refused_group
from elasticdl.torch.runtime import seed_chunk, settle_compiler
from elasticdl.worker.contract.records import Columns, Records
from elasticdl.worker.contract.usermodel import UserModel
from elasticdl.worker.modelfile import describe

_REMEDY = (
    "feed returns (features, labels) or (features, labels, weights): tensors, or tuples or dicts of them"
)
_STATEFUL = {
    torch.optim.LBFGS: "it evaluates the loss several times a step",
    torch.optim.SparseAdam: "it wants sparse gradients",
}


@dataclass(frozen=True, slots=True)
class Batch:
    """A chunk as a model takes it.

    Attributes:
        examples: n; 0 if `feed` made none of the records.
        features: a tensor, a tuple of tensors (positional arguments of the model) or a dict of them (keyword arguments).
        labels: likewise, given to the loss; None in a prediction.
        weights: of the examples, shape [n], or None.
    """

    examples: int
    features: Any = field(repr=False)
    labels: Any = field(default=None, repr=False)
    weights: torch.Tensor | None = field(default=None, repr=False)

    def changed(self, change: Callable[[Any], Any]) -> Batch:
        """Return the batch with other tensors for its own, such as on another device."""
        return Batch(self.examples, change(self.features), change(self.labels), change(self.weights))


def make_model(user: UserModel, seed: int, sample: Batch | None) -> torch.nn.Module:
    """Return what the user's model function returns, with the same weights in all workers; what is lazy stays so without a sample.

    Raises BadModel.
    """
    seed_chunk(seed, 0, 0)
    made = _call(user, user.model, **user.params)
    settle_compiler()
    if not isinstance(made, torch.nn.Module):
        raise BadModel(
            f"{user.path}: {_name(user.model)} returned a {type(made).__name__}; expected a torch.nn.Module"
        )
    refuse_grouped(made, user.path)
    if sample is not None and any(map(torch.nn.parameter.is_lazy, made.parameters())):
        made.eval()  # what is lazy gets its shape, and nothing else of the sample
        with torch.no_grad():
            call(made, sample.features)
    return made


def refuse_unusual(optimizer: torch.optim.Optimizer, path: Any) -> None:
    """Raise BadModel for an optimizer that can't be given one dense gradient a step."""
    for kind, why in _STATEFUL.items():
        if isinstance(optimizer, kind):
            raise BadModel(
                f"{path}: {kind.__name__} can't be used, since {why}, and workers exchange one dense gradient a step; use another one"
            )


def plain(model: torch.nn.Module) -> torch.nn.Module:
    """Return a model without what `torch.compile` has put around it."""
    inner = getattr(model, "_orig_mod", model)
    return inner if isinstance(inner, torch.nn.Module) else model


def make_optimizer(user: UserModel, model: torch.nn.Module) -> torch.optim.Optimizer:
    """Return the user's optimizer of a model's parameters. Raises BadModel."""
    made = _call(user, user.optimizer, list(model.parameters()))
    if not isinstance(made, torch.optim.Optimizer):
        raise BadModel(
            f"{user.path}: {_name(user.optimizer)} returned a {type(made).__name__}; expected a torch.optim.Optimizer"
        )
    refuse_unusual(made, user.path)
    known = {id(one) for one in model.parameters()}
    if any(id(one) not in known for one in parameters_of(made)):
        raise BadModel(
            f"{user.path}: {_name(user.optimizer)} has parameters that are not the model's; give it those that it receives"
        )
    return made


def parameters_of(optimizer: torch.optim.Optimizer) -> Iterator[torch.nn.Parameter]:
    """Yield the parameters of an optimizer in its order."""
    for group in optimizer.param_groups:
        yield from group["params"]


@dataclass(frozen=True, slots=True)
class Schedule:
    """A learning-rate scheduler.

    Attributes:
        scheduler: steps after commits.
        by_epoch: it steps after the last one of an epoch only.
    """

    scheduler: Any
    by_epoch: bool


def make_schedule(user: UserModel, optimizer: torch.optim.Optimizer) -> Schedule | None:
    """Return the user's scheduler, None if the file defines none. Raises BadModel."""
    if user.lr_scheduler is None:
        return None
    made = _call(user, user.lr_scheduler, optimizer)
    by_epoch = False
    if isinstance(made, tuple) and len(made) == 2 and made[1] in ("epoch", "step"):
        made, by_epoch = made[0], made[1] == "epoch"
    if isinstance(made, torch.optim.lr_scheduler.ReduceLROnPlateau) or not isinstance(
        made, torch.optim.lr_scheduler.LRScheduler
    ):
        raise BadModel(
            f"{user.path}: {_name(user.lr_scheduler)} returned {made!r:.100}; expected a scheduler of torch.optim.lr_scheduler that steps "
            'without a metric, or (scheduler, "epoch")'
        )
    if made.optimizer is not optimizer:
        raise BadModel(
            f"{user.path}: {_name(user.lr_scheduler)} is of another optimizer; give it the one that it receives"
        )
    return Schedule(made, by_epoch)


def call(model: torch.nn.Module, features: Any) -> Any:
    """Call a model: a tuple of features are positional arguments, a dict keyword arguments."""
    if isinstance(features, tuple):
        return model(*features)
    if isinstance(features, Mapping):
        return model(**features)
    return model(features)


def loss_of(user: UserModel, batch: Batch, outputs: Any) -> torch.Tensor:
    """Return the mean loss of a batch, a scalar. Raises BadModel for anything but a scalar or one value per example."""
    found = user.loss(batch.labels, outputs)
    if not isinstance(found, torch.Tensor) or not found.is_floating_point() or found.dim() > 1:
        shown = (
            f"a tensor {tuple(found.shape)} of {found.dtype}"
            if isinstance(found, torch.Tensor)
            else f"a {type(found).__name__}"
        )
        raise BadModel(
            f"{user.path}: {_name(user.loss)} returned {shown}; expected a scalar, or one value per example"
        )
    if found.dim() == 1:
        if len(found) != batch.examples:
            raise BadModel(
                f"{user.path}: {_name(user.loss)} returned {len(found)} values for {batch.examples} examples; expected one for each"
            )
        return found.mean() if batch.weights is None else (found * batch.weights).sum() / batch.examples
    if batch.weights is not None:
        raise BadModel(
            f"{user.path}: feed gives weights of the examples, and {_name(user.loss)} returned their mean; let it return one value per "
            "example (reduction='none')"
        )
    return found


class Feed:
    """The user's `feed` in one mode."""

    def __init__(self, user: UserModel, mode: str, metadata: Any) -> None:
        """`metadata`: what the reader knows of its records, the third argument of `feed`."""
        self._user, self._mode, self._metadata = user, mode, metadata

    def __call__(self, records: Records) -> Batch:
        """Return the batch made of a chunk's records, which are arrays by name if they are columns. Raises BadData."""
        given = records.arrays if isinstance(records, Columns) else records
        made = self._user.feed(given, self._mode, self._metadata)
        predicts = self._mode == Mode.PREDICTION
        if predicts and not (isinstance(made, tuple) and len(made) in (2, 3)):
            made = (made, None)
        if not isinstance(made, tuple) or len(made) not in (2, 3):
            raise BadData(f"{self._user.path}: feed returned a {type(made).__name__}; {_REMEDY}")
        features, labels, weights = self._tensors(made[0]), None, None
        if not predicts:
            labels = self._tensors(made[1])
            weights = self._tensors(made[2]) if len(made) == 3 else None
        counts = {len(one) for one in (*leaves(features), *leaves(labels), *leaves(weights))}
        if len(counts) != 1:
            raise BadData(
                f"{self._user.path}: feed returned {' and '.join(map(str, sorted(counts)))} examples; all tensors have one for each"
            )
        return Batch(counts.pop(), features, labels, weights)

    def _tensors(self, made: Any) -> Any:
        if isinstance(made, Mapping):
            return {name: self._tensors(one) for name, one in made.items()}
        if isinstance(made, tuple):
            return tuple(map(self._tensors, made))
        try:
            tensor = torch.as_tensor(made)
        except (TypeError, ValueError, RuntimeError) as error:
            raise BadData(
                f"{self._user.path}: feed returned a {type(made).__name__} ({error}); {_REMEDY}"
            ) from None
        if not tensor.dim():
            raise BadData(f"{self._user.path}: feed returned a scalar; {_REMEDY}")
        return tensor


def leaves(tensors: Any) -> Sequence[torch.Tensor]:
    """Return the tensors of a tree of them, in order; none of None."""
    if tensors is None:
        return ()
    if isinstance(tensors, Mapping):
        return [leaf for one in tensors.values() for leaf in leaves(one)]
    if isinstance(tensors, tuple | list):
        return [leaf for one in tensors for leaf in leaves(one)]
    return (tensors,)


def shown(tensors: Any) -> str:
    """Return types and shapes of tensors, for messages."""
    if isinstance(tensors, Mapping):
        return "{" + ", ".join(f"{name}: {shown(one)}" for name, one in tensors.items()) + "}"
    if isinstance(tensors, tuple):
        return f"({', '.join(map(shown, tensors))})"
    return (
        f"{str(tensors.dtype).removeprefix('torch.')} {list(tensors.shape)}"
        if isinstance(tensors, torch.Tensor)
        else repr(tensors)
    )


def describe_failure(user: UserModel, batch: Batch, error: Exception) -> BadInput:
    """Return what is said when the first step fails: what `feed` gave, and what the user's code raised."""
    return refused_group(error, user.path) or BadModel(
        f"{user.path}: the first training step failed: {describe(error, user.path)}\n"
        f"feed gave {shown(batch.features)} and labels {shown(batch.labels)}"
    )


def _call(user: UserModel, function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
    try:
        return function(*arguments, **keywords)
    except BadModel as error:  # of a layer of this package, which does not know the file
        raise BadModel(f"{user.path}: {error}") from error
    except Exception as error:
        failed = BadModel(f"{user.path}: {_name(function)} failed: {describe(error, user.path)}")
        raise refused_group(error, user.path) or failed from error


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", type(function).__name__)
