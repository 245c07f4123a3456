"""A small model whose gradients are counts: chunk c adds one to column c of each row that it touches, and of the variable."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from elasticdl._core import Batch, Catalog
from elasticdl.catalog.catalog import Catalog as Described
from elasticdl.catalog.catalog import Rule
from elasticdl.data.plan.evaluation import EvaluationPlan
from elasticdl.data.plan.ledger import Ledger
from elasticdl.data.plan.shard import Shard
from elasticdl.data.plan.tasks import TaskOrder
from elasticdl.worker.contract.allreduce import GateLogs
from elasticdl.worker.contract.ps import Gradients, PsBatch

SLOTS = 4
CHUNKS = 2
MINIBATCH = 4
SEED = 7
TEXT = Described(0, [], [], Rule("sgd", {"momentum": 0.0, "nesterov": 0.0}), SLOTS).text()
"""For the master, to which the model is words; what servers and clients have is `Model.core`."""


@dataclass(frozen=True, eq=False)
class Model:
    """What all processes of a job know.

    Attributes:
        tasks: how many there are.
        core: the catalog of one table and one variable, both with a column for each chunk.
        ids: of each slot: an id that all chunks touch, then one for each chunk alone.
        touching: of each slot the columns of the chunks that have rows there: not all chunks touch all.
        dense_slot: the variable's.
    """

    tasks: int
    core: Catalog
    ids: tuple[tuple[int, ...], ...]
    touching: tuple[frozenset[int], ...]
    dense_slot: int

    @property
    def columns(self) -> int:
        return self.tasks * CHUNKS

    def column(self, task: int, chunk: int) -> int:
        return task * CHUNKS + chunk

    def touched(self, column: int) -> list[int]:
        """Return the slots in which a chunk has rows."""
        return [slot for slot in range(SLOTS) if column in self.touching[slot]]

    def own(self, slot: int, column: int) -> int:
        return self.ids[slot][1 + column]

    def minibatch(self, column: int) -> list[int]:
        return [id for slot in self.touched(column) for id in (self.ids[slot][0], self.own(slot, column))]

    def slots_of(self, column: int) -> set[int]:
        return {*self.touched(column), self.dense_slot}

    def counts(
        self, slot: int, rows: Sequence[float], variable: Sequence[float] | None
    ) -> dict[int, set[float]]:
        """Return of each chunk that touches a slot how often it was applied to whatever it touches there."""
        columns = self.columns
        # The row that all touch, and each chunk's own, are one after the other; what is of one chunk has one number in each.
        found = {
            column: {rows[column], rows[(1 + column) * columns + column]} for column in self.touching[slot]
        }
        if slot == self.dense_slot:
            for column in range(columns):
                found.setdefault(column, set()).add(0.0 if variable is None else variable[column])
        return found


@lru_cache
def model(tasks: int, accumulates: bool = False) -> Model:
    """Return the model of a job of so many tasks; `accumulates`: servers sum up the gradients of a wave's tasks."""
    columns = tasks * CHUNKS
    described = Catalog(
        seed=0,
        slots=SLOTS,
        tables=[("ids", columns, ("constant", 0.0, 0.0), 1, False)],
        variables=[("bias", columns, False, False)],
        optimizer="sgd",
        parameters={"momentum": 0.0, "nesterov": 0.0},
        weight_decay=0.0,
    )
    core = described.with_policy(False, None, None, accumulates)
    ids: list[list[int]] = [[] for _ in range(SLOTS)]
    for id in itertools.count():
        of_slot = ids[core.slot_of_row(0, id)]
        if len(of_slot) < 1 + columns:
            of_slot.append(id)
        if all(len(one) == 1 + columns for one in ids):
            touching = tuple(
                frozenset(column for column in range(columns) if (column + slot) % 4) for slot in range(SLOTS)
            )
            return Model(tasks, core, tuple(map(tuple, ids)), touching, core.slot_of_variable(0))
    raise AssertionError


