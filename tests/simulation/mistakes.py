"""Mistakes that the simulator must find: one rule of a machine, or of the world, is replaced, named as in the model of the protocol.

A mistake is a `World` whose members, masters, journal, rings or auditor break one rule; everything else is real. Where the rule is
one of a master's values, the master begins with a mistaken value (`new_master`). `FOCUS` says which jobs and faults make a mistake likely
to show; without an entry the ordinary schedules do.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self
from unittest import mock

from elasticdl.checkpoint.layout import folder_of
from elasticdl.checkpoint.manifest import NAME
from elasticdl.control.protocol.messages import (
    AtGate,
    Cut,
    Evicted,
    Exported,
    Failed,
    MemberMessage,
    MetricValues,
    NewView,
    ProgramFailed,
    Released,
    Saved,
    TaskLeased,
)
from elasticdl.control.protocol.view import MemberId, Peer, StateId, View, ViewId
from elasticdl.master.allreduce import views
from elasticdl.master.allreduce.gates import Gates
from elasticdl.master.allreduce.kills import Kills
from elasticdl.master.allreduce.liveness import Liveness, Suspects, is_gone
from elasticdl.master.allreduce.machine import AllReduceMaster
from elasticdl.master.allreduce.seen import Link, Seen
from elasticdl.master.allreduce.snapshots import Snapshots
from elasticdl.master.allreduce.viewchange import ViewChange
from elasticdl.master.allreduce.viewend import ViewEnd
from elasticdl.master.allreduce.views import Stander
from elasticdl.master.core import events as to_master
from elasticdl.master.core.machine import MasterCore, Out
from elasticdl.master.core.records import (
    EvaluatedRecord,
    FailedRecord,
    FinishedRecord,
    Journal,
    Record,
    SnapshotRecord,
    StoppingRecord,
    ViewRecord,
)
from elasticdl.master.core.requests import Requests
from elasticdl.worker import events as to_member
from elasticdl.worker.allreduce.accumulator import Accumulator
from elasticdl.worker.allreduce.machine import Member
from tests.simulation.oracle import Chunk, History, Lineage, Violation
from tests.simulation.world import SNAPSHOTS, MasterProcess, Plan, Ring, Worker, World


class Mistaken(World):
    faithful = False


# ------------------------------------------------------------------ members


class NoSeal(Mistaken):
    """A member that has reported to next_view may still commit in the old view."""

    class member_class(Member):
        __slots__ = ()

        def _may_commit_in(self, view: ViewId) -> bool:
            return self.failure is None and view == self.current

        def _proceed(self, out: Any) -> Member:
            member = Member._proceed(self, out)
            if (
                member.result is not None
                and member.failure is None
                and member.outstanding.work is None
                and not member.active
            ):
                member = member._try_commit(out)
            return member

    def _cancel_work(self, worker: Worker) -> None:
        if worker.token is None or not isinstance(worker.token.work, to_member.Contribute):
            super()._cancel_work(worker)


class NoFloor(Mistaken):
    """A member accepts any view newer than the one that it is in, although it has sealed beyond it."""

    late_views = 0.4

    class member_class(Member):
        __slots__ = ()

        def _may_install(self, view: View) -> bool:
            return view.rank(self.id) is not None and view.id > self.current

        def _install(self, view: View, out: Any) -> Member:
            return replace(Member._install(self, view, out), sealed=ViewId(view.id - 1))

    def carry_out(self, worker: Worker, instruction: Any) -> None:
        if isinstance(instruction, to_member.OpenView):
            worker.closed = min(worker.closed, instruction.view.id - 1)
        super().carry_out(worker, instruction)


class KeepAccumulator(Mistaken):
    """Lanes are rebalanced in the middle of a step and members do not check what their accumulator contains."""

    class member_class(Member):
        __slots__ = ()

        def _keeps_accumulator(self, view: View, rank: int) -> bool:
            del rank
            return self.state == view.base

        def _may_contribute(self, view: View) -> bool:
            return self.whole or Member._may_contribute(self, view)

    class Rotates(ViewChange):
        __slots__ = ()

        def compose(self, situation: views.Situation) -> View:
            with mock.patch.object(views, "place_lanes", _rotate):
                return ViewChange.compose(self, situation)

    def new_master(self) -> AllReduceMaster:
        return self.master_class(self.settings, view_change=self.Rotates())


def _rotate(
    members: Sequence[Stander], base: StateId, lanes: int, before: Sequence[int | None]
) -> tuple[int, ...]:
    del base, before
    return tuple((lane + 1) % len(members) for lane in range(lanes))


class StaleAccumulator(Mistaken):
    """The accumulator of a step is kept by a member that healed to another state."""

    class member_class(Member):
        __slots__ = ()

        def _keeps_accumulator(self, view: View, rank: int) -> bool:
            return self.state != view.base or Member._keeps_accumulator(self, view, rank)

        def _healed(self, event: to_member.Healed, out: Any) -> Member:
            chunks = self.accumulator.chunks
            return replace(Member._healed(self, event, out), accumulator=Accumulator(chunks))

    def keeps_gradients_over_heal(self) -> bool:
        return True


class RetryInView(Mistaken):
    """An abort without a death is retried in the same view."""

    class member_class(Member):
        __slots__ = ()

        def _break_ring(self, accused: MemberId | None, how: str, out: Any) -> Member:
            del accused, how, out
            return replace(self, contributed=False, result=None)

    def _contribute(self, worker: Worker, work: to_member.Contribute) -> None:
        ring = self.rings.get((work.view, work.step))
        if ring is not None and worker.id in ring.parts:
            # what the others had given was read by the attempt that broke; who still waits in it has it in its buffers
            waiting = {member for member, (_, token) in ring.waiting.items() if not token.done}
            ring.parts = {member: part for member, part in ring.parts.items() if member in waiting}
        super()._contribute(worker, work)


class DonorGoesOn(Mistaken):
    """The donor applies the next step while it still sends its state."""

    class member_class(Member):
        __slots__ = ()

        def _serves(self) -> bool:
            return False


class KeepStateAfterEviction(Mistaken):
    """An evicted member comes back with its state."""

    class member_class(Member):
        __slots__ = ()

        def _obey(self, verdict: Any, out: Any) -> Member:
            return self if isinstance(verdict, Evicted) else Member._obey(self, verdict, out)

    class master_class(AllReduceMaster):
        __slots__ = ()

        def _verdict(self, link: Link) -> Any:
            verdict = AllReduceMaster._verdict(self, link)
            return None if isinstance(verdict, Evicted) else verdict

    class JoinsAgain(Liveness):
        def may_join(self, core: MasterCore, seen: Seen) -> bool:
            view, member = core.journal.view, seen.peer.id
            stood = view is not None and view.rank(member) is None and member in core.journal.known
            return stood or Liveness.may_join(self, core, seen)

    class Spares(Kills):
        __slots__ = ()

        def overdue(self, now: float, alone: float) -> tuple[Kills, Sequence[to_master.Kill]]:
            del now, alone
            return self, ()

    def new_master(self) -> AllReduceMaster:
        return self.master_class(self.settings, liveness=self.JoinsAgain(), kills=self.Spares())


class AbortIsFailure(Mistaken):
    """A member takes the exception of a broken ring for a program error."""

    class member_class(Member):
        __slots__ = ()

        def _break_ring(self, accused: MemberId | None, how: str, out: Any) -> Member:
            del accused
            return self._fail(ProgramFailed("program", f"RingBroken {how}", "", "Traceback"), out)


# ------------------------------------------------------------------ rings and the auditor


class RingOfTheLiving(Mistaken):
    """The ring closes over the members still connected instead of all members of the view."""

    class member_class(Member):
        __slots__ = ()

        def _try_commit(self, out: Any) -> Member:
            if self.result is None or self.position is None:
                return Member._try_commit(self, out)
            complete = replace(self.result, contributors=(1,) * self.position.lanes)
            return Member._try_commit(replace(self, result=complete), out)

    def is_full(self, ring: Ring) -> bool:
        return all(peer.id in ring.parts or self.has_left(peer.id, ring.view) for peer in ring.view.members)


class AuditByCommitters(Mistaken):
    """Audit lines are written by a member when it has committed."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.writers: dict[tuple[int, int], set[str]] = {}
        lines = self.oracle.audited_lines

        def audited(view: int, step: int) -> dict[str, tuple[Chunk, ...]]:
            writers = self.writers.get((view, step), set())
            return {name: chunks for name, chunks in lines(view, step).items() if name in writers}

        self.oracle.audited_lines = audited  # type: ignore[method-assign]

    def _commit(self, worker: Worker, work: to_member.Commit) -> None:
        self.writers.setdefault((work.view, work.state.step), set()).add(worker.name)
        super()._commit(worker, work)


