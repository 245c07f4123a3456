"""Who is in a synchronous group as far as its master has heard, and who is suspected of being lost.

All of it is memory that may be lost at any moment, because members repeat what they said. What is journalled and who is proven dead is
asked of the core that holds this value. Rule numbers are those of the note on the protocol.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from elasticdl.control.protocol.frozen import replace
from elasticdl.control.protocol.messages import Progress, Report
from elasticdl.control.protocol.view import MemberId, Peer, View
from elasticdl.master.allreduce.case import Case
from elasticdl.master.allreduce.seen import Link, Seen
from elasticdl.master.allreduce.steps import Steps
from elasticdl.master.allreduce.views import Stander
from elasticdl.master.core.events import Beat
from elasticdl.master.core.machine import MasterCore
from elasticdl.master.core.witnesses import Accusation, Times

Suspects = Callable[[], Mapping[MemberId, str]]
"""Returns who of the current view is suspected, and why: asked where it matters only, because it looks at each member."""


@dataclass(frozen=True)  # no slots: see elasticdl.control.protocol.frozen
class Liveness:
    """Members, and the witnesses against those of the current view.

    Attributes:
        seen: members heard of.
        view_at: when the current view was appended or read.
        accusations: of the current view.
        accused_at: when a member of the current view was accused first.
        blank: who had no state and no view when it reported last, without those that were cut off in an earlier view: who may join.
        leavers: who drains, without those of earlier views.
        sealed: the highest view that any of those heard of has sealed.
        heard: another value whenever a member registers, reports, commits or is cut off; heartbeats leave it.
        calm_until: before this time nobody of the current view is suspected, unless a member is accused or cut off meanwhile.
    """

    seen: Mapping[MemberId, Seen] = field(default_factory=dict)
    view_at: float = 0.0
    accusations: tuple[Accusation, ...] = ()
    accused_at: Mapping[MemberId, float] = field(default_factory=dict)
    blank: Mapping[MemberId, None] = field(default_factory=dict)
    leavers: frozenset[MemberId] = frozenset()
    sealed: int = 0
    heard: object = None
    calm_until: float = -math.inf

    # ------------------------------------------------------------------ what comes in

    def registered(self, now: float, peer: Peer, report: Report, connection: int) -> Liveness:
        """Return what holds when a member registers, perhaps once more."""
        known = self.seen.get(peer.id)
        if known is None:
            return self._noted(Seen(peer, report, connection, now))
        again = replace(known, peer=peer, report=report, connection=connection, cut_at=None)
        return replace(self._noted(again), calm_until=-math.inf)

    def reported(self, member: MemberId, report: Report) -> Liveness:
        """Return what holds when a member says what it holds and promises."""
        seen = self.seen.get(member)
        return self if seen is None else self._noted(replace(seen, report=report))

    def disconnected(self, now: float, member: MemberId, connection: int) -> Liveness:
        """Return what holds when a control stream ends."""
        seen = self.seen.get(member)
        if seen is None or seen.connection != connection:
            return self
        return replace(self._noted(replace(seen, connection=None, cut_at=now)), calm_until=-math.inf)

    def beaten(self, now: float, beat: Beat) -> Liveness:
        """Return what holds when a heartbeat comes."""
        seen = self.seen.get(beat.member)
        if seen is None:
            return self
        said = (beat.view, beat.step, beat.progress)
        moved_at = seen.moved_at if said == seen.beat else now
        beaten = replace(seen, beat_at=now - beat.age, beat=said, moved_at=moved_at)
        return replace(self, seen={**self.seen, beat.member: beaten})

    def committed(self, view: View, member: MemberId, progress: Progress) -> Liveness:
        """Return what holds when a member says which state it has in the current view."""
        seen = self.seen.get(member)
        if seen is None or seen.report.sealed >= view.id:
            return self
        held = replace(seen.report, current=view.id, state=progress.state, position=progress.position)
        return self._noted(replace(seen, report=held))

    def accused(self, now: float, accusation: Accusation) -> Liveness:
        """Return what holds when a member of the current view blames another one of it."""
        accused_at = {MemberId(accusation.accused): now, **self.accused_at}
        accusations = (*self.accusations, accusation)
        return replace(self, accusations=accusations, accused_at=accused_at, calm_until=-math.inf)

    def in_view(self, now: float, view: View | None) -> Liveness:
        """Return what holds when a view begins: what was said against members of the one before is forgotten."""
        leavers = self.leavers if view is None else self.leavers & view.ids
        return replace(
            self,
            view_at=now,
            accusations=(),
            accused_at={},
            blank={member: None for member in self.blank if self.seen[member].connection is not None},
            leavers=leavers,
            calm_until=-math.inf,
        )

    def _noted(self, seen: Seen) -> Liveness:
        member, report = seen.peer.id, seen.report
        blank, leavers = self.blank, self.leavers
        if (report.state is None and report.current == 0) != (member in blank):
            blank = dict(blank)
            if blank.pop(member, blank) is blank:
                blank[member] = None
        if report.draining != (member in leavers):
            leavers = leavers ^ {member}
        return replace(
            self,
            seen={**self.seen, member: seen},
            blank=blank,
            leavers=leavers,
            sealed=max(self.sealed, report.sealed),
            heard=seen,
        )

    # ------------------------------------------------------------------ who is there

    def has_sealed(self, member: MemberId, view: View) -> bool:
        """Tell whether a member has promised to commit nothing more in a view."""
        seen = self.seen.get(member)
        return seen is not None and seen.report.sealed >= view.id

    def is_sealed(self, view: View) -> bool:
        """Tell whether a member of a view has promised to commit nothing more in it: of most views at most times nobody has."""
        return self.sealed >= view.id and any(self.has_sealed(peer.id, view) for peer in view.members)

    def has_drained(self, member: MemberId, view: View | None) -> bool:
        """Tell whether a member left as it wished: it drained, and had promised to do nothing more."""
        seen = self.seen.get(member)
        return (
            seen is not None and view is not None and seen.report.draining and self.has_sealed(member, view)
        )

    def is_connected(self, member: MemberId) -> bool:
        """Tell whether a member's control stream ends here."""
        seen = self.seen.get(member)
        return seen is not None and seen.connection is not None

    def has_registered_since(self, connection: int, member: MemberId) -> bool:
        """Tell whether a member has registered on a later connection: what still comes on this one was said before."""
        seen = self.seen.get(member)
        return seen is not None and seen.connection is not None and connection < seen.connection

    def present(self, core: MasterCore, view: View) -> Iterator[Seen]:
        """Yield the members of a view that were heard of and are not proven dead."""
        return (
            self.seen[peer.id] for peer in view.members if peer.id in self.seen and not is_gone(core, peer)
        )

    def has_leaver(self, core: MasterCore, view: View) -> bool:
        """Tell whether a member of a view that is not proven dead drains."""
        ids = view.ids
        return any(member in ids and not is_gone(core, self.seen[member].peer) for member in self.leavers)

    def joiners(self, core: MasterCore) -> list[Stander]:
        """Return who may join: registered, blank, connected, never stood in a view, not leaving; in the order of registration."""
        found = [Stander(seen.peer, seen.report, stayed=False) for seen in self._joining(core)]
        return sorted(found, key=lambda stander: self.seen[stander.peer.id].registered_at)

    def has_joiner(self, core: MasterCore) -> bool:
        """Tell whether somebody may join: a question after every event, which the first one answers."""
        return next(self._joining(core), None) is not None

    def _joining(self, core: MasterCore) -> Iterator[Seen]:
        found = self.candidates()
        return (seen for seen in found if seen.connection is not None and self.may_join(core, seen))

    def candidates(self) -> Iterator[Seen]:
        """Yield those of whom some may join."""
        return (self.seen[member] for member in self.blank)

    def may_join(self, core: MasterCore, seen: Seen) -> bool:
        """Tell whether a member may stand in a view for the first time."""
        fresh = (
            seen.peer.id not in core.journal.known and seen.report.state is None and seen.report.current == 0
        )
        return fresh and not is_gone(core, seen.peer) and not seen.report.draining

    def left_out(self, core: MasterCore, before: View, following: View) -> list[str]:
        """Return the names of those whom a view leaves out although they have neither ended nor left as they wished."""
        staying = {peer.id for peer in following.members}
        out = (peer for peer in before.members if peer.id not in staying)
        return [p.name for p in out if not is_gone(core, p) and not self.has_drained(p.id, before)]

    def state_of(self, core: MasterCore, member: MemberId) -> str:
        """Return a member's state for people, one of `WorkerStatus.state`."""
        seen, view = self.seen.get(member), core.journal.view
        if seen is None or seen.peer.name in core.gone:
            return "ended" if seen is not None else "starting"
        rank = None if view is None else view.rank(member)
        if view is None or rank is None:
            return "lost" if member in core.journal.known else "joining"
        if seen.connection is None:
            return "lost"
        if seen.report.draining:
            return "draining"
        if seen.report.sealed >= view.id:
            return "sealed"
        if view.final:
            return "finishing"
        return "training" if view.sources[rank] is None or seen.report.state is not None else "healing"

    # ------------------------------------------------------------------ who is suspected

    def suspects(
        self, now: float, core: MasterCore, links: Mapping[int, Link], steps: Steps
    ) -> dict[MemberId, str]:
        """Return who of the current view is suspected, and why."""
        view = core.journal.view
        if view is None or now < self.calm_until:
            return {}
        times = core.settings.times
        doubtful = [
            peer
            for peer in view.members
            if not is_gone(core, peer) and now >= self._well_until(times, links, peer.id, view)
        ]
        if not doubtful:
            return {}
        # While nobody has found this master, be it a member or one that wants to join, it is the one that can't be reached.
        found_at = min((seen.registered_at for seen in self.seen.values()), default=math.inf)
        grace = max(core.started_at, found_at) + times.alone
        limit = steps.limit(view, times)
        found = {}
        for peer in doubtful:
            seen = self.seen.get(peer.id)
            case = Case(
                view=view,
                seen=seen,
                link=None if seen is None or seen.connection is None else links.get(seen.connection),
                accused_at=self.accused_at.get(peer.id),
                grace=grace,
                alive_at=steps.alive_at,
                stalls_at=None if seen is None else self._stalls_at(seen, view, limit),
                times=times,
            )
            why = case.suspicion(now)
            if why is not None:
                found[peer.id] = why
        return found

    def looked(self, now: float, core: MasterCore, links: Mapping[int, Link]) -> Liveness:
        """Return what holds after a look at each member of the current view, if it is time for one.

        Between two looks nobody asks what speaks against a thousand members one by one.
        """
        view = core.journal.view
        if view is None or now < self.calm_until:
            return self
        times = core.settings.times
        until = now + times.alone  # before it, nobody is suspected of not answering a stop that follows
        for peer in view.members:
            if not is_gone(core, peer):
                until = min(until, self._well_until(times, links, peer.id, view))
                if until <= now:
                    return self
        return replace(self, calm_until=until)

    def _well_until(self, times: Times, links: Mapping[int, Link], member: MemberId, view: View) -> float:
        """Return a time before which nothing can speak against a member, as far as a glance shows; −∞ if something may now."""
        seen = self.seen.get(member)
        if seen is None:
            return -math.inf
        moves = max(seen.moved_at, self.view_at) + times.stall
        if seen.report.sealed >= view.id:
            return moves
        if seen.connection is None or member in self.accused_at:
            return -math.inf
        link = links.get(seen.connection)
        answers = math.inf if link is None or link.stop < view.id else link.stop_at + times.alone
        # as in `Case`: who was just started may beat late
        last_beat = seen.registered_at + times.alone if seen.beat_at is None else seen.beat_at
        return min(moves, answers, last_beat + 3 * times.heartbeat)

    def _stalls_at(self, seen: Seen, view: View, limit: float) -> float | None:
        """Return from when on a member that is at work makes no progress, None for others: a view gives it its time once more."""
        return max(seen.moved_at, self.view_at) + limit if self.is_at_work(seen, view) else None

    def is_at_work(self, seen: Seen, view: View) -> bool:
        """Tell whether a member had work under way, for this view or one before it, when its last heartbeat came."""
        return seen.beat_at is not None and seen.beat[0] <= view.id and seen.beat[2] % 2 == 1


def is_gone(core: MasterCore, peer: Peer) -> bool:
    """Tell whether a member is proven to do nothing any more: its process has ended, or it has a program error (D10: it sealed)."""
    return peer.name in core.gone or peer.id in core.failures
