"""Where slots lie: which record changed each last, which placement is wanted next, and which copies are under way.

What is decided is in `placementplan.py` and `placement.py`, the placement itself in the journal; this value has what the journal does not
say, and brings it up to date with each placement.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from elasticdl.control.protocol.frozen import replace
from elasticdl.master.core.entry import ServerId
from elasticdl.master.core.events import Announce
from elasticdl.master.core.machine import MasterCore
from elasticdl.master.core.records import FailedRecord, Journal, PlacementRecord, Server
from elasticdl.master.ps import placement
from elasticdl.master.ps.copies import Copies
from elasticdl.master.ps.liveness import Liveness
from elasticdl.master.ps.placement import Copy
from elasticdl.master.ps.placementplan import PlacementPlan
from elasticdl.master.ps.settings import Settings


@dataclass(frozen=True)  # no slots: see elasticdl.control.protocol.frozen
class Slots:
    """Slots, as far as this master knows more of them than the journal.

    Attributes:
        changed_at: of each slot, the number of the record that changed it last.
        newest: the highest of these.
        copies: copies of slots.
    """

    changed_at: tuple[int, ...] = ()
    newest: int = 0
    copies: Copies = field(default_factory=Copies)

    def from_journal(self, journal: Journal) -> Slots:
        """Return what holds when a master begins: as far as it knows, all slots changed with the last record."""
        number = journal.length if journal.entries else 0
        return replace(self, changed_at=(journal.length,) * len(journal.entries), newest=number)

    def wanted(
        self, now: float, core: MasterCore, liveness: Liveness, settings: Settings, wanted_servers: int
    ) -> PlacementRecord | FailedRecord | None:
        """Return the record of the next placement, None while the last one is good.

        Args:
            now: the time.
            core: what every master knows.
            liveness: which servers are there.
            settings: of the job.
            wanted_servers: how many parameter servers the job wants now.
        """
        journal = core.journal
        if journal.model is None or journal.shards is None:
            return None
        waiting = liveness.servers_without_number(core)
        numbered = enumerate(waiting, journal.next_server)
        joined = tuple(Server(ServerId(number), seen.name, seen.address) for number, seen in numbered)
        leaving = liveness.leaving_servers(journal)
        plan = PlacementPlan(
            journal=journal,
            joined=joined,
            leaving=leaving,
            pressed=liveness.pressed(now, journal, leaving, wanted_servers) if journal.entries else set(),
            copies=self.copies,
            replicas=settings.replicas,
            restore=settings.restore,
            accumulates=settings.accumulates,
        )
        if not journal.entries:
            return plan.first() if len(joined) >= wanted_servers else None
        lost = liveness.lost_servers(now, core)
        record = plan.after_losses(lost) if lost else plan.improved()
        return None if record == PlacementRecord() else record

    def after(self, journal: Journal, slots: Collection[int]) -> Slots:
        """Return what holds when the journal's last record has placed these slots."""
        number = journal.length
        changed = self.changed_at or (0,) * len(journal.entries)
        return Slots(
            changed_at=tuple(number if slot in slots else at for slot, at in enumerate(changed)),
            newest=number if slots else self.newest,
            copies=self.copies.after(journal.entries, slots),
        )

    def with_ready(self, journal: Journal, copy: Copy) -> Slots:
        """Return what holds when a server says that the receiver of a copy has everything."""
        return replace(self, copies=self.copies.with_ready(journal.entries, copy))

    def ordered(
        self, journal: Journal, liveness: Liveness, replicas: int, step: Callable[[], int]
    ) -> tuple[Slots, list[Announce]]:
        """Return what holds when the wanted copies have been ordered, and what people hear of it; `step`: returns how many are settled."""
        leaving = frozenset(liveness.leaving_servers(journal))
        under_way = self.copies.under_way
        situation = placement.Situation(journal.entries, frozenset(journal.servers), leaving, under_way)
        if self.copies.rests(situation):
            return self, []
        copies, said = self.copies.ordered(situation, replicas, step())
        return replace(self, copies=copies), said
