"""When a state of the group is saved: pure decisions on the parts that members report. Rule numbers are those of the note on the protocol.

All members of a view copy a state at the same moment, each its own range of bytes. When all of them have written theirs under the current
view, all hold the state, so no later view goes back behind it (D6). What is not journalled when a view ends is given up: its members may
be lost, and the state with them. The manifest is written before the record, and gets its final place after it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from elasticdl.control.protocol.frozen import replace
from elasticdl.control.protocol.messages import SLOW, Cut, Saved, saved_as, unsaved_as
from elasticdl.control.protocol.status import EventKind
from elasticdl.control.protocol.view import MemberId, View
from elasticdl.master.core.events import Announce, Instruction, ManifestWritten, WriteGroupManifest
from elasticdl.master.core.records import Journal, SnapshotRecord


@dataclass(frozen=True)  # no slots: see elasticdl.control.protocol.frozen
class Snapshots:
    """States of the current view that are being saved.

    Attributes:
        directory: in which they are, None if there are none.
        lasting: they are checkpoints, which outlive the job.
        highest: number of a checkpoint that was there before the job.
        parts: of each cut that is not journalled, what members have reported.
        writing: the cut whose manifest is being written.
        written: the cut whose manifest is written.
        spoilt: cuts that were given up.
        awaited_since: when the result was written, and the job has waited for its last checkpoint since.
        late: it has waited long enough.
    """

    directory: Path | None = None
    lasting: bool = False
    highest: int = 0
    parts: Mapping[Cut, Mapping[MemberId, Saved]] = field(default_factory=dict)
    writing: Cut | None = None
    written: Cut | None = None
    spoilt: frozenset[Cut] = frozenset()
    awaited_since: float | None = None
    late: bool = False

    # ------------------------------------------------------------------ what comes in

    def answer(self, journal: Journal, saved: Saved) -> str | None:
        """Return how a report is acknowledged that changes nothing any more, None if it may count."""
        cut, last = saved.cut, journal.snapshot
        if last is not None and (last.state.step, last.passed) >= cut.age:
            return saved_as(cut)
        return unsaved_as(cut) if cut in self.spoilt else None

    def reported(
        self, view: View | None, member: MemberId, saved: Saved
    ) -> tuple[Snapshots, Sequence[Instruction]]:
        """Return what holds when a member has written its part, or can't."""
        cut = saved.cut
        if not self.accepts(view, member, saved):
            return self, ()
        if saved.error:
            return self._given_up(cut, saved.error)
        parts = {**self.parts.get(cut, {}), member: saved}
        return replace(self, parts={**self.parts, cut: parts}), ()

    def accepts(self, view: View | None, member: MemberId, saved: Saved) -> bool:
        """D6: only from a member of the current view, reporting under its id."""
        return view is not None and saved.cut.view == view.id and view.rank(member) is not None

    def manifest_written(self, event: ManifestWritten) -> tuple[Snapshots, Sequence[Instruction]]:
        """Return what holds when a manifest is written, or can't be."""
        if event.cut is None or event.cut != self.writing:
            return self, ()  # given up meanwhile
        if event.error is not None:
            return replace(self, writing=None)._given_up(
                event.cut, f"its manifest can't be written: {event.error}"
            )
        return replace(self, writing=None, written=event.cut), ()

    def journalled(self, record: SnapshotRecord) -> tuple[Snapshots, Sequence[Announce]]:
        """Return what holds when a record is durable, and what people hear of it."""
        left = {
            cut: parts for cut, parts in self.parts.items() if cut.age > (record.state.step, record.passed)
        }
        text = f"{self._what} of step {record.state.step} at {Path(record.path).parent}"
        said = Announce(EventKind.SNAPSHOT, "", record.view, record.state.step, text)
        return replace(self, parts=left, written=None), [said]

    def in_view(self) -> tuple[Snapshots, Sequence[Announce]]:
        """D6: return what holds when a view begins, and what people hear: what the one before has not saved is given up.

        They have asked for checkpoints; of snapshots, which are the job's own affair, the next one does as well.
        """
        why = "the group has changed meanwhile; the next one follows"
        said = [self._unsaved(cut, why) for cut in self.parts] if self.lasting else []
        return replace(self, parts={}, writing=None, written=None, spoilt=frozenset()), said

    def awaited(self, now: float) -> Snapshots:
        """Return what holds when the result is written."""
        return self if self.awaited_since is not None else replace(self, awaited_since=now)

    def _given_up(self, cut: Cut, why: str) -> tuple[Snapshots, Sequence[Instruction]]:
        left = {other: parts for other, parts in self.parts.items() if other != cut}
        is_silent = cut in self.spoilt or (why == SLOW and not self.lasting)
        said = () if is_silent else (self._unsaved(cut, why),)
        return replace(self, parts=left, spoilt=self.spoilt | {cut}), said

    def _unsaved(self, cut: Cut, why: str) -> Announce:
        text = f"{self._what} of step {cut.state.step} is given up: {why}"
        return Announce(EventKind.UNSAVED, "", cut.view, cut.state.step, text)

    @property
    def _what(self) -> str:
        return "checkpoint" if self.lasting else "snapshot"

    # ------------------------------------------------------------------ decisions

    def number(self, journal: Journal) -> int:
        """Return the number of the next checkpoint."""
        return 1 + (self.highest if journal.snapshot is None else journal.snapshot.number)

    def completed(self, journal: Journal) -> tuple[Snapshots, Sequence[Instruction]]:
        """Have the manifest written of a cut of which all members of the view have written their parts."""
        view = journal.view
        if view is None or self.directory is None or self.writing is not None or self.written is not None:
            return self, ()
        # All checkpoints are wanted, and of snapshots the latest one.
        for cut in sorted(self.parts, key=lambda cut: cut.age, reverse=not self.lasting):
            parts = self._in_order(view, cut)
            if parts is None:
                continue
            if why := _differences(parts):
                return self._given_up(cut, why)
            where = (self.number(journal), self.directory, cut, parts[0].position, parts[0].head)
            files = tuple((part.path, part.length, part.crc) for part in parts)
            return replace(self, writing=cut), [WriteGroupManifest(*where, files)]
        return self, ()

    def _in_order(self, view: View, cut: Cut) -> tuple[Saved, ...] | None:
        """Return the parts of all members of the view, None if some are missing."""
        parts = self.parts[cut]
        if cut.view != view.id or any(peer.id not in parts for peer in view.members):
            return None
        return tuple(parts[peer.id] for peer in view.members)

    def record(self, journal: Journal, path: Path) -> SnapshotRecord | None:
        """Return the record of what is written, if it is due: the view may have changed meanwhile. `path`: where the manifest will be."""
        cut, view = self.written, journal.view
        if cut is None or view is None or cut.view != view.id:
            return None
        position = next(iter(self.parts[cut].values())).position
        return SnapshotRecord(cut.view, cut.state, position, str(path), self.number(journal), cut.passed)

    def is_kept(self, journal: Journal) -> bool:
        """Tell whether the job need not wait for a last checkpoint: it is there, is given up, takes too long, or there is none."""
        view, last = journal.view, journal.snapshot
        if not self.lasting or self.late or view is None or not view.base.step or not view.base.view:
            return True
        is_there = last is not None and last.state == view.base
        return is_there or any(cut.state == view.base for cut in self.spoilt)

    def overdue(self, now: float, journal: Journal, patience: float) -> tuple[Snapshots, Sequence[Announce]]:
        """Let the job wait no longer for a last checkpoint that is not written in so many seconds."""
        since, view = self.awaited_since, journal.view
        if since is None or view is None or now - since < patience or self.is_kept(journal):
            return self, ()
        text = f"the last {self._what} is given up: it is not written after {patience:.0f} s"
        return replace(self, late=True), [Announce(EventKind.UNSAVED, "", view.id, view.base.step, text)]


def _differences(parts: Sequence[Saved]) -> str:
    """Return why parts make no state, empty if they make one."""
    first, end = parts[0], 0
    for part in parts:
        if (part.position, part.size, part.head) != (first.position, first.size, first.head):
            return (
                "members hold different states: programs of `elasticdl run` did not do the same after a step, which the next step says; "
                "in other jobs this is an error of ElasticDL, please report it with the job's logs"
            )
        if part.first != end:
            return "members have not divided it; this is an error of ElasticDL, please report it with the job's logs"
        end += part.length
    return (
        ""
        if end == first.size
        else "a part of it is missing; this is an error of ElasticDL, please report it"
    )
