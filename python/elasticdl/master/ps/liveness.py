"""Who takes part in a job with parameter servers, and who is suspected of being lost.

Workers and servers come and go one by one: there is no group, and a suspicion that is wrong costs time and nothing else, because
servers know each chunk and a server's successor accepts nothing from it. What every master knows beside (the journal, who is proven dead,
program errors) is read from the core that is handed in.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field

from elasticdl.cluster.cluster import Role, process_name
from elasticdl.control.protocol.frozen import replace
from elasticdl.control.protocol.messages import Evicted, Released
from elasticdl.control.protocol.psmessages import Enroll
from elasticdl.control.protocol.view import MemberId
from elasticdl.master.core.entry import ServerId
from elasticdl.master.core.events import Beat, Kill
from elasticdl.master.core.machine import MasterCore
from elasticdl.master.core.records import Journal, Server, WorkersRecord
from elasticdl.master.core.witnesses import Statement, Times, Witness, judge, stall_limit
from elasticdl.master.ps import placement
from elasticdl.master.ps.link import Link

ACCUSED_SECONDS = 1.0
"""After this time without another one an accusation means nothing."""
SUCCESSOR_SECONDS = 10.0
"""So long a server that leaves waits for others that are on their way, before slots of which it has a copy go without: a pod has 30 s."""


@dataclass(frozen=True)  # no slots: see elasticdl.control.protocol.frozen
class Seen:
    """What this master has heard of one process.

    Attributes:
        name: of the process.
        address: where a server listens.
        is_server: what it is.
        server: the number that a server was given, or None.
        connection: its control stream, None if it broke.
        registered_at: when it enrolled first.
        is_elder: it was there before this master: it had seen an earlier one, and none as late, when this one heard of it first.
        follows: a worker's callbacks follow epochs or evaluations (B5).
        leaving: it wants to go.
        left_at: when it said so.
        cut_at: when its control stream broke.
        beat_at: when its last heartbeat came, None before the first.
        beat: what that said of its progress: odd while it has work under way.
        moved_at: when this changed last.
    """

    name: str
    address: str
    is_server: bool
    server: int | None
    connection: int | None
    registered_at: float
    is_elder: bool = False
    follows: bool = False
    leaving: bool = False
    left_at: float = 0.0
    cut_at: float | None = None
    beat_at: float | None = None
    beat: int = 0
    moved_at: float = 0.0


@dataclass(frozen=True)  # no slots: see elasticdl.control.protocol.frozen
class Liveness:
    """Workers and servers, as far as this master has heard of them.

    Attributes:
        seen: by member.
        members: by name, of those in `seen`; names are never used again.
        found_at: when the first process found this master: before, it is the master that can't be reached.
        accused: servers that others can't reach → when they said so first, and last.
        pending_kills: names of processes that count as lost and are not proven dead → when; they are killed if they do not end.
    """

    seen: Mapping[MemberId, Seen] = field(default_factory=dict)
    members: Mapping[str, MemberId] = field(default_factory=dict)
    found_at: float = math.inf
    accused: Mapping[ServerId, tuple[float, float]] = field(default_factory=dict)
    pending_kills: Mapping[str, float] = field(default_factory=dict)

    def state_of(self, core: MasterCore, member: MemberId) -> str:
        """Return a process's state for people, one of `WorkerStatus.state`."""
        seen = self.seen.get(member)
        if seen is None or seen.name in core.gone:
            return "ended" if seen is not None else "starting"
        if seen.connection is None or seen.name in self.pending_kills:
            return "lost"
        if seen.leaving:
            return "draining"
        if seen.is_server:
            return "joining" if number_of(core.journal, seen.name) is None else "serving"
        return "training" if core.journal.entries else "joining"

    def contradicted(self, enroll: Enroll, *, follows: bool) -> str:
        """Return the name of another worker that speaks against what one says of its callbacks, empty if none does.

        `follows`: what holds in the job, as the first one has said; callbacks are made by one function of the model file.
        """
        if enroll.follows == follows:
            return ""
        workers = (
            seen for member, seen in self.seen.items() if not seen.is_server and member != enroll.member
        )
        return next((seen.name for seen in workers if seen.follows == follows), "")

    def process(self, name: str) -> Seen | None:
        """Return what was heard of a process, None if nothing was."""
        member = self.members.get(name)
        return None if member is None else self.seen[member]

    # ------------------------------------------------------------------ what comes in

    def enrolled(
        self, now: float, core: MasterCore, connection: int, enroll: Enroll, *, is_server: bool
    ) -> Liveness:
        """Return what holds when a process enrolls, for the first time or once more."""
        known = self.seen.get(enroll.member)
        if known is None:
            seen = Seen(
                enroll.name,
                enroll.address,
                is_server,
                enroll.server,
                connection,
                now,
                self.is_elder(core, enroll.member, enroll.epoch),
                enroll.follows,
                enroll.leaving,
                now,
            )
        else:
            seen = replace(
                known,
                server=enroll.server,
                connection=connection,
                leaving=enroll.leaving,
                left_at=known.left_at if known.leaving else now,
                cut_at=None,
            )
        return replace(
            self,
            seen={**self.seen, enroll.member: seen},
            members={**self.members, enroll.name: enroll.member},
            found_at=min(self.found_at, seen.registered_at),
        )

    def is_elder(self, core: MasterCore, member: MemberId, epoch: int = 0) -> bool:
        """Tell whether a process was there before this master; `epoch`: of the last master that it has seen, if it says that."""
        seen = self.seen.get(member)
        if seen is not None:
            return seen.is_elder
        return 0 < epoch < core.journal.epoch + (not core.opened)

    def disconnected(self, now: float, member: MemberId, connection: int) -> Liveness:
        """Return what holds when a control stream has ended, which need not be the one that its process has now."""
        seen = self.seen.get(member)
        if seen is None or seen.connection != connection:
            return self
        return self._with(member, replace(seen, connection=None, cut_at=now))

    def beaten(self, now: float, beat: Beat, heartbeat: float) -> Liveness:
        """Return what holds when a heartbeat comes; `heartbeat`: seconds between two."""
        seen = self.seen.get(beat.member)
        if seen is None:
            return self
        moved_at = seen.moved_at if beat.progress == seen.beat else now
        after = self._with(
            beat.member, replace(seen, beat_at=now - beat.age, beat=beat.progress, moved_at=moved_at)
        )
        is_back = beat.age < heartbeat and seen.connection is not None
        # A worker that hung, and continues, is not killed.
        return after.ended(seen.name) if is_back and not seen.is_server and moved_at == now else after

    def with_accused(self, now: float, servers: Collection[int], known: Collection[ServerId]) -> Liveness:
        """Return what holds when a process can't reach servers; `known`: the servers of the journal.

        R20: it says so again and again; a connection that only broke says nothing for long.
        """
        accused = {one: times for one, times in self.accused.items() if now - times[1] < ACCUSED_SECONDS}
        for server in {ServerId(server) for server in servers} & set(known):
            accused[server] = (accused.get(server, (now, now))[0], now)
        return replace(self, accused=accused)

    def leaves(self, now: float, member: MemberId) -> Liveness:
        """Return what holds when a process wants to go; that it says so again changes nothing."""
        seen = self.seen[member]
        return self if seen.leaving else self._with(member, replace(seen, leaving=True, left_at=now))

    def numbered(self, server: Server) -> Liveness:
        """Return what holds when a server has its number."""
        numbered = {
            member: replace(seen, server=server.number)
            for member, seen in self.seen.items()
            if seen.name == server.name
        }
        return replace(self, seen={**self.seen, **numbered})

    def _with(self, member: MemberId, seen: Seen) -> Liveness:
        return replace(self, seen={**self.seen, member: seen})

    def verdict(self, journal: Journal, link: Link) -> Released | Evicted | None:
        """Return how a process ends without which the job continues, None while it takes part."""
        seen = self.seen.get(link.member)
        if seen is None:
            return None
        if link.is_server:
            if number_of(journal, link.name) is not None or seen.server is None:
                return None
            return Released("it is empty") if seen.leaving else Evicted("its slots were given to others")
        if seen.leaving and journal.stopping is None:
            return Released("its tasks were given to others")
        return None

    # ------------------------------------------------------------------ who is killed

    def evicted(self, now: float, name: str) -> Liveness:
        """Return what holds when a process is left out: it is killed if it does not end."""
        return replace(self, pending_kills={**self.pending_kills, name: now})

    def ended(self, name: str) -> Liveness:
        """Return what holds when a process need not be killed any more."""
        if name not in self.pending_kills:
            return self
        others = {other: at for other, at in self.pending_kills.items() if other != name}
        return replace(self, pending_kills=others)

    def killed(self, now: float, alone: float) -> tuple[Liveness, list[Kill]]:
        """Return what holds when those have been killed who had the time to end, and who that is."""
        due = [name for name, at in self.pending_kills.items() if now - at >= alone]
        if not due:
            return self, []
        kills = [Kill(name, "it was left out of the job and has not ended") for name in due]
        return replace(self, pending_kills={**self.pending_kills, **dict.fromkeys(due, now)}), kills

    # ------------------------------------------------------------------ who is there

    def _is_there(self, core: MasterCore, seen: Seen) -> bool:
        return (
            seen.connection is not None
            and seen.name not in core.gone
            and seen.name not in self.pending_kills
            and not any(failure.name == seen.name for failure in core.failures.values())
        )

    def workers_at_work(self, core: MasterCore, may_take: Callable[[str], bool]) -> Iterator[Seen]:
        """Return the workers that take tasks, in the order of their names; `may_take`: who might get one more."""
        found = (
            seen
            for seen in self.seen.values()
            if not seen.is_server and not seen.leaving and may_take(seen.name) and self._is_there(core, seen)
        )
        return iter(sorted(found, key=lambda seen: process_name(seen.name)))

    def may_write(self, core: MasterCore, seen: Seen) -> bool:
        """Tell whether somebody can write the result; who left when the job was stopped is still there."""
        may = core.journal.stopping is not None or not seen.leaving
        return not seen.is_server and may and self._is_there(core, seen)

    def are_all_gone(self, gone: Collection[str]) -> bool:
        """Tell whether all who took part are proven dead; `gone`: who is."""
        return all(seen.name in gone for seen in self.seen.values())

    def who_continues(self, name: str, gone: Collection[str]) -> str:
        """Return who has a worker's tasks next, for people; `gone`: who is proven dead."""
        rest = (one for one in self.seen.values() if not one.is_server and one.name != name)
        others = any(not one.leaving and one.name not in gone for one in rest)
        return "others continue" if others else "its next life continues"

    def wanted_workers(self, core: MasterCore) -> WorkersRecord | None:
        """Keep who takes part, for a master that comes later: it hears nothing of those who have ended meanwhile."""
        journal = core.journal
        here = {
            seen.name
            for seen in self.seen.values()
            if not seen.is_server and not seen.leaving and self._may_live(core, seen)
        }
        leaving = {seen.name for seen in self.seen.values() if seen.leaving}.difference(self.pending_kills)
        left = leaving.union(core.gone)
        evicted = {name for name in self.pending_kills if process_name(name).role is Role.WORKER}
        record = WorkersRecord(
            joined=tuple(sorted(here - journal.workers)),
            left=tuple(sorted(left.intersection(journal.workers | journal.evicted))),
            evicted=tuple(sorted(evicted - journal.evicted)),
        )
        return None if record == WorkersRecord() else record

    def _may_live(self, core: MasterCore, seen: Seen) -> bool:
        return seen.name not in core.gone and seen.name not in self.pending_kills

    # ------------------------------------------------------------------ servers

    def servers_without_number(self, core: MasterCore) -> list[Seen]:
        """Return the servers that wait for slots, in the order of their names."""
        numbered = {server.name for server in core.journal.servers.values()}
        found = (
            seen
            for seen in self.seen.values()
            if seen.is_server and seen.server is None and not seen.leaving and seen.name not in numbered
        )
        there = (seen for seen in found if self._is_there(core, seen))
        return sorted(there, key=lambda seen: process_name(seen.name))

    def leaving_servers(self, journal: Journal) -> set[ServerId]:
        """Return the servers of the journal that are to be emptied."""
        leaving = {seen.name for seen in self.seen.values() if seen.is_server and seen.leaving}
        return {one.number for one in journal.servers.values() if one.name in leaving}

    def pressed(self, now: float, journal: Journal, leaving: set[ServerId], wanted: int) -> set[ServerId]:
        """Return the leaving servers that do not wait any more for others, to which they could hand over."""
        servers = journal.servers
        if len(servers) - len(leaving) >= wanted:
            return leaving
        waited = {seen.name for seen in self.seen.values() if now - seen.left_at >= SUCCESSOR_SECONDS}
        return {server for server in leaving if servers[server].name in waited}

    def staying(self, core: MasterCore) -> set[ServerId]:
        """Return the servers of the journal that are not known to be dead and do not leave."""
        leaving = self.leaving_servers(core.journal)
        servers = core.journal.servers.values()
        return {one.number for one in servers if one.name not in core.gone and one.number not in leaving}

    # ------------------------------------------------------------------ who is suspected

    def suspected_workers(self, now: float, core: MasterCore) -> dict[str, str]:
        """Return the workers that hold tasks and seem to be lost, each with the reason."""
        found, times = {}, core.settings.times
        for seen in self.seen.values():
            if seen.is_server or self._is_well(now, times, seen) or not self._may_live(core, seen):
                continue
            why = judge(now, self._statements(core, seen), times)
            if why is not None:
                found[seen.name] = why
        return found

    def _is_well(self, now: float, times: Times, seen: Seen) -> bool:
        """Tell at a glance whether nothing speaks against a worker: of most workers at most times nothing does."""
        is_heard = now < _last_beat(seen, times) + 3 * times.heartbeat
        moves = seen.beat % 2 == 0 or now < seen.moved_at + times.stall
        return is_heard and moves and seen.connection is not None

    def awaited(self, now: float, core: MasterCore) -> frozenset[ServerId]:
        """Return the servers that hang and without which a slot has no copy left: they are given time to wake up."""
        return self._awaited(now, core, self._suspected_servers(now, core))

    def lost_servers(self, now: float, core: MasterCore) -> frozenset[ServerId]:
        """Return the servers of the journal that are dead, or seem to be (R20)."""
        suspected = self._suspected_servers(now, core)
        return suspected - self._awaited(now, core, suspected)

    def _awaited(self, now: float, core: MasterCore, suspected: frozenset[ServerId]) -> frozenset[ServerId]:
        if not suspected:
            return suspected
        last = placement.last_holders(core.journal.pairs, suspected)
        servers = core.journal.servers
        return frozenset(number for number in last if self._hangs(now, core, servers[number]))

    def _suspected_servers(self, now: float, core: MasterCore) -> frozenset[ServerId]:
        servers = core.journal.servers.values()
        return frozenset(
            one.number
            for one in servers
            if one.name in core.gone or self.why_lost(now, core, one) is not None
        )

    def _hangs(self, now: float, core: MasterCore, server: Server) -> bool:
        """Tell whether a suspected server may go on: it has not ended as far as its control stream says, and is not silent for long."""
        seen = self.process(server.name)
        if seen is None or seen.connection is None or seen.name in core.gone:
            return False
        speaking = (one.since for one in self._against(now, core, server) if one.since <= now)
        return now - min(speaking, default=now) < core.settings.times.stall

    def why_lost(self, now: float, core: MasterCore, server: Server) -> str | None:
        """Return why a server seems to be lost; one that has been emptied may end as it likes."""
        return judge(now, self._against(now, core, server), core.settings.times)

    def _against(self, now: float, core: MasterCore, server: Server) -> tuple[Statement, ...]:
        seen = self.process(server.name)
        if seen is None:
            since = max(core.started_at, self.found_at) + core.settings.times.alone
            statements: tuple[Statement, ...] = (Statement(Witness.STREAM, since),)
        else:
            statements = self._statements(core, seen)
        since, last = self.accused.get(server.number, (0.0, -math.inf))
        if now - last < ACCUSED_SECONDS:
            statements = (*statements, Statement(Witness.ACCUSED, since))
        return statements

    def _statements(self, core: MasterCore, seen: Seen) -> tuple[Statement, ...]:
        times = core.settings.times
        said = []
        if seen.connection is None:
            grace = max(core.started_at, self.found_at) + times.alone
            said.append(Statement(Witness.STREAM, grace if seen.cut_at is None else seen.cut_at))
        said.append(Statement(Witness.BEAT, _last_beat(seen, times) + 3 * times.heartbeat))
        if not seen.is_server and seen.beat % 2 == 1:
            said.append(Statement(Witness.STALL, seen.moved_at + stall_limit((), times)))
        return tuple(said)


def _last_beat(seen: Seen, times: Times) -> float:
    """Return when a process was last heard; one that was just started may beat late, and after a restart of the master all do."""
    return seen.registered_at + times.alone if seen.beat_at is None else seen.beat_at


def number_of(journal: Journal, name: str) -> ServerId | None:
    """Return the number that a server has, None for who has none."""
    for one in journal.servers.values():
        if one.name == name:
            return one.number
    return None
