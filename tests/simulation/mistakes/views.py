"""Mistakes of a master that decides views, and of its journal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from elasticdl.control.protocol.frozen import replace
from elasticdl.control.protocol.messages import (
    NewView,
)
from elasticdl.control.protocol.view import View
from elasticdl.master.allreduce import views
from elasticdl.master.allreduce.liveness import Liveness, Suspects, is_gone
from elasticdl.master.allreduce.machine import AllReduceMaster
from elasticdl.master.allreduce.seen import Seen
from elasticdl.master.allreduce.viewchange import ViewChange
from elasticdl.master.allreduce.views import Stander
from elasticdl.master.core.machine import MasterCore, Out
from elasticdl.master.core.records import (
    Record,
    ViewRecord,
)
from tests.simulation.mistakes.mistaken import Mistaken


class NotAllReports(Mistaken):
    """The master decides the next view before all members that stay have reported."""

    class Hasty(ViewChange):
        __slots__ = ()

        def stay(
            self, core: MasterCore, liveness: Liveness, suspects: Suspects, view: View
        ) -> tuple[Stander, ...] | None:
            del suspects
            alive = [peer for peer in view.members if not is_gone(core, peer)]
            if not any(liveness.has_sealed(peer.id, view) for peer in alive):
                return None
            there = [peer for peer in alive if peer.id in liveness.seen]
            return tuple(Stander(peer, liveness.seen[peer.id].report, stayed=True) for peer in there)

    def new_master(self) -> AllReduceMaster:
        return self.master_class(self.settings, view_change=self.Hasty())


class EvictAll(Mistaken):
    """The master replaces a whole view on suspicion alone: nobody sealed it, nobody is proven dead."""

    class Rash(ViewChange):
        __slots__ = ()

        def is_left(self, *arguments: Any) -> bool:
            del arguments
            return True

        def may_leave_out(self, *arguments: Any) -> bool:
            del arguments
            return True

        def gathered(
            self, now: float, core: MasterCore, liveness: Liveness, joiners: Sequence[Stander]
        ) -> bool:
            is_first = core.journal.view is None
            return ViewChange.gathered(self, now, core, liveness, joiners) if is_first else bool(joiners)

    def new_master(self) -> AllReduceMaster:
        return self.master_class(self.settings, view_change=self.Rash())


class DrainLeavesAtOnce(Mistaken):
    """A draining member leaves though others missed its last commit."""

    class LetsGo(ViewChange):
        __slots__ = ()

        def compose(self, situation: views.Situation) -> View:
            stay = tuple(s for s in situation.standers if not s.report.draining)
            return ViewChange.compose(self, replace(situation, standers=stay or situation.standers))

    def new_master(self) -> AllReduceMaster:
        return self.master_class(self.settings, view_change=self.LetsGo())


class NoStop(Mistaken):
    """There is no stop message: only a broken connection or the trailer leads to next_view."""

    class master_class(AllReduceMaster):
        __slots__ = ()

        def _may_stop(self) -> bool:
            return False


class OldWorkMayHang(Mistaken):
    """Only work of the current view can stall: who hangs in that of an earlier one, and answers, is waited for for ever."""

    class Lenient(Liveness):
        def is_at_work(self, seen: Seen, view: View) -> bool:
            return Liveness.is_at_work(self, seen, view) and seen.beat[0] == view.id

    def new_master(self) -> AllReduceMaster:
        return self.master_class(self.settings, liveness=self.Lenient())


# ------------------------------------------------------------------ the journal


class PublishFirst(Mistaken):
    """A view is sent before it is journalled."""

    class master_class(AllReduceMaster):
        __slots__ = ()

        def _append(self, now: float, record: Record, out: Out) -> Self:
            if isinstance(record, ViewRecord):
                for connection, link in self.links.items():
                    if link.registered and record.view.rank(link.member) is not None:
                        self._tell(connection, NewView(record.view), out)
            return AllReduceMaster._append(self, now, record, out)


class NoCas(Mistaken):
    """The journal is appended without the condition "its last record is the one I know"."""

    def may_append(self, number: int, record: Record) -> bool:
        del number, record
        return True
