"""The master of a job with parameter servers as a pure state machine: time and events in, instructions out.

It leases tasks to workers and journals which are done, keeps the journalled placement of slots on servers, and decides what follows when
one of either is lost. It asks values that know one thing each: `leases.py` (who has which task), `placementplan.py` (which placement is
next), `copies.py` (slots that are copied), `recovery.py` (how long losses last), `news.py` (what each process should know). Who is there
and who is suspected is in `liveness.py`, what every master does in `master/core/machine.py`. Rule numbers are those of the page on the
protocol of parameter servers.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from elasticdl.cluster.cluster import Role, process_name
from elasticdl.control.protocol.frozen import replace
from elasticdl.control.protocol.messages import (
    Evicted,
    Exported,
    Failed,
    Finished,
    FoundShards,
    MemberMessage,
    Note,
    ProgramFailed,
    Released,
    StopJob,
)
from elasticdl.control.protocol.psmessages import (
    Accounts,
    AccountsWanted,
    CopyReady,
    Enroll,
    FoundModel,
    Leave,
    Model,
    Settled,
    SlotAccount,
    SlotsCut,
    TaskDone,
    Unreached,
)
from elasticdl.control.protocol.status import EventKind
from elasticdl.control.protocol.view import MemberId
from elasticdl.data.plan.shard import Shard
from elasticdl.data.plan.tasks import TaskOrder
from elasticdl.data.plan.waves import WHOLE, Waves
from elasticdl.master.core import machine as core
from elasticdl.master.core.done import Done, TaskNumber
from elasticdl.master.core.entry import ServerId
from elasticdl.master.core.events import (
    Announce,
    Event,
    Heard,
    Kill,
)
from elasticdl.master.core.machine import Out
from elasticdl.master.core.records import (
    CutRecord,
    DoneRecord,
    FinishedRecord,
    Journal,
    ModelRecord,
    PlacementRecord,
    Record,
    ResumedRecord,
    SavedRecord,
    Server,
    WorkersRecord,
)
from elasticdl.master.ps import claims, placement
from elasticdl.master.ps.copies import Copies
from elasticdl.master.ps.leases import Leases
from elasticdl.master.ps.liveness import Link, Seen
from elasticdl.master.ps.news import News
from elasticdl.master.ps.placement import Copy
from elasticdl.master.ps.placementplan import PlacementPlan, saved_position
from elasticdl.master.ps.recovery import Recovery
from elasticdl.master.ps.snapshots import Snapshots
from elasticdl.spec.jobspec import PsRestore

BATCH_SECONDS = 0.2
"""Tasks that are done are journalled together, so often at most: nobody waits for that but `low`, and a job's end, which comes at once."""
BATCH = 64
"""So many at most wait for that."""
SUCCESSOR_SECONDS = 10.0
"""So long a server that leaves waits for others that are on their way, before slots of which it has a copy go without: a pod has 30 s."""

