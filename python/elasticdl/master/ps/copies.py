"""The copies of slots that are under way: which are ordered, and what follows when one is ready or its receiver is lost.

Which copies are wanted is decided in `placement.py`. A copy counts as long as the entry on which it was ordered is the slot's newest.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from elasticdl.control.protocol.frozen import replace
from elasticdl.control.protocol.status import EventKind
from elasticdl.master.core.entry import Entry, ServerId
from elasticdl.master.core.events import Announce
from elasticdl.master.ps import placement
from elasticdl.master.ps.placement import Copy

COPIES = 64
"""Copies of slots under way at a time: more of them would only share the same bandwidth."""


@dataclass(frozen=True, slots=True)
class Copies:
    """Copies of slots.

    Attributes:
        under_way: by slot.
        ready: those whose receiver has everything, until that is journalled.
        at_rest: for what no copy of any slot is wanted: slots are looked at again when that has changed.
        announced: people know that slots are copied.
    """

    under_way: Mapping[int, Copy] = field(default_factory=dict)
    ready: tuple[Copy, ...] = ()
    at_rest: placement.Situation | None = None
    announced: bool = False

    def with_ready(self, entries: tuple[Entry, ...], copy: Copy) -> Copies:
        """Return what holds when a server says that the receiver of a copy has everything."""
        is_void = placement.outcome(entries, copy) is None
        return self if is_void or copy in self.ready else replace(self, ready=(*self.ready, copy))

    def after(self, entries: tuple[Entry, ...], slots: Collection[int]) -> Copies:
        """Return what holds when these slots have another entry."""
        return replace(
            self,
            under_way={slot: copy for slot, copy in self.under_way.items() if slot not in slots},
            ready=tuple(copy for copy in self.ready if placement.outcome(entries, copy) is not None),
        )

    def results(self, entries: tuple[Entry, ...], living: Collection[ServerId]) -> dict[int, Entry]:
        """Return the entries that follow from copies which are ready."""
        changed: dict[int, Entry] = {}
        for copy in self.ready:
            after = placement.outcome(entries, copy)
            if after is not None:
                # Its receiver may have been lost while there was no master, or before this one knew of the copy (renew).
                changed[copy.slot] = after if copy.to in living else _renewed(entries[copy.slot])
        return changed

    def renewals(self, entries: tuple[Entry, ...], lost: Collection[ServerId]) -> dict[int, Entry]:
        """Return the entries by which copies to servers that are lost or emptied are void (renew): their `ready` may be on its way."""
        return {slot: _renewed(entries[slot]) for slot, copy in self.under_way.items() if copy.to in lost}

    def rests(self, situation: placement.Situation) -> bool:
        """Tell whether no copy is wanted, as was found out when all was as it is now."""
        return self.at_rest is not None and self.at_rest.is_as(situation)

    def ordered(
        self, situation: placement.Situation, replicas: int, step: int
    ) -> tuple[Copies, list[Announce]]:
        """Return what holds when the copies that are wanted have been ordered, and what people hear of it."""
        copies = placement.next_copies(
            situation.entries, situation.living, situation.leaving, situation.under_way, replicas, COPIES
        )
        if copies:
            under_way = {**self.under_way, **{copy.slot: copy for copy in copies}}
            begins = Announce(EventKind.COPYING, "", 0, step, "slots are copied to other servers")
            return replace(self, under_way=under_way, announced=True), [] if self.announced else [begins]
        is_over = self.announced and not self.under_way
        ends = Announce(EventKind.COPIED, "", 0, step, "all slots are where they should be")
        return replace(self, announced=self.announced and not is_over, at_rest=situation), [ends] * is_over


def _renewed(entry: Entry) -> Entry:
    return entry.with_backup(entry.backup)
