"""Whatever a process of the job says, no master ends by it, hangs, or notes what can't be: every message, any values, several moments."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from elasticdl.control.protocol.frozen import replace
from elasticdl.control.protocol.messages import (
    Cut,
    Evaluated,
    Exported,
    FoundShards,
    GateOpen,
    Lost,
    NextView,
    Note,
    ProgramFailed,
    Progress,
    Register,
    Report,
    Saved,
    StopJob,
    TaskLeased,
    TaskResult,
)
from elasticdl.control.protocol.psmessages import (
    Accounts,
    AccountsWanted,
    BarrierPassed,
    CopyOrdered,
    CopyReady,
    Enroll,
    FoundMetrics,
    FoundModel,
    Holding,
    Leave,
    Settled,
    SlotAccount,
    SlotsCut,
    TaskDone,
    Unreached,
    WriteResult,
)
from elasticdl.control.protocol.status import EventKind
from elasticdl.control.protocol.view import MemberId, StateId, ViewId
from elasticdl.data.plan.ledger import Ledger
from elasticdl.data.plan.schedule import Schedule
from elasticdl.data.plan.shard import Position, Shard
from elasticdl.errors import BadData, JobFailed
from elasticdl.files.output import unpublished_path
from elasticdl.master.core import events
from elasticdl.master.core.done import Done, TaskNumber
from elasticdl.master.core.entry import Entry, ServerId
from elasticdl.master.core.filepages import FilePages
from elasticdl.master.core.journal import Journal
from elasticdl.master.core.recordforms import record_from_json, record_to_json
from elasticdl.master.core.records import (
    DoneRecord,
    EvaluatedRecord,
    ModelRecord,
    PlacementRecord,
    PositionRecord,
    ViewRecord,
    read_journal,
)
from elasticdl.master.ps.liveness import number_of
from elasticdl.master.ps.machine import PsMaster
from tests.master import grouprig as synchronous
from tests.master import psrig as serving
from tests.master.lies import KINDS, likely

SECONDS = 5.0
"""Of the processor, for one message: far more than any takes, and far less than a loop over what it says."""
MOST = (1 << 63) - 1
S1, MIDDLE = synchronous.S1, synchronous.MIDDLE
ENDS = (ProgramFailed, FoundShards)
"""With these a program may end its job, or say what it trains on."""


def timed(say: Callable[[], object]) -> None:
    before = time.process_time()
    say()
    assert time.process_time() - before < SECONDS


def reads_back(journal: list[Any]) -> None:
    read_journal([record_from_json(record_to_json(record)) for record in journal])


# ------------------------------------------------------------------ parameter servers


def begun(rig: serving.Rig) -> None:
    rig.start("worker-0-1", "worker-1-1")


def waiting_for_data(rig: serving.Rig) -> None:
    for name in ("ps-0-1", "ps-1-1", "ps-2-1", "worker-0-1", "worker-1-1"):
        rig.connect(name)


def half_done(rig: serving.Rig) -> None:
    begun(rig)
    rig.finish("worker-0-1", 0, 1)
    rig.say("worker-0-1", TaskDone(4, 0))


def rolled_back(rig: serving.Rig) -> None:
    half_done(rig)
    rig.die("ps-0-1")
    rig.die("ps-2-1")
    for name in ("ps-0-2", "ps-2-2"):
        rig.connect(name)


def come_back(rig: serving.Rig) -> None:
    half_done(rig)
    names = list(rig.connections)
    rig.begin()
    for name in names:
        rig.connect(name, server=int(name[3]) if name.startswith("ps") else None)


def stopping(rig: serving.Rig) -> None:
    half_done(rig)
    rig.event(events.StopAsked(1, "enough"))


def all_trained(rig: serving.Rig) -> None:
    begun(rig)
    rig.finish("worker-0-1", *range(10))


def play(rig: serving.Rig) -> events.End:
    """Let the processes that are there bring the job to its end."""
    known = rig.master.journal.shards is not None
    if not known:
        rig.event(events.DataFound(serving.SHARDS))
    rig.say("worker-0-1", FoundModel(serving.MODEL))
    for _ in range(60):
        ends = [one for one in rig.out if isinstance(one, events.End)]
        if ends:
            return ends[0]
        roll_back = rig.master.journal.roll_back
        for worker in [name for name in rig.connections if name.startswith("worker")]:
            for lease in rig.master.work.leases.held.get(worker, ()):
                rig.say(worker, TaskDone(lease.task, roll_back))
            # One may have said that callbacks follow epochs: they do in all workers, or in none.
            for gate in rig.heard(worker, GateOpen):
                rig.say(worker, BarrierPassed(gate.state, ""))
            if rig.master.journal.stopping is not None:
                rig.say(worker, Leave((), roll_back))
        for name in list(rig.connections):
            for one in rig.heard(name, CopyOrdered):
                rig.say(name, CopyReady(one.slot, one.term, one.to, one.hands_over))
        for name in [name for name in rig.connections if name.startswith("ps")]:
            if rig.heard(name, AccountsWanted):
                number = number_of(rig.master.journal, name)
                assert number is not None
                rig.say(name, serving.accounts_of(rig, number))
        for worker in [name for name in rig.connections if name.startswith("worker")]:
            for wanted in rig.heard(worker, WriteResult):
                rig.say(worker, serving.result(wanted.steps, wanted.attempt))
        if any(isinstance(one, events.Publish) for one in rig.out) and not rig.master.published:
            rig.event(events.Published())
        rig.tick(0.3)
    raise AssertionError(f"the job does not end: {rig.master}")


MOMENTS = (waiting_for_data, begun, half_done, rolled_back, come_back, stopping, all_trained)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@settings(max_examples=6, phases=[Phase.generate])
@given(st.randoms(use_true_random=False), st.sampled_from(MOMENTS), st.sampled_from(["worker-1-1", "ps-1-1"]))
def test_a_confused_process_of_a_job_with_servers(
    kind: type, draw: random.Random, moment: Callable[[serving.Rig], None], name: str
) -> None:
    rig = serving.Rig(servers=3)
    moment(rig)
    member = serving.member(name)
    for _ in range(3):
        if name not in rig.connections or rig.master.over:
            break
        truths = {"member": member, "name": name, "roll_back": rig.master.journal.roll_back}
        said = likely(draw, kind, truths, [serving.result(20, 1).path])
        timed(lambda said=said: rig.say(name, said))
        rig.tick(0.3)
    reads_back(rig.journal)
    if kind in ENDS or rig.master.over:
        return
    rig.die(name)
    if name == "ps-1-1":
        rig.connect("ps-1-2")
    end = play(rig)
    assert end.status == "finished", end
    assert {who for who, _ in rig.refused} <= {name}
    rig.begin()  # the next master reads the same journal
    assert rig.master.journal.terminal is not None


# ------------------------------------------------------------------ synchronous


def plan(shards: tuple[Shard, ...], _: tuple[Shard, ...]) -> Schedule:
    return Schedule(Ledger(shards, 2, 1, 0, shuffle=False), num_epochs=1, max_step=0)


class Group(synchronous.Control):
    """Members `a` and `c` follow the protocol, `b` does not."""

    def __init__(self, *records: Any) -> None:
        self.log: list[events.Instruction] = []
        self.state = StateId(0, 1)
        self.there: set[str] = set()
        super().__init__(*records, workers=3, minimum=1, plan=plan)

    def _carry_out(self, said: tuple[events.Instruction, ...]) -> None:
        self.log += said
        super()._carry_out(said)

    def come(self, *letters: str) -> None:
        self.join(*letters)
        self.there |= {*letters}

    def last(self) -> None:
        """Let who follows the protocol seal the view at the end of the data, and the exporter write the result."""
        view = self.master.view
        if view is None:
            return
        if self.state.step == 0:
            self.state = StateId(16, view.id)
        for letter in sorted(self.there & {"a", "c", "d"}):
            rank = view.rank(MemberId(letter))
            if rank is None:
                continue
            if view.final and view.exporter == rank and view.base == self.state:
                path = unpublished_path(synchronous.OUTPUT, self.state.step, self.state.view)
                self.say(letter, Exported(view.id, self.state, path, ""))
            else:
                done = Report(view.id, view.id, self.state, Position(1, 0, 0, 0), frozenset(), False)
                self.say(letter, NextView(done))

    def play(self) -> events.End:
        if self.master.journal.shards is None:
            self.give(events.DataFound(synchronous.SHARDS))
        for _ in range(60):
            for one in self.log:
                if isinstance(one, events.End):
                    return one
            self.last()
            if any(isinstance(one, events.Publish) for one in self.log) and not self.master.published:
                self.give(events.Published())
            for letter in sorted(self.there):
                self.give(events.Beat(MemberId(letter), 0, 0, 0, 0.0))
            self.wait(1.0)
        raise AssertionError(f"the job does not end: {self.master}")


def gathering(desk: Group) -> None:
    desk.come("a", "b", "c")


def in_a_view(desk: Group) -> None:
    desk.give(events.DataFound(synchronous.SHARDS))
    desk.come("a", "b", "c")


def one_sealed(desk: Group) -> None:
    in_a_view(desk)
    desk.seal("a")


def with_a_joiner(desk: Group) -> None:
    desk.give(events.DataFound(synchronous.SHARDS))
    desk.come("a", "c", "d")
    desk.come("b")


def stopped(desk: Group) -> None:
    in_a_view(desk)
    desk.give(events.StopAsked(1, "enough"))


def in_the_final_view(desk: Group) -> None:
    stopped(desk)
    for letter in "abc":
        desk.seal(letter)
    desk.state = synchronous.S1


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@settings(max_examples=6, phases=[Phase.generate])
@given(
    st.randoms(use_true_random=False),
    st.sampled_from([gathering, in_a_view, one_sealed, with_a_joiner, stopped, in_the_final_view]),
    st.booleans(),
)
def test_a_confused_member_of_a_group(
    kind: type, draw: random.Random, moment: Callable[[Group], None], restarts: bool
) -> None:
    desk = Group()
    moment(desk)
    if restarts and desk.master.view is not None:
        before, desk = desk, Group(*desk.journal)
        desk.state, desk.there = before.state, before.there
        for letter in sorted(desk.there):
            blank = Report(ViewId(0), ViewId(0), None, None, frozenset(), False)
            who = f"worker-{ord(letter)}-0"
            desk.give(
                events.ConnectionOpened(ord(letter), MemberId(letter), who),
                events.Heard(ord(letter), Register(MemberId(letter), who, f"unix:{letter}", 1, blank)),
            )
    for _ in range(3):
        view = 0 if desk.master.view is None else desk.master.view.id
        truths: dict[str | type, Any] = {"member": "b", "name": synchronous.name("b"), "epoch": 1}
        if view:
            truths |= {"current": view, "sealed": view, "view": view}
            truths |= {StateId: S1, Position: MIDDLE, Report: synchronous.report(view)}
        said = likely(draw, kind, truths, [synchronous.RESULT, synchronous.SNAPSHOT])
        timed(lambda said=said: desk.say("b", said))
        desk.wait(0.1)
    reads_back(desk.journal)
    if kind in ENDS or desk.master.over:
        return
    desk.there.discard("b")
    desk.give(events.ConnectionLost(ord("b")), events.WorkerEnded(synchronous.name("b"), "killed"))
    end = desk.play()
    assert end.status == "finished", end
    refused = {one.connection for one in desk.log if isinstance(one, events.Refuse)}
    assert refused <= {ord("b")}
    Group(*desk.journal)  # the next master reads the same journal


# ------------------------------------------------------------------ one by one


def with_slots(slots: object) -> str:
    return json.dumps({**json.loads(serving.MODEL), "slots": slots}, sort_keys=True, separators=(",", ":"))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("worker-0-1", TaskDone(10**9, 0)),
        ("worker-0-1", TaskDone(-1, 0)),
        ("worker-0-1", TaskDone(9, 0)),  # leased to nobody yet
        ("worker-0-1", TaskDone(0, 1)),
        ("worker-0-1", Settled(0, 3, 0, None)),
        ("worker-0-1", Settled(10, 0, 0, None)),
        ("worker-0-1", Leave((Holding(9, 0),), 0)),
        ("worker-0-1", Enroll(serving.member("worker-0-1"), "worker-0-1", "", 1, None, (Holding(9, 0),), 0, False)),
        ("worker-0-1", Enroll(serving.member("worker-1-1"), "worker-1-1", "", 1, None, (), 0, False)),
        ("worker-0-1", Unreached((7,))),
        ("worker-0-1", Note(EventKind.EVICTED, ViewId(0), 0, "x")),
        ("worker-0-1", StopJob("x" * 1_000_000)),
        ("worker-0-1", Exported(ViewId(0), StateId(0, 1), "/etc/passwd", "")),
        ("worker-0-1", FoundMetrics("metrics")),  # nothing is evaluated in this job
        ("worker-0-1", TaskResult(StateId(0, 0), 0, b"")),
        ("worker-0-1", Evaluated(StateId(6, 0), ())),
        ("ps-0-1", CopyReady(10**9, 1, 1, False)),
        ("ps-0-1", CopyReady(-1, 1, 1, False)),
        ("ps-0-1", CopyReady(0, 2, 1, False)),
        ("ps-0-1", CopyReady(0, 1, 1, False)),  # that one is the backup
        ("ps-0-1", CopyReady(1, 1, 0, True)),  # another one's slot
        ("ps-0-1", CopyReady(0, 1, 7, True)),
        ("ps-0-1", Accounts((SlotAccount(-1, 1, 0, "0" * 32),), 0, 0)),
        ("ps-0-1", Accounts((SlotAccount(0, 1, 0, "x"),), 0, 0)),
        ("ps-0-1", Accounts((), 0, 1 << 62)),
        ("ps-0-1", SlotsCut(1, "/x", (), "")),
        ("ps-0-1", Enroll(serving.member("ps-0-1"), "ps-0-1", "nowhere", 1, 0, (), 0, False)),
        ("ps-0-1", Enroll(serving.member("ps-0-1"), "ps-0-1", "unix:/x", 1, 7, (), 0, False)),
    ],
)  # fmt: skip
def test_words_that_can_not_be_are_refused_and_never_journalled(name: str, said: Any) -> None:
    rig = serving.Rig()
    rig.start("worker-0-1")
    before = list(rig.journal)
    rig.say(name, said)
    ((who, reason),) = rig.refused
    assert who == name
    assert reason.startswith(f"{name} says {type(said).__name__}, which can't be: ")
    rig.tick(1.0)
    assert rig.journal == before
    rig.say(name, said)  # nobody listens there any more
    assert len(rig.refused) == 1


@pytest.mark.parametrize(
    "said",
    [
        FoundMetrics("others"),
        FoundMetrics("x" * 200_000),
        TaskResult(StateId(6, 0), 2, b""),
        TaskResult(StateId(6, 0), 0, b"x" * (5 << 20)),
        TaskResult(StateId(6, 1), 0, b""),  # there was no roll-back
        TaskResult(StateId(10, 0), 0, b""),  # the job has not come to it
        TaskResult(StateId(4, 0), 0, b""),  # where no barrier is
        TaskResult(StateId(1 << 62, 0), 0, b""),
        Evaluated(StateId(10, 0), ()),
        Evaluated(StateId(6, 0), (("x", 0.5),) * 1500),
        Enroll(serving.member("worker-0-1"), "worker-0-1", "", 1, None, ((3, 0),), 0, False),  # beyond the barrier
    ],
)  # fmt: skip
def test_words_of_evaluations_that_can_not_be_are_refused(said: Any) -> None:
    rig = serving.Rig(evaluation=serving.EVALUATION)
    rig.start("worker-0-1")
    rig.say("worker-0-1", FoundMetrics("metrics"))
    rig.finish("worker-0-1", 0, 1)
    rig.finish("worker-0-1", 2)
    assert rig.heard("worker-0-1", TaskLeased)
    before = list(rig.journal)
    timed(lambda: rig.say("worker-0-1", said))
    assert [who for who, _ in rig.refused] == ["worker-0-1"]
    rig.tick(0.5)
    assert rig.journal == before


@pytest.mark.parametrize(
    "catalog",
    ["nonsense", "", "{}", "[" * 20_000, with_slots("x"), with_slots(0), with_slots(20_000_000), f" {serving.MODEL}"],
)  # fmt: skip
def test_a_model_that_is_none_is_not_taken(catalog: str) -> None:
    rig = serving.Rig()
    waiting_for_data(rig)
    rig.event(events.DataFound(serving.SHARDS))
    timed(lambda: rig.say("worker-1-1", FoundModel(catalog)))
    assert [who for who, _ in rig.refused] == ["worker-1-1"]
    rig.say("worker-0-1", FoundModel(serving.MODEL))
    assert len(rig.master.journal.entries) == serving.SLOTS


def test_a_task_that_its_first_worker_lost_is_done_by_whoever_had_it() -> None:
    rig = serving.Rig()
    rig.start("worker-0-1")
    rig.disconnect("worker-0-1")
    rig.tick(12.0)
    rig.connect("worker-1-1")
    rig.connect("worker-0-1", (Holding(1, 0),))
    rig.finish("worker-0-1", 0)
    assert 0 in rig.master.journal.done
    assert not rig.refused


def test_a_result_that_a_roll_back_has_overtaken_is_no_lie() -> None:
    rig = serving.Rig(replicas=1)
    rig.start("worker-0-1")
    rig.finish("worker-0-1", *range(10))
    assert rig.heard("worker-0-1", WriteResult) == [WriteResult(20, 1)]
    rig.die("ps-1-1")
    assert rig.master.steps_done == 0
    rig.say("worker-0-1", serving.result(20, 1))  # on its way when the server was lost
    assert not rig.refused
    rig.connect("ps-1-2", server=None)
    rig.finish("worker-0-1", *range(10))
    rig.tick()
    (wanted,) = rig.heard("worker-0-1", WriteResult)
    rig.say("worker-0-1", serving.result(21, wanted.attempt))
    assert [who for who, _ in rig.refused] == ["worker-0-1"]


@pytest.mark.parametrize("wave", [0, 2])
def test_a_later_master_takes_the_word_of_those_who_were_there_before_it(wave: int) -> None:
    rig = serving.Rig(wave=wave)
    rig.start("worker-0-1")
    held = [lease.task for lease in rig.master.work.leases.held["worker-0-1"]]
    rig.begin()
    rig.connect("worker-0-1")
    rig.finish("worker-0-1", *held)  # told to a master that is gone, and no more held
    assert all(task in rig.master.journal.done for task in held)
    rig.disconnect("worker-0-1")
    rig.connect("worker-0-1")  # it has seen this one by now
    assert rig.master.liveness.seen[serving.member("worker-0-1")].is_elder
    assert not rig.refused
    far = rig.master.work.leases.inherited
    assert far == (4 if wave else 10)
    rig.begin()
    rig.connect("worker-1-1")  # nobody can have leased it anything
    rig.say("worker-1-1", TaskDone(9, 0))
    assert [who for who, _ in rig.refused] == ["worker-1-1"]


def test_after_a_roll_back_a_later_master_knows_all_leases() -> None:
    rig = serving.Rig(replicas=1)
    rig.start("worker-0-1")
    rig.begin()
    rig.connect("worker-0-1")
    rig.connect("ps-1-1", server=1)
    rig.die("ps-0-1")
    assert rig.master.journal.roll_back == 1
    rig.say("worker-0-1", TaskDone(0, 0))  # means nothing any more
    assert not rig.refused
    rig.say("worker-0-1", TaskDone(9, 1))
    assert rig.refused
    assert not rig.master.work.reported.tasks


@pytest.mark.parametrize(
    "said",
    [
        NextView(Report(ViewId(1), ViewId(1 << 62), S1, MIDDLE, frozenset(), False)),
        NextView(Report(ViewId(1), ViewId(1), S1, Position(0, 0, 1 << 62, 0), frozenset(), False)),
        NextView(Report(ViewId(1), ViewId(1), S1, Position(0, 1 << 62, 2, 0), frozenset(), False)),
        NextView(Report(ViewId(1), ViewId(1), S1, Position(MOST, 0, 0, 0), frozenset(), False)),
        NextView(Report(ViewId(1), ViewId(1), StateId(1 << 62, 1), MIDDLE, frozenset(), False)),
        NextView(Report(ViewId(1), ViewId(1), StateId(1, 9), MIDDLE, frozenset(), False)),
        NextView(Report(ViewId(1), ViewId(1), S1, MIDDLE, frozenset({2}), False)),
        NextView(Report(ViewId(1), ViewId(1), S1, None, frozenset(), False)),
        Progress(ViewId(9), S1, MIDDLE, None, 0),
        Progress(ViewId(1), S1, Position(0, 0, 2, 7), None, 0),
        Progress(ViewId(1), S1, MIDDLE, None, 0, (("x", 0.0),) * 2000),
        Lost(ViewId(9), 1, None, "eof"),
        Saved(Cut(ViewId(1), S1, False), MIDDLE, "/etc/passwd"),
        Saved(
            Cut(ViewId(1), StateId(1, 2), False), MIDDLE, "/snapshots/.checkpoint-step-1-view-1.draft/part-0"
        ),
        Saved(
            Cut(ViewId(1), S1, False), MIDDLE, "/snapshots/.checkpoint-step-1-view-1.draft/part-0", 4, 5, 8
        ),
    ],
)
def test_a_member_s_words_that_can_not_be_are_refused_and_never_journalled(said: Any) -> None:
    desk = synchronous.group("a", "b")
    before = list(desk.journal)
    timed(lambda: desk.say("b", said))
    (refused,) = [one for one in desk.said if isinstance(one, events.Refuse)]
    assert refused.connection == ord("b")
    desk.wait(0.1)
    assert desk.journal == before
    desk.give(events.WorkerEnded(synchronous.name("b"), "exit code 1"))
    desk.seal("a")
    assert desk.members == ["a"]


# ------------------------------------------------------------------ journals of masters that believed everything


def open_journal(settings: serving.Settings, journal: Journal) -> None:
    """Begin a master's life as the runner does."""
    records, length = journal.read()
    try:
        PsMaster(settings).handle(0.0, events.JournalRead(records, length))
    except BadData as error:
        raise journal.contradicts(str(error)) from error


