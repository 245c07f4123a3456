"""What happens to a synchronous member, and what it is to do: the vocabulary of `worker/allreduce/machine.py`.

Plain values. The state machine takes an event and returns instructions; the runner (`worker/allreduce/runner.py`) and the simulator carry
them out and bring their outcomes back as events. *Work* is what takes time; its outcome always comes back, also when the member has
sealed meanwhile (then usually as `WorkCancelled`), and no view is installed before it has. At most one piece of work is outstanding at
any moment, with one exception: a joiner that owns no lane in its first step gets `Contribute(blank=True)` while its `Heal` still runs, so
that nobody waits for the transfer. If a seal cancels both, each comes back on its own (`WorkCancelled` twice is enough).

What happens to every worker is here, too; `worker/ps/events.py` has the rest of what happens to those with parameter servers.
"""

from __future__ import annotations

from dataclasses import dataclass

from elasticdl.control.protocol.messages import Cut, MasterMessage, MemberMessage, MetricValues, Saved
from elasticdl.control.protocol.view import MemberId, StateId, View, ViewId
from elasticdl.data.plan.shard import Position


@dataclass(frozen=True, slots=True)
class Trailer:
    """Sums over all members that a ring carries beside the gradient; equal in all members.

    Attributes:
        records: records read (the audit's figure).
        examples: examples that `feed` made of them (the divisor).
        loss: sum of the losses of those examples whose loss is known.
        loss_examples: number of these: programs may say no loss, or not in each pass.
        flag: how many members know that a change of view is pending.
        contributors: per lane, how many members contributed it; must be 1 each (M5).
    """

    records: int
    examples: float
    loss: float
    loss_examples: float
    flag: int
    contributors: tuple[int, ...]

    @property
    def mean_loss(self) -> float | None:
        """Return the mean loss of the step, None if none is known."""
        return self.loss / self.loss_examples if self.loss_examples else None


@dataclass(frozen=True, slots=True)
class Contribution:
    """One chunk in a member's accumulator, as the audit wants it.

    Attributes:
        lane: its lane.
        task: the task's number.
        chunk: its number in the task.
        records: records of its range.
        bad: those of them that were skipped as corrupt.
    """

    lane: int
    task: int
    chunk: int
    records: int
    bad: int = 0


# ------------------------------------------------------------------ events


@dataclass(frozen=True, slots=True)
class Connected:
    """The control stream to a master is open (again)."""


@dataclass(frozen=True, slots=True)
class Disconnected:
    """The control stream broke."""


@dataclass(frozen=True, slots=True)
class Received:
    """A message of the master came in."""

    message: MasterMessage


@dataclass(frozen=True, slots=True)
class ChunkComputed:
    """Work done: the chunk of `lane` for step `state.step + 1` is in the accumulator; `bad` of its records were skipped as corrupt.

    `loss`: the sum of its examples' losses, None where nobody says it.
    """

    lane: int
    records: int
    examples: float
    loss: float | None
    bad: int = 0


@dataclass(frozen=True, slots=True)
class RingCompleted:
    """Work done: every member contributed to `step` of `view`; the result lies in the runner's result buffer."""

    view: ViewId
    step: int
    trailer: Trailer


@dataclass(frozen=True, slots=True)
class RingFailed:
    """Work done: the ring of `view` broke at `step`."""

    view: ViewId
    step: int
    accused: MemberId | None
    how: str


@dataclass(frozen=True, slots=True)
class Applied:
    """Work done: the commit of `state` has been applied to the model; `stop`: why the user's program wants this to be the last step."""

    state: StateId
    stop: str = ""


@dataclass(frozen=True, slots=True)
class Healed:
    """Work done: the state is in place (transferred, loaded from a snapshot or made).

    `passed`: the member that gave it had passed the state's gate, so that what callbacks did there is part of it (G2).
    """

    view: ViewId
    state: StateId
    position: Position
    passed: bool = False


@dataclass(frozen=True, slots=True)
class HealFailed:
    """Work done: the transfer of `view` failed."""

    view: ViewId
    how: str


@dataclass(frozen=True, slots=True)
class HealeeLeft:
    """A member that heals from this one has acknowledged, sealed or died: it no longer holds up a commit (M5, M7)."""

    view: ViewId
    member: MemberId
    acknowledged: bool


@dataclass(frozen=True, slots=True)
class ChunkEvaluated:
    """Work done: a minibatch is in the sums of its task; with the last one of the task these sums are in `body`, else that is None."""

    state: StateId
    task: int
    chunk: int
    body: bytes | None


@dataclass(frozen=True, slots=True)
class MetricsComputed:
    """Work done: the metrics of `state`."""

    state: StateId
    values: MetricValues


@dataclass(frozen=True, slots=True)
class GatePassed:
    """Work done: callbacks have had the metrics of `state`; `is_best`: those are better than all before, and checkpoints are chosen so."""

    state: StateId
    is_best: bool = False


@dataclass(frozen=True, slots=True)
class ExportWritten:
    """Work done: the result of `view` lies at `path`."""

    view: ViewId
    path: str
    digest: str
    metrics: tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True)
class PartWritten:
    """This member's part of a cut is written, or can't be."""

    saved: Saved


@dataclass(frozen=True, slots=True)
class WorkCancelled:
    """The outstanding piece of work was given up, with no effect."""


@dataclass(frozen=True, slots=True)
class DrainRequested:
    """SIGTERM: leave at the next step boundary."""


