"""Who is killed because the group waits for its end: those who were left out and stay, and those who hold up the next view.

To kill is never needed for safety: who is left out can do nothing that counts, and the wait status of who holds up is the missing proof.
Rule numbers are those of the note on the protocol.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from elasticdl.control.protocol.frozen import replace
from elasticdl.master.core.events import Kill


@dataclass(frozen=True, slots=True)
class Kills:
    """Processes that are to end.

    Attributes:
        pending: workers left out on suspicion → when; they are killed if they do not end.
        held_up_since: since when all that the next view waits for are members that are suspected.
    """

    pending: Mapping[str, float] = field(default_factory=dict)
    held_up_since: float | None = None

    def with_left_out(self, now: float, names: Iterable[str]) -> Kills:
        """Return what holds when these are left out."""
        return replace(self, pending={**self.pending, **dict.fromkeys(names, now)})

    def without(self, name: str) -> Kills:
        """Return what holds when a process has ended."""
        if name not in self.pending:
            return self
        return replace(self, pending={other: at for other, at in self.pending.items() if other != name})

    def overdue(self, now: float, alone: float) -> tuple[Kills, Sequence[Kill]]:
        """Kill who was left out on suspicion and hangs: it would stay for ever, and nothing that it could do counts any more."""
        due = [name for name, at in self.pending.items() if now - at >= alone]
        if not due:
            return self, ()
        left = {name: at for name, at in self.pending.items() if name not in due}
        kills = [Kill(name, "it was left out of the group and has not ended") for name in due]
        return replace(self, pending=left), kills

    def held_up(self, now: float, names: list[str], stall: float) -> tuple[Kills, Sequence[Kill]]:
        """D2: kill members that alone hold up the next view and stay silent for long; their wait statuses are the missing proof."""
        if not names:
            return self if self.held_up_since is None else replace(self, held_up_since=None), ()
        if self.held_up_since is None:
            return replace(self, held_up_since=now), ()
        if now - self.held_up_since < stall:
            return self, ()
        kills = [Kill(name, "the group can't go on without it, and it does not answer") for name in names]
        return replace(self, held_up_since=now), kills  # and again, should it not end
