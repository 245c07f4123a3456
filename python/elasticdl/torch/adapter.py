"""The adapter for PyTorch models: one worker's model, optimizer, scheduler and accumulator behind the Protocol of `worker/contract/`."""

from __future__ import annotations

from typing import Any

import numpy as np

from elasticdl.catalog.tablereader import TableReader
from elasticdl.errors import BadInput, BadModel
from elasticdl.spec.jobspec import JobSpec, Mode
from elasticdl.torch import building
from elasticdl.torch.device import moved, own_device, pinned
from elasticdl.torch.evaluation import TorchEvaluator
from elasticdl.torch.export import export
from elasticdl.torch.gradients import Gradients
from elasticdl.torch.runtime import seed_chunk
from elasticdl.torch.state import TorchState
from elasticdl.worker.betweensteps import BetweenSteps
from elasticdl.worker.contract.allreduce import ChunkResult, GateLogs, StepLogs
from elasticdl.worker.contract.records import Records
from elasticdl.worker.contract.usermodel import UserModel
from elasticdl.worker.fedbatch import Batch, call
from elasticdl.worker.hooks import Callbacks
from elasticdl.worker.stepsums import StepSums


class TorchAdapter(BetweenSteps, StepSums):
    """Implements `elasticdl.worker.contract.allreduce.Adapter` and `DeviceSums`."""

    _state: TorchState

    def __init__(self, user: UserModel, spec: JobSpec, metadata: Any) -> None:
        """Nothing is built yet; `prepare` does."""
        self._user, self._spec = user, spec
        self._feed = building.make_feed(user, Mode.TRAINING, metadata)
        self._device = own_device()

    def prepare(self, sample: Records) -> None:
        """Build everything, and run one step without any lasting effect. Raises BadModel or BadData."""
        user, batch = self._user, self.convert(sample)
        self._sample = batch
        self.model = building.make_model(user, self._spec.seed, batch).to(self._device)
        self.optimizer = building.make_optimizer(user, self.model)
        self._schedule = building.make_schedule(user, self.optimizer)
        self._callbacks = Callbacks(user)
        self._state = TorchState(self.model, self.optimizer, self._schedule, user.path)
        self._gradients = Gradients(
            list(building.parameters_of(self.optimizer)),
            dict(self.model.named_buffers()),
            self._spec.minibatch_size,
            user.path,
        )
        self._sum_with(self._gradients)
        before = self._state.image()
        try:
            self.compute(batch, 0, 0)
            self.apply(np.array(np.asarray(self.accumulator())), float(batch.examples))
            # What an optimizer keeps after a first step may be what it can't have before it, so a new one is made.
            self.optimizer = building.make_optimizer(user, self.model)
            self._schedule = building.make_schedule(user, self.optimizer)
            self._state = TorchState(self.model, self.optimizer, self._schedule, user.path)
        except BadInput:
            raise
        except Exception as error:
            raise building.describe_failure(user, batch, error) from error
        self._state.load(before)
        self.zero()

    # ------------------------------------------------------------------ chunks

    def convert(self, records: Records) -> Batch:
        """Run the user's `feed` over one chunk. Raises BadData."""
        return self._feed(records).changed(lambda tensors: pinned(tensors, self._device))

    def compute(self, batch: Batch | None, step: int, lane: int) -> ChunkResult:
        """Add a chunk's gradients and changes of buffers to the accumulator; None is a chunk without a good record."""
        if batch is None or not batch.examples:
            return ChunkResult(0.0, 0.0)
        seed_chunk(self._spec.seed, step, lane)
        batch = batch.changed(lambda tensors: moved(tensors, self._device))
        self._gradients.begin()
        self.model.train()
        loss = building.loss_of(self._user, batch, call(self.model, batch.features))
        if not loss.requires_grad:
            raise BadModel(f"{self._user.path}: the loss does not depend on any parameter of the model")
        loss.backward()
        self._gradients.end(batch.examples)
        return ChunkResult(float(batch.examples), float(loss.detach()) * batch.examples)

    def commit(self, examples: float) -> None:
        """Commit the sum that was taken / `examples`; the accumulator becomes empty."""
        if examples:
            self._gradients.give(examples)
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
            if self._schedule is not None and not self._schedule.by_epoch:
                self._schedule.scheduler.step()
            self._state.changed()
        self.zero()

    # ------------------------------------------------------------------ between steps

    def evaluator(self, metadata: Any) -> TorchEvaluator:
        """Return what evaluates this model."""
        return TorchEvaluator(self._user, self._spec, metadata, self.model)

    def logs(self, logs: StepLogs) -> str | None:
        """Run callbacks after a commit, and the scheduler of epochs; return a reason if they want the job to stop."""
        if logs.epoch_ended:
            self._end_epoch()
        reason = super().logs(logs)
        self._state.changed()  # a callback may know the optimizer
        return reason

    def gate(self, logs: GateLogs) -> str | None:
        """Run callbacks after an evaluation, and at the end of an epoch; return a reason if they want the job to stop."""
        if logs.epoch_ended:
            self._end_epoch()
        reason = super().gate(logs)
        self._state.changed()
        return reason

    def _end_epoch(self) -> None:
        if self._schedule is not None and self._schedule.by_epoch:
            self._schedule.scheduler.step()

    def export(self, path: str, kind: str, tables: TableReader | None = None) -> str:
        """Write the model; return the state's digest. Raises OSError with what was at `path` intact."""
        if path:
            export(self.model, path, kind, self._sample, self._user.path)
        return self.digest()
