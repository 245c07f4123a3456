"""Which placement is next, from all that is known of servers: a pure decision; what becomes of single slots is decided in `placement.py`.

A value of one moment: what it is asked follows from its fields alone. Rule numbers are those of the protocol page.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

from elasticdl.catalog.catalog import read_catalog
from elasticdl.master.core.done import Done
from elasticdl.master.core.entry import ServerId
from elasticdl.master.core.records import FailedRecord, Journal, PlacementRecord, Server
from elasticdl.master.ps import placement
from elasticdl.master.ps.copies import Copies
from elasticdl.spec.jobspec import PsRestore


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementPlan:
    """What decides on the next placement.

    Attributes:
        journal: what is journalled.
        joined: servers that wait for a number, with the next ones.
        leaving: servers that are to be emptied.
        pressed: those of them that do not wait any more for others, to which they could hand over.
        copies: copies under way.
        replicas: servers that hold each slot, 1 or 2.
        restore: what the loss of all copies of a slot does.
        accumulates: servers sum up the gradients of a wave's tasks.
    """

    journal: Journal
    joined: tuple[Server, ...]
    leaving: Set[ServerId]
    pressed: Set[ServerId]
    copies: Copies
    replicas: int
    restore: PsRestore
    accumulates: bool

    def first(self) -> PlacementRecord:
        """Return the first placement, on the servers that wait for a number."""
        journal = self.journal
        assert journal.model is not None, "slots are those of the model"
        slots = read_catalog(journal.model).slots
        numbers = [server.number for server in self.joined]
        restored = 0 if journal.resumed is None else journal.roll_back
        first = placement.first(numbers, slots, self.replicas, restored)
        return PlacementRecord(self.joined, (), tuple(enumerate(first)))

    def after_losses(self, lost: frozenset[ServerId]) -> PlacementRecord | FailedRecord:
        """Return one record for all slots that a loss concerns (R20, R24); nothing while nobody is left who could take them."""
        journal = self.journal
        living = {*journal.servers, *(server.number for server in self.joined)} - lost
        following = journal.roll_back + 1
        changed, bare = placement.after_loss(journal.entries, lost, living, following)
        if bare and self.restore is PsRestore.STOP:
            names = ", ".join(journal.servers[server].name for server in sorted(lost))
            return FailedRecord(
                f"{names} held the only copy of {len(bare)} of the model's {len(journal.entries)} slots, and --ps_restore=stop; "
                "with --ps_replicas=2 no server holds an only copy, and --ps_restore=redo continues from the last snapshot",
                "lost",
            )
        if bare and not living:
            return PlacementRecord()
        if bare and self.accumulates:
            # All parts of the model are of the same step, and those that are there can't go back by themselves.
            changed = placement.all_restored(journal.entries, changed, following)
        changed = {**self.copies.renewals(journal.entries, lost), **changed}
        # What is skipped stays done; what is under way begins anew, because a part of it may have been acknowledged and lost.
        stays = journal.done if self.restore is PsRestore.SKIP else saved_position(journal)
        position = stays if bare else None
        return PlacementRecord(self.joined, tuple(sorted(lost)), tuple(sorted(changed.items())), position)

    def improved(self) -> PlacementRecord:
        """Return what makes the placement better while nobody is lost: copies that are ready, servers that are new or empty."""
        journal = self.journal
        empty = tuple(server for server in sorted(self.leaving) if placement.is_empty(journal.pairs, server))
        living = set(journal.servers).difference(empty)
        # A copy to a server that is empty was ordered before that wanted to leave.
        changed = {
            **self.copies.renewals(journal.entries, empty),
            **self.copies.results(journal.entries, living),
        }
        where = (living, self.pressed, self.replicas)
        if placement.at_once(journal.pairs, *where):
            for slot, entry in placement.at_once(journal.entries, *where).items():
                changed.setdefault(slot, entry)
        return PlacementRecord(self.joined, empty, tuple(sorted(changed.items())))


def saved_position(journal: Journal) -> Done:
    """Return what was done when the last snapshot was begun."""
    return Done() if journal.saved is None else journal.saved[1].position
