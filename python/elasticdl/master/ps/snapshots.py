"""When slots are written to a snapshot, and when that is whole: pure decisions of the master of a job with parameter servers (R26, R27).

A snapshot's position are the tasks done when it was begun; each slot is cut by its primary at any time after. A slot may hold more than
the position says, which it knows itself, so no slot has to wait for another one. Until all are cut no process learns a higher watermark:
what a slot holds beyond the position can be told from the rest only while it remembers each chunk.

Where servers sum up the gradients of a wave's tasks, slots are cut between two waves: those that are begun come to their end, and the next
begins when all slots are cut (A6). Whether it is time follows each time from what is done and begun, so the next master comes to the same.

Where snapshots are checkpoints, which outlive the job, the last one is begun when nothing is trained any more.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from elasticdl.checkpoint.layout import draft_of
from elasticdl.control.protocol.frozen import replace
from elasticdl.control.protocol.psmessages import CutOrdered, SlotsCut, SlotSection
from elasticdl.control.protocol.status import EventKind
from elasticdl.master.core.done import Done
from elasticdl.master.core.entry import ServerId
from elasticdl.master.core.events import Announce, DropSnapshot, ManifestWritten, WriteManifest
from elasticdl.master.core.machine import Out
from elasticdl.master.core.records import CutRecord, Record, SavedRecord
from elasticdl.master.ps.leases import Leases
from elasticdl.master.ps.liveness import Link, Liveness

LATER_SECONDS = 60.0
"""Before a snapshot is begun once more, if one could not be written and not enough is trained meanwhile for the next."""
LAST_ATTEMPTS = 3
LAST_SECONDS = 2.0
"""How often the last one is tried, and how long after each other: the job's end waits for it."""
AGAIN_SECONDS = 1.0
"""Before a server is asked once more for slots that it left out: it had not heard yet that they are its own."""
FRUITLESS = 10
"""Answers without a slot, one after the other, after which the next wave waits no longer: something of it was begun before this master."""


