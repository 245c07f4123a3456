"""Who takes part in a job with parameter servers, and who is suspected of being lost.

Workers and servers come and go one by one: there is no group, and a suspicion that is wrong costs time and nothing else, because
servers know each chunk and a server's successor accepts nothing from it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from elasticdl.cluster.cluster import Role, process_name
from elasticdl.control.protocol.frozen import replace
from elasticdl.control.protocol.psmessages import Enroll, Limits
from elasticdl.control.protocol.view import MemberId
from elasticdl.master.core import machine as core
from elasticdl.master.core.done import TaskNumber
from elasticdl.master.core.entry import ServerId
from elasticdl.master.core.events import Beat
from elasticdl.master.core.machine import MasterCore
from elasticdl.master.core.records import Server
from elasticdl.master.core.witnesses import Statement, Witness, judge, stall_limit
from elasticdl.master.ps import placement
from elasticdl.master.ps.placement import Copy

ACCUSED_SECONDS = 1.0
"""After this time without another one an accusation means nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Link(core.Link):
    """A control stream of a worker or a server, and what was said on it.

    Attributes:
        model: `Model` was sent.
        placed: the servers and the newest change of a slot that were sent, None before the first `Placed`.
        low: roll-back, watermark and tasks done beyond it that were sent.
        limits: what a server was last allowed to believe of workers.
        workers: which workers were last named to a server.
        leased: tasks that it knows to have.
        copies: copies that were ordered.
        cut: number of the snapshot for which slots were asked for last.
        cut_at: when.
        stopped: `Stop` was sent.
        left: it was asked to leave.
        accounts: accounts were asked for when this was the newest change of a slot.
        result: the attempt for which the result was asked for.
        ended: the attempt in which it learned that training is over, and another worker writes.
    """

    model: bool = False
    placed: tuple[frozenset[ServerId], int] | None = None
    low: tuple[int, int, tuple[int, ...]] = (-1, -1, ())
    limits: Limits | None = None
    workers: frozenset[str] | None = None
    leased: frozenset[TaskNumber] = frozenset()
    copies: frozenset[Copy] = frozenset()
    cut: int = 0
    cut_at: float = 0.0
    stopped: bool = False
    left: bool = False
    accounts: int = -1
    result: int = 0
    ended: int = 0

    @property
    def is_server(self) -> bool:
        """Tell whether it is a parameter server's."""
        return process_name(self.name).role is Role.PS


@dataclass(frozen=True, slots=True)
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
    leaving: bool = False
    left_at: float = 0.0
    cut_at: float | None = None
    beat_at: float | None = None
    beat: int = 0
    moved_at: float = 0.0


