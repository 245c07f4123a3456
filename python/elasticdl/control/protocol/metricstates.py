"""The states of an evaluation's metrics: what their arrays are, how those of all tasks become one, and their bytes.

No metric is computed here: what the numbers mean is the framework's affair, and neither master nor codec imports one. States are taken in
the order of their tasks, so that the bits of the result do not depend on which worker computed which task.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from elasticdl.control.protocol.frozen import replace
from elasticdl.errors import BadModel
from elasticdl.files import reading

Arrays = list[npt.NDArray[Any]]

LARGEST_STATE = 4 << 20
"""Bytes of the state of one task: it is one message, and the master keeps those of all tasks until the evaluation is over."""
TYPES = frozenset({
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64",
})  # fmt: skip
"""Of arrays: those that NumPy has by itself."""
_DIMENSIONS = 32


@dataclass(frozen=True, slots=True)
class StateArray:
    """One array of a metric's state.

    Attributes:
        name: in its metric.
        shape: of the array.
        dtype: one of `TYPES`.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def nbytes(self) -> int:
        """Return the bytes of it."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric of an evaluation.

    Attributes:
        name: `val_NAME`, or `val_OUTPUT_NAME`; unique in the evaluation.
        output: of the model, that it is about; empty if the model has one, or if it is about all of them.
        state: its arrays.
        adds: its value is one of the sum of the tasks' states; otherwise it is made of all states, one after the other.
    """

    name: str
    output: str
    state: tuple[StateArray, ...]
    adds: bool = True


@dataclass(frozen=True, slots=True)
class MetricCatalog:
    """The metrics of an evaluation, in the order in which their states lie in a task's state; the same in all workers."""

    metrics: tuple[Metric, ...]

    def task_arrays(self) -> tuple[StateArray, ...]:
        """Return the arrays of one task's state."""
        return tuple(array for metric in self.metrics for array in metric.state)

    @property
    def nbytes(self) -> int:
        """Return the bytes of one task's state."""
        return sum(array.nbytes for array in self.task_arrays())

    def combined_arrays(self, tasks: int) -> tuple[StateArray, ...]:
        """Return the arrays that `combine` makes of so many tasks."""
        return tuple(
            replace(array, dtype=_sum_type(array.dtype))
            if metric.adds
            else replace(array, shape=(tasks, *array.shape))
            for metric in self.metrics
            for array in metric.state
        )

    def check_size(self, where: str) -> None:
        """Raise BadModel if a task's state is too large to be sent; `where`: what defines the metrics."""
        if self.nbytes > LARGEST_STATE:
            largest = max(self.metrics, key=lambda one: sum(array.nbytes for array in one.state))
            raise BadModel(
                f"{where}: the metrics keep {self.nbytes / 2**20:,.1f} MiB, most of it {largest.name}, and may keep "
                f"{LARGEST_STATE >> 20} MiB; use fewer thresholds or classes, or leave it out"
            )

    def to_json(self) -> dict[str, Any]:
        """Return it as `from_json` reads it."""
        return {"metrics": [asdict(one) for one in self.metrics]}

    @classmethod
    def from_json(cls, body: object) -> MetricCatalog:
        """Read what `to_json` returned. Raises ValueError for anything else, and for a state that is too large."""
        found = cls(tuple(_metric(one) for one in reading.items(reading.field(body, "metrics"))))
        reading.integer(found.nbytes, most=LARGEST_STATE)
        return found

    def text(self) -> str:
        """Return its one text, by which two catalogs are compared; `read_metrics` is the inverse."""
        return json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"))


def read_metrics(text: str) -> MetricCatalog:
    """Read what `MetricCatalog.text` returned. Raises ValueError for anything else."""
    return MetricCatalog.from_json(reading.load(text))


def combine(catalog: MetricCatalog, states: Iterable[Sequence[npt.NDArray[Any]]]) -> Arrays:
    """Make one of the states of all tasks, which have to come in the order of the tasks.

    States of metrics that add are added up, floats as float64, whole numbers as int64 or uint64; the others are stacked along a new first
    axis. `catalog.combined_arrays` says what results.
    """
    adds = [metric.adds for metric in catalog.metrics for _ in metric.state]
    sums: Arrays = [np.zeros(array.shape, array.dtype) for array in catalog.combined_arrays(0)]
    stacks: list[Arrays] = [[] for _ in adds]
    for state in states:
        for place, value in enumerate(state):
            if adds[place]:
                sums[place] += value
            else:
                stacks[place].append(value)
    return [
        total if added or not stack else np.stack(stack)
        for total, added, stack in zip(sums, adds, stacks, strict=True)
    ]


def pack(arrays: Iterable[npt.NDArray[Any]]) -> bytes:
    """Return the bytes of arrays, one after the other, little-endian."""
    return b"".join(np.asarray(array, array.dtype.newbyteorder("<")).tobytes() for array in arrays)


def unpack(described: Iterable[StateArray], body: bytes) -> Arrays:
    """Return the arrays that `pack` was given, as views into `body`. Raises ValueError if it is not as long as they are."""
    described = tuple(described)
    size = sum(array.nbytes for array in described)
    if len(body) != size:
        raise ValueError(f"the state of metrics has {len(body)} bytes; expected {size}")
    found, start = [], 0
    for array in described:
        kind = np.dtype(array.dtype).newbyteorder("<")
        found.append(np.frombuffer(body, kind, math.prod(array.shape), start).reshape(array.shape))
        start += array.nbytes
    return found


def _sum_type(dtype: str) -> str:
    """Return what sums of arrays of a type are made in."""
    match np.dtype(dtype).kind:
        case "f":
            return "float64"
        case "u":
            return "uint64"
    return "int64"


def _metric(body: object) -> Metric:
    return Metric(
        name=reading.text(reading.field(body, "name")),
        output=reading.text(reading.field(body, "output")),
        state=tuple(_array(one) for one in reading.items(reading.field(body, "state"))),
        adds=reading.flag(reading.field(body, "adds")),
    )


def _array(body: Mapping[str, Any]) -> StateArray:
    shape = tuple(
        reading.integer(size, most=LARGEST_STATE) for size in reading.items(reading.field(body, "shape"))
    )
    dtype = reading.text(reading.field(body, "dtype"))
    if dtype not in TYPES or len(shape) > _DIMENSIONS:
        raise ValueError(
            f"an array of metrics can't be of the type {dtype!r:.40} with {len(shape)} dimensions"
        )
    return StateArray(reading.text(reading.field(body, "name")), shape, dtype)
