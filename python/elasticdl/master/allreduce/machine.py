"""The synchronous master as a pure state machine: time and events in, instructions out (`master/core/events.py` has both vocabularies).

It takes what happens, and says what is journalled and what each connection is sent. When a view ends and who may be in the next one is
decided in `viewchange.py`, who is there and who is suspected in `groupstate.py`; what every master does is in `master/core/machine.py`.
Rule numbers are those of the note on the protocol.
"""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from typing import Any, Self

from elasticdl.control.protocol.frozen import replace
from elasticdl.control.protocol.messages import (
    Acknowledged,
    Evicted,
    Exported,
    Failed,
    Finished,
    FoundShards,
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
    Welcome,
    saved_as,
)
from elasticdl.control.protocol.status import EventKind
from elasticdl.control.protocol.view import MemberId, Peer, View, ViewId
from elasticdl.data.plan.shard import Shard
from elasticdl.master.allreduce import claims
from elasticdl.master.allreduce.groupstate import Common, Incident, Link, Seen
from elasticdl.master.allreduce.viewchange import ViewChange
from elasticdl.master.allreduce.views import Stander
from elasticdl.master.core.events import (
    Announce,
    Beat,
    Kill,
)
from elasticdl.master.core.machine import Out
from elasticdl.master.core.records import (
    FailedRecord,
    FinishedRecord,
    Journal,
    Record,
    SnapshotRecord,
    ViewRecord,
)
from elasticdl.master.core.witnesses import SUSPICION, Accusation, mutual_suspicions


