"""What workers and servers should know by now, and telling each what it lacks.

A value of one moment, made of what is journalled and leased: telling is done by levels, so that whatever was lost on the way is sent again.
What a connection was sent stands in its link.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

from elasticdl.cluster.cluster import process_name
from elasticdl.control.protocol.frozen import replace
from elasticdl.control.protocol.messages import Barrier, GateOpen, Stop, TaskLeased
from elasticdl.control.protocol.psmessages import (
    CopiesVoid,
    CopyOrdered,
    DrainRequest,
    EndTraining,
    Enrolled,
    Leased,
    Limits,
    Model,
    Placed,
    RevokeTask,
    SlotEntry,
    Watermark,
    Workers,
    WriteResult,
)
from elasticdl.control.protocol.view import MemberId, ViewId
from elasticdl.master.core.done import TaskNumber
from elasticdl.master.core.entry import ServerId
from elasticdl.master.core.events import Instruction, Tell
from elasticdl.master.core.records import Journal
from elasticdl.master.ps.leases import Lease, Leases
from elasticdl.master.ps.link import Link
from elasticdl.master.ps.liveness import Seen
from elasticdl.master.ps.placement import Copy

LIMITS_TASKS = 32
"""Servers learn of a watermark that is so much higher: until then they keep, for each slot, a bit of each chunk more."""
WAVES = 3
"""Workers have tasks of two waves; with the third one's steps, servers need not learn of new ones before workers do."""
NO_VIEW = ViewId(0)


