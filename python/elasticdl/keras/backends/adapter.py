"""The adapter for Keras models on JAX and PyTorch: one worker's model, optimizer and sums behind the Protocol of `worker/contract/`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from elasticdl.cluster.cluster import ProcessName
from elasticdl.errors import BadInput
from elasticdl.keras import kerasfile
from elasticdl.keras.backends.evaluation import BackendEvaluator
from elasticdl.keras.backends.feed import given, make_feed
from elasticdl.keras.backends.firstcall import make_model
from elasticdl.keras.backends.forward import Forward
from elasticdl.keras.backends.programs import make_programs
from elasticdl.keras.backends.sums import Sums
from elasticdl.keras.betweensteps import BetweenSteps
from elasticdl.keras.building import built_optimizer
from elasticdl.keras.serving import served
from elasticdl.spec.jobspec import JobSpec, Mode
from elasticdl.worker.contract.allreduce import ChunkResult
from elasticdl.worker.contract.records import Records, picked
from elasticdl.worker.contract.usermodel import UserModel
from elasticdl.worker.fedbatch import Batch
from elasticdl.worker.stepsums import StepSums
from elasticdl.worker.usercode import FIRST_STEP, failure


class BackendAdapter(BetweenSteps, StepSums):
    """Implements `elasticdl.worker.contract.allreduce.Adapter`, `DeviceSums` and `Traced`."""

    def __init__(self, user: UserModel, spec: JobSpec, metadata: Any, process: ProcessName) -> None:
        """Nothing is built yet; `prepare` does. `process`: the life of a worker that this is; callbacks make a difference of it."""
        self._user, self._spec, self._process = user, spec, process
        self._feed = make_feed(user, Mode.TRAINING, metadata)

    def prepare(self, sample: Records) -> None:
        """Build everything, and run one step without any lasting effect. Raises BadModel or BadData."""
        user, self._sample = self._user, sample
        batch = self.convert(sample)
        self.model = make_model(user, self._spec.seed, batch, len(sample))
        self._served = served(user, self.model)
        self._forward = Forward(self.model, user.loss, f"{user.path}: {self._spec.loss}", user.path)
        self.optimizer = built_optimizer(user, self.model)
        self._programs = make_programs(self._forward, self.optimizer, self._spec.seed)
        self._keep(user, self._spec, self._process)
        before = self._state.image()
        try:
            seeds = self._forward.seeds(self._spec.seed, 0, 0)
            _, slopes, after = self._programs.gradient(batch, seeds)
            changed = [self._forward.others[place] for place in self._forward.changed or ()]
            self._step = Sums(self._forward.trained, changed, self._spec.minibatch_size, user.path)
            self._sum_with(self._step)
            self._step.add(slopes, after, batch.examples)
            self.take(alone=True)
            self.commit(float(batch.examples))
        except BadInput:
            raise
        except Exception as error:
            raise failure(user, FIRST_STEP, error, given(batch)) from error
        self._state.load(before)

    def prepare_sizes(self, sizes: Sequence[int]) -> None:
        """Make code for chunks of so many records."""
        for size in sizes:
            self.compute(
                self.convert(picked(self._sample, [place % len(self._sample) for place in range(size)])), 0, 0
            )
            self.zero()

    # ------------------------------------------------------------------ chunks

    def convert(self, records: Records) -> Batch:
        """Run the user's `feed` over one chunk. Raises BadData."""
        return self._feed(records)

    def compute(self, batch: Batch | None, step: int, lane: int) -> ChunkResult:
        """Add a chunk's gradients and changes to the accumulator; None is a chunk without a good record."""
        if batch is None or not batch.examples:
            return ChunkResult(0.0, 0.0)
        loss, slopes, after = self._programs.gradient(batch, self._forward.seeds(self._spec.seed, step, lane))
        self._step.add(slopes, after, batch.examples)
        return ChunkResult(float(batch.examples), loss * batch.examples)

    def commit(self, examples: float) -> None:
        """Commit the sum that was taken / `examples`; the accumulator becomes empty."""
        self._callbacks.make_up()
        if examples:
            self._programs.apply(self._step.give(examples))
        self.zero()

    # ------------------------------------------------------------------ between steps

    def evaluator(self, metadata: Any) -> BackendEvaluator:
        """Return what evaluates this model."""
        return BackendEvaluator(self._user, self._spec, metadata, self._forward, self._programs)

    def _write(self, path: str, kind: str) -> None:
        kerasfile.write(self._served, path)
