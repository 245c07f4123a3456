"""Who may stand in the next view, and whether it may be decided; each decision with its reason.

When the current view ends is decided in `viewend.py`, what a view contains in `views.py`. Rule numbers are those of the note on the
protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from elasticdl.control.protocol.frozen import replace
from elasticdl.control.protocol.view import MemberId, Peer, View
from elasticdl.master.allreduce.liveness import Liveness, Suspects, is_gone
from elasticdl.master.allreduce.views import Situation, Stander, next_view
from elasticdl.master.core.machine import MasterCore
from elasticdl.master.core.witnesses import Accusation, loser, mutual_suspicions


@dataclass(frozen=True, slots=True)
class ViewChange:
    """What is known of the views before.

    Attributes:
        mutual_suspicion: pairs that broke the last view although everybody lived (D9).
    """

    mutual_suspicion: frozenset[frozenset[str]] = frozenset()

    def in_view(self, before: View | None, view: View, accusations: tuple[Accusation, ...]) -> ViewChange:
        """Return what holds when a view begins; `accusations`: of the one before."""
        members = {peer.id for peer in view.members}
        lived = before is not None and members.issuperset(peer.id for peer in before.members)
        again = mutual_suspicions(accusations) if lived else frozenset()
        return replace(self, mutual_suspicion=again)

    def ends_now(self, core: MasterCore) -> bool:
        """D7: every view decided after `stopping` is final."""
        return core.journal.stopping is not None

    def missing(self, core: MasterCore, liveness: Liveness) -> int:
        """Return how many workers have to come before another step begins."""
        view = core.journal.view
        ends = view is not None and (view.final or self.ends_now(core))
        # Where all of the last group are dead others come in their place, and may have gone to another master.
        if view is not None and ends and not all(is_gone(core, peer) for peer in view.members):
            return 0
        minimum, lost = core.settings.minimum, len(core.gone) + len(core.failures)
        if view is not None and len(view.members) - lost >= minimum:
            return 0  # whichever those are; asked after every event
        members = () if view is None else [peer for peer in view.members if not is_gone(core, peer)]
        return max(0, minimum - len(members) - len(liveness.joiners(core)))

    # ------------------------------------------------------------------ the decision

    def standers(
        self, now: float, core: MasterCore, liveness: Liveness, suspects: Suspects
    ) -> tuple[Stander, ...] | None:
        """Return who may stand in the next view: who stays, then who joins; None while it may not be decided."""
        view = core.journal.view
        if view is None and self._gathers(now, core, liveness):
            return None
        stay = () if view is None else self.stay(core, liveness, suspects, view)
        if stay is None:
            return None
        joiners = liveness.joiners(core)
        if not stay and not self.gathered(now, core, liveness, joiners):
            return None
        return None if self.releases_last(core, stay, joiners) else (*stay, *joiners)

    def compose(self, situation: Situation) -> View:
        """Return the view that follows."""
        return next_view(situation)

    def waits_for_more(self, core: MasterCore, standers: Sequence[Stander], following: View) -> bool:
        """Tell whether a group waits for its minimum before it continues.

        Not to end, nor while a leaving member may be a donor. A member that is left out without being dead can only come back once it is
        left out; the smaller group then stops at its next boundary (`ViewEnd.pending_reason`).
        """
        stay = [stander for stander in standers if stander.stayed]
        if following.final or len(following.members) >= core.settings.minimum or not stay:
            return False
        here = {stander.peer.id for stander in stay}
        view = core.journal.view
        out = [] if view is None else [peer for peer in view.members if peer.id not in here]
        return all(is_gone(core, peer) for peer in out) and not any(one.report.draining for one in stay)

    # ------------------------------------------------------------------ who stays

    def stay(
        self, core: MasterCore, liveness: Liveness, suspects: Suspects, view: View
    ) -> tuple[Stander, ...] | None:
        """D2: return who stays of the current view, or None while it may not be replaced."""
        if not self.is_left(core, liveness, view):
            return None
        suspected = suspects()
        losers = self._losers(core, liveness, view)
        staying: list[Peer] = []
        for peer in view.members:
            if is_gone(core, peer) or peer.id in losers or peer.id in suspected:
                continue
            if not liveness.has_sealed(peer.id, view):
                return None  # its promise is still to come
            staying.append(peer)
        stay = [Stander(peer, liveness.seen[peer.id].report, stayed=True) for peer in staying]
        return tuple(stay) if self.may_leave_out(liveness, view, stay, suspected) else None

    def is_left(self, core: MasterCore, liveness: Liveness, view: View) -> bool:
        """D2: somebody has sealed the view (and may have died since), or all its members are proven dead."""
        return liveness.is_sealed(view) or all(is_gone(core, peer) for peer in view.members)

    def may_leave_out(
        self, liveness: Liveness, view: View, stay: list[Stander], suspected: Mapping[MemberId, str]
    ) -> bool:
        """D3: the last holders of a state are not given up on suspicion alone."""
        if any(stander.state is not None for stander in stay):
            return True
        return not any(map(_may_hold_state(liveness, view), suspected))

    def _losers(self, core: MasterCore, liveness: Liveness, view: View) -> frozenset[str]:
        """D9: return who is left out since the same two broke the view before, although everybody lives."""
        if not all(liveness.has_sealed(p.id, view) and not is_gone(core, p) for p in view.members):
            return frozenset()
        accusations = liveness.accusations
        again = mutual_suspicions(accusations) & self.mutual_suspicion
        return frozenset(loser(pair, accusations, tuple(core.journal.known)) for pair in again)

    def releases_last(self, core: MasterCore, stay: Sequence[Stander], joiners: Sequence[Stander]) -> bool:
        """D5: the last member drains, nobody comes, and its state is the journalled snapshot: it may go, by word.

        Others of its view are left out by a view first: who lives would never learn that it is not waited for.
        """
        snapshot, view = core.journal.snapshot, core.journal.view
        is_alone = len(stay) == 1 and view is not None and len(view.members) == 1
        if not is_alone or joiners or self.ends_now(core) or snapshot is None:
            return False
        return stay[0].report.draining and stay[0].state == snapshot.state

    def holding_up(self, core: MasterCore, liveness: Liveness, suspects: Suspects, view: View) -> list[str]:
        """Return the suspected members of a view that can't be replaced, if nobody else is waited for and others wait for them.

        That others have come, or answer, or that somebody has asked for the job's end, shows that the master itself can be reached: cut off
        from all, it lets them train.
        """
        suspected = suspects()
        if not suspected:
            return []
        others = [peer for peer in view.members if not is_gone(core, peer) and peer.id not in suspected]
        if not others and not liveness.has_joiner(core) and core.journal.stopping is None:
            return []
        if not all(liveness.has_sealed(peer.id, view) for peer in others):
            return []
        if self.stay(core, liveness, suspects, view) is not None:
            return []
        return [peer.name for peer in view.members if peer.id in suspected]

    # ------------------------------------------------------------------ the first view

    def _gathers(self, now: float, core: MasterCore, liveness: Liveness) -> bool:
        """Tell at a glance whether a group can't begin yet: fewer have come than it waits for, all of them or, later, its minimum."""
        first = next(iter(liveness.seen.values()), None)
        is_early = first is None or now - first.registered_at < core.settings.times.gather
        enough = self._expected(core) if is_early else min(core.wanted, core.settings.minimum)
        return len(liveness.seen) < enough and not self.ends_now(core)

    def _expected(self, core: MasterCore) -> int:
        """Return for how many workers the gathering time is: those without room may come hours later, and join then."""
        return max(min(core.wanted, core.settings.minimum), core.wanted - core.without_room)

    def gathered(self, now: float, core: MasterCore, liveness: Liveness, joiners: Sequence[Stander]) -> bool:
        """Tell whether a group may begin: all workers that have room are there, or enough of them and the gathering time is over."""
        if len(joiners) >= self._expected(core) or self.ends_now(core):
            return bool(joiners)
        if len(joiners) < core.settings.minimum:
            return False
        first = min(liveness.seen[stander.peer.id].registered_at for stander in joiners)
        return now - first >= core.settings.times.gather

    # ------------------------------------------------------------------ for people

    def why(
        self, core: MasterCore, liveness: Liveness, suspects: Suspects, standers: Sequence[Stander]
    ) -> str:
        """Say in one sentence who changes the view, and how; empty if nobody does."""
        parts: list[str] = []
        view = core.journal.view
        if view is not None:
            staying = {stander.peer.id for stander in standers}
            suspected = suspects()
            losers = self._losers(core, liveness, view)
            for peer in view.members:
                if peer.name in core.gone:
                    parts.append(f"{peer.name} is dead ({core.gone[peer.name]})")
                elif peer.id in core.failures:
                    parts.append(f"{peer.name} has a program error")
                elif peer.id in losers:
                    parts.append(f"{peer.name} can't be reached by its peers")
                elif peer.id not in staying:
                    parts.append(f"{peer.name} is left out: {suspected.get(peer.id, 'no answer')}")
        parts += [f"{one.peer.name} drains" for one in standers if one.stayed and one.report.draining]
        parts += [f"{one.peer.name} joins" for one in standers if not one.stayed]
        if core.journal.stopping is not None:
            parts.append(f"the job is stopping: {core.journal.stopping}")
        return "; ".join(parts)


def _may_hold_state(liveness: Liveness, view: View) -> Callable[[MemberId], bool]:
    """Return what tells whether a member of the current view may hold a state: it had the base, or said so, or something was committed."""
    seen = liveness.seen
    states = [seen[peer.id].report.state for peer in view.members if peer.id in seen]
    committed = any(state is not None and state.view == view.id and state.step for state in states)

    def may(member: MemberId) -> bool:
        rank = view.rank(member)
        said = member in seen and seen[member].report.state is not None
        return said or committed or (rank is not None and view.sources[rank] is None)

    return may
