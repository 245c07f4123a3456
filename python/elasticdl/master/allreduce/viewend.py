"""When the current view ends: at its next step boundary, or at once; each decision with its reason.

Which view follows is decided in `viewchange.py`. Rule numbers are those of the note on the protocol.
"""

from __future__ import annotations

from dataclasses import dataclass

from elasticdl.control.protocol.frozen import replace
from elasticdl.control.protocol.messages import Report
from elasticdl.control.protocol.view import MemberId, View
from elasticdl.master.allreduce.liveness import Liveness, Suspects
from elasticdl.master.core.machine import MasterCore

_CAUSES = 3
"""Reasons of members that are kept."""


@dataclass(frozen=True)  # no slots: see elasticdl.control.protocol.frozen
class ViewEnd:
    """What is known of the current view's end.

    Attributes:
        sealed_at: when somebody was first known to have sealed the view.
        aborted: it was left because of a broken connection.
        said: why members left it, as they said.
    """

    sealed_at: float | None = None
    aborted: bool = False
    said: tuple[str, ...] = ()

    @property
    def cause(self) -> str:
        """Return why a view ends whose members all continue."""
        return "a connection broke" if self.aborted else "the last step is committed"

    # ------------------------------------------------------------------ what comes in

    def reported(self, now: float, view: View | None, member: MemberId, report: Report) -> ViewEnd:
        """Return what holds when a member says which views it has sealed."""
        if view is None or view.rank(member) is None or report.sealed < view.id or self.sealed_at is not None:
            return self
        return replace(self, sealed_at=now)

    def broken(self, said: str) -> ViewEnd:
        """Return what holds when a member of the view has lost a connection; `said`: who, and how."""
        return replace(self, aborted=True, said=(*self.said, said)[:_CAUSES])

    def in_view(self) -> ViewEnd:
        """Return what holds when a view begins."""
        return replace(self, sealed_at=None, aborted=False, said=())

    # ------------------------------------------------------------------ decisions

    def pending_reason(self, core: MasterCore, liveness: Liveness, view: View) -> str | None:
        """D1: return why a change is wanted at the next step boundary."""
        if view.final:
            return None
        if core.journal.stopping is not None:
            return "the job is stopping"
        if liveness.has_joiner(core):
            return "somebody joins"
        if len(view.members) < core.settings.minimum:
            return "there are fewer members than the job needs"
        if liveness.has_leaver(core, view):
            return "somebody drains"
        return None

    def stop_reason(
        self, now: float, core: MasterCore, liveness: Liveness, suspects: Suspects, view: View
    ) -> str | None:
        """D1: return why everybody must seal now."""
        if not view.names.isdisjoint(core.gone):
            dead = next(peer.name for peer in view.members if peer.name in core.gone)
            return f"{dead} is dead ({core.gone[dead]})"
        if not view.ids.isdisjoint(core.failures):
            return "somebody has a program error"
        suspected = suspects()
        if suspected:
            return "; ".join(f"{peer.name} is suspected" for peer in view.members if peer.id in suspected)
        if self.sealed_at is not None and now - self.sealed_at >= self._patience(core):
            return "somebody has sealed the view"
        if view.final and self.may_leave_final(core, liveness, view):
            return "somebody drains"
        return None

    def _patience(self, core: MasterCore) -> float:
        """Return how long those who have sealed wait for the others: a moment after an abort, longer at a boundary that all reach.

        At a boundary somebody may still wait for a transfer; stopping it would only make it begin again.
        """
        return core.settings.times.moment if self.aborted else core.settings.times.alone

    def may_leave_final(self, core: MasterCore, liveness: Liveness, view: View) -> bool:
        """D5: a final view has no step boundary; a draining member leaves it by `stop`, if another one holds the base."""
        present = list(liveness.present(core, view))
        ranks = {peer.id: rank for rank, peer in enumerate(view.members)}
        held = any(
            not seen.report.draining
            and seen.connection is not None
            and view.sources[ranks[seen.peer.id]] is None
            for seen in present
        )
        return held and any(seen.report.draining for seen in present)