class AuditHealed(AuditByCommitters):
    """... and also when it heals past a step that it contributed to."""

    def _healed(
        self, worker: Worker, work: to_member.Heal, content: Lineage, history: History
    ) -> to_member.Healed:
        for step in range(1, len(content)):
            self.writers.setdefault((content[step], step), set()).add(worker.name)
        return super()._healed(worker, work, content, history)


class AuditAll(Mistaken):
    """The auditor also counts steps beyond the one of the `finished` record."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.oracle.audited_steps = lambda _: range(1, max(self.oracle.commits, default=0) + 1)  # type: ignore[method-assign]


# ------------------------------------------------------------------ deciding views


class NotAllReports(Mistaken):
    """The master decides the next view before all members that stay have reported."""

    class Hasty(ViewChange):
        __slots__ = ()

        def stay(
            self, core: MasterCore, liveness: Liveness, suspects: Suspects, view: View
        ) -> tuple[Stander, ...] | None:
            del suspects
            alive = [peer for peer in view.members if not is_gone(core, peer)]
            if not any(liveness.has_sealed(peer.id, view) for peer in alive):
                return None
            there = [peer for peer in alive if peer.id in liveness.seen]
            return tuple(Stander(peer, liveness.seen[peer.id].report, stayed=True) for peer in there)

    def new_master(self) -> AllReduceMaster:
        return self.master_class(self.settings, view_change=self.Hasty())


class EvictAll(Mistaken):
    """The master replaces a whole view on suspicion alone: nobody sealed it, nobody is proven dead."""

    class Rash(ViewChange):
        __slots__ = ()

        def is_left(self, *arguments: Any) -> bool:
            del arguments
            return True

        def may_leave_out(self, *arguments: Any) -> bool:
            del arguments
            return True

        def gathered(
            self, now: float, core: MasterCore, liveness: Liveness, joiners: Sequence[Stander]
        ) -> bool:
            is_first = core.journal.view is None
            return ViewChange.gathered(self, now, core, liveness, joiners) if is_first else bool(joiners)

    def new_master(self) -> AllReduceMaster:
        return self.master_class(self.settings, view_change=self.Rash())


class DrainLeavesAtOnce(Mistaken):
    """A draining member leaves though others missed its last commit."""

    class LetsGo(ViewChange):
        __slots__ = ()

        def compose(self, situation: views.Situation) -> View:
            stay = tuple(s for s in situation.standers if not s.report.draining)
            return ViewChange.compose(self, replace(situation, standers=stay or situation.standers))

    def new_master(self) -> AllReduceMaster:
        return self.master_class(self.settings, view_change=self.LetsGo())


class NoStop(Mistaken):
    """There is no stop message: only a broken connection or the trailer leads to next_view."""

    class master_class(AllReduceMaster):
        __slots__ = ()

        def _may_stop(self) -> bool:
            return False


class OldWorkMayHang(Mistaken):
    """Only work of the current view can stall: who hangs in that of an earlier one, and answers, is waited for for ever."""

    class Lenient(Liveness):
        def is_at_work(self, seen: Seen, view: View) -> bool:
            return Liveness.is_at_work(self, seen, view) and seen.beat[0] == view.id

    def new_master(self) -> AllReduceMaster:
        return self.master_class(self.settings, liveness=self.Lenient())


# ------------------------------------------------------------------ the journal


class PublishFirst(Mistaken):
    """A view is told before it is journalled."""

    class master_class(AllReduceMaster):
        __slots__ = ()

        def _append(self, now: float, record: Record, out: Out) -> Self:
            if isinstance(record, ViewRecord):
                for connection, link in self.links.items():
                    if link.registered and record.view.rank(link.member) is not None:
                        self._tell(connection, NewView(record.view), out)
            return AllReduceMaster._append(self, now, record, out)


class NoCas(Mistaken):
    """The journal is appended without the condition "its last record is the one I know"."""

    def may_append(self, number: int, record: Record) -> bool:
        del number, record
        return True


# ------------------------------------------------------------------ saved states


class ManifestEarly(Mistaken):
    """The manifest is written when the first part is there."""

    class Early(Snapshots):
        __slots__ = ()

        def completed(self, journal: Journal) -> Any:
            view = journal.view
            for cut, parts in self.parts.items():
                if view is not None and cut.view == view.id and self.writing is None and self.written is None:
                    first = next(iter(parts.values()))
                    files = tuple((part.path, part.length, part.crc) for part in parts.values())
                    where = (self.number(journal), SNAPSHOTS, cut, first.position, first.head)
                    return replace(self, writing=cut), [to_master.WriteGroupManifest(*where, files)]
            return self, ()

    def new_master(self) -> AllReduceMaster:
        return self.master_class(self.settings, snapshots=self.Early())


class PartsOfAnotherView(Mistaken):
    """Parts that were written under an earlier view count for the present one."""

    class Mixed(Snapshots):
        __slots__ = ()

        def accepts(self, *arguments: Any) -> bool:
            del arguments
            return True

        def reported(self, view: View | None, member: MemberId, saved: Saved) -> Any:
            if view is None or saved.error:
                return self, ()
            cut = replace(saved.cut, view=view.id)
            parts = {**self.parts.get(cut, {}), member: replace(saved, cut=cut)}
            return replace(self, parts={**self.parts, cut: parts}), ()

        def in_view(self) -> Any:
            return replace(self, writing=None, written=None), ()

        def completed(self, journal: Journal) -> Any:
            view = journal.view
            if view is None or self.writing is not None or self.written is not None:
                return self, ()
            for cut, parts in self.parts.items():
                now = replace(cut, view=view.id)
                if len(parts) >= len(view.members):
                    in_order = sorted(parts.values(), key=lambda part: part.first)
                    first = in_order[0]
                    files = tuple((part.path, part.length, part.crc) for part in in_order)
                    where = (self.number(journal), SNAPSHOTS, now, first.position, first.head)
                    rest = {one: said for one, said in self.parts.items() if one != cut}
                    after = replace(self, parts={**rest, now: parts}, writing=now)
                    return after, [to_master.WriteGroupManifest(*where, files)]
            return self, ()

    def new_master(self) -> AllReduceMaster:
        return self.master_class(self.settings, snapshots=self.Mixed())


class UnfencedSnapshot(Mistaken):
    """A state whose parts were complete under an earlier view is journalled under the present one."""

    class Unfenced(Snapshots):
        __slots__ = ()

        def in_view(self) -> Any:
            return self, ()

        def answer(self, journal: Journal, saved: Saved) -> str | None:
            del journal, saved
            return None

        def record(self, journal: Journal, path: Path) -> SnapshotRecord | None:
            cut = self.written
            if cut is None:
                return None
            position = next(iter(self.parts[cut].values())).position
            return SnapshotRecord(cut.view, cut.state, position, str(path), self.number(journal), cut.passed)

    def new_master(self) -> AllReduceMaster:
        return self.master_class(self.settings, snapshots=self.Unfenced())


class GivenUpPublished(Mistaken):
    """A checkpoint gets its name when the manifest is written, before the record."""

    def complete(self, cut: Cut, told: to_master.WriteGroupManifest) -> None:
        super().complete(cut, told)
        self.named[str(folder_of(SNAPSHOTS, told.number) / NAME)] = cut


class CheckpointNamedOnce(Mistaken):
    """Only the master that has journalled a checkpoint gives it its name."""

    def name_last(self) -> None:
        pass


class FinishBeforeCheckpoint(Mistaken):
    """A job does not wait for its last checkpoint."""

    class Hasty(Snapshots):
        __slots__ = ()

        def is_kept(self, journal: Journal) -> bool:
            del journal
            return True

    def new_master(self) -> AllReduceMaster:
        return self.master_class(self.settings, snapshots=self.Hasty())


class BeginsAnew(Mistaken):
    """The first view is made before it is journalled where the job continues."""

    class master_class(AllReduceMaster):
        __slots__ = ()

        def _wanted_resumption(self) -> Record | None:
            return None


# ------------------------------------------------------------------ the end


class UnfencedFinish(Mistaken):
    """An export of a member outside the current view ends the job."""

    class master_class(AllReduceMaster):
        __slots__ = ()

        def _accepts_export(self, member: MemberId, exported: Exported) -> bool:
            del member, exported
            return True

        def _may_finish(self, exported: Exported) -> bool:
            del exported
            return True

        def _after_view(self, *arguments: Any) -> Self:
            return replace(AllReduceMaster._after_view(self, *arguments), exported=self.exported)


class FinishOnReport(Mistaken):
    """The first member that reports the last step ends the job, before the export."""

    class master_class(AllReduceMaster):
        __slots__ = ()

        def _wanted_finish(self) -> Record | None:
            view = self.view
            for peer in () if view is None else view.members:
                seen = self.liveness.seen.get(peer.id)
                if view is None or seen is None or not self.liveness.has_sealed(peer.id, view):
                    continue
                state, position = seen.report.state, seen.report.position
                if state and position and self.schedule and self.schedule.ended(position, state.step):
                    return FinishedRecord(view.id, state, f"result-{state.step}-{state.view}-{view.id + 1}")
            return AllReduceMaster._wanted_finish(self)


class StopInMemory(Mistaken):
    """A stop is acknowledged, but stands in the master's memory only."""

    class StopsUnwritten(Requests):
        __slots__ = ()

        def with_stop(
            self, journal: Journal, request: int, reason: str
        ) -> tuple[Requests, list[to_master.Reply]]:
            after, said = Requests.with_stop(self, journal, request, reason)
            if after.waiting:
                said = [to_master.Reply(request, "the job ends at the next step boundary")]
            return replace(after, waiting=()), said

        def stop_record(self, journal: Journal) -> None:
            del journal

    class EndsWhenAsked(ViewChange):
        __slots__ = ()

        def ends_now(self, core: MasterCore) -> bool:
            return core.requests.stop is not None

    class PendingWhenAsked(ViewEnd):
        __slots__ = ()

        def pending_reason(self, core: MasterCore, liveness: Liveness, view: View) -> str | None:
            asked = core.requests.stop is not None and not view.final
            return "stop" if asked else ViewEnd.pending_reason(self, core, liveness, view)

    def new_master(self) -> AllReduceMaster:
        return self.master_class(
            self.settings,
            requests=self.StopsUnwritten(),
            view_change=self.EndsWhenAsked(),
            view_end=self.PendingWhenAsked(),
        )

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        # what the client takes for granted from here on, wherever it stands
        self.oracle.replied = lambda: setattr(self.oracle, "stopping", True)  # type: ignore[method-assign]


