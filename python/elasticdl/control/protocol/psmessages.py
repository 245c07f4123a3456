"""The messages of jobs with parameter servers, as plain values; `messages.py` has those of all jobs.

Rule numbers are those of the page on the protocol of parameter servers. Nothing here decides anything.
"""

from __future__ import annotations

from typing import NamedTuple

from msgspec import Struct

from elasticdl.control.protocol.view import MemberId, StateId


class SlotEntry(NamedTuple):
    """A slot's newest entry in the journal, in the order in which the core takes it.

    Attributes:
        slot: number of the slot.
        term: counts the slot's entries, from 1.
        primary_epoch: the term in which the primary took over.
        primary: number of the server that serves it.
        backup: number of the server that has accepted what the primary acknowledges, or None.
        restored: the roll-back by which the primary restores the slot from a snapshot, or 0.
    """

    slot: int
    term: int
    primary_epoch: int
    primary: int
    backup: int | None
    restored: int


class Holding(NamedTuple):
    """A task that a worker computes, and its first chunk that is not settled."""

    task: int
    chunk: int


class SlotAccount(NamedTuple):
    """What a slot's primary has applied (R29).

    Attributes:
        slot: number of the slot.
        primary_epoch: of the data.
        pushes: how many it has applied.
        sum: wrapping sum of the stamps' hashes over them, 32 hexadecimal digits.
    """

    slot: int
    primary_epoch: int
    pushes: int
    sum: str


class SlotSection(NamedTuple):
    """Where a slot lies in a file of a snapshot, and what it is.

    Attributes:
        slot: number of the slot.
        primary_epoch: of the data.
        offset: first byte in the file.
        length: in bytes.
        crc: CRC32C of these bytes.
        version: changes so far.
        low: first task of which the slot remembers anything.
        until: first task of which and of all later ones it holds nothing.
        rows: how many there are.
        pushes: how many it has applied of the tasks of the snapshot's position.
        sum: of their stamps' hashes, 32 hexadecimal digits.
    """

    slot: int
    primary_epoch: int
    offset: int
    length: int
    crc: int
    version: int
    low: int
    until: int
    rows: int
    pushes: int
    sum: str


# ------------------------------------------------------------------ member → master


class Enroll(Struct, frozen=True):
    """Asks to take part; on every new connection again, before anything else but `FoundShards` and `FoundModel`.

    Attributes:
        member: its id.
        name: of its process, `worker-3-2` or `ps-0-1`; the role follows from it.
        address: where a server listens; empty for workers.
        epoch: the highest master epoch that it has seen.
        server: the number that a server was given before, or None.
        holds: the tasks that a worker computes.
        roll_back: the roll-back that these are of.
        leaving: it wants to go.
        follows: a callback of a worker's model follows epochs or evaluations: it has to pass barriers (B5).
    """

    member: MemberId
    name: str
    address: str
    epoch: int
    server: int | None
    holds: tuple[Holding, ...]
    roll_back: int
    leaving: bool
    follows: bool = False


class FoundModel(Struct, frozen=True):
    """What the user's model has on servers, as canonical JSON (`elasticdl.catalog.catalog`); the first one counts and is journalled."""

    catalog: str


class FoundMetrics(Struct, frozen=True):
    """What the result of an evaluation task consists of (`MetricCatalog.text`), the same in all workers; on every new connection again."""

    metrics: str


class Settled(Struct, frozen=True):
    """All chunks of a task before this one are settled; `loss` is the mean of the last one's examples, None if it had none."""

    task: int
    chunk: int
    roll_back: int
    loss: float | None


class TaskDone(Struct, frozen=True):
    """All chunks of a task are settled, of an attempt that began in this roll-back (R22); repeated until it is heard of as done.

    Attributes:
        task: number of the task.
        roll_back: that of the attempt.
        loss: as with `Settled`; None in repetitions.
    """

    task: int
    roll_back: int
    loss: float | None = None


class BarrierPassed(Struct, frozen=True):
    """Callbacks of this worker have passed a barrier and all before it (B5); on every new connection again.

    `stop`: why they ask for the end of training there, empty if they do not.
    """

    state: StateId
    stop: str


class Unreached(Struct, frozen=True):
    """Connections to these servers broke or could not be made (R20)."""

    servers: tuple[int, ...]


class CopyReady(Struct, frozen=True):
    """The receiver of a copy that was ordered in this term has everything (R14, R17)."""

    slot: int
    term: int
    to: int
    hands_over: bool


class Accounts(Struct, frozen=True):
    """What the slots of which a server is the primary have applied, for the auditor, and how many steps it knows to be complete (A3)."""

    slots: tuple[SlotAccount, ...]
    roll_back: int
    steps: int


class SlotsCut(Struct, frozen=True):
    """Slots were written for a snapshot; those of another primary epoch than was asked for are left out. `error`: why none could be."""

    snapshot: int
    path: str
    sections: tuple[SlotSection, ...]
    error: str


