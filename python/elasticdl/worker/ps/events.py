"""What happens to a worker with parameter servers, and what it is to do: the vocabulary of `worker/ps/machine.py`.

Plain values. The machine takes the time and an event and returns instructions; the runner (`worker/ps/runner.py`) and the simulator carry
them out. *Work* takes time: at most one piece is outstanding at any moment, its outcome comes back as an event, and it is always the last
instruction of a transition. Everything else is done at once. Batches, rows and gradients pass through the machine, which looks at none of
their numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from elasticdl.control.protocol.psmessages import Placed
from elasticdl.control.protocol.view import StateId
from elasticdl.data.prefetch import ChunkKey
from elasticdl.worker.contract.allreduce import GateLogs
from elasticdl.worker.contract.ps import Gradients, PsBatch
from elasticdl.worker.events import (
    ChunkEvaluated,
    ComputeMetrics,
    Connected,
    Disconnected,
    DrainRequested,
    Exit,
    MetricsComputed,
    ProgramError,
    Received,
    Send,
    Tick,
    WorkCancelled,
)
from elasticdl.worker.ps.pacing import Needed
from elasticdl.worker.ps.tasks import Chunk

Rows = Sequence[npt.NDArray[np.float32]]
"""Of each table the rows of a chunk's distinct ids, one after the other."""


# ------------------------------------------------------------------ events


class Started(Struct, frozen=True):
    """The main thread is ready to work."""


class Fetched(Struct, frozen=True):
    """Work done: a chunk is read and converted.

    Attributes:
        records: how many it has.
        bad: those of them that were skipped as corrupt.
        batch: what was made of the others.
        slots: those that it touches, none if it has no example.
    """

    records: int
    bad: int
    batch: PsBatch
    slots: frozenset[int]


class Asked(Struct, frozen=True):
    """Work done: the client sends what was asked of servers."""

    ticket: int


class StillWaiting(Struct, frozen=True):
    """Nothing has come within the seconds of an `AwaitRows` or `AwaitEnd`, which is over; or while an `Export` reads, which continues.

    Attributes:
        lost: servers that could not be reached meanwhile.
    """

    lost: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RowsCame:
    """Work done: rows are there, and the variables that came with them are the model's now.

    Attributes:
        rows: one for each table.
        held: slots that hold the chunk already.
        missing: variables without a first value.
    """

    rows: Rows = field(repr=False, compare=False)
    held: frozenset[int]
    missing: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Computed:
    """Work done: a chunk's gradients; `finite`: all of them are numbers, and so is the loss."""

    gradients: Gradients = field(repr=False, compare=False)
    finite: bool


class PushEnded(Struct, frozen=True):
    """Work done: a push has ended."""

    how: str


class Written(Struct, frozen=True):
    """Work done: the result lies at `path`."""

    path: str
    digest: str


class Passed(Struct, frozen=True):
    """Work done: callbacks have passed a barrier; `stop`: why they ask for the end of training there, None if they do not."""

    stop: str | None


class Done(Struct, frozen=True):
    """Work done: there is nothing more to say of it."""


Outcome = (
    Fetched | Asked | StillWaiting | RowsCame | Computed | PushEnded | Written | Done | WorkCancelled | ChunkEvaluated | MetricsComputed
    | Passed | ProgramError
)  # fmt: skip
PsEvent = Connected | Disconnected | Received | DrainRequested | Tick | Started | Outcome


# ------------------------------------------------------------------ instructions, at once


class Learn(Struct, frozen=True):
    """Give the client what the master says of servers and slots."""

    placed: Placed


class Confirm(Struct, frozen=True):
    """Let all servers know how far tasks are settled (A3): all before `low`, and of others (task, chunks)."""

    roll_back: int
    low: int
    tasks: tuple[tuple[int, int], ...]


class Forget(Struct, frozen=True):
    """Give up all rows that were asked for."""


class GiveUp(Struct, frozen=True):
    """Let the outstanding `Export` read no further; its outcome is WorkCancelled."""


class Log(Struct, frozen=True):
    """Write a line to the log of this process."""

    text: str
    warning: bool = False


class Leaving(Struct, frozen=True):
    """This process is to end: say so at once, whatever the main thread is at; `Exit` follows when it looks up."""

    end: Exit


# ------------------------------------------------------------------ instructions, work


class Line(Struct, frozen=True):
    """A line of the audit: a chunk, the slots that it touches, and whether it changes nothing in them."""

    number: int
    chunk: int
    epoch: int
    task: int
    records: int
    bad: int
    slots: frozenset[int]
    idle: bool = False