class StopBesideJournal(Mistaken):
    """The stop request is kept outside the journal's sequence: appending a view does not notice it."""

    class master_class(AllReduceMaster):
        __slots__ = ()

        def _appended(self, now: float, before: Journal, record: Record, out: Out) -> Self:
            master = AllReduceMaster._appended(self, now, before, record, out)
            if isinstance(record, StoppingRecord):
                return replace(master, journal=replace(master.journal, length=master.journal.length - 1))
            return master

    def __init__(self, *arguments: Any) -> None:
        self.beside: list[Record] = []
        super().__init__(*arguments)

    def append(self, master: MasterProcess, number: int, record: Record) -> None:
        if not isinstance(record, StoppingRecord):
            super().append(master, number, record)
            return
        self.oracle.appended(record)
        self.beside.append(record)
        self.after(
            self.delay("disk"),
            "the stop is kept",
            lambda: self.feed_master(master, to_master.Appended(record)),
        )

    def read_journal(self) -> to_master.JournalRead:
        return to_master.JournalRead((*self.journal, *self.beside), len(self.journal))


class StopNotFinal(Mistaken):
    """The view after `stopping` is an ordinary one."""

    class NeverEnds(ViewChange):
        __slots__ = ()

        def ends_now(self, core: MasterCore) -> bool:
            del core
            return False

    def new_master(self) -> AllReduceMaster:
        return self.master_class(self.settings, view_change=self.NeverEnds())


