"""Which view comes next: a pure function of the last view, the reports of its members and those who want to join.

It decides what a view contains (rules D3 to D5 and D7 of the protocol), not when it may be decided (`viewchange.py`, D2) nor who is
dead (`master/core/witnesses.py`). The same inputs always give the same view, so that what a restarted master decides needs no memory.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from elasticdl.control.protocol.frozen import replace
from elasticdl.control.protocol.messages import Report
from elasticdl.control.protocol.view import INITIAL, SNAPSHOT, MemberId, Peer, StateId, View, ViewId
from elasticdl.data.plan.schedule import Schedule
from elasticdl.data.plan.shard import Position
from elasticdl.master.core.records import SnapshotRecord

PolicyLanes = Callable[[int], int]
"""The batch policy: number of members → K of a wave that begins, before the cut at the epoch's end."""


@dataclass(frozen=True, slots=True)
class Stander:
    """A member that may stand in the next view: one of the last view with its report, or a joiner (`report.state` is None).

    Attributes:
        peer: who.
        report: what it holds.
        stayed: it is in the last view.
    """

    peer: Peer
    report: Report
    stayed: bool

    @property
    def state(self) -> StateId | None:
        """Return the id of its state."""
        return self.report.state


@dataclass(frozen=True, slots=True)
class Situation:
    """All that the next view depends on.

    Attributes:
        current: the last view, None before the first.
        standers: who may stand in the next one: those of the last view in its ring order, then joiners; at least one.
        snapshot: the last snapshot record.
        stopping: an early end was asked for.
        schedule: the order of the data.
        policy_lanes: the batch policy.
        why: one sentence for people.
    """

    current: View | None
    standers: tuple[Stander, ...]
    snapshot: SnapshotRecord | None
    stopping: bool
    schedule: Schedule
    policy_lanes: PolicyLanes
    why: str


@dataclass(frozen=True, slots=True)
class Base:
    """The state from which a view starts, and where it comes from.

    Attributes:
        state: its id.
        position: its position, as its holders or the snapshot have it.
        origin: None if a member holds it, else `snapshot` or `initial`.
    """

    state: StateId
    position: Position
    origin: str | None


def next_view(situation: Situation) -> View:
    """Return the view that follows."""
    current = situation.current
    view_id = ViewId(1 if current is None else current.id + 1)
    base = choose_base(situation, view_id)
    last = situation.stopping or situation.schedule.ended(base.position, base.state.step)
    members = choose_members(situation.standers, base.state, last)
    lanes = choose_lanes(situation, members, base)
    position = Position(base.position.epoch, base.position.first_task, lanes, base.position.chunk)
    wave_lanes = situation.policy_lanes(len(members))
    later = tuple(lane % len(members) for lane in range(max(lanes, wave_lanes)))
    return View(
        id=view_id,
        members=tuple(member.peer for member in members),
        base=base.state,
        position=position,
        first=()
        if last
        else place_lanes(members, base.state, lanes, owners_before(current, members, base.state)),
        later=() if last else later,
        wave_lanes=wave_lanes,
        sources=choose_sources(members, base),
        final=last,
        exporter=choose_exporter(members, base.state) if last else None,
        snapshot=situation.snapshot.path
        if base.origin == SNAPSHOT and situation.snapshot is not None
        else None,
        reason=situation.why,
    )


def choose_base(situation: Situation, view_id: ViewId) -> Base:
    """D3: the highest state among those who stay; else the last snapshot; else an initial one, named after this view."""
    current = situation.current
    holders = [s for s in situation.standers if s.report.state is not None and s.report.position is not None]
    if holders:
        # among equals one that holds chunks: it knows the K that they were computed for
        best = max(holders, key=lambda s: (s.report.state or StateId(-1, 0), bool(s.report.holds))).report
        assert best.state is not None
        assert best.position is not None
        # those that never installed the current view may still have the K that it replaced
        position = current.position if current is not None and best.state == current.base else best.position
        return Base(best.state, position, None)
    if situation.snapshot is not None:
        return Base(situation.snapshot.state, situation.snapshot.position, SNAPSHOT)
    lanes = situation.policy_lanes(len(situation.standers))
    return Base(StateId(0, view_id), situation.schedule.start(lanes), INITIAL)