class Wanted(Struct, frozen=True):
    """A chunk whose rows are to come.

    Attributes:
        chunk: which.
        batch: its ids.
        need: what is settled before they come, None: they come at once.
        again: variables come with them in any case.
    """

    chunk: Chunk
    batch: PsBatch
    need: Needed | None
    again: bool = False


class Fetch(Struct, frozen=True):
    """Work: get the first of these chunks, and expect the others next; outcome Fetched."""

    keys: tuple[ChunkKey, ...]


class Pull(Struct, frozen=True):
    """Work: ask for the rows of a chunk; outcome Asked."""

    wanted: Wanted


class PullVariables(Struct, frozen=True):
    """Work: ask for variables alone, None: for all; outcome Asked."""

    variables: tuple[int, ...] | None
    need: Needed | None = None


class AwaitRows(Struct, frozen=True):
    """Work: wait for what was asked for; outcome RowsCame or StillWaiting."""

    ticket: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Compute:
    """Work: compute a chunk's gradients, at these rows; outcome Computed."""

    chunk: Chunk
    batch: PsBatch
    rows: Rows = field(repr=False, compare=False)
    step: int


@dataclass(frozen=True, slots=True)
class Push:
    """Work: write the audit's line (R29), then push a chunk's gradients, and pull in the same messages; outcome Asked, for both.

    Attributes:
        chunk: the chunk that its stamp names.
        batch: its ids.
        gradients: of the mean over its examples.
        low: the watermark.
        step: at which the chunk counts.
        share: the part of its step's records that it has.
        line: what is written before; None: that was written for an earlier push.
        confirms: chunks of its task that are settled once this push is, 0: nobody waits for that.
        wanted: what is pulled.
        is_nothing: its gradient is no number, so no slot gets anything of it; the stamp alone counts.
    """

    chunk: Chunk
    batch: PsBatch
    gradients: Gradients = field(repr=False, compare=False)
    low: int
    step: int
    share: float
    line: Line | None = None
    confirms: int = 0
    wanted: Wanted | None = None
    is_nothing: bool = False


class PushFirstValues(Struct, frozen=True):
    """Work: push the first values of variables that have none; outcome Asked."""

    variables: tuple[int, ...]
    low: int
    roll_back: int


class AwaitEnd(Struct, frozen=True):
    """Work: wait for the end of a push; outcome PushEnded or StillWaiting."""

    ticket: int
    seconds: float


class WriteLine(Struct, frozen=True):
    """Work: write a line of the audit for a chunk of which nothing is pushed; outcome Done."""

    line: Line


class UseLast(Struct, frozen=True):
    """Work: give the model the variables as they came last, without what this worker has made of them since; outcome Done."""


class EndTraining(Struct, frozen=True):
    """Work: let callbacks know that training is over; outcome Done. `writes`: this worker writes what they write to files."""

    steps: int
    writes: bool


class PassBarrier(Struct, frozen=True):
    """Work: let callbacks pass a barrier, the next one; `anew`: after others were forgotten, so that callbacks begin anew.

    Without a barrier they only begin anew. Outcome Passed.
    """

    barrier: GateLogs | None
    anew: bool


class Export(Struct, frozen=True):
    """Work: write the result as the servers have it; outcome Written, or WorkCancelled after `GiveUp`.

    Attributes:
        steps: of the job.
        attempt: which attempt to write it this is.
        roll_back: the one in which it was asked for.
        need: what is settled before servers show it.
    """

    steps: int
    attempt: int
    roll_back: int
    need: Needed | None


class FetchEvaluated(Struct, frozen=True):
    """Work: get a minibatch of an evaluation task, and expect those that follow, in the following task, too; outcome Fetched."""

    task: int
    chunk: int
    following: int | None


class PullRows(Struct, frozen=True):
    """Work: ask for rows without a stamp, as an evaluation needs them (B2); outcome Asked. `need`: what is settled before they come."""

    batch: PsBatch
    need: Needed | None


@dataclass(frozen=True, slots=True)
class EvaluateChunk:
    """Work: add a minibatch to the sums of an evaluation task, which its first one begins; outcome ChunkEvaluated."""

    state: StateId
    task: int
    chunk: int
    batch: PsBatch
    rows: Rows = field(repr=False, compare=False)


Work = (
    Fetch | Pull | PullVariables | AwaitRows | Compute | Push | PushFirstValues | AwaitEnd | WriteLine | UseLast | EndTraining | Export
    | FetchEvaluated | PullRows | EvaluateChunk | ComputeMetrics | PassBarrier | Exit
)  # fmt: skip
Immediate = Send | Learn | Confirm | Forget | GiveUp | Log | Leaving
Instruction = Immediate | Work
