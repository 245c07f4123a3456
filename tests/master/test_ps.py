"""The master of a job with parameter servers: events in, instructions out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

from elasticdl.checkpoint.layout import draft_of
from elasticdl.control.protocol.messages import (
    Exported,
    Failed,
    Finished,
    MasterMessage,
    MemberMessage,
    ProgramFailed,
    Released,
)
from elasticdl.control.protocol.psmessages import (
    Accounts,
    AccountsWanted,
    CopiesVoid,
    CopyOrdered,
    CopyReady,
    CutOrdered,
    DrainRequest,
    EndTraining,
    Enroll,
    Enrolled,
    FoundModel,
    Holding,
    Leased,
    Leave,
    Placed,
    RevokeTask,
    Settled,
    SlotAccount,
    SlotsCut,
    SlotSection,
    TaskDone,
    Unreached,
    Watermark,
    WriteResult,
)
from elasticdl.control.protocol.status import EventKind
from elasticdl.control.protocol.view import MemberId, StateId, ViewId
from elasticdl.data.plan.ledger import Ledger
from elasticdl.data.plan.shard import Shard
from elasticdl.data.plan.tasks import TaskOrder
from elasticdl.files.output import unpublished_path
from elasticdl.master.core import events
from elasticdl.master.core.done import Done, TaskNumber
from elasticdl.master.core.entry import ServerId
from elasticdl.master.core.records import (
    CutRecord,
    DoneRecord,
    FailedRecord,
    FinishedRecord,
    PlacementRecord,
    Record,
    ResumedRecord,
    SavedRecord,
    WantedRecord,
    compact,
    read_journal,
)
from elasticdl.master.core.witnesses import Times
from elasticdl.master.processes.observed import Processes
from elasticdl.master.processes.replicas import ReplicaSet
from elasticdl.master.ps.machine import BATCH, BATCH_SECONDS, SUCCESSOR_SECONDS, PsMaster, Settings
from elasticdl.master.ps.snapshots import FRUITLESS
from elasticdl.master.reporting.history import EventHistory
from elasticdl.master.reporting.psstatusview import PsStatusView
from elasticdl.spec.edge import build, from_arguments
from elasticdl.spec.jobspec import PsRestore
from tests.master.models import model_of

SLOTS = 4
MODEL = model_of(SLOTS)
OUTPUT = Path("/results/model.keras")
SHARDS = (Shard("data", 0, 80),)
"""Ten tasks of two chunks of four records."""

M = TypeVar("M")


def order(shards: tuple[Shard, ...], max_step: int = 0, wave: int = 1) -> TaskOrder:
    return TaskOrder(Ledger(shards, 8, 4, 1, False), 1, max_step, wave)


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
    ) -> None:
        self.settings = Settings(
            snapshots=snapshots,
            checkpoint_steps=checkpoint_steps,
            lasting=snapshots == "/checkpoints",
            resume=None if resumed is None else lambda _: resumed,
            workers=2,
            minimum=1,
            relaunches=1,
            plan=lambda shards: order(shards, max_step, max(1, wave)),
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
        self.say(name, Enroll(member(name), name, f"unix:/{name}", epoch, server, holds, roll_back, leaving))

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


def test_tasks_are_leased_once_servers_and_model_are_there() -> None:
    rig = Rig()
    rig.event(events.DataFound(SHARDS))
    rig.connect("worker-0-1")
    rig.say("worker-0-1", FoundModel(MODEL))
    rig.connect("ps-0-1")
    assert rig.heard("worker-0-1", Leased) == []
    rig.connect("ps-1-1")
    assert rig.heard("ps-0-1", Enrolled) == [Enrolled(1, 0)]
    assert rig.heard("ps-1-1", Enrolled) == [Enrolled(1, 1)]
    (placed,) = rig.heard("worker-0-1", Placed)
    assert placed.servers == (0, 1)
    assert placed.addresses == ("unix:/ps-0-1", "unix:/ps-1-1")
    assert [(entry.slot, entry.primary, entry.backup) for entry in placed.entries] == [
        (0, 0, 1), (1, 1, 0), (2, 0, 1), (3, 1, 0),
    ]  # fmt: skip
    assert rig.heard("worker-0-1", Leased) == [Leased(0, 0, 0), Leased(1, 0, 0)]


def test_low_follows_what_is_done_in_whatever_order() -> None:
    rig = Rig()
    rig.start("worker-0-1", "worker-1-1")
    rig.told.clear()
    rig.finish("worker-1-1", 2)
    assert rig.journal[-1] == DoneRecord((2,), 0)
    assert rig.heard("worker-1-1", RevokeTask) == [RevokeTask(2, 0)]
    assert rig.heard("worker-1-1", Leased) == [Leased(4, 0, 0)]
    assert rig.heard("worker-0-1", Watermark) == []
    rig.finish("worker-0-1", 0, 1)
    assert rig.heard("worker-0-1", Watermark) == [Watermark(3, 0, ())]
    assert rig.master.steps == 6


def test_a_worker_has_its_next_task_before_the_journal_says_that_one_is_done() -> None:
    rig = Rig()
    rig.start("worker-0-1", "worker-1-1")
    rig.told.clear()
    rig.say("worker-0-1", TaskDone(0, 0, 0.25))
    assert rig.told == [("worker-0-1", Leased(4, 0, 0))]
    rig.say("worker-0-1", TaskDone(0, 0))  # said once more, as long as no answer has come
    assert rig.told == [("worker-0-1", Leased(4, 0, 0))]
    assert not isinstance(rig.journal[-1], DoneRecord)
    rig.tick(BATCH_SECONDS + 0.1)
    assert rig.journal[-1] == DoneRecord((0,), 0)
    assert [lease.task for lease in rig.master.leases.held["worker-0-1"]] == [1, 4]


def test_a_master_that_has_not_taken_over_leases_nothing_when_a_task_is_done() -> None:
    rig = Rig()
    rig.start("worker-0-1")
    master, _ = PsMaster(rig.settings).handle(0.0, events.JournalRead(tuple(rig.journal), 3))
    enroll = Enroll(member("worker-0-1"), "worker-0-1", "", 1, None, (Holding(1, 0),), 0, False)
    said: list[events.Instruction] = []
    for event in (
        events.ConnectionOpened(1, member("worker-0-1"), "worker-0-1"),
        events.Heard(1, enroll),
        events.Heard(1, TaskDone(0, 0)),
    ):
        master, more = master.handle(5.0, event)
        said += more
    assert not [one for one in said if isinstance(one, events.Tell)]
    assert master.reported == (0,)


def test_a_task_that_is_done_says_what_its_last_chunk_would_have_said() -> None:
    rig = Rig()
    rig.start("worker-0-1")
    rig.say("worker-0-1", TaskDone(0, 0, 0.25))
    assert rig.master.loss == 0.25
    assert rig.master.steps_done == 1  # that it is two is for the journal to say
    (step,) = rig.announced(EventKind.STEP)
    assert step.text == "step 1, loss 0.25"
    rig.tick(BATCH_SECONDS + 0.1)
    assert rig.master.steps_done == 2
    rig.say("worker-0-1", TaskDone(0, 0))
    assert (rig.master.loss, rig.master.steps_done) == (0.25, 2)


def test_many_tasks_are_journalled_before_the_time_of_a_batch_is_over() -> None:
    rig = Rig()
    rig.shards = (Shard("data", 0, 8 * 4 * BATCH),)
    rig.start("worker-0-1")
    for task in range(BATCH - 1):
        rig.say("worker-0-1", TaskDone(task, 0))
    assert not isinstance(rig.journal[-1], DoneRecord)
    rig.say("worker-0-1", TaskDone(BATCH - 1, 0))
    assert rig.journal[-1] == DoneRecord(tuple(range(BATCH)), 0)


def test_a_task_costs_two_messages_and_what_a_batch_of_them_does() -> None:
    rig = Rig()
    rig.shards = (Shard("data", 0, 8 * 200),)
    rig.start("worker-0-1", "worker-1-1")
    records, seconds = len(rig.journal), rig.now
    rig.told.clear()
    said = 0
    while said < 100:
        for name in ("worker-0-1", "worker-1-1"):
            mine = [one.task for one in rig.master.leases.held[name] if one.task not in rig.master.reported]
            rig.say(name, TaskDone(mine[0], 0, 0.5))
            said += 1
        rig.tick(0.1)
    batches = len(rig.journal) - records
    assert batches <= (rig.now - seconds) / BATCH_SECONDS
    assert len([one for one in rig.told if isinstance(one[1], Leased)]) == said
    assert len(rig.told) <= said + 2 * batches + 2 * batches  # a watermark, and a task beyond it


def test_a_lost_worker_s_tasks_go_on_where_it_was() -> None:
    rig = Rig()
    rig.start("worker-0-1")
    rig.say("worker-0-1", Settled(0, 1, 0, 0.5))
    rig.told.clear()
    rig.die("worker-0-1")
    rig.connect("worker-1-1")
    assert rig.heard("worker-1-1", Leased) == [Leased(0, 1, 0), Leased(1, 0, 0)]
    assert [one.worker for one in rig.announced(EventKind.LOST)] == ["worker-0-1"]


def test_a_task_that_is_not_known_to_be_done_goes_on_at_its_last_chunk() -> None:
    rig = Rig()
    rig.start("worker-0-1")
    rig.say("worker-0-1", Settled(0, 2, 0, 0.5))
    rig.die("worker-0-1")
    rig.connect("worker-1-1")
    assert rig.heard("worker-1-1", Leased)[0] == Leased(0, 1, 0)


def test_words_that_arrive_after_a_worker_s_end_hold_no_tasks() -> None:
    rig = Rig()
    rig.start("worker-0-1")
    rig.die("worker-0-1")
    rig.connect("worker-0-1", (Holding(0, 1), Holding(1, 0)))
    rig.disconnect("worker-0-1")
    rig.connect("worker-1-1")
    assert rig.heard("worker-1-1", Leased) == [Leased(0, 0, 0), Leased(1, 0, 0)]


def test_a_worker_that_hangs_is_left_out_and_killed() -> None:
    rig = Rig()
    rig.start("worker-0-1")
    rig.tick()
    rig.silent.add("worker-0-1")
    rig.tick(8.0)
    assert [one.worker for one in rig.announced(EventKind.EVICTED)] == ["worker-0-1"]
    rig.tick(6.0)
    assert any(isinstance(one, events.Kill) and one.worker == "worker-0-1" for one in rig.out)
    rig.connect("worker-1-1")
    assert [lease.task for lease in rig.heard("worker-1-1", Leased)] == [0, 1]


def test_done_is_taken_from_whoever_says_it() -> None:
    rig = Rig()
    rig.start("worker-0-1")
    rig.disconnect("worker-0-1")
    rig.tick(12.0)
    rig.connect("worker-1-1")
    rig.connect("worker-0-1")
    rig.finish("worker-0-1", 0)
    assert 0 in rig.master.journal.done
    assert rig.heard("worker-1-1", Watermark)[-1] == Watermark(1, 0, ())


def test_the_backup_of_a_lost_server_is_promoted_and_gets_a_backup() -> None:
    rig = Rig(servers=3)
    rig.start("worker-0-1")
    before = rig.master.journal.entries
    rig.told.clear()
    rig.die("ps-0-1")
    record = rig.journal[-1]
    assert isinstance(record, PlacementRecord)
    assert record.gone == (0,)
    for slot, entry in record.entries:
        old = before[slot]
        assert entry.primary == (old.backup if old.primary == 0 else old.primary)
        assert entry.backup is None
    (placed,) = rig.heard("worker-0-1", Placed)
    assert placed.servers == (1, 2)
    assert rig.heard("ps-1-1", CopiesVoid) == [CopiesVoid(0)]
    rig.tick()
    orders = [*rig.heard("ps-1-1", CopyOrdered), *rig.heard("ps-2-1", CopyOrdered)]
    assert {one.slot for one in orders} == {slot for slot, _ in record.entries}
    for one in orders:
        server = next(name for name in ("ps-1-1", "ps-2-1") if name != f"ps-{one.to}-1")
        rig.say(server, CopyReady(one.slot, one.term, one.to, one.hands_over))
    assert all(entry.backup is not None for entry in rig.master.journal.entries)
    rig.say("worker-0-1", Settled(0, 1, 0, 0.5))
    assert [one.worker for one in rig.announced(EventKind.RECOVERED)] == ["ps-0-1"]


@pytest.mark.parametrize("wakes_up", [True, False])
def test_a_server_that_hangs_with_the_last_copy_is_given_time(wakes_up: bool) -> None:
    rig = Rig(servers=3)
    rig.start("worker-0-1")
    rig.tick()
    rig.silent.add("ps-1-1")
    rig.die("ps-0-1")
    rig.tick(Times().stall - 5.0)
    assert rig.master.journal.roll_back == 0
    assert rig.master.awaited(rig.now) == {1}
    assert rig.announced(EventKind.EVICTED) == []
    if wakes_up:
        rig.silent.clear()
    rig.tick(10.0)
    assert rig.master.journal.roll_back == (0 if wakes_up else 1)
    assert rig.master.awaited(rig.now) == frozenset()


def test_a_server_that_hangs_is_left_out_at_once_if_all_it_has_is_elsewhere() -> None:
    rig = Rig(servers=3)
    rig.start("worker-0-1")
    rig.tick()
    rig.silent.add("ps-1-1")
    rig.tick(8.0)
    assert 1 not in rig.master.journal.servers
    assert rig.master.journal.roll_back == 0


def test_a_recovery_lasts_from_the_last_step_before_the_loss_to_the_next_one() -> None:
    rig = Rig()
    rig.start("worker-0-1")
    # An accusation of long ago, of which nothing came, is no sign of what comes later.
    rig.say("worker-0-1", Unreached((0,)))
    rig.tick(4.0)
    rig.say("worker-0-1", Settled(0, 1, 0, 0.5))
    settled = rig.now
    rig.tick(0.5)
    rig.die("ps-0-1")
    rig.tick(1.0)
    rig.say("worker-0-1", Settled(0, 1, 0, 0.5))
    assert rig.announced(EventKind.RECOVERED) == []  # nothing new
    rig.tick(1.0)
    rig.say("worker-0-1", TaskDone(0, 0))
    (recovered,) = rig.announced(EventKind.RECOVERED)
    assert recovered.seconds == pytest.approx(rig.now - settled)
    assert "after the last step before the loss of ps-0-1 (killed by SIGKILL)" in recovered.text


def test_the_time_in_which_a_master_was_stopped_is_part_of_a_recovery() -> None:
    rig = Rig()
    rig.start("worker-0-1")
    rig.say("worker-0-1", Settled(0, 1, 0, 0.5))
    settled = rig.now
    rig.now += 10.0
    rig.say("worker-0-1", TaskDone(0, 0))  # said before it was stopped
    rig.die("ps-0-1")
    rig.tick(0.5)
    rig.say("worker-0-1", Settled(1, 1, 0, 0.5))
    (recovered,) = rig.announced(EventKind.RECOVERED)
    assert recovered.seconds == pytest.approx(rig.now - settled)


def test_a_master_that_comes_back_counts_a_recovery_from_its_return() -> None:
    rig = Rig()
    rig.start("worker-0-1")
    rig.say("worker-0-1", Settled(0, 1, 0, 0.5))
    rig.now += 5.0
    rig.begin()
    returned = rig.now
    rig.connect("ps-1-1", server=1)
    rig.connect("worker-0-1", (Holding(0, 1),))
    rig.die("ps-0-1")
    rig.tick(2.0)
    rig.say("worker-0-1", TaskDone(0, 0))
    (recovered,) = rig.announced(EventKind.RECOVERED)
    assert recovered.seconds == pytest.approx(rig.now - returned)
    assert "after the return of the master, which has found ps-0-1 lost" in recovered.text


def test_a_master_that_comes_back_tells_of_workers_that_were_lost_meanwhile() -> None:
    rig = Rig()
    rig.start("worker-0-1", "worker-1-1")
    rig.die("worker-1-1")
    rig.begin()
    returned = rig.now
    rig.die("worker-0-1")
    rig.die("worker-0-1")
    rig.die("worker-1-1")  # of which the master before has told
    assert [one.worker for one in rig.announced(EventKind.LOST)] == ["worker-0-1"]
    rig.connect("worker-0-2")
    rig.tick(2.0)
    rig.say("worker-0-2", Settled(0, 1, 0, 0.5))
    (recovered,) = rig.announced(EventKind.RECOVERED)
    assert (recovered.worker, recovered.seconds) == ("worker-0-1", pytest.approx(rig.now - returned))


def test_who_takes_part_is_journalled_once_and_a_server_is_no_worker() -> None:
    rig = Rig()
    rig.start("worker-0-1", "worker-1-1")
    assert rig.master.journal.workers == {"worker-0-1", "worker-1-1"}
    rig.say("worker-1-1", Leave((), 0))
    assert rig.master.journal.workers == {"worker-0-1"}
    rig.die("worker-0-1")
    assert rig.master.journal.workers == set()
    records = len(rig.journal)
    rig.tick(1.0)
    assert len(rig.journal) == records


def test_a_worker_that_was_left_out_is_killed_by_the_next_master() -> None:
    rig = Rig()
    rig.start("worker-0-1", "worker-1-1")
    rig.tick()
    rig.silent.add("worker-0-1")
    rig.tick(8.0)
    assert [one.worker for one in rig.announced(EventKind.EVICTED)] == ["worker-0-1"]
    rig.begin()
    rig.connect("worker-1-1")
    rig.tick(4.0)
    assert not [one for one in rig.out if isinstance(one, events.Kill)]
    rig.tick(2.0)
    assert [one.worker for one in rig.out if isinstance(one, events.Kill)] == ["worker-0-1"]
    rig.die("worker-0-1")
    rig.begin()
    rig.tick(10.0)
    assert not [one for one in rig.out if isinstance(one, events.Kill)]


def test_a_worker_that_was_left_out_and_is_heard_of_again_is_killed_by_no_later_master() -> None:
    rig = Rig()
    rig.start("worker-0-1", "worker-1-1")
    rig.tick()
    rig.silent.add("worker-0-1")
    rig.tick(8.0)
    assert rig.master.journal.evicted == {"worker-0-1"}
    rig.event(events.Beat(member("worker-0-1"), 0, 0, 2, 0.0))
    rig.tick()
    assert (rig.master.journal.evicted, "worker-0-1" in rig.master.journal.workers) == (set(), True)


def test_people_see_how_many_slots_would_not_survive_another_loss() -> None:
    spec = build(from_arguments({"model_def": "m.model", "training_data": "x", "num_ps_pods": 2}))
    rig = Rig()
    rig.start("worker-0-1")

    def reason() -> str:
        forces = (ReplicaSet(2, 1), ReplicaSet(2, 1))
        return (
            PsStatusView(spec, rig.master, EventHistory(0.0), forces, Processes()).status("job", 1.0).reason
        )

    assert reason() == "1 worker and 2 parameter servers"
    rig.die("ps-0-1")
    rig.tick()
    assert reason() == "1 worker and 1 parameter server; 4 of 4 slots have no second copy yet"
    rig.connect("ps-0-2")
    copied(rig)
    assert reason() == "1 worker and 2 parameter servers"
    rig.say("ps-1-1", Leave((), 0))
    assert reason() == "1 worker and 2 parameter servers; 4 of 4 slots have no second copy yet"


def test_a_server_that_is_lost_while_it_leaves_is_not_said_to_be_empty() -> None:
    rig = Rig()
    rig.start("worker-0-1")
    rig.say("ps-0-1", Leave((), 0))
    rig.connect("ps-0-2")
    rig.die("ps-0-1")
    assert rig.announced(EventKind.DRAINED) == []
    assert [one.worker for one in rig.announced(EventKind.LOST)] == ["ps-0-1"]
    copied(rig)
    rig.say("worker-0-1", Settled(0, 1, 0, 0.5))
    assert [one.worker for one in rig.announced(EventKind.RECOVERED)] == ["ps-0-1"]


def test_two_witnesses_are_enough_against_a_server_and_one_that_broke_off_is_none() -> None:
    rig = Rig(servers=3)
    rig.start("worker-0-1")
    rig.say("worker-0-1", Unreached((1,)))
    rig.tick(3.0)
    assert 1 in rig.master.journal.servers
    rig.disconnect("ps-1-1")
    rig.say("worker-0-1", Unreached((1,)))
    assert 1 not in rig.master.journal.servers
    rig.tick(6.0)
    assert any(isinstance(one, events.Kill) and one.worker == "ps-1-1" for one in rig.out)


def test_a_slot_without_any_copy_begins_anew_and_so_do_the_tasks() -> None:
    rig = Rig(servers=2, replicas=1)
    rig.start("worker-0-1")
    rig.finish("worker-0-1", 0, 1)
    rig.told.clear()
    rig.die("ps-0-1")
    (placed,) = rig.heard("worker-0-1", Placed)
    assert placed.roll_back == 1
    assert [(entry.primary, entry.restored) for entry in placed.entries] == [(1, 1), (1, 1)]
    assert rig.heard("worker-0-1", Watermark) == [Watermark(0, 1, ())]
    assert rig.heard("worker-0-1", Leased) == [Leased(0, 0, 1), Leased(1, 0, 1)]
    (rolled_back,) = rig.announced(EventKind.ROLLED_BACK)
    assert rolled_back.text == "rolled back to step 0: 4 steps will be recomputed"
    assert rolled_back.redone == 4
    # what was begun before does not count
    rig.say("worker-0-1", TaskDone(2, 0))
    rig.tick()
    assert rig.master.journal.done.count() == 0
    # nor does its worker have it now
    rig.finish("worker-0-1", 0)
    assert rig.heard("worker-0-1", Leased) == [Leased(2, 0, 1)]


def test_the_only_server_s_successor_takes_all_slots() -> None:
    rig = Rig(servers=1, replicas=1)
    rig.start("worker-0-1")
    rig.die("ps-0-1")
    assert rig.master.journal.roll_back == 0
    rig.connect("ps-0-2")
    assert rig.master.journal.roll_back == 1
    assert {entry.primary for entry in rig.master.journal.entries} == {1}


def test_a_master_that_comes_back_asks_nobody_to_begin_anew() -> None:
    rig = Rig()
    rig.start("worker-0-1")
    rig.finish("worker-0-1", 0)
    rig.begin()
    rig.connect("ps-0-1", server=0)
    rig.connect("ps-1-1", server=1)
    rig.connect("worker-0-1", (Holding(1, 1), Holding(2, 0)))
    assert rig.heard("ps-0-1", Enrolled) == [Enrolled(2, 0)]
    rig.tick(1.0)
    assert rig.heard("worker-0-1", Leased) == []
    assert rig.master.leases.begun() == {1: 1, 2: 0}
    assert rig.master.steps == 2
    rig.connect("worker-1-1")
    assert [lease.task for lease in rig.heard("worker-1-1", Leased)] == [3, 4]


def test_copies_to_a_server_that_was_lost_without_a_master_are_void() -> None:
    rig = Rig(servers=3)
    rig.start("worker-0-1")
    rig.connect("ps-3-1")
    copied(rig)
    slot, entry = next((slot, one) for slot, one in enumerate(rig.master.journal.entries) if one.primary == 0)
    other = next(ServerId(one) for one in (1, 2) if one != entry.backup)
    rig.die("ps-3-1")
    rig.begin()
    rig.connect("ps-0-1", server=0)
    assert CopiesVoid(3) in rig.heard("ps-0-1", CopiesVoid)
    entry = rig.master.journal.entries[slot]
    # Everything was at the receiver, and that is gone: the server waits until the copy is void.
    rig.say("ps-0-1", CopyReady(slot, entry.term, 3, False))
    assert rig.master.journal.entries[slot] == entry.with_backup(entry.backup)
    # One that is there counts, whichever master ordered it.
    rig.say("ps-0-1", CopyReady(slot, entry.term + 1, other, False))
    assert rig.master.journal.entries[slot] == entry.with_backup(None).with_backup(other)


def test_a_server_that_leaves_while_there_is_no_master_is_emptied() -> None:
    rig = Rig(servers=3)
    rig.start("worker-0-1")
    rig.begin()
    for server in range(3):
        rig.connect(f"ps-{server}-1", server=server, leaving=server == 2)
    assert [one.worker for one in rig.announced(EventKind.LEAVING)] == ["ps-2-1"]
    copied(rig)
    assert rig.heard("ps-2-1", Released) == [Released("it is empty")]


def test_a_server_that_counts_as_lost_may_not_come_back() -> None:
    rig = Rig(servers=3)
    rig.start("worker-0-1")
    rig.disconnect("ps-1-1")
    rig.tick(7.0)
    assert 1 not in rig.master.journal.servers
    rig.connect("ps-1-1", server=1)
    assert [type(message).__name__ for name, message in rig.told if name == "ps-1-1"][-1] == "Evicted"


def test_a_server_that_leaves_is_emptied_first() -> None:
    rig = Rig(servers=3)
    rig.start("worker-0-1")
    rig.say("ps-0-1", Leave((), 0))
    for _ in range(10):
        rig.tick()
        for name in ("ps-0-1", "ps-1-1", "ps-2-1"):
            for one in rig.heard(name, CopyOrdered):
                rig.say(name, CopyReady(one.slot, one.term, one.to, one.hands_over))
    assert rig.heard("ps-0-1", Released) == [Released("it is empty")]
    assert all(0 not in (entry.primary, entry.backup) for entry in rig.master.journal.entries)
    assert rig.master.journal.roll_back == 0


def test_a_copy_to_a_server_that_leaves_before_it_has_anything_is_void() -> None:
    rig = Rig(servers=3)
    rig.start("worker-0-1")
    rig.connect("ps-3-1")
    rig.tick()
    (copy, *_) = rig.master.copies.under_way.values()
    assert copy.to == 3
    name = f"ps-{rig.master.journal.entries[copy.slot].primary}-1"
    rig.say("ps-3-1", Leave((), 0))
    assert rig.heard("ps-3-1", Released) == [Released("it is empty")]
    assert copy not in rig.master.copies.under_way.values()
    entry = rig.master.journal.entries[copy.slot]
    assert entry.term == copy.term + 1
    # Its end may have been accepted all the same.
    rig.say(name, CopyReady(copy.slot, copy.term, copy.to, copy.hands_over))
    rig.tick()
    assert rig.master.journal.entries[copy.slot] == entry


def copied(rig: Rig) -> None:
    """Let all copies that are ordered come to their end."""
    for _ in range(20):
        rig.tick()
        for name in list(rig.connections):
            for one in rig.heard(name, CopyOrdered):
                rig.say(name, CopyReady(one.slot, one.term, one.to, one.hands_over))


def test_servers_are_added_and_taken_away() -> None:
    rig = Rig()
    rig.start("worker-0-1")
    rig.event(events.ScaleAsked(1, None, 4))
    assert rig.journal[-1] == WantedRecord(None, 4)
    assert events.Scale(None, 4) in rig.out
    assert events.Reply(1, "the job wants 4 parameter servers") in rig.out
    rig.connect("ps-2-1")
    rig.connect("ps-3-1")
    copied(rig)
    entries = rig.master.journal.entries
    assert {entry.primary for entry in entries} == {entry.backup for entry in entries} == {0, 1, 2, 3}
    rig.event(events.ScaleAsked(2, None, 2))
    rig.begin()  # the next master knows it, and asks the servers again
    assert rig.master.wanted_servers == 2
    assert events.Scale(None, 2) in rig.out
    for server in range(4):
        rig.connect(f"ps-{server}-1", server=server)
    rig.say("ps-3-1", Leave((), 0))
    rig.say("ps-2-1", Leave((), 0))
    copied(rig)
    for name in ("ps-2-1", "ps-3-1"):
        assert rig.heard(name, Released) == [Released("it is empty")]
    entries = rig.master.journal.entries
    assert {frozenset((entry.primary, entry.backup)) for entry in entries} == {frozenset((0, 1))}
    assert rig.master.journal.roll_back == 0


def test_a_job_that_is_scaled_before_it_begins_waits_for_that_many_servers() -> None:
    rig = Rig()
    rig.event(events.ScaleAsked(1, None, 3))
    rig.start("worker-0-1")
    assert rig.master.journal.entries == ()
    rig.connect("ps-2-1")
    assert {entry.primary for entry in rig.master.journal.entries} == {0, 1, 2}


def test_a_server_is_asked_to_leave_as_often_as_it_takes() -> None:
    rig = Rig(servers=3)
    rig.start("worker-0-1")
    rig.event(events.ScaleAsked(1, None, 2))
    assert rig.heard("ps-2-1", DrainRequest) == [DrainRequest()]
    rig.disconnect("ps-2-1")
    rig.connect("ps-2-1", server=2)
    assert rig.heard("ps-2-1", DrainRequest) == [DrainRequest()]
    assert rig.heard("ps-0-1", DrainRequest) == []


def test_the_only_server_hands_over_to_its_successor() -> None:
    rig = Rig(servers=1, replicas=1)
    rig.start("worker-0-1")
    rig.say("ps-0-1", Leave((), 0))
    copied(rig)
    assert rig.heard("ps-0-1", Released) == []
    rig.connect("ps-0-2")
    copied(rig)
    assert rig.heard("ps-0-1", Released) == [Released("it is empty")]
    assert {(entry.primary, entry.backup) for entry in rig.master.journal.entries} == {(1, None)}
    assert rig.master.journal.roll_back == 0


def test_one_of_two_servers_waits_a_while_for_its_successor() -> None:
    rig = Rig()
    rig.start("worker-0-1")
    rig.say("ps-0-1", Leave((), 0))
    rig.tick(SUCCESSOR_SECONDS - 1)
    rig.disconnect("ps-0-1")
    rig.connect("ps-0-1", server=0, leaving=True)  # that does not make it wait longer
    assert all(entry.backup is not None for entry in rig.master.journal.entries)
    rig.tick(2)  # a pod is killed some time after it was asked
    assert {(entry.primary, entry.backup) for entry in rig.master.journal.entries} == {(1, None)}
    assert rig.heard("ps-0-1", Released) == [Released("it is empty")]


def test_a_server_that_scale_takes_away_stays_until_others_have_its_copies() -> None:
    rig = Rig(servers=3)
    rig.start("worker-0-1")
    rig.event(events.ScaleAsked(1, None, 2))
    rig.say("ps-2-1", Leave((), 0))
    rig.tick(1)
    had = [slot for slot, entry in enumerate(rig.master.journal.entries) if entry.names(ServerId(2))]
    rig.die("ps-0-1")
    copied(rig)
    assert rig.heard("ps-2-1", Released) == []
    assert [slot for slot, entry in enumerate(rig.master.journal.entries) if entry.names(ServerId(2))] == had
    rig.connect("ps-0-2")
    copied(rig)
    assert rig.heard("ps-2-1", Released) == [Released("it is empty")]
    assert {frozenset((entry.primary, entry.backup)) for entry in rig.master.journal.entries} == {
        frozenset((1, 3))
    }
    assert rig.master.journal.roll_back == 0


def section(slot: int, primary_epoch: int, until: int = 2) -> SlotSection:
    return SlotSection(slot, primary_epoch, 0, 8, 1, 1, 0, until, 1, 1, "0" * 32)


def test_a_snapshot_is_whole_when_all_slots_and_the_manifest_are_written() -> None:
    rig = Rig(servers=2, replicas=1, snapshots="/snapshots", checkpoint_steps=4)
    rig.start("worker-0-1")
    rig.finish("worker-0-1", 0, 1)
    assert CutRecord(1, Done(TaskNumber(2)), 0) in rig.journal
    assert rig.heard("ps-0-1", CutOrdered) == [
        CutOrdered(1, "/snapshots/.checkpoint-1.draft", (0, 2), (1, 1), 2, (), 0)
    ]
    assert rig.heard("ps-1-1", CutOrdered) == [
        CutOrdered(1, "/snapshots/.checkpoint-1.draft", (1, 3), (1, 1), 2, (), 0)
    ]
    rig.cut("ps-0-1", 1, "a", (section(0, 1), section(2, 1)), "")
    rig.cut("ps-1-1", 1, "b", (section(1, 1),), "")
    assert not any(isinstance(one, events.WriteManifest) for one in rig.out)
    rig.tick(1.2)  # slot 3 was left out
    assert rig.heard("ps-1-1", CutOrdered) == [
        CutOrdered(1, "/snapshots/.checkpoint-1.draft", (3,), (1,), 2, (), 0)
    ]
    rig.cut("ps-1-1", 1, "c", (section(3, 1),), "")
    (manifest,) = [one for one in rig.out if isinstance(one, events.WriteManifest)]
    assert [Path(file).name for file, _ in manifest.sections] == ["a", "b", "a", "c"]
    rig.event(events.ManifestWritten(1, "/snapshots/checkpoint-1/manifest.json"))
    assert SavedRecord(1, "/snapshots/checkpoint-1/manifest.json") in rig.journal
    assert [one.step for one in rig.announced(EventKind.SNAPSHOT)] == [4]
    # two tasks later a slot is lost: only these are done anew
    rig.finish("worker-0-1", 2, 3)
    rig.told.clear()
    rig.die("ps-0-1")
    (placed,) = rig.heard("worker-0-1", Placed)
    assert placed.snapshot == "/snapshots/checkpoint-1/manifest.json"
    assert rig.heard("worker-0-1", Watermark) == [Watermark(2, 1, ())]
    assert [lease.task for lease in rig.heard("worker-0-1", Leased)] == [2, 3]


def test_tasks_since_the_snapshot_may_be_left_as_they_are() -> None:
    rig = Rig(servers=2, replicas=1, snapshots="/snapshots", checkpoint_steps=4, restore=PsRestore.SKIP)
    rig.start("worker-0-1")
    rig.finish("worker-0-1", 0, 1)
    rig.cut("ps-0-1", 1, "a", (section(0, 1), section(2, 1)), "")
    rig.cut("ps-1-1", 1, "b", (section(1, 1), section(3, 1)), "")
    rig.event(events.ManifestWritten(1, "/snapshots/snapshot-1/manifest.json"))
    rig.finish("worker-0-1", 2, 3)
    rig.told.clear()
    rig.die("ps-0-1")
    (placed,) = rig.heard("worker-0-1", Placed)
    assert (placed.roll_back, placed.snapshot) == (1, "/snapshots/snapshot-1/manifest.json")
    assert [entry.slot for entry in placed.entries if entry.restored] == [0, 2]
    # what was under way begins anew, what was done stays done
    assert rig.heard("worker-0-1", Watermark) == [Watermark(4, 1, ())]
    assert [(one.task, one.chunk) for one in rig.heard("worker-0-1", Leased)] == [(4, 0), (5, 0)]
    (lost,) = rig.announced(EventKind.LOST)
    assert "what the tasks 2 to 3 have done to them is lost (--ps_restore=skip)" in lost.text
    assert [one.redone for one in rig.announced(EventKind.ROLLED_BACK)] == [0]
    assert rig.master.journal.done == Done(TaskNumber(4))


def test_a_job_may_fail_rather_than_lose_the_only_copy_of_a_slot() -> None:
    rig = Rig(servers=2, replicas=1, restore=PsRestore.STOP)
    rig.start("worker-0-1")
    rig.finish("worker-0-1", 0, 1)
    rig.die("ps-0-1")
    (failed,) = [record for record in rig.journal if isinstance(record, FailedRecord)]
    assert failed.kind == "lost"
    assert "ps-0-1 held the only copy of 2 of the model's 4 slots, and --ps_restore=stop" in failed.reason
    assert rig.heard("worker-0-1", Failed)


def test_a_roll_back_voids_the_snapshot_under_way() -> None:
    rig = Rig(servers=2, replicas=1, snapshots="/snapshots", checkpoint_steps=4)
    rig.start("worker-0-1")
    rig.finish("worker-0-1", 0, 1)
    rig.cut("ps-1-1", 1, "b", (section(1, 1), section(3, 1)), "")
    rig.die("ps-0-1")
    rig.cut("ps-1-1", 1, "c", (section(0, 2), section(2, 2)), "")
    assert not any(isinstance(one, events.WriteManifest) for one in rig.out)
    assert rig.master.journal.done.count() == 0
    rig.finish("worker-0-1", 0, 1)
    assert rig.master.journal.cut == CutRecord(2, Done(TaskNumber(2)), 1)


def test_a_snapshot_that_can_not_be_written_is_told_and_tried_again_later() -> None:
    rig = Rig(servers=2, replicas=1, snapshots="/snapshots", checkpoint_steps=4)
    rig.start("worker-0-1")
    rig.finish("worker-0-1", 0, 1)
    rig.cut("ps-1-1", 1, "b", (), "No space left on device")
    assert "No space left on device" in rig.announced(EventKind.UNSAVED)[0].text
    rig.finish("worker-0-1", 2)
    assert rig.master.journal.cut == CutRecord(1, Done(TaskNumber(2)), 0)
    rig.finish("worker-0-1", 3)
    assert rig.master.journal.cut == CutRecord(2, Done(TaskNumber(4)), 0)


def write_cut(rig: Rig) -> None:
    """Let all servers write what they are to write, and the master its manifest."""
    cut = rig.master.journal.cut
    assert cut is not None
    for index in range(rig.settings.servers):
        for told in rig.heard(f"ps-{index}-1", CutOrdered):
            pairs = zip(told.slots, told.primary_epochs, strict=True)
            sections = tuple(section(slot, primary_epoch) for slot, primary_epoch in pairs)
            rig.cut(f"ps-{index}-1", told.snapshot, f"{index}", sections, "")
    rig.event(events.ManifestWritten(cut.number, f"/checkpoints/checkpoint-{cut.number}/manifest.json"))


def test_nobody_hears_of_a_higher_watermark_while_slots_are_cut() -> None:
    rig = Rig(snapshots="/checkpoints", checkpoint_steps=4)
    rig.start("worker-0-1")
    rig.finish("worker-0-1", 0, 1)
    rig.finish("worker-0-1", 2)
    assert rig.heard("worker-0-1", Watermark)[-1] == Watermark(2, 0, ())
    assert rig.master.leases.low == 3
    write_cut(rig)
    assert rig.heard("worker-0-1", Watermark) == [Watermark(3, 0, ())]


def test_the_watermark_rises_when_a_snapshot_is_given_up() -> None:
    rig = Rig(snapshots="/checkpoints", checkpoint_steps=4)
    rig.start("worker-0-1")
    rig.finish("worker-0-1", 0, 1)
    rig.finish("worker-0-1", 2)
    rig.heard("worker-0-1", Watermark)
    rig.cut("ps-1-1", 1, "b", (), "No space left on device")
    assert rig.heard("worker-0-1", Watermark) == [Watermark(3, 0, ())]


def test_a_master_that_comes_back_leaves_a_snapshot_that_was_begun() -> None:
    rig = Rig(snapshots="/checkpoints", checkpoint_steps=4)
    rig.start("worker-0-1")
    rig.finish("worker-0-1", 0, 1)
    rig.begin()
    rig.connect("ps-0-1", server=0)
    rig.connect("ps-1-1", server=1)
    rig.connect("worker-0-1")
    assert rig.heard("ps-0-1", CutOrdered) == []
    rig.tick(1.0)
    rig.finish("worker-0-1", 2, 3)
    assert rig.master.journal.cut == CutRecord(2, Done(TaskNumber(4)), 0)


def test_a_snapshot_that_failed_is_tried_again_after_a_while_even_if_little_is_trained() -> None:
    rig = Rig(snapshots="/checkpoints", checkpoint_steps=8)
    rig.start("worker-0-1")
    rig.finish("worker-0-1", 0, 1, 2, 3)
    rig.cut("ps-1-1", 1, "b", (), "No space left on device")
    assert events.DropSnapshot(1) in rig.out
    assert "tried again later" in rig.announced(EventKind.UNSAVED)[0].text
    rig.tick(50.0)
    assert rig.master.journal.cut == CutRecord(1, Done(TaskNumber(4)), 0)
    rig.tick(11.0)
    assert rig.master.journal.cut == CutRecord(2, Done(TaskNumber(4)), 0)


def end(rig: Rig) -> None:
    """Let the job come to its end but for a last checkpoint."""
    train_all(rig)
    (wanted,) = rig.heard("worker-0-1", WriteResult)
    rig.say("worker-0-1", result(wanted.steps, wanted.attempt))
    rig.say("ps-0-1", accounts_of(rig, 0))
    rig.say("ps-1-1", accounts_of(rig, 1))


def test_the_job_s_end_waits_for_a_last_checkpoint() -> None:
    rig = Rig(snapshots="/checkpoints", checkpoint_steps=400)
    rig.start("worker-0-1")
    end(rig)
    assert rig.master.journal.cut == CutRecord(1, Done(TaskNumber(10)), 0)
    assert not isinstance(rig.journal[-1], FinishedRecord)
    write_cut(rig)
    assert isinstance(rig.journal[-1], FinishedRecord)


def test_the_job_ends_without_a_last_checkpoint_that_can_not_be_written() -> None:
    rig = Rig(snapshots="/checkpoints", checkpoint_steps=400)
    rig.start("worker-0-1")
    end(rig)
    for attempt in (1, 2, 3):
        assert rig.master.journal.cut == CutRecord(attempt, Done(TaskNumber(10)), 0)
        assert not isinstance(rig.journal[-1], FinishedRecord)
        rig.cut("ps-1-1", attempt, "b", (), "No space left on device")
        rig.tick(2.2)
    assert isinstance(rig.journal[-1], FinishedRecord)
    assert ["again" in one.text for one in rig.announced(EventKind.UNSAVED)] == [True, True, False]


def test_a_task_of_which_chunks_are_left_out_is_not_done_in_a_checkpoint() -> None:
    rig = Rig(snapshots="/checkpoints", checkpoint_steps=400, max_step=3)
    rig.start("worker-0-1")
    rig.finish("worker-0-1", 0, 1)
    assert rig.master.journal.cut == CutRecord(1, Done(TaskNumber(1)), 0)
    assert rig.heard("worker-0-1", Watermark)[-1] == Watermark(1, 0, ())
    assert rig.master.why_finished == "max_step 3 is reached"
    write_cut(rig)
    (manifest,) = [one for one in rig.out if isinstance(one, events.WriteManifest)]
    assert manifest.begun == ((1, 1),)


def test_the_last_checkpoint_tells_what_it_has_of_tasks_that_are_not_done() -> None:
    rig = Rig(snapshots="/checkpoints", checkpoint_steps=400)
    rig.start("worker-0-1")
    rig.finish("worker-0-1", 0)
    rig.say("worker-0-1", Settled(1, 1, 0, 0.5))
    rig.event(events.StopAsked(1, "enough"))
    rig.say("worker-0-1", Leave((Holding(1, 1),), 0))
    rig.tick()
    write_cut(rig)
    (manifest,) = [one for one in rig.out if isinstance(one, events.WriteManifest)]
    assert (manifest.position, manifest.begun) == (Done(TaskNumber(1)), ((1, 1),))


def test_done_of_before_a_roll_back_is_nothing_to_the_next_master_either() -> None:
    rig = Rig(servers=2, replicas=1)
    rig.start("worker-0-1")
    rig.die("ps-0-1")
    rig.begin()
    rig.connect("worker-0-1")
    for data_is_found in (False, True):
        rig.say("worker-0-1", TaskDone(0, 0))
        rig.now += 1
        rig.tick()
        assert not any(isinstance(record, DoneRecord) for record in rig.journal)
        if not data_is_found:
            rig.event(events.DataFound(SHARDS))


def test_a_worker_that_leaves_says_nothing_of_after_a_roll_back_that_it_has_not_heard_of() -> None:
    rig = Rig(servers=2, replicas=1)
    rig.start("worker-0-1", "worker-1-1")
    rig.die("ps-0-1")
    rig.told.clear()
    rig.say("worker-0-1", Leave((Holding(0, 1), Holding(1, 1)), 0))
    rig.finish("worker-1-1", 2, 3)
    leased = rig.heard("worker-1-1", Leased)
    assert {(0, 0), (1, 0)} <= {(one.task, one.chunk) for one in leased}
    assert rig.master.journal.roll_back == 1


def resumed(renumbered: TaskNumber | None = None) -> ResumedRecord:
    position = Done(TaskNumber(4), (TaskNumber(6),))
    return ResumedRecord(7, "/checkpoints/checkpoint-5/manifest.json", position, 3, renumbered, MODEL)


def test_a_job_goes_on_from_a_checkpoint() -> None:
    rig = Rig(snapshots="/checkpoints", checkpoint_steps=4, resumed=resumed())
    rig.start("worker-0-1")
    assert rig.journal[2] == resumed()
    (placed,) = rig.heard("ps-1-1", Placed)
    assert placed.snapshot == "/checkpoints/checkpoint-5/manifest.json"
    assert (placed.roll_back, placed.renumbered) == (3, None)
    assert [(entry.restored, entry.backup) for entry in placed.entries] == [(3, None)] * SLOTS
    assert rig.heard("worker-0-1", Leased) == [Leased(4, 0, 3), Leased(5, 0, 3)]
    assert (rig.master.steps, rig.master.records) == (10, 40)
    rig.finish("worker-0-1", 4)
    assert rig.master.journal.cut is not None
    assert rig.master.journal.cut.number == 7  # the next one is due two tasks after the checkpoint's
    rig.finish("worker-0-1", 5)
    assert rig.master.journal.cut == CutRecord(8, Done(TaskNumber(7)), 3)
    # and should a server be lost before it is whole, the first one counts
    rig.die("ps-0-1")
    rig.die("ps-1-1")
    rig.connect("ps-0-2")
    (placed,) = rig.heard("ps-0-2", Placed)
    assert (placed.snapshot, placed.roll_back) == ("/checkpoints/checkpoint-5/manifest.json", 5)  # two losses
    assert rig.master.journal.done == resumed().position


def test_other_numbers_of_tasks_hold_until_the_first_checkpoint_of_the_job_itself() -> None:
    rig = Rig(snapshots="/checkpoints", checkpoint_steps=4, resumed=resumed(TaskNumber(4)))
    rig.start("worker-0-1")
    assert [placed.renumbered for placed in rig.heard("ps-0-1", Placed)] == [4]
    rig.finish("worker-0-1", 4, 5)
    write_cut(rig)
    rig.die("ps-0-1")
    rig.die("ps-1-1")
    rig.connect("ps-0-2")
    (placed,) = rig.heard("ps-0-2", Placed)
    assert placed.snapshot == "/checkpoints/checkpoint-8/manifest.json"
    assert placed.renumbered is None


def test_a_job_that_went_on_is_the_same_after_its_master_came_back_and_compacted() -> None:
    rig = Rig(resumed=resumed())
    rig.start("worker-0-1")
    rig.finish("worker-0-1", 4)
    before: Any = rig.master.journal
    assert replace(read_journal(compact(rig.journal)), length=0) == replace(before, length=0)
    rig.settings = replace(rig.settings, resume=None)
    rig.begin()
    assert replace(rig.master.journal, length=0, epoch=0) == replace(before, length=0, epoch=0)
    assert rig.master.steps == 12


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


def test_the_job_ends_when_all_is_done_accounted_for_and_written() -> None:
    rig = Rig()
    rig.start("worker-0-1")
    train_all(rig)
    assert rig.heard("ps-0-1", AccountsWanted) == [AccountsWanted()]
    (wanted,) = rig.heard("worker-0-1", WriteResult)
    assert wanted == WriteResult(20, 1)
    rig.say("worker-0-1", result(20, 1))
    rig.say("ps-0-1", accounts_of(rig, 0))
    assert not isinstance(rig.journal[-1], FinishedRecord)
    rig.say("ps-1-1", accounts_of(rig, 1))
    assert isinstance(rig.journal[-1], FinishedRecord)
    assert rig.heard("worker-0-1", Finished)
    assert rig.heard("ps-0-1", Finished)
    assert events.Publish(result(20, 1).path) in rig.out
    assert rig.master.has_used_all_data


def test_another_worker_writes_the_result_if_the_first_one_dies() -> None:
    rig = Rig()
    rig.start("worker-0-1")
    train_all(rig)
    rig.say("ps-0-1", accounts_of(rig, 0))
    rig.say("ps-1-1", accounts_of(rig, 1))
    rig.die("worker-0-1")
    (lost,) = rig.announced(EventKind.LOST)
    assert lost.text == (
        "worker-0-1 has ended: killed by SIGKILL; nothing is left to train, and another one writes the model"
    )
    rig.connect("worker-1-1")
    assert rig.heard("worker-1-1", WriteResult) == [WriteResult(20, 2)]
    rig.say("worker-1-1", result(20, 1))
    assert not isinstance(rig.journal[-1], FinishedRecord)
    rig.say("worker-1-1", result(20, 2))
    end = rig.journal[-1]
    assert isinstance(end, FinishedRecord)
    assert end.path == result(20, 2).path


def test_training_ends_in_the_workers_that_do_not_write() -> None:
    rig = Rig()
    rig.start("worker-0-1", "worker-1-1")
    rig.connect("worker-2-1")
    rig.finish("worker-0-1", *range(9))
    assert rig.heard("worker-1-1", EndTraining) == []
    rig.say("worker-2-1", Leave((), 0))
    rig.finish("worker-0-1", 9)
    assert rig.heard("worker-0-1", WriteResult) == [WriteResult(20, 1)]
    assert rig.heard("worker-1-1", EndTraining) == [EndTraining(20)]
    assert rig.heard("worker-0-1", EndTraining) == []
    assert rig.heard("worker-2-1", EndTraining) == []  # it has left
    rig.tick()
    assert rig.heard("worker-1-1", EndTraining) == []
    rig.connect("worker-3-1")
    assert rig.heard("worker-3-1", EndTraining) == [EndTraining(20)]


def test_a_worker_that_dies_at_the_end_keeps_nobody_from_it() -> None:
    rig = Rig()
    rig.start("worker-0-1", "worker-1-1", "worker-2-1")
    rig.finish("worker-0-1", *range(10))
    rig.say("ps-0-1", accounts_of(rig, 0))
    rig.say("ps-1-1", accounts_of(rig, 1))
    rig.die("worker-0-1")
    assert rig.heard("worker-1-1", WriteResult) == [WriteResult(20, 2)]
    assert EndTraining(20) in rig.heard("worker-2-1", EndTraining)
    rig.die("worker-2-1")
    rig.say("worker-1-1", result(20, 2))
    assert isinstance(rig.journal[-1], FinishedRecord)


def test_the_next_master_says_the_end_again_and_after_the_result_that_alone() -> None:
    rig = Rig()
    rig.start("worker-0-1", "worker-1-1")
    rig.finish("worker-0-1", *range(10))
    rig.begin()
    for name in ("ps-0-1", "ps-1-1"):
        rig.connect(name, server=int(name[3]))
    rig.connect("worker-0-1")
    rig.connect("worker-1-1")
    assert rig.heard("worker-1-1", EndTraining) == [EndTraining(20)]
    rig.say("ps-0-1", accounts_of(rig, 0))
    rig.say("ps-1-1", accounts_of(rig, 1))
    rig.say("worker-0-1", result(20, 1))
    rig.begin()
    rig.connect("worker-1-1")
    assert rig.heard("worker-1-1", Finished)
    assert rig.heard("worker-1-1", EndTraining) == []


def test_training_that_begins_anew_after_its_end_ends_again_for_those_who_had_none() -> None:
    rig = Rig(replicas=1)
    rig.start("worker-0-1", "worker-1-1")
    rig.finish("worker-0-1", *range(10))
    rig.heard("worker-1-1", EndTraining)
    rig.die("ps-0-1")
    assert not rig.master.ends
    assert rig.heard("worker-1-1", EndTraining) == []
    rig.finish("worker-0-1", *range(10))
    assert rig.heard("worker-1-1", EndTraining) == [EndTraining(20)]


def test_a_stopped_job_writes_what_there_is_when_nobody_computes() -> None:
    rig = Rig()
    rig.start("worker-0-1", "worker-1-1")
    rig.say("worker-0-1", Settled(0, 1, 0, 0.5))
    rig.event(events.StopAsked(1, "enough"))
    assert rig.heard("worker-0-1", WriteResult) == []
    rig.say("worker-0-1", Leave((Holding(0, 1), Holding(1, 0)), 0))
    assert not rig.master.ends
    rig.say("worker-1-1", Leave((), 0))
    assert rig.heard("worker-0-1", WriteResult) == [WriteResult(1, 1)]


def test_a_stopped_job_writes_when_what_is_reported_is_journalled() -> None:
    rig = Rig()
    rig.start("worker-0-1", "worker-1-1")
    rig.event(events.StopAsked(1, "enough"))
    rig.say("worker-1-1", Leave((), 0))
    rig.say("worker-0-1", TaskDone(0, 0))
    assert rig.journal[-1] == DoneRecord((0,), 0)  # nobody waits for a batch then
    assert rig.heard("worker-0-1", WriteResult) == []
    rig.say("worker-0-1", Leave((Holding(1, 0),), 0))
    order = rig.master.order
    assert order is not None
    assert rig.heard("worker-0-1", WriteResult) == [WriteResult(order.chunks(TaskNumber(0)), 1)]


def test_an_error_of_the_program_fails_the_job_before_its_first_step() -> None:
    rig = Rig()
    rig.start("worker-0-1")
    rig.say("worker-0-1", ProgramFailed("program", "ValueError at m.py", "", "ValueError: no"))
    assert isinstance(rig.journal[-1], FailedRecord)
    assert rig.heard("worker-0-1", Failed)


def test_what_a_worker_failed_with_is_said_of_its_end() -> None:
    rig = Rig()
    rig.start("worker-0-1", "worker-1-1")
    rig.finish("worker-0-1", 0)
    rig.say("worker-0-1", ProgramFailed("program", "ValueError at m.py", "", "ValueError: no", 2))
    rig.die("worker-0-1")
    rig.die("worker-1-1")
    assert [lost.text for lost in rig.announced(EventKind.LOST)] == [
        "worker-0-1 is lost: it failed (ValueError at m.py); others continue with its tasks",
        "worker-1-1 is lost: killed by SIGKILL; its next life continues with its tasks",
    ]


@pytest.mark.parametrize("where", ["worker-0-2", "worker-1-1"])
def test_the_same_error_again_fails_the_job_and_says_who_had_it_before(where: str) -> None:
    rig = Rig()
    rig.start("worker-0-1", "worker-1-1")
    rig.finish("worker-0-1", 0)
    rig.say("worker-0-1", ProgramFailed("program", "ValueError at m.py", "", "ValueError: no", 2))
    rig.die("worker-0-1")
    if where not in rig.connections:
        rig.connect(where)
    rig.say(where, ProgramFailed("program", "ValueError at m.py", "", "ValueError: no", 2))
    end = rig.journal[-1]
    assert isinstance(end, FailedRecord)
    assert end.reason == f"{where} failed with the error that worker-0-1 had before: ValueError: no"


def test_what_cannot_be_written_is_all_that_is_said_when_it_fails_the_job() -> None:
    rig = Rig()
    rig.start("worker-0-1", "worker-1-1")
    rig.finish("worker-0-1", 0)
    full = ProgramFailed("unwritable", "no space", "", "no space; free some", 2)
    rig.say("worker-0-1", full)
    assert not isinstance(rig.journal[-1], FailedRecord)
    rig.say("worker-1-1", full)
    end = rig.journal[-1]
    assert isinstance(end, FailedRecord)
    assert end.reason == "no space; free some"


def test_the_same_numbers_come_of_the_journal_alone() -> None:
    rig = Rig(servers=3)
    rig.start("worker-0-1")
    rig.finish("worker-0-1", 1)
    rig.die("ps-2-1")
    before: Any = rig.master.journal
    rig.begin()
    assert replace(rig.master.journal, length=0, epoch=0) == replace(before, length=0, epoch=0)
    assert rig.master.steps == 2


# ------------------------------------------------------------------ gradients that are summed up


def leased(rig: Rig, worker: str) -> list[int]:
    return [lease.task for lease in rig.heard(worker, Leased)]


def test_workers_hear_which_tasks_of_a_wave_are_done() -> None:
    rig = Rig(wave=4)
    rig.start("worker-0-1", "worker-1-1")
    assert leased(rig, "worker-0-1") == [0, 1, 2, 3]  # the other one was not there yet
    assert leased(rig, "worker-1-1") == [3, 2]
    assert rig.heard("worker-0-1", RevokeTask) == [RevokeTask(2, 0), RevokeTask(3, 0)]
    rig.told.clear()
    rig.finish("worker-0-1", 2)
    assert rig.heard("worker-1-1", Watermark) == [Watermark(0, 0, (2,))]
    assert rig.master.steps_done == 0
    rig.say("worker-0-1", Settled(0, 1, 0, 0.5))
    rig.say("worker-0-1", Settled(1, 1, 0, 0.5))
    assert rig.master.steps_done == 0
    rig.say("worker-1-1", Settled(3, 1, 0, 0.5))
    assert rig.master.steps_done == 1
    rig.finish("worker-0-1", 0, 1, 3)
    assert rig.heard("worker-1-1", Watermark)[-1] == Watermark(4, 0, ())
    assert (rig.master.steps, rig.master.steps_done) == (2, 2)
    assert {*leased(rig, "worker-0-1"), *leased(rig, "worker-1-1")} == {4, 5, 6, 7}


def test_a_wave_that_is_done_is_journalled_at_once() -> None:
    rig = Rig(wave=2)
    rig.start("worker-0-1", "worker-1-1")
    rig.say("worker-0-1", TaskDone(0, 0))
    assert not isinstance(rig.journal[-1], DoneRecord)
    rig.say("worker-0-1", TaskDone(1, 0))
    assert rig.journal[-1] == DoneRecord((0, 1), 0)


def test_the_last_worker_has_the_whole_wave() -> None:
    rig = Rig(wave=4)
    rig.connect("worker-0-1")
    rig.connect("worker-1-1")
    rig.start()
    rig.say("worker-0-1", FoundModel(MODEL))
    assert (leased(rig, "worker-0-1"), leased(rig, "worker-1-1")) == ([0, 2], [1, 3])
    rig.say("worker-1-1", Settled(3, 1, 0, 0.5))
    rig.die("worker-1-1")
    assert rig.heard("worker-0-1", Leased) == [Leased(1, 0, 0), Leased(3, 1, 0)]


def cut_in_waves(wave: int = 4) -> Rig:
    """Bring a job to where slots are cut after its first wave."""
    rig = Rig(replicas=1, snapshots="/checkpoints", checkpoint_steps=2, wave=wave)
    rig.start("worker-0-1")
    assert leased(rig, "worker-0-1") == list(range(wave))
    rig.finish("worker-0-1", *range(wave))
    return rig


def test_slots_are_cut_between_two_waves() -> None:
    rig = cut_in_waves()
    assert rig.master.journal.cut == CutRecord(1, Done(TaskNumber(4)), 0, 2)
    (ordered,) = rig.heard("ps-0-1", CutOrdered)
    assert (ordered.low, ordered.above, ordered.step) == (4, (), 2)
    assert leased(rig, "worker-0-1") == []
    rig.cut("ps-0-1", 1, "a", (section(0, 1), section(2, 1)), "")
    assert leased(rig, "worker-0-1") == []
    rig.cut("ps-1-1", 1, "b", (section(1, 1), section(3, 1)), "")
    assert leased(rig, "worker-0-1") == [4, 5, 6, 7]
    (manifest,) = [one for one in rig.out if isinstance(one, events.WriteManifest)]
    assert (manifest.position, manifest.step) == (Done(TaskNumber(4)), 2)
    # Before the manifest is written the watermark stands still, and what is done beyond is told.
    rig.finish("worker-0-1", 5)
    assert rig.heard("worker-0-1", Watermark)[-1] == Watermark(4, 0, (5,))


def in_two_waves() -> Rig:
    """Bring a job to where its first wave is done, and its second one begun: slots are to be cut behind that."""
    rig = Rig(replicas=1, snapshots="/checkpoints", checkpoint_steps=2, wave=2)
    rig.start("worker-0-1", "worker-1-1")
    begun = [[lease.task for lease in mine] for mine in rig.master.leases.held.values()]
    assert sorted(map(sorted, begun)) in ([[0, 2], [1, 3]], [[0, 3], [1, 2]])
    rig.finish("worker-0-1", 0, 1)
    assert rig.master.journal.cut is None
    return rig


def test_a_wave_that_is_begun_comes_to_its_end_before_slots_are_cut() -> None:
    rig = in_two_waves()
    rig.finish("worker-0-1", 2)
    assert rig.master.journal.cut is None
    rig.finish("worker-1-1", 3)
    assert rig.master.journal.cut == CutRecord(1, Done(TaskNumber(4)), 0, 4)
    assert {*leased(rig, "worker-0-1"), *leased(rig, "worker-1-1")} == {0, 1, 2, 3}


def test_a_master_that_comes_back_lets_what_is_begun_come_to_its_end() -> None:
    rig = in_two_waves()
    rig.begin()
    rig.connect("ps-0-1", server=0)
    rig.connect("ps-1-1", server=1)
    rig.connect("worker-0-1")
    rig.connect("worker-1-1", (Holding(2, 1),))
    assert rig.master.journal.cut is None
    rig.tick(1.0)
    assert (leased(rig, "worker-0-1"), leased(rig, "worker-1-1")) == ([3], [])
    rig.finish("worker-1-1", 2)
    rig.finish("worker-0-1", 3)
    assert rig.master.journal.cut == CutRecord(1, Done(TaskNumber(4)), 0, 4)
    rig.told.clear()
    write_cut(rig)
    assert sorted(leased(rig, "worker-0-1") + leased(rig, "worker-1-1")) == [4, 5, 6, 7]


def test_training_goes_on_if_slots_hold_more_than_is_known() -> None:
    rig = cut_in_waves()
    for _ in range(FRUITLESS):
        rig.tick(1.2)
        if rig.heard("ps-0-1", CutOrdered):
            rig.cut("ps-0-1", 1, "a", (section(0, 1, until=5),), "")
    (note,) = rig.announced(EventKind.UNSAVED)
    assert "slots hold gradients of a later step; it is tried again later" in note.text
    assert leased(rig, "worker-0-1") == [4, 5, 6, 7]
    rig.finish("worker-0-1", 4, 5, 6, 7)
    assert rig.master.journal.cut == CutRecord(2, Done(TaskNumber(8)), 0, 4)


def test_the_loss_of_an_only_copy_takes_all_slots_back_to_the_last_snapshot() -> None:
    rig = cut_in_waves()
    write_cut(rig)
    rig.finish("worker-0-1", 4, 6)
    rig.told.clear()
    rig.die("ps-0-1")
    (placed,) = rig.heard("ps-1-1", Placed)
    assert [(one.primary, one.backup, one.restored) for one in placed.entries] == [(1, None, 1)] * SLOTS
    assert placed.snapshot == "/checkpoints/checkpoint-1/manifest.json"
    assert rig.heard("worker-0-1", Watermark) == [Watermark(4, 1, ())]
    assert leased(rig, "worker-0-1") == [4, 5, 6, 7]
    (lost,) = rig.announced(EventKind.LOST)
    assert "all slots are restored from the last snapshot" in lost.text
    assert rig.master.steps_done == 2


def test_without_a_snapshot_all_slots_begin_anew() -> None:
    rig = Rig(replicas=1, wave=4)
    rig.start("worker-0-1")
    rig.finish("worker-0-1", 0, 1, 2, 3)
    rig.told.clear()
    rig.die("ps-0-1")
    (placed,) = rig.heard("ps-1-1", Placed)
    assert {one.restored for one in placed.entries} == {1}
    assert placed.snapshot == ""
    assert leased(rig, "worker-0-1") == [0, 1, 2, 3]


def test_a_backup_that_takes_over_takes_nothing_back() -> None:
    rig = Rig(replicas=2, wave=4)
    rig.start("worker-0-1")
    rig.finish("worker-0-1", 0, 1)
    rig.die("ps-0-1")
    assert {one.restored for one in rig.master.journal.entries} == {0}
    assert rig.master.journal.done == Done(TaskNumber(2))


def test_a_wave_that_max_step_cuts_is_not_done_in_a_checkpoint() -> None:
    rig = Rig(replicas=1, snapshots="/checkpoints", checkpoint_steps=400, max_step=3, wave=4)
    rig.start("worker-0-1")
    rig.finish("worker-0-1", 0, 1, 2, 3)
    rig.finish("worker-0-1", 4, 5, 6, 7)
    assert rig.master.journal.cut == CutRecord(1, Done(TaskNumber(4)), 0, 3)
    assert rig.heard("worker-0-1", Watermark)[-1] == Watermark(4, 0, (4, 5, 6, 7))
    assert rig.master.why_finished == "max_step 3 is reached"
    assert not rig.heard("worker-0-1", WriteResult)
    rig.say("ps-0-1", accounts_of(rig, 0))
    rig.say("ps-1-1", accounts_of(rig, 1))
    (wanted,) = rig.heard("worker-0-1", WriteResult)
    assert wanted.steps == 3


def test_a_job_that_is_stopped_within_a_wave_ends_without_a_last_checkpoint() -> None:
    rig = Rig(replicas=1, snapshots="/checkpoints", checkpoint_steps=400, wave=4)
    rig.start("worker-0-1")
    rig.finish("worker-0-1", 0, 1, 2, 3)
    rig.say("worker-0-1", Settled(4, 1, 0, 0.5))
    rig.event(events.StopAsked(1, "enough"))
    rig.say("worker-0-1", Leave((Holding(4, 1), Holding(5, 0)), 0))
    rig.say("ps-0-1", accounts_of(rig, 0, steps=2))
    rig.say("ps-1-1", accounts_of(rig, 1, steps=1))
    (wanted,) = rig.heard("worker-0-1", WriteResult)
    assert wanted.steps == 2
    rig.say("worker-0-1", result(wanted.steps, wanted.attempt))
    assert isinstance(rig.journal[-1], FinishedRecord)
    assert rig.master.journal.cut is None
    (note,) = rig.announced(EventKind.NOTE)
    assert note.text == (
        "the job was stopped in the middle of a wave, where nothing whole can be written: it leaves no checkpoint"
    )


def test_a_job_goes_on_at_the_step_of_a_checkpoint() -> None:
    record = replace(resumed(), position=Done(TaskNumber(4)), step=2)
    rig = Rig(resumed=record, wave=4)
    rig.start("worker-0-1")
    (placed,) = rig.heard("ps-0-1", Placed)
    assert placed.snapshot == record.path
    assert leased(rig, "worker-0-1") == [4, 5, 6, 7]
    assert rig.master.steps == 2
    before: Any = rig.master.journal
    assert replace(read_journal(compact(rig.journal)), length=0) == replace(before, length=0)


def test_a_result_has_the_steps_that_servers_heard_of_from_a_worker_that_is_lost() -> None:
    rig = Rig(replicas=1, wave=4)
    rig.start("worker-0-1")
    rig.die("ps-1-1")
    rig.connect("ps-1-2")
    assert rig.master.journal.roll_back == 1
    rig.finish("worker-0-1", 0, 1, 2, 3)
    rig.event(events.StopAsked(1, "enough"))
    rig.die("worker-0-1")
    rig.connect("worker-1-1")
    rig.say("worker-1-1", Leave((), 1))
    # what a server heard before a roll-back means nothing
    rig.say("ps-1-2", replace(accounts_of(rig, 2, steps=9), roll_back=0))
    rig.say("ps-0-1", accounts_of(rig, 0, steps=3))
    assert [wanted.steps for wanted in rig.heard("worker-1-1", WriteResult)] == [3]
    assert rig.master.steps_done == 3