RUNS = 8
"""Runs of task numbers that a message names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(core.Settings):
    """What the master of a job with parameter servers takes from its settings.

    Attributes:
        servers: how many parameter servers the job wants (until `scale` says otherwise).
        replicas: servers that hold each slot, 1 or 2.
        snapshots: directory for snapshots, empty if there are none.
        checkpoint_steps: chunks between two, 0: one each epoch.
        lasting: they are checkpoints, which outlive the job.
        resume: the job's data → where it continues from an earlier job's checkpoint; None: it begins anew, or that is journalled.
        restore: what the loss of all copies of a slot does.
        accumulates: servers sum up the gradients of a wave's tasks.
    """

    servers: int
    replicas: int
    snapshots: str = ""
    checkpoint_steps: int = 0
    lasting: bool = False
    resume: Callable[[tuple[Shard, ...]], ResumedRecord] | None = None
    restore: PsRestore = PsRestore.REDO
    accumulates: bool = False


@dataclass(frozen=True)  # no slots: see elasticdl.control.protocol.frozen
class PsMaster(Snapshots):
    """One master: events in, instructions out.

    Attributes:
        settings: of the job.
        order: all tasks, None until the shards are journalled.
        model: what the first worker found, until it is journalled.
        reported: tasks that are done, until that is journalled.
        reported_at: when the first of these came.
        changed_at: of each slot, the number of the record that changed it last.
        newest: the highest of these.
        copies: copies of slots.
        accounts: what the slots' primaries have applied, once all is.
        applied: steps that servers know to be complete; they were asked at the end.
        exporter: who writes the result.
        attempt: how often that was decided.
        steps: chunks of the tasks that are done; where gradients are summed up, steps of the waves that are.
        records: records of the tasks that are done.
        loss: the last known.
        recovery: losses.
        told: the values of which every connection knows what it should.
    """

    settings: Settings
    order: TaskOrder | None = None
    model: str | None = None
    reported: tuple[TaskNumber, ...] = ()
    reported_at: float | None = None
    changed_at: tuple[int, ...] = ()
    newest: int = 0
    copies: Copies = field(default_factory=Copies)
    accounts: Mapping[int, SlotAccount] = field(default_factory=dict)
    applied: int = 0
    exporter: MemberId | None = None
    attempt: int = 0
    steps: int = 0
    records: int = 0
    loss: float | None = None
    recovery: Recovery = field(default_factory=Recovery)
    told: tuple[object, ...] = (None,)

    @property
    def wanted_servers(self) -> int:
        """Return how many parameter servers the job wants now."""
        wanted = self.journal.wanted_servers
        return self.settings.servers if wanted is None else wanted

    # ------------------------------------------------------------------ for people

    @property
    def steps_done(self) -> int:
        """Return how many steps are settled."""
        order, leases = self.order, self.leases
        begun = leases.begun()
        if leases.waves is None or order is None:
            return self.steps + sum(begun.values())
        if leases.is_over:
            return self.steps
        # A step is made when each of the wave's tasks has had its turn; those that are done hold up none.
        wave = leases.waves.tasks(leases.low)
        settled = min(begun.get(TaskNumber(task), 0) for task in wave if task not in leases.done)
        return max(self.applied, self.steps + settled)

    @property
    def records_done(self) -> int:
        """Return how many records are trained."""
        order = self.order
        if order is None:
            return 0
        size = order.ledger.minibatch_size
        begun = self.leases.begun().items()
        return self.records + sum(min(chunk * size, order.records(task)) for task, chunk in begun)

    @property
    def why_finished(self) -> str:
        """Return why there was nothing more to train."""
        if self.journal.stopping is not None:
            return self.journal.stopping
        if self.order is not None and self.order.is_cut():
            return f"max_step {self.steps} is reached"
        return "all data was trained"

    @property
    def has_used_all_data(self) -> bool:
        """Tell whether every record of every epoch was trained."""
        return self.leases.is_over and self.order is not None and not self.order.is_cut()

    # ------------------------------------------------------------------ the transition

    def _wake(self, now: float) -> Self:
        return replace(self, recovery=self.recovery.heard(now))

    def _can_wait(self, event: Event) -> bool:
        """What is settled changes what nobody else has to know, unless a wave or the job's end waits for it."""
        if isinstance(event, Heard) and isinstance(event.message, Settled | TaskDone):
            return self.leases.waves is None and not self._completes_batch()
        return super()._can_wait(event)

    def _connect(self, connection: int, member: MemberId, name: str) -> Self:
        return replace(self, links={**self.links, connection: Link(member=member, name=name)})

    def _act(self, now: float, out: Out) -> Self:
        master = self._doubt_workers(now, out)._carry_out_kills(now, out)
        return master._give_up_last(out)._complete_cut(out)

    # ------------------------------------------------------------------ the journal

    def _open(self, now: float, journal: Journal, out: Out) -> Self:
        master = super()._open(now, journal, out)
        # Who hung before this master began may hang still; it has the time that it would have had.
        return replace(master, pending_kills=dict.fromkeys(journal.evicted, now))

    def _with_data(self, shards: tuple[Shard, ...]) -> Self:
        order: TaskOrder = self.settings.plan(shards)
        steps = self.settings.checkpoint_steps
        master = replace(
            self,
            order=order,
            snapshots=self.settings.snapshots,
            lasting=self.settings.lasting,
            every=-(-steps // order.chunks_per_task) * order.wave if steps else order.ledger.num_tasks,
            changed_at=(self.journal.length,) * len(self.journal.entries),
            newest=self.journal.length if self.journal.entries else 0,
        )
        return master._give_up_cut(self.started_at)._stand(order)

    def _stand(self, order: TaskOrder) -> Self:
        """Take the place in the data that the journal says."""
        done = self.journal.done
        waves = Waves(order) if self.settings.accumulates else None
        leases = Leases(order.total, done, self.journal.roll_back, following=done.low, waves=waves)
        is_later_life = self.journal.epoch > (1 if self.opened else 0)
        return self._with_leases(order, leases.after_a_restart() if is_later_life else leases)

    def _with_leases(self, order: TaskOrder, leases: Leases) -> Self:
        done = leases.done
        return replace(
            self,
            leases=leases,
            steps=self._steps_of(order, done),
            records=order.records_before(done.low) + sum(map(order.records, done.above)),
        )

    def _steps_of(self, order: TaskOrder, done: Done) -> int:
        beyond = () if self.settings.accumulates else done.above
        return order.steps_before(done.low) + sum(map(order.chunks, beyond))

    def _step_of(self, cut: CutRecord) -> int:
        return cut.step if cut.step or self.order is None else self._steps_of(self.order, cut.position)

    def _begun(self) -> tuple[tuple[int, int], ...]:
        assert self.order is not None, "slots are cut once the data is known"
        begun = {int(task): chunks for task, chunks in self.leases.begun().items() if chunks}
        cut_short = (task for task in self.order.partial if task in self.leases.done)
        return tuple(sorted({**begun, **{task: self.order.chunks(task) for task in cut_short}}.items()))

    def _whole(self) -> Done:
        done = self.leases.done
        # Another job may go on with these, so no slot may forget which of their chunks it holds.
        for task in () if self.order is None else self.order.partial:
            done = done.without(TaskNumber(task))
        return done

    def _appended(self, now: float, before: Journal, record: Record, out: Out) -> Self:
        match record:
            case ModelRecord():
                return replace(self, model=None)
            case ResumedRecord():
                return self._after_resumed(record, out)
            case PlacementRecord():
                return self._after_placement(now, before, record, out)
            case DoneRecord():
                return self._after_done(record)
            case CutRecord():
                return self._after_cut()
            case SavedRecord():
                return self._after_saved(record, out)
            case _:
                return super()._appended(now, before, record, out)

    def _wanted_own(self, now: float) -> Record | None:
        model = None if self.model is None else ModelRecord(self.model)
        return (
            self._wanted_resumption()
            or model
            or self._wanted_placement(now)
            or self._wanted_saved()
            or self._wanted_done(now)
            or self._wanted_cut(now)
            or self._wanted_workers()
        )

    def _wanted_workers(self) -> Record | None:
        """Keep who takes part, for a master that comes later: it hears nothing of those who have ended meanwhile."""
        journal = self.journal
        here = {seen.name for seen in self.seen.values() if not seen.is_server and self._takes_part(seen)}
        leaving = {seen.name for seen in self.seen.values() if seen.leaving}.difference(self.pending_kills)
        left = leaving.union(self.gone)
        evicted = {name for name in self.pending_kills if process_name(name).role is Role.WORKER}
        record = WorkersRecord(
            joined=tuple(sorted(here - journal.workers)),
            left=tuple(sorted(left.intersection(journal.workers | journal.evicted))),
            evicted=tuple(sorted(evicted - journal.evicted)),
        )
        return None if record == WorkersRecord() else record

    def _takes_part(self, seen: Seen) -> bool:
        return not seen.leaving and seen.name not in self.gone and seen.name not in self.pending_kills

    def _wanted_resumption(self) -> Record | None:
        """R28: before anything else is decided."""
        resume, shards = self.settings.resume, self.journal.shards
        if resume is None or shards is None or self.journal.resumed is not None:
            return None
        return resume(shards)

    def _after_resumed(self, record: ResumedRecord, out: Out) -> Self:
        assert self.order is not None, "the data is journalled before"
        master = replace(self, model=None)._stand(self.order)
        text = f"the job continues from {Path(record.path).parent}, {master.steps:,} steps"
        out.append(Announce(EventKind.RESUMED, "", 0, master.steps, text))
        return master

    def _waits(self) -> bool:
        # Workers of this master may hold tasks that they can't finish, because the servers have gone to another one.
        return True

    def _contradiction(self, journal: Journal) -> str | None:
        order: TaskOrder | None = None if journal.shards is None else self.settings.plan(journal.shards)
        return claims.contradiction(journal, order)

    # ------------------------------------------------------------------ what comes in

    def _impossible(self, link: Link, message: MemberMessage) -> str | None:
        cut = self.cut
        known = claims.Known(
            server=self._number_of(link.name) if link.is_server else None,
            is_elder=self._is_elder(link.member, message.epoch if isinstance(message, Enroll) else 0),
            journal=self.journal,
            order=self.order,
            leases=self.leases,
            has_model=self._has_model,
            directory=None if cut is None else Path(self._directory(cut.number)),
            attempt=self.attempt if link.member == self.exporter else None,
            steps=lambda: self.steps_done,
            possible_steps=lambda: self._news().possible()[0],
        )
        return claims.impossible(known, message)

    @property
    def _has_model(self) -> bool:
        return not (self.journal.model is None and self.settings.resume is None and self.model is None)

    def _hear(self, now: float, connection: int, link: Link, message: MemberMessage, out: Out) -> Self:
        match message:
            case Enroll():
                return self._enroll(now, connection, link, message, out)
            case FoundShards(shards):
                return self._find(shards)
            case FoundModel(catalog):
                return self if self._has_model else replace(self, model=catalog)
            case Settled():
                return self._advance(now, link, TaskNumber(message.task), message.chunk, message, out)
            case TaskDone():
                return self._take_done(now, connection, link, message, out)
            case Unreached(servers):
                return self._accuse(now, servers)
            case CopyReady(slot, term, to, hands_over):
                copy = Copy(slot, term, ServerId(to), hands_over)
                return replace(self, copies=self.copies.with_ready(self.journal.entries, copy))
            case Leave():
                return self._let_leave(now, link, message, out)
            case SlotsCut():
                return self._take_cut(now, link, message, out)
            case Accounts():
                return self._take_accounts(link, message)
            case Exported():
                is_due = link.member == self.exporter and message.state.view == self.attempt
                return replace(self, exported=message) if is_due else self
            case StopJob(reason):
                return self._hear_stop(connection, reason, out)
            case Note(kind, view, step, text, seconds):
                out.append(Announce(EventKind(kind), link.name, view, step, text, seconds))
                return self
            case ProgramFailed():
                return self._note_failure(link, message)._release(link.name)
        return self  # said by those whom other masters serve

    def _enroll(self, now: float, connection: int, link: Link, enroll: Enroll, out: Out) -> Self:
        known = self.seen.get(enroll.member)
        master = self._register(now, connection, enroll)
        if link.is_server:
            if enroll.leaving and (known is None or not known.leaving):
                self._tell_leaving(link.name, out)
            return master
        if known is None:
            out.append(Announce(EventKind.JOINED, link.name, 0, self.steps_done, f"{link.name} has joined"))
        # Words of a process may arrive after its end: nobody holds anything then.
        goes_on = enroll.roll_back == self.journal.roll_back and link.name not in self.gone
        tasks = {TaskNumber(task): chunk for task, chunk in enroll.holds} if goes_on else {}
        leases = self.leases.taken_up(link.name, tasks)
        return replace(master, leases=leases)._link(connection, leased=frozenset(tasks))

    def _advance(
        self, now: float, link: Link, task: TaskNumber, settled: int, said: Settled | TaskDone, out: Out
    ) -> Self:
        order = self.order
        if order is None or not 0 <= task < order.total:
            return self
        # The task's next owner has to begin at a chunk that there is; that all are settled is for the journal to say.
        chunk = min(settled, order.chunks(task) - 1)
        leases = self.leases.progress(link.name, task, chunk, said.roll_back)
        master = replace(self, leases=leases, loss=self.loss if said.loss is None else said.loss)
        loss = "" if said.loss is None else f", loss {said.loss:z.4g}"
        step = master.steps_done
        out.append(Announce(EventKind.STEP, link.name, 0, step, f"step {step}{loss}"))
        return master._note_settled(now, out) if step > self.steps_done else master

    def _note_settled(self, now: float, out: Out) -> Self:
        """Take note of when something was settled that was not before."""
        recovery, said = self.recovery.settled(now, self.gone, self.steps_done)
        out += said
        return replace(self, recovery=recovery)

    def _note_loss(self, now: float, name: str, cause: str, *, journalled: bool) -> Self:
        is_later_life = self.journal.epoch > (1 if self.opened else 0)
        returned_at = self.started_at if is_later_life else None
        recovery = self.recovery.with_loss(now, name, cause, returned_at, journalled=journalled)
        return replace(self, recovery=recovery)

    # ------------------------------------------------------------------ tasks

    def _take_done(self, now: float, connection: int, link: Link, done: TaskDone, out: Out) -> Self:
        """R22: from whom does not matter, of those tasks that were leased; an attempt from before a roll-back does not count."""
        # A master that comes back has no leases before the data is found, and knows the roll-back from its journal.
        if done.roll_back != self.journal.roll_back:
            return self  # it says nothing of what the worker has now
        task = TaskNumber(done.task)
        master = self._link(connection, leased=link.leased | {task})
        if task in self.leases.done or task in self.reported:
            return master
        since = now if self.reported_at is None else self.reported_at
        master = replace(master, reported=(*self.reported, task), reported_at=since)
        master = master._advance(now, link, task, WHOLE, done, out)._note_settled(now, out)
        if not self.opened:
            return master
        # The worker waits for its next task, and nobody for anything else that follows.
        master = master._lease_tasks(now)
        link = master._tell_one(now, connection, master.links[connection], master._news(), out)
        return master._with_link(connection, link)

    def _wanted_done(self, now: float) -> Record | None:
        if self.reported_at is None:
            return None
        is_due = now - self.reported_at >= BATCH_SECONDS
        if not is_due and not self._completes_batch() and not self._completes_wave():
            return None
        return DoneRecord(self.reported, self.journal.roll_back)

    def _completes_batch(self) -> bool:
        """Tell whether what is reported waits for no more: it is much, or the job ends with it."""
        is_last = self.leases.done.count() + len(self.reported) >= self.leases.total
        is_end = is_last or self.journal.stopping is not None
        return bool(self.reported) and (is_end or len(self.reported) >= BATCH)

    def _completes_wave(self) -> bool:
        """Tell whether with what is reported the first wave is done: workers wait for others to be leased."""
        leases = self.leases
        return leases.waves is not None and all(
            task in leases.done or task in self.reported for task in leases.waves.tasks(leases.low)
        )

    def _after_done(self, record: DoneRecord) -> Self:
        assert self.order is not None, "tasks are leased once the data is known"
        leases, steps, records = self.leases, self.steps, self.records
        for task in record.tasks:
            leases = leases.finished(task)
            steps += self.order.chunks(task)
            records += self.order.records(task)
        if self.settings.accumulates:
            steps = self._steps_of(self.order, leases.done)
        left = tuple(task for task in self.reported if task not in record.tasks)
        return replace(
            self,
            leases=leases,
            steps=steps,
            records=records,
            reported=left,
            reported_at=self.reported_at if left else None,
        )

    def _release(self, name: str) -> Self:
        return replace(self, leases=self.leases.released(name))

    def _let_leave(self, now: float, link: Link, leave: Leave, out: Out) -> Self:
        seen = self.seen.get(link.member)
        if seen is None:
            return self
        if not seen.leaving and link.is_server:
            self._tell_leaving(link.name, out)
        elif not seen.leaving and self.journal.stopping is None:
            text = f"{link.name} has left; {self._who_goes_on(link.name)} with its tasks"
            out.append(Announce(EventKind.DRAINED, link.name, 0, self.steps_done, text))
        if not seen.leaving:
            seen = replace(seen, leaving=True, left_at=now)
        master = self._note(link.member, seen)
        if link.is_server:
            return master
        goes_on = leave.roll_back == self.journal.roll_back
        tasks = {TaskNumber(task): chunk for task, chunk in leave.holds} if goes_on else {}
        return replace(master, leases=self.leases.taken_up(link.name, tasks).released(link.name))

    def _tell_leaving(self, name: str, out: Out) -> None:
        out.append(
            Announce(EventKind.LEAVING, name, 0, self.steps_done, f"{name} is emptied before it leaves")
        )

    def _lease_tasks(self, now: float) -> Self:
        """Give each worker that computes as many tasks as it may hold."""
        if not self._may_lease(now):
            return self
        workers = [seen.name for seen in self._workers_at_work()]
        leases = self.leases.dealt(workers, self.reported, holds_back=self._holds_back(now))
        return self if leases is self.leases else replace(self, leases=leases)

    def _may_lease(self, now: float) -> bool:
        is_going_on = self.journal.stopping is None and not self.ends
        return bool(self.journal.entries) and is_going_on and not self._may_hear_more(now)

    def _may_hear_more(self, now: float) -> bool:
        """A master that comes back waits a moment for workers to say what they compute."""
        return self.journal.epoch > 1 and now - self.started_at < self.settings.times.heartbeat

    # ------------------------------------------------------------------ servers

    def _wanted_placement(self, now: float) -> Record | None:
        journal = self.journal
        if journal.model is None:
            return None
        waiting = self._servers_without_number()
        numbered = enumerate(waiting, journal.next_server)
        joined = tuple(Server(ServerId(number), seen.name, seen.address) for number, seen in numbered)
        leaving = self._leaving_servers()
        plan = PlacementPlan(
            journal=journal,
            joined=joined,
            leaving=leaving,
            pressed=self._pressed(now, leaving) if journal.entries else set(),
            copies=self.copies,
            replicas=self.settings.replicas,
            restore=self.settings.restore,
            accumulates=self.settings.accumulates,
        )
        if not journal.entries:
            return plan.first() if len(joined) >= self.wanted_servers else None
        lost = self._lost_servers(now)
        record = plan.after_losses(lost) if lost else plan.improved()
        return None if record == PlacementRecord() else record

    def _pressed(self, now: float, leaving: set[ServerId]) -> set[ServerId]:
        """Return the leaving servers that do not wait any more for others, to which they could hand over."""
        servers = self.journal.servers
        if len(servers) - len(leaving) >= self.wanted_servers:
            return leaving
        waited = {seen.name for seen in self.seen.values() if now - seen.left_at >= SUCCESSOR_SECONDS}
        return {server for server in leaving if servers[server].name in waited}

    def _after_placement(self, now: float, before: Journal, record: PlacementRecord, out: Out) -> Self:
        slots = dict(record.entries)
        number = self.journal.length
        changed = self.changed_at or (0,) * len(self.journal.entries)
        master = replace(
            self,
            changed_at=tuple(number if slot in slots else at for slot, at in enumerate(changed)),
            newest=number if slots else self.newest,
            copies=self.copies.after(self.journal.entries, slots.keys()),
            accounts={slot: account for slot, account in self.accounts.items() if slot not in slots},
        )
        for server in record.joined:
            out.append(
                Announce(EventKind.JOINED, server.name, 0, self.steps_done, f"{server.name} has joined")
            )
            numbered = {
                member: replace(seen, server=server.number)
                for member, seen in master.seen.items()
                if seen.name == server.name
            }
            master = replace(master, seen={**master.seen, **numbered})
        for lost in record.gone:
            server = before.servers[lost]
            master = master._after_server(now, before, server, record.position is not None, out)
        if record.position is None:
            return master
        assert self.order is not None, "a job that was placed has data"
        leases = self.leases.rolled_back(record.position)
        master = replace(master, reported=(), reported_at=None, exporter=None, applied=0)._with_leases(
            self.order, leases
        )
        step, redone = master.steps_done, self.steps_done - master.steps_done
        text = f"rolled back to step {step}: {redone} steps will be recomputed"
        out.append(Announce(EventKind.ROLLED_BACK, "", 0, step, text, redone=redone))
        return master

    def _after_server(self, now: float, before: Journal, server: Server, rolls_back: bool, out: Out) -> Self:
        """Say what has become of a server, and see to it that it ends."""
        seen = self._process(server.name)
        if seen is not None and seen.leaving and placement.is_empty(before.pairs, server.number):
            out.append(
                Announce(EventKind.DRAINED, server.name, 0, self.steps_done, f"{server.name} was emptied")
            )
            return self
        cause = self.gone.get(server.name) or self._why_lost(now, server) or "it does not answer"
        text = f"{server.name} is lost: {cause}"
        if rolls_back:
            which = "all slots" if self.settings.accumulates else "they"
            how = "begin anew" if self.journal.saved is None else "are restored from the last snapshot"
            text += f"; no copy of its slots is left: {which} {how}, and "
            if self.settings.restore is PsRestore.SKIP:
                position, done = saved_position(self.journal), self.journal.done
                tasks = [task for task in (*range(done.low), *done.above) if task not in position]
                lost = (
                    f"what the tasks {_runs(tasks)} have done to them is lost" if tasks else "nothing is lost"
                )
                text += f"{lost} (--ps_restore=skip)"
            else:
                text += "the tasks since then are trained once more"
        out.append(Announce(EventKind.LOST, server.name, 0, self.steps_done, text, None, cause))
        master = self._note_loss(now, server.name, cause, journalled=True)
        return master if server.name in self.gone else master._condemn(now, server.name)

    def _order_copies(self, out: Out) -> Self:
        journal = self.journal
        if not journal.entries or self.appending is not None or self.ends:
            return self
        leaving = frozenset(self._leaving_servers())
        situation = placement.Situation(
            journal.entries, frozenset(journal.servers), leaving, self.copies.under_way
        )
        copies, said = self.copies.ordered(situation, self.settings.replicas, self.steps_done)
        out += said
        return self if copies is self.copies else replace(self, copies=copies)

    # ------------------------------------------------------------------ losses

    def _process_ended(self, now: float, name: str, cause: str, out: Out) -> Self:
        if name in self.gone:
            return self
        pending_kills = {other: at for other, at in self.pending_kills.items() if other != name}
        master = replace(self, gone={**self.gone, name: cause}, pending_kills=pending_kills)
        seen = self._process(name)
        number = self._number_of(name)
        is_empty = number is None or placement.is_empty(self.journal.pairs, number)
        if self.journal.terminal is not None or (seen is not None and seen.leaving and is_empty):
            return master._release(name)
        if number is not None:
            return master._note_loss(now, name, cause, journalled=False)
        took_part = name in self.journal.workers if seen is None else not seen.is_server
        if took_part and name not in self.pending_kills:
            out.append(
                Announce(EventKind.LOST, name, 0, self.steps_done, self._loss_of(name, cause), None, cause)
            )
            master = master._note_loss(now, name, cause, journalled=True)
        return master._release(name)

    def _loss_of(self, name: str, cause: str) -> str:
        """Return what the end of a worker means, for people."""
        failed = next((error.signature for error in self.journal.errors if error.worker == name), None)
        why = cause if failed is None else f"it failed ({failed})"
        if self.ends:
            return f"{name} has ended: {why}; nothing is left to train, and another one writes the model"
        return f"{name} is lost: {why}; {self._who_goes_on(name)} with its tasks"

    def _who_goes_on(self, name: str) -> str:
        """Return who has a worker's tasks next, for people."""
        rest = (one for one in self.seen.values() if not one.is_server and one.name != name)
        others = any(not one.leaving and one.name not in self.gone for one in rest)
        return "others continue" if others else "its next life continues"

    def _doubt_workers(self, now: float, out: Out) -> Self:
        """Give the tasks of a worker that seems to be lost to others; should it live, that does no harm (R21)."""
        master = self
        for name, why in self._suspected_workers(now).items():
            text = f"{name} is left out: {why}; {self._who_goes_on(name)} with its tasks"
            out.append(Announce(EventKind.EVICTED, name, 0, self.steps_done, text))
            master = master._release(name)._condemn(now, name)
        return master

    def _carry_out_kills(self, now: float, out: Out) -> Self:
        due = [name for name, at in self.pending_kills.items() if now - at >= self.settings.times.alone]
        out += [Kill(name, "it was left out of the job and has not ended") for name in due]
        return replace(self, pending_kills={**self.pending_kills, **dict.fromkeys(due, now)}) if due else self

    # ------------------------------------------------------------------ the end

    @property
    def ends(self) -> bool:
        """Tell whether nothing is trained any more."""
        if self.order is None or not self.journal.entries:
            return False
        if self.leases.is_over:
            return True
        # What is reported is journalled first: the result says how many steps it is of.
        return self.journal.stopping is not None and not self.leases.held and not self.reported

    def _has_committed(self) -> bool:
        return self.steps_done > 0

    def _may_finish(self, exported: Exported) -> bool:
        """D7: what a worker wrote before a roll-back, or whom nobody asked any more, is no result."""
        is_due = exported.state.view == self.attempt and self.exporter is not None
        return self.ends and is_due and self._all_accounted and self.is_kept

    def _take_accounts(self, link: Link, accounts: Accounts) -> Self:
        server = self._number_of(link.name)
        entries = self.journal.entries
        mine = {
            account.slot: account
            for account in accounts.slots
            if account.slot < len(entries)
            and (entries[account.slot].primary, entries[account.slot].primary_epoch)
            == (server, account.primary_epoch)
        }
        is_of_now = accounts.roll_back == self.journal.roll_back
        applied = max(self.applied, accounts.steps) if is_of_now else self.applied
        return replace(self, accounts={**self.accounts, **mine}, applied=applied)

    @property
    def _all_accounted(self) -> bool:
        return len(self.accounts) == len(self.journal.entries)

    def _choose_exporter(self) -> Self:
        if not self.ends or self.journal.terminal is not None:
            return self
        if self._accumulates and not self._all_accounted:
            # A worker that is lost may have let servers know of a step that this master has not heard of: the result has it.
            return self
        seen = None if self.exporter is None else self.seen.get(self.exporter)
        if seen is not None and self._may_write(seen):
            return self
        able = sorted(one.name for one in self.seen.values() if self._may_write(one))
        if not able:
            return self if self.exporter is None else replace(self, exporter=None)
        member = next(member for member, one in self.seen.items() if one.name == able[0])
        return replace(self, exporter=member, attempt=self.attempt + 1, exported=None)

    def _all_gone(self) -> bool:
        return all(seen.name in self.gone for seen in self.seen.values())

    # ------------------------------------------------------------------ what each connection is sent

    def _tell_all(self, now: float, concerned: int | None, out: Out) -> Self:
        master = self._lease_tasks(now)._order_copies(out)._choose_exporter()
        if master.cut is None and all(map(operator.is_, master._tellable(), self.told)):
            return master  # what a snapshot lacks is asked for again after a time, all else once
        news = master._news()
        links = {
            connection: master._tell_one(now, connection, link, news, out)
            for connection, link in master.links.items()
        }
        if any(links[connection] is not link for connection, link in master.links.items()):
            master = replace(master, links=links)
        return replace(master, told=master._tellable())

    def _tellable(self) -> tuple[object, ...]:
        """Return all values from which `_tell_one` takes what a connection should know; they are replaced, never changed."""
        return (
            self.journal,
            self.links,
            self.seen,
            self.failures,
            self.leases,
            self.copies.under_way,
            self.spoilt,
            self.reported,
            self.exporter,
            self.attempt,
        )

    def _tell_one(self, now: float, connection: int, link: Link, news: News, out: Out) -> Link:
        """Tell one connection what it should know by now; return what it then knows."""
        link = self._tell_everybody(connection, link, out)
        if link.verdict:
            return link
        if self.journal.model is not None and not link.model:
            self._tell(connection, Model(self.journal.model), out)
            link = replace(link, model=True)
        if not link.registered:
            return link
        if link.is_server:
            return self._tell_server(now, connection, link, news, out)
        return news.to_worker(connection, link, out)

    def _news(self) -> News:
        """Return what processes should know by now."""
        return News(
            journal=self.journal,
            leases=self.leases,
            low=self.low,
            changed_at=self.changed_at,
            newest=self.newest,
            copies=self.copies.under_way,
            seen=self.seen,
            gone=self.gone,
            wanted_servers=self.wanted_servers,
            exporter=self.exporter,
            attempt=self.attempt,
            steps=lambda: self.steps_done,
        )

    def _tell_server(self, now: float, connection: int, link: Link, news: News, out: Out) -> Link:
        number = self._number_of(link.name)
        if number is None:
            return link
        link = news.to_server(connection, link, number, out)
        link = self._tell_cut(now, connection, link, number, out)
        if self.ends and link.accounts < self.newest:
            self._tell(connection, AccountsWanted(), out)
            link = replace(link, accounts=self.newest)
        return link

    def _verdict(self, link: Link) -> Evicted | Released | Finished | Failed | None:
        """Return how a process ends, if it does."""
        end = self.journal.terminal
        if isinstance(end, FinishedRecord):
            return Finished("the job is finished")
        if end is not None:
            return Failed(end.reason)
        seen = self.seen.get(link.member)
        if not link.registered or seen is None:
            return None
        if link.is_server:
            if self._number_of(link.name) is not None or seen.server is None:
                return None
            return Released("it is empty") if seen.leaving else Evicted("its slots were given to others")
        if seen.leaving and self.journal.stopping is None:
            return Released("its tasks were given to others")
        return None


def _runs(numbers: list[int]) -> str:
    """Return ascending numbers for people: `3, 5 to 9`, at most a few of them."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][1] + 1 == number:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    shown = [str(first) if first == last else f"{first} to {last}" for first, last in runs[:RUNS]]
    return ", ".join(shown) + (f" and others, {len(numbers)} in all," if len(runs) > RUNS else "")
