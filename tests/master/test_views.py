"""What the next view contains, literally."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticdl.control.protocol.frozen import replace
from elasticdl.control.protocol.messages import Report
from elasticdl.control.protocol.view import INITIAL, SNAPSHOT, MemberId, Peer, StateId, View, ViewId
from elasticdl.data.plan.ledger import Ledger
from elasticdl.data.plan.schedule import Schedule
from elasticdl.data.plan.shard import Position, Shard
from elasticdl.master.allreduce.views import Situation, Stander, choose_members, next_view
from elasticdl.master.core.records import SnapshotRecord

SCHEDULE = Schedule(Ledger((Shard("s", 0, 32),), 2, 1, 0, shuffle=False), num_epochs=1, max_step=0)
START = SCHEDULE.start(4)
MIDDLE = SCHEDULE.advance(START, 4)
S0, S1, S2 = StateId(0, 1), StateId(1, 1), StateId(2, 1)


def peer(name: str) -> Peer:
    return Peer(MemberId(name), f"worker-{name}", f"unix:{name}")


def stander(
    name: str,
    state: StateId | None = S1,
    holds: Any = (),
    draining: bool = False,
    stayed: bool = True,
    position: Position = MIDDLE,
) -> Stander:
    report = Report(
        ViewId(1), ViewId(1), state, None if state is None else position, frozenset(holds), draining
    )
    return Stander(peer(name), report, stayed)


def joiner(name: str) -> Stander:
    return stander(name, state=None, stayed=False)


LAST = View(
    ViewId(1), tuple(peer(n) for n in "abc"), S0, START, (0, 1, 2, 0), (0, 1, 2, 0), 4, ("initial", "a", "a")
)  # fmt: skip


def decide(*standers: Stander, fixed: bool = True, **changes: Any) -> View:
    plain = Situation(
        LAST, standers, None, False, SCHEDULE, (lambda _: 4) if fixed else (lambda members: members), "why"
    )
    return next_view(replace(plain, **changes))


def test_the_first_view_has_one_member_that_makes_the_weights() -> None:
    view = decide(joiner("a"), joiner("b"), current=None)
    assert (view.id, view.base, view.position) == (1, StateId(0, 1), START)
    assert view.sources == (INITIAL, "a")
    assert view.first == (0, 1, 0, 1)
    assert view.reason == "why"


def test_lost_lanes_and_only_those_go_to_the_least_loaded() -> None:
    # c is gone: lane 2 goes to b, who has one lane; a keeps its two
    view = decide(stander("a"), stander("b"))
    assert view.id == 2
    assert view.first == (0, 1, 1, 0)
    assert view.later == (0, 1, 0, 1)
    assert view.sources == (None, None)


def test_held_chunks_stay_where_they_are() -> None:
    # b computed lane 0 in an earlier view of the same step: it keeps it, though a owned it last
    view = decide(stander("a", holds={3}), stander("b", holds={0, 1}), stander("c"))
    assert view.first == (1, 1, 2, 0)


def test_chunks_of_another_state_count_for_nothing() -> None:
    view = decide(stander("a", state=S0, holds={1}, position=START), stander("b"), stander("c"))
    assert view.base == S1
    assert view.first == (0, 1, 2, 0)
    assert view.sources == ("b", None, None)


def test_the_base_is_the_highest_state_of_those_who_stay() -> None:
    view = decide(stander("a"), stander("b", state=S2, position=SCHEDULE.advance(MIDDLE, 4)), stander("c"))
    assert view.base == S2
    assert view.sources == ("b", None, "b")


def test_joiners_own_no_lane_of_the_first_step() -> None:
    view = decide(stander("a"), stander("b"), stander("c"), joiner("d"))
    assert set(view.first) == {0, 1, 2}
    assert view.later == (0, 1, 2, 3)
    assert view.sources == (None, None, None, "a")


def test_donors_take_turns() -> None:
    view = decide(stander("a"), stander("b"), stander("c"), joiner("d"), joiner("e"))
    assert view.sources[3:] == ("a", "b")


def test_with_no_state_left_all_load_the_snapshot() -> None:
    snapshot = SnapshotRecord(ViewId(1), S1, MIDDLE, "/s/1")
    view = decide(joiner("d"), joiner("e"), snapshot=snapshot)
    assert (view.id, view.base, view.position) == (2, S1, MIDDLE)
    assert view.sources == (SNAPSHOT, SNAPSHOT)
    assert view.snapshot == "/s/1"


def test_with_neither_state_nor_snapshot_the_weights_are_made_again() -> None:
    view = decide(joiner("d"), joiner("e"))
    assert view.base == StateId(0, 2)
    assert view.sources == (INITIAL, "d")


# ------------------------------------------------------------------ draining


def members(*standers: Stander, last: bool = False) -> list[str]:
    return [s.peer.id for s in choose_members(standers, S1, last)]


def test_a_draining_member_leaves_when_the_others_hold_the_base() -> None:
    assert members(stander("a", draining=True), stander("b"), joiner("d")) == ["b", "d"]


def test_a_draining_member_stays_as_a_donor_for_those_who_lack_the_base() -> None:
    assert members(stander("a", draining=True), stander("b", state=S0)) == ["a", "b"]
    assert members(stander("a", draining=True), stander("b"), stander("c", state=S0)) == ["a", "b", "c"]
    assert members(stander("a", draining=True), joiner("d")) == ["a", "d"]


def test_in_a_final_view_one_other_holder_is_enough() -> None:
    assert members(stander("a", draining=True), stander("b"), stander("c", state=S0), last=True) == ["b", "c"]
    assert members(stander("a", draining=True), stander("c", state=S0), last=True) == ["a", "c"]


def test_if_all_drain_one_holder_carries_the_state() -> None:
    assert members(
        stander("a", state=S0, draining=True), stander("b", draining=True), stander("c", draining=True)
    ) == ["b"]


# ------------------------------------------------------------------ K


def test_k_follows_the_members_when_a_wave_begins() -> None:
    begins = {"position": START, "state": S0}
    assert decide(stander("a", **begins), stander("b", **begins), fixed=False).position.lanes == 2
    # in mid-wave it stays, and only the waves that begin later have another
    view = decide(stander("a"), stander("b"), fixed=False)
    assert view.position == MIDDLE
    assert view.wave_lanes == 2
    assert len(view.later) == 4


def test_k_stays_if_somebody_already_holds_a_chunk_of_the_wave() -> None:
    begins = {"position": START, "state": S0}
    view = decide(stander("a", holds={3}, **begins), stander("b", **begins), fixed=False)
    assert view.position.lanes == 4
    assert view.first[3] == 0


def test_k_counts_joiners_unless_the_wave_ends_with_the_step_in_which_they_own_nothing() -> None:
    standers = (stander("a", S0, position=START), stander("b", S0, position=START), joiner("d"), joiner("e"))
    assert decide(*standers, fixed=False).position.lanes == 4
    short = Schedule(Ledger((Shard("s", 0, 32),), 1, 1, 0, shuffle=False), num_epochs=1, max_step=0)
    view = decide(*standers, fixed=False, schedule=short)
    assert view.first == (0, 1)
    assert view.wave_lanes == 4
    assert decide(*standers[2:], fixed=False, schedule=short, current=None).position.lanes == 2


def test_k_is_cut_at_the_end_of_the_epoch() -> None:
    # 16 tasks; a wave of 3 that begins at the 15th has 2
    late = Position(0, 14, 2, 0)
    view = decide(
        stander("a", position=late), stander("b", position=late), stander("c", position=late), fixed=False
    )
    assert view.position.lanes == 2
    assert len(view.first) == 2
    assert view.wave_lanes == 3


def test_the_base_of_the_current_view_has_the_k_that_the_view_gave_it() -> None:
    # a never installed view 1, whose wave was cut to 3; b did
    cut = replace(LAST, position=replace(START, lanes=3), first=(0, 1, 2))
    view = decide(
        stander("a", state=S0, position=START),
        stander("b", state=S0, position=cut.position, holds={2}),
        current=cut,
    )
    assert view.position.lanes == 3


# ------------------------------------------------------------------ the end


def test_the_last_step_makes_a_final_view() -> None:
    end = Position(1, 0, 0, 0)
    view = decide(stander("a", draining=True, position=end), stander("b", position=end))
    assert view.final
    assert (view.first, view.later) == ((), ())
    assert [p.id for p in view.members] == ["b"]
    assert view.exporter == 0


def test_after_a_stop_every_view_is_final() -> None:
    view = decide(stander("a", state=S0, position=START), stander("b"), stopping=True)
    assert view.final
    assert view.base == S1
    assert view.exporter == 1
    assert view.sources == ("b", None)


def test_worker_0_writes_while_it_trains_and_in_the_end() -> None:
    plain = decide(stander("b"), stander("a"))
    assert plain.members[plain.writer].id == "a"
    last = decide(stander("b"), stander("a"), stopping=True)
    assert last.members[last.writer].id == "a"
    without = decide(stander("b"), stander("a", state=S0, position=START), stopping=True)
    assert without.writer == without.exporter
    assert without.members[without.writer].id == "b"


def test_a_final_view_without_holders_exports_what_the_snapshot_has() -> None:
    view = decide(joiner("d"), snapshot=SnapshotRecord(ViewId(1), S1, MIDDLE, "/s/1"), stopping=True)
    assert view.final
    assert view.exporter == 0
    assert view.sources == (SNAPSHOT,)


# ------------------------------------------------------------------ for all situations


STATES = st.sampled_from([None, S0, S1, S2])
POSITIONS = {None: START, S0: START, S1: MIDDLE, S2: SCHEDULE.advance(MIDDLE, 4)}


@st.composite
def situations(draw: st.DrawFn) -> tuple[Stander, ...]:
    names = draw(st.lists(st.sampled_from("abcdef"), min_size=1, max_size=6, unique=True))
    free = list(range(4))
    standers = []
    for name in sorted(names):
        state = draw(STATES) if name in "abc" else None
        holds = draw(st.sets(st.sampled_from(free), max_size=2)) if free and state is not None else set()
        free = [lane for lane in free if lane not in holds]
        standers.append(stander(name, state, holds, draw(st.booleans()), name in "abc", POSITIONS[state]))
    return tuple(standers)


@given(situations(), st.booleans(), st.booleans())
def test_every_view_is_well_formed(standers: tuple[Stander, ...], fixed: bool, stopping: bool) -> None:
    view = decide(*standers, fixed=fixed, stopping=stopping)
    by_id = {s.peer.id: s for s in standers}
    assert {p.id for p in view.members} <= set(by_id)
    assert len(view.sources) == len(view.members) > 0
    for rank, member in enumerate(view.members):
        holds_base = by_id[member.id].state == view.base
        assert (view.sources[rank] is None) == holds_base
        donor = view.sources[rank]
        if donor not in (None, INITIAL, SNAPSHOT):
            source = by_id[MemberId(str(donor))]
            assert source.state == view.base or view.sources[view.rank(source.peer.id) or 0] == INITIAL
    held = {s.state for s in standers if s.state is not None}
    assert not held or view.base == max(held)
    if not view.final:
        assert len(view.first) == view.position.lanes
        assert len(view.later) >= max(view.position.lanes, view.wave_lanes)
        blank = {rank for rank, p in enumerate(view.members) if by_id[p.id].state is None}
        assert not blank & set(view.first) or len(blank) == len(view.members)
        for rank, member in enumerate(view.members):
            there = by_id[member.id]
            if there.state == view.base:
                # D4: no computed chunk is thrown away
                assert {s for s in there.report.holds if s < view.position.lanes} <= view.owned(
                    rank, view.base.step + 1, view.position.lanes
                )


@pytest.mark.parametrize("fixed", [True, False])
def test_the_same_situation_gives_the_same_view(fixed: bool) -> None:
    standers = (stander("a", draining=True), stander("b", state=S0), joiner("d"))
    assert decide(*standers, fixed=fixed) == decide(*standers, fixed=fixed)