@dataclass(frozen=True)  # no slots: see elasticdl.control.protocol.frozen
class Liveness(MasterCore):
    """Workers and servers, as far as this master has heard of them.

    Attributes:
        links: control streams.
        seen: by member.
        members: by name, of those in `seen`; names are never used again.
        found_at: when the first process found this master: before, it is the master that can't be reached.
        accused: servers that others can't reach → when they said so first, and last.
        pending_kills: names of processes that count as lost and are not proven dead → when; they are killed if they do not end.
    """

    links: Mapping[int, Link] = field(default_factory=dict)
    seen: Mapping[MemberId, Seen] = field(default_factory=dict)
    members: Mapping[str, MemberId] = field(default_factory=dict)
    found_at: float = math.inf
    accused: Mapping[ServerId, tuple[float, float]] = field(default_factory=dict)
    pending_kills: Mapping[str, float] = field(default_factory=dict)

    def state_of(self, member: MemberId) -> str:
        """Return a process's state for people, one of `WorkerStatus.state`."""
        seen = self.seen.get(member)
        if seen is None or seen.name in self.gone:
            return "ended" if seen is not None else "starting"
        if seen.connection is None or seen.name in self.pending_kills:
            return "lost"
        if seen.leaving:
            return "draining"
        if seen.is_server:
            return "joining" if self._number_of(seen.name) is None else "serving"
        return "training" if self.journal.entries else "joining"

    @property
    def staying(self) -> set[ServerId]:
        """Return the servers of the journal that are not known to be dead and do not leave."""
        leaving = self._leaving_servers()
        servers = self.journal.servers.values()
        return {one.number for one in servers if one.name not in self.gone and one.number not in leaving}

    # ------------------------------------------------------------------ what comes in

    def _register(self, now: float, connection: int, enroll: Enroll) -> Self:
        known = self.seen.get(enroll.member)
        is_server = self.links[connection].is_server
        seen = Seen(
            enroll.name,
            enroll.address,
            is_server,
            enroll.server,
            connection,
            now,
            self._is_elder(enroll.member, enroll.epoch),
            enroll.leaving,
            now,
        )
        if known is not None:
            seen = replace(
                known,
                server=enroll.server,
                connection=connection,
                leaving=enroll.leaving,
                left_at=known.left_at if known.leaving else now,
                cut_at=None,
            )
        master = replace(
            self,
            members={**self.members, enroll.name: enroll.member},
            found_at=min(self.found_at, seen.registered_at),
        )
        return master._note(enroll.member, seen)._link(connection, registered=True)

    def _is_elder(self, member: MemberId, epoch: int = 0) -> bool:
        """Tell whether a process was there before this master; `epoch`: of the last master that it has seen, if it says that."""
        seen = self.seen.get(member)
        if seen is not None:
            return seen.is_elder
        return 0 < epoch < self.journal.epoch + (not self.opened)

    def _disconnect(self, now: float, connection: int) -> Self:
        links = dict(self.links)
        link = links.pop(connection, None)
        if link is None:
            return self
        master = replace(self, links=links)
        seen = self.seen.get(link.member)
        if seen is None or seen.connection != connection:
            return master
        return master._note(link.member, replace(seen, connection=None, cut_at=now))

    def _beat(self, now: float, beat: Beat) -> Self:
        seen = self.seen.get(beat.member)
        if seen is None:
            return self
        moved_at = seen.moved_at if beat.progress == seen.beat else now
        after = replace(seen, beat_at=now - beat.age, beat=beat.progress, moved_at=moved_at)
        master = self._note(beat.member, after)
        is_back = beat.age < self.settings.times.heartbeat and seen.connection is not None
        if is_back and not seen.is_server and moved_at == now and seen.name in self.pending_kills:
            # It hung, and continues.
            return replace(
                master,
                pending_kills={name: at for name, at in self.pending_kills.items() if name != seen.name},
            )
        return master

    def _accuse(self, now: float, servers: tuple[int, ...]) -> Self:
        """R20: a process that can't reach a server says so again and again; a connection that only broke says nothing for long."""
        accused = {one: times for one, times in self.accused.items() if now - times[1] < ACCUSED_SECONDS}
        for server in {ServerId(server) for server in servers} & set(self.journal.servers):
            accused[server] = (accused.get(server, (now, now))[0], now)
        return replace(self, accused=accused)

    def _process(self, name: str) -> Seen | None:
        """Return what was heard of a process, None if nothing was."""
        member = self.members.get(name)
        return None if member is None else self.seen[member]

    def _note(self, member: MemberId, seen: Seen) -> Self:
        return replace(self, seen={**self.seen, member: seen})

    def _link(self, connection: int, **changes: Any) -> Self:
        return self._with_link(connection, replace(self.links[connection], **changes))

    def _with_link(self, connection: int, link: Link) -> Self:
        return replace(self, links={**self.links, connection: link})

    def _condemn(self, now: float, name: str) -> Self:
        return replace(self, pending_kills={**self.pending_kills, name: now})

    # ------------------------------------------------------------------ who is there

    def _is_there(self, seen: Seen) -> bool:
        return (
            seen.connection is not None
            and seen.name not in self.gone
            and seen.name not in self.pending_kills
            and not any(failure.name == seen.name for failure in self.failures.values())
        )

    def _workers_at_work(self) -> Iterator[Seen]:
        """Return the workers that take tasks, in the order of their names."""
        found = (seen for seen in self.seen.values() if not seen.is_server and not seen.leaving)
        return iter(sorted(filter(self._is_there, found), key=lambda seen: process_name(seen.name)))

    def _may_write(self, seen: Seen) -> bool:
        """Tell whether somebody can write the result; who left when the job was stopped is still there."""
        may = self.journal.stopping is not None or not seen.leaving
        return not seen.is_server and may and self._is_there(seen)

    def _servers_without_number(self) -> list[Seen]:
        numbered = {server.name for server in self.journal.servers.values()}
        found = (
            seen
            for seen in self.seen.values()
            if seen.is_server and seen.server is None and not seen.leaving and seen.name not in numbered
        )
        return sorted(filter(self._is_there, found), key=lambda seen: process_name(seen.name))

    def _number_of(self, name: str) -> ServerId | None:
        return next((one.number for one in self.journal.servers.values() if one.name == name), None)

    def _leaving_servers(self) -> set[ServerId]:
        leaving = {seen.name for seen in self.seen.values() if seen.is_server and seen.leaving}
        return {one.number for one in self.journal.servers.values() if one.name in leaving}

    # ------------------------------------------------------------------ who is suspected

    def _suspected_workers(self, now: float) -> dict[str, str]:
        """Return the workers that hold tasks and seem to be lost, each with the reason."""
        found = {}
        for seen in self.seen.values():
            if seen.is_server or seen.name in self.gone or seen.name in self.pending_kills:
                continue
            why = judge(now, self._statements(seen), self.settings.times)
            if why is not None:
                found[seen.name] = why
        return found

    def awaited(self, now: float) -> frozenset[ServerId]:
        """Return the servers that hang and without which a slot has no copy left: they are given time to wake up."""
        return self._awaited(now, self._suspected_servers(now))

    def _lost_servers(self, now: float) -> frozenset[ServerId]:
        """Return the servers of the journal that are dead, or seem to be (R20)."""
        suspected = self._suspected_servers(now)
        return suspected - self._awaited(now, suspected)

    def _awaited(self, now: float, suspected: frozenset[ServerId]) -> frozenset[ServerId]:
        last = placement.last_holders(self.journal.pairs, suspected)
        servers = self.journal.servers
        return frozenset(number for number in last if self._hangs(now, servers[number]))

    def _suspected_servers(self, now: float) -> frozenset[ServerId]:
        servers = self.journal.servers.values()
        return frozenset(
            one.number for one in servers if one.name in self.gone or self._why_lost(now, one) is not None
        )

    def _hangs(self, now: float, server: Server) -> bool:
        """Tell whether a suspected server may go on: it has not ended as far as its control stream says, and is not silent for long."""
        seen = self._process(server.name)
        if seen is None or seen.connection is None or seen.name in self.gone:
            return False
        speaking = (one.since for one in self._against(now, server) if one.since <= now)
        return now - min(speaking, default=now) < self.settings.times.stall

    def _why_lost(self, now: float, server: Server) -> str | None:
        """Return why a server seems to be lost; one that has been emptied may end as it likes."""
        return judge(now, self._against(now, server), self.settings.times)

    def _against(self, now: float, server: Server) -> tuple[Statement, ...]:
        seen = self._process(server.name)
        if seen is None:
            since = max(self.started_at, self.found_at) + self.settings.times.alone
            statements: tuple[Statement, ...] = (Statement(Witness.STREAM, since),)
        else:
            statements = self._statements(seen)
        since, last = self.accused.get(server.number, (0.0, -math.inf))
        if now - last < ACCUSED_SECONDS:
            statements = (*statements, Statement(Witness.ACCUSED, since))
        return statements

    def _statements(self, seen: Seen) -> tuple[Statement, ...]:
        times = self.settings.times
        said = []
        if seen.connection is None:
            grace = max(self.started_at, self.found_at) + times.alone
            said.append(Statement(Witness.STREAM, grace if seen.cut_at is None else seen.cut_at))
        # a process that was just started may beat late; after a restart of the master all do
        last_beat = seen.registered_at + times.alone if seen.beat_at is None else seen.beat_at
        said.append(Statement(Witness.BEAT, last_beat + 3 * times.heartbeat))
        if not seen.is_server and seen.beat % 2 == 1:
            said.append(Statement(Witness.STALL, seen.moved_at + stall_limit((), times)))
        return tuple(said)
