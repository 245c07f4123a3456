"""Work between the model and the client of the servers: pieces that wait for no server.

It decides nothing: what is pushed and pulled is in the instruction, and how often variables come is the local copy's. The runner calls
it in its main thread, which is the only one that touches the model; the simulator calls it as well.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, assert_never

import numpy as np
import numpy.typing as npt

from elasticdl._core import Batch, ParameterClient
from elasticdl.worker.contract.allreduce import GateLogs
from elasticdl.worker.contract.ps import Gradients, PsAdapter, PsBatch
from elasticdl.worker.finite import all_finite
from elasticdl.worker.ps.events import (
    Asked,
    Compute,
    Computed,
    Done,
    EndTraining,
    Fetched,
    PassBarrier,
    Passed,
    Pull,
    PullRows,
    PullVariables,
    Push,
    PushFirstValues,
    RowsCame,
    UseLast,
    Wanted,
)
from elasticdl.worker.ps.localcopy import LocalCopy

Found = tuple[Sequence[Any], Sequence[tuple[int, Any]], Sequence[int]]
"""What the client has when rows have come."""


class Exchange:
    """A model, the client of the servers, and the worker's own copy of the variables if it has one.

    Attributes:
        core: the model's catalog as the core has it.
    """

    def __init__(self, adapter: PsAdapter, client: ParameterClient, get_model_steps: int) -> None:
        """`get_model_steps`: chunks from one with which variables are asked for to the next."""
        self._adapter = adapter
        self._client = client
        self.core = core = adapter.catalog.core()
        self._variables = list(range(len(adapter.catalog.variables)))
        self._dense_slots = frozenset(core.slot_of_variable(variable) for variable in self._variables)
        own = LocalCopy(core, len(self._variables), get_model_steps) if get_model_steps > 1 else None
        self._copy = own
        self._taker = adapter if own is None else own

    def fetched(self, records: int, bad: int, batch: PsBatch | None) -> Fetched:
        """Return what a chunk is and which slots it touches; without a batch all of its records were bad."""
        if batch is None or not batch.examples:
            return Fetched(records, bad, PsBatch(0, (), None), frozenset())
        return Fetched(records, bad, batch, self._slots(batch))

    def carry_out(
        self,
        work: Pull
        | PullRows
        | PullVariables
        | Push
        | PushFirstValues
        | Compute
        | UseLast
        | PassBarrier
        | EndTraining,
    ) -> Asked | Computed | Passed | Done:
        """Do a piece of work; return its outcome."""
        match work:
            case Pull(wanted):
                return Asked(self._client.pull(*self._wish(wanted), wanted.need))
            case PullVariables(variables, need):
                wish = self._variables if variables is None else list(variables)
                return Asked(self._client.pull(None, [], wish, need))
            case PullRows(batch, need):
                return Asked(self._client.pull(None, batch.batches, [], need))
            case Push():
                return Asked(self._push(work))
            case PushFirstValues():
                return Asked(self._push_first_values(work))
            case Compute():
                return self._compute(work)
            case UseLast():
                if self._copy is not None:
                    self._show(self._copy.pulled())
                return Done()
            case PassBarrier(barrier, anew):
                return self._pass(barrier, anew=anew)
            case EndTraining(steps, writes):
                self._adapter.end_training(steps, writes)
                return Done()
        assert_never(work)

    def take(self, found: Found) -> RowsCame:
        """Take in what has come."""
        rows, variables, held = found
        missing = []
        for variable, value in variables:
            if value is None:
                missing.append(variable)
            else:
                self._taker.take(variable, np.frombuffer(value, np.float32))
        return RowsCame([np.frombuffer(one, np.float32) for one in rows], frozenset(held), tuple(missing))

    def _slots(self, batch: PsBatch) -> frozenset[int]:
        """Return the slots that a chunk concerns."""
        return self._dense_slots.union(*(one.slots() for one in batch.batches))

    def _wish(self, wanted: Wanted) -> tuple[tuple[int, int], Sequence[Batch], list[int]]:
        chunk = wanted.chunk
        variables = self._variables if self._copy is None else self._copy.ask(chunk.roll_back, wanted.again)
        return (chunk.task, chunk.chunk), wanted.batch.batches, variables

    def _push(self, push: Push) -> int:
        chunk, gradients = push.chunk, push.gradients
        stamp = (chunk.task, chunk.chunk)
        head = (stamp, push.low, chunk.roll_back, self._adapter.rate(push.step), push.step)
        wish, need = (None, None) if push.wanted is None else (self._wish(push.wanted), push.wanted.need)
        if push.is_nothing:
            marks = {*self._slots(push.batch)}
            return self._client.push(head, [], [], False, wish, need, push.confirms, marks)
        of_tables, of_variables = (_scaled(of, push.share) for of in (gradients.rows, gradients.dense))
        rows = [(of, slope.data, True) for of, slope in zip(push.batch.batches, of_tables, strict=True)]
        dense = [(variable, slope.data) for variable, slope in enumerate(of_variables)]
        return self._client.push(head, rows, dense, False, wish, need, push.confirms)

    def _push_first_values(self, push: PushFirstValues) -> int:
        first = self._adapter.first_values()
        head = (None, push.low, push.roll_back, 0.0, 0)
        return self._client.push(
            head, [], [(variable, first[variable].data) for variable in push.variables], True
        )

    def _compute(self, work: Compute) -> Computed:
        if self._copy is not None:
            self._show(self._copy.weights())
        gradients = self._adapter.compute(work.batch, work.rows, work.chunk.task, work.chunk.chunk)
        finite = _is_finite(gradients)
        if finite and self._copy is not None:
            self._copy.change(gradients.dense, self._adapter.rate(work.step))
        return Computed(gradients, finite)

    def _pass(self, barrier: GateLogs | None, *, anew: bool) -> Passed:
        if anew:
            self._adapter.begin_callbacks()
        return Passed(None if barrier is None else self._adapter.pass_barrier(barrier))

    def _show(self, variables: Iterator[tuple[int, npt.NDArray[np.float32]]]) -> None:
        for variable, weights in variables:
            self._adapter.take(variable, weights)


def _scaled(slopes: Sequence[npt.NDArray[np.float32]], share: float) -> Sequence[npt.NDArray[np.float32]]:
    return slopes if share == 1 else [slope * np.float32(share) for slope in slopes]


def _is_finite(gradients: Gradients) -> bool:
    return math.isfinite(gradients.loss) and all(
        all_finite(values) for values in (*gradients.dense, *gradients.rows)
    )
