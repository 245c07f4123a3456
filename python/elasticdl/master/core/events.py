"""What happens to a master, and what it is to do: the vocabulary of the masters' machines.

Plain values. The machine takes the time and an event and returns instructions; the runner (`master/running/`) and the simulator carry
them out. Connections are numbers that the runner makes, each higher than all before; what one connection says arrives
in order. At most one `Append` is outstanding at any moment, and nothing that depends on it is sent before `Appended` (rule J1).
"""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from elasticdl.cluster.cluster import ProcessName
from elasticdl.control.protocol.messages import Cut, MasterMessage, MemberMessage
from elasticdl.control.protocol.psmessages import SlotSection
from elasticdl.control.protocol.status import EventKind
from elasticdl.control.protocol.view import MemberId
from elasticdl.data.plan.shard import Position, Shard
from elasticdl.master.core.done import Done
from elasticdl.master.core.records import EvaluatedRecord, Record

# ------------------------------------------------------------------ events


class JournalRead(Struct, frozen=True):
    """First event: all records that exist (perhaps compacted).

    Attributes:
        records: in order.
        length: number of the last one; the first `Append` is `length + 1`.
    """

    records: tuple[Record, ...]
    length: int


class Appended(Struct, frozen=True):
    """The outstanding record is durable and mine (also after an unknown outcome that was read back)."""

    record: Record


class Unwritten(Struct, frozen=True):
    """The record that is to be appended can't be written now; whether it exists is open (J2), and it is tried again until that is known.

    Attributes:
        error: why, and where the journal is, for people.
    """

    error: str


class Conflict(Struct, frozen=True):
    """Another master appended the record of that number: this one is replaced (J2)."""


class ConnectionOpened(Struct, frozen=True):
    """A worker opened a control stream; it may speak (`ProgramFailed`, `FoundShards`) before it registers."""

    connection: int
    member: MemberId
    name: str


class Heard(Struct, frozen=True):
    """A member said something on a connection."""

    connection: int
    message: MemberMessage


class ConnectionLost(Struct, frozen=True):
    """A member's control stream broke."""

    connection: int


class Beat(Struct, frozen=True):
    """The last heartbeat of a member, as the monitor has it; give it again and again, also when none has come lately.

    Attributes:
        member: whose.
        view: its current view.
        step: the step under way.
        progress: `Outstanding.progress`: grows with every piece of work; odd while the member itself has work under way, even while
            it waits for others.
        age: seconds since the beat came.
    """

    member: MemberId
    view: int
    step: int
    progress: int
    age: float


class WorkerEnded(Struct, frozen=True):
    """A worker's process is proven dead (`waitpid`); repeated after a restart of the master.

    Attributes:
        worker: its name, `worker-3-2`.
        cause: for people, `killed by SIGKILL`, `exit code 3`.
    """

    worker: str
    cause: str


class RoomLacking(Struct, frozen=True):
    """So many of the workers' processes that were launched find no room: nobody knows when there will be some."""

    workers: int


class Launched(Struct, frozen=True):
    """Lives of processes run, or were asked to: their names are journalled if they are not yet.

    A life is not held up by that. Until its record is there nothing of it can be in the journal, so that a master which starts another
    process under its name mixes up nobody.
    """

    lives: tuple[ProcessName, ...]


class DataFound(Struct, frozen=True):
    """The master's own reader has opened the data (custom readers run in workers: `FoundShards`); the first finding is journalled."""

    shards: tuple[Shard, ...]
    validation: tuple[Shard, ...] = ()


class StopAsked(Struct, frozen=True):
    """A client wants an early end; answered by `Reply` after the append (D7)."""

    request: int
    reason: str


NOBODY = 0
"""The request of somebody who has been answered; those of clients begin with 1."""


class ScaleAsked(Struct, frozen=True):
    """A client wants another number of workers or parameter servers, None: as many as now; answered by `Reply` after the append."""

    request: int
    workers: int | None
    servers: int | None = None


class GiveUp(Struct, frozen=True):
    """The job can't go on, for example since a worker's crashes exceed the limit: append `failed`.

    Attributes:
        reason: one sentence for people.
        kind: `program`, `bad-input`, `storage` or `lost`.
        worker: who, or empty.
        traceback: or empty.
    """

    reason: str
    kind: str
    worker: str = ""
    traceback: str = ""


class Published(Struct, frozen=True):
    """The result lies at its final path; `error`: why it does not, or None."""

    error: str | None = None


class ManifestWritten(Struct, frozen=True):
    """A snapshot's manifest lies in its directory; `error`: why it does not, or None."""

    number: int
    path: str
    error: str | None = None
    cut: Cut | None = None
    """Of a group's state."""