@dataclass(frozen=True, kw_only=True)  # no slots: the workers are found once for all servers
class News:
    """What is so at one moment.

    Attributes:
        journal: what is journalled.
        leases: who computes which task.
        evaluating: what each worker evaluates.
        low: the watermark that everybody may know.
        changed_at: of each slot, the number of the record that changed it last.
        newest: the highest of these.
        copies: copies of slots under way, by slot.
        seen: processes, by member.
        gone: names of processes proven dead → cause.
        wanted_servers: how many parameter servers the job wants.
        exporter: who writes the result, None if nobody does yet.
        attempt: how often that was decided.
        steps: returns how many steps are settled.
    """

    journal: Journal
    leases: Leases
    evaluating: Mapping[MemberId, tuple[TaskLeased, ...]]
    low: int
    changed_at: tuple[int, ...]
    newest: int
    copies: Mapping[int, Copy]
    seen: Mapping[MemberId, Seen]
    gone: Mapping[str, str]
    wanted_servers: int
    exporter: MemberId | None
    attempt: int
    steps: Callable[[], int]

    def to_everybody(self, connection: int, link: Link, out: list[Instruction]) -> Link:
        """Tell a process the model, whether it takes part yet or not; return what it then knows."""
        if self.journal.model is None or link.model:
            return link
        out.append(Tell(connection, Model(self.journal.model)))
        return replace(link, model=True)

    def to_server(self, connection: int, link: Link, number: ServerId, out: list[Instruction]) -> Link:
        """Tell a server what it should know; return what it then knows."""
        if not link.welcomed:
            out.append(Tell(connection, Enrolled(self.journal.epoch, number)))
            link = replace(link, welcomed=True)
        if not link.left and process_name(link.name).index >= self.wanted_servers:
            out.append(Tell(connection, DrainRequest()))
            link = replace(link, left=True)
        link = self._tell_placement(connection, link, out)
        link = self._tell_limits(connection, link, out)
        mine = {copy for slot, copy in self.copies.items() if self.journal.entries[slot].primary == number}
        for copy in sorted(mine - link.copies, key=lambda copy: copy.slot):
            out.append(Tell(connection, CopyOrdered(copy.slot, copy.term, copy.to, copy.hands_over)))
        if mine != link.copies:
            link = replace(link, copies=frozenset(mine))
        return link

    def _tell_limits(self, connection: int, link: Link, out: list[Instruction]) -> Link:
        """Tell a server what it may believe of workers, and who they are."""
        if self._workers != link.workers:
            out.append(Tell(connection, Workers(tuple(sorted(self._workers)))))
            link = replace(link, workers=self._workers)
        if not self.journal.entries:
            return link
        limits = Limits(self.journal.roll_back, self.low, self._done_beyond(), *self.possible())
        told = link.limits
        is_due = (
            told is None
            or limits.roll_back != told.roll_back
            or (limits != told if self.leases.waves is not None else limits.low >= told.low + LIMITS_TASKS)
        )
        if is_due:
            out.append(Tell(connection, limits))
            link = replace(link, limits=limits)
        return link

    @cached_property
    def _workers(self) -> frozenset[str]:
        return frozenset(
            seen.name for seen in self.seen.values() if not seen.is_server and seen.name not in self.gone
        )

    def possible(self) -> tuple[int, int]:
        """Return how many steps can be complete with the tasks that workers may have before servers hear of the next limits, and where
        these tasks end."""
        waves, end = self.leases.waves, self.low
        if waves is None:
            return 0, 0
        for _ in range(WAVES):
            if end < self.leases.total:
                end = waves.tasks(end).stop
        return waves.steps_before(end), end

    def to_worker(self, connection: int, link: Link, out: list[Instruction]) -> Link:
        """Tell a worker what it should know; return what it then knows."""
        if not link.welcomed:
            out.append(Tell(connection, Enrolled(self.journal.epoch, None)))
            link = replace(link, welcomed=True)
        link = self._tell_placement(connection, link, out)
        roll_back = self.journal.roll_back
        low = (roll_back, self.low, self._done_beyond())
        said = -1
        if low != link.low and self.journal.entries:
            said = self.low
            out.append(Tell(connection, Watermark(low[1], roll_back, low[2])))
            # a roll-back ends all attempts, as the worker knows
            goes_on = link.low[0] in (roll_back, -1)
            link = replace(link, low=low, leased=link.leased if goes_on else frozenset())
        mine = {lease.task: lease for lease in self.leases.held.get(link.name, ())}
        over = {task for task in link.leased if task in self.leases.done or self._is_another_s(task, mine)}
        for task in sorted(over):
            if task >= said:  # otherwise the watermark has told it
                out.append(Tell(connection, RevokeTask(task, roll_back)))
        # Before the tasks that follow, and behind the placement in which all before them is settled (B2).
        link = self._tell_evaluation(connection, link, out)
        for lease in mine.values():
            if lease.task not in link.leased:
                out.append(Tell(connection, Leased(lease.task, lease.chunk, roll_back)))
        told = (link.leased - over) | frozenset(mine)
        if told != link.leased:
            link = replace(link, leased=told)
        if self.journal.stopping is not None and not link.stopped:
            out.append(Tell(connection, Stop(NO_VIEW)))
            link = replace(link, stopped=True)
        if self.exporter == link.member and link.result < self.attempt:
            out.append(Tell(connection, WriteResult(self.steps(), self.attempt)))
            link = replace(link, result=self.attempt)
        if self.exporter not in (None, link.member) and link.ended < self.attempt:
            out.append(Tell(connection, EndTraining(self.steps())))
            link = replace(link, ended=self.attempt)
        return link

    def _tell_evaluation(self, connection: int, link: Link, out: list[Instruction]) -> Link:
        """Tell a worker the metrics that are journalled, and what it evaluates."""
        if link.placed is None:
            return link  # a job that continues has barriers before it has slots: the worker does not know the roll-back yet
        evaluated, roll_back = self.journal.evaluated, self.journal.roll_back
        # Which of them a roll-back has forgotten follows for a worker from what the others are (B5).
        known = link.opened if link.opened_in == roll_back else frozenset()
        if not evaluated.keys() <= known:
            for state, record in evaluated.items():
                if state not in known:
                    barrier = Barrier(roll_back, record.epoch, record.epoch_ended)
                    out.append(Tell(connection, GateOpen(state, record.values or None, barrier)))
            link = replace(link, opened=frozenset(evaluated), opened_in=roll_back)
        leased = self.evaluating.get(link.member, ())
        if leased != link.evaluates:
            out += (Tell(connection, lease) for lease in leased if lease not in link.evaluates)
            link = replace(link, evaluates=leased)
        return link

    def _is_another_s(self, task: int, mine: Mapping[TaskNumber, Lease]) -> bool:
        """Tell whether a task has been given to another worker, so that a wave is shared out evenly."""
        return self.leases.waves is not None and task not in mine and task in self.leases.taken

    def _done_beyond(self) -> tuple[int, ...]:
        """Return the tasks beyond the watermark that are done, if a step waits for them (A3)."""
        done = self.leases.done
        return (*range(self.low, done.low), *done.above) if self.leases.waves is not None else ()

    def _tell_placement(self, connection: int, link: Link, out: list[Instruction]) -> Link:
        journal = self.journal
        known = (frozenset(journal.servers), self.newest)
        if not journal.entries or known == link.placed:
            return link
        since = -1 if link.placed is None else link.placed[1]
        entries = tuple(
            SlotEntry(slot, one.term, one.primary_epoch, one.primary, one.backup, one.restored)
            for slot, (one, at) in enumerate(zip(journal.entries, self.changed_at, strict=True))
            if at > since
        )
        # A server that has just found this master may be copying to a server that was lost meanwhile, or while there was no master.
        ever = frozenset(map(ServerId, range(journal.next_server)))
        before = ever if link.placed is None else link.placed[0]
        for gone in sorted(before - known[0]) if link.is_server else ():
            out.append(Tell(connection, CopiesVoid(gone)))
        servers = sorted(journal.servers.values(), key=lambda server: server.number)
        numbers = tuple(int(server.number) for server in servers)
        addresses = tuple(server.address for server in servers)
        snapshot = "" if journal.saved is None else journal.saved[0].path
        resumed = journal.resumed
        renumbered = None if resumed is None or snapshot != resumed.path else resumed.renumbered
        tasks = self.leases.total
        placed = Placed(numbers, addresses, entries, journal.roll_back, snapshot, renumbered, tasks)
        out.append(Tell(connection, placed))
        return replace(link, placed=known)
