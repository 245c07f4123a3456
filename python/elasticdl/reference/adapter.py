"""The adapter for synchronous workers: one worker's parameters, statistics, optimizer slots and accumulator.

The flat accumulator has the sums of gradients of all parameters and tables, then of each statistic the change times the examples.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from elasticdl.catalog.tablereader import TableReader
from elasticdl.errors import BadInput
from elasticdl.reference.building import (
    Batch,
    describe_failure,
    feed,
    first_parameters,
    make_model,
    make_optimizer,
    random_of,
)
from elasticdl.reference.evaluation import ReferenceEvaluator, WholeWeights
from elasticdl.reference.models import Array, Arrays
from elasticdl.spec.jobspec import JobSpec
from elasticdl.worker.betweensteps import BetweenSteps
from elasticdl.worker.contract.allreduce import ChunkResult
from elasticdl.worker.contract.records import Records
from elasticdl.worker.contract.usermodel import UserModel
from elasticdl.worker.hooks import Callbacks
from elasticdl.worker.modelstate import ModelState
from elasticdl.worker.npzfile import write_npz

_STEPS, _SLOT = "steps", "/slot_"
"""Names of the optimizer's arrays: the second follows the name of what it is for, and a number follows it."""


def without_optimizer(arrays: Arrays) -> Arrays:
    """Return those of a state that an export has: parameters, tables and statistics."""
    return {
        name: value
        for name, value in arrays.items()
        if name != _STEPS and name.rpartition(_SLOT)[0] not in arrays
    }


class Variable:
    """A named array that can be replaced, as `ModelState` takes it."""

    def __init__(self, path: str, value: Array) -> None:
        self.path = path
        self.value = np.array(value)

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the value's shape."""
        return self.value.shape

    def assign(self, value: Array) -> None:
        """Replace the value."""
        self.value[...] = value


class ReferenceAdapter(BetweenSteps):
    """Implements `elasticdl.worker.contract.allreduce.Adapter`."""

    def __init__(self, user: UserModel, spec: JobSpec, metadata: Any) -> None:
        """Nothing is built yet; `prepare` does."""
        self._user, self._spec, self._metadata = user, spec, metadata

    def prepare(self, sample: Records) -> None:
        """Build everything, and compute one chunk. Raises BadModel or BadData."""
        user = self._user
        self._model = make_model(user)
        self._weights = WholeWeights(self._model, self._values)
        self._optimizer = make_optimizer(user)
        self._callbacks = Callbacks(user)
        first = dict(first_parameters(user, self._model, self._spec.seed))
        random = np.random.default_rng(self._spec.seed % 2**63)
        for name, table in self._model.tables().items():
            drawn = random.uniform(-table.scale, table.scale, (table.ids, table.width))
            first[name] = drawn.astype(np.float32)
        self._trained = {name: Variable(name, value) for name, value in first.items()}
        self._statistics = {name: Variable(name, value) for name, value in self._model.statistics().items()}
        self._slots = {
            name: [
                Variable(f"{name}{_SLOT}{slot}", np.zeros_like(one.value))
                for slot in range(self._optimizer.slots)
            ]
            for name, one in self._trained.items()
        }
        self._steps = Variable(_STEPS, np.zeros(1, np.int64))
        slots = [slot for slots in self._slots.values() for slot in slots]
        self._state = ModelState([*self._trained.values(), *self._statistics.values(), *slots, self._steps])
        self.dtype: npt.DTypeLike = np.result_type(*(one.value for one in self._flat_variables()))
        self.size = sum(one.value.size for one in self._flat_variables())
        self.gradient_size = sum(one.value.size for one in self._trained.values())
        self._sum = np.zeros(self.size, self.dtype)
        batch = self.convert(sample)
        try:
            self.compute(batch, 0, 0)
        except BadInput:
            raise
        except Exception as error:
            raise describe_failure(user, batch, error) from error
        finally:
            self.zero()

    def _flat_variables(self) -> Iterator[Variable]:
        yield from self._trained.values()
        yield from self._statistics.values()

    def _pieces(self, flat: Array) -> Iterator[tuple[str, Array]]:
        """Yield the parts of a flat accumulator by name, in the shapes of the variables."""
        start = 0
        for one in self._flat_variables():
            yield one.path, flat[start : start + one.value.size].reshape(one.shape)
            start += one.value.size

    # ------------------------------------------------------------------ chunks

    def convert(self, records: Records) -> Batch:
        """Run the user's `feed` over one chunk. Raises BadData."""
        return feed(self._user, self._metadata, records)

    def zero(self) -> None:
        """Empty the accumulator."""
        self._sum[:] = 0

    def compute(self, batch: Batch, step: int, lane: int) -> ChunkResult:
        """Add a chunk's gradients, and its changes of statistics times its examples, to the accumulator."""
        if not batch.examples:
            return ChunkResult(0.0, 0.0)
        _, values, rows = self._weights.of_batch(batch)
        ids = self._model.ids(batch.features)
        found = self._model.compute(
            values, rows, batch.features, batch.labels, random_of(self._spec.seed, step, lane)
        )
        for name, piece in self._pieces(self._sum):
            if name in found.rows:
                np.add.at(piece, ids[name], found.rows[name])
            elif name in found.statistics:
                piece += (found.statistics[name] - values[name]) * batch.examples
            else:
                piece += found.gradients[name]
        return ChunkResult(float(batch.examples), found.loss)

    def accumulator(self) -> memoryview:
        """Return the accumulator's elements."""
        return self._sum.data

    def apply(self, result: npt.NDArray[Any], examples: float) -> None:
        """Commit `result` / `examples`; the accumulator becomes empty."""
        if examples:
            step = int(self._steps.value[0])
            for name, piece in self._pieces(result / result.dtype.type(examples)):
                if name in self._statistics:
                    self._statistics[name].value += piece
                else:
                    slots = [slot.value for slot in self._slots[name]]
                    self._optimizer.update(self._trained[name].value, piece, slots, step)
            self._steps.value += 1
        self.zero()

    # ------------------------------------------------------------------ between steps

    def evaluator(self, metadata: Any) -> ReferenceEvaluator:
        """Return what evaluates this model."""
        return ReferenceEvaluator(self._user, metadata, self._model, self._weights)

    def _values(self) -> Arrays:
        return {one.path: one.value for one in self._flat_variables()}

    def export(self, path: str, kind: str, tables: TableReader | None = None) -> str:
        """Write parameters, tables and statistics by name; return the state's digest. Raises OSError."""
        if path:
            write_npz(path, {one.path: one.value for one in self._flat_variables()})
        return self.digest()
