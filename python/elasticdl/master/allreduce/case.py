"""What speaks against one member of the current view at one moment; how witnesses are weighed is in `master/core/witnesses.py`.

A value of one moment: what it is asked follows from its fields alone. It is made of the few members only against which anything may speak.
"""

from __future__ import annotations

from dataclasses import dataclass

from elasticdl.control.protocol.view import View
from elasticdl.master.allreduce.seen import Link, Seen
from elasticdl.master.core.witnesses import Statement, Times, Witness, judge


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One member.

    Attributes:
        view: the current view.
        seen: what was heard of the member, None if nothing.
        link: its control stream, None if there is none.
        accused_at: when a peer accused it first.
        grace: until then a member may be on its way to this master.
        alive_at: after this time it has contributed to a step, as others say.
        stalls_at: from then on it makes no progress, None if it had no work when its last heartbeat came.
        times: of the protocol.
    """

    view: View
    seen: Seen | None
    link: Link | None
    accused_at: float | None
    grace: float
    alive_at: float
    stalls_at: float | None
    times: Times

    def suspicion(self, now: float) -> str | None:
        """Return why the member is suspected.

        Nobody waits for a member that has sealed the view, but the next view would wait for one that hangs.
        """
        if self.seen is not None and self.seen.report.sealed >= self.view.id:
            return str(Witness.STALL) if self._hangs(now, self.seen) else None
        return judge(now, self._statements(), self.times)

    def _hangs(self, now: float, seen: Seen) -> bool:
        """Tell whether a member that answers is still at the work of an earlier view, although this one has lasted long enough for it."""
        return self.stalls_at is not None and seen.beat[0] < self.view.id and now >= self.stalls_at

    def _statements(self) -> tuple[Statement, ...]:
        seen, times = self.seen, self.times
        if seen is None:
            return (Statement(Witness.STREAM, max(self.grace, self.alive_at)),)
        said: list[Statement] = []
        if seen.connection is None:
            since = self.grace if seen.cut_at is None else seen.cut_at
            said.append(Statement(Witness.STREAM, max(since, self.alive_at)))
        # a worker that was just started may beat late; after a restart of the master all do
        last_beat = seen.registered_at + times.alone if seen.beat_at is None else seen.beat_at
        said.append(Statement(Witness.BEAT, max(last_beat, self.alive_at) + 3 * times.heartbeat))
        if self.accused_at is not None:
            said.append(Statement(Witness.ACCUSED, self.accused_at))
        if self.stalls_at is not None:
            said.append(Statement(Witness.STALL, self.stalls_at))
        if self.link is not None and self.link.stop >= self.view.id:
            said.append(Statement(Witness.DEAF, self.link.stop_at + times.alone))
        return tuple(said)
