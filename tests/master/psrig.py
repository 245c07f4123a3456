"""A master of a job with parameter servers under control: events in, instructions out, a journal that takes everything at once."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from elasticdl.checkpoint.layout import draft_of
from elasticdl.control.protocol.frozen import replace
from elasticdl.control.protocol.messages import (
    Exported,
    MasterMessage,
    MemberMessage,
)
from elasticdl.control.protocol.psmessages import (
    Accounts,
    CopyOrdered,
    CopyReady,
    CutOrdered,
    Enroll,
    Enrolled,
    FoundModel,
    Holding,
    Leased,
    SlotAccount,
    SlotsCut,
    SlotSection,
    TaskDone,
    WriteResult,
)
from elasticdl.control.protocol.status import EventKind
from elasticdl.control.protocol.view import MemberId, StateId, ViewId
from elasticdl.data.plan.evaluation import EvaluationPlan
from elasticdl.data.plan.ledger import Ledger
from elasticdl.data.plan.shard import Shard
from elasticdl.data.plan.tasks import TaskOrder
from elasticdl.files.output import unpublished_path
from elasticdl.master.core import events
from elasticdl.master.core.done import Done, TaskNumber
from elasticdl.master.core.records import (
    Record,
    ResumedRecord,
)
from elasticdl.master.core.witnesses import Times
from elasticdl.master.ps.machine import PsMaster
from elasticdl.master.ps.reported import BATCH_SECONDS
from elasticdl.master.ps.settings import Settings
from elasticdl.spec.grammar import best_metric
from elasticdl.spec.jobspec import PsRestore
from tests.master.models import model_of

SLOTS = 4


MODEL = model_of(SLOTS)


OUTPUT = Path("/results/model.keras")


SHARDS = (Shard("data", 0, 80),)


"""Ten tasks of two chunks of four records."""


M = TypeVar("M")


def order(
    shards: tuple[Shard, ...],
    max_step: int = 0,
    wave: int = 1,
    evaluation: EvaluationPlan | None = None,
    epochs: int = 1,
) -> TaskOrder:
    return TaskOrder(Ledger(shards, 8, 4, 1, False), epochs, max_step, wave, evaluation)


EVALUATION = EvaluationPlan([Shard("held out", 0, 8)], 4, 5, True)
"""Two tasks each 5 steps: at the tasks 3, 5 and 8, and at the end."""


class Rig:
    """One master after the other, a journal, and connections by name."""

    def __init__(
        self,
        servers: int = 2,
        replicas: int = 2,
        snapshots: str = "",
        checkpoint_steps: int = 0,
        resumed: ResumedRecord | None = None,
        max_step: int = 0,
        restore: PsRestore = PsRestore.REDO,
        wave: int = 0,
        evaluation: EvaluationPlan | None = None,
        follows: bool = False,
        epochs: int = 1,
        best: str = "",
    ) -> None:
        """`follows`: callbacks of workers follow epochs."""
        self.follows = follows
        self.settings = Settings(
            snapshots=snapshots,
            checkpoint_steps=checkpoint_steps,
            lasting=snapshots == "/checkpoints",
            checkpoint_best=best_metric(best) if best else None,
            resume=None if resumed is None else lambda _: resumed,
            workers=2,
            minimum=1,
            relaunches=1,
            plan=lambda shards, _: order(shards, max_step, max(1, wave), evaluation, epochs),
            times=Times(),
            servers=servers,
            replicas=replicas,
            restore=restore,
            accumulates=wave > 0,
            output=OUTPUT,
        )
        self.shards = SHARDS
        self.journal: list[Record] = []
        self.now = 0.0
        self.connections: dict[str, int] = {}
        self.epochs: dict[str, int] = {}
        """Of the last master that each process has seen."""
        self.silent: set[str] = set()
        self.numbers = iter(range(1, 1000))
        self.begin()

    def begin(self) -> None:
        """Start a master: the first, or one that comes back."""
        self.master = PsMaster(self.settings)
        self.told: list[tuple[str, MasterMessage]] = []
        self.out: list[events.Instruction] = []
        self.refused: list[tuple[str, str]] = []
        self.connections = {}
        self.event(events.JournalRead(tuple(self.journal), len(self.journal)))

    def event(self, event: events.Event) -> None:
        waiting = [event]
        while waiting:
            self.master, instructions = self.master.handle(self.now, waiting.pop(0))
            for instruction in instructions:
                self.out.append(instruction)
                match instruction:
                    case events.Append(number, record):
                        assert number == len(self.journal) + 1
                        self.journal.append(record)
                        waiting.append(events.Appended(record))
                    case events.Tell(connection, message):
                        name = next(name for name, at in self.connections.items() if at == connection)
                        self.told.append((name, message))
                        if isinstance(message, Enrolled):
                            self.epochs[name] = message.epoch
                    case events.Refuse(connection, reason):
                        name = next(name for name, at in self.connections.items() if at == connection)
                        self.refused.append((name, reason))

    def tick(self, seconds: float = 0.2) -> None:
        """Let time pass while everybody who is connected sends heartbeats."""
        until = self.now + seconds
        while self.now < until:
            self.now += 0.1
            for name in self.connections.keys() - self.silent:
                self.event(events.Beat(member(name), 0, 0, 0, 0.0))
            self.event(events.Tick())

    def connect(
        self,
        name: str,
        holds: tuple[Holding, ...] = (),
        server: int | None = None,
        *,
        leaving: bool = False,
    ) -> None:
        self.connections[name] = next(self.numbers)
        self.event(events.ConnectionOpened(self.connections[name], member(name), name))
        roll_back = self.master.journal.roll_back
        epoch = self.epochs.get(name, 0)
        enroll = Enroll(member(name), name, f"unix:/{name}", epoch, server, holds, roll_back, leaving)
        follows = self.follows and name.startswith("worker")
        self.say(name, replace(enroll, follows=follows))

    def say(self, name: str, message: MemberMessage) -> None:
        self.event(events.Heard(self.connections[name], message))

    def cut(self, name: str, snapshot: int, file: str, sections: tuple[SlotSection, ...], error: str) -> None:
        """Let a server say that it has written slots where it was asked to."""
        path = draft_of(Path(self.settings.snapshots), snapshot) / file
        self.say(name, SlotsCut(snapshot, str(path), sections, error))

    def disconnect(self, name: str) -> None:
        self.event(events.ConnectionLost(self.connections.pop(name)))

    def die(self, name: str) -> None:
        if name in self.connections:
            self.disconnect(name)
        self.event(events.WorkerEnded(name, "killed by SIGKILL"))

    def heard(self, name: str, kind: type[M]) -> list[M]:
        """Return what a process was told of one kind, once."""
        found = [one for one in self.told if one[0] == name and isinstance(one[1], kind)]
        self.told = [one for one in self.told if one not in found]
        return [message for _, message in found]  # type: ignore[misc]

    def start(self, *workers: str) -> None:
        """Bring a job to its first leases."""
        self.event(events.DataFound(self.shards))
        for index in range(self.settings.servers):
            self.connect(f"ps-{index}-1")
        for worker in workers:
            self.connect(worker)
            self.say(worker, FoundModel(MODEL))

    def finish(self, name: str, *tasks: int) -> None:
        for task in tasks:
            self.say(name, TaskDone(task, self.master.journal.roll_back))
        self.tick(BATCH_SECONDS + 0.1)

    def announced(self, kind: EventKind) -> list[events.Announce]:
        return [one for one in self.out if isinstance(one, events.Announce) and one.kind == kind]


def result(steps: int, attempt: int) -> Exported:
    path = unpublished_path(OUTPUT, steps, attempt)
    return Exported(ViewId(0), StateId(steps, attempt), path, "digest")


def member(name: str) -> MemberId:
    return MemberId(name.ljust(32, "x"))


def copied(rig: Rig) -> None:
    """Let all copies that are ordered come to their end."""
    for _ in range(20):
        rig.tick()
        for name in list(rig.connections):
            for one in rig.heard(name, CopyOrdered):
                rig.say(name, CopyReady(one.slot, one.term, one.to, one.hands_over))


def section(slot: int, primary_epoch: int, until: int = 2) -> SlotSection:
    return SlotSection(slot, primary_epoch, 0, 8, 1, 1, 0, until, 1, 1, "0" * 32)


def write_cut(rig: Rig, until: int = 2) -> None:
    """Let all servers write what they are to write, which holds tasks up to `until`, and the master its manifest."""
    cut = rig.master.journal.cut
    assert cut is not None
    cut_slots(rig, until)
    rig.event(events.ManifestWritten(cut.number, f"/checkpoints/checkpoint-{cut.number}/manifest.json"))


def cut_slots(rig: Rig, until: int) -> None:
    """Let all servers write what they are to write, which holds tasks up to `until`."""
    for index in range(rig.settings.servers):
        for told in rig.heard(f"ps-{index}-1", CutOrdered):
            pairs = zip(told.slots, told.primary_epochs, strict=True)
            sections = tuple(section(slot, primary_epoch, until) for slot, primary_epoch in pairs)
            rig.cut(f"ps-{index}-1", told.snapshot, f"{index}", sections, "")


def end(rig: Rig) -> None:
    """Let the job come to its end but for a last checkpoint."""
    train_all(rig)
    (wanted,) = rig.heard("worker-0-1", WriteResult)
    rig.say("worker-0-1", result(wanted.steps, wanted.attempt))
    rig.say("ps-0-1", accounts_of(rig, 0))
    rig.say("ps-1-1", accounts_of(rig, 1))


def resumed(renumbered: TaskNumber | None = None) -> ResumedRecord:
    position = Done(TaskNumber(4), (TaskNumber(6),))
    return ResumedRecord(7, "/checkpoints/checkpoint-5/manifest.json", position, 3, renumbered, MODEL)


def train_all(rig: Rig) -> None:
    for _ in range(10):
        for lease in rig.heard("worker-0-1", Leased):
            rig.say("worker-0-1", TaskDone(lease.task, lease.roll_back))
        rig.tick()


def accounts_of(rig: Rig, server: int, steps: int = 0) -> Accounts:
    journal = rig.master.journal
    slots = tuple(
        SlotAccount(slot, entry.primary_epoch, 20, "0" * 32)
        for slot, entry in enumerate(journal.entries)
        if entry.primary == server
    )
    return Accounts(slots, journal.roll_back, steps)


def leased(rig: Rig, worker: str) -> list[int]:
    return [lease.task for lease in rig.heard(worker, Leased)]


def cut_in_waves(wave: int = 4) -> Rig:
    """Bring a job to where slots are cut after its first wave."""
    rig = Rig(replicas=1, snapshots="/checkpoints", checkpoint_steps=2, wave=wave)
    rig.start("worker-0-1")
    assert leased(rig, "worker-0-1") == list(range(wave))
    rig.finish("worker-0-1", *range(wave))
    return rig


def in_two_waves() -> Rig:
    """Bring a job to where its first wave is done, and its second one begun: slots are to be cut behind that."""
    rig = Rig(replicas=1, snapshots="/checkpoints", checkpoint_steps=2, wave=2)
    rig.start("worker-0-1", "worker-1-1")
    begun = [[lease.task for lease in mine] for mine in rig.master.work.leases.held.values()]
    assert sorted(map(sorted, begun)) in ([[0, 2], [1, 3]], [[0, 3], [1, 2]])
    rig.finish("worker-0-1", 0, 1)
    assert rig.master.journal.cut is None
    return rig
