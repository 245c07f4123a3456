"""Which heartbeats are news: a monitor names the last one of every member at each look, and members beat less often than it is looked."""

from __future__ import annotations

from collections.abc import Iterable

from elasticdl.control.protocol.view import MemberId
from elasticdl.master.core.events import Beat

Sign = tuple[str, int, int, int, float, bool]
"""As the monitor has it: member, view, step, progress, seconds since its last beat, connected?"""

_SAME_SECONDS = 0.01
"""Two looks at one beat differ by less in when it came, unless this process was held up between asking the time and looking."""


class Beats:
    """The last heartbeat of each member."""

    def __init__(self) -> None:
        self._last: dict[MemberId, tuple[float, int, int, int]] = {}

    def heard(self, now: float, signs: Iterable[Sign]) -> tuple[list[Beat], dict[MemberId, float]]:
        """Return the beats that have come since the last look, and when the last one of each member came.

        Args:
            now: the time of this look, in seconds of any monotonic clock.
            signs: what the monitor has; who is not among them is forgotten.
        """
        news: list[Beat] = []
        last: dict[MemberId, tuple[float, int, int, int]] = {}
        for name, view, step, progress, age, _ in signs:
            member = MemberId(name)
            beat = now - age, view, step, progress
            known = self._last.get(member)
            if known is not None and known[1:] == beat[1:] and abs(beat[0] - known[0]) < _SAME_SECONDS:
                last[member] = known
                continue
            last[member] = beat
            news.append(Beat(member, view, step, progress, age))
        self._last = last
        return news, {member: beat[0] for member, beat in last.items()}

    def forget(self, member: MemberId) -> None:
        """Take its last beat for news again: what a master has heard of one who had not registered yet it has not noted."""
        self._last.pop(member, None)