@pytest.mark.parametrize(
    ("record", "why"),
    [
        (DoneRecord((TaskNumber(10**9),), 0), "task 1000000000 is done, and the data has 10 tasks"),
        (PositionRecord(Done(TaskNumber(1 << 62)), 0), "the data has 10 tasks"),
        (PlacementRecord(entries=((4, Entry(1, 1, ServerId(0), None)),)), "5 slots are placed, and the model has 4"),
        (PlacementRecord(entries=((10**4, Entry(1, 1, ServerId(0), None)),)), "slot 10000 is placed"),
        (PlacementRecord(entries=((3, Entry(2, 1, ServerId(0), ServerId(9))),)), "numbers were given to 2"),
        (PlacementRecord(entries=((3, Entry(2, 1, ServerId(0), ServerId(0))),)), "servers 0 and 0"),
        (ModelRecord("nonsense"), "the model that it has is none"),
        (EvaluatedRecord(StateId(6, 0), (), 1.0, TaskNumber(3)), "step 6 is evaluated at task 3, and the job has come to no such barrier"),
    ],
)  # fmt: skip
def test_a_journal_that_says_what_can_not_be_is_refused(record: Any, why: str, tmp_path: Path) -> None:
    rig = serving.Rig()
    rig.start("worker-0-1")
    journal = Journal(FilePages(tmp_path))
    for number, one in enumerate([*rig.journal, record], 1):
        journal.append(number, one)
    with pytest.raises(JobFailed, match=why) as caught:
        open_journal(rig.settings, journal)
    assert str(tmp_path) in str(caught.value)
    assert "start the job again" in str(caught.value)