class StopOnce(Mistaken):
    """Only the first view after `stopping` is final; when it breaks, training continues."""

    class EndsOnce(ViewChange):
        __slots__ = ()

        def ends_now(self, core: MasterCore) -> bool:
            view = core.journal.view
            return core.journal.stopping is not None and not (view is not None and view.final)

    def new_master(self) -> AllReduceMaster:
        return self.master_class(self.settings, view_change=self.EndsOnce())


class ReleaseEarly(Mistaken):
    """After a stop members are released as soon as they have sealed."""

    class master_class(AllReduceMaster):
        __slots__ = ()

        def _verdict(self, link: Link) -> Any:
            seen, view = self.liveness.seen.get(link.member), self.view
            if (
                view is not None
                and seen is not None
                and self.journal.stopping is not None
                and self.journal.terminal is None
            ):
                peer: Peer = seen.peer
                if view.rank(peer.id) is not None and self.liveness.has_sealed(peer.id, view):
                    return Released("stopping")
            return AllReduceMaster._verdict(self, link)


class ReleaseByWord(Mistaken):
    """A draining member of a final view is released by word, not by a view that leaves it out."""

    class HasNoWayOut(ViewEnd):
        __slots__ = ()

        def may_leave_final(self, *arguments: Any) -> bool:
            del arguments
            return False

    def new_master(self) -> AllReduceMaster:
        return self.master_class(self.settings, view_end=self.HasNoWayOut())

    class master_class(AllReduceMaster):
        __slots__ = ()

        def _verdict(self, link: Link) -> Any:
            verdict, view = AllReduceMaster._verdict(self, link), self.view
            if verdict is not None or view is None or not view.final or not link.registered:
                return verdict
            if view.rank(link.member) is None or not self.liveness.seen[link.member].report.draining:
                return None
            revoke_task = {other.member for other in self.links.values() if other.verdict}
            others = [
                peer for rank, peer in enumerate(view.members)
                if peer.id != link.member and peer.id not in revoke_task and not is_gone(self, peer) and view.sources[rank] is None
            ]  # fmt: skip
            return Released("drained") if others else None


