"""When slots are written to a snapshot, and when that is whole: pure decisions of the master of a job with parameter servers (R26, R27).

A snapshot's position are the tasks done when it was begun; each slot is cut by its primary at any time after. A slot may hold more than
the position says, which it knows itself, so no slot has to wait for another one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from elasticdl.control.frozen import replace
from elasticdl.control.serving import CutOrdered, SlotsCut, SlotSection
from elasticdl.master.attendance import Attendance, Link
from elasticdl.master.events import Announce, ManifestWritten, WriteManifest
from elasticdl.master.keeper import Out
from elasticdl.master.leases import Leases
from elasticdl.master.placement import ServerId
from elasticdl.master.records import CutRecord, Record, SavedRecord

AGAIN_SECONDS = 1.0
"""Before a server is asked once more for slots that it left out: it had not heard yet that they are its own."""


@dataclass(frozen=True)  # no slots: see elasticdl.control.frozen
class Cutting(Attendance):
    """Snapshots, as far as this master knows.

    Attributes:
        snapshots: the directory in which they are, empty if there are none.
        every: tasks that are done between two.
        leases: who computes which task; its `done` is the journal's.
        sections: of the snapshot under way, of each slot that is written the file and where it lies in that.
        manifest: number of the snapshot whose manifest is being written.
        written: of that which is written and not journalled yet.
        spoilt: number of the last one that could not be written.
    """

    snapshots: str = ""
    every: int = 0
    leases: Leases = field(default_factory=lambda: Leases(0))
    sections: Mapping[int, tuple[str, SlotSection]] = field(default_factory=dict)
    manifest: int = 0
    written: SavedRecord | None = None
    spoilt: int = 0

    @property
    def cut(self) -> CutRecord | None:
        """Return the snapshot under way, None if there is none."""
        journal = self.journal
        cut = journal.cut
        if cut is None or cut.roll_back != journal.roll_back or cut.number == self.spoilt:
            return None
        return None if journal.saved is not None and journal.saved[0].number == cut.number else cut

    def _directory(self, number: int) -> str:
        return f"{self.snapshots}/snapshot-{number}"

    def _wanted_cut(self) -> Record | None:
        """Begin a snapshot when enough has been done since the last one."""
        if not self.snapshots or not self.every or not self.journal.entries or self.cut is not None:
            return None
        last = self.journal.cut
        if last is not None and last.roll_back != self.journal.roll_back:
            last = None if self.journal.saved is None else self.journal.saved[1]
        done = self.leases.done
        if done.count() - (0 if last is None else last.position.count()) < self.every:
            return None
        number = 1 if self.journal.cut is None else self.journal.cut.number + 1
        return CutRecord(number, done, self.journal.roll_back)

    def _wanted_saved(self) -> Record | None:
        cut = self.cut
        return (
            self.written
            if cut is not None and self.written is not None and self.written.number == cut.number
            else None
        )

    def _after_cut(self) -> Self:
        return replace(self, sections={}, written=None, manifest=0)

    def _after_saved(self, record: SavedRecord, out: Out) -> Self:
        saved = self.journal.saved
        tasks = 0 if saved is None else saved[1].position.count()
        out.append(Announce("snapshot", "", 0, 0, f"snapshot of {tasks:,} tasks at {record.path}"))
        return replace(self, sections={}, written=None)

    def _take_cut(self, link: Link, cut: SlotsCut, out: Out) -> Self:
        """Take what a server has written; only slots of which it is the primary, in the reign that they have now."""
        under_way = self.cut
        if under_way is None or cut.snapshot != under_way.number:
            return self
        if cut.error:
            text = f"snapshot {cut.snapshot} is given up: {link.name} can't write to {cut.path}: {cut.error}"
            out.append(Announce("note", link.name, 0, 0, text))
            return replace(self, spoilt=cut.snapshot, sections={})
        server, entries = self._number_of(link.name), self.journal.entries
        mine = {
            section.slot: (cut.path, section)
            for section in cut.sections
            if section.slot < len(entries)
            and (entries[section.slot].primary, entries[section.slot].reign) == (server, section.reign)
        }
        return replace(self, sections={**mine, **self.sections})

    def _take_manifest(self, event: ManifestWritten, out: Out) -> Self:
        if event.error is None:
            return replace(self, written=SavedRecord(event.number, event.path))
        text = f"snapshot {event.number} is given up: its manifest can't be written: {event.error}"
        out.append(Announce("note", "", 0, 0, text))
        return replace(self, spoilt=event.number, sections={})

    def _complete_cut(self, out: Out) -> Self:
        """Have the manifest written when all slots are."""
        cut = self.cut
        if cut is None or self.manifest == cut.number or len(self.sections) < len(self.journal.entries):
            return self
        sections = tuple(section for _, section in sorted(self.sections.items()))
        out.append(
            WriteManifest(cut.number, self._directory(cut.number), cut.position, cut.roll_back, sections)
        )
        return replace(self, manifest=cut.number)

    def _tell_cut(self, now: float, connection: int, link: Link, number: ServerId, out: Out) -> Link:
        """Order what a server is to write."""
        cut = self.cut
        if cut is None:
            return link
        missing = [
            (slot, entry.reign)
            for slot, entry in enumerate(self.journal.entries)
            if entry.primary == number and slot not in self.sections
        ]
        # What it writes now may be some of these.
        if not missing or (link.cut == cut.number and now - link.cut_at < AGAIN_SECONDS):
            return link
        slots, reigns = zip(*missing, strict=True)
        low, above = int(cut.position.low), tuple(map(int, cut.position.above))
        order = CutOrdered(cut.number, self._directory(cut.number), slots, reigns, low, above)
        self._tell(connection, order, out)
        return replace(link, cut=cut.number, cut_at=now)
