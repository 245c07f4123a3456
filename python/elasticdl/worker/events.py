"""What happens to a synchronous member, and what it is to do: the vocabulary of `worker/allreduce/machine.py`.

Plain values. The state machine takes an event and returns instructions; the runner (`worker/allreduce/runner.py`) and the simulator carry
them out and bring their outcomes back as events. *Work* is what takes time; its outcome always comes back, also when the member has
sealed meanwhile (then usually as `WorkCancelled`), and no view is installed before it has. At most one piece of work is outstanding at
any moment, with one exception: a joiner that owns no lane in its first step gets `Contribute(blank=True)` while its `Heal` still runs, so
that nobody waits for the transfer. If a seal cancels both, each comes back on its own (`WorkCancelled` twice is enough).

What happens to every worker is here, too; `worker/ps/events.py` has the rest of what happens to those with parameter servers.
"""

from __future__ import annotations

from msgspec import Struct

from elasticdl.control.protocol.messages import Cut, MasterMessage, MemberMessage, MetricValues, Saved
from elasticdl.control.protocol.view import MemberId, StateId, View, ViewId
from elasticdl.data.plan.shard import Position


class Trailer(Struct, frozen=True):
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


class Contribution(Struct, frozen=True):
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


class Connected(Struct, frozen=True):
    """The control stream to a master is open (again)."""


class Disconnected(Struct, frozen=True):
    """The control stream broke."""


class Received(Struct, frozen=True):
    """A message of the master came in."""

    message: MasterMessage


class ChunkComputed(Struct, frozen=True):
    """Work done: the chunk of `lane` for step `state.step + 1` is in the accumulator; `bad` of its records were skipped as corrupt.

    `loss`: the sum of its examples' losses, None where nobody says it.
    """

    lane: int
    records: int
    examples: float
    loss: float | None
    bad: int = 0


class RingCompleted(Struct, frozen=True):
    """Work done: every member contributed to `step` of `view`; the result lies in the runner's result buffer."""

    view: ViewId
    step: int
    trailer: Trailer


class RingFailed(Struct, frozen=True):
    """Work done: the ring of `view` broke at `step`."""

    view: ViewId
    step: int
    accused: MemberId | None
    how: str


class Applied(Struct, frozen=True):
    """Work done: the commit of `state` has been applied to the model; `stop`: why the user's program wants this to be the last step."""

    state: StateId
    stop: str = ""


class Healed(Struct, frozen=True):
    """Work done: the state is in place (transferred, loaded from a snapshot or made).

    `passed`: the member that gave it had passed the state's gate, so that what callbacks did there is part of it (G2).
    """

    view: ViewId
    state: StateId
    position: Position
    passed: bool = False


class HealFailed(Struct, frozen=True):
    """Work done: the transfer of `view` failed."""

    view: ViewId
    how: str


class HealeeLeft(Struct, frozen=True):
    """A member that heals from this one has acknowledged, sealed or died: it no longer holds up a commit (M5, M7)."""

    view: ViewId
    member: MemberId
    acknowledged: bool


class ChunkEvaluated(Struct, frozen=True):
    """Work done: a minibatch is in the sums of its task; with the last one of the task these sums are in `body`, else that is None."""

    state: StateId
    task: int
    chunk: int
    body: bytes | None


class MetricsComputed(Struct, frozen=True):
    """Work done: the metrics of `state`."""

    state: StateId
    values: MetricValues


class GatePassed(Struct, frozen=True):
    """Work done: callbacks have had the metrics of `state`; `is_best`: those are better than all before, and checkpoints are chosen so."""

    state: StateId
    is_best: bool = False


class ExportWritten(Struct, frozen=True):
    """Work done: the result of `view` lies at `path`."""

    view: ViewId
    path: str
    digest: str
    metrics: tuple[tuple[str, float], ...]


class PartWritten(Struct, frozen=True):
    """This member's part of a cut is written, or can't be."""

    saved: Saved


class WorkCancelled(Struct, frozen=True):
    """The outstanding piece of work was given up, with no effect."""


class DrainRequested(Struct, frozen=True):
    """SIGTERM: leave at the next step boundary."""


class StopRequested(Struct, frozen=True):
    """This member wants an early end of the job (early stopping)."""

    reason: str


