"""`edl.elastic`: a program's models and optimizers become those of a job.

An optimizer stays the object that it is, of a subclass of its class, whose `step` ends a pass of the loop's body. Its own step, with its
hooks, runs where the job commits.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch

from elasticdl.torch.building import parameters_of, refuse_unusual
from elasticdl.torch.loop import current
from elasticdl.torch.loopstate import Mark, Trained
from elasticdl.torch.passes import Passes
from elasticdl.torch.processgroups import refuse_grouped


def elastic(
    model: Any,
    optimizer: Any,
    *,
    scheduler: Any = None,
    scaler: Any = None,
    averaged: Collection[str] = (),
    alternate: bool = False,
) -> Any:
    """Make models and optimizers those of the job, and return what was given: `(model, optimizer)`, with a scheduler three.

    Args:
        model: a module, or a list of modules.
        optimizer: of their parameters, or a list of optimizers, all of which step for each batch.
        scheduler: of an optimizer's learning rate, or a list; it steps where `scheduler.step()` stands, once for each commit in the loop
            over the loader, once for each epoch outside.
        scaler: a `torch.amp.GradScaler`; `scaler.step(optimizer)` and `scaler.update()` stay where they are.
        averaged: names of buffers of more than 64 KiB that training changes; with several models the number of the model is before the
            name: `1.running_mean`.
        alternate: each batch is for one of the optimizers, which the program chooses by `job.step` (as for GANs).

    Raises BadModel for what can't be trained by several workers.
    """
    passes = current("edl.elastic").passes
    models, optimizers, schedulers = _several(model), _several(optimizer), _several(scheduler)
    _check(passes, models, optimizers, schedulers)
    trained = Trained(models, optimizers, schedulers, scaler, frozenset(averaged), alternate)
    buffers = trained.named(lambda one: one.named_buffers())
    for name in trained.averaged - buffers.keys():
        raise passes.wrong(
            f"edl.elastic(averaged=…): the model has no buffer {name!r}; it has {', '.join(sorted(buffers)) or 'none'}"
        )
    passes.train(trained)
    for one in optimizers:
        _adopt(one, _optimizer_methods(type(one), passes))
        one.__dict__.pop("step", None)  # an earlier scheduler's, which would come before ours
    for one, mark in zip(schedulers, trained.marks[:-1], strict=True):
        _adopt(one, _scheduler_methods(type(one), passes, mark))
    if scaler is not None:
        _adopt(scaler, _scaler_methods(type(scaler), passes, trained.marks[-1]))
    return (model, optimizer) if scheduler is None else (model, optimizer, scheduler)


def _several(given: Any) -> tuple[Any, ...]:
    if given is None:
        return ()
    return tuple(given) if isinstance(given, list | tuple) else (given,)


def _check(
    passes: Passes, models: tuple[Any, ...], optimizers: tuple[Any, ...], schedulers: tuple[Any, ...]
) -> None:
    for kind, given in ((torch.nn.Module, models), (torch.optim.Optimizer, optimizers)):
        for one in given or (None,):
            if not isinstance(one, kind):
                raise passes.wrong(
                    f"edl.elastic: expected a torch.{'nn' if kind is torch.nn.Module else 'optim'}.{kind.__name__}, or a list of them; "
                    f"got a {type(one).__name__}"
                )
    for model in models:
        refuse_grouped(model, passes.program)
        if any(map(torch.nn.parameter.is_lazy, (*model.parameters(), *model.buffers()))):
            raise passes.wrong(
                "edl.elastic: the model has parameters without a shape; call it once with a batch before"
            )
    known = {id(one) for model in models for one in model.parameters()}
    taken: set[int] = set()
    for optimizer in optimizers:
        refuse_unusual(optimizer, passes.program)
        for parameter in parameters_of(optimizer):
            if id(parameter) not in known:
                raise passes.wrong(
                    "edl.elastic: an optimizer has a parameter that no model has, so that workers that join could not get it; give the "
                    "module that it is of, too: edl.elastic([model, other], optimizer)"
                )
            if id(parameter) in taken:
                raise passes.wrong("edl.elastic: two optimizers have the same parameter; each has one")
            taken.add(id(parameter))
    for scheduler in schedulers:
        if not any(getattr(scheduler, "optimizer", None) is one for one in optimizers):
            raise passes.wrong(
                f"edl.elastic(scheduler=…): a {type(scheduler).__name__} is not a scheduler of an optimizer that is given"
            )


def _adopt(one: Any, methods: dict[str, Callable[..., Any]]) -> None:
    """Give an object a subclass of its class, with the name of that."""
    base = type(one)
    names = {"__module__": base.__module__, "__qualname__": base.__qualname__, "__doc__": base.__doc__}
    one.__class__ = type(base.__name__, (base,), {**names, **methods})


def _optimizer_methods(base: Any, passes: Passes) -> dict[str, Callable[..., Any]]:
    def step(self: Any, closure: Callable[[], Any] | None = None) -> Any:
        if passes.state is not None and passes.state.committing:
            return base.step(self)
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        passes.step(self)
        return loss

    def zero_grad(self: Any, set_to_none: bool = True) -> None:
        base.zero_grad(self, set_to_none=True)  # zeros would be gradients: they decay, and have momentum

    def add_param_group(self: Any, param_group: dict[str, Any]) -> None:
        raise passes.wrong(
            "optimizer.add_param_group() is called after edl.elastic(): the parameters of a step are settled there; add them before"
        )

    step.hooked = True  # type: ignore[attr-defined]  # base.step runs the hooks, at commits
    step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]  # `_opt_called` is set at commits
    return {"step": step, "zero_grad": zero_grad, "add_param_group": add_param_group}


def _scheduler_methods(base: Any, passes: Passes, mark: Mark) -> dict[str, Callable[..., Any]]:
    def step(self: Any, *arguments: Any, **named: Any) -> None:
        if passes.may_follow(mark):
            base.step(self, *arguments, **named)

    return {"step": step}


def _scaler_methods(base: Any, passes: Passes, mark: Mark) -> dict[str, Callable[..., Any]]:
    def committing() -> bool:
        return passes.state is not None and passes.state.committing

    def step(self: Any, optimizer: torch.optim.Optimizer, *arguments: Any, **named: Any) -> Any:
        if committing():
            return base.step(self, optimizer)
        return optimizer.step(*arguments, **named)

    def unscale_(self: Any, optimizer: torch.optim.Optimizer) -> None:
        if not committing():
            raise passes.wrong(
                "scaler.unscale_() is of one batch, and overflows are those of the step: leave it out. job.clip_grad_norm_(parameters, "
                "max_norm) clips the step's gradients, unscaled"
            )
        base.unscale_(self, optimizer)

    def update(self: Any, *arguments: Any, **named: Any) -> None:
        if passes.may_update(mark):
            base.update(self, *arguments, **named)

    return {"step": step, "unscale_": unscale_, "update": update}
