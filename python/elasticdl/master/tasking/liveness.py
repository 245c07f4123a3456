"""Who is there, and who seems to hang; each decision with its reason. Pure; time is an argument.

Nothing depends on it but time: the first result of a task counts, from any worker.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from elasticdl.control.protocol.frozen import replace
from elasticdl.control.protocol.view import MemberId
from elasticdl.master.core.events import Beat
from elasticdl.master.core.witnesses import Statement, Times, Witness, judge, stall_limit


@dataclass(frozen=True)  # no slots: see elasticdl.control.protocol.frozen
class Seen:
    """One worker.

    Attributes:
        name: of its process.
        connection: on which it speaks, None if that broke.
        broke_at: when its connection broke.
        is_ready: it can do tasks.
        leaving: it wants to go.
        beat_at: when its last heartbeat came, or when it enrolled.
        progress: counts what it has done.
        moved_at: when that last grew, or when it got its task.
    """

    name: str
    connection: int | None
    broke_at: float = 0.0
    is_ready: bool = False
    leaving: bool = False
    beat_at: float = 0.0
    progress: int = 0
    moved_at: float = 0.0


@dataclass(frozen=True)  # no slots: see elasticdl.control.protocol.frozen
class Liveness:
    """The workers of a job.

    Attributes:
        seen: those that have enrolled and have not ended.
    """

    seen: Mapping[MemberId, Seen] = field(default_factory=dict)

    def member(self, name: str) -> MemberId | None:
        """Return the member that a process is, None if it has not enrolled."""
        return next((member for member, seen in self.seen.items() if seen.name == name), None)

    # ------------------------------------------------------------------ what comes in

    def enrolled(
        self, now: float, member: MemberId, name: str, connection: int, *, leaving: bool
    ) -> Liveness:
        """Return what holds when a worker enrolls on a new connection."""
        known = self.seen.get(member) or Seen(name, connection, moved_at=now)
        return self._with(
            member, replace(known, connection=connection, is_ready=False, leaving=leaving, beat_at=now)
        )

    def ready(self, now: float, member: MemberId) -> Liveness:
        """Return what holds when it can do tasks."""
        return self._with(member, replace(self.seen[member], is_ready=True, moved_at=now))

    def leaves(self, member: MemberId) -> Liveness:
        """Return what holds when it has let go of its task."""
        return self._with(member, replace(self.seen[member], leaving=True))

    def moved(self, now: float, member: MemberId) -> Liveness:
        """Return what holds when it gets a task, or has done one."""
        return self._with(member, replace(self.seen[member], moved_at=now))

    def disconnected(self, now: float, member: MemberId, connection: int) -> Liveness:
        """Return what holds when a connection has ended."""
        seen = self.seen.get(member)
        if seen is None or seen.connection != connection:
            return self
        return self._with(member, replace(seen, connection=None, broke_at=now))

    def beaten(self, now: float, beat: Beat) -> Liveness:
        """Return what holds when a heartbeat has come."""
        seen = self.seen.get(beat.member)
        if seen is None:
            return self
        moved_at = seen.moved_at if beat.progress == seen.progress else now - beat.age
        return self._with(
            beat.member,
            replace(
                seen, beat_at=now - beat.age, progress=beat.progress, moved_at=max(moved_at, seen.moved_at)
            ),
        )

    def without(self, member: MemberId) -> Liveness:
        """Return what holds when a worker has ended, or is given up."""
        return replace(self, seen={other: seen for other, seen in self.seen.items() if other != member})

    def _with(self, member: MemberId, seen: Seen) -> Liveness:
        return replace(self, seen={**self.seen, member: seen})

    # ------------------------------------------------------------------ decisions

    def at_work(self) -> list[tuple[int, MemberId]]:
        """Return connections and members that can be given a task, the longest there first."""
        return [
            (seen.connection, member)
            for member, seen in self.seen.items()
            if seen.connection is not None and seen.is_ready and not seen.leaving
        ]

    def suspected(
        self, now: float, times: Times, took: tuple[float, ...], busy: frozenset[MemberId]
    ) -> dict[MemberId, str]:
        """Return who seems to hang, with the reason; only a worker with a task can make no progress.

        Args:
            now: the time.
            times: of the protocol.
            took: seconds that tasks have taken.
            busy: who has a task.
        """
        found = {}
        for member, seen in self.seen.items():
            statements = [Statement(Witness.BEAT, seen.beat_at + 3 * times.heartbeat)]
            if seen.connection is None:
                statements.append(Statement(Witness.STREAM, seen.broke_at))
            if member in busy:
                statements.append(Statement(Witness.STALL, seen.moved_at + stall_limit(took, times)))
            why = judge(now, tuple(statements), times)
            if why is not None:
                found[member] = why
        return found
