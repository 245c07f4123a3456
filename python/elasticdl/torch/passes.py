"""The passes of a custom training loop's body: each begins with a batch and ends with what was computed of it.

Loader, optimizers and `job` are three faces of this one object. It decides what a call in a program's body means; the session decides what
is committed when.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import StrEnum, auto
from typing import Any

import torch

from elasticdl.data.plan.loopplan import LoopPlan
from elasticdl.errors import BadModel
from elasticdl.torch.building import parameters_of
from elasticdl.torch.changes import GradientChanges
from elasticdl.torch.loopstate import Clip, Mark, TorchLoopState, Trained
from elasticdl.torch.namedvalues import NamedValues
from elasticdl.torch.otheroptimizers import OtherOptimizers
from elasticdl.torch.runtime import seed_chunk, settle_compiler
from elasticdl.worker.contract.allreduce import ChunkResult
from elasticdl.worker.contract.loop import LoopBatch, LoopSource, Session

_NOTHING = ChunkResult(0.0, 0.0)


class Phase(StrEnum):
    """Where the program is."""

    BETWEEN = auto()
    """No batch is in use: before the first, or after a step."""
    FETCHED = auto()
    """A batch is here, and the body has not begun."""
    BODY = auto()
    """The body has a batch, and has not ended with a step."""


class Passes:
    """One program's passes.

    Attributes:
        session: the job.
        program: for messages.
        values: `job.state`.
        phase: where the program is.
        looping: a loop over the loader is under way: it has not come to its end.
        committed: whether the last pass ended with a commit.
        ended: there is no batch any more.
        stopped: the program has asked for the end.
    """

    def __init__(self, session: Session, seed: int, program: str) -> None:
        """Nothing is trained yet: `use` says on what data, `train` what."""
        self.session, self.seed, self.program = session, seed, program
        self.values = NamedValues()
        self.phase, self.looping = Phase.BETWEEN, False
        self.committed = self.ended = self.stopped = False
        self.state: TorchLoopState | None = None
        self.plan: LoopPlan | None = None
        self.trained: Trained | None = None
        self.clips: dict[tuple[int, ...], Clip] = {}
        self._batch = LoopBatch(0, 0, 0, 0, None)
        self._write: Callable[[str], object] | None = None
        self._stepped: list[torch.optim.Optimizer] = []
        self._weight: float | None = None
        self._loss: Any = None
        self._spare: Any = None

    def use(self, plan: LoopPlan, source: LoopSource) -> None:
        """Take what data is trained on. Raises BadModel for a second one."""
        if self.plan is not None:
            raise self.wrong(
                "there are two of edl.DataLoader, and a job trains on one; read other data with torch.utils.data.DataLoader"
            )
        self.plan, self._source = plan, source

    def train(self, trained: Trained) -> None:
        """Take what is trained. Raises BadModel for a second call."""
        if self.trained is not None:
            raise self.wrong(
                "edl.elastic() is called twice; give it all models and optimizers together, as lists"
            )
        self._check_schedulers(trained)
        self.trained = trained
        self._others = OtherOptimizers(trained.optimizers, self._refuse_other)
        self._changes = GradientChanges(
            one for optimizer in trained.optimizers for one in parameters_of(optimizer)
        )

    def _check_schedulers(self, trained: Trained, forgotten: bool = False) -> None:
        if forgotten or trained.lacks_a_scheduler():
            raise self.wrong(
                "edl.elastic: the optimizer has a learning-rate scheduler; give it, too: model, optimizer, scheduler = "
                "edl.elastic(model, optimizer, scheduler=scheduler)"
            )

    def _refuse_other(self) -> None:
        raise self.wrong(
            "an optimizer that edl.elastic() was not given steps for each batch, so each worker trains its parameters apart, on batches of "
            "its own; give both: edl.elastic([model, other], [optimizer, other_optimizer])"
        )

    def set_write(self, write: Callable[[str], object]) -> None:
        """Take what writes the result."""
        self._write = write
        if self.state is not None:
            self.state.write = write

    def wrong(self, text: str) -> BadModel:
        """Return an error of the program."""
        return BadModel(f"{self.program}: {text}")

    # ------------------------------------------------------------------ a pass

    def fetch(self) -> LoopBatch | None:
        """Return the next batch, which `begin` gives to the body; None at the end of training."""
        if self.phase is Phase.BODY:
            raise self.wrong(
                "the loader is asked for another batch, and nothing was done with the last one: call optimizer.step() once for each batch. "
                "job.skip() leaves one out; DataLoader(global_batch_size=…) makes a step of several batches"
            )
        if self.phase is Phase.FETCHED:
            return self._batch
        if self.state is None:
            self._start()
        batch = None if self.ended else self.session.next()
        if batch is None:
            self.ended = True
            self._others.end()
            return None
        self._batch, self.phase = batch, Phase.FETCHED
        return batch

    def _start(self) -> None:
        if self.trained is None or self.plan is None:
            lacking = "edl.DataLoader(…)" if self.plan is None else "edl.elastic(model, optimizer)"
            raise self.wrong(f"training begins, and {lacking} was not called")
        self._check_schedulers(self.trained, self.trained.has_forgotten())
        settle_compiler()
        state = TorchLoopState(self.trained, self.values, self.plan.batch_size, self.program)
        state.clips, state.write = self.clips, self._write
        self.session.begin(self.plan, state, self._source)
        self.state = state
        self.values.settled = True

    def begin(self) -> Any:
        """Begin the body with the batch that was fetched, and return it."""
        state, batch = self.begun(), self._batch
        self.phase, self.committed = Phase.BODY, False
        self._stepped, self._weight, self._loss = [], None, None
        if batch.batch is not None:
            self._spare = batch.batch
        elif self._spare is None:
            self._spare = self._source.get((batch.epoch, 0, 0))[2]
        state.gradients.begin()
        self._changes.forget()
        self._changes.looks = state.gradients.as_left
        self._others.begin()
        seed_chunk(self.seed, batch.step, batch.lane)
        return self._spare

    def begun(self) -> TorchLoopState:
        """Return the state. Raises BadModel before the first batch."""
        if self.state is None:
            raise self.wrong("training has not begun: the loop over edl.DataLoader begins it")
        return self.state

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """Note that an optimizer is asked to step; the last one of a pass ends it."""
        trained = self._in_body("optimizer.step()")
        if not trained.alternate and len(trained.optimizers) > 1:
            if any(one is optimizer for one in self._stepped):
                raise self.wrong(
                    "an optimizer steps twice in one pass of the loop; each steps once for each batch"
                )
            if self._stepped and self._changes.since_mark:
                raise self.wrong(
                    "a backward pass between the steps of two optimizers: the first one has not changed anything yet, since all of them "
                    "step when the batch ends. Compute all gradients first; or edl.elastic(alternate=True), and one optimizer for each "
                    "batch, chosen by job.step"
                )
            self._stepped.append(optimizer)
            self._changes.mark()
            if len(self._stepped) < len(trained.optimizers):
                return
        if self._changes.found():
            raise self.wrong(
                "gradients were changed between backward() and optimizer.step(); they are those of one batch, and not yet the step's. "
                "job.clip_grad_norm_(parameters, max_norm) clips those of the step"
            )
        if trained.alternate:
            for one in trained.optimizers:
                if one is not optimizer:
                    for parameter in parameters_of(one):
                        parameter.grad = None
        self._end(gives=True)

    def skip(self) -> None:
        """End the pass without what was computed."""
        self._in_body("job.skip()")
        self._end(gives=False)

    def weigh(self, weight: float) -> None:
        """Let the batch count as so many examples."""
        self._in_body("job.set_weight()")
        if not (math.isfinite(weight) and weight >= 0):
            raise self.wrong(f"job.set_weight({weight}): a weight is a number from 0 on")
        self._weight = float(weight)

    def report(self, loss: Any) -> None:
        """Take the mean loss of the batch."""
        self._in_body("job.report()")
        if isinstance(loss, torch.Tensor):
            if loss.numel() != 1:
                raise self._wrong_loss(f"a tensor of shape {list(loss.shape)}")
            self._loss = loss.detach()  # a GPU is waited for at the end of the pass
            return
        try:
            self._loss = float(loss)
        except (TypeError, ValueError):
            raise self._wrong_loss(repr(loss)) from None

    def _wrong_loss(self, given: str) -> BadModel:
        return self.wrong(f"job.report(): expected the mean loss of the batch, one number; got {given}")

    def _in_body(self, call: str) -> Trained:
        if self.phase is not Phase.BODY or self.trained is None:
            raise self.wrong(
                f"{call} is called where there is no batch: once in each pass of the loop over edl.DataLoader, which optimizer.step() ends"
            )
        return self.trained

    def _end(self, *, gives: bool) -> None:
        state, batch = self.begun(), self._batch
        weight = float(batch.records) if self._weight is None else self._weight
        result = _NOTHING
        if gives and weight and batch.batch is not None:
            state.gradients.end(weight, self._changes.finite())
            result = ChunkResult(weight, None if self._loss is None else float(self._loss) * weight)
        else:
            state.gradients.drop()
        self._changes.forget()
        self.phase = Phase.BETWEEN
        self.committed = self.session.step(result)
        if not self.committed:
            state.gradients.gather()  # the program may write to what it gave as gradients

    # ------------------------------------------------------------------ after a step

    def may_follow(self, mark: Mark) -> bool:
        """Tell whether a scheduler's step follows a commit, or between loops the end of an epoch; it happens once for each."""
        step, epoch = self.session.steps, self.session.epoch
        follows = step > mark.step if self.looping else epoch > mark.epoch
        if follows:
            mark.step, mark.epoch = step, epoch
        return follows

    def may_update(self, mark: Mark) -> bool:
        """Tell whether a scaler's update follows a commit; it happens once for each."""
        follows = self.session.steps > mark.step
        mark.step = self.session.steps
        return follows
