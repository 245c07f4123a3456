"""The synchronous master as a pure state machine: time and events in, instructions out (`master/core/events.py` has both vocabularies).

It takes what happens, asks its values in order, and says what is journalled and what each connection is sent. Each value knows one thing:
`liveness.py` (who is there, and who is suspected), `steps.py` (how far the group has come), `viewend.py` (when a view ends),
`viewchange.py` (who may be in the next one), `gates.py` (what is evaluated), `snapshots.py` (what is saved), `kills.py` (who is killed),
`recovery.py` (how long losses last). What every master does is in `master/core/machine.py`. Rule numbers are those of the notes on the
protocol.

One file because the values know nothing of each other: in which order they are asked, and what one's answer means for the others, is all
here.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Self

from elasticdl.checkpoint.layout import folder_of
from elasticdl.checkpoint.manifest import NAME
from elasticdl.control.protocol.frozen import replace
from elasticdl.control.protocol.messages import (
    Acknowledged,
    AtGate,
    Cut,
    Evaluated,
    Evicted,
    Exported,
    Failed,
    Finished,
    FoundShards,
    GateOpen,
    Lost,
    MemberMessage,
    NewView,
    NextView,
    Note,
    Pending,
    ProgramFailed,
    Progress,
    Register,
    Released,
    Report,
    Saved,
    Stop,
    StopJob,
    TaskResult,
    Welcome,
    saved_as,
)
from elasticdl.control.protocol.status import EventKind
from elasticdl.control.protocol.view import MemberId, Peer, View
from elasticdl.data.plan.schedule import Schedule
from elasticdl.data.plan.shard import Shard
from elasticdl.master.allreduce import claims, fruitless
from elasticdl.master.allreduce.announcing import announced
from elasticdl.master.allreduce.gates import Gates
from elasticdl.master.allreduce.kills import Kills
from elasticdl.master.allreduce.lastbits import LastBits
from elasticdl.master.allreduce.liveness import Liveness
from elasticdl.master.allreduce.recovery import Recovery
from elasticdl.master.allreduce.seen import Link, Seen
from elasticdl.master.allreduce.snapshots import Snapshots
from elasticdl.master.allreduce.steps import EXPORT_LIMITS, Steps
from elasticdl.master.allreduce.viewchange import ViewChange
from elasticdl.master.allreduce.viewend import ViewEnd
from elasticdl.master.allreduce.views import PolicyLanes, Situation, Stander
from elasticdl.master.core import machine as core
from elasticdl.master.core.evaluated import evaluated
from elasticdl.master.core.evaluationresults import AddUp, ResultSize
from elasticdl.master.core.events import (
    Announce,
    Beat,
    GiveUp,
    ManifestWritten,
)
from elasticdl.master.core.machine import MasterCore, Out
from elasticdl.master.core.records import (
    EvaluatedRecord,
    FailedRecord,
    FinishedRecord,
    Journal,
    Record,
    ResumedStateRecord,
    ShardsRecord,
    SnapshotRecord,
    ViewRecord,
)
from elasticdl.master.core.witnesses import SUSPICION, Accusation


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(core.Settings):
    """What a synchronous master takes from the job's settings.

    Attributes:
        policy_lanes: the batch policy, number of members → K.
        snapshots: the folder in which members save states, None if there is none.
        lasting: these are checkpoints, which outlive the job.
        highest: number of a checkpoint that is there already.
        resume: the job's data → where it continues from an earlier job's checkpoint; None: it begins anew, or that is journalled.
        add_up: adds up what evaluation tasks have found.
        result_size: the bytes of what one has found.
    """

    policy_lanes: PolicyLanes
    snapshots: Path | None = None
    lasting: bool = False
    highest: int = 0
    resume: Callable[[tuple[Shard, ...], tuple[Shard, ...]], ResumedStateRecord] | None = None
    add_up: AddUp = lambda metrics, results: b"".join(results)
    result_size: ResultSize = lambda metrics: None


@dataclass(frozen=True)  # no slots: see elasticdl.control.protocol.frozen
class AllReduceMaster(MasterCore):
    """One master: events in, instructions out.

    Attributes:
        settings: of the job.
        schedule: the order of the data, None until the shards are journalled.
        links: control streams.
        liveness: members.
        steps: steps of the current view.
        view_end: when that ends.
        view_change: who may be in the next one.
        gates: what is evaluated.
        snapshots: what members save.
        kills: processes that are to end.
        recovery: losses.
        last_bits: what a member of the final view holds.
        told: the values of which every connection knows what it should, at last those that concern one connection each.
    """

    gathers = True

    settings: Settings
    schedule: Schedule | None = None
    links: Mapping[int, Link] = field(default_factory=dict)
    liveness: Liveness = field(default_factory=Liveness)
    steps: Steps = field(default_factory=Steps)
    view_end: ViewEnd = field(default_factory=ViewEnd)
    view_change: ViewChange = field(default_factory=ViewChange)
    gates: Gates = field(default_factory=Gates)
    snapshots: Snapshots = field(default_factory=Snapshots)
    kills: Kills = field(default_factory=Kills)
    recovery: Recovery = field(default_factory=Recovery)
    last_bits: LastBits = field(default_factory=LastBits)
    told: tuple[object, ...] = (None,)

    @property
    def view(self) -> View | None:
        """Return the current view."""
        return self.journal.view

    @property
    def missing(self) -> int:
        """Return how many workers have to come before another step begins."""
        return self.view_change.missing(self, self.liveness)

    def _suspects(self, now: float) -> Mapping[MemberId, str]:
        return self.liveness.suspects(now, self, self.links, self.steps)

    # ------------------------------------------------------------------ the transition

    def _connect(self, connection: int, member: MemberId, name: str) -> Self:
        return replace(self, links={**self.links, connection: Link(member=member, name=name)})

    def _settle(self, now: float, concerned: int | None, out: Out) -> Self:
        liveness = self.liveness.looked(now, self, self.links)
        master = self if liveness is self.liveness else replace(self, liveness=liveness)
        return super(AllReduceMaster, master)._settle(now, concerned, out)

    def _act(self, now: float, out: Out) -> Self:
        return self._lease_tasks(now, out)._save(now, out)._kill(now, out)

    def _kill(self, now: float, out: Out) -> Self:
        times = self.settings.times
        kills, overdue = self.kills.overdue(now, times.alone)
        kills, holding_up = kills.held_up(now, self._holding_up(now), times.stall)
        if kills is self.kills:
            return self
        out += [*overdue, *holding_up]
        return replace(self, kills=kills)

    def _holding_up(self, now: float) -> list[str]:
        view = self.view
        if view is None or self.journal.terminal is not None:
            return []
        return self.view_change.holding_up(self, self.liveness, partial(self._suspects, now), view)

    # ------------------------------------------------------------------ the journal

    def _open(self, now: float, journal: Journal, out: Out) -> Self:
        master = super()._open(now, journal, out)
        # Who hung before this master began may hang still; it has the time that it would have had.
        kills = master.kills.with_left_out(now, journal.evicted)
        settings = self.settings
        snapshots = replace(
            self.snapshots, directory=settings.snapshots, lasting=settings.lasting, highest=settings.highest
        )
        return replace(
            master, liveness=master.liveness.in_view(now, journal.view), kills=kills, snapshots=snapshots
        )

    def _with_data(self, shards: tuple[Shard, ...], validation: tuple[Shard, ...]) -> Self:
        return replace(self, schedule=self.settings.plan(shards, validation))

    def _appended(self, now: float, before: Journal, record: Record, out: Out) -> Self:
        match record:
            case ViewRecord(view):
                return self._after_view(now, before.view, view, out)
            case SnapshotRecord():
                return self._after_snapshot(record, out)
            case EvaluatedRecord():
                return self._after_evaluation(record, out)
            case ResumedStateRecord(_, path, state):
                text = f"the job continues from {Path(path).parent}, step {state.step}"
                out.append(Announce(EventKind.RESUMED, "", 0, state.step, text))
                return self
            case _:
                return super()._appended(now, before, record, out)

    def _wanted_own(self, now: float) -> Record | None:
        return (
            self._wanted_resumption()
            or self._wanted_snapshot()
            or self.gates.record(now, self)
            or self._wanted_view(now)
        )

    def _wanted_resumption(self) -> Record | None:
        """Say where the job continues before anybody begins anew."""
        resume, journal = self.settings.resume, self.journal
        if resume is None or journal.shards is None or journal.resumed_state is not None:
            return None
        return resume(journal.shards, journal.validation)

    def _wanted_snapshot(self) -> Record | None:
        directory = self.settings.snapshots
        if directory is None:
            return None
        return self.snapshots.record(
            self.journal, folder_of(directory, self.snapshots.number(self.journal)) / NAME
        )

    def _wanted_view(self, now: float) -> Record | None:
        schedule, view, change = self.schedule, self.view, self.view_change
        if schedule is None:
            return None
        suspects = partial(self._suspects, now)
        standers = change.standers(now, self, self.liveness, suspects)
        if standers is None:
            return None
        situation = Situation(
            current=view,
            standers=standers,
            snapshot=self.journal.snapshot,
            stopping=change.ends_now(self),
            schedule=schedule,
            policy_lanes=self.settings.policy_lanes,
            why=change.why(self, self.liveness, suspects, standers) or self.view_end.cause,
        )
        following = change.compose(situation)
        if change.waits_for_more(self, standers, following):
            return None
        left_out = [] if view is None else self.liveness.left_out(self, view, following)
        count = fruitless.counted(view, self.journal.fruitless, following, standers)
        if why := fruitless.why_failed(following, count, self.view_end.said):
            return FailedRecord(why)
        return ViewRecord(following, tuple(left_out), count)

    def _waits(self) -> bool:
        view = self.view
        # Who is not connected here may be with another one, and the others wait for it; if all of them leave, no view follows.
        return bool(self.missing) or (
            view is not None and not all(self.liveness.is_connected(peer.id) for peer in view.members)
        )

    def _contradiction(self, journal: Journal) -> str | None:
        if journal.view is None:
            return None
        if journal.shards is None:
            return f"view {journal.view.id} is of no data"
        return claims.contradiction(journal.view, self.settings.plan(journal.shards, journal.validation))

    # ------------------------------------------------------------------ what comes in

    def _impossible(self, link: Link, message: MemberMessage) -> str | None:
        view, policy = self.view, self.settings.policy_lanes
        # At no time were there more members than ever stood in a view; a step of an earlier job may have had more lanes.
        resumed = self.journal.resumed_state
        first = 0 if resumed is None else resumed.position.lanes
        most = (
            0
            if view is None
            else max(first, view.position.lanes, view.wave_lanes, policy(len(self.journal.known)))
        )
        known = claims.Known(
            member=link.member,
            view=view,
            schedule=self.schedule,
            most_lanes=most,
            snapshots=self.settings.snapshots,
            evaluation=self.gates.evaluation,
            result_size=self.settings.result_size,
            resumed=resumed,
        )
        return claims.impossible(known, message)

    def _disconnect(self, now: float, connection: int) -> Self:
        links = dict(self.links)
        link = links.pop(connection, None)
        if link is None:
            return self
        return replace(self, links=links, liveness=self.liveness.disconnected(now, link.member, connection))

    def _hear(self, now: float, connection: int, link: Link, message: MemberMessage, out: Out) -> Self:
        is_report = isinstance(message, Register | NextView | AtGate)
        if is_report and self.liveness.has_registered_since(connection, link.member):
            return self
        match message:
            case Register():
                return self._register(now, connection, message)
            case NextView(report):
                return self._take_report(now, link.member, report)
            case Lost():
                return self._accuse(now, link, message)
            case Progress():
                return self._advance(now, link, message, out)
            case Note(kind, view, step, text, seconds):
                out.append(Announce(kind, link.name, view, step, text, seconds))
                return self._compare(link, message, out) if kind is EventKind.DIGEST else self
            case Saved():
                return self._take_saved(connection, link, message, out)
            case Exported():
                return self._take_exported(now, link, message)
            case AtGate():
                return self._take_at_gate(now, connection, link, message)
            case TaskResult():
                gates = self.gates.heard(now, self.view, link.member, message, self.settings.add_up)
                return replace(self, gates=gates)
            case Evaluated():
                return replace(self, gates=self.gates.evaluated(self.view, link.member, message))
            case StopJob(reason):
                return self._hear_stop(connection, reason, out)
            case ProgramFailed():
                return self._take_failure(now, connection, link, message, out)
            case FoundShards(shards, validation, plan):
                return self._find(ShardsRecord(shards, validation, plan), link.name)
        return self  # said by those whom other masters serve

    def _compare(self, link: Link, note: Note, out: Out) -> Self:
        """L7: say that members of the final view hold other bits; a program that has no result yet fails."""
        view = self.view
        if view is None or not view.final or note.view != view.id:
            return self
        last_bits, wrong = self.last_bits.heard(view.id, link.name, note.text)
        give_up = self.give_up
        if wrong:
            out.append(Announce(EventKind.DIVERGED, link.name, view.id, note.step, wrong))
            if self.settings.for_loop is not None and self.journal.terminal is None:
                give_up = give_up or GiveUp(wrong, "program", link.name)
        return replace(self, last_bits=last_bits, give_up=give_up)

    def _register(self, now: float, connection: int, register: Register) -> Self:
        peer = Peer(register.member, register.name, register.address)
        link = replace(self.links[connection], registered=True)
        return replace(
            self,
            links={**self.links, connection: link},
            liveness=self.liveness.registered(now, peer, register.report, connection),
            view_end=self.view_end.reported(now, self.view, peer.id, register.report),
        )

    def _take_report(self, now: float, member: MemberId, report: Report) -> Self:
        if member not in self.liveness.seen:
            return self
        return replace(
            self,
            liveness=self.liveness.reported(member, report),
            view_end=self.view_end.reported(now, self.view, member, report),
        )

    def _accuse(self, now: float, link: Link, lost: Lost) -> Self:
        view, liveness = self.view, self.liveness
        if view is None or lost.current != view.id or view.rank(link.member) is None:
            return self
        if lost.accused is not None and view.rank(lost.accused) is not None:
            liveness = liveness.accused(now, Accusation(link.member, lost.accused))
        return replace(self, liveness=liveness, view_end=self.view_end.broken(f"{link.name}: {lost.how}"))

    def _beat(self, now: float, beat: Beat) -> Self:
        liveness = self.liveness.beaten(now, beat)
        if liveness is self.liveness:
            return self
        steps = self.steps.under_way(now - beat.age, self.view, beat.view, beat.step)
        return replace(self, liveness=liveness, steps=steps)

    def _process_ended(self, now: float, name: str, cause: str, out: Out) -> Self:
        if name in self.gone:
            return self
        recovery = self._with_loss(self.recovery, now, self.view, name, cause)
        gone = {**self.gone, name: cause}
        return replace(self, gone=gone, kills=self.kills.without(name), recovery=recovery)

    def _with_loss(
        self, recovery: Recovery, now: float, view: View | None, name: str, cause: str
    ) -> Recovery:
        """Return what holds of losses when a process is lost: that of a member counts, unless it left as it wished."""
        peer = None if view is None else view.named(name)
        if view is None or peer is None or self.journal.terminal is not None:
            return recovery
        if self.liveness.has_drained(peer.id, view):
            return recovery
        sealed_at = self.view_end.sealed_at
        return recovery.with_loss(now if sealed_at is None else min(now, sealed_at), view.id, name, cause)

    def _advance(self, now: float, link: Link, progress: Progress, out: Out) -> Self:
        view, step = self.view, progress.state.step
        if view is None or progress.current != view.id:
            return self
        liveness = self.liveness.committed(view, link.member, progress)
        steps, recovery = self.steps.under_way(now, view, view.id, step + 1), self.recovery
        if steps.is_news(view, progress):
            steps, said = steps.committed(now, link.name, progress)
            recovery, recovered = recovery.committed(now, view.id, step, self.gone)
            out += [said, *recovered]
        return replace(self, liveness=liveness, steps=steps, recovery=recovery)

    # ------------------------------------------------------------------ snapshots

    def _take_saved(self, connection: int, link: Link, saved: Saved, out: Out) -> Self:
        answer = self.snapshots.answer(self.journal, saved)
        if answer is not None:
            self._tell(connection, Acknowledged(answer), out)
            return self
        snapshots, said = self.snapshots.reported(self.view, link.member, saved)
        out += said
        return replace(self, snapshots=snapshots)

    def _save(self, now: float, out: Out) -> Self:
        patience = EXPORT_LIMITS * self.settings.times.stall
        snapshots, said = self.snapshots.completed(self.journal)
        snapshots, overdue = snapshots.overdue(now, self.journal, patience)
        if snapshots is self.snapshots:
            return self
        out += [*said, *overdue]
        return replace(self, snapshots=snapshots)

    def _take_manifest(self, now: float, event: ManifestWritten, out: Out) -> Self:
        snapshots, said = self.snapshots.manifest_written(event)
        out += said
        return replace(self, snapshots=snapshots)

    def _after_snapshot(self, record: SnapshotRecord, out: Out) -> Self:
        for member, saved in self.snapshots.parts.get(
            Cut(record.view, record.state, record.passed), {}
        ).items():
            seen = self.liveness.seen.get(member)
            if seen is not None and seen.connection is not None:
                self._tell(seen.connection, Acknowledged(saved_as(saved.cut)), out)
        snapshots, said = self.snapshots.journalled(record)
        out += said
        return replace(self, snapshots=snapshots)

    # ------------------------------------------------------------------ gates

    def _take_at_gate(self, now: float, connection: int, link: Link, said: AtGate) -> Self:
        plan = None if self.schedule is None else self.schedule.evaluation
        if plan is None:
            return self
        gates = self.gates.arrived(now, self.journal, link.member, said, plan.num_tasks)
        link = replace(link, at_gate=said.state, gate_told=None)
        return replace(self, gates=gates, links={**self.links, connection: link})

    def _lease_tasks(self, now: float, out: Out) -> Self:
        """Give each member at the gate something to do, and what it does next, as long as there is something."""
        if self.gates.evaluation is None:
            return self
        connections = {member: self.liveness.seen[member].connection for member in self.gates.at}
        there = [member for member, connection in connections.items() if connection in self.links]
        gates, dealt = self.gates.dealt(now, self.journal, there)
        for member, leased in dealt:
            connection = connections[member]
            assert connection is not None, "only those that are there get something"
            self._tell(connection, leased, out)
        return self if gates is self.gates else replace(self, gates=gates)

    def _after_evaluation(self, record: EvaluatedRecord, out: Out) -> Self:
        out.append(evaluated(record))
        return replace(self, gates=self.gates.journalled(record))

    # ------------------------------------------------------------------ the end

    def _take_exported(self, now: float, link: Link, exported: Exported) -> Self:
        if not self._accepts_export(link.member, exported):
            return self
        return replace(self, exported=exported, snapshots=self.snapshots.awaited(now))

    def _accepts_export(self, member: MemberId, exported: Exported) -> bool:
        """D7: only the exporter of the current view, and only that view's base."""
        view = self.view
        if view is None or not view.final or view.exporter is None:
            return False
        exporter = view.members[view.exporter].id
        return exported.view == view.id and exported.state == view.base and exporter == member

    def _may_finish(self, exported: Exported) -> bool:
        """D7: the view may have changed since the report came, and a last checkpoint be under way."""
        is_current = self.view is not None and exported.view == self.view.id
        return is_current and self.snapshots.is_kept(self.journal)

    def _take_failure(self, now: float, connection: int, link: Link, error: ProgramFailed, out: Out) -> Self:
        """D10: note a program error; one of an evicted member counts for nothing."""
        if self._is_evicted(link.member):
            self._tell(connection, Evicted("this worker was left out of the group; a new life may join"), out)
            return self
        return self._note_failure(now, link, error)

    def _is_evicted(self, member: MemberId) -> bool:
        """D8: an id that stood in a view and is not in the current one."""
        return member in self.journal.known and (self.view is None or self.view.rank(member) is None)

    def _has_committed(self) -> bool:
        reports = (seen.report.state for seen in self.liveness.seen.values())
        view, progress = self.view, self.steps.progress
        first = 0 if self.journal.resumed_state is None else self.journal.resumed_state.state.step
        return (
            (progress is not None and progress.state.step > first)
            or (view is not None and view.base.step > first)
            or any(state is not None and state.step > first for state in reports)
            or any(failure.error.step > first for failure in self.failures.values())
        )

    def _all_gone(self) -> bool:
        return all(peer.name in self.gone for peer in (() if self.view is None else self.view.members))

    @property
    def why_finished(self) -> str:
        """Return why there was nothing more to train."""
        end, schedule = self.journal.terminal, self.schedule
        if self.journal.stopping is not None:
            return self.journal.stopping
        if (
            isinstance(end, FinishedRecord)
            and schedule is not None
            and 0 < schedule.max_step <= end.state.step
        ):
            return f"max_step {schedule.max_step} is reached"
        return "all data was trained"

    # ------------------------------------------------------------------ what follows a view

    def _after_view(self, now: float, before: View | None, view: View, out: Out) -> Self:
        """Say what has changed, and forget what was about the view before."""
        liveness, recovery = self.liveness, self.recovery
        left_out = [] if before is None else liveness.left_out(self, before, view)
        for name in left_out:
            recovery = self._with_loss(recovery, now, before, name, SUSPICION)
        snapshots, given_up = self.snapshots.in_view()
        out += [*announced(before, view, left_out, liveness, self.gone), *given_up]
        return replace(
            self,
            liveness=liveness.in_view(now, view),
            view_end=self.view_end.in_view(),
            view_change=self.view_change.in_view(before, view, liveness.accusations),
            gates=self.gates.in_view(view),
            kills=self.kills.with_left_out(now, left_out),
            recovery=recovery,
            snapshots=snapshots,
            exported=None,
        )

    # ------------------------------------------------------------------ what each connection is sent

    def _tell_all(self, now: float, concerned: int | None, out: Out) -> Self:
        view = self.view
        liveness, suspects = self.liveness, partial(self._suspects, now)
        stop = view is not None and (
            self.view_end.stop_reason(now, self, liveness, suspects, view) is not None
            or self.gates.parts(self, liveness, view) is not None
        )
        pending = view is not None and self.view_end.pending_reason(self, liveness, view) is not None
        # Who is alone in its view may be released by word, if nobody is there to join.
        gone = self.gone if view is not None and len(view.members) == 1 else None
        common = (self.journal, self.appending, gone, self.failures, stop, pending)
        if all(map(operator.is_, (*common, self.links, liveness.heard), self.told)):
            return self
        heard = self.gathered if concerned is None else (*self.gathered, concerned)
        some = {one: self.links[one] for one in heard if one in self.links}
        is_for_some = bool(some) and all(map(operator.is_, common, self.told))
        # Many come at once when a job begins or its master comes back: what one of them says is no news to the others.
        links = some if is_for_some else self.links
        told = {
            connection: after
            for connection, link in links.items()
            if (after := self._tell_one(now, connection, link, view, stop, pending, out)) is not link
        }
        master = replace(self, links={**self.links, **told}) if told else self
        return master if is_for_some else replace(master, told=(*common, master.links, liveness.heard))

    def _tell_one(
        self,
        now: float,
        connection: int,
        link: Link,
        view: View | None,
        stop: bool,
        pending: bool,
        out: Out,
    ) -> Link:
        """Tell one connection what it should know by now; return what it then knows."""
        link = self._tell_everybody(connection, link, out)
        if link.verdict or not link.registered:
            return link
        if not link.welcomed:
            self._tell(connection, Welcome(self.journal.epoch), out)
            link = replace(link, welcomed=True)
        link = self._open_gate(connection, link, view, out)
        if view is None or view.rank(link.member) is None:
            return link
        report = self.liveness.seen[link.member].report
        sealed = report.sealed >= view.id
        if stop and not sealed and link.stop < view.id and self._may_stop():
            self._tell(connection, Stop(view.id), out)
            return replace(link, stop=view.id, stop_at=now)
        if not sealed and not stop and report.current < view.id and link.view < view.id:
            self._tell(connection, NewView(view), out)
            link = replace(link, view=view.id)
        if pending and not stop and not sealed and link.pending < view.id:
            self._tell(connection, Pending(view.id), out)
            link = replace(link, pending=view.id)
        return link

    def _open_gate(self, connection: int, link: Link, view: View | None, out: Out) -> Link:
        """Tell a member at a gate that it is open; without metrics only in a final view of a job that stops (G5)."""
        state = link.at_gate
        if state is None or state == link.gate_told:
            return link
        values = self.gates.values_of(self.journal, state)
        ends = view is not None and view.final and view.base == state and self.journal.stopping is not None
        if values is None and not ends:
            return link
        self._tell(connection, GateOpen(state, values), out)
        return replace(link, gate_told=state)

    def _may_stop(self) -> bool:
        return True

    def _verdict(self, link: Link) -> Evicted | Released | Finished | Failed | None:
        """Return how a member ends, if it does; every verdict follows from the journal (or frees one that never stood in a view)."""
        end = self.journal.terminal
        if isinstance(end, FinishedRecord):
            return Finished("the job is finished")
        if isinstance(end, FailedRecord):
            return Failed(end.reason)
        if not link.registered:
            return None
        seen = self.liveness.seen[link.member]
        if self._is_evicted(link.member):
            return (
                Released("drained")
                if seen.report.draining
                else Evicted("left out of the group; a new life may join")
            )
        if seen.report.draining and link.member not in self.journal.known:
            return Released("it had not joined yet")
        if self._is_released_by_word(seen):
            return Released("the last member has saved its state")
        return None

    def _is_released_by_word(self, seen: Seen) -> bool:
        view = self.view
        if (
            view is None
            or not self.liveness.has_sealed(seen.peer.id, view)
            or not seen.report.draining
            or self.appending is not None
        ):
            return False
        if any(peer.id != seen.peer.id for peer in view.members):
            return False
        stander = Stander(seen.peer, seen.report, stayed=True)
        return self.view_change.releases_last(self, (stander,), self.liveness.joiners(self))