@dataclass(frozen=True)  # no slots: see elasticdl.control.protocol.frozen
class Snapshots(Liveness):
    """Snapshots, as far as this master knows.

    Attributes:
        snapshots: the directory in which they are, empty if there are none.
        every: tasks that are done between two.
        leases: who computes which task; its `done` is the journal's.
        sections: of the snapshot under way, of each slot that is written the file and where it lies in that.
        manifest: number of the snapshot whose manifest is being written.
        written: of that which is written and not journalled yet.
        spoilt: number of the last one that could not be written.
        spoilt_at: when that was.
        lasting: they are checkpoints.
        last: number of that which was begun when nothing was trained any more.
        attempts: how many such were begun.
        fruitless: how many answers in a row had no slot.
        unkept: the job was stopped within a wave, so there is no last one.
    """

    snapshots: str = ""
    every: int = 0
    leases: Leases = field(default_factory=lambda: Leases(0))
    sections: Mapping[int, tuple[str, SlotSection]] = field(default_factory=dict)
    manifest: int = 0
    written: SavedRecord | None = None
    spoilt: int = 0
    spoilt_at: float = 0.0
    lasting: bool = False
    last: int = 0
    attempts: int = 0
    fruitless: int = 0
    unkept: bool = False

    @property
    @abstractmethod
    def ends(self) -> bool:
        """Tell whether nothing is trained any more."""

    @abstractmethod
    def _may_hear_more(self, now: float) -> bool:
        """Tell whether workers may not have said yet what they compute."""

    @abstractmethod
    def _whole(self) -> Done:
        """Return the tasks that are done, but for one of which the job leaves chunks out."""

    @abstractmethod
    def _step_of(self, cut: CutRecord) -> int:
        """Return how many steps the tasks of a snapshot have."""

    @abstractmethod
    def _begun(self) -> tuple[tuple[int, int], ...]:
        """Return the tasks that are not done in a checkpoint, with how many of their first chunks are settled."""

    @property
    def cut(self) -> CutRecord | None:
        """Return the snapshot under way, None if there is none."""
        journal = self.journal
        cut = journal.cut
        if cut is None or cut.roll_back != journal.roll_back or cut.number == self.spoilt:
            return None
        return None if journal.saved is not None and journal.saved[0].number == cut.number else cut

    @property
    def low(self) -> int:
        """Return the watermark that everybody may know (R10)."""
        done = self._whole().low
        return int(done if self.cut is None else min(done, self.cut.position.low))

    @property
    def is_kept(self) -> bool:
        """Tell whether what was trained lies in a last checkpoint, or can't be written to one, or is to be written to none."""
        saved = self.journal.saved
        if not self.lasting or self.unkept or (saved is not None and saved[0].number == self.last):
            return True
        return self.attempts >= LAST_ATTEMPTS and self.cut is None

    @property
    def _accumulates(self) -> bool:
        return self.leases.waves is not None

    def _holds_back(self, now: float) -> bool:
        """Tell whether no wave is to be begun, because slots are to be cut before (A6)."""
        if not self._accumulates or not self.snapshots:
            return False
        return self._is_due(now) if self.cut is None else len(self.sections) < len(self.journal.entries)

    def _directory(self, number: int) -> str:
        return str(draft_of(Path(self.snapshots), number))

    def _wanted_cut(self, now: float) -> Record | None:
        """Begin a snapshot when enough has been done since the last one, or nothing more will be."""
        if not self.snapshots or not self.journal.entries or self.cut is not None:
            return None
        if not (self._is_last_due(now) if self.ends else self._is_due(now)):
            return None
        number = 1 if self.journal.cut is None else self.journal.cut.number + 1
        position, waves, step = self._whole(), self.leases.waves, 0
        if waves is not None:
            if not self.leases.is_between_waves or self._may_hear_more(now):
                return None
            step = waves.steps_before(self.leases.low)
        return CutRecord(number, position, self.journal.roll_back, step)

    def _is_due(self, now: float) -> bool:
        last = self.journal.cut
        if last is not None and last.roll_back != self.journal.roll_back:
            last = None if self.journal.saved is None else self.journal.saved[1]
        if last is not None and last.number == self.spoilt and now - self.spoilt_at >= LATER_SECONDS:
            return True
        return self._whole().count() - (0 if last is None else last.position.count()) >= self.every

    def _is_last_due(self, now: float) -> bool:
        return not self.is_kept and (not self.attempts or now - self.spoilt_at >= LAST_SECONDS)

    def _wanted_saved(self) -> Record | None:
        cut = self.cut
        return (
            self.written
            if cut is not None and self.written is not None and self.written.number == cut.number
            else None
        )

    def _after_cut(self) -> Self:
        cut = self.journal.cut
        assert cut is not None, "it stands there"
        master = replace(self, sections={}, written=None, manifest=0, fruitless=0)
        return replace(master, last=cut.number, attempts=self.attempts + 1) if self.ends else master

    def _give_up_cut(self, now: float) -> Self:
        """Take no part in what a master before this one has begun: the watermark may have gone on since."""
        return self if self.cut is None else replace(self, spoilt=self.cut.number, spoilt_at=now)

    def _after_saved(self, record: SavedRecord, out: Out) -> Self:
        saved = self.journal.saved
        tasks = 0 if saved is None else saved[1].position.count()
        what = "checkpoint" if self.lasting else "snapshot"
        step = 0 if saved is None else self._step_of(saved[1])
        text = f"{what} of {tasks:,} tasks at {Path(record.path).parent}"
        out.append(Announce(EventKind.SNAPSHOT, "", 0, step, text))
        return replace(self, sections={}, written=None)

    def _spoil(self, now: float, number: int, why: str, out: Out) -> Self:
        what = "checkpoint" if self.lasting else "snapshot"
        again = "" if self.ends and self.attempts >= LAST_ATTEMPTS else "; it is tried again later"
        out.append(Announce(EventKind.UNSAVED, "", 0, 0, f"{what} {number} is given up: {why}{again}"))
        out.append(DropSnapshot(number))
        return replace(self, spoilt=number, spoilt_at=now, sections={})

    def _give_up_last(self, out: Out) -> Self:
        """Say that a job that was stopped within a wave leaves no last checkpoint: slots hold parts of steps."""
        is_due = self.lasting and self._accumulates and self.ends and not self.unkept
        if not is_due or self.leases.is_between_waves:
            return self
        saved = self.journal.saved
        kept = "no checkpoint" if saved is None else f"no checkpoint later than {Path(saved[0].path).parent}"
        text = f"the job was stopped in the middle of a wave, where nothing whole can be written: it leaves {kept}"
        out.append(Announce(EventKind.NOTE, "", 0, 0, text))
        return replace(self, unkept=True)

    def _take_cut(self, now: float, link: Link, cut: SlotsCut, out: Out) -> Self:
        """Take what a server has written; only slots of which it is the primary, in the primary epoch that they have now."""
        under_way = self.cut
        if under_way is None or cut.snapshot != under_way.number:
            return self
        if cut.error:
            return self._spoil(now, cut.snapshot, f"{link.name} can't write to {cut.path}: {cut.error}", out)
        server, entries = self._number_of(link.name), self.journal.entries
        # A worker of which this master has not heard may have begun the next wave, and slots may be past the step by now.
        is_bounded = self._accumulates and not self.ends
        mine = {
            section.slot: (cut.path, section)
            for section in cut.sections
            if section.slot < len(entries)
            and not (is_bounded and section.until > under_way.position.low)
            and (entries[section.slot].primary, entries[section.slot].primary_epoch)
            == (server, section.primary_epoch)
        }
        master = replace(
            self, sections={**mine, **self.sections}, fruitless=0 if mine else self.fruitless + 1
        )
        if self._accumulates and master.fruitless >= FRUITLESS:
            return master._spoil(now, cut.snapshot, "slots hold gradients of a later step", out)
        return master

    def _take_manifest(self, now: float, event: ManifestWritten, out: Out) -> Self:
        if event.error is None:
            return replace(self, written=SavedRecord(event.number, event.path))
        return self._spoil(now, event.number, f"its manifest can't be written: {event.error}", out)

    def _complete_cut(self, out: Out) -> Self:
        """Have the manifest written when all slots are."""
        cut = self.cut
        if cut is None or self.manifest == cut.number or len(self.sections) < len(self.journal.entries):
            return self
        sections = tuple(section for _, section in sorted(self.sections.items()))
        where = (cut.number, self.snapshots, cut.position, cut.roll_back)
        # While somebody computes, each slot is cut at a moment of its own.
        begun = self._begun() if self.ends else ()
        out.append(WriteManifest(*where, sections, cut.step, begun))
        return replace(self, manifest=cut.number)

    def _tell_cut(self, now: float, connection: int, link: Link, number: ServerId, out: Out) -> Link:
        """Order what a server is to write."""
        cut = self.cut
        if cut is None or len(self.sections) == len(self.journal.entries):
            return link
        # What it writes now may be some of those that are missing.
        if link.cut == cut.number and now - link.cut_at < AGAIN_SECONDS:
            return link
        link = replace(link, cut=cut.number, cut_at=now)
        missing = [
            (slot, entry.primary_epoch)
            for slot, entry in enumerate(self.journal.entries)
            if entry.primary == number and slot not in self.sections
        ]
        if not missing:
            return link
        slots, primary_epochs = zip(*missing, strict=True)
        low, above = int(cut.position.low), tuple(map(int, cut.position.above))
        order = CutOrdered(
            cut.number, self._directory(cut.number), slots, primary_epochs, low, above, cut.step
        )
        self._tell(connection, order, out)
        return link
