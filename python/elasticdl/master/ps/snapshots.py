"""When slots are written to a snapshot, and when that is whole: pure decisions of the master of a job with parameter servers (R26, R27).

A snapshot's position are the tasks done when it was begun; each slot is cut by its primary at any time after. A slot may hold more than
the position says, which it knows itself, so no slot has to wait for another one. Until all are cut no process learns a higher watermark:
what a slot holds beyond the position can be told from the rest only while it remembers each chunk.

Where servers sum up the gradients of a wave's tasks, slots are cut between two waves: those that are begun come to their end, and the next
begins when all slots are cut (A6). Whether it is time follows each time from what is done and begun, so the next master comes to the same.

Where snapshots are checkpoints, which outlive the job, the last one is begun when nothing is trained any more. Another one is begun at each
barrier where a metric is the best so far (B4): no task beyond is leased before all its slots are cut, so that it is of exactly that state.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from elasticdl.checkpoint.layout import draft_of
from elasticdl.control.protocol.frozen import replace
from elasticdl.control.protocol.psmessages import CutOrdered, SlotsCut, SlotSection
from elasticdl.control.protocol.status import EventKind
from elasticdl.control.protocol.view import StateId
from elasticdl.data.plan.tasks import TaskOrder
from elasticdl.master.core.entry import ServerId
from elasticdl.master.core.events import (
    Announce,
    DropSnapshot,
    Instruction,
    ManifestWritten,
    Tell,
    WriteManifest,
)
from elasticdl.master.core.records import CutRecord, EvaluatedRecord, Journal, SavedRecord
from elasticdl.master.ps.link import Link
from elasticdl.master.ps.settings import Settings
from elasticdl.master.ps.work import Work
from elasticdl.spec.grammar import BestMetric

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
class Snapshots:
    """Snapshots, as far as this master knows.

    Attributes:
        directory: in which they are, empty if there are none.
        every: tasks that are done between two.
        lasting: they are checkpoints.
        sections: of the snapshot under way, of each slot that is written the file and where it lies in that.
        manifest: number of the snapshot whose manifest is being written.
        written: of that which is written and not journalled yet.
        spoilt: number of the last one that could not be written.
        spoilt_at: when that was.
        last: number of that which was begun when nothing was trained any more.
        attempts: how many such were begun.
        fruitless: how many answers in a row had no slot.
        unkept: the job was stopped within a wave, so there is no last one.
        choice: the metric by which the best one is chosen, None if none is.
        given_up: the barrier of which the best one could not be written.
    """

    directory: str = ""
    every: int = 0
    lasting: bool = False
    sections: Mapping[int, tuple[str, SlotSection]] = field(default_factory=dict)
    manifest: int = 0
    written: SavedRecord | None = None
    spoilt: int = 0
    spoilt_at: float = 0.0
    last: int = 0
    attempts: int = 0
    fruitless: int = 0
    unkept: bool = False
    choice: BestMetric | None = None
    given_up: StateId | None = None

    def of_job(self, settings: Settings, order: TaskOrder) -> Snapshots:
        """Return what holds once the job's data is known."""
        steps = settings.checkpoint_steps
        every = -(-steps // order.chunks_per_task) * order.wave if steps else order.ledger.num_tasks
        where = replace(self, directory=settings.snapshots, lasting=settings.lasting, every=every)
        return replace(where, choice=settings.checkpoint_best)

    def under_way(self, journal: Journal) -> CutRecord | None:
        """Return the snapshot under way, None if there is none."""
        cut = journal.cut
        if cut is None or cut.roll_back != journal.roll_back or cut.number == self.spoilt:
            return None
        return None if journal.saved is not None and journal.saved[0].number == cut.number else cut

    def low(self, journal: Journal, work: Work) -> int:
        """Return the watermark that everybody may know (R10)."""
        done, cut = work.whole.low, self.under_way(journal)
        return int(done if cut is None else min(done, cut.position.low))

    def is_kept(self, journal: Journal) -> bool:
        """Tell whether what was trained lies in a last checkpoint, or can't be written to one, or is to be written to none."""
        saved = journal.saved
        if not self.lasting or self.unkept or (saved is not None and saved[0].number == self.last):
            return True
        return self.attempts >= LAST_ATTEMPTS and self.under_way(journal) is None

    def may_end(self, journal: Journal, work: Work) -> bool:
        """Tell whether all is kept that is to be, that of the last barrier as the best one, too, if it is."""
        is_best_wanted = self._is_best_due(journal, work) and self.attempts < LAST_ATTEMPTS
        return self.is_kept(journal) and (self.unkept or not is_best_wanted)

    def holds_barrier(self, journal: Journal, work: Work) -> bool:
        """Tell whether no task beyond a barrier is to be begun, because it is the best, and slots are to be cut there (B4)."""
        cut = self.under_way(journal)
        is_cut = cut is None or not cut.best or len(self.sections) >= len(journal.entries)
        return not is_cut or self._is_best_due(journal, work)

    def _is_best_due(self, journal: Journal, work: Work) -> bool:
        """Tell whether the job is at a barrier that is the best so far, in the roll-back in which it was evaluated, and not cut there."""
        last, cut = journal.last_barrier, journal.cut
        if not self.directory or last is None or last.state == self.given_up or not journal.entries:
            return False
        # After a roll-back slots that it has spared hold what is beyond.
        if last.task != work.leases.low or last.state.view != journal.roll_back:
            return False
        if work.whole.above or any(work.leases.begun().values()):
            return False  # a master before this one has gone on, and slots hold what is beyond
        is_cut = (
            cut is not None and cut.best and (cut.position, cut.roll_back) == (work.whole, journal.roll_back)
        )
        return not (is_cut and self._has_or_makes(journal)) and self._is_best(journal, last)

    def _has_or_makes(self, journal: Journal) -> bool:
        """Tell whether the last snapshot that was begun is whole, or under way."""
        saved, cut = journal.saved, journal.cut
        is_whole = saved is not None and cut is not None and saved[0].number == cut.number
        return is_whole or self.under_way(journal) is not None

    def _is_best(self, journal: Journal, last: EvaluatedRecord) -> bool:
        """Tell whether the metrics of the last barrier are better than those of all before."""
        if self.choice is None or not math.isfinite(value := self._value(last)):
            return False
        before = (self._value(one) for one in journal.evaluated.values() if one is not last)
        return all(self.choice.is_better(value, one) for one in before if math.isfinite(one))

    def _value(self, barrier: EvaluatedRecord) -> float:
        """Return the metric by which the best one is chosen, as no number where it was not evaluated."""
        return math.nan if self.choice is None else dict(barrier.values).get(self.choice.metric, math.nan)

    def holds_back(self, now: float, journal: Journal, work: Work) -> bool:
        """Tell whether no wave is to be begun, because slots are to be cut before (A6)."""
        if work.leases.waves is None or not self.directory:
            return False
        if self.under_way(journal) is None:
            return self._is_due(now, journal, work)
        return len(self.sections) < len(journal.entries)

    def draft_of(self, number: int) -> str:
        """Return the directory that a snapshot is written to."""
        return str(draft_of(Path(self.directory), number))

    # ------------------------------------------------------------------ records

    def wanted_cut(self, now: float, journal: Journal, work: Work, *, hears_more: bool) -> CutRecord | None:
        """Begin a snapshot when enough has been done since the last one, or nothing more will be.

        `hears_more`: workers may not have said yet what they compute.
        """
        if not self.directory or not journal.entries or self.under_way(journal) is not None:
            return None
        is_best = self._is_best_due(journal, work)
        # The best one of the last barrier is the last one, also while callbacks run there.
        is_last = work.ends(journal) or (is_best and work.leases.is_over)
        if is_last:
            due = self._is_last_due(now, journal, is_best=is_best)
        else:
            due = is_best or self._is_due(now, journal, work)
        if not due:
            return None
        number = 1 if journal.cut is None else journal.cut.number + 1
        leases, step = work.leases, 0
        if leases.waves is not None:
            if not leases.is_between_waves or hears_more:
                return None
            step = leases.waves.steps_before(leases.low)
        return CutRecord(number, work.whole, journal.roll_back, step, is_best)

    def _is_due(self, now: float, journal: Journal, work: Work) -> bool:
        last = journal.cut
        if last is not None and last.roll_back != journal.roll_back:
            last = None if journal.saved is None else journal.saved[1]
        if last is not None and last.number == self.spoilt and now - self.spoilt_at >= LATER_SECONDS:
            return True
        return work.whole.count() - (0 if last is None else last.position.count()) >= self.every

    def _is_last_due(self, now: float, journal: Journal, *, is_best: bool) -> bool:
        """Tell whether to try the last one; what was cut before its metrics were known is kept, but not as the best one."""
        is_wanted = (is_best and self.attempts < LAST_ATTEMPTS and not self.unkept) or not self.is_kept(
            journal
        )
        return is_wanted and (not self.attempts or now - self.spoilt_at >= LAST_SECONDS)

    def after_cut(self, journal: Journal, work: Work, cut: CutRecord) -> Snapshots:
        """Return what holds when a snapshot is begun."""
        begun = replace(self, sections={}, written=None, manifest=0, fruitless=0)
        if not _is_over(journal, work):
            return begun
        return replace(begun, last=cut.number, attempts=self.attempts + 1)

    def wanted_saved(self, journal: Journal) -> SavedRecord | None:
        """Say that the snapshot under way is whole, once it is."""
        if self.written is None:
            return None
        cut = self.under_way(journal)
        return self.written if cut is not None and self.written.number == cut.number else None

    def after_saved(
        self, journal: Journal, work: Work, record: SavedRecord
    ) -> tuple[Snapshots, Sequence[Announce]]:
        """Return what holds when a snapshot is whole, and what people hear of it."""
        saved = journal.saved
        tasks, step = (0, 0) if saved is None else (saved[1].position.count(), work.step_of(saved[1]))
        text = f"{self._what} of {tasks:,} tasks at {Path(record.path).parent}"
        return replace(self, sections={}, written=None), [Announce(EventKind.SNAPSHOT, "", 0, step, text)]

    @property
    def _what(self) -> str:
        return "checkpoint" if self.lasting else "snapshot"

    # ------------------------------------------------------------------ what is given up

    def without_inherited(self, now: float, journal: Journal) -> Snapshots:
        """Take no part in what a master before this one has begun: the watermark may have gone on since."""
        cut = self.under_way(journal)
        return self if cut is None else replace(self, spoilt=cut.number, spoilt_at=now)

    def _given_up(
        self, now: float, journal: Journal, work: Work, number: int, why: str
    ) -> tuple[Snapshots, list[Instruction]]:
        cut, last = self.under_way(journal), journal.last_barrier
        is_best = cut is not None and cut.best and not _is_over(journal, work)
        is_last_try = is_best or (self.attempts >= LAST_ATTEMPTS and work.ends(journal))
        again = "" if is_last_try else "; it is tried again later"
        text = f"{self._what} {number} is given up: {why}{again}"
        said: list[Instruction] = [Announce(EventKind.UNSAVED, "", 0, 0, text), DropSnapshot(number)]
        after = replace(self, spoilt=number, spoilt_at=now, sections={})
        # The job waits for the best one no longer.
        return replace(after, given_up=last.state) if is_best and last is not None else after, said

    def without_last(self, journal: Journal, work: Work) -> tuple[Snapshots, Sequence[Announce]]:
        """Return what holds when a job was stopped within a wave, and what people hear: slots hold parts of steps."""
        is_due = self.lasting and not self.unkept and work.leases.waves is not None and work.ends(journal)
        if not is_due or work.leases.is_between_waves:
            return self, ()
        saved = journal.saved
        kept = "no checkpoint" if saved is None else f"no checkpoint later than {Path(saved[0].path).parent}"
        text = f"the job was stopped in the middle of a wave, where nothing whole can be written: it leaves {kept}"
        return replace(self, unkept=True), [Announce(EventKind.NOTE, "", 0, 0, text)]

    # ------------------------------------------------------------------ what is written

    def with_slots(
        self, now: float, journal: Journal, work: Work, server: ServerId | None, name: str, cut: SlotsCut
    ) -> tuple[Snapshots, Sequence[Instruction]]:
        """Return what holds when a server has written slots, and what is to be done if it could not.

        Only slots count of which it is the primary, in the primary epoch that they have now.

        Args:
            now: the time.
            journal: what is journalled.
            work: the tasks.
            server: the number of the server that says it.
            name: its name.
            cut: what it says.
        """
        under_way = self.under_way(journal)
        if under_way is None or cut.snapshot != under_way.number:
            return self, ()
        if cut.error:
            why = f"{name} can't write to {cut.path}: {cut.error}"
            return self._given_up(now, journal, work, cut.snapshot, why)
        entries, in_waves = journal.entries, work.leases.waves is not None
        # A worker of which this master has not heard may have begun the next wave, and slots may be past the step by now.
        is_bounded = under_way.best or (in_waves and not _is_over(journal, work))
        bound = _end_of(under_way, work)
        mine = {
            section.slot: (cut.path, section)
            for section in cut.sections
            if section.slot < len(entries)
            and not (is_bounded and section.until > bound)
            and (entries[section.slot].primary, entries[section.slot].primary_epoch)
            == (server, section.primary_epoch)
        }
        if under_way.best and any(one.until > bound for one in cut.sections):
            why = "slots hold gradients of later tasks"
            return self._given_up(now, journal, work, cut.snapshot, why)
        fruitless = 0 if mine else self.fruitless + 1
        after = replace(self, sections={**mine, **self.sections}, fruitless=fruitless)
        if in_waves and fruitless >= FRUITLESS:
            why = "slots hold gradients of a later step"
            return after._given_up(now, journal, work, cut.snapshot, why)
        return after, ()

    def with_manifest(
        self, now: float, journal: Journal, work: Work, event: ManifestWritten
    ) -> tuple[Snapshots, Sequence[Instruction]]:
        """Return what holds when a manifest was written, and what is to be done if it was not."""
        if event.error is None:
            return replace(self, written=SavedRecord(event.number, event.path)), ()
        why = f"its manifest can't be written: {event.error}"
        return self._given_up(now, journal, work, event.number, why)

    def completed(self, journal: Journal, work: Work) -> tuple[Snapshots, Sequence[WriteManifest]]:
        """Have the manifest written when all slots are."""
        cut = self.under_way(journal)
        if cut is None or self.manifest == cut.number or len(self.sections) < len(journal.entries):
            return self, ()
        sections = tuple(section for _, section in sorted(self.sections.items()))
        where = (cut.number, self.directory, cut.position, cut.roll_back)
        # While somebody computes, each slot is cut at a moment of its own.
        begun = work.in_parts if _is_over(journal, work) else ()
        low = cut.position.low
        barriers = tuple(one for one in journal.evaluated.values() if one.task <= low)
        written = WriteManifest(*where, sections, cut.step, begun, barriers, cut.best)
        return replace(self, manifest=cut.number), [written]

    def order_cut(
        self,
        now: float,
        journal: Journal,
        connection: int,
        link: Link,
        server: ServerId,
        out: list[Instruction],
    ) -> Link:
        """Order what a server is to write; return what it then knows."""
        cut = self.under_way(journal)
        if cut is None or len(self.sections) == len(journal.entries):
            return link
        # What it writes now may be some of those that are missing.
        if link.cut == cut.number and now - link.cut_at < AGAIN_SECONDS:
            return link
        missing = [
            (slot, entry.primary_epoch)
            for slot, entry in enumerate(journal.entries)
            if entry.primary == server and slot not in self.sections
        ]
        if missing:
            slots, primary_epochs = zip(*missing, strict=True)
            low, above = int(cut.position.low), tuple(map(int, cut.position.above))
            where = (cut.number, self.draft_of(cut.number))
            out.append(Tell(connection, CutOrdered(*where, slots, primary_epochs, low, above, cut.step)))
        return replace(link, cut=cut.number, cut_at=now)


def _end_of(cut: CutRecord, work: Work) -> int:
    """Return the first task beyond a snapshot: tasks that max_step cuts short are in it, and never whole."""
    assert work.order is not None, "slots are cut once the data is known"
    end = int(cut.position.low)
    while end in work.order.partial:
        end += 1
    return end


def _is_over(journal: Journal, work: Work) -> bool:
    """Tell whether nobody computes any more: all is trained, or what is not trained never will be."""
    return work.leases.is_over or work.ends(journal)
