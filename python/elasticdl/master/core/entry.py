"""Which servers have a slot, as the journal says it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NewType

ServerId = NewType("ServerId", int)
"""Given at registration, never again: a process that restarts is another, empty server."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A slot's servers.

    Attributes:
        term: counts the slot's entries, from 1.
        primary_epoch: the term in which this primary took over.
        primary: serves it.
        backup: has accepted whatever the primary acknowledges; none while there is no second copy.
        restored: the roll-back by which the primary restores the slot from a snapshot, 0 if its rows come from its predecessor.
    """

    term: int
    primary_epoch: int
    primary: ServerId
    backup: ServerId | None
    restored: int = 0

    def names(self, server: ServerId) -> bool:
        """Tell whether a server has the slot."""
        return server in (self.primary, self.backup)

    def promoted(self) -> Entry:
        """Return what follows if the primary is lost and the backup takes over."""
        assert self.backup is not None
        return Entry(self.term + 1, self.term + 1, self.backup, None)

    def with_backup(self, backup: ServerId | None) -> Entry:
        """Return what follows if another server, or none, is the backup (adopt, drop); with the same one a `ready` is void (renew)."""
        return replace(self, term=self.term + 1, backup=backup)

    def handed_over(self, to: ServerId) -> Entry:
        """Return what follows if another server, which has everything, takes over: the backup stays, without one the old primary is it."""
        backup = self.primary if self.backup is None else self.backup
        return Entry(self.term + 1, self.term + 1, to, backup)

    def restored_at(self, server: ServerId, roll_back: int) -> Entry:
        """Return what follows if all copies are lost, and a server takes the last snapshot's."""
        return Entry(self.term + 1, self.term + 1, server, None, roll_back)