class OldExportAfterStop(Mistaken):
    """After `stopping` an export counts, whatever view it was made in."""

    class master_class(AllReduceMaster):
        __slots__ = ()

        def _accepts_export(self, member: MemberId, exported: Exported) -> bool:
            return self.view_change.ends_now(self) or AllReduceMaster._accepts_export(self, member, exported)

        def _may_finish(self, exported: Exported) -> bool:
            return self.view_change.ends_now(self) or AllReduceMaster._may_finish(self, exported)


class FailedAfterFinished(Mistaken):
    """A report of a program error is appended although the master knows that the job is finished."""

    class master_class(AllReduceMaster):
        __slots__ = ()

        def _next_record(self, now: float) -> Record | None:
            if isinstance(self.journal.terminal, FinishedRecord) and self.appending is None and self.failures:
                return FailedRecord("late")
            return AllReduceMaster._next_record(self, now)


class EndNoCas(Mistaken):
    """`finished` and `failed` are appended without the compare-and-set."""

    def may_append(self, number: int, record: Record) -> bool:
        return isinstance(record, FinishedRecord | FailedRecord) or super().may_append(number, record)


class RestartIgnoresFailed(Mistaken):
    """A restarted master does not look for `failed`."""

    def read_journal(self) -> to_master.JournalRead:
        whole = super().read_journal()
        return replace(whole, records=tuple(r for r in whole.records if not isinstance(r, FailedRecord)))


