"""The adapter for JAX models: one worker's model, optimizer and accumulator behind the Protocol of `worker/contract/`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from elasticdl.catalog.tablereader import TableReader
from elasticdl.errors import BadInput
from elasticdl.jax import building
from elasticdl.jax.evaluation import JaxEvaluator
from elasticdl.jax.export import MODEL, export
from elasticdl.jax.gradients import Gradients
from elasticdl.jax.runtime import seeds_of
from elasticdl.jax.step import Model, Update
from elasticdl.spec.jobspec import JobSpec, Mode
from elasticdl.worker.betweensteps import BetweenSteps
from elasticdl.worker.contract.allreduce import ChunkResult
from elasticdl.worker.contract.records import Records, picked
from elasticdl.worker.contract.usermodel import UserModel
from elasticdl.worker.fedbatch import Batch
from elasticdl.worker.hooks import Callbacks
from elasticdl.worker.modelstate import ModelState
from elasticdl.worker.stepsums import StepSums
from elasticdl.worker.usercode import FIRST_STEP, failure


class JaxAdapter(BetweenSteps, StepSums):
    """Implements `elasticdl.worker.contract.allreduce.Adapter`, `DeviceSums` and `Traced`."""

    def __init__(self, user: UserModel, spec: JobSpec, metadata: Any) -> None:
        """Nothing is built yet; `prepare` does."""
        self._user, self._spec = user, spec
        self._feed = building.make_feed(user, Mode.TRAINING, metadata)

    def prepare(self, sample: Records) -> None:
        """Build everything, and run one step without any lasting effect. Raises BadModel or BadData."""
        user, batch = self._user, self.convert(sample)
        self._sample = sample
        self.model = Model(user, building.make_model(user, self._spec.seed, batch), self._spec.seed)
        self._update = Update(user, building.make_optimizer(user), self.model.parameters)
        self._callbacks = Callbacks(user)
        self._state = ModelState(
            [
                *self.model.parameters.variables(MODEL),
                *self.model.others.variables(MODEL),
                *self.model.random.variables("random/"),
                *self._update.state.variables("optimizer/"),
            ]
        )
        self._gradients = Gradients(
            self.model.parameters, self.model.others, self._spec.minibatch_size, user.path
        )
        self._sum_with(self._gradients)
        self._update.try_once()
        self._try(batch)

    def prepare_sizes(self, sizes: Sequence[int]) -> None:
        """Make code for chunks of so many records."""
        for size in sizes:
            self._try(
                self.convert(picked(self._sample, [place % len(self._sample) for place in range(size)]))
            )

    def _try(self, batch: Batch) -> None:
        try:
            self.compute(batch, 0, 0)
        except BadInput:
            raise
        except Exception as error:
            raise failure(self._user, FIRST_STEP, error, building.given(batch)) from error
        finally:
            self.zero()

    # ------------------------------------------------------------------ chunks

    def convert(self, records: Records) -> Batch:
        """Run the user's `feed` over one chunk. Raises BadData."""
        return self._feed(records)

    def compute(self, batch: Batch | None, step: int, lane: int) -> ChunkResult:
        """Add a chunk's gradients and changes of variables to the accumulator; None is a chunk without a good record."""
        if batch is None or not batch.examples:
            return ChunkResult(0.0, 0.0)
        loss, slopes, after = self.model.gradient(batch, seeds_of(self._spec.seed, step, lane))
        self._gradients.add(slopes, after, batch.examples)
        return ChunkResult(float(batch.examples), float(loss) * batch.examples)

    def commit(self, examples: float) -> None:
        """Commit the sum that was taken / `examples`; the accumulator becomes empty."""
        if examples:
            self._update.apply(self._gradients.give(examples))
        self.zero()

    # ------------------------------------------------------------------ between steps

    def evaluator(self, metadata: Any) -> JaxEvaluator:
        """Return what evaluates this model."""
        return JaxEvaluator(self._user, self._spec, metadata, self.model)

    def export(self, path: str, kind: str, tables: TableReader | None = None) -> str:
        """Write parameters and other variables by name; return the state's digest. Raises OSError with what was at `path` intact."""
        if path:
            export(self.model, path)
        return self.digest()
