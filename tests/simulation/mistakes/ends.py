"""Mistakes at a job's end."""

from __future__ import annotations

from typing import Any, Self

from elasticdl.control.protocol.frozen import replace
from elasticdl.control.protocol.messages import (
    Exported,
    Failed,
    MemberMessage,
    Released,
)
from elasticdl.control.protocol.view import MemberId, Peer, View
from elasticdl.master.allreduce.liveness import Liveness, is_gone
from elasticdl.master.allreduce.machine import AllReduceMaster
from elasticdl.master.allreduce.seen import Link
from elasticdl.master.allreduce.viewchange import ViewChange
from elasticdl.master.allreduce.viewend import ViewEnd
from elasticdl.master.core import events as to_master
from elasticdl.master.core.machine import MasterCore, Out
from elasticdl.master.core.records import (
    FailedRecord,
    FinishedRecord,
    Journal,
    Record,
    StoppingRecord,
)
from elasticdl.master.core.requests import Requests
from tests.simulation.mistakes.mistaken import Mistaken
from tests.simulation.processes import MasterProcess


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

        def _wanted_failure(self, now: float) -> Record | None:
            view = self.view
            for peer in () if view is None else view.members:
                if "SIG" in self.gone.get(peer.name, "") or self.gone.get(peer.name) == "dead":
                    return FailedRecord(f"{peer.name} died")
            return AllReduceMaster._wanted_failure(self, now)


class VerdictToldFirst(Mistaken):
    """`failed` is sent before it is journalled."""

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