@dataclass(frozen=True)  # no lanes: see elasticdl.control.protocol.frozen
class AllReduceMaster(ViewChange):
    """One master: events in, instructions out."""

    # ------------------------------------------------------------------ the transition

    def _connect(self, connection: int, member: MemberId, name: str) -> Self:
        return replace(self, links={**self.links, connection: Link(member=member, name=name)})

    def _act(self, now: float, out: Out) -> Self:
        return self._carry_out_kills(now, out)._demand_proof(now, out)

    # ------------------------------------------------------------------ the journal

    def _open(self, now: float, journal: Journal, out: Out) -> Self:
        master = super()._open(now, journal, out)
        # Who hung before this master began may hang still; it has the time that it would have had.
        return replace(master, view_at=now, pending_kills=dict.fromkeys(journal.evicted, now))

    def _with_data(self, shards: tuple[Shard, ...]) -> Self:
        return replace(self, schedule=self.settings.plan(shards))

    def _appended(self, now: float, before: Journal, record: Record, out: Out) -> Self:
        match record:
            case ViewRecord(view):
                return self._after_view(now, before.view, view, out)
            case SnapshotRecord():
                text = f"snapshot of step {record.state.step} at {record.path}"
                out.append(Announce(EventKind.SNAPSHOT, "", record.view, record.state.step, text))
                return self._acknowledge_saved(record, out)
            case _:
                return super()._appended(now, before, record, out)

    def _wanted_own(self, now: float) -> Record | None:
        return self._wanted_snapshot() or self._wanted_view(now)

    def _waits(self) -> bool:
        return bool(self.missing)

    def _contradiction(self, journal: Journal) -> str | None:
        if journal.view is None:
            return None
        if journal.shards is None:
            return f"view {journal.view.id} is of no data"
        return claims.contradiction(journal.view, self.settings.plan(journal.shards))

    # ------------------------------------------------------------------ what comes in

    def _impossible(self, link: Link, message: MemberMessage) -> str | None:
        view, policy = self.view, self.settings.policy_lanes
        # At no time were there more members than ever stood in a view.
        most = (
            0 if view is None else max(view.position.lanes, view.wave_lanes, policy(len(self.journal.known)))
        )
        known = claims.Known(link.member, view, self.schedule, most, self.settings.snapshots)
        return claims.impossible(known, message)

    def _disconnect(self, now: float, connection: int) -> Self:
        links = dict(self.links)
        link = links.pop(connection, None)
        if link is None:
            return self
        master = replace(self, links=links)
        seen = self.seen.get(link.member)
        if seen is None or seen.connection != connection:
            return master
        return master._note(replace(seen, connection=None, cut_at=now))

    def _note(self, seen: Seen) -> Self:
        return replace(self, seen={**self.seen, seen.peer.id: seen})

    def _link(self, connection: int, **changes: Any) -> Self:
        return replace(self, links={**self.links, connection: replace(self.links[connection], **changes)})

    def _hear(self, now: float, connection: int, link: Link, message: MemberMessage, out: Out) -> Self:
        if isinstance(message, Register | NextView) and self._is_old(connection, link):
            return self
        match message:
            case Register():
                return self._register(now, connection, message)
            case NextView(report):
                seen = self.seen.get(link.member)
                return (
                    self
                    if seen is None
                    else self._note(replace(seen, report=report))._notice_seal(now, seen.peer, report)
                )
            case Lost():
                return self._accuse(now, link, message)
            case Progress():
                return self._advance(now, link, message, out)
            case Note(kind, view, step, text, seconds):
                out.append(Announce(EventKind(kind), link.name, view, step, text, seconds))
                return self
            case Saved():
                return self._take_saved(connection, link, message, out)
            case Exported():
                return self._take_exported(link, message)
            case StopJob(reason):
                return self._hear_stop(connection, reason, out)
            case ProgramFailed():
                return self._take_failure(connection, link, message, out)
            case FoundShards(shards):
                return self._find(shards)
        return self  # said by those whom other masters serve

    def _is_old(self, connection: int, link: Link) -> bool:
        """Tell whether a member has registered on a later connection: what still comes on this one was said before."""
        seen = self.seen.get(link.member)
        return seen is not None and seen.connection is not None and connection < seen.connection

    def _register(self, now: float, connection: int, register: Register) -> Self:
        peer = Peer(register.member, register.name, register.address)
        known = self.seen.get(register.member)
        seen = Seen(peer, register.report, connection, now) if known is None else replace(
            known, peer=peer, report=register.report, connection=connection, cut_at=None
        )  # fmt: skip
        master = self._note(seen)._link(connection, registered=True)
        return master._notice_seal(now, peer, register.report)

    def _notice_seal(self, now: float, peer: Peer, report: Report) -> Self:
        view = self.view
        if (
            view is None
            or view.rank(peer.id) is None
            or report.sealed < view.id
            or self.sealed_at is not None
        ):
            return self
        return replace(self, sealed_at=now)

    def _accuse(self, now: float, link: Link, lost: Lost) -> Self:
        view = self.view
        if view is None or lost.current != view.id or view.rank(link.member) is None:
            return self
        master = replace(self, aborted=True)
        if lost.accused is None or view.rank(lost.accused) is None:
            return master
        accused_at = {lost.accused: now, **self.accused_at}
        return replace(
            master,
            accusations=(*self.accusations, Accusation(link.member, lost.accused)),
            accused_at=accused_at,
        )

    def _beat(self, now: float, beat: Beat) -> Self:
        seen = self.seen.get(beat.member)
        if seen is None:
            return self
        said = (beat.view, beat.step, beat.progress)
        moved_at = seen.moved_at if said == seen.beat else now
        master = self._note(replace(seen, beat_at=now - beat.age, beat=said, moved_at=moved_at))
        return master._see_step(now - beat.age, ViewId(beat.view), beat.step)

    def _see_step(self, at: float, view: ViewId, step: int) -> Self:
        """Take what somebody says of the step under way in the current view."""
        common = self.common
        if self.view is None or view != self.view.id:
            return self
        if common is None or common.view != view:
            return replace(self, common=Common(view, step, at, -math.inf))
        if step <= common.step:
            return self
        # The step before this one is committed, so everybody contributed to it, after it had been begun.
        return replace(self, common=Common(view, step, at, common.begun_at))

    def _process_ended(self, now: float, name: str, cause: str, out: Out) -> Self:
        if name in self.gone:
            return self
        pending_kills = {other: at for other, at in self.pending_kills.items() if other != name}
        master = replace(self, gone={**self.gone, name: cause}, pending_kills=pending_kills)
        return master._notice_incident(now, self.view, name, cause)

    def _notice_incident(self, now: float, view: View | None, worker: str, cause: str) -> Self:
        """Remember when the first sign of a loss came, to say how long the group took to recover."""
        peer = None if view is None else next((peer for peer in view.members if peer.name == worker), None)
        if view is None or peer is None or self.journal.terminal is not None or self._has_drained(peer, view):
            return self
        if any(incident.worker == worker and incident.view == view.id for incident in self.incident):
            return self
        since = now if self.sealed_at is None else min(now, self.sealed_at)
        return replace(self, incident=(*self.incident, Incident(since, view.id, worker, cause)))

    def _advance(self, now: float, link: Link, progress: Progress, out: Out) -> Self:
        view = self.view
        if view is None or progress.current != view.id:
            return self
        seen = self.seen.get(link.member)
        master = self
        if seen is not None and seen.report.sealed < view.id:
            held = replace(seen.report, current=view.id, state=progress.state, position=progress.position)
            master = self._note(replace(seen, report=held))
        return master._count_progress(now, link, view, progress, out)

    def _count_progress(self, now: float, link: Link, view: View, progress: Progress, out: Out) -> Self:
        return self._see_step(now, view.id, progress.state.step + 1)._count_step(
            now, link, view, progress, out
        )

    def _count_step(self, now: float, link: Link, view: View, progress: Progress, out: Out) -> Self:
        before = self.progress
        if (
            before is not None
            and progress.state.step < before.state.step
            and progress.current == before.current
        ):
            return self
        if progress.state.view != view.id or progress.state.step <= view.base.step:
            return self  # a healee: it holds the base
        paces = self.paces
        if (
            before is not None
            and progress.state.step == before.state.step + 1
            and progress.current == before.current
        ):
            paces = (*paces, now - self.progress_at)[-15:]
        loss = "" if progress.loss is None else f", loss {progress.loss:z.4g}"
        out.append(
            Announce(
                EventKind.STEP, link.name, view.id, progress.state.step, f"step {progress.state.step}{loss}"
            )
        )
        left: list[Incident] = []
        for incident in self.incident:
            if incident.view >= view.id:
                left.append(incident)
                continue
            seconds = now - incident.since
            cause = self.gone.get(
                incident.worker, incident.cause
            )  # the proof may have come after the suspicion
            text = f"step {progress.state.step} is committed {seconds:.2f} s after {incident.worker} was lost ({cause})"
            out.append(
                Announce(
                    EventKind.RECOVERED, incident.worker, view.id, progress.state.step, text, seconds, cause
                )
            )
        return replace(self, progress=progress, progress_at=now, paces=paces, incident=tuple(left))

    # ------------------------------------------------------------------ snapshots

    def _take_saved(self, connection: int, link: Link, saved: Saved, out: Out) -> Self:
        if self._is_journalled(saved):
            self._tell(connection, Acknowledged(saved_as(saved.state)), out)
            return self
        return (
            replace(self, saved=saved, saved_by=link.member)
            if self._accepts_snapshot(link.member, saved)
            else self
        )

    def _accepts_snapshot(self, member: MemberId, saved: Saved) -> bool:
        """D6: only from a member of the current view, reporting under its id."""
        view = self.view
        return view is not None and saved.view == view.id and view.rank(member) is not None

    def _is_journalled(self, saved: Saved) -> bool:
        """Tell whether this snapshot, or a later one, is in the journal."""
        last = self.journal.snapshot
        return last is not None and last.state.step >= saved.state.step

    def _wanted_snapshot(self) -> Record | None:
        saved = self.saved
        if (
            saved is None
            or self._is_journalled(saved)
            or self.view is None
            or not self._is_current(saved.view)
        ):
            return None
        return SnapshotRecord(saved.view, saved.state, saved.position, saved.path)

    def _is_current(self, view: ViewId) -> bool:
        return self.view is not None and view == self.view.id

    def _acknowledge_saved(self, record: SnapshotRecord, out: Out) -> Self:
        seen = None if self.saved_by is None else self.seen.get(self.saved_by)
        if seen is not None and seen.connection is not None:
            self._tell(seen.connection, Acknowledged(saved_as(record.state)), out)
        later = self.saved is not None and self.saved.state != record.state
        return self if later else replace(self, saved=None, saved_by=None)

    # ------------------------------------------------------------------ the end

    def _take_exported(self, link: Link, exported: Exported) -> Self:
        return replace(self, exported=exported) if self._accepts_export(link.member, exported) else self

    def _accepts_export(self, member: MemberId, exported: Exported) -> bool:
        """D7: only the exporter of the current view, and only that view's base."""
        view = self.view
        if view is None or not view.final or view.exporter is None:
            return False
        exporter = view.members[view.exporter].id
        return exported.view == view.id and exported.state == view.base and exporter == member

    def _may_finish(self, exported: Exported) -> bool:
        """D7: the view may have changed since the report came."""
        return self._is_current(exported.view)

    def _take_failure(self, connection: int, link: Link, error: ProgramFailed, out: Out) -> Self:
        """D10: note a program error; one of an evicted member counts for nothing."""
        if self._is_evicted(link.member):
            self._tell(connection, Evicted("this worker was left out of the group; a new life may join"), out)
            return self
        return self._note_failure(link, error)

    def _has_committed(self) -> bool:
        reports = (seen.report.state for seen in self.seen.values())
        view = self.view
        return (
            (self.progress is not None and self.progress.state.step > 0)
            or (view is not None and view.base.step > 0)
            or any(state is not None and state.step > 0 for state in reports)
            or any(failure.error.step > 0 for failure in self.failures.values())
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
        master = self
        old = () if before is None else before.members
        kept = {peer.id for peer in view.members}
        stood = {peer.id for peer in old}
        pending_kills = dict(self.pending_kills)
        names = ", ".join(peer.name for peer in view.members)
        out.append(
            Announce(EventKind.VIEW, "", view.id, view.base.step, f"view {view.id}: {names} ({view.reason})")
        )
        for peer in old:
            if peer.id in kept:
                continue
            if self._has_drained(peer, before):
                out.append(
                    Announce(
                        EventKind.DRAINED,
                        peer.name,
                        view.id,
                        view.base.step,
                        f"{peer.name} has left at a step boundary",
                    )
                )
            elif self._is_gone(peer):
                cause = self.gone.get(peer.name, "a program error")
                out.append(
                    Announce(
                        EventKind.LOST,
                        peer.name,
                        view.id,
                        view.base.step,
                        f"{peer.name} is lost: {cause}",
                        None,
                        cause,
                    )
                )
            else:
                # The view's reason names everybody who leaves; this event is about one of them.
                parts = [part for part in view.reason.split("; ") if part.startswith(f"{peer.name} ")]
                why = parts[0] if parts else f"{peer.name} is left out"
                out.append(Announce(EventKind.EVICTED, peer.name, view.id, view.base.step, why))
                pending_kills[peer.name] = now
                master = master._notice_incident(now, before, peer.name, SUSPICION)
        for peer in view.members:
            if peer.id not in stood and before is not None:
                out.append(
                    Announce(EventKind.JOINED, peer.name, view.id, view.base.step, f"{peer.name} has joined")
                )
        lived = before is not None and stood <= kept
        return replace(
            master,
            view_at=now,
            accusations=(),
            accused_at={},
            sealed_at=None,
            aborted=False,
            mutual_suspicion=mutual_suspicions(self.accusations) if lived else frozenset(),
            pending_kills=pending_kills,
            exported=None,
        )

    def _carry_out_kills(self, now: float, out: Out) -> Self:
        """A worker that was left out on suspicion and hangs would stay for ever; nothing that it could do counts any more."""
        due = [name for name, at in self.pending_kills.items() if now - at >= self.settings.times.alone]
        if not due:
            return self
        out += [Kill(name, "it was left out of the group and has not ended") for name in due]
        return replace(
            self, pending_kills={name: at for name, at in self.pending_kills.items() if name not in due}
        )

    def _demand_proof(self, now: float, out: Out) -> Self:
        """D2: a member that alone holds up the next view and stays silent for long is killed; its wait status is the missing proof."""
        names = self._holding_up(now)
        if not names:
            return self if self.held_up_since is None else replace(self, held_up_since=None)
        if self.held_up_since is None:
            return replace(self, held_up_since=now)
        if now - self.held_up_since < self.settings.times.stall:
            return self
        out += [Kill(name, "the group can't go on without it, and it does not answer") for name in names]
        return replace(self, held_up_since=now)  # and again, should it not end

    # ------------------------------------------------------------------ what each connection is sent

    def _tell_all(self, now: float, concerned: int | None, out: Out) -> Self:
        view = self.view
        stop = view is not None and self._stop_reason(now, view) is not None
        pending = view is not None and self._pending_reason(view) is not None
        common = (self.journal, self.appending, self.gone, self.failures, stop, pending)
        if all(map(operator.is_, (*common, self.links, self.seen), self.told)):
            return self
        is_for_one = concerned in self.links and all(map(operator.is_, common, self.told))
        # Many come at once when a job begins or its master comes back: what one of them says is no news to the others.
        links = {concerned: self.links[concerned]} if concerned is not None and is_for_one else self.links
        told = {
            connection: after
            for connection, link in links.items()
            if (after := self._tell_one(now, connection, link, view, stop, pending, out)) is not link
        }
        master = replace(self, links={**self.links, **told}) if told else self
        return master if is_for_one else replace(master, told=(*common, master.links, self.seen))

    def _tell_one(
        self, now: float, connection: int, link: Link, view: View | None, stop: bool, pending: bool, out: Out
    ) -> Link:
        """Tell one connection what it should know by now; return what it then knows."""
        link = self._tell_everybody(connection, link, out)
        if link.verdict or not link.registered:
            return link
        if not link.welcomed:
            self._tell(connection, Welcome(self.journal.epoch), out)
            link = replace(link, welcomed=True)
        if view is None or view.rank(link.member) is None:
            return link
        report = self.seen[link.member].report
        sealed = report.sealed >= view.id
        if stop and not sealed and link.stop < view.id and self._may_stop():
            self._tell(connection, Stop(view.id), out)
            return replace(link, stop=view.id, stop_at=now)
        if not sealed and not stop and report.current < view.id and link.view < view.id:
            self._tell(connection, NewView(view), out)
            link = replace(link, view=view.id)
        if pending and not sealed and link.pending < view.id:
            self._tell(connection, Pending(view.id), out)
            link = replace(link, pending=view.id)
        return link

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
        seen = self.seen[link.member]
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
            or not self._has_sealed(seen.peer, view)
            or not seen.report.draining
            or self.appending is not None
        ):
            return False
        others = [peer for peer in view.members if peer.id != seen.peer.id]
        stander = Stander(seen.peer, seen.report, stayed=True)
        return not others and self._releases_last((stander,), self._joiners())