def choose_members(standers: Sequence[Stander], base: StateId, last: bool) -> tuple[Stander, ...]:
    """D5: draining members leave once all who remain from the last view hold the base (in a final view: once another holds it).

    If everybody drains, one holder stays; it saves a snapshot before it leaves.
    """
    rest = [s for s in standers if not s.report.draining]
    if not rest:
        # nobody would remain; the oldest holder carries the state on, or everybody if there is none
        return tuple([s for s in standers if s.state == base][:1] or standers)
    held = any(s.state == base for s in rest)
    settled = all(s.state == base or not s.stayed for s in rest)
    none_needed = all(s.state is None for s in standers)
    return tuple(rest if (held and (last or settled)) or none_needed else standers)


def choose_lanes(situation: Situation, members: Sequence[Stander], base: Base) -> int:
    """Return K of the view's first step: that of the policy if a wave begins and nobody holds a chunk of it, else as it was."""
    position = base.position
    computed = any(member.state == base.state and member.report.holds for member in members)
    schedule = situation.schedule
    if computed or not schedule.is_wave_start(position):
        return position.lanes
    lanes = schedule.cut(position, situation.policy_lanes(len(members)))
    if schedule.wave_length(replace(position, lanes=lanes)) > 1:
        return lanes
    # Joiners own nothing in the first step, and this wave has no other: their share would make the others compute longer.
    return schedule.cut(position, situation.policy_lanes(len(able_members(members))))


def owners_before(current: View | None, members: Sequence[Stander], base: StateId) -> tuple[int | None, ...]:
    """Return, per lane of the base's step, the rank in `members` of its owner in the last view; None where it is gone."""
    if current is None:
        return ()
    ranks = {member.peer.id: rank for rank, member in enumerate(members)}
    owners = current.first if base.step <= current.base.step else current.later
    return tuple(ranks.get(current.members[owner].id) for owner in owners)


def place_lanes(
    members: Sequence[Stander], base: StateId, lanes: int, before: Sequence[int | None]
) -> tuple[int, ...]:
    """D4: who owns each lane of the first step.

    A lane stays with the member whose accumulator holds it, else with its owner, else it goes to the least loaded; never to a
    blank member while another is there.
    """
    able = dict.fromkeys(able_members(members), 0)
    holder: dict[int, int] = {}
    for rank, member in enumerate(members):
        if member.state == base:
            for lane in member.report.holds:
                holder.setdefault(lane, rank)
    placed: list[int | None] = []
    for lane in range(lanes):
        owner = holder.get(lane, before[lane] if lane < len(before) else None)
        placed.append(owner if owner in able else None)
    for owner in placed:
        if owner is not None:
            able[owner] += 1
    loads = [(load, rank) for rank, load in able.items()]  # of equals the first one is next
    heapq.heapify(loads)
    owners: list[int] = []
    for owner in placed:
        if owner is None:
            load, owner = loads[0]
            heapq.heapreplace(loads, (load + 1, owner))
        owners.append(owner)
    return tuple(owners)


def able_members(members: Sequence[Stander]) -> list[int]:
    """Return the ranks of those that may own lanes of the first step: who has a state, or everybody if nobody has one."""
    return [rank for rank, member in enumerate(members) if member.state is not None] or [*range(len(members))]


def choose_sources(members: Sequence[Stander], base: Base) -> tuple[str | None, ...]:
    """Return where each member gets the base: from donors in turn, from the snapshot, or from the first member, which makes it."""
    donors: list[MemberId] = [member.peer.id for member in members if member.state == base.state]
    if not donors and base.origin == SNAPSHOT:
        return (SNAPSHOT,) * len(members)
    if not donors:
        return (INITIAL, *(members[0].peer.id for _ in members[1:]))
    sources: list[str | None] = []
    healees = 0
    for member in members:
        if member.state == base.state:
            sources.append(None)
        else:
            sources.append(donors[healees % len(donors)])
            healees += 1
    return tuple(sources)


def choose_exporter(members: Sequence[Stander], base: StateId) -> int:
    """Return the rank of the member that writes the result: one that holds the base, better one that does not drain.

    Of these it is the first by name, as in `View.writer`: so callbacks write to files in the same worker until the end.
    """
    holders = [rank for rank, member in enumerate(members) if member.state == base]
    staying = [rank for rank in holders if not members[rank].report.draining]
    return min(staying or holders or [0], key=lambda rank: members[rank].peer.name)
