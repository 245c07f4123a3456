"""Which parameter server has which slot: what follows from a loss, and which copies would make it better. Pure: no I/O, no clock.

Each change of a slot is one `Entry` more, made from the newest one; the journal takes it only if that is still the newest (compare and
append). Rule numbers are those of the protocol page.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from elasticdl.master.core.entry import Entry, ServerId

FROZEN_LIMIT = 8
"""Slots that may be about to be handed over at a time: they wait while the master is down (R17)."""


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy that a slot's primary makes at another server.

    Attributes:
        slot: number of the slot.
        term: of the entry on which it was decided; a later one voids it.
        to: who receives it.
        hands_over: the receiver becomes primary, not backup.
    """

    slot: int
    term: int
    to: ServerId
    hands_over: bool


@dataclass(frozen=True, slots=True)
class Situation:
    """All that decides which copies are wanted.

    Attributes:
        entries: by slot.
        living: the servers that are there.
        leaving: those of them that are to be emptied.
        under_way: copies, by slot.
    """

    entries: Sequence[Entry]
    living: frozenset[ServerId]
    leaving: frozenset[ServerId]
    under_way: Mapping[int, Copy]

    def is_as(self, other: Situation) -> bool:
        """Tell whether two are the same, without a look at the slots: entries and copies are values that are replaced, never changed."""
        return (
            self.entries is other.entries
            and self.under_way is other.under_way
            and (self.living, self.leaving) == (other.living, other.leaving)
        )


