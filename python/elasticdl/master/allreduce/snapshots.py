"""The state that a member has saved, until that is journalled and acknowledged. Rule numbers are those of the note on the protocol."""

from __future__ import annotations

from dataclasses import dataclass, replace

from elasticdl.control.protocol.messages import Saved
from elasticdl.control.protocol.view import MemberId, View
from elasticdl.master.core.records import Journal, SnapshotRecord


@dataclass(frozen=True, slots=True)
class Snapshots:
    """What was saved.

    Attributes:
        saved: the report that waits for its record.
        saved_by: who sent it.
    """

    saved: Saved | None = None
    saved_by: MemberId | None = None

    def is_journalled(self, journal: Journal, saved: Saved) -> bool:
        """Tell whether a snapshot, or a later one, is in the journal."""
        last = journal.snapshot
        return last is not None and last.state.step >= saved.state.step

    def reported(self, view: View | None, member: MemberId, saved: Saved) -> Snapshots:
        """Return what holds when a member has saved its state."""
        return replace(self, saved=saved, saved_by=member) if self.accepts(view, member, saved) else self

    def accepts(self, view: View | None, member: MemberId, saved: Saved) -> bool:
        """D6: only from a member of the current view, reporting under its id."""
        return view is not None and saved.view == view.id and view.rank(member) is not None

    def record(self, journal: Journal) -> SnapshotRecord | None:
        """Return the record of what was saved, if it is due: the view may have changed since the report came."""
        saved, view = self.saved, journal.view
        if saved is None or self.is_journalled(journal, saved) or view is None or saved.view != view.id:
            return None
        return SnapshotRecord(saved.view, saved.state, saved.position, saved.path)

    def journalled(self, record: SnapshotRecord) -> Snapshots:
        """Return what holds when a record is durable; a later report waits for its own."""
        later = self.saved is not None and self.saved.state != record.state
        return self if later else replace(self, saved=None, saved_by=None)