@dataclass(frozen=True, slots=True)
class StopRequested:
    """This member wants an early end of the job (early stopping)."""

    reason: str


@dataclass(frozen=True, slots=True)
class ProgramError:
    """The user's program raised (never: a broken ring, a seal, an eviction)."""

    kind: str
    signature: str
    chunk: str
    traceback: str


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed; the machine repeats what is unanswered."""


Event = (
    Connected | Disconnected | Received | ChunkComputed | RingCompleted | RingFailed | Applied | Healed | HealFailed
    | HealeeLeft | ChunkEvaluated | MetricsComputed | GatePassed | ExportWritten | PartWritten | WorkCancelled | DrainRequested
    | StopRequested | ProgramError | Tick
)  # fmt: skip

News = Connected | Disconnected | Received | DrainRequested | Tick
"""What comes from outside of a worker's runner, whichever way the job trains."""


# ------------------------------------------------------------------ instructions, at once


@dataclass(frozen=True, slots=True)
class Send:
    """Send this on the control stream (dropped if there is none; the machine repeats what matters)."""

    message: MemberMessage


@dataclass(frozen=True, slots=True)
class OpenView:
    """A view was installed: connect its data plane when first needed, write the audit's `base` line; older views are closed."""

    view: View
    keep: bool
    """Whether the accumulator stays (M2); otherwise zero it."""


@dataclass(frozen=True, slots=True)
class CloseView:
    """Sealed: close the data plane of every view up to `sealed`, cancel ring, transfers and serving.

    `linger`: after a completed ring, flush and half-close, so that neighbours lose nothing.
    """

    sealed: ViewId
    linger: bool


@dataclass(frozen=True, slots=True)
class ServeState:
    """Donor: serve the current state (exactly `state`) to `healees` in view `view`."""

    view: ViewId
    state: StateId
    position: Position
    healees: tuple[MemberId, ...]


@dataclass(frozen=True, slots=True)
class TakePart:
    """Copy this member's part of the current state now, write it beside the other members' parts, report `PartWritten`.

    Attributes:
        cut: of which it is a part.
        position: of the state.
        rank: the member's place in the view.
        members: how many the view has.
    """

    cut: Cut
    position: Position
    rank: int
    members: int


@dataclass(frozen=True, slots=True)
class EndTraining:
    """Training is over: run what callbacks do then, before the result is written; comes once at most."""


@dataclass(frozen=True, slots=True)
class Exit:
    """End this process: 0 released or finished, 1 failed, 3 evicted."""

    code: int
    reason: str


# ------------------------------------------------------------------ instructions, work


@dataclass(frozen=True, slots=True)
class Heal:
    """Work: get the state `state`; outcome Healed, HealFailed or WorkCancelled.

    `source`: the donor's member id, `initial` (make the first weights) or `snapshot` (load `path`).
    """

    view: ViewId
    state: StateId
    position: Position
    source: str
    path: str | None


@dataclass(frozen=True, slots=True)
class Compute:
    """Work: add the chunk `position.chunk` of the wave's task in `lane` to the accumulator; outcome ChunkComputed or WorkCancelled."""

    step: int
    position: Position
    lane: int


@dataclass(frozen=True, slots=True)
class Contribute:
    """Work: write the audit's `contributed` lines, then give accumulator and trailer to the ring.

    Outcome RingCompleted, RingFailed or WorkCancelled.
    `blank`: own no lane and hold no state yet (a joiner): give zeros.
    `lanes`: K of the step, the length of the trailer's `contributors`.
    """

    view: ViewId
    step: int
    lanes: int
    lines: tuple[Contribution, ...]
    trailer: Trailer
    blank: bool


@dataclass(frozen=True, slots=True)
class Commit:
    """Work: write the audit's `committed` line, then apply the ring's result; outcome Applied.

    Can't be cancelled: the state counts as committed from here on. `position` is the one after the step; `epoch_ended` tells
    callbacks that the step was the last of its epoch.
    """

    view: ViewId
    state: StateId
    position: Position
    trailer: Trailer
    epoch_ended: bool


@dataclass(frozen=True, slots=True)
class Evaluate:
    """Work: add a minibatch of an evaluation task to the task's sums, which its first one begins; outcome ChunkEvaluated or WorkCancelled.

    The sums of a task that was cancelled between two minibatches stay while `state` does. `following`: the task after it, if one is
    leased: its records are read ahead.
    """

    state: StateId
    task: int
    chunk: int
    following: int | None = None


@dataclass(frozen=True, slots=True)
class ComputeMetrics:
    """Work: make metrics of what all tasks of an evaluation have added up (`body`); outcome MetricsComputed or WorkCancelled."""

    state: StateId
    body: bytes


@dataclass(frozen=True, slots=True)
class PassGate:
    """Work: give the metrics of `state` to callbacks; None: the job stops without. Outcome GatePassed; can't be cancelled."""

    state: StateId
    values: MetricValues | None


@dataclass(frozen=True, slots=True)
class Export:
    """Work: write the result of the base `state` under a name that contains it; outcome ExportWritten or WorkCancelled."""

    view: ViewId
    state: StateId


Work = Heal | Compute | Contribute | Commit | Evaluate | ComputeMetrics | PassGate | Export
Instruction = Send | OpenView | CloseView | ServeState | TakePart | EndTraining | Exit | Work