def first(servers: Sequence[ServerId], slots: int, replicas: int, restored: int = 0) -> tuple[Entry, ...]:
    """Return the slots' first servers: primaries in turn, and each server's backups spread over all the others.

    Restored ones have no backup yet: it gets its rows from the primary.
    """
    count = len(servers)
    entries = []
    for slot in range(slots):
        at = slot % count
        backup = None
        if replicas > 1 and count > 1 and not restored:
            backup = servers[(at + 1 + slot // count % (count - 1)) % count]
        entries.append(Entry(1, 1, servers[at], backup, restored))
    return tuple(entries)


def after_loss(
    entries: Sequence[Entry], lost: Collection[ServerId], living: Collection[ServerId], roll_back: int
) -> tuple[dict[int, Entry], tuple[int, ...]]:
    """Return the entries that the loss of servers makes necessary, and the slots of which no copy is left (R20, R24).

    The latter go to the living servers that have least, as restored by `roll_back`, which is the number of the next one.
    """
    changed: dict[int, Entry] = {}
    gone = []
    for slot, entry in enumerate(entries):
        has_backup = entry.backup is not None and entry.backup not in lost
        if entry.primary not in lost:
            if entry.backup in lost:
                changed[slot] = entry.with_backup(None)
        elif has_backup:
            changed[slot] = entry.promoted()
        else:
            gone.append(slot)
    if living:
        load = _primaries((changed.get(slot, entry) for slot, entry in enumerate(entries)), living)
        for slot in gone:
            server = _least(load)
            load[server] += 1
            changed[slot] = entries[slot].restored_at(server, roll_back)
    return changed, tuple(gone)


def last_holders(entries: Sequence[Entry], lost: Collection[ServerId]) -> set[ServerId]:
    """Return the lost servers without which a slot has no copy left."""
    named = ({entry.primary, entry.backup} - {None} for entry in entries)
    return {server for servers in named if servers <= set(lost) for server in servers if server is not None}


def all_restored(entries: Sequence[Entry], changed: Mapping[int, Entry], roll_back: int) -> dict[int, Entry]:
    """Return the entries by which every slot is restored, each at the server that has it after a loss."""
    return {
        slot: entry.restored_at(changed.get(slot, entry).primary, roll_back)
        for slot, entry in enumerate(entries)
    }


def next_copies(
    entries: Sequence[Entry],
    living: Collection[ServerId],
    leaving: Collection[ServerId],
    under_way: Mapping[int, Copy],
    replicas: int,
    limit: int,
) -> list[Copy]:
    """Return the copies to order next, at most `limit` under way at a time.

    First those that give a slot without a backup one (R19); then those that empty servers which are to leave, then those that even
    out how many slots each server is primary of, at most `FROZEN_LIMIT` hand-overs at a time; in the end those that even out backups.
    """
    staying = [server for server in sorted(living) if server not in leaving]
    room = limit - len(under_way)
    if room <= 0 or not staying:
        return []
    primaries = _primaries(entries, staying)
    backups = Counter(dict.fromkeys(staying, 0))
    backups.update(entry.backup for entry in entries if entry.backup is not None and entry.backup in backups)
    for slot, copy in under_way.items():
        (primaries if copy.hands_over else backups)[copy.to] += 1
        if copy.hands_over:
            primaries[entries[slot].primary] -= 1
        elif (before := entries[slot].backup) is not None:
            backups[before] -= 1
    frozen = FROZEN_LIMIT - sum(copy.hands_over for copy in under_way.values())
    copies: list[Copy] = []

    def order(slot: int, to: ServerId, *, hands_over: bool) -> None:
        copies.append(Copy(slot, entries[slot].term, to, hands_over))
        (primaries if hands_over else backups)[to] += 1

    free = [slot for slot in range(len(entries)) if slot not in under_way and entries[slot].primary in living]
    for slot in free if replicas > 1 else ():
        others = [server for server in staying if server != entries[slot].primary]
        if entries[slot].primary in leaving:
            continue  # it is handed over, and gets its backup from there
        if entries[slot].backup is None and others and len(copies) < room:
            order(slot, _least(backups, others), hands_over=False)
    taken = {copy.slot for copy in copies}
    for slot in free:
        entry = entries[slot]
        others = [server for server in staying if not entry.names(server)]
        if slot in taken or len(copies) >= room or not others:
            continue
        if entry.primary in leaving:
            if frozen > 0:
                frozen -= 1
                order(slot, _least(primaries, others), hands_over=True)
        elif entry.backup in leaving:
            order(slot, _least(backups, others), hands_over=False)
    if leaving or copies:
        return copies
    for slot in free:
        entry = entries[slot]
        others = [server for server in staying if not entry.names(server)]
        if len(copies) >= min(room, frozen):
            break
        if not others:
            continue
        to = _least(primaries, others)
        # Two fewer, so that a slot does not come back.
        if primaries[to] + 2 <= primaries[entry.primary]:
            primaries[entry.primary] -= 1
            order(slot, to, hands_over=True)
    if copies or any(copy.hands_over for copy in under_way.values()):
        return copies  # a slot that is handed over may leave its backup elsewhere
    for slot in free:
        entry = entries[slot]
        others = [server for server in staying if not entry.names(server)]
        if entry.backup is None or not others:
            continue
        if len(copies) >= room:
            break
        to = _least(backups, others)
        if backups[to] + 2 <= backups[entry.backup]:
            backups[entry.backup] -= 1
            order(slot, to, hands_over=False)
    return copies


def outcome(entries: Sequence[Entry], ready: Copy) -> Entry | None:
    """Return the entry that follows when a copy's receiver has everything, or none if the copy has been voided (R14)."""
    entry = entries[ready.slot]
    if entry.term != ready.term:
        return None
    return entry.handed_over(ready.to) if ready.hands_over else entry.with_backup(ready.to)


def at_once(
    entries: Sequence[Entry], living: Collection[ServerId], leaving: Collection[ServerId], replicas: int
) -> dict[int, Entry]:
    """Return the entries that are wanted and need no copy.

    Backups are dropped that nobody wants: of a job with one replica, and on a server that leaves the last one alone. And where only the
    backup stays, it takes over, as if its primary were lost.
    """
    staying = {server for server in living if server not in leaving}
    changed = {}
    for slot, entry in enumerate(entries):
        if entry.backup is None:
            continue
        if replicas == 1 or (entry.backup in leaving and staying == {entry.primary}):
            changed[slot] = entry.with_backup(None)
        elif entry.primary in leaving and staying == {entry.backup}:
            changed[slot] = entry.promoted()
    return changed


def is_empty(entries: Iterable[Entry], server: ServerId) -> bool:
    """Tell whether a server has no slot any more, so that it may go (R18)."""
    return not any(entry.names(server) for entry in entries)


def _primaries(entries: Iterable[Entry], servers: Collection[ServerId]) -> Counter[ServerId]:
    count = Counter(dict.fromkeys(servers, 0))
    count.update(entry.primary for entry in entries if entry.primary in count)
    return count


def _least(load: Counter[ServerId], servers: Collection[ServerId] | None = None) -> ServerId:
    """Return the server that has least, of equal ones the first."""
    return min(load if servers is None else servers, key=lambda server: (load[server], server))