class CrashIsFailure(Mistaken):
    """A dead member counts as a program error."""

    class master_class(AllReduceMaster):
        __slots__ = ()

        def _wanted_failure(self) -> Record | None:
            view = self.view
            for peer in () if view is None else view.members:
                if "SIG" in self.gone.get(peer.name, "") or self.gone.get(peer.name) == "dead":
                    return FailedRecord(f"{peer.name} died")
            return AllReduceMaster._wanted_failure(self)


class VerdictToldFirst(Mistaken):
    """`failed` is told before it is journalled."""

    class master_class(AllReduceMaster):
        __slots__ = ()

        def _append(self, now: float, record: Record, out: Out) -> Self:
            if isinstance(record, FailedRecord):
                for connection in self.links:
                    self._tell(connection, Failed(record.reason), out)
            return AllReduceMaster._append(self, now, record, out)


class RenameOnReport(Mistaken):
    """The result is moved to its final path when it is reported, before `finished` is appended."""

    class master_class(AllReduceMaster):
        __slots__ = ()

        def _hear(self, now: float, connection: int, link: Link, message: MemberMessage, out: Out) -> Self:
            if isinstance(message, Exported) and self._accepts_export(link.member, message):
                out.append(to_master.Publish(message.path))
            return AllReduceMaster._hear(self, now, connection, link, message, out)


class RenameOnce(Mistaken):
    """Only the master that appended `finished` moves the result."""

    class master_class(AllReduceMaster):
        __slots__ = ()

        def _open(self, now: float, journal: Journal, out: Out) -> Self:
            master = AllReduceMaster._open(self, now, journal, out)
            out[:] = [instruction for instruction in out if not isinstance(instruction, to_master.Publish)]
            return replace(master, published=True)


# ------------------------------------------------------------------ gates


class GateIgnored(Mistaken):
    """A member computes, contributes and commits although the gate of its state is closed."""

    class member_class(Member):
        __slots__ = ()

        def _is_closed(self) -> bool:
            return False


class GateSkippedByHealee(Mistaken):
    """A member that heals at a gate takes it for passed."""

    class member_class(Member):
        __slots__ = ()

        def _healed(self, event: to_member.Healed, out: Any) -> Member:
            return Member._healed(self, replace(event, passed=True), out)


class ZerosAtGate(Mistaken):
    """A joiner gives its zeros to a step that begins at a gate, and then waits for those who wait for it to pass."""

    class member_class(Member):
        __slots__ = ()

        def _may_contribute(self, view: View) -> bool:
            return Member._may_contribute(self, view) if self.whole else not self._owned(view)


class MetricsToldFirst(Mistaken):
    """Metrics are told before they are journalled."""

    class Hasty(Gates):
        __slots__ = ()

        def values_of(self, journal: Journal, state: StateId) -> MetricValues | None:
            evaluated = None if self.evaluation is None else self.evaluation.evaluated
            if evaluated is not None and evaluated.state == state:
                return evaluated.values
            return Gates.values_of(self, journal, state)

    def new_master(self) -> AllReduceMaster:
        return self.master_class(self.settings, gates=self.Hasty())


class MetricsNoCas(Mistaken):
    """Metrics are appended beside the journal's sequence."""

    def may_append(self, number: int, record: Record) -> bool:
        return isinstance(record, EvaluatedRecord) or super().may_append(number, record)


class MetricsByStep(Mistaken):
    """Metrics are known by the step, not by the state."""

    class ByStep(Gates):
        __slots__ = ()

        def values_of(self, journal: Journal, state: StateId) -> MetricValues | None:
            records = journal.evaluated.values()
            return next((record.values for record in records if record.state.step == state.step), None)

    def new_master(self) -> AllReduceMaster:
        return self.master_class(self.settings, gates=self.ByStep())


class MetricsAfterStop(Mistaken):
    """Metrics are journalled although the job is stopping."""

    class Late(Gates):
        __slots__ = ()

        def may_record(self, journal: Journal, state: StateId) -> bool:
            return state not in journal.evaluated

    def new_master(self) -> AllReduceMaster:
        return self.master_class(self.settings, gates=self.Late())


