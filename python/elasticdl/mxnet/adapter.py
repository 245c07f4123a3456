"""The adapter for MXNet models: one worker's model, optimizer and accumulator behind the Protocol of `worker/contract/`."""

from __future__ import annotations

from typing import Any

import mxnet as mx
import numpy as np

from elasticdl.catalog.tablereader import TableReader
from elasticdl.checkpoint.stateimage import StateImage
from elasticdl.errors import BadInput, BadModel
from elasticdl.mxnet import building
from elasticdl.mxnet.evaluation import MxnetEvaluator
from elasticdl.mxnet.export import export
from elasticdl.mxnet.gradients import Gradients
from elasticdl.mxnet.runtime import seed_chunk
from elasticdl.mxnet.state import MxnetState
from elasticdl.spec.jobspec import JobSpec, Mode
from elasticdl.worker.betweensteps import BetweenSteps
from elasticdl.worker.contract.allreduce import ChunkResult
from elasticdl.worker.contract.records import Records
from elasticdl.worker.contract.usermodel import UserModel
from elasticdl.worker.fedbatch import Batch
from elasticdl.worker.hooks import Callbacks
from elasticdl.worker.stepsums import StepSums
from elasticdl.worker.usercode import FIRST_STEP, failure


class MxnetAdapter(BetweenSteps, StepSums):
    """Implements `elasticdl.worker.contract.allreduce.Adapter` and `DeviceSums`."""

    _state: MxnetState

    def __init__(self, user: UserModel, spec: JobSpec, metadata: Any) -> None:
        """Nothing is built yet; `prepare` does."""
        self._user, self._spec = user, spec
        self._feed = building.Feed(user, Mode.TRAINING, metadata)

    def prepare(self, sample: Records) -> None:
        """Build everything, and run one step without any lasting effect. Raises BadModel or BadData."""
        user, batch = self._user, self.convert(sample)
        try:
            self.model = building.make_model(user, self._spec.seed, batch)
            self._is_mean = self._loss_is_mean(batch)
        except BadInput:
            raise
        except Exception as error:
            raise failure(user, FIRST_STEP, error, building.given(batch)) from error
        self._inputs = len(batch.features)
        self._begin()
        self._callbacks = Callbacks(user)
        self._state = MxnetState(self.model, self._inputs, self._updater, user.path)
        self._gradients = Gradients(
            building.numbered_parameters(self.model), self._spec.minibatch_size, user.path
        )
        self._sum_with(self._gradients)
        before, constants = self._state.image(), self._gradients.constants()
        try:
            self.compute(batch, 0, 0)
            self.apply(np.array(self.accumulator()), float(batch.examples))
            self._gradients.check_constants(constants)
            # What an optimizer keeps after a first step may be what it can't have before it, so a new one is made.
            tried = self._updater.states
            self._begin()
            self._state = MxnetState(self.model, self._inputs, self._updater, user.path, tried)
        except BadInput:
            raise
        except Exception as error:
            raise failure(user, FIRST_STEP, error, building.given(batch)) from error
        self.load(before)
        self.zero()

    def _begin(self) -> None:
        """Make the optimizer, and what calls it."""
        parameters = building.numbered_parameters(self.model)
        self._updater = mx.optimizer.get_updater(building.make_optimizer(self._user, parameters))
        self._scale = self._updater.optimizer.rescale_grad

    def _loss_is_mean(self, batch: Batch) -> bool:
        """Find out, with two examples at least, whether the loss is a mean or has a value for each of them."""
        if not batch.examples:
            return False
        if batch.examples == 1:
            batch = building.doubled(batch)
        outputs = self.model(*building.arrays_of(batch.features))
        loss = building.loss_of(self._user, batch, outputs)
        mx.nd.waitall()
        return bool(loss.shape[0] == 1)

    # ------------------------------------------------------------------ chunks

    def convert(self, records: Records) -> Batch:
        """Run the user's `feed` over one chunk. Raises BadData."""
        return self._feed(records)

    def compute(self, batch: Batch | None, step: int, lane: int) -> ChunkResult:
        """Add a chunk's gradients and changes to the accumulator; None is a chunk without a good record."""
        if batch is None or not batch.examples:
            return ChunkResult(0.0, 0.0)
        seed_chunk(self._spec.seed, step, lane)
        self._gradients.begin()
        with mx.autograd.record():
            outputs = self.model(*building.arrays_of(batch.features))
            loss = building.loss_of(self._user, batch, outputs)
        if batch.examples > 1 and (loss.shape[0] == 1) is not self._is_mean:
            raise BadModel(
                f"{self._user.path}: the loss has one value for all examples of some minibatches, and one for each of others; use one way"
            )
        try:
            loss.backward()
        except mx.MXNetError as error:
            raise BadModel(
                f"{self._user.path}: the loss does not depend on any parameter of the model"
            ) from error
        self._gradients.end(batch.examples, is_mean=self._is_mean)
        total = float(loss.asnumpy().sum(dtype=np.float64))
        return ChunkResult(float(batch.examples), total * batch.examples if self._is_mean else total)

    def commit(self, examples: float) -> None:
        """Commit the sum that was taken / `examples`; the accumulator becomes empty."""
        if examples:
            optimizer = self._updater.optimizer
            seed_chunk(self._spec.seed, optimizer.num_update, 0)  # some optimizers draw noise
            optimizer.rescale_grad = self._scale / (1 if self._is_mean else examples)
            self._gradients.give(examples, self._updater, is_mean=self._is_mean)
            self._state.changed()
        self.zero()

    # ------------------------------------------------------------------ between steps

    def evaluator(self, metadata: Any) -> MxnetEvaluator:
        """Return what evaluates this model."""
        return MxnetEvaluator(self._user, self._spec, metadata, self.model)

    def load(self, image: StateImage) -> None:
        """Replace the state. Raises TransferFailed, with nothing replaced, if the image does not fit this model."""
        super().load(image)
        self._gradients.keep()

    def export(self, path: str, kind: str, tables: TableReader | None = None) -> str:
        """Write the model; return the state's digest. Raises OSError with what was at `path` intact."""
        if path:
            export(self.model, path, self._inputs, self._user.path)
        return self.digest()