class ProgramError(Struct, frozen=True):
    """The user's program raised (never: a broken ring, a seal, an eviction)."""

    kind: str
    signature: str
    chunk: str
    traceback: str


class Tick(Struct, frozen=True):
    """Time has passed; the machine repeats what is unanswered."""


Event = (
    Connected | Disconnected | Received | ChunkComputed | RingCompleted | RingFailed | Applied | Healed | HealFailed
    | HealeeLeft | ChunkEvaluated | MetricsComputed | GatePassed | ExportWritten | PartWritten | WorkCancelled | DrainRequested
    | StopRequested | ProgramError | Tick
)  # fmt: skip

News = Connected | Disconnected | Received | DrainRequested | Tick
"""What comes from outside of a worker's runner, whichever way the job trains."""


# ------------------------------------------------------------------ instructions, at once


class Send(Struct, frozen=True):
    """Send this on the control stream (dropped if there is none; the machine repeats what matters)."""

    message: MemberMessage


class OpenView(Struct, frozen=True):
    """A view was installed: connect its data plane when first needed, write the audit's `base` line; older views are closed."""

    view: View
    keep: bool
    """Whether the accumulator stays (M2); otherwise zero it."""


class CloseView(Struct, frozen=True):
    """Sealed: close the data plane of every view up to `sealed`, cancel ring, transfers and serving.

    `linger`: after a completed ring, flush and half-close, so that neighbours lose nothing.
    """

    sealed: ViewId
    linger: bool


class ServeState(Struct, frozen=True):
    """Donor: serve the current state (exactly `state`) to `healees` in view `view`."""

    view: ViewId
    state: StateId
    position: Position
    healees: tuple[MemberId, ...]


class TakePart(Struct, frozen=True):
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


class EndTraining(Struct, frozen=True):
    """Training is over: run what callbacks do then, before the result is written; comes once at most."""


class Exit(Struct, frozen=True):
    """End this process: 0 released or finished, 1 failed, 3 evicted."""

    code: int
    reason: str


# ------------------------------------------------------------------ instructions, work


class Heal(Struct, frozen=True):
    """Work: get the state `state`; outcome Healed, HealFailed or WorkCancelled.

    `source`: the donor's member id, `initial` (make the first weights) or `snapshot` (load `path`).
    """

    view: ViewId
    state: StateId
    position: Position
    source: str
    path: str | None


class Compute(Struct, frozen=True):
    """Work: add the chunk `position.chunk` of the wave's task in `lane` to the accumulator; outcome ChunkComputed or WorkCancelled."""

    step: int
    position: Position
    lane: int


class Contribute(Struct, frozen=True):
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


class Commit(Struct, frozen=True):
    """Work: write the audit's `committed` line, then apply the ring's result; outcome Applied.

    Can't be cancelled: the state counts as committed from here on. `position` is the one after the step; `epoch_ended` tells
    callbacks that the step was the last of its epoch.
    """

    view: ViewId
    state: StateId
    position: Position
    trailer: Trailer
    epoch_ended: bool


class Evaluate(Struct, frozen=True):
    """Work: add a minibatch of an evaluation task to the task's sums, which its first one begins; outcome ChunkEvaluated or WorkCancelled.

    The sums of a task that was cancelled between two minibatches stay while `state` does. `following`: the task after it, if one is
    leased: its records are read ahead.
    """

    state: StateId
    task: int
    chunk: int
    following: int | None = None


class ComputeMetrics(Struct, frozen=True):
    """Work: make metrics of what all tasks of an evaluation have added up (`body`); outcome MetricsComputed or WorkCancelled."""

    state: StateId
    body: bytes


class PassGate(Struct, frozen=True):
    """Work: give the metrics of `state` to callbacks; None: the job stops without. Outcome GatePassed; can't be cancelled."""

    state: StateId
    values: MetricValues | None


class Export(Struct, frozen=True):
    """Work: write the result of the base `state` under a name that contains it; outcome ExportWritten or WorkCancelled."""

    view: ViewId
    state: StateId


Work = Heal | Compute | Contribute | Commit | Evaluate | ComputeMetrics | PassGate | Export
Instruction = Send | OpenView | CloseView | ServeState | TakePart | EndTraining | Exit | Work
