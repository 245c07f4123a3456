"""The adapter for Keras models on TensorFlow: one worker's model, optimizer and accumulator behind the Protocol of `worker/contract/`.

It composes the parts (feed, step, state, callbacks, export) and owns the accumulator; it talks to no other process. The accumulator is
the compiled step's own result as long as a member computes one chunk a step, so that the ring reads the gradient where TensorFlow
wrote it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from elasticdl.cluster.cluster import FIRST_WORKER, ProcessName
from elasticdl.errors import BadInput, BadModel
from elasticdl.keras.betweensteps import BetweenSteps
from elasticdl.keras.building import built_optimizer
from elasticdl.keras.evaluation import KerasEvaluator, OwnWeights
from elasticdl.keras.export import export
from elasticdl.keras.feed import Batch, FeedPipeline
from elasticdl.keras.firstcall import make_model
from elasticdl.keras.internals import layers_of
from elasticdl.keras.library import KERAS, Library
from elasticdl.keras.loss import ChunkLoss
from elasticdl.keras.serving import served
from elasticdl.keras.shown import show
from elasticdl.keras.step import TrainingStep
from elasticdl.spec.jobspec import JitCompile, JobSpec, Mode
from elasticdl.worker.contract.allreduce import ChunkResult
from elasticdl.worker.contract.records import Records
from elasticdl.worker.contract.usermodel import UserModel
from elasticdl.worker.modelfile import describe
from elasticdl.worker.seeds import chunk_seeds


class KerasAdapter(BetweenSteps):
    """Implements `elasticdl.worker.contract.adapter.Adapter`."""

    def __init__(
        self,
        user: UserModel,
        spec: JobSpec,
        metadata: Any = None,
        process: ProcessName = FIRST_WORKER,
        library: Library = KERAS,
    ) -> None:
        """`metadata`: what the reader knows of its records (`column_names`, `column_dtypes`), the third argument of `feed`.

        `process`: the life of a worker that this is; only callbacks make a difference of it. Nothing is built yet; `prepare` does.
        """
        self._user = user
        self._spec = spec
        self._pipeline = FeedPipeline(user.feed, Mode.TRAINING, metadata, user.path)
        self._process = process
        self._library = library
        self._flat: Any = None
        self._sum: npt.NDArray[Any] | None = None
        self._summed = False

    # ------------------------------------------------------------------ building

    def prepare(self, sample: Records) -> None:
        """Build model, optimizer and compiled step, and run the step once on `sample`, without any lasting effect.

        Raises BadModel or BadData for what only running shows: expected and received, with the user's exception as the cause.
        """
        user = self._user
        self.model, batch, outputs = make_model(user, self._spec.seed, self._library, self._pipeline, sample)
        self._served = served(user, self.model)
        spec = self._pipeline.spec
        assert spec is not None, "feed has been traced"
        self.optimizer = built_optimizer(user, self.model)
        self._step = TrainingStep(
            self.model,
            self.optimizer,
            ChunkLoss(user.loss, f"{user.path}: {self._spec.loss}", self._library),
            spec,
            self._spec.minibatch_size,
            self._xla(),
            user.path,
        )
        self._keep(user, self._spec, self._process)
        self.dtype: npt.DTypeLike = self._step.dtype.as_numpy_dtype
        try:
            self.compute(batch, 0, 0)
            self.size, self.gradient_size = self._step.size, self._step.gradient_size
            before = self._state.image()
            # Whatever the optimizer makes of a gradient of zeros: what counts is that the commit has run once.
            self.apply(np.zeros(self.size, self.dtype), 1.0)
            self._state.load(before)
        except BadInput:
            raise
        except Exception as error:
            raise BadModel(
                f"{user.path}: the first training step failed: {describe(error, user.path)}\n"
                f"feed gave {show(spec)}; the model gives {show(outputs)}"
            ) from error
        finally:
            self.zero()

    def _xla(self) -> bool:
        """Decide on XLA: on CPUs it is several times slower where convolutions are, so only accelerators get it unasked."""
        match self._spec.jit_compile:
            case JitCompile.ON:
                return True
            case JitCompile.OFF:
                return False
        return bool(tf.config.list_physical_devices("GPU")) and all(
            self._library.fits_xla(layer) for layer in layers_of(self.model)
        )

    # ------------------------------------------------------------------ chunks

    def convert(self, records: Records) -> Batch:
        """Run the user's `feed` over one chunk; may be called from another thread once `prepare` has returned. Raises BadData."""
        return self._pipeline(records)

    def zero(self) -> None:
        """Empty the accumulator."""
        self._flat = None
        self._summed = False

    def compute(self, batch: Batch | None, step: int, lane: int) -> ChunkResult:
        """Add a chunk's gradient sum and weighted state changes to the accumulator; None is a chunk without a good record."""
        if batch is None or batch.data is None:
            return ChunkResult(0.0, 0.0)
        loss, flat = self._step.compute(batch.data, batch.examples, self._seeds(step, lane))
        if self._flat is None:
            self._flat = flat
        else:
            if not self._summed:
                if self._sum is None:
                    self._sum = np.empty(self._step.size, self.dtype)
                self._sum[:] = np.asarray(memoryview(self._flat))
                self._summed = True
            assert self._sum is not None, "made above"
            np.add(self._sum, np.asarray(memoryview(flat)), out=self._sum)
        return ChunkResult(float(batch.examples), float(loss))

    def _seeds(self, step: int, lane: int) -> npt.NDArray[np.int64]:
        return chunk_seeds(self._spec.seed, step, lane, self._step.generators)

    def accumulator(self) -> memoryview:
        """Return the accumulator's elements, valid until the next `compute`, `apply` or `zero`."""
        if self._summed:
            assert self._sum is not None, "made when the second chunk came"
            return self._sum.data
        if self._flat is None:
            return np.zeros(self.size, self.dtype).data
        return memoryview(self._flat)

    def apply(self, result: npt.NDArray[Any], examples: float) -> None:
        """Commit `result` / `examples`; the accumulator becomes empty."""
        self._callbacks.make_up()
        self._step.apply(tf.convert_to_tensor(result), examples)
        self.zero()

    # ------------------------------------------------------------------ between steps

    def evaluator(self, metadata: Any) -> KerasEvaluator:
        """Return what evaluates this model, with nothing traced yet."""
        return KerasEvaluator(self._user, self._spec, metadata, self.model, OwnWeights(self.model))

    def _write(self, path: str, kind: str) -> None:
        spec = self._pipeline.spec
        assert spec is not None, "feed has been traced"
        export(self._served, path, kind, spec[0])
