"""A member's parts of the group's saved states: copied, written, acknowledged. Rule numbers are those of the protocol.

All members of a view copy a state at the same moment, each its own range of bytes, so no copy has to wait until it is known to be
stable: it counts when all have said so (`master/allreduce/snapshots.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

from elasticdl.control.protocol.frozen import replace
from elasticdl.control.protocol.messages import SLOW, Cut, Saved, saved_as, unsaved_as
from elasticdl.control.protocol.view import StateId
from elasticdl.data.plan.shard import Position

MOST = 2
"""Copies in memory at a time, of which one is being written."""
MOST_UNANSWERED = 16
"""Parts that are written and not acknowledged; a master may be away for long, and each has a folder."""
PATIENCE = 10
"""Ticks, of about a second, that training waits for storage."""


@dataclass(frozen=True, slots=True)
class Saving:
    """When states are saved.

    Attributes:
        every: committed steps between two; 0: at the end of each epoch.
        lasting: they are checkpoints, so that the last state is saved, too.
    """

    every: int = 0
    lasting: bool = False


@dataclass(frozen=True, slots=True)
class Snapshots:
    """Parts of one member.

    Attributes:
        due: the present state, of which a copy is to be made before anything else.
        waited: ticks in which training, or its end, waits for storage.
        writing: copied, and not written yet.
        saved: written, or given up by this member, under the present view, until that is acknowledged.
        last: the last cut of the present view.
        kept: state of the last one that is journalled.
    """

    due: Cut | None = None
    waited: int = 0
    writing: tuple[Cut, ...] = ()
    saved: tuple[Saved, ...] = ()
    last: Cut | None = None
    kept: StateId | None = None

    @property
    def is_full(self) -> bool:
        """Tell whether no further copy may be made."""
        return len(self.writing) >= MOST or len(self.saved) >= MOST_UNANSWERED

    def waits(self, saving: Saving) -> bool:
        """Tell whether training waits until there is room for a copy: checkpoints were asked for; as long as storage answers."""
        is_slow = len(self.writing) >= MOST and self.waited < PATIENCE
        return saving.lasting and self.due is not None and is_slow

    def holds_up_end(self, saving: Saving) -> bool:
        """Tell whether the end of training waits: the view would give up what is not journalled, and nothing is in a hurry."""
        return saving.lasting and bool(self.writing or self.saved) and self.waited < PATIENCE

    def wanted(self, cut: Cut) -> Snapshots:
        """Return what holds when a copy is to be made of the present state."""
        return replace(self, due=cut, waited=0)

    def ticked(self) -> Snapshots:
        """Return what holds a moment later."""
        is_idle = self.due is None and not self.writing and not self.saved
        return self if is_idle else replace(self, waited=self.waited + 1)

    def copied(self, cut: Cut) -> Snapshots:
        """Return what holds when a part is copied."""
        return replace(self, due=None, waited=0, writing=(*self.writing, cut), last=cut)

    def left_out(self, cut: Cut, position: Position) -> tuple[Snapshots, Saved]:
        """Return what holds when storage is too slow for another copy, and what the master hears."""
        saved = Saved(cut, position, "", error=SLOW)
        return replace(self, due=None, saved=(*self.saved, saved), last=cut), saved

    def written(self, saved: Saved, *, counts: bool) -> Snapshots:
        """Return what holds when a part is written, or can't be; `counts`: its view is the present one."""
        writing = tuple(cut for cut in self.writing if cut != saved.cut)
        return replace(self, writing=writing, saved=(*self.saved, saved) if counts else self.saved)

    def in_view(self) -> Snapshots:
        """Return what holds in a new view: what is not journalled is given up (D6)."""
        return replace(self, due=None, saved=(), last=None)

    def acknowledged(self, what: str) -> Snapshots:
        """Return what holds when the master has acknowledged something."""
        for one in self.saved:
            if what in (saved_as(one.cut), unsaved_as(one.cut)):
                kept = one.cut.state if what == saved_as(one.cut) else self.kept
                return replace(
                    self, saved=tuple(other for other in self.saved if other is not one), kept=kept
                )
        return self
