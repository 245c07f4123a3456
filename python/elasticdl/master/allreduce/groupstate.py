"""What a synchronous master knows: the journal, and what it has heard in this life; who is there, and who is suspected.

The journal is its only state: everything else here is memory that may be lost at any moment, because members repeat what they said. Rule
numbers are those of the note on the protocol.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from elasticdl.control.protocol.messages import Progress, Report, Saved
from elasticdl.control.protocol.view import MemberId, Peer, View, ViewId
from elasticdl.data.plan.schedule import Schedule
from elasticdl.master.allreduce.views import PolicyLanes, Stander
from elasticdl.master.core import machine as core
from elasticdl.master.core.machine import MasterCore
from elasticdl.master.core.witnesses import Accusation, Statement, Witness, judge, stall_limit

NO_VIEW = ViewId(0)

EXPORT_LIMITS = 10
"""How many times longer than another piece of work the writing of the result may take without progress: large models, slow volumes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(core.Settings):
    """What a synchronous master takes from the job's settings.

    Attributes:
        policy_lanes: the batch policy, number of members → K.
        snapshots: the folder in which members save states, None if there is none.
    """

    policy_lanes: PolicyLanes
    snapshots: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Link(core.Link):
    """A member's control stream, and what was said on it.

    Attributes:
        view: id of the view told last.
        pending: view of the last `Pending`.
        stop: view of the last `Stop`.
        stop_at: when that was sent.
    """

    view: ViewId = NO_VIEW
    pending: ViewId = NO_VIEW
    stop: ViewId = NO_VIEW
    stop_at: float = 0.0


@dataclass(frozen=True, slots=True)
class Seen:
    """What this master has heard of one member.

    Attributes:
        peer: who.
        report: what it said last that it holds and has promised.
        connection: its control stream, None if it broke.
        registered_at: when it registered first.
        cut_at: when its control stream broke.
        beat_at: when its last heartbeat came, None before the first.
        beat: view, step and progress of that heartbeat.
        moved_at: when these changed last.
    """

    peer: Peer
    report: Report
    connection: int | None
    registered_at: float
    cut_at: float | None = None
    beat_at: float | None = None
    beat: tuple[int, int, int] = (0, 0, 0)
    moved_at: float = 0.0


@dataclass(frozen=True, slots=True)
class Common:
    """How far the members of a view have come together, by what any of them says.

    Attributes:
        view: the view.
        step: the step under way.
        begun_at: when that was first said.
        alive_at: after this time every member has contributed to a step.
    """

    view: ViewId
    step: int
    begun_at: float
    alive_at: float


@dataclass(frozen=True, slots=True)
class Incident:
    """A loss that the group has not recovered from yet.

    Attributes:
        since: when the first sign of it came.
        view: the view that it broke.
        worker: who was lost.
        cause: in a few words.
    """

    since: float
    view: ViewId
    worker: str
    cause: str