class Leave(Struct, frozen=True):
    """A worker has let go of all tasks, or a server wants to be emptied: it waits for `Released`.

    Attributes:
        holds: the tasks that a worker computed.
        roll_back: the roll-back that these are of; what was settled before a later one means nothing (R24).
    """

    holds: tuple[Holding, ...]
    roll_back: int


PsMemberMessage = (
    Enroll
    | FoundModel
    | FoundMetrics
    | Settled
    | TaskDone
    | BarrierPassed
    | Unreached
    | CopyReady
    | Accounts
    | SlotsCut
    | Leave
)

# ------------------------------------------------------------------ master → member


class Enrolled(Struct, frozen=True):
    """Answer to `Enroll`: this is master epoch `epoch`; `server` is a server's number, None for workers."""

    epoch: int
    server: int | None


class Model(Struct, frozen=True):
    """The job's model as it was journalled: canonical JSON of `elasticdl.catalog.catalog`."""

    catalog: str


class Placed(Struct, frozen=True):
    """Where servers are, and the newest entries of slots: all of them on a new connection, later what has changed.

    Attributes:
        servers: numbers of servers, in the order of their addresses.
        addresses: where they listen.
        entries: of slots.
        roll_back: how often the job was rolled back.
        snapshot: manifest of the snapshot from which slots are restored, or empty: they begin anew.
        renumbered: tasks have other numbers than there, and those before this one are done; None: they have the same.
        tasks: how many there are in all epochs. Servers believe nothing of later ones.
    """

    servers: tuple[int, ...]
    addresses: tuple[str, ...]
    entries: tuple[SlotEntry, ...]
    roll_back: int
    snapshot: str
    renumbered: int | None
    tasks: int


class Leased(Struct, frozen=True):
    """Compute this task, from this chunk on."""

    task: int
    chunk: int
    roll_back: int


class Watermark(Struct, frozen=True):
    """All tasks before `low` are done, as of this roll-back (R10); those of `above` too, where a step waits for several tasks (A3)."""

    low: int
    roll_back: int
    above: tuple[int, ...]


class Limits(Struct, frozen=True):
    """What a server may believe of workers in a roll-back: not that more tasks are done, nor that more steps are complete (R10, A3).

    Attributes:
        roll_back: the last one.
        low: all tasks before are done.
        above: of others these are, where a step waits for several tasks.
        steps: so many can be complete, with the tasks that workers may have by now; 0 where each push is applied by itself.
        end: the task behind the last of those that workers may have by now; 0 where each push is applied by itself.
    """

    roll_back: int
    low: int
    above: tuple[int, ...]
    steps: int
    end: int


class Workers(Struct, frozen=True):
    """Names of the workers that a server serves; others wait until they are named."""

    names: tuple[str, ...]


class RevokeTask(Struct, frozen=True):
    """A task needs no more work: it is done, or another worker computes it. Of tasks below the watermark, that tells it."""

    task: int
    roll_back: int


class CopyOrdered(Struct, frozen=True):
    """A server is to copy a slot to another one, as of this term (R13)."""

    slot: int
    term: int
    to: int
    hands_over: bool


class CopiesVoid(Struct, frozen=True):
    """Copies to this server are given up: it is dead."""

    to: int


class CutOrdered(Struct, frozen=True):
    """A server is to write slots, each if it has this primary epoch, to a new file in a directory (R26).

    Attributes:
        snapshot: its number.
        directory: where it lies.
        slots: which to write.
        primary epochs: of each slot, of the data.
        low: all tasks before are done.
        above: tasks beyond that are done, ascending.
        step: all steps before are applied first, and nothing of a later one may be there (A6); 0 where each push is applied by itself.
    """

    snapshot: int
    directory: str
    slots: tuple[int, ...]
    primary_epochs: tuple[int, ...]
    low: int
    above: tuple[int, ...]
    step: int


class AccountsWanted(Struct, frozen=True):
    """A server is to send its `Accounts`: all is applied."""


class DrainRequest(Struct, frozen=True):
    """The job wants fewer servers: this one is to leave, as if it were asked by SIGTERM; nothing kills it before it is empty."""


class WriteResult(Struct, frozen=True):
    """A worker is to write the trained model, and to report `Exported` of state (steps, attempt)."""

    steps: int
    attempt: int


class EndTraining(Struct, frozen=True):
    """All is trained, so many steps in all, and another worker writes the result: callbacks are to hear of it, once in each process."""

    steps: int


PsMasterMessage = (
    Enrolled | Model | Placed | Leased | Watermark | Limits | Workers | RevokeTask | CopyOrdered | CopiesVoid | CutOrdered
    | AccountsWanted | DrainRequest | WriteResult | EndTraining
)  # fmt: skip
