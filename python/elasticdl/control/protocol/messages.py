"""The messages of the control plane, as plain values.

Both ends and the simulator speak in these; `control/transport/` carries them over gRPC. Rule numbers are those of the protocol
note in `docs/design/`. Nothing here decides anything.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from elasticdl.control.protocol.profiling import RecordSteps, StepRecorded
from elasticdl.control.protocol.psmessages import PsMasterMessage, PsMemberMessage
from elasticdl.control.protocol.status import EventKind
from elasticdl.control.protocol.view import MemberId, StateId, View, ViewId
from elasticdl.data.plan.loopplan import LoopPlan
from elasticdl.data.plan.shard import Position, Shard

MetricValues = tuple[tuple[str, float], ...]
"""Metrics of one evaluation: names and values, in the order of the model file."""


class TaskKind(StrEnum):
    """What a task leased to a member is."""

    EVALUATE = "evaluate"
    """Some minibatches of the validation data are evaluated."""
    METRICS = "metrics"
    """Metrics are made of what all tasks of an evaluation have added up."""
    PREDICT = "predict"
    """Some minibatches of data are predicted, and written."""
    PROCESS = "process"
    """A program processes some records."""
    LOAD = "load"
    """What all tasks have written is put into a table; its number follows that of the last task."""


# ------------------------------------------------------------------ member → master


class Report(Struct, frozen=True):
    """What a member holds; part of `Register` and `NextView`.

    Attributes:
        current: id of the view installed last, 0 = none.
        sealed: highest view id in which the member has promised to take no further part; only grows.
        state: id of its state, or None if blank.
        position: position of that state, or None if blank.
        holds: lanes whose chunks of step `state.step + 1` are in its accumulator.
        draining: it wants to leave.
    """

    current: ViewId
    sealed: ViewId
    state: StateId | None
    position: Position | None
    holds: frozenset[int]
    draining: bool


class Register(Struct, frozen=True):
    """Asks to take part; on every new connection again, before anything else but `FoundShards`. Answer: `Welcome`, or a verdict.

    A member that has not registered yet may send `FoundShards`, `Note` and `ProgramFailed` (a model that can't be built): the
    connection itself names it.
    """

    member: MemberId
    name: str
    address: str
    epoch: int
    report: Report


class NextView(Struct, frozen=True):
    """A promise, then a question (S1): everything up to `report.sealed` is over for me; what comes next?"""

    report: Report


class Lost(Struct, frozen=True):
    """A witness: the ring of view `current` broke at `step`; `accused` is whom I blame, if anybody."""

    current: ViewId
    step: int
    accused: MemberId | None
    how: str


class Progress(Struct, frozen=True):
    """What people want to see; decides nothing. Sent by rank 0 of a view, and by a healee when it has healed.

    Attributes:
        state: last committed state.
        position: its position.
        loss: mean loss of the last step's examples, None if it had none or its program has said no loss.
        records: records trained since the job began, along the lineage of this state.
        metrics: further figures by name.
    """

    current: ViewId
    state: StateId
    position: Position
    loss: float | None
    records: int
    metrics: tuple[tuple[str, float], ...] = ()


NOTES = frozenset(
    {
        EventKind.ANSWERED, EventKind.BAD_RECORD, EventKind.COMMITTED_FIRST, EventKind.DIGEST, EventKind.HEALED,
        EventKind.HEALING, EventKind.IDLE_STEP, EventKind.NOTE, EventKind.SEALED, EventKind.SERVING, EventKind.WAITING,
    }
)  # fmt: skip
"""Kinds of notes; events of the others are the master's own."""


class Note(Struct, frozen=True):
    """Something a person (or the chaos harness) may want to know, as it happens; decides nothing.

    Attributes:
        kind: one of `NOTES`.
        view: view id it belongs to, 0 = none.
        step: step it belongs to.
        text: one sentence.
        seconds: a duration, if the note is about one.
    """

    kind: EventKind
    view: ViewId
    step: int
    text: str
    seconds: float | None = None


class Cut(Struct, frozen=True):
    """A copy of the group's state, of which each member of a view makes its part.

    Attributes:
        view: whose members.
        state: of the model.
        passed: the gate of the state was passed before.
    """

    view: ViewId
    state: StateId
    passed: bool

    def __str__(self) -> str:
        passed = " passed" if self.passed else ""
        return f"{self.state.step} {self.state.view} {self.view}{passed}"

    @property
    def age(self) -> tuple[int, bool]:
        """Return what is higher in later cuts of one lineage."""
        return self.state.step, self.passed


class Saved(Struct, frozen=True):
    """This member's part of a cut is written, or can't be; repeated until acknowledged, while the view lasts (D6).

    Attributes:
        cut: of which.
        position: of the state.
        path: where the part lies.
        first: of the bytes of the state's arrays, the first one that is in the part.
        length: how many are.
        size: how many there are in all.
        crc: CRC32C of the part.
        head: digest of what the state has beside these bytes, equal in all members.
        error: why the part can't be written; empty if it is.
    """

    cut: Cut
    position: Position
    path: str
    first: int = 0
    length: int = 0
    size: int = 0
    crc: int = 0
    head: str = ""
    error: str = ""


class Exported(Struct, frozen=True):
    """The result lies at `path` (not yet its final name); repeated until answered (D7).

    `metrics` are those of the last evaluation, empty if none; `digest` names the bits of the final state.
    """

    view: ViewId
    state: StateId
    path: str
    digest: str
    metrics: tuple[tuple[str, float], ...] = ()


class StopJob(Struct, frozen=True):
    """An early end is wanted; repeated until acknowledged, which is after the append (D7)."""

    reason: str


class ProgramFailed(Struct, frozen=True):
    """A program error (D10): kind, the chunk if any, the traceback (at most 64 KiB).

    `kind` is `program`, `bad-input`, `nan`, `unwritable` or `storage`.
    `step` is the last one that the member committed, 0 if none: the master may not have heard of it yet.
    `signature` is the exception's type and last frame in the user's code, to recognise the same error in a second life.
    """

    kind: str
    signature: str
    chunk: str
    traceback: str
    step: int = 0


class FoundShards(Struct, frozen=True):
    """What `create_shards` of a custom reader returned, or what the program of a custom training loop says of its data.

    Sent before `Register`, and only by workers of such jobs. The first one counts and is journalled; every member gets it back as `Data`,
    so that all order the same data. A program whose `plan` differs from the journalled one ends the job.

    Attributes:
        shards: the training data; of a loop those of its plan.
        validation: what is evaluated, none without it.
        plan: of a custom training loop, None with model files.
    """

    shards: tuple[Shard, ...]
    validation: tuple[Shard, ...] = ()
    plan: LoopPlan | None = None


class AtGate(Struct, frozen=True):
    """This member of `view` waits at the gate of `state`; said once on each connection and in each view (G3).

    In a job that trains nothing there are no views, and it says that the worker can do tasks.

    `metrics`: what a task's result consists of, equal in all members (`MetricCatalog.text`).
    """

    view: ViewId
    state: StateId
    metrics: str


class TaskResult(Struct, frozen=True):
    """What an evaluation task of `state` has added up, or, with an empty body, that a task's predictions are written.

    Said again on each connection and in each view while the gate is closed (G3).
    """

    state: StateId
    task: int
    body: bytes


class Evaluated(Struct, frozen=True):
    """Metrics made of the results of all tasks of `state`; repeated as results are."""

    state: StateId
    values: MetricValues


MemberMessage = (
    FoundShards | Register | NextView | Lost | Progress | Note | Saved | Exported | StopJob | ProgramFailed
    | AtGate | TaskResult | Evaluated | StepRecorded | PsMemberMessage
)  # fmt: skip

# ------------------------------------------------------------------ master → member


class Welcome(Struct, frozen=True):
    """Answer to `Register`: this is master epoch `epoch`."""

    epoch: int


class Data(Struct, frozen=True):
    """The job's data, equal for all members; sent on every connection as soon as it is known, also before `Register`.

    `validation`: what is evaluated while the model is trained, if anything is. `plan`: of a custom training loop, as its first worker said.
    """

    shards: tuple[Shard, ...]
    validation: tuple[Shard, ...] = ()
    plan: LoopPlan | None = None


class UseCheckpoint(Struct, frozen=True):
    """The checkpoint with whose weights a job evaluates or predicts, equal for all members; sent on every connection, also before `Enroll`.

    `manifest`: where that of the checkpoint lies.
    """

    manifest: str


class NewView(Struct, frozen=True):
    """The whole record; its digest is computed by both ends and compared by `hello`."""

    view: View


class Pending(Struct, frozen=True):
    """A change is wanted at the next step boundary: set the flag in the trailers while `current` is `view`."""

    view: ViewId


class Stop(Struct, frozen=True):
    """Seal everything up to `view` now, also a view that you have not received."""

    view: ViewId


class Acknowledged(Struct, frozen=True):
    """`what` (`stop_job`, `failed`, `saved_as` or `unsaved_as` of a cut) was journalled, or refused for good: stop repeating it."""

    what: str


SLOW = "storage is slower than they are asked for"
"""Error of a part of which no copy was made, because earlier ones are not written yet."""


def saved_as(cut: Cut) -> str:
    """Return how `Acknowledged` says that a cut is journalled: a later one may be on its way meanwhile."""
    return f"saved {cut}"


def unsaved_as(cut: Cut) -> str:
    """Return how `Acknowledged` says that a cut was given up."""
    return f"unsaved {cut}"


class TaskLeased(Struct, frozen=True):
    """A member at the gate of `state` is to do this task; `body`: of `METRICS`, what all tasks have added up, else empty."""

    kind: TaskKind
    state: StateId
    task: int
    body: bytes


class Barrier(Struct, frozen=True):
    """Where a gate of a job with parameter servers lies (B5).

    Attributes:
        roll_back: in which the journal says that it is passed: a later one may forget it.
        epoch: of the last task before it.
        epoch_ended: that epoch ends there.
    """

    roll_back: int
    epoch: int
    epoch_ended: bool


class GateOpen(Struct, frozen=True):
    """The gate of `state` is open: `values` are journalled; None: the job stops, and this state is not evaluated any more (G5).

    With parameter servers None says that nothing is evaluated at this `barrier`: an epoch ends there, and callbacks hear of it.
    """

    state: StateId
    values: MetricValues | None
    barrier: Barrier | None = None


class Verdict(Struct, frozen=True):
    """Base of the four answers that end a member."""


class Evicted(Verdict, frozen=True):
    """Drop the state and exit with code 3; a new life may join (M8, D8)."""

    reason: str


class Released(Verdict, frozen=True):
    """A drained member may exit, with the code of a release (D5)."""

    reason: str


class Finished(Verdict, frozen=True):
    """`finished` is journalled: exit with code 0."""

    reason: str


class Failed(Verdict, frozen=True):
    """`failed` is journalled: exit."""

    reason: str


MasterMessage = (
    Welcome | Data | UseCheckpoint | NewView | Pending | Stop | Acknowledged | TaskLeased | GateOpen | Evicted | Released | Finished
    | Failed | RecordSteps | PsMasterMessage
)  # fmt: skip