@lru_cache
def data(
    tasks: int, every: int = 0, evaluated: int = 0, epochs: int = 1, wave: int = 1
) -> tuple[tuple[Shard, ...], TaskOrder]:
    """Return a small job's data and its order; the last task of an epoch is short of records, not of chunks.

    So many tasks of two minibatches are `evaluated`, if any, and each so many steps (0: at the ends of epochs only).
    """
    shards = (Shard("data", 0, tasks // epochs * CHUNKS * MINIBATCH - 3),)
    held_out = (Shard("held out", 0, evaluated * CHUNKS * MINIBATCH),)
    plan = EvaluationPlan(held_out, MINIBATCH, every, True, evaluated) if evaluated else None
    ledger = Ledger(shards, CHUNKS * MINIBATCH, MINIBATCH, SEED, shuffle=True)
    return shards, TaskOrder(ledger, epochs, 0, wave, plan)


class CatalogOfModel:
    """The catalog as adapters have it."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.variables = ("bias",)

    def text(self) -> str:
        return TEXT

    def core(self) -> Catalog:
        return self.model.core


class Adapter:
    """A framework's side: nothing but counting."""

    acts_at_end = True

    def __init__(
        self, model: Model, stop_at: int = 0, is_nan: Callable[[int], bool] = lambda column: False
    ) -> None:
        """`stop_at`: the step at whose barrier callbacks ask for the end, 0: at none; `is_nan`: whether a chunk is no number."""
        self.model = model
        self.is_nan = is_nan
        self.stop_at = stop_at
        self.passed: list[GateLogs] = []
        """What callbacks have passed: a learning rate may follow from it."""
        self.catalog: Any = CatalogOfModel(model)
        self.ends = 0
        self.bias: npt.NDArray[np.float32] = np.zeros(model.columns, np.float32)

    def batch(self, column: int) -> PsBatch:
        return PsBatch(MINIBATCH, (Batch(self.model.core, 0, ids_of(self.model, column)),), column)

    def first_values(self) -> Sequence[npt.NDArray[np.float32]]:
        return [np.zeros(self.model.columns, np.float32)]

    def take(self, variable: int, value: npt.NDArray[np.float32]) -> None:
        self.bias = value.copy()

    def shared(self) -> PsBatch:
        """Return a batch of the rows that all chunks touch, one of each slot."""
        ids = np.array([of_slot[0] for of_slot in self.model.ids], np.int64)
        return PsBatch(MINIBATCH, (Batch(self.model.core, 0, ids),), ids)

    def seen(self, batch: PsBatch, rows: Sequence[npt.NDArray[np.float32]]) -> tuple[int, int]:
        """Return the chunks that all places have that they touch, and those that any place has, each as bits."""
        everywhere = anywhere = 0
        inverse = np.frombuffer(batch.batches[0].inverse(), np.uint32)
        of_slots = rows[0].reshape(-1, self.model.columns)[inverse]
        for column in range(self.model.columns):
            counts = [self.bias[column], *(of_slots[slot][column] for slot in self.model.touched(column))]
            everywhere |= all(count == 1.0 for count in counts) << column
            anywhere |= any(count != 0.0 for count in counts) << column
        return everywhere, anywhere

    def counted(
        self, batch: PsBatch, rows: Sequence[npt.NDArray[np.float32]], mine: int
    ) -> Iterator[tuple[int, dict[int, float]]]:
        """Yield, for a chunk's batch, slots with what is seen there of the chunks that touch them."""
        inverse = np.frombuffer(batch.batches[0].inverse(), np.uint32)
        # Of each slot the row that all touch, and the chunk's own.
        shared = rows[0].reshape(-1, self.model.columns)[inverse][::2]
        for slot, row in zip(self.model.touched(mine), shared, strict=True):
            yield slot, {column: float(row[column]) for column in self.model.touching[slot]}
        yield self.model.dense_slot, dict(enumerate(map(float, self.bias)))

    def compute(self, batch: PsBatch, rows: Sequence[Any], task: int, chunk: int) -> Gradients:
        column, columns = self.model.column(task, chunk), self.model.columns
        slope = np.zeros(columns, np.float32)
        slope[column] = np.nan if self.is_nan(column) else -1.0
        return Gradients(0.0, [slope], [np.tile(slope, len(batch.batches[0]))])

    def rate(self, step: int) -> float:
        return 1.0

    def begin_callbacks(self) -> None:
        self.passed = []

    def pass_barrier(self, logs: GateLogs) -> str | None:
        self.passed.append(logs)
        return "a callback asked for the end" if logs.step == self.stop_at else None

    def end_training(self, steps: int, writes: bool) -> None:
        self.ends += 1

    def export(self, path: str, kind: str, *reading: Any) -> str:
        return "digest"


@lru_cache(maxsize=4096)
def ids_of(model: Model, column: int) -> npt.NDArray[np.int64]:
    """Return the ids of a chunk."""
    return np.array(model.minibatch(column), np.int64)
