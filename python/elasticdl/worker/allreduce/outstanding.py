"""The work that a member has given out and that has not come back: at most one piece, and a heal beside it."""

from __future__ import annotations

from dataclasses import dataclass

from elasticdl.control.protocol.frozen import replace
from elasticdl.control.protocol.view import INITIAL, SNAPSHOT
from elasticdl.worker.events import (
    Commit,
    Compute,
    ComputeMetrics,
    Contribute,
    Evaluate,
    Export,
    Heal,
    PassGate,
)

Work = Compute | Contribute | Commit | Evaluate | ComputeMetrics | PassGate | Export


@dataclass(frozen=True)  # no slots: see elasticdl.control.protocol.frozen
class Outstanding:
    """Outstanding work.

    Attributes:
        work: the piece of work, except a heal.
        heal: the heal; it runs beside `work` in a joiner that gives zeros meanwhile.
        cancelled: one of the two, unknown which, has come back without effect.
        finished: pieces of work that came back.
    """

    work: Work | None = None
    heal: Heal | None = None
    cancelled: bool = False
    finished: int = 0

    @property
    def is_none(self) -> bool:
        """Tell whether everything has come back."""
        return self.work is None and self.heal is None

    @property
    def contributes(self) -> bool:
        """Tell whether the work is to wait for others in a ring."""
        return isinstance(self.work, Contribute)

    @property
    def progress(self) -> int:
        """Return a number that grows with every piece of work.

        It is odd while this member itself has work under way and even while it waits for others, so that the master can tell a member
        that hangs from those that wait for it. A transfer counts as waiting: however long it takes, the data plane watches it.
        """
        making = self.heal is not None and self.heal.source in (INITIAL, SNAPSHOT)
        busy = making or (self.work is not None and not self.contributes)
        return 2 * self.finished + busy

    def back(self, *, heal: bool) -> Outstanding:
        """Return what holds when the heal or the other work has come back."""
        if self.cancelled:  # the other one came back before
            return self._all_back()
        finished = self.finished + 1
        return (
            replace(self, heal=None, finished=finished)
            if heal
            else replace(self, work=None, finished=finished)
        )

    def cancel(self) -> Outstanding:
        """Return what holds when something has come back without effect; of two pieces it is not known which one, until the second is."""
        if self.heal is not None and self.work is not None and not self.cancelled:
            return replace(self, cancelled=True)
        return self._all_back()

    def _all_back(self) -> Outstanding:
        return replace(self, heal=None, work=None, cancelled=False, finished=self.finished + 1)
