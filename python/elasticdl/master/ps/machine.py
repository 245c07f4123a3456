"""The master of a job with parameter servers as a pure state machine: time and events in, instructions out.

It asks values that know one thing each, in order: `liveness.py` (who is there), `work.py` (which tasks are done and who has which),
`evaluations.py` (what is evaluated between them), `slots.py` (where slots are), `snapshots.py` (when slots are written), `recovery.py` (how
long losses last), `ending.py` (who writes the result), `news.py` (what each process should know). None of them knows another but by what it
is handed; what every master does is in `master/core/machine.py`. Rule numbers are those of the page on the protocol of parameter servers.

One file because it is one transition: which value takes which event, and in which order they are asked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from elasticdl.control.protocol.frozen import replace
from elasticdl.control.protocol.messages import (
    Evaluated,
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
    TaskResult,
)
from elasticdl.control.protocol.psmessages import (
    Accounts,
    AccountsWanted,
    BarrierPassed,
    CopyReady,
    Enroll,
    FoundMetrics,
    FoundModel,
    Leave,
    Settled,
    SlotsCut,
    TaskDone,
    Unreached,
)
from elasticdl.control.protocol.status import EventKind
from elasticdl.control.protocol.view import MemberId, StateId
from elasticdl.data.plan.shard import Shard
from elasticdl.data.plan.tasks import TaskOrder
from elasticdl.data.plan.waves import WHOLE
from elasticdl.master.core.done import TaskNumber
from elasticdl.master.core.entry import ServerId
from elasticdl.master.core.evaluated import evaluated
from elasticdl.master.core.events import Announce, Beat, Event, GiveUp, Heard, Instruction, ManifestWritten
from elasticdl.master.core.machine import MasterCore, Out
from elasticdl.master.core.records import (
    MOST_BARRIERS,
    CutRecord,
    DoneRecord,
    EvaluatedRecord,
    FinishedRecord,
    Journal,
    ModelRecord,
    PlacementRecord,
    Record,
    ResumedRecord,
    SavedRecord,
    Server,
    ShardsRecord,
)
from elasticdl.master.ps import claims, losses, placement
from elasticdl.master.ps.ending import Ending
from elasticdl.master.ps.evaluations import Evaluations
from elasticdl.master.ps.link import Link
from elasticdl.master.ps.liveness import Liveness, number_of
from elasticdl.master.ps.news import News
from elasticdl.master.ps.placement import Copy
from elasticdl.master.ps.recovery import Recovery
from elasticdl.master.ps.settings import Settings
from elasticdl.master.ps.slots import Slots
from elasticdl.master.ps.snapshots import Snapshots
from elasticdl.master.ps.told import Told, tellable
from elasticdl.master.ps.work import Work

_TOO_MANY = (
    f"callbacks that follow epochs and evaluations have more than {MOST_BARRIERS:,} of them in this job, with those of the checkpoint "
    "that it continues from, and its journal keeps no more; set larger --evaluation_steps, or fewer --num_epochs"
)


@dataclass(frozen=True)  # no slots: see elasticdl.control.protocol.frozen
class PsMaster(MasterCore):
    """One master: events in, instructions out.

    Attributes:
        settings: of the job.
        links: control streams.
        model: what the first worker found, until it is journalled.
        work: tasks.
        evaluations: what is evaluated between them.
        liveness: workers and servers.
        slots: where slots are.
        snapshots: snapshots of slots.
        recovery: losses.
        ending: what is known for the end.
        told: what was so when every connection last knew what it should.
    """

    settings: Settings
    links: Mapping[int, Link] = field(default_factory=dict)
    model: str | None = None
    work: Work = field(default_factory=Work)
    evaluations: Evaluations = field(default_factory=Evaluations)
    liveness: Liveness = field(default_factory=Liveness)
    slots: Slots = field(default_factory=Slots)
    snapshots: Snapshots = field(default_factory=Snapshots)
    recovery: Recovery = field(default_factory=Recovery)
    ending: Ending = field(default_factory=Ending)
    told: Told = field(default_factory=Told)

    @property
    def wanted_servers(self) -> int:
        """Return how many parameter servers the job wants now."""
        wanted = self.journal.wanted_servers
        return self.settings.servers if wanted is None else wanted

    # ------------------------------------------------------------------ for people

    @property
    def steps_done(self) -> int:
        """Return how many steps are settled."""
        return self.work.steps_done(self.ending.applied)

    @property
    def why_finished(self) -> str:
        """Return why there was nothing more to train."""
        if self.journal.stopping is not None:
            return self.journal.stopping
        if self.work.ended_by:
            return self.work.ended_by
        if self.work.order is not None and self.work.order.is_cut():
            return f"max_step {self.work.steps} is reached"
        return "all data was trained"

    # ------------------------------------------------------------------ the transition

    def _wake(self, now: float) -> Self:
        return replace(self, recovery=self.recovery.heard(now))

    def _can_wait(self, event: Event) -> bool:
        """What is settled changes what nobody else has to know, unless a wave or the job's end waits for it."""
        if isinstance(event, Heard) and isinstance(event.message, Settled | TaskDone):
            return self.work.leases.waves is None and not self.work.completes_batch(self.journal)
        return super()._can_wait(event)

    def _connect(self, connection: int, member: MemberId, name: str) -> Self:
        return replace(self, links={**self.links, connection: Link(member=member, name=name)})

    def _disconnect(self, now: float, connection: int) -> Self:
        links = dict(self.links)
        link = links.pop(connection, None)
        if link is None:
            return self
        return replace(self, links=links, liveness=self.liveness.disconnected(now, link.member, connection))

    def _beat(self, now: float, beat: Beat) -> Self:
        liveness = self.liveness.beaten(now, beat, self.settings.times.heartbeat)
        return self if liveness is self.liveness else replace(self, liveness=liveness)

    def _with_link(self, connection: int, link: Link) -> Self:
        return replace(self, links={**self.links, connection: link})

    def _act(self, now: float, out: Out) -> Self:
        master = self._doubt_workers(now, out)._carry_out_kills(now, out)
        master = master._keep(master.snapshots.without_last(master.journal, master.work), out)
        return master._keep(master.snapshots.completed(master.journal, master.work), out)

    # ------------------------------------------------------------------ the journal

    def _open(self, now: float, journal: Journal, out: Out) -> Self:
        master = super()._open(now, journal, out)
        # Who hung before this master began may hang still; it has the time that it would have had.
        pending_kills = dict.fromkeys(journal.evicted, now)
        return replace(master, liveness=replace(master.liveness, pending_kills=pending_kills))

    def _with_data(self, shards: tuple[Shard, ...], validation: tuple[Shard, ...]) -> Self:
        order: TaskOrder = self.settings.plan(shards, validation)
        snapshots = self.snapshots.of_job(self.settings, order)
        return replace(
            self,
            work=self._work(order),
            snapshots=snapshots.without_inherited(self.started_at, self.journal),
            slots=self.slots.from_journal(self.journal),
        )

    def _work(self, order: TaskOrder) -> Work:
        """Return the place in the data that the journal says."""
        in_waves, is_later_life = self.settings.accumulates, self._is_later_life
        return self.work.from_journal(order, self.journal, in_waves=in_waves, is_later_life=is_later_life)

    @property
    def _is_later_life(self) -> bool:
        return self.journal.epoch > (1 if self.opened else 0)

    def _appended(self, now: float, before: Journal, record: Record, out: Out) -> Self:
        match record:
            case ModelRecord():
                return replace(self, model=None)
            case ResumedRecord():
                return self._after_resumed(record, out)
            case PlacementRecord():
                return self._after_placement(now, before, record, out)
            case DoneRecord():
                return replace(self, work=self.work.journalled(record))
            case EvaluatedRecord():
                if record.values:
                    out.append(evaluated(record))
                work = self.work.evaluated(self.journal)
                return replace(self, work=work, evaluations=self.evaluations.ended())
            case CutRecord():
                return replace(self, snapshots=self.snapshots.after_cut(self.journal, self.work, record))
            case SavedRecord():
                return self._keep(self.snapshots.after_saved(self.journal, self.work, record), out)
            case _:
                return super()._appended(now, before, record, out)

    def _wanted_own(self, now: float) -> Record | None:
        model = None if self.model is None else ModelRecord(self.model)
        return (
            self._wanted_resumption()
            or model
            or self.slots.wanted(now, self, self.liveness, self.settings, self.wanted_servers)
            or self.snapshots.wanted_saved(self.journal)
            or self.work.wanted_done(now, self.journal)
            or self.evaluations.record(now, self.journal, self.work)
            or self.snapshots.wanted_cut(now, self.journal, self.work, hears_more=self._may_hear_more(now))
            or self.liveness.wanted_workers(self)
        )

    def _wanted_resumption(self) -> Record | None:
        """R28: before anything else is decided."""
        resume, shards = self.settings.resume, self.journal.shards
        if resume is None or shards is None or self.journal.resumed is not None:
            return None
        return resume(shards)

    def _after_resumed(self, record: ResumedRecord, out: Out) -> Self:
        assert self.work.order is not None, "the data is journalled before"
        work = self._work(self.work.order)
        text = f"the job continues from {Path(record.path).parent}, {work.steps:,} steps"
        out.append(Announce(EventKind.RESUMED, "", 0, work.steps, text))
        return replace(self, model=None, work=work)

    def _waits(self) -> bool:
        # Workers of this master may hold tasks that they can't finish, because the servers have gone to another one.
        return True

    def _contradiction(self, journal: Journal) -> str | None:
        order: TaskOrder | None = (
            None if journal.shards is None else self.settings.plan(journal.shards, journal.validation)
        )
        return claims.contradiction(journal, order)

    # ------------------------------------------------------------------ what comes in

    def _impossible(self, link: Link, message: MemberMessage) -> str | None:
        cut = self.snapshots.under_way(self.journal)
        epoch = message.epoch if isinstance(message, Enroll) else 0
        known = claims.Known(
            server=number_of(self.journal, link.name) if link.is_server else None,
            is_elder=self.liveness.is_elder(self, link.member, epoch),
            journal=self.journal,
            order=self.work.order,
            leases=self.work.leases,
            follows=None if (seen := self.liveness.seen.get(link.member)) is None else seen.follows,
            has_model=self._has_model,
            directory=None if cut is None else Path(self.snapshots.draft_of(cut.number)),
            attempt=self.ending.attempt if link.member == self.ending.exporter else None,
            evaluations=self.evaluations,
            result_size=self.settings.result_size,
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
            case FoundShards(shards, validation):
                return self._find(ShardsRecord(shards, validation))
            case FoundModel(catalog):
                return self if self._has_model else replace(self, model=catalog)
            case Settled():
                return self._advance(now, link, TaskNumber(message.task), message.chunk, message, out)
            case FoundMetrics(metrics):
                return replace(self, evaluations=self.evaluations.found(link.member, metrics))
            case TaskResult():
                add_up = self.settings.add_up
                evaluations = self.evaluations.heard(now, link.member, message, add_up)
                return replace(self, evaluations=evaluations)
            case Evaluated():
                return replace(self, evaluations=self.evaluations.evaluated(link.member, message))
            case BarrierPassed(state, stop):
                return self._note_passed(state, stop, out)
            case TaskDone():
                return self._take_done(now, connection, link, message, out)
            case Unreached(servers):
                known = self.journal.servers.keys()
                return replace(self, liveness=self.liveness.with_accused(now, servers, known))
            case CopyReady(slot, term, to, hands_over):
                copy = Copy(slot, term, ServerId(to), hands_over)
                return replace(self, slots=self.slots.with_ready(self.journal, copy))
            case Leave():
                return self._let_leave(now, link, message, out)
            case SlotsCut():
                server = number_of(self.journal, link.name)
                written = self.snapshots.with_slots(now, self.journal, self.work, server, link.name, message)
                return self._keep(written, out)
            case Accounts():
                server = number_of(self.journal, link.name)
                return replace(self, ending=self.ending.with_accounts(self.journal, server, message))
            case Exported():
                is_due = link.member == self.ending.exporter and self.ending.counts(message)
                return replace(self, exported=message) if is_due else self
            case StopJob(reason):
                return self._hear_stop(connection, reason, out)
            case Note(kind, view, step, text, seconds):
                out.append(Announce(kind, link.name, view, step, text, seconds))
                return self
            case ProgramFailed():
                return self._note_failure(now, link, message)._release(link.name)
        return self  # said by those whom other masters serve

    def _enroll(self, now: float, connection: int, link: Link, enroll: Enroll, out: Out) -> Self:
        known = self.liveness.seen.get(enroll.member)
        liveness = self.liveness.enrolled(now, self, connection, enroll, is_server=link.is_server)
        registered = replace(link, registered=True)
        if link.is_server:
            if enroll.leaving and (known is None or not known.leaving):
                self._tell_leaving(link.name, out)
            return replace(self, liveness=liveness)._with_link(connection, registered)
        if known is None:
            out.append(Announce(EventKind.JOINED, link.name, 0, self.steps_done, f"{link.name} has joined"))
        if other := self.liveness.contradicted(enroll, follows=self.work.follows):
            master = replace(self, liveness=liveness)._with_link(connection, registered)
            return master._note_failure(now, link, _other_callbacks(other, follows=enroll.follows))._release(
                link.name
            )
        # Words of a process may arrive after its end: nobody holds anything then.
        goes_on = enroll.roll_back == self.journal.roll_back and link.name not in self.gone
        tasks = {TaskNumber(task): chunk for task, chunk in enroll.holds} if goes_on else {}
        work = self.work.following(self.journal) if enroll.follows else self.work
        is_new = work is not self.work
        too_many = (
            GiveUp(_TOO_MANY, "bad-input") if is_new and work.has_too_many_barriers(self.journal) else None
        )
        master = replace(
            self,
            liveness=liveness,
            give_up=self.give_up or too_many,
            work=work.taken_up(link.name, tasks),
            evaluations=self.evaluations.freed(link.member),
        )
        return master._with_link(connection, replace(registered, leased=frozenset(tasks)))

    def _advance(
        self, now: float, link: Link, task: TaskNumber, settled: int, said: Settled | TaskDone, out: Out
    ) -> Self:
        order = self.work.order
        if order is None or not 0 <= task < order.total:
            return self
        master = replace(self, work=self.work.settled(link.name, task, settled, said))
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
        returned_at = self.started_at if self._is_later_life else None
        recovery = self.recovery.with_loss(now, name, cause, returned_at, journalled=journalled)
        return replace(self, recovery=recovery)

    # ------------------------------------------------------------------ tasks

    def _take_done(self, now: float, connection: int, link: Link, done: TaskDone, out: Out) -> Self:
        """R22: from whom does not matter, of those tasks that were leased; an attempt from before a roll-back does not count."""
        # A master that comes back has no leases before the data is found, and knows the roll-back from its journal.
        if done.roll_back != self.journal.roll_back:
            return self  # it says nothing of what the worker has now
        task = TaskNumber(done.task)
        master = self._with_link(connection, replace(link, leased=link.leased | {task}))
        if self.work.is_done(task):
            return master
        master = replace(master, work=self.work.with_done(now, task))
        master = master._advance(now, link, task, WHOLE, done, out)._note_settled(now, out)
        if not self.opened:
            return master
        # The worker waits for its next task, and nobody for anything else that follows.
        master = master._lease_tasks(now)
        link = master._tell_one(now, connection, master.links[connection], master._news(), out)
        return master._with_link(connection, link)

    def _release(self, name: str) -> Self:
        member = self.liveness.members.get(name)
        evaluations = self.evaluations if member is None else self.evaluations.freed(member)
        return replace(self, work=self.work.released(name), evaluations=evaluations)

    def _let_leave(self, now: float, link: Link, leave: Leave, out: Out) -> Self:
        seen = self.liveness.seen.get(link.member)
        if seen is None:
            return self
        if not seen.leaving and link.is_server:
            self._tell_leaving(link.name, out)
        elif not seen.leaving and self.journal.stopping is None:
            continues = self.liveness.who_continues(link.name, self.gone)
            text = f"{link.name} has left; {continues} with its tasks"
            out.append(Announce(EventKind.DRAINED, link.name, 0, self.steps_done, text))
        master = replace(self, liveness=self.liveness.leaves(now, link.member))
        if link.is_server:
            return master
        goes_on = leave.roll_back == self.journal.roll_back
        tasks = {TaskNumber(task): chunk for task, chunk in leave.holds} if goes_on else {}
        return replace(master, work=self.work.taken_up(link.name, tasks))._release(link.name)

    def _tell_leaving(self, name: str, out: Out) -> None:
        text = f"{name} is emptied before it leaves"
        out.append(Announce(EventKind.LEAVING, name, 0, self.steps_done, text))

    def _lease_tasks(self, now: float) -> Self:
        """Give each worker that computes as many tasks as it may hold."""
        holds_barrier = self.snapshots.holds_barrier(self.journal, self.work)
        # A wave that is begun beyond it, by a master before, comes to its end: who has a task of it waits for the others.
        if not self._may_lease(now) or (holds_barrier and not self.settings.accumulates):
            return self
        workers = [seen.name for seen in self.liveness.workers_at_work(self, self.work.may_take)]
        holds_back = holds_barrier or self.snapshots.holds_back(now, self.journal, self.work)
        work = self.work.dealt(workers, holds_back=holds_back)
        return self if work is self.work else replace(self, work=work)

    def _lease_evaluation(self, now: float) -> Self:
        """Give each worker parts of the evaluation to do, if the job is at a barrier (B1)."""
        evaluations = self.evaluations.begun(now, self.journal, self.work)
        if evaluations.evaluation is None or not self._may_lease(now):
            return self
        members = self.liveness.members
        able = self.liveness.workers_at_work(self, lambda name: evaluations.may_take(members[name]))
        evaluations = evaluations.dealt(now, [members[seen.name] for seen in able])
        return self if evaluations is self.evaluations else replace(self, evaluations=evaluations)

    def _note_passed(self, state: StateId, stop: str, out: Out) -> Self:
        """B5: callbacks are equal in all workers, so what one says of the last barrier is what all do."""
        if self.work.follows and len(self.journal.evaluated) >= MOST_BARRIERS:
            # Those before would be forgotten, and a worker that joins has to pass all; an endless job comes to this.
            stop = (
                stop
                or f"callbacks have passed {MOST_BARRIERS:,} epochs and evaluations, and the journal keeps no more"
            )
        if not stop:
            work = self.work.barrier_passed(self.journal, state)
        else:
            work = self.work.ended(self.journal, state, stop)
        if work is self.work:
            return self
        if work.ended_by:
            out.append(
                Announce(EventKind.STOPPING, "", 0, self.steps_done, f"the job ends at this step: {stop}")
            )
        return replace(self, work=work)

    def _may_lease(self, now: float) -> bool:
        is_going_on = self.journal.stopping is None and not self.ends
        return bool(self.journal.entries) and is_going_on and not self._may_hear_more(now)

    def _may_hear_more(self, now: float) -> bool:
        """A master that comes back waits a moment for workers to say what they compute."""
        return self.journal.epoch > 1 and now - self.started_at < self.settings.times.heartbeat

    # ------------------------------------------------------------------ servers

    def _after_placement(self, now: float, before: Journal, record: PlacementRecord, out: Out) -> Self:
        slots = dict(record.entries)
        ending = self.ending.without(slots.keys())
        master = replace(self, slots=self.slots.after(self.journal, slots.keys()), ending=ending)
        for server in record.joined:
            text = f"{server.name} has joined"
            out.append(Announce(EventKind.JOINED, server.name, 0, self.steps_done, text))
            master = replace(master, liveness=master.liveness.numbered(server))
        for lost in record.gone:
            server = before.servers[lost]
            master = master._after_server(now, before, server, record.position is not None, out)
        if record.position is None:
            return master
        ending = master.ending.rolled_back()
        master = replace(
            master,
            work=self.work.rolled_back(record.position, self.journal),
            evaluations=self.evaluations.ended(),
            ending=ending,
        )
        step, redone = master.steps_done, self.steps_done - master.steps_done
        what = "will be recomputed"
        if self.journal.stopping is not None:
            what = "are not in the result, because the job was stopped"
        text = f"rolled back to step {step}: {redone} steps {what}"
        out.append(Announce(EventKind.ROLLED_BACK, "", 0, step, text, redone=redone))
        return master

    def _after_server(self, now: float, before: Journal, server: Server, rolls_back: bool, out: Out) -> Self:
        """Say what has become of a server, and see to it that it ends."""
        seen = self.liveness.process(server.name)
        if seen is not None and seen.leaving and placement.is_empty(before.pairs, server.number):
            text = f"{server.name} was emptied"
            out.append(Announce(EventKind.DRAINED, server.name, 0, self.steps_done, text))
            return self
        cause = self.gone.get(server.name) or self.liveness.why_lost(now, self, server)
        cause = cause or "it does not answer"
        text = f"{server.name} is lost: {cause}"
        if rolls_back:
            restore, accumulates = self.settings.restore, self.settings.accumulates
            text += f"; {losses.of_slots(self.journal, restore, accumulates=accumulates)}"
        out.append(Announce(EventKind.LOST, server.name, 0, self.steps_done, text, None, cause))
        master = self._note_loss(now, server.name, cause, journalled=True)
        return master if server.name in self.gone else master._evict(now, server.name)

    def _order_copies(self, out: Out) -> Self:
        journal = self.journal
        if not journal.entries or self.appending is not None or self.ends:
            return self
        slots, said = self.slots.ordered(
            journal, self.liveness, self.settings.replicas, lambda: self.steps_done
        )
        out += said
        return self if slots is self.slots else replace(self, slots=slots)

    # ------------------------------------------------------------------ losses

    def _process_ended(self, now: float, name: str, cause: str, out: Out) -> Self:
        if name in self.gone:
            return self
        master = replace(self, gone={**self.gone, name: cause}, liveness=self.liveness.ended(name))
        seen = self.liveness.process(name)
        number = number_of(self.journal, name)
        is_empty = number is None or placement.is_empty(self.journal.pairs, number)
        if self.journal.terminal is not None or (seen is not None and seen.leaving and is_empty):
            return master._release(name)
        if number is not None:
            return master._note_loss(now, name, cause, journalled=False)
        took_part = name in self.journal.workers if seen is None else not seen.is_server
        if took_part and name not in self.liveness.pending_kills:
            continues = self.liveness.who_continues(name, self.gone)
            text = losses.of_worker(self.journal, name, cause, continues, ends=self.ends)
            out.append(Announce(EventKind.LOST, name, 0, self.steps_done, text, None, cause))
            master = master._note_loss(now, name, cause, journalled=True)
        return master._release(name)

    def _doubt_workers(self, now: float, out: Out) -> Self:
        """Give the tasks of a worker that seems to be lost to others; should it live, that does no harm (R21)."""
        master = self
        for name, why in self.liveness.suspected_workers(now, self).items():
            continues = self.liveness.who_continues(name, self.gone)
            text = f"{name} is left out: {why}; {continues} with its tasks"
            out.append(Announce(EventKind.EVICTED, name, 0, self.steps_done, text))
            master = master._release(name)._evict(now, name)
        return master

    def _evict(self, now: float, name: str) -> Self:
        return replace(self, liveness=self.liveness.evicted(now, name))

    def _carry_out_kills(self, now: float, out: Out) -> Self:
        liveness, kills = self.liveness.killed(now, self.settings.times.alone)
        out += kills
        return self if liveness is self.liveness else replace(self, liveness=liveness)

    # ------------------------------------------------------------------ snapshots

    def _keep(self, after: tuple[Snapshots, Sequence[Instruction]], out: Out) -> Self:
        """Take what has become of snapshots, with what is to be done."""
        snapshots, said = after
        out += said
        return self if snapshots is self.snapshots else replace(self, snapshots=snapshots)

    def _take_manifest(self, now: float, event: ManifestWritten, out: Out) -> Self:
        return self._keep(self.snapshots.with_manifest(now, self.journal, self.work, event), out)

    # ------------------------------------------------------------------ the end

    @property
    def ends(self) -> bool:
        """Tell whether nothing is trained any more."""
        return self.work.ends(self.journal)

    def _has_committed(self) -> bool:
        return self.steps_done > 0

    def _wanted_finish(self) -> Record | None:
        """The result has the metrics of the last barrier, if nothing was trained after it."""
        record = super()._wanted_finish()
        last = max(self.journal.evaluated.values(), key=lambda one: one.task, default=None)
        if not isinstance(record, FinishedRecord) or last is None:
            return record
        is_of = (last.task, last.state.step) == (self.work.leases.low, record.state.step)
        return replace(record, metrics=last.values) if is_of else record

    def _may_finish(self, exported: Exported) -> bool:
        is_due = self.ends and self.ending.counts(exported) and self.ending.has_all(self.journal)
        return is_due and self.snapshots.may_end(self.journal, self.work)

    def _choose_exporter(self) -> Self:
        ending = self.ending.chosen(self, self.work, self.liveness)
        if ending is self.ending:
            return self
        exported = self.exported if ending.exporter is None else None
        return replace(self, ending=ending, exported=exported)

    def _all_gone(self) -> bool:
        return self.liveness.are_all_gone(self.gone)

    # ------------------------------------------------------------------ what each connection is sent

    def _tell_all(self, now: float, concerned: int | None, out: Out) -> Self:
        master = self._lease_tasks(now)._lease_evaluation(now)._order_copies(out)._choose_exporter()
        cut, now_so = master.snapshots.under_way(master.journal), master._tellable()
        if cut is None and now_so.is_as(self.told):
            return master  # what a snapshot lacks is asked for again after a time, all else once
        news = master._news()
        told = {
            connection: after
            for connection, link in now_so.since(self.told, concerned).items()
            if (after := master._tell_one(now, connection, link, news, out)) is not link
        }
        if told:
            master = replace(master, links={**master.links, **told})
        return replace(master, told=master._tellable())

    def _tellable(self) -> Told:
        return tellable(
            self,
            self.links,
            self.work,
            self.evaluations,
            self.liveness,
            self.slots,
            self.snapshots,
            self.ending,
        )

    def _tell_one(self, now: float, connection: int, link: Link, news: News, out: Out) -> Link:
        """Tell one connection what it should know by now; return what it then knows."""
        link = self._tell_everybody(connection, link, out)
        if link.verdict:
            return link
        link = news.to_everybody(connection, link, out)
        if not link.registered:
            return link
        if link.is_server:
            return self._tell_server(now, connection, link, news, out)
        return news.to_worker(connection, link, out)

    def _news(self) -> News:
        """Return what processes should know by now."""
        return News(
            journal=self.journal,
            leases=self.work.leases,
            evaluating=self.evaluations.leased,
            low=self.snapshots.low(self.journal, self.work),
            changed_at=self.slots.changed_at,
            newest=self.slots.newest,
            copies=self.slots.copies.under_way,
            seen=self.liveness.seen,
            gone=self.gone,
            wanted_servers=self.wanted_servers,
            exporter=self.ending.exporter,
            attempt=self.ending.attempt,
            steps=lambda: self.steps_done,
        )

    def _tell_server(self, now: float, connection: int, link: Link, news: News, out: Out) -> Link:
        number = number_of(self.journal, link.name)
        if number is None:
            return link
        link = news.to_server(connection, link, number, out)
        link = self.snapshots.order_cut(now, self.journal, connection, link, number, out)
        if self.ends and link.accounts < self.slots.newest:
            self._tell(connection, AccountsWanted(), out)
            link = replace(link, accounts=self.slots.newest)
        return link

    def _verdict(self, link: Link) -> Evicted | Released | Finished | Failed | None:
        """Return how a process ends, if it does."""
        end = self.journal.terminal
        if isinstance(end, FinishedRecord):
            return Finished("the job is finished")
        if end is not None:
            return Failed(end.reason)
        return self.liveness.verdict(self.journal, link) if link.registered else None


def _other_callbacks(other: str, *, follows: bool) -> ProgramFailed:
    """Return the program error of a worker whose callbacks follow epochs or evaluations (B5), or not, other than those of a worker before.

    The job would wait at its next barrier for a word that nobody else has a reason to say.
    """
    does, others = ("follow", "do not") if follows else ("do not follow", "do")
    text = f"its callbacks {does} epochs or evaluations, and those of {other} {others}; callbacks() must return the same in all workers"
    return ProgramFailed("program", "callbacks that are not the same in all workers", "", text)
