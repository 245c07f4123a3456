"""Making a user's model, optimizer, scheduler and batches, with errors that name the file and say what was expected."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from elasticdl.errors import BadData, BadInput, BadModel
from elasticdl.torch.processgroups import refuse_grouped, refused_group
from elasticdl.torch.runtime import seed_chunk, settle_compiler
from elasticdl.worker.contract.usermodel import UserModel
from elasticdl.worker.fedbatch import Batch, Expected, Feed, call
from elasticdl.worker.usercode import FIRST_STEP, failure, function_name

_REMEDY = (
    "feed returns (features, labels) or (features, labels, weights): tensors, or tuples or dicts of them"
)
_STATEFUL = {
    torch.optim.LBFGS: "it evaluates the loss several times a step",
    torch.optim.SparseAdam: "it wants sparse gradients",
}


def make_model(user: UserModel, seed: int, sample: Batch | None) -> torch.nn.Module:
    """Return what the user's model function returns, with the same weights in all workers; what is lazy stays so without a sample.

    Raises BadModel.
    """
    seed_chunk(seed, 0, 0)
    made = _call(user, user.model, **user.params)
    settle_compiler()
    if not isinstance(made, torch.nn.Module):
        raise BadModel(
            f"{user.path}: {function_name(user.model)} returned a {type(made).__name__}; expected a torch.nn.Module"
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
            f"{user.path}: {function_name(user.optimizer)} returned a {type(made).__name__}; expected a torch.optim.Optimizer"
        )
    refuse_unusual(made, user.path)
    known = {id(one) for one in model.parameters()}
    if any(id(one) not in known for one in parameters_of(made)):
        raise BadModel(
            f"{user.path}: {function_name(user.optimizer)} has parameters that are not the model's; give it those that it receives"
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
            f"{user.path}: {function_name(user.lr_scheduler)} returned {made!r:.100}; expected a scheduler of torch.optim.lr_scheduler "
            'that steps without a metric, or (scheduler, "epoch")'
        )
    if made.optimizer is not optimizer:
        raise BadModel(
            f"{user.path}: {function_name(user.lr_scheduler)} is of another optimizer; give it the one that it receives"
        )
    return Schedule(made, by_epoch)


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
            f"{user.path}: {function_name(user.loss)} returned {shown}; expected a tensor with one value, or with one per example"
        )
    if found.dim() == 1:
        if len(found) != batch.examples:
            raise BadModel(
                f"{user.path}: {function_name(user.loss)} returned {len(found)} values for {batch.examples} examples; expected one for each"
            )
        return found.mean() if batch.weights is None else (found * batch.weights).sum() / batch.examples
    if batch.weights is not None:
        raise BadModel(
            f"{user.path}: feed gives weights of the examples, and {function_name(user.loss)} returned their mean; let it return one value "
            "per example (reduction='none')"
        )
    return found


def make_feed(user: UserModel, mode: str, metadata: Any) -> Feed:
    """Return the user's `feed` in one mode, of tensors; `metadata`: its third argument, what the reader knows of its records."""
    return Feed(user, mode, metadata, Expected(_tensor, "tensors", _REMEDY))


def _tensor(made: Any) -> torch.Tensor:
    try:
        return torch.as_tensor(made)
    except (TypeError, ValueError, RuntimeError) as error:
        raise BadData(f"feed returned a {type(made).__name__} ({error})") from None


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


def given(batch: Batch) -> str:
    """Return what `feed` gave, for messages."""
    return f"{shown(batch.features)} and labels {shown(batch.labels)}"


def describe_failure(user: UserModel, batch: Batch, error: Exception) -> BadInput:
    """Return what is said when the first step fails: what `feed` gave, and what the user's code raised."""
    return refused_group(error, user.path) or failure(user, FIRST_STEP, error, given(batch))


def _call(user: UserModel, function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
    try:
        return function(*arguments, **keywords)
    except BadModel as error:  # of a layer of this package, which does not know the file
        raise BadModel(f"{user.path}: {error}") from error
    except Exception as error:
        failed = failure(user, f"{function_name(function)} failed", error)
        raise refused_group(error, user.path) or failed from error
