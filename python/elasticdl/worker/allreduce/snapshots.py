"""A snapshot of the group's state on its way: copied, known to be stable, written, acknowledged. Rule numbers are those of the protocol."""

from __future__ import annotations

from dataclasses import dataclass, replace

from elasticdl.control.protocol.messages import Saved, saved_as
from elasticdl.control.protocol.view import StateId, View, ViewId
from elasticdl.worker.events import DropSnapshot, Instruction, KeepSnapshot, SnapshotWritten


@dataclass(frozen=True, slots=True)
class Snapshots:
    """Snapshots of one member.

    Attributes:
        copy: a state that was copied and is not yet known to be stable.
        writing: the state whose snapshot is being written.
        saved: a written snapshot, until it is acknowledged.
        kept: state of the last acknowledged snapshot.
    """

    copy: StateId | None = None
    writing: StateId | None = None
    saved: Saved | None = None
    kept: StateId | None = None

    def copied(self, state: StateId) -> Snapshots:
        """Return what holds when a state is copied; whether it is kept is known when the next step commits (D6: stable states only)."""
        return replace(self, copy=state)

    def committed(self, view: ViewId) -> tuple[Snapshots, list[Instruction]]:
        """Keep the copy: every member of the view has given its part to a later step, so nobody stays behind this state."""
        if self.copy is None:
            return self, []
        return replace(self, copy=None, writing=self.copy), [KeepSnapshot(view, self.copy)]

    def in_view(self, view: View) -> tuple[Snapshots, list[Instruction]]:
        """Return what holds in a new view: a copy of another state than its base may be of one that nobody continues."""
        dropped: list[Instruction] = []
        copy = self.copy
        if copy is not None and copy != view.base:
            copy, dropped = None, [DropSnapshot()]
        saved = None if self.saved is None else replace(self.saved, view=view.id)
        return replace(self, copy=copy, saved=saved), dropped

    def begun(self, state: StateId) -> bool:
        """Tell whether a snapshot of a state is being written, or is written and not acknowledged."""
        return self.writing == state or (self.saved is not None and self.saved.state == state)

    def written(self, view: ViewId, event: SnapshotWritten) -> tuple[Snapshots, Saved]:
        """Return what holds when a snapshot is written, and its report."""
        writing = None if self.writing == event.state else self.writing
        saved = Saved(view, event.state, event.position, event.path)
        return replace(self, writing=writing, saved=saved), saved

    def acknowledges(self, what: str) -> bool:
        """Tell whether an acknowledgement is that of the written snapshot."""
        return self.saved is not None and what == saved_as(self.saved.state)

    def acknowledged(self) -> Snapshots:
        """Return what holds when the written snapshot is journalled."""
        assert self.saved is not None
        return replace(self, saved=None, kept=self.saved.state)