class ResultsByStep(Mistaken):
    """Results are known by the step, not by the state."""

    class ByStep(Gates):
        __slots__ = ()

        def in_view(self, view: View) -> Gates:
            del view
            evaluation = None if self.evaluation is None else self.evaluation.free_all()
            return replace(self, at=(), evaluation=evaluation)

        def arrived(self, now: float, journal: Journal, member: MemberId, said: AtGate, tasks: int) -> Gates:
            gates = Gates.arrived(self, now, journal, member, said, tasks)
            evaluation = gates.evaluation
            if evaluation is None or evaluation.state.step != said.state.step:
                return gates
            return replace(gates, evaluation=replace(evaluation, state=said.state))

        def _is_of(self, view: View | None, member: MemberId, state: StateId) -> bool:
            return self.evaluation is not None and self.evaluation.state.step == state.step

    def new_master(self) -> AllReduceMaster:
        return self.master_class(self.settings, gates=self.ByStep())


class ResultsSaidOnce(Mistaken):
    """A member does not repeat its results to a master that began later."""

    class member_class(Member):
        __slots__ = ()

        def _say_at_gate(self, view: View, out: Any) -> None:
            assert self.state is not None
            self._send(AtGate(view.id, self.state, self.metrics), out)

        def _lease(self, lease: TaskLeased, out: Any) -> Member:
            return self if self.gate.has(lease.task) else Member._lease(self, lease, out)


class ExportBeforeGate(Mistaken):
    """The result is written before the gate of its state has been passed."""

    class member_class(Member):
        __slots__ = ()

        def _waits_to_export(self) -> bool:
            return False


class LocalMetrics(Mistaken):
    """Every member makes the metrics of the summed results for itself."""

    def carry_out(self, worker: Worker, instruction: Any) -> None:
        if isinstance(instruction, to_member.PassGate) and instruction.values is not None:
            name, value = instruction.values[0]
            own = value + len(worker.name) + self.workers.index(worker)
            instruction = replace(instruction, values=((name, own),))
        super().carry_out(worker, instruction)


class MetricsNotHealed(Mistaken):
    """What callbacks have had is no part of a state that is sent or saved."""

    def healed_history(self, history: History) -> History:
        del history
        return ()


MISTAKES: tuple[type[World], ...] = (
    NoSeal, NotAllReports, EvictAll, RingOfTheLiving, PublishFirst, NoCas, NoFloor, KeepAccumulator, StaleAccumulator,
    RetryInView, DonorGoesOn, KeepStateAfterEviction, UnfencedFinish, FinishOnReport,
    AuditByCommitters, AuditHealed, DrainLeavesAtOnce, NoStop, OldWorkMayHang, StopInMemory, StopBesideJournal, StopNotFinal, StopOnce,
    ReleaseEarly, ReleaseByWord, OldExportAfterStop, AuditAll, FailedAfterFinished, EndNoCas, RestartIgnoresFailed,
    CrashIsFailure, AbortIsFailure, VerdictToldFirst, RenameOnReport, RenameOnce,
    GateIgnored, GateSkippedByHealee, ZerosAtGate, MetricsToldFirst, MetricsNoCas, MetricsByStep, MetricsAfterStop, ResultsByStep,
    ResultsSaidOnce, ExportBeforeGate, LocalMetrics, MetricsNotHealed,
    ManifestEarly, PartsOfAnotherView, UnfencedSnapshot, GivenUpPublished, CheckpointNamedOnce, FinishBeforeCheckpoint, BeginsAnew,
)  # fmt: skip


@dataclass(frozen=True)
class Focus:
    """Which plans make a mistake likely to show: the most of each fault; the seed chooses how many."""

    most: dict[str, int]
    workers: tuple[int, ...] = (2, 3)
    joins: int = 1
    spans: tuple[int, ...] = (60, 120, 200)
    pace: tuple[tuple[str, float], ...] = ()
    gates: tuple[int, ...] = (0,)
    lasting: bool = False

    def plan(self, seed: int) -> Plan:
        rng = random.Random(f"focus {seed}")
        plan = Plan(
            workers=rng.choice(self.workers),
            joins=rng.randint(0, self.joins),
            lanes=rng.choice((None, 2, 3)),
            tasks=rng.choice((3, 4)),
            chunks=rng.choice((1, 2, 3)),
            checkpoint_steps=1,
            span=rng.choice(self.spans),
            pace=self.pace,
        )
        plan = replace(plan, **{name: rng.randint(min(1, most), most) for name, most in self.most.items()})
        return replace(plan, gates=rng.choice(self.gates), lasting=self.lasting)