@dataclass(frozen=True)  # no lanes: see elasticdl.control.protocol.frozen
class GroupState(MasterCore):
    """The journal, and what a synchronous master has heard since its life began.

    Attributes:
        settings: of the job.
        schedule: the order of the data, None until the shards are journalled.
        view_at: when the current view was appended or read.
        links: control streams.
        seen: members heard of.
        saved: the snapshot report that waits for its record.
        saved_by: who sent it.
        accusations: of the current view.
        accused_at: when a member of the current view was accused first.
        sealed_at: when somebody was first known to have sealed the current view.
        aborted: the current view was left because of a broken connection.
        mutual_suspicion: pairs that broke the last view although everybody lived (D9).
        incident: losses since the last commit.
        pending_kills: workers left out on suspicion → when; they are killed if they do not end.
        held_up_since: since when all that the next view waits for are members that are suspected.
        common: how far the current view has come.
        progress: the last one heard.
        progress_at: when.
        paces: seconds of recent steps.
        told: the values of which every connection knows what it should, at last those that concern one connection each.
    """

    settings: Settings
    schedule: Schedule | None = None
    view_at: float = 0.0
    links: Mapping[int, Link] = field(default_factory=dict)
    seen: Mapping[MemberId, Seen] = field(default_factory=dict)
    saved: Saved | None = None
    saved_by: MemberId | None = None
    accusations: tuple[Accusation, ...] = ()
    accused_at: Mapping[MemberId, float] = field(default_factory=dict)
    sealed_at: float | None = None
    aborted: bool = False
    mutual_suspicion: frozenset[frozenset[str]] = frozenset()
    incident: tuple[Incident, ...] = ()
    pending_kills: Mapping[str, float] = field(default_factory=dict)
    held_up_since: float | None = None
    common: Common | None = None
    progress: Progress | None = None
    progress_at: float = 0.0
    paces: tuple[float, ...] = ()
    told: tuple[object, ...] = (None,)

    @property
    def view(self) -> View | None:
        """Return the current view."""
        return self.journal.view

    def state_of(self, member: MemberId) -> str:
        """Return a member's state for people, one of `WorkerStatus.state`."""
        seen, view = self.seen.get(member), self.view
        if seen is None or seen.peer.name in self.gone:
            return "ended" if seen is not None else "starting"
        if view is None or view.rank(member) is None:
            return "lost" if member in self.journal.known else "joining"
        if seen.connection is None:
            return "lost"
        if seen.report.draining:
            return "draining"
        if seen.report.sealed >= view.id:
            return "sealed"
        if view.final:
            return "finishing"
        rank = view.rank(member)
        assert rank is not None
        return "training" if view.sources[rank] is None or seen.report.state is not None else "healing"

    # ------------------------------------------------------------------ who is there

    def _is_gone(self, peer: Peer) -> bool:
        """Tell whether a member is proven to do nothing any more: its process has ended, or it has a program error (D10: it sealed)."""
        return peer.name in self.gone or peer.id in self.failures

    def _has_sealed(self, peer: Peer, view: View) -> bool:
        seen = self.seen.get(peer.id)
        return seen is not None and seen.report.sealed >= view.id

    def _has_drained(self, peer: Peer, view: View | None) -> bool:
        """Tell whether a member left as it wished: it drained, and had promised to do nothing more."""
        seen = self.seen.get(peer.id)
        return seen is not None and view is not None and seen.report.draining and self._has_sealed(peer, view)

    def _is_evicted(self, member: MemberId) -> bool:
        """D8: an id that stood in a view and is not in the current one."""
        return member in self.journal.known and (self.view is None or self.view.rank(member) is None)

    def _members_seen(self, view: View) -> list[Seen]:
        return [
            self.seen[peer.id] for peer in view.members if peer.id in self.seen and not self._is_gone(peer)
        ]

    def _joiners(self) -> list[Stander]:
        """Return who may join: registered, blank, connected, never stood in a view, not leaving; in the order of registration."""
        found = [
            Stander(seen.peer, seen.report, stayed=False)
            for seen in self.seen.values()
            if seen.connection is not None and self._may_join(seen)
        ]
        return sorted(found, key=lambda stander: self.seen[stander.peer.id].registered_at)

    def _may_join(self, seen: Seen) -> bool:
        fresh = (
            seen.peer.id not in self.journal.known and seen.report.state is None and seen.report.current == 0
        )
        return fresh and not self._is_gone(seen.peer) and not seen.report.draining

    # ------------------------------------------------------------------ who is suspected

    def _suspects(self, now: float, view: View) -> dict[MemberId, str]:
        found = {}
        # While nobody has found this master, it is the one that can't be reached.
        found_at = min((seen.registered_at for seen in self._members_seen(view)), default=math.inf)
        for peer in view.members:
            if self._is_gone(peer) or self._is_well(now, peer, view):
                continue
            why = self._suspicion(now, peer, view, found_at)
            if why is not None:
                found[peer.id] = why
        return found

    def _is_well(self, now: float, peer: Peer, view: View) -> bool:
        """Tell at a glance whether nothing can speak against a member: of most members at most times nothing does."""
        seen, times = self.seen.get(peer.id), self.settings.times
        if seen is None or seen.connection is None or seen.beat_at is None or peer.id in self.accused_at:
            return False
        link = self.links.get(seen.connection)
        is_heard = now < seen.beat_at + 3 * times.heartbeat
        moves = now < max(seen.moved_at, self.view_at) + times.stall
        return is_heard and moves and (link is None or link.stop < view.id)

    def _suspicion(self, now: float, peer: Peer, view: View, found_at: float) -> str | None:
        """Return why a member is suspected; who has sealed the view is waited for by nobody, but the next view would wait for who hangs."""
        if self._has_sealed(peer, view):
            return str(Witness.STALL) if self._hangs(now, self.seen[peer.id], view) else None
        return judge(now, self._statements(peer, view, found_at), self.settings.times)

    def _hangs(self, now: float, seen: Seen, view: View) -> bool:
        """Tell whether a member that answers is still at the work of an earlier view, although this one has lasted long enough for it."""
        return self._is_at_work(seen, view) and seen.beat[0] < view.id and now >= self._stalls_at(seen, view)

    def _is_at_work(self, seen: Seen, view: View) -> bool:
        """Tell whether a member had work under way, for this view or one before it, when its last heartbeat came."""
        return seen.beat_at is not None and seen.beat[0] <= view.id and seen.beat[2] % 2 == 1

    def _stalls_at(self, seen: Seen, view: View) -> float:
        """Return from when on a member that is at work makes no progress: a view gives it its time once more, a result ten times."""
        limit = stall_limit(self.paces, self.settings.times)
        return max(seen.moved_at, self.view_at) + (EXPORT_LIMITS if view.final else 1) * limit

    def _statements(self, peer: Peer, view: View, found_at: float) -> tuple[Statement, ...]:
        """Return what speaks against a member of the current view; `found_at`: when the first member found this master."""
        times = self.settings.times
        seen = self.seen.get(peer.id)
        grace = max(self.started_at, found_at) + times.alone
        # Every step needs a contribution of every member: who is silent towards me alone was alive when the last one was given.
        alive = -math.inf if self.common is None else self.common.alive_at
        if seen is None:
            return (Statement(Witness.STREAM, max(grace, alive)),)
        said: list[Statement] = []
        if seen.connection is None:
            said.append(Statement(Witness.STREAM, max(grace if seen.cut_at is None else seen.cut_at, alive)))
        # a worker that was just started may beat late; after a restart of the master all do
        last_beat = seen.registered_at + times.alone if seen.beat_at is None else seen.beat_at
        said.append(Statement(Witness.BEAT, max(last_beat, alive) + 3 * times.heartbeat))
        accused = self.accused_at.get(peer.id)
        if accused is not None:
            said.append(Statement(Witness.ACCUSED, accused))
        if self._is_at_work(seen, view):
            said.append(Statement(Witness.STALL, self._stalls_at(seen, view)))
        link = None if seen.connection is None else self.links.get(seen.connection)
        if link is not None and link.stop >= view.id:
            said.append(Statement(Witness.DEAF, link.stop_at + times.alone))
        return tuple(said)
