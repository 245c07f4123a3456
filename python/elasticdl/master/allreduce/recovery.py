"""How long a group takes to recover from losses: for people, and for nobody else.

A loss counts from its first sign to the first step of a later view.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from elasticdl.control.protocol.frozen import replace
from elasticdl.control.protocol.status import EventKind
from elasticdl.control.protocol.view import ViewId
from elasticdl.master.core.events import Announce


@dataclass(frozen=True, slots=True)
class Incident:
    """A loss that the group has not recovered from yet.

    Attributes:
        since: when the first sign of it came.
        view: the view that it broke.
        worker: who was lost.
        cause: in a few words.
    """

    since: float
    view: ViewId
    worker: str
    cause: str

    def announced(self, now: float, view: ViewId, step: int, cause: str) -> Announce:
        """Return how people hear at time `now` that the group has recovered from it with a step of a view."""
        seconds = now - self.since
        text = f"step {step} is committed {seconds:.2f} s after {self.worker} was lost ({cause})"
        return Announce(EventKind.RECOVERED, self.worker, view, step, text, seconds, cause)


@dataclass(frozen=True, slots=True)
class Recovery:
    """The losses that are open.

    Attributes:
        incidents: these.
    """

    incidents: tuple[Incident, ...] = ()

    def with_loss(self, since: float, view: ViewId, worker: str, cause: str) -> Recovery:
        """Return what holds when a member of a view is lost; the same loss counts from its first sign."""
        if any(incident.worker == worker and incident.view == view for incident in self.incidents):
            return self
        return replace(self, incidents=(*self.incidents, Incident(since, view, worker, cause)))

    def committed(
        self, now: float, view: ViewId, step: int, gone: Mapping[str, str]
    ) -> tuple[Recovery, list[Announce]]:
        """Return what holds when a view has committed a step, and from what the group has recovered."""
        over = [incident for incident in self.incidents if incident.view < view]
        if not over:
            return self, []
        left = tuple(incident for incident in self.incidents if incident.view >= view)
        # the proof may have come after the suspicion
        said = [one.announced(now, view, step, gone.get(one.worker, one.cause)) for one in over]
        return replace(self, incidents=left), said
