"""When the current view ends, and who may stand in the next one.

Pure decisions on what the master knows (`groupstate.py`), each with its reason; what a view contains is decided in `views.py`.
Rule numbers are those of the note on the protocol.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from elasticdl.control.protocol.view import MemberId, Peer, View
from elasticdl.master.allreduce.groupstate import GroupState
from elasticdl.master.allreduce.views import Situation, Stander, next_view
from elasticdl.master.core.records import Record, ViewRecord
from elasticdl.master.core.witnesses import loser, mutual_suspicions


@dataclass(frozen=True)  # no lanes: see elasticdl.control.protocol.frozen
class ViewChange(GroupState):
    """When the current view ends, and who may stand in the next one: decisions, each with its reason."""

    @property
    def missing(self) -> int:
        """Return how many workers have to come before another step begins."""
        view = self.view
        if view is not None and (view.final or self._ends_now()):
            return 0
        members = () if view is None else [peer for peer in view.members if not self._is_gone(peer)]
        return max(0, self.settings.minimum - len(members) - len(self._joiners()))

    # ------------------------------------------------------------------ when a view ends

    def _pending_reason(self, view: View) -> str | None:
        """D1: return why a change is wanted at the next step boundary."""
        if view.final:
            return None
        if self.journal.stopping is not None:
            return "the job is stopping"
        if self._joiners():
            return "somebody joins"
        if len(view.members) < self.settings.minimum:
            return "there are fewer members than the job needs"
        if any(seen.report.draining for seen in self._members_seen(view)):
            return "somebody drains"
        return None

    def _stop_reason(self, now: float, view: View) -> str | None:
        """D1: return why everybody must seal now."""
        for peer in view.members:
            if peer.name in self.gone:
                return f"{peer.name} is dead ({self.gone[peer.name]})"
            if peer.id in self.failures:
                return f"{peer.name} has a program error"
        suspects = self._suspects(now, view)
        for peer in view.members:
            if peer.id in suspects:
                return f"{peer.name} is suspected: {suspects[peer.id]}"
        if self.sealed_at is not None and now - self.sealed_at >= self._patience():
            return "somebody has sealed the view"
        if view.final and self._may_leave_final(view):
            return "somebody drains"
        return None

    def _patience(self) -> float:
        """Return how long those who have sealed wait for the others: a moment after an abort, longer at a boundary that all reach.

        At a boundary somebody may still wait for a transfer; stopping it would only make it begin again.
        """
        return self.settings.times.moment if self.aborted else self.settings.times.alone

    def _may_leave_final(self, view: View) -> bool:
        """D5: a final view has no step boundary; a draining member leaves it by `stop`, if another one holds the base."""
        present = self._members_seen(view)
        ranks = {peer.id: rank for rank, peer in enumerate(view.members)}
        held = any(
            not seen.report.draining
            and seen.connection is not None
            and view.sources[ranks[seen.peer.id]] is None
            for seen in present
        )
        return held and any(seen.report.draining for seen in present)

    # ------------------------------------------------------------------ what the next view is

    def _wanted_view(self, now: float) -> Record | None:
        schedule = self.schedule
        if schedule is None:
            return None
        view = self.view
        if view is None and self._gathers(now):
            return None
        stay = () if view is None else self._stay(now, view)
        if stay is None:
            return None
        joiners = self._joiners()
        if not stay and not self._gathered(now, joiners):
            return None
        if self._releases_last(stay, joiners):
            return None
        situation = Situation(
            current=view,
            standers=(*stay, *joiners),
            snapshot=self.journal.snapshot,
            stopping=self._ends_now(),
            schedule=schedule,
            policy_lanes=self.settings.policy_lanes,
            why=self._why(now, view, stay, joiners),
        )
        following = self._compose(situation)
        if self._waits_for_more(following, stay):
            return None
        return ViewRecord(following, () if view is None else self._evicted(view, following))

    def _evicted(self, view: View, following: View) -> tuple[str, ...]:
        """Return the names of those who are left out and have neither ended nor left as they wished."""
        staying = {peer.id for peer in following.members}
        out = (peer for peer in view.members if peer.id not in staying)
        return tuple(p.name for p in out if not self._is_gone(p) and not self._has_drained(p, view))

    def _compose(self, situation: Situation) -> View:
        return next_view(situation)

    def _ends_now(self) -> bool:
        """D7: every view decided after `stopping` is final."""
        return self.journal.stopping is not None

    def _stay(self, now: float, view: View) -> tuple[Stander, ...] | None:
        """D2: return who stays of the current view, or None while it may not be replaced."""
        if not self._is_left(view):
            return None
        suspects = self._suspects(now, view)
        losers = self._losers(view)
        stay: list[Stander] = []
        for peer in view.members:
            if self._is_gone(peer) or peer.id in losers or peer.id in suspects:
                continue
            if not self._has_sealed(peer, view):
                return None  # its promise is still to come
            stay.append(Stander(peer, self.seen[peer.id].report, stayed=True))
        if not self._may_leave_out(view, stay, suspects):
            return None
        return tuple(stay)

    def _is_left(self, view: View) -> bool:
        """D2: somebody has sealed the view (and may have died since), or all its members are proven dead."""
        return any(self._has_sealed(peer, view) for peer in view.members) or all(
            self._is_gone(p) for p in view.members
        )

    def _may_leave_out(self, view: View, stay: list[Stander], suspects: Mapping[MemberId, str]) -> bool:
        """D3: the last holders of a state are not given up on suspicion alone."""
        if any(stander.state is not None for stander in stay):
            return True
        return not any(self._may_hold_state(peer, view) for peer in view.members if peer.id in suspects)

    def _may_hold_state(self, peer: Peer, view: View) -> bool:
        """Tell whether a member of the current view may hold a state: it had the base, or said so, or something was committed."""
        rank = view.rank(peer.id)
        states = [self.seen[other.id].report.state for other in view.members if other.id in self.seen]
        committed = any(state is not None and state.view == view.id and state.step for state in states)
        seen = self.seen.get(peer.id)
        said = seen is not None and seen.report.state is not None
        return said or committed or (rank is not None and view.sources[rank] is None)

    def _losers(self, view: View) -> frozenset[str]:
        """D9: return who is left out since the same two broke the view before, although everybody lives."""
        again = self._mutual_suspicions_now(view) & self.mutual_suspicion
        return frozenset(loser(pair, self.accusations, tuple(self.journal.known)) for pair in again)

    def _mutual_suspicions_now(self, view: View) -> frozenset[frozenset[str]]:
        if not all(self._has_sealed(peer, view) and not self._is_gone(peer) for peer in view.members):
            return frozenset()
        return mutual_suspicions(self.accusations)

    def _gathers(self, now: float) -> bool:
        """Tell at a glance whether a group can't begin yet: fewer have come than are wanted, and the first of them not long ago."""
        first = next(iter(self.seen.values()), None)
        is_early = first is None or now - first.registered_at < self.settings.times.gather
        return is_early and len(self.seen) < self.wanted and not self._ends_now()

    def _gathered(self, now: float, joiners: list[Stander]) -> bool:
        """Tell whether a group may begin: all workers are there, or enough of them and the gathering time is over."""
        if len(joiners) >= self.wanted or self._ends_now():
            return bool(joiners)
        if len(joiners) < self.settings.minimum:
            return False
        first = min(self.seen[stander.peer.id].registered_at for stander in joiners)
        return now - first >= self.settings.times.gather

    def _waits_for_more(self, following: View, stay: tuple[Stander, ...]) -> bool:
        """Tell whether a group waits for its minimum before it continues.

        Not to end, nor while a leaving member may be a donor. A member that is left out without being dead can only come back once it is
        left out; the smaller group then stops at its next boundary (`_pending_reason`).
        """
        if following.final or len(following.members) >= self.settings.minimum or not stay:
            return False
        here = {stander.peer.id for stander in stay}
        out = [] if self.view is None else [peer for peer in self.view.members if peer.id not in here]
        return all(map(self._is_gone, out)) and not any(stander.report.draining for stander in stay)

    def _releases_last(self, stay: tuple[Stander, ...], joiners: list[Stander]) -> bool:
        """D5: the last member drains, nobody comes, and its state is the journalled snapshot: it may go, by word."""
        snapshot = self.journal.snapshot
        if len(stay) != 1 or joiners or self._ends_now() or snapshot is None:
            return False
        return stay[0].report.draining and stay[0].state == snapshot.state

    def _holding_up(self, now: float) -> list[str]:
        """Return the suspected members of a view that can't be replaced, if nobody else is waited for and others wait for them.

        That others have come shows that the master itself can be reached: cut off from all, it lets them train.
        """
        view = self.view
        if view is None or self.journal.terminal is not None or not self._joiners():
            return []
        suspects = self._suspects(now, view)
        others = [p for p in view.members if not self._is_gone(p) and p.id not in suspects]
        if not suspects or not all(self._has_sealed(p, view) for p in others):
            return []
        return [] if self._stay(now, view) is not None else [p.name for p in view.members if p.id in suspects]

    def _why(self, now: float, view: View | None, stay: tuple[Stander, ...], joiners: list[Stander]) -> str:
        """Say in one sentence why the view changes."""
        parts: list[str] = []
        staying = {stander.peer.id for stander in stay}
        if view is not None:
            suspects = self._suspects(now, view)
            losers = self._losers(view)
            for peer in view.members:
                if peer.name in self.gone:
                    parts.append(f"{peer.name} is dead ({self.gone[peer.name]})")
                elif peer.id in self.failures:
                    parts.append(f"{peer.name} has a program error")
                elif peer.id in losers:
                    parts.append(f"{peer.name} can't be reached by its peers")
                elif peer.id not in staying:
                    parts.append(f"{peer.name} is left out: {suspects.get(peer.id, 'no answer')}")
        parts += [f"{s.peer.name} drains" for s in stay if s.report.draining]
        parts += [f"{s.peer.name} joins" for s in joiners]
        if self.journal.stopping is not None:
            parts.append(f"the job is stopping: {self.journal.stopping}")
        if not parts:
            parts.append("a connection broke" if self.aborted else "the last step is committed")
        return "; ".join(parts)