@pytest.mark.parametrize(
    ("record", "why"),
    [
        (EvaluatedRecord(StateId(10, 0), (), 1.0, TaskNumber(5)), "come to no such barrier"),
        (EvaluatedRecord(StateId(6, 0), (), 1.0, TaskNumber(2)), "come to no such barrier"),
        (EvaluatedRecord(StateId(4, 0), (), 1.0, TaskNumber(2)), "come to no such barrier"),
        (EvaluatedRecord(StateId(1 << 62, 0), (), 1.0, TaskNumber(1 << 62)), "come to no such barrier"),
        (EvaluatedRecord(StateId(6, 0), (), 1.0), "come to no such barrier"),
        (EvaluatedRecord(StateId(6, 1), (), 1.0, TaskNumber(3)), "in roll-back 1, and the last one is 0"),
    ],
)
def test_a_journal_with_metrics_of_what_is_no_barrier_is_refused(
    record: Any, why: str, tmp_path: Path
) -> None:
    rig = serving.Rig(evaluation=serving.EVALUATION)
    rig.start("worker-0-1")
    rig.finish("worker-0-1", 0, 1)
    rig.finish("worker-0-1", 2)
    journal = Journal(FilePages(tmp_path))
    for number, one in enumerate([*rig.journal, record], 1):
        journal.append(number, one)
    with pytest.raises(JobFailed, match=why):
        open_journal(rig.settings, journal)


def test_a_journal_with_a_view_that_can_not_be_is_refused() -> None:
    desk = synchronous.group("a", "b")
    for wrong in (
        {"position": Position(0, 0, 1 << 62, 0)},
        {"first": (0, 2)},
        {"exporter": 2},
        {"sources": ()},
        {"members": (), "sources": ()},
    ):
        record = ViewRecord(replace(desk.view, **wrong))  # type: ignore[arg-type]
        with pytest.raises(BadData, match="view 1"):
            synchronous.Control(*desk.journal, record)