_SLOW_RINGS = (("ring", 20.0), ("message", 0.3), ("wait status", 0.3), ("disk", 0.3))
_SLOW_STEPS = (("compute", 20.0), ("start", 0.3))
_STOP = Focus({"stops": 1, "kills": 2, "pauses": 1, "master_kills": 2}, spans=(40, 80))
_END = Focus({"errors_at_end": 1, "second_masters": 1, "master_kills_at_end": 1})
FOCUS: dict[str, Focus] = {
    "NoSeal": Focus({"kills": 4}, workers=(3, 4), pace=_SLOW_RINGS),
    "EvictAll": Focus({"partitions": 3}, workers=(1,), joins=2, spans=(40, 80), pace=_SLOW_STEPS),
    "NoCas": Focus({"second_masters": 2, "kills": 2, "drains": 1, "disconnects": 2}),
    "NoFloor": Focus({"kills": 4, "glitches": 3}, workers=(3, 4), pace=_SLOW_STEPS),
    "RetryInView": Focus({"glitches": 3}),
    "KeepStateAfterEviction": Focus({"partitions": 3, "kills": 2}, spans=(60, 120), pace=_SLOW_STEPS),
    "ManifestEarly": Focus({"part_faults": 1}),
    "PartsOfAnotherView": Focus({"part_faults": 3, "kills": 2}),
    "UnfencedSnapshot": Focus({"part_faults": 3, "kills": 3}, workers=(2,), pace=(("file", 4.0),)),
    "GivenUpPublished": Focus({"part_faults": 3, "kills": 2}),
    "CheckpointNamedOnce": Focus({"part_faults": 2, "master_kills": 3, "kills": 2}),
    "FinishBeforeCheckpoint": Focus({}, lasting=True),
    "BeginsAnew": Focus({"kills": 1, "resumed": 3}),
    "UnfencedFinish": Focus({"export_faults": 2}),
    "DrainLeavesAtOnce": Focus({"drains": 2, "glitches": 3}, workers=(3,)),
    "OldWorkMayHang": Focus({"stuck": 1, "kills": 2}, workers=(3,)),
    "StopInMemory": _STOP,
    "StopBesideJournal": Focus(
        {"stops": 1, "second_masters": 2, "kills": 2, "disconnects": 2}, spans=(60, 100)
    ),
    "StopNotFinal": _STOP,
    "StopOnce": _STOP,
    "ReleaseEarly": Focus({"stops": 1}, spans=(40, 80)),
    "ReleaseByWord": Focus(
        {"stops": 1, "final_drains": 2, "second_masters": 2, "disconnects": 3}, workers=(2,), spans=(60, 100)
    ),
    "OldExportAfterStop": Focus({"stops": 1, "export_faults": 3}, spans=(60, 100)),
    "AuditAll": _STOP,
    "FailedAfterFinished": _END,
    "EndNoCas": _END,
    "RestartIgnoresFailed": Focus({"errors": 1, "master_kills_at_end": 1}, spans=(60,)),
    "VerdictToldFirst": Focus({"errors": 2}),
    "GateIgnored": Focus({}, gates=(1, 2)),
    "GateSkippedByHealee": Focus({"kills": 1}, joins=2, gates=(1,)),
    "ZerosAtGate": Focus({}, joins=2, gates=(1,)),
    "MetricsToldFirst": Focus({"master_kills": 1}, gates=(1,)),
    "MetricsNoCas": Focus({"second_masters": 2, "gate_faults": 2}, gates=(1,)),
    "MetricsByStep": Focus({"kills": 3, "glitches": 3}, workers=(3, 4), gates=(1,), pace=_SLOW_RINGS),
    "MetricsAfterStop": Focus({"stops": 1}, spans=(40, 80), gates=(1, 2)),
    "ResultsByStep": Focus({"kills": 4, "glitches": 3}, workers=(3, 4), gates=(1,), pace=_SLOW_RINGS),
    "ResultsSaidOnce": Focus({"master_kills": 3, "gate_faults": 2}, gates=(1,)),
    "ExportBeforeGate": Focus({}, gates=(2,)),
    "LocalMetrics": Focus({}, gates=(2,)),
    "MetricsNotHealed": Focus({"kills": 1}, joins=2, gates=(1,)),
}


def focus_of(world: type[World]) -> Focus:
    """Return where to look for a mistake."""
    return FOCUS.get(world.__name__, Focus({"kills": 3, "pauses": 2, "glitches": 2, "master_kills": 1}))


def find(world: type[World], schedules: int) -> tuple[int, str] | None:
    """Return the seed of the first schedule that shows the mistake, and how; None if none of them does."""
    focus = focus_of(world)
    for seed in range(schedules):
        try:
            world(seed, focus.plan(seed)).run()
        except Violation as violation:
            return seed, str(violation)
    return None
