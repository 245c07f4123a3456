"""How long a job with parameter servers takes to recover from losses: for people, and for nobody else.

A loss counts from the last step that was settled before it, whenever its first sign came, to the first step after what follows from it is
in the journal.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from elasticdl.control.protocol.frozen import replace
from elasticdl.control.protocol.status import EventKind
from elasticdl.master.core.events import Announce

AWAY_SECONDS = 1.0
"""A master that takes in nothing for so long was stopped: ticks come every few milliseconds."""
ECHO_SECONDS = 0.1
"""For so long after that it hears what was said meanwhile."""


@dataclass(frozen=True, slots=True)
class Incident:
    """A loss from which the job has not recovered yet.

    Attributes:
        since: when the last step before it was settled.
        name: of the process.
        cause: in a few words.
        journalled: what follows from it is in the journal.
        from_return: no step is known of before it: `since` is when this master came back.
    """

    since: float
    name: str
    cause: str
    journalled: bool = False
    from_return: bool = False

    def announced(self, now: float, cause: str, step: int) -> Announce:
        """Return how people hear that the job has recovered from it at time `now`."""
        seconds = now - self.since
        after = f"the last step before the loss of {self.name}"
        if self.from_return:
            after = f"the return of the master, which has found {self.name} lost"
        text = f"training continues {seconds:.2f} s after {after} ({cause})"
        return Announce(EventKind.RECOVERED, self.name, 0, step, text, seconds, cause)


@dataclass(frozen=True)  # no slots: see elasticdl.control.protocol.frozen
class Recovery:
    """The losses that are open, and since when nothing is settled.

    Attributes:
        incidents: the losses.
        heard_at: when the last event came.
        back_at: when this master continued after it had been stopped.
        settled_at: when the last step was settled, None if none was in this life.
    """

    incidents: tuple[Incident, ...] = ()
    heard_at: float | None = None
    back_at: float = -math.inf
    settled_at: float | None = None

    def heard(self, now: float) -> Recovery:
        """Return what holds when an event comes."""
        was_away = self.heard_at is not None and now - self.heard_at >= AWAY_SECONDS
        return replace(self, heard_at=now, back_at=now if was_away else self.back_at)

    def with_loss(
        self, now: float, name: str, cause: str, returned_at: float | None, *, journalled: bool
    ) -> Recovery:
        """Return what holds when a process is lost; `returned_at`: when this master came back, None for the first one.

        The same loss counts from its first sign, and is over only when what follows from it is journalled.
        """
        known = next((one for one in self.incidents if one.name == name), None)
        if known is None:
            known = self._incident(now, name, cause, returned_at)
        others = tuple(one for one in self.incidents if one.name != name)
        return replace(self, incidents=(*others, replace(known, journalled=known.journalled or journalled)))

    def _incident(self, now: float, name: str, cause: str, returned_at: float | None) -> Incident:
        if self.settled_at is not None:
            return Incident(self.settled_at, name, cause)
        if returned_at is not None:
            return Incident(returned_at, name, cause, from_return=True)
        return Incident(now, name, cause)

    def settled(self, now: float, gone: Mapping[str, str], step: int) -> tuple[Recovery, list[Announce]]:
        """Return what holds when something was settled that was not before, and from what the job has recovered."""
        over = [one for one in self.incidents if one.journalled]
        said = [one.announced(now, gone.get(one.name, one.cause), step) for one in over]
        after = self
        if over:
            after = replace(self, incidents=tuple(one for one in self.incidents if not one.journalled))
        # What a master hears first when it continues may have been settled long ago.
        return (after if now - self.back_at < ECHO_SECONDS else replace(after, settled_at=now)), said
