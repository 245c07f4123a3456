"""The member's rules, literally: events in, instructions out."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from elasticdl.cluster.cluster import RELEASED
from elasticdl.control.protocol.frozen import replace
from elasticdl.control.protocol.messages import (
    SLOW,
    Acknowledged,
    Cut,
    Evicted,
    Exported,
    Failed,
    Finished,
    Lost,
    NewView,
    NextView,
    Pending,
    ProgramFailed,
    Register,
    Released,
    Report,
    Saved,
    Stop,
    StopJob,
    Welcome,
    saved_as,
    unsaved_as,
)
from elasticdl.control.protocol.view import MemberId, Peer, StateId, View, ViewId
from elasticdl.data.plan.ledger import Ledger
from elasticdl.data.plan.schedule import Schedule
from elasticdl.data.plan.shard import Position, Shard
from elasticdl.worker.allreduce.machine import Member
from elasticdl.worker.allreduce.snapshots import Saving
from elasticdl.worker.events import (
    Applied,
    ChunkComputed,
    CloseView,
    Commit,
    Compute,
    Connected,
    Contribute,
    Disconnected,
    DrainRequested,
    EndTraining,
    Exit,
    Export,
    ExportWritten,
    Heal,
    Healed,
    HealeeLeft,
    HealFailed,
    OpenView,
    PartWritten,
    ProgramError,
    Received,
    RingCompleted,
    RingFailed,
    Send,
    ServeState,
    StopRequested,
    TakePart,
    Tick,
    Trailer,
    WorkCancelled,
)

# two tasks of two chunks of one record: with K = 2 an epoch is two steps
SCHEDULE = Schedule(Ledger((Shard("s", 0, 4),), 2, 1, 0, shuffle=False), num_epochs=2, max_step=0)
START = SCHEDULE.start(2)
A, B, C = (Peer(MemberId(x), f"worker-{i}-0", f"unix:{x}") for i, x in enumerate("abc"))
INITIAL = StateId(0, 1)
NOTHING = Report(ViewId(0), ViewId(0), None, None, frozenset(), False)


def view(number: int, members: tuple[Peer, ...] = (A, B), **changes: Any) -> View:
    plain = View(
        id=ViewId(number),
        members=members,
        base=INITIAL,
        position=START,
        first=(0, 1),
        later=tuple(lane % len(members) for lane in range(2)),
        wave_lanes=2,
        sources=(None,) * len(members),
    )
    return dataclasses.replace(plain, **changes)


def run(member: Member, *events: Any) -> tuple[Member, list[Any]]:
    """Give events one after the other; return the member and what the last one led to."""
    said: tuple[Any, ...] = ()
    for event in events:
        member, said = member.handle(event)
    return member, list(said)


def joiner(**changes: Any) -> Member:
    member = Member(MemberId("a"), "worker-0-0", "unix:a", SCHEDULE, **changes)
    return run(member, Connected(), Received(Welcome(1)))[0]


def trained(**changes: Any) -> Member:
    """A member that holds the initial state and trains in view 1 with B; it has been asked for the chunk of lane 0."""
    member = joiner(**changes)
    member, _ = run(
        member, Received(NewView(view(1, sources=("initial", "a")))), Healed(ViewId(1), INITIAL, START)
    )
    member, _ = run(member, HealeeLeft(ViewId(1), B.id, True))
    return member


def chunk(lane: int) -> ChunkComputed:
    return ChunkComputed(lane, 1, 1.0, 0.5)


def full(flag: int = 0) -> Trailer:
    return Trailer(2, 2.0, 1.0, 2.0, flag, (1, 1))


def ring(number: int, step: int, flag: int = 0) -> RingCompleted:
    return RingCompleted(ViewId(number), step, full(flag))


def after(steps: int) -> Position:
    position = START
    for _ in range(steps):
        position = SCHEDULE.advance(position, 2)
    return position


def sent(instructions: list[Any]) -> list[Any]:
    return [instruction.message for instruction in instructions if isinstance(instruction, Send)]


# ------------------------------------------------------------------ joining and healing


def test_a_member_registers_first_on_every_connection() -> None:
    member = Member(MemberId("a"), "worker-0-0", "unix:a", SCHEDULE)
    member, said = run(member, Connected())
    assert said == [Send(Register(MemberId("a"), "worker-0-0", "unix:a", 0, NOTHING))]
    member, said = run(member, Received(Welcome(4)), Disconnected(), Connected())
    assert said == [Send(Register(MemberId("a"), "worker-0-0", "unix:a", 4, NOTHING))]


def test_the_first_member_makes_the_weights_and_the_others_heal_from_it() -> None:
    first = view(1, sources=("initial", "a"))
    member, said = run(joiner(), Received(NewView(first)))
    assert said == [OpenView(first, keep=False), Heal(ViewId(1), INITIAL, START, "initial", None)]
    member, said = run(member, Healed(ViewId(1), INITIAL, START))
    assert said[-1] == Compute(1, START, 0)
    assert member.healees == {B.id}


def test_a_joiner_without_a_lane_gives_zeros_while_it_heals() -> None:
    with_joiner = view(2, (B, A), first=(0, 0), sources=(None, "b"))
    member, said = run(joiner(), Received(NewView(with_joiner)))
    assert said[1:] == [
        Heal(ViewId(2), INITIAL, START, "b", None),
        Contribute(ViewId(2), 1, 2, (), Trailer(0, 0.0, 0.0, 0.0, 0, (0, 0)), blank=True),
    ]
    # M5: nothing is committed before the state is there
    member, said = run(member, ring(2, 1))
    assert said == []
    member, said = run(member, Healed(ViewId(2), INITIAL, START))
    assert said[-1] == Commit(ViewId(2), StateId(1, 2), after(1), full(), epoch_ended=False)


def test_a_joiner_with_a_lane_heals_before_it_computes() -> None:
    member, said = run(joiner(), Received(NewView(view(2, (B, A), first=(0, 1), sources=(None, "b")))))
    assert said[1:] == [Heal(ViewId(2), INITIAL, START, "b", None)]
    member, said = run(member, Healed(ViewId(2), INITIAL, START))
    assert said[-1] == Compute(1, START, 1)


def test_a_snapshot_is_loaded_from_the_path_of_the_view() -> None:
    state, position = StateId(2, 1), after(2)
    resumed = view(3, base=state, position=position, sources=("snapshot", "snapshot"), snapshot="/s/2")
    _, said = run(joiner(), Received(NewView(resumed)))
    assert said[1] == Heal(ViewId(3), state, position, "snapshot", "/s/2")


def test_a_lost_donor_ends_the_view() -> None:
    member, _ = run(joiner(), Received(NewView(view(2, (B, A), first=(0, 1), sources=(None, "b")))))
    member, said = run(member, HealFailed(ViewId(2), "eof"))
    assert sent(said)[0] == Lost(ViewId(2), 1, B.id, "eof")
    assert CloseView(ViewId(2), linger=False) in said
    assert sent(said)[-1].report == Report(ViewId(2), ViewId(2), None, None, frozenset(), False)


def test_a_promise_waits_until_it_is_known_which_state_a_cancelled_heal_leaves() -> None:
    # memory may hold the old state or the new one; a promise about the wrong one could not be kept
    member, _ = run(joiner(), Received(NewView(view(2, (B, A), first=(0, 1), sources=(None, "b")))))
    member, said = run(member, Received(Stop(ViewId(2))))
    assert sent(said) == []
    _, said = run(member, Healed(ViewId(2), INITIAL, START))
    assert sent(said)[-1].report.state == INITIAL
    _, said = run(member, WorkCancelled())
    assert sent(said)[-1].report.state is None
    # a connection that opens in between says nothing that it would have to take back
    _, said = run(member, Disconnected(), Connected())
    assert sent(said)[0].report.sealed == 1


@pytest.mark.parametrize(
    "outcomes",
    [
        (WorkCancelled(), WorkCancelled()),
        (RingFailed(ViewId(2), 1, None, "eof"), WorkCancelled()),
        (WorkCancelled(), HealFailed(ViewId(2), "eof")),
    ],
)
def test_both_pieces_of_a_joiner_come_back_after_a_seal(outcomes: tuple[Any, ...]) -> None:
    member, _ = run(
        joiner(),
        Received(NewView(view(2, (B, A), first=(0, 0), sources=(None, "b")))),
        Received(Stop(ViewId(2))),
    )
    member, said = run(member, outcomes[0])
    assert sent(said) == []
    member, said = run(member, outcomes[1])
    assert isinstance(sent(said)[-1], NextView)
    _again, said = run(member, Received(NewView(view(3, (B, A), first=(0, 1), sources=(None, "b")))))
    assert [type(instruction) for instruction in said] == [OpenView, Heal]


# ------------------------------------------------------------------ the step


def test_a_step_computes_contributes_and_commits() -> None:
    member = trained()
    member, said = run(member, chunk(0))
    (given,) = said
    assert given.trailer == Trailer(1, 1.0, 0.5, 1.0, 0, (1, 0))
    assert [(line.lane, line.chunk) for line in given.lines] == [(0, 0)]
    member, said = run(member, ring(1, 1))
    assert said == [Commit(ViewId(1), StateId(1, 1), after(1), full(), epoch_ended=False)]
    assert member.accumulator.lanes == frozenset()
    member, said = run(member, Applied(StateId(1, 1)))
    assert said[-1] == Compute(2, after(1), 0)


def test_a_member_contributes_once() -> None:
    member, _ = run(trained(), chunk(0))
    _, said = run(member, Tick())
    assert said == []


def test_the_flag_is_raised_while_a_change_is_pending() -> None:
    _member, said = run(trained(), Received(Pending(ViewId(1))), chunk(0))
    assert said[0].trailer.flag == 1
    _member, said = run(trained(), Received(Pending(ViewId(7))), chunk(0))
    assert said[0].trailer.flag == 0


def test_a_flag_in_the_trailer_seals_after_the_commit() -> None:
    _member, said = run(trained(), chunk(0), ring(1, 1, flag=1), Applied(StateId(1, 1)))
    assert said[-2] == CloseView(ViewId(1), linger=True)
    assert sent(said)[-1] == NextView(
        Report(ViewId(1), ViewId(1), StateId(1, 1), after(1), frozenset(), False)
    )


def test_a_donor_does_not_commit_before_its_healees_are_free() -> None:
    member, said = run(
        joiner(),
        Received(NewView(view(1, sources=("initial", "a")))),
        Healed(ViewId(1), INITIAL, START),
        chunk(0),
        ring(1, 1),
    )
    assert said == []
    _, said = run(member, HealeeLeft(ViewId(9), B.id, True))
    assert said == []
    _, said = run(member, HealeeLeft(ViewId(1), B.id, False))
    assert isinstance(said[0], Commit)


def test_a_donor_serves_exactly_the_base() -> None:
    member, _ = run(trained(), Received(Stop(ViewId(1))), WorkCancelled())
    third = view(2, (A, B, C), sources=(None, None, "a"))
    _, said = run(member, Received(NewView(third)))
    assert said[1] == ServeState(ViewId(2), INITIAL, START, (C.id,))


def test_a_trailer_that_counts_a_chunk_twice_is_a_failure() -> None:
    _member, said = run(
        trained(), chunk(0), RingCompleted(ViewId(1), 1, Trailer(3, 3.0, 1.0, 3.0, 0, (2, 1)))
    )
    assert not any(isinstance(instruction, Commit) for instruction in said)
    assert isinstance(sent(said)[-1], ProgramFailed)


# ------------------------------------------------------------------ sealing


def test_a_broken_ring_seals_and_keeps_the_accumulator() -> None:
    _member, said = run(trained(), chunk(0), RingFailed(ViewId(1), 1, B.id, "eof"))
    assert said == [
        Send(Lost(ViewId(1), 1, B.id, "eof")),
        CloseView(ViewId(1), linger=False),
        Send(NextView(Report(ViewId(1), ViewId(1), INITIAL, START, frozenset({0}), False))),
    ]


def test_a_ring_that_completes_after_the_promise_is_not_committed() -> None:
    member, _ = run(trained(), chunk(0), Received(Stop(ViewId(1))))
    member, said = run(member, ring(1, 1))
    assert said == []
    assert member.state == INITIAL


def test_stop_seals_a_view_that_never_came() -> None:
    member, said = run(joiner(), Received(Stop(ViewId(3))))
    assert sent(said) == [NextView(Report(ViewId(0), ViewId(3), None, None, frozenset(), False))]
    # M1: what was sealed is never installed, a later one is
    member, said = run(member, Received(NewView(view(3))))
    assert said == []
    _, said = run(member, Received(NewView(view(4, sources=("b", None)))))
    assert isinstance(said[0], OpenView)


def test_an_old_stop_is_ignored() -> None:
    member, _ = run(trained(), Received(Stop(ViewId(1))), WorkCancelled(), Received(NewView(view(2))))
    assert member.active
    member, said = run(member, Received(Stop(ViewId(1))))
    assert said == []
    assert member.active


def test_a_view_that_does_not_name_me_is_not_installed() -> None:
    _, said = run(joiner(), Received(NewView(view(1, (B, C)))))
    assert said == []


def test_the_promise_is_repeated_unchanged_though_a_chunk_came_late() -> None:
    member, said = run(trained(), Received(Stop(ViewId(1))))
    (promise,) = sent(said)
    member, said = run(member, chunk(0))
    assert said == []
    assert member.accumulator.lanes == {0}
    _, said = run(member, Disconnected(), Connected())
    assert sent(said)[1] == promise
    _, said = run(member, Tick())
    assert sent(said) == [promise]


def test_a_view_waits_for_the_work_of_the_old_one() -> None:
    member, _ = run(trained(), Received(Stop(ViewId(1))))
    member, said = run(member, Received(NewView(view(2))))
    assert said == []
    member, said = run(member, chunk(0))
    # the late chunk counts: it is mine again, so only the contribution is missing
    assert said[0] == OpenView(view(2), keep=True)
    assert isinstance(said[1], Contribute)


def test_a_chunk_of_somebody_else_empties_the_accumulator() -> None:
    member, _ = run(trained(), chunk(0), RingFailed(ViewId(1), 1, B.id, "eof"))
    swapped = view(2, first=(1, 0))
    _, said = run(member, Received(NewView(swapped)))
    assert said == [OpenView(swapped, keep=False), Compute(1, START, 1)]


def test_a_healed_member_starts_empty() -> None:
    member, _ = run(trained(), chunk(0), RingFailed(ViewId(1), 1, B.id, "eof"))
    ahead = view(2, base=StateId(1, 1), position=after(1), sources=("b", None))
    member, said = run(member, Received(NewView(ahead)))
    assert said == [OpenView(ahead, keep=False), Heal(ViewId(2), StateId(1, 1), after(1), "b", None)]
    member, said = run(member, Healed(ViewId(2), StateId(1, 1), after(1)))
    assert said[-1] == Compute(2, after(1), 0)


def test_a_seal_during_the_apply_reports_the_new_state() -> None:
    member, said = run(trained(), chunk(0), ring(1, 1), Received(Stop(ViewId(1))))
    assert sent(said)[-1].report.state == StateId(1, 1)
    member, said = run(member, Received(NewView(view(2, base=StateId(1, 1), position=after(1)))))
    assert said == []
    _, said = run(member, Applied(StateId(1, 1)))
    assert [type(instruction) for instruction in said] == [OpenView, Compute]


def test_the_last_step_seals() -> None:
    short = Schedule(SCHEDULE.ledger, num_epochs=2, max_step=1)
    member = dataclasses.replace(trained(), schedule=short)
    _, said = run(member, chunk(0), ring(1, 1), Applied(StateId(1, 1)))
    assert isinstance(sent(said)[-1], NextView)


# ------------------------------------------------------------------ masters


def test_a_lower_master_epoch_is_not_followed() -> None:
    member, _ = run(joiner(), Received(Welcome(3)), Disconnected(), Connected(), Received(Welcome(2)))
    member, said = run(member, Received(NewView(view(1, sources=("initial", "a")))))
    assert said == []
    _, said = run(member, Disconnected(), Connected())
    assert sent(said)[0].epoch == 3


@pytest.mark.parametrize(
    ("verdict", "code"), [(Evicted("x"), 3), (Released("x"), RELEASED), (Finished("x"), 0), (Failed("x"), 1)]
)
def test_a_verdict_ends_the_process(verdict: Any, code: int) -> None:
    member, said = run(trained(), Received(verdict))
    assert said[-1] == Exit(code, "x")
    assert run(member, Tick(), chunk(0))[1] == []


def test_a_drain_is_told_at_once_and_in_the_next_promise() -> None:
    member, said = run(trained(), DrainRequested())
    assert sent(said)[0].report.draining
    _, said = run(member, Received(Stop(ViewId(1))))
    assert sent(said)[-1].report.draining


def test_a_drain_after_the_promise_changes_nothing_else_of_it() -> None:
    member, said = run(trained(), Received(Stop(ViewId(1))))
    promise = sent(said)[-1].report
    _, said = run(member, DrainRequested())
    assert sent(said)[-1] == NextView(replace(promise, draining=True))


def test_a_wish_to_stop_is_repeated_until_it_is_acknowledged() -> None:
    member, said = run(trained(), StopRequested("loss is low"))
    wish, promise = sent(said)
    assert wish == StopJob("loss is low")
    assert sent(run(member, Tick())[1]) == [wish, promise]
    member, _ = run(member, Received(Acknowledged("stop_job")))
    assert sent(run(member, Tick())[1]) == [promise]


def test_another_master_hears_of_a_wish_to_stop_before_the_promise() -> None:
    """It would answer the promises of all with an ordinary view."""
    member, said = run(trained(), StopRequested("loss is low"))
    wish, promise = sent(said)
    assert isinstance(promise, NextView)
    register, *others = sent(run(member, Disconnected(), Connected())[1])
    assert isinstance(register, Register)
    assert register.report.sealed < promise.report.sealed
    assert others == [wish, promise]


@pytest.mark.parametrize("flag", [0, 1], ids=["", "a joiner waits"])
def test_a_callback_that_stops_ends_the_view_at_this_very_step(flag: int) -> None:
    """All members run the same callbacks, so nobody continues to the next step; the wish comes before the promise."""
    member, _ = run(trained(), chunk(0), ring(1, 1, flag=flag))
    member, said = run(member, Applied(StateId(1, 1), "loss is low"))
    wish, _progress, promise = sent(said)
    assert isinstance(promise, NextView)
    assert (wish, promise.report.sealed, promise.report.state) == (StopJob("loss is low"), 1, StateId(1, 1))
    member, said = run(member, chunk(0), ring(1, 2))
    assert not any(isinstance(instruction, Commit | Contribute) for instruction in said)


# ------------------------------------------------------------------ snapshots, the end


EACH = Saving(every=1)
FIRST = Cut(ViewId(1), StateId(1, 1), False)


def saved(cut: Cut, position: Position, error: str = "") -> Saved:
    return Saved(cut, position, "/s/part-0", 0, 8, 16, 1, "head", error)


def test_each_member_copies_its_part_after_the_commit_and_repeats_that_it_is_written() -> None:
    member, said = run(trained(saving=EACH), chunk(0), ring(1, 1), Applied(StateId(1, 1)))
    assert TakePart(FIRST, after(1), 0, 2) in said
    part = saved(FIRST, after(1))
    member, said = run(member, PartWritten(part))
    assert sent(said) == [part]
    assert part in sent(run(member, Tick())[1])
    other, _ = run(member, Received(Acknowledged(saved_as(Cut(ViewId(1), StateId(9, 1), False)))))
    assert other.snapshots.saved == (part,)
    for answer in (saved_as(FIRST), unsaved_as(FIRST)):
        after_it, _ = run(member, Received(Acknowledged(answer)))
        assert after_it.snapshots.saved == ()
        assert (after_it.snapshots.kept == StateId(1, 1)) == (answer == saved_as(FIRST))


def test_a_part_that_the_view_does_not_outlast_is_given_up() -> None:
    """D6: a report under another view says nothing of what all members of that one hold."""
    written = PartWritten(saved(FIRST, after(1)))
    following = Received(NewView(view(2, base=StateId(1, 1), position=after(1))))
    member, _ = run(trained(saving=EACH), chunk(0), ring(1, 1), Applied(StateId(1, 1)))
    early, _ = run(member, written, Received(Stop(ViewId(1))), WorkCancelled())
    early, said = run(early, following, Tick())
    late, _ = run(member, Received(Stop(ViewId(1))), WorkCancelled(), following)
    late, said_late = run(late, written, Tick())
    for which, told in ((early, said), (late, said_late)):
        assert which.snapshots.saved == ()
        assert not any(isinstance(message, Saved) for message in sent(told))


def busy(*, lasting: bool) -> tuple[Member, list[Any], list[Any]]:
    """Return a member with two parts that are not written, after the commit of a third step; and what it has said of it."""
    member, told = trained(saving=Saving(1, lasting)), []
    for step in (1, 2, 3):
        member, said = run(member, chunk(0), ring(1, step), Applied(StateId(step, 1)))
        told += said
    return member, told, said


def test_a_member_whose_storage_is_too_slow_for_snapshots_makes_no_third_copy() -> None:
    _, told, said = busy(lasting=False)
    assert sum(isinstance(instruction, TakePart) for instruction in told) == 2
    (left_out,) = (message for message in sent(said) if isinstance(message, Saved))
    assert (left_out.cut.state, left_out.error) == (StateId(3, 1), SLOW)
    assert any(isinstance(instruction, Compute) for instruction in said)


def test_training_waits_for_a_checkpoint_until_storage_has_room_and_not_for_ever() -> None:
    member, told, said = busy(lasting=True)
    assert sum(isinstance(instruction, TakePart) for instruction in told) == 2
    assert not any(isinstance(instruction, Compute) for instruction in said)
    third = TakePart(Cut(ViewId(1), StateId(3, 1), False), after(3), 0, 2)
    _, said = run(member, PartWritten(saved(FIRST, after(1))))
    assert third in said
    assert any(isinstance(instruction, Compute) for instruction in said)
    member, said = run(member, *[Tick()] * 9)
    assert said == []
    _, said = run(member, Tick())
    assert [message.error for message in sent(said) if isinstance(message, Saved)] == [SLOW]
    assert any(isinstance(instruction, Compute) for instruction in said)


@pytest.mark.parametrize("lasting", [False, True])
def test_the_end_of_the_data_waits_for_checkpoints_on_their_way(lasting: bool) -> None:
    """The next view would give them up."""
    member = trained(saving=Saving(2, lasting))
    for step in (1, 2, 3, 4):
        member, said = run(member, chunk(0), ring(1, step), Applied(StateId(step, 1)))
    assert any(isinstance(message, NextView) for message in sent(said)) != lasting
    if not lasting:
        return
    cut = Cut(ViewId(1), StateId(2, 1), False)
    acknowledged, said = run(member, PartWritten(saved(cut, after(2))), Received(Acknowledged(saved_as(cut))))
    assert isinstance(sent(said)[-1], NextView)
    assert acknowledged.sealed == 1
    member, said = run(member, *[Tick()] * 9)
    assert said == []
    _, said = run(member, Tick(), Tick())
    assert isinstance(sent(said)[-1], NextView)


def test_by_default_the_end_of_an_epoch_is_saved() -> None:
    member, said = run(trained(saving=Saving()), chunk(0), ring(1, 1), Applied(StateId(1, 1)))
    assert not any(isinstance(instruction, TakePart) for instruction in said)
    _, said = run(member, chunk(0), ring(1, 2), Applied(StateId(2, 1)))
    assert TakePart(Cut(ViewId(1), StateId(2, 1), False), after(2), 0, 2) in said


def test_without_a_place_nothing_is_saved() -> None:
    _, said = run(trained(), chunk(0), ring(1, 1), Applied(StateId(1, 1)), chunk(0), ring(1, 2))
    _, said = run(_, Applied(StateId(2, 1)))
    assert not any(isinstance(instruction, TakePart) for instruction in said)


@pytest.mark.parametrize("lasting", [False, True])
def test_the_state_that_a_job_ends_with_is_a_checkpoint_of_the_last_view(lasting: bool) -> None:
    member, _ = run(trained(saving=Saving(9, lasting)), chunk(0), ring(1, 1), Applied(StateId(1, 1)))
    member, _ = run(member, Received(Stop(ViewId(1))), WorkCancelled())
    final = view(2, base=StateId(1, 1), position=after(1), first=(), later=(), final=True, exporter=1)
    member, said = run(member, Received(NewView(final)))
    last = TakePart(Cut(ViewId(2), StateId(1, 1), False), after(1), 0, 2)
    assert said == [OpenView(final, keep=True), *([last] if lasting else []), EndTraining()]
    assert run(member, Tick())[1] == []


def test_the_last_member_saves_its_state_before_it_leaves() -> None:
    alone = view(2, (A,), first=(0, 0), later=(0, 0))
    cut = Cut(ViewId(2), INITIAL, False)
    member, _ = run(trained(saving=EACH), DrainRequested(), Received(Stop(ViewId(1))), WorkCancelled())
    member, said = run(member, Received(NewView(alone)))
    assert said[1:] == [TakePart(cut, START, 0, 1)]
    member, said = run(member, PartWritten(saved(cut, START)))
    assert isinstance(sent(said)[0], Saved)
    _, said = run(member, Received(Acknowledged(saved_as(cut))))
    assert sent(said)[-1].report == Report(ViewId(2), ViewId(2), INITIAL, START, frozenset(), True)


def test_the_last_member_asks_again_if_its_state_can_not_be_written() -> None:
    alone = view(2, (A,), first=(0, 0), later=(0, 0))
    cut = Cut(ViewId(2), INITIAL, False)
    member, _ = run(
        trained(saving=EACH),
        DrainRequested(),
        Received(Stop(ViewId(1))),
        WorkCancelled(),
        Received(NewView(alone)),
    )
    member, said = run(member, PartWritten(saved(cut, START, "the disk is full")))
    member, said = run(member, *[Tick()] * 9)
    assert not any(isinstance(message, NextView) for message in sent(said))
    member, said = run(member, Tick())
    assert isinstance(sent(said)[-1], NextView)
    again = dataclasses.replace(alone, id=ViewId(3))
    _, said = run(member, Received(NewView(again)))
    assert TakePart(Cut(ViewId(3), INITIAL, False), START, 0, 1) in said


def test_only_the_exporter_of_a_final_view_works_and_repeats_its_report() -> None:
    member, _ = run(trained(), Received(Stop(ViewId(1))), WorkCancelled())
    final = view(2, first=(), later=(), final=True, exporter=1)
    _waiting, said = run(member, Received(NewView(final)))
    assert said == [OpenView(final, keep=True), EndTraining()]
    final = dataclasses.replace(final, exporter=0)
    member, said = run(member, Received(NewView(final)))
    assert said[-2:] == [EndTraining(), Export(ViewId(2), INITIAL)]
    member, said = run(member, ExportWritten(ViewId(2), "/r", "d", ()))
    report = Exported(ViewId(2), INITIAL, "/r", "d")
    assert sent(said) == [report]
    assert sent(run(member, Tick())[1]) == [report]
    assert sent(run(member, Disconnected(), Connected())[1])[-1] == report


def test_the_end_of_training_comes_once() -> None:
    member, _ = run(trained(), Received(Stop(ViewId(1))), WorkCancelled())
    final = view(2, first=(), later=(), final=True, exporter=1)
    member, said = run(member, Received(NewView(final)))
    assert EndTraining() in said
    # the exporter was lost: this member is there once more, and writes the result now
    again = view(3, first=(), later=(), final=True, exporter=0)
    member, said = run(member, Received(Stop(ViewId(2))), Received(NewView(again)))
    assert EndTraining() not in said
    assert said[-1] == Export(ViewId(3), INITIAL)
    assert run(member, Received(Finished("done")))[1] == [Exit(0, "done")]


def test_a_member_that_is_not_in_the_last_view_ends_its_training_too() -> None:
    member, _ = run(trained(), Received(Stop(ViewId(1))), WorkCancelled())
    assert run(member, Received(Finished("done")))[1] == [EndTraining(), Exit(0, "done")]


@pytest.mark.parametrize("verdict", [Released("drained"), Evicted("silent"), Failed("no")])
def test_training_has_no_end_for_those_who_leave_before(verdict: Any) -> None:
    assert EndTraining() not in run(trained(), Received(verdict))[1]


def test_training_has_no_end_for_those_without_a_model_and_those_who_failed() -> None:
    assert run(joiner(), Received(Finished("done")))[1] == [Exit(0, "done")]
    failed, _ = run(trained(), ProgramError("program", "s", "", "t"))
    assert run(failed, Received(Finished("done")))[1] == [Exit(0, "done")]


def test_an_export_of_a_sealed_view_is_not_reported() -> None:
    member, _ = run(trained(), Received(Stop(ViewId(1))), WorkCancelled())
    member, _ = run(
        member,
        Received(NewView(view(2, first=(), later=(), final=True, exporter=0))),
        Received(Stop(ViewId(2))),
    )
    _, said = run(member, ExportWritten(ViewId(2), "/r", "d", ()))
    assert said == []


# ------------------------------------------------------------------ program errors


def test_a_program_error_seals_and_is_repeated_until_it_is_answered() -> None:
    member, said = run(trained(), ProgramError("program", "ValueError at f", "", "Traceback"))
    failed = ProgramFailed("program", "ValueError at f", "", "Traceback")
    assert said == [CloseView(ViewId(1), linger=True), Send(failed)]
    assert run(member, Received(NewView(view(2))))[1] == []
    assert sent(run(member, Tick())[1]) == [failed]
    # it does not ask to take part again
    assert sent(run(member, Disconnected(), Connected())[1]) == [failed]
    assert run(member, Received(Acknowledged("failed")))[1][0].code == 1


@pytest.mark.parametrize(("kind", "code"), [("program", 1), ("bad-input", 2)])
def test_a_program_error_ends_with_the_jobs_verdict(kind: str, code: int) -> None:
    member, _ = run(trained(), ProgramError(kind, "s", "", "t"))
    assert run(member, Received(Failed("x")))[1] == [Exit(code, "x")]


def test_a_broken_ring_is_no_program_error() -> None:
    _member, said = run(trained(), chunk(0), RingFailed(ViewId(1), 1, B.id, "eof"))
    assert not any(isinstance(message, ProgramFailed) for message in sent(said))


def test_the_heartbeat_tells_work_from_waiting() -> None:
    member = trained()
    assert joiner().beat == (0, 0, 0)
    receiving, _ = run(joiner(), Received(NewView(view(2, (B, A), sources=(None, "b")))))
    assert receiving.beat[2] % 2 == 0  # however long the transfer takes
    assert member.beat[:2] == (1, 1)
    assert member.beat[2] % 2 == 1
    member, _ = run(member, chunk(0))
    assert member.beat[2] % 2 == 0