class Tick(Struct, frozen=True):
    """Time has passed; give it every 25 ms or so (the shortest time that matters is D1's moment of 50 ms)."""


Event = (
    JournalRead | Appended | Unwritten | Conflict | ConnectionOpened | Heard | ConnectionLost | Beat | WorkerEnded | RoomLacking | Launched
    | DataFound | StopAsked | ScaleAsked | GiveUp | Published | ManifestWritten | Tick
)  # fmt: skip

# ------------------------------------------------------------------ instructions


class Append(Struct, frozen=True):
    """Append `record` as number `number` by compare-and-set; outcome `Appended` or `Conflict` (unknown: read back, or try again)."""

    number: int
    record: Record


class Check(Struct, frozen=True):
    """Look whether a record `number`, which is not mine, exists; outcome `Conflict` if so, nothing otherwise."""

    number: int


class Tell(Struct, frozen=True):
    """Send this on a connection."""

    connection: int
    message: MasterMessage


class Reply(Struct, frozen=True):
    """Answer a client's request."""

    request: int
    text: str


class Refuse(Struct, frozen=True):
    """End a connection on which something was said that can't be, and refuse its process: nothing of it was noted.

    Attributes:
        connection: which.
        reason: who said what, and why it can't be.
    """

    connection: int
    reason: str


class Publish(Struct, frozen=True):
    """Give the export at `path` its final name; idempotent, done by every master that reads `finished`; outcome `Published`."""

    path: str


class WriteManifest(Struct, frozen=True):
    """Say in a snapshot's directory what it holds (R27); outcome `ManifestWritten`.

    Attributes:
        number: of the snapshot.
        directory: of all snapshots.
        position: the tasks that were done when it was begun.
        roll_back: the roll-back that it was begun in.
        sections: of each slot the file, and where it lies in that.
        step: all slots have applied the steps before it.
        begun: tasks that are not done, with how many of their first chunks all slots have; of the last one only.
        barriers: that were passed before it.
        best: it is of the last of them, whose metrics were the best so far.
    """

    number: int
    directory: str
    position: Done
    roll_back: int
    sections: tuple[tuple[str, SlotSection], ...]
    step: int
    begun: tuple[tuple[int, int], ...] = ()
    barriers: tuple[EvaluatedRecord, ...] = ()
    best: bool = False


class WriteGroupManifest(Struct, frozen=True):
    """Say in the draft of a group's state what its parts make (D6); outcome `ManifestWritten`.

    Attributes:
        number: of the checkpoint.
        directory: of all.
        cut: whose parts they are.
        position: of the state.
        head: digest of what the state has beside its arrays.
        parts: file, bytes and CRC32C of each, in order.
    """

    number: int
    directory: Path
    cut: Cut
    position: Position
    head: str
    parts: tuple[tuple[str, int, int], ...]


class DropSnapshot(Struct, frozen=True):
    """Remove what is written of a snapshot that was given up: it takes room, and nobody takes it for whole."""

    number: int


class Kill(Struct, frozen=True):
    """SIGKILL a worker that was left out and does not end by itself, or that alone holds the group up; its end comes as `WorkerEnded`."""

    worker: str
    reason: str


class Scale(Struct, frozen=True):
    """From now on the job wants so many workers and servers, None: as many as now.

    Said after a `scale`, and at the start if the journal says so.
    """

    workers: int | None
    servers: int | None = None


class Announce(Struct, frozen=True):
    """Something for people, as it happens: `JobEvent` without its time.

    Attributes:
        kind: what it is about.
        worker: whom it is about, or empty.
        view: view id, 0 = none.
        step: step, 0 = none.
        text: one sentence with the reason.
        seconds: a duration, None if there is none.
        cause: of a recovery or a loss, in a few words for the summary, or empty.
        redone: steps that are done once more, None if the reporter of it counts them.
        values: what was measured, by name.
    """

    kind: EventKind
    worker: str
    view: int
    step: int
    text: str
    seconds: float | None = None
    cause: str = ""
    redone: int | None = None
    values: tuple[tuple[str, float], ...] = ()


class End(Struct, frozen=True):
    """End this master.

    Attributes:
        status: `finished`, `failed` or `replaced` (another master is in charge: touch nothing any more).
        reason: one sentence.
        exit_code: of the job: 0 done, 1 failed, 2 bad input; for `replaced` that of the process only.
    """

    status: str
    reason: str
    exit_code: int


Instruction = (
    Append | Check | Tell | Refuse | Reply | Publish | WriteManifest | WriteGroupManifest | DropSnapshot | Kill | Scale | Announce
    | End
)  # fmt: skip
