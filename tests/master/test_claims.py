"""Whatever a process of the job says, no master ends by it, hangs, or notes what can't be: every message, any values, several moments."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from elasticdl.control.protocol.messages import (
    Exported,
    FoundShards,
    NextView,
    ProgramFailed,
    Register,
    Report,
)
from elasticdl.control.protocol.psmessages import AccountsWanted, WriteResult
from elasticdl.control.protocol.view import MemberId, StateId, ViewId
from elasticdl.data.plan.ledger import Ledger
from elasticdl.data.plan.schedule import Schedule
from elasticdl.data.plan.shard import Position, Shard
from elasticdl.files.output import unpublished_path
from elasticdl.master.core import events
from elasticdl.master.core.records import read_journal, record_from_json, record_to_json
from tests.master import test_machine as synchronous
from tests.master import test_serving as serving
from tests.master.lies import KINDS, likely

SECONDS = 5.0
"""Of the processor, for one message: far more than any takes, and far less than a loop over what it says."""
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
    rig.say("worker-0-1", serving.TaskDone(4, 0))


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
    rig.say("worker-0-1", serving.FoundModel(serving.MODEL))
    for _ in range(60):
        ends = [one for one in rig.out if isinstance(one, events.End)]
        if ends:
            return ends[0]
        roll_back = rig.master.journal.roll_back
        for worker in [name for name in rig.connections if name.startswith("worker")]:
            for lease in rig.master.leases.held.get(worker, ()):
                rig.say(worker, serving.TaskDone(lease.task, roll_back))
            if rig.master.journal.stopping is not None:
                rig.say(worker, serving.Leave((), roll_back))
        serving.copied(rig)
        for name in [name for name in rig.connections if name.startswith("ps")]:
            if rig.heard(name, AccountsWanted):
                number = rig.master._number_of(name)
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
@settings(max_examples=6, deadline=None, phases=[Phase.generate])
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
        said = likely(draw, kind, member, name, [serving.result(20, 1).path])
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


def plan(shards: tuple[Shard, ...]) -> Schedule:
    return Schedule(Ledger(shards, 2, 1, 0, shuffle=False), num_epochs=1, max_step=0)


class Group(synchronous.Desk):
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
@settings(max_examples=6, deadline=None, phases=[Phase.generate])
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
        said = likely(draw, kind, "b", synchronous.name("b"), [synchronous.RESULT, synchronous.SNAPSHOT])
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
