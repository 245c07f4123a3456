"""Callbacks of frameworks that have none of their own: objects with hooks, which every worker of a job runs on the same logs.

Looking up a framework imports this, so what only a worker needs is imported when it is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from elasticdl.errors import BadModel

if TYPE_CHECKING:
    from elasticdl.worker.contract.allreduce import GateLogs, StepLogs
    from elasticdl.worker.contract.usermodel import UserModel

_OF_EPOCHS = ("on_epoch_end", "on_evaluated")


class Optimizer(Protocol):
    """What callbacks may change of an optimizer."""

    learning_rate: Any


class Callback:
    """The base of callbacks.

    What one keeps in attributes is not given to workers that join later. With parameter servers they are made anew in such a worker, and
    pass all barriers of the job so far.

    Attributes:
        optimizer: with parameter servers, that of this worker: what a callback sets as its `learning_rate` holds for all tasks beyond the
            barrier that it is called at. None without servers, where a rate would be that of some workers only.
    """

    optimizer: Optimizer | None = None

    def on_step_end(self, logs: StepLogs) -> bool | None:
        """Do something after a committed step; true ends the job."""
        return None

    def on_epoch_end(self, logs: StepLogs) -> bool | None:
        """Do something after the last step of an epoch; true ends the job."""
        return None

    def on_evaluated(self, logs: GateLogs) -> bool | None:
        """Do something after an evaluation, at an epoch's end before that; true ends the job."""
        return None

    def on_train_end(self, step: int, writes: bool) -> None:
        """Do something at the end of training, after so many steps; `writes` is true in one worker, the one that may write files."""


class Callbacks:
    """The callbacks of one worker."""

    def __init__(self, user: UserModel, optimizer: Optimizer | None = None) -> None:
        """Make them. `optimizer`: with parameter servers. Raises BadModel for what is no callback, or can't be called."""
        self._user, self._optimizer = user, optimizer
        self._rate = None if optimizer is None else optimizer.learning_rate
        self.begin()
        for one in self._all:
            if optimizer is not None and _overrides(one, "on_step_end"):
                raise BadModel(
                    f"{user.path}: {type(one).__name__} is called by step, and workers with parameter servers have no steps in common; let "
                    "it follow epochs, or train without --num_ps_pods"
                )

    def begin(self) -> None:
        """Make them anew, and let the optimizer have its first learning rate."""
        self._all = _made(self._user)
        if self._optimizer is None or self._rate is None:
            return
        self._optimizer.learning_rate = self._rate
        for one in self._all:
            one.optimizer = self._optimizer

    @property
    def follow_epochs(self) -> bool:
        """Tell whether one does anything at the end of an epoch, or after an evaluation."""
        return any(_overrides(one, hook) for one in self._all for hook in _OF_EPOCHS)

    @property
    def act_at_end(self) -> bool:
        """Tell whether one does anything at the end of training."""
        return any(_overrides(one, "on_train_end") for one in self._all)

    def logs(self, logs: StepLogs) -> str | None:
        """Run what follows a committed step; return a reason if one wants the job to end."""
        asked = [type(one).__name__ for one in self._all if one.on_step_end(logs)]
        if logs.epoch_ended:
            asked += [type(one).__name__ for one in self._all if one.on_epoch_end(logs)]
        return _reason(asked, logs.step)

    def gate(self, logs: GateLogs) -> str | None:
        """Run what follows an evaluation, and an epoch's end; return a reason if one wants the job to end."""
        asked = (
            [] if logs.values is None else [type(one).__name__ for one in self._all if one.on_evaluated(logs)]
        )
        if logs.epoch_ended:
            from elasticdl.worker.contract.allreduce import StepLogs

            ended = StepLogs(logs.step, logs.epoch, None, True, logs.epoch_loss)
            asked += [type(one).__name__ for one in self._all if one.on_epoch_end(ended)]
        return _reason(asked, logs.step)

    def end(self, step: int, writes: bool) -> None:
        """Run what comes at the end of training."""
        for one in self._all:
            one.on_train_end(step, writes)


def _reason(asked: Sequence[str], step: int) -> str | None:
    """Return why the job should end, if some callbacks asked for it."""
    if not asked:
        return None
    return f"{', '.join(dict.fromkeys(asked))} asked for the end of training after step {step}"


def _made(user: UserModel) -> Sequence[Callback]:
    if user.callbacks is None:
        return ()
    try:
        made: Any = list(user.callbacks())
    except Exception as error:
        from elasticdl.worker.modelfile import describe

        raise BadModel(f"{user.path}: callbacks failed: {describe(error, user.path)}") from error
    for one in made:
        if not isinstance(one, Callback):
            raise BadModel(
                f"{user.path}: callbacks returned a {type(one).__name__}; expected a list of objects of a class Callback of the framework"
            )
    return tuple(made)


def _overrides(callback: Callback, hook: str) -> bool:
    return getattr(type(callback), hook) is not getattr(Callback, hook)
