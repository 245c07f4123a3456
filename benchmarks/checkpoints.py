"""What a step of a synchronous job waits for a checkpoint: a copy of the member's share, beside one plain copy of as many bytes.

Run it alone: `python -m benchmarks checkpoints`. Ours is what a worker does between two steps: it describes the state, and copies its range
out of many variables. The peer is one copy of as many bytes that lie in a row, to memory that was not used before, as ours. They take
turns.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from benchmarks.recorded import Bar, bar, judge
from elasticdl.checkpoint.group import head_of, range_of
from elasticdl.checkpoint.stateimage import RunningSums
from elasticdl.reference.adapter import Variable
from elasticdl.worker.modelstate import ModelState

MUST, AIM = 1.2, 1.0
"""Times the peer's seconds."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured.

    Attributes:
        nbytes: of the state.
        variables: that it consists of.
        members: of the groups.
        rounds: turns of both sides for each group.
    """

    nbytes: int
    variables: int
    members: tuple[int, ...]
    rounds: int


FULL = Sizes(400_000_000, 200, (1, 2, 4, 8), 15)
SMALLEST = Sizes(4096, 4, (2,), 1)


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table; seconds."""

    members: int
    nbytes: int
    ours: float
    copy: float

    @property
    def verdict(self) -> str:
        """`aim` if a step waits no longer than for the copy, `must` if it is not much longer, else `short`."""
        return judge(self.ratio, MUST, AIM)

    @property
    def ratio(self) -> float:
        """The wait, in times of the copy."""
        return self.ours / self.copy

    @property
    def bars(self) -> list[Bar]:
        """The ratio for a picture."""
        what = f"a step's wait for a checkpoint, of one copy: {self.members} member{'s' * (self.members > 1)}"
        return [bar(what, self.ratio, f"{self.ratio:.2f}×", self.verdict, MUST, AIM)]


def rows(sizes: Sizes = FULL) -> list[Row]:
    """Measure each group."""
    each = sizes.nbytes // sizes.variables // 4
    draw = np.random.default_rng(1)
    variables = [
        Variable(f"layer_{place}/kernel", draw.random(each, np.float32)) for place in range(sizes.variables)
    ]
    state = ModelState(variables)
    plain = np.concatenate([one.value for one in variables]).view(np.uint8)
    return [_row(state, plain, members, sizes.rounds) for members in sizes.members]


def _row(state: ModelState, plain: np.ndarray, members: int, rounds: int) -> Row:
    first, end = range_of(members // 2, members, state.size)

    def ours() -> object:
        meta, _ = state.describe()
        return head_of(RunningSums(), False, None, meta), state.part(first, end)

    def copy() -> object:
        return plain[first:end].copy()

    times: dict[Callable[[], object], list[float]] = {ours: [], copy: []}
    for _ in range(rounds):
        for side, seconds in times.items():
            began = time.perf_counter()
            kept = side()
            seconds.append(time.perf_counter() - began)
            del kept
    medians = [statistics.median(seconds) for seconds in times.values()]
    return Row(members, end - first, *medians)


def table(measured: list[Row]) -> str:
    """Return the rows for people."""
    lines = ["a step's wait for a checkpoint   bytes of one member   ours   one copy   ratio"]
    for row in measured:
        lines.append(
            f"{row.members} {'member ' if row.members == 1 else 'members'}{'':<23} {row.nbytes / 1e6:>17,.1f} MB"
            f"{row.ours * 1e3:>8.1f} ms {row.copy * 1e3:>6.1f} ms {row.ratio:>6.2f}  {row.verdict}"
        )
    return "\n".join(lines)
