"""What every master does, whatever way its job trains: it keeps the journal, and ends.

What clients ask of it is in `requests.py`, which program errors fail the job in `failures.py`.

Half of a pure state machine: time and events in, instructions out (`events.py` has both vocabularies). The other half is
`master/allreduce/machine.py` for synchronous jobs and `master/ps/machine.py` for jobs with parameter servers. All memory but the journal
may be lost at any moment: telling is done by levels (what should this connection know by now?) and not by remembering what is still to be
told.

One file because each method is a step of the one transition that all masters have in common.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar, assert_never

from elasticdl.cluster.cluster import ProcessName
from elasticdl.control.protocol.frozen import replace
from elasticdl.control.protocol.messages import (
    Acknowledged,
    Data,
    Evicted,
    Exported,
    Failed,
    Finished,
    MasterMessage,
    MemberMessage,
    ProgramFailed,
    Register,
    Released,
)
from elasticdl.control.protocol.psmessages import Enroll
from elasticdl.control.protocol.status import EventKind
from elasticdl.control.protocol.view import MemberId
from elasticdl.data.plan.ledger import check_shards
from elasticdl.data.plan.loopplan import LoopPlan
from elasticdl.data.plan.shard import Shard
from elasticdl.errors import BadData, BadInput
from elasticdl.master.core import claims, founddata
from elasticdl.master.core.events import (
    Announce,
    Append,
    Appended,
    Beat,
    Check,
    Conflict,
    ConnectionLost,
    ConnectionOpened,
    DataFound,
    End,
    Event,
    GiveUp,
    Heard,
    Instruction,
    JournalRead,
    Launched,
    ManifestWritten,
    Publish,
    Published,
    Refuse,
    RoomLacking,
    Scale,
    ScaleAsked,
    StopAsked,
    Tell,
    Tick,
    Unwritten,
    WorkerEnded,
)
from elasticdl.master.core.failures import Failure, next_record
from elasticdl.master.core.records import (
    EpochRecord,
    FailedRecord,
    FinishedRecord,
    Journal,
    LaunchedRecord,
    Record,
    ShardsRecord,
    StoppingRecord,
    WantedRecord,
    read_journal,
)
from elasticdl.master.core.requests import Requests
from elasticdl.master.core.witnesses import Times

Out = list[Instruction]
"""Instructions of one transition, in order; made and emptied within `handle`."""

_HANGS_SECONDS = 5.0
"""A storage that takes longer, without any error, is said to be waited for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a master takes from the job's settings.

    Attributes:
        workers: how many workers the job wants (until `scale` says otherwise).
        minimum: with fewer members no step begins.
        relaunches: program errors per worker index that do not fail the job.
        plan: the job's data, and what is evaluated of it → the order in which it is consumed. Raises BadInput for data that can't be.
        for_loop: what the program of a custom training loop says of its data → these settings for it; None with model files.
        processes: the program trains nothing, but processes tasks, whose records may be those of files.
        output: where the result is wanted, None if nowhere.
        times: of the protocol.
    """

    workers: int
    minimum: int
    relaunches: int
    plan: Callable[[tuple[Shard, ...], tuple[Shard, ...]], Any]
    for_loop: Callable[[LoopPlan], Any] | None = None
    processes: bool = False
    output: Path | None = None
    times: Times = field(default_factory=Times)


@dataclass(frozen=True, kw_only=True)  # no slots: see elasticdl.control.protocol.frozen
class Link:
    """One control stream, and what was said on it.

    Attributes:
        member: whose.
        name: what people call it.
        registered: it has asked to take part.
        welcomed: that was answered.
        data: `Data` was sent.
        verdict: a verdict was sent.
    """

    member: MemberId
    name: str
    registered: bool = False
    welcomed: bool = False
    data: bool = False
    verdict: bool = False


AnyLink = TypeVar("AnyLink", bound=Link)


@dataclass(frozen=True)  # no slots: see elasticdl.control.protocol.frozen
class MasterCore:
    """The journal and the requests of one master.

    Attributes:
        settings: of the job.
        journal: what has been read or appended (J1: nothing else is ever told).
        opened: my epoch is journalled, or the job has ended: I may speak.
        started_at: when I read the journal.
        appending: the record whose append is outstanding.
        appending_since: when that append began, or when this master, which was away meanwhile, came back.
        unwritten: why that record can't be written, as far as is known, or empty.
        links: control streams.
        gone: names of processes proven dead → cause.
        failures: program errors, by member.
        launched: lives of processes whose names are not journalled yet.
        without_room: how many workers' processes no node has room for.
        requests: what clients and members ask for.
        found: data that was found and is not journalled yet.
        give_up: the job can't go on.
        exported: the export report that waits for its record.
        ended_at: when the terminal record was appended or read.
        published: the result lies at its final path.
        ticked_at: when the last tick came.
        checked_at: when the journal was last looked at for another master's records.
        doubted: a process has seen a later master, as it says, and no record of mine was appended since.
        over: this master has ended.
        gathered: connections of the events that were taken, and from which everything still is to follow.
    """

    gathers: ClassVar[bool] = False
    """It looks at all members after each event, so that what many say at once is better worked out together."""

    first: ClassVar[str] = "the first step was committed"
    """What has not happened, for people, where a program error fails the job at once."""

    settings: Settings
    journal: Journal = field(default_factory=Journal)
    opened: bool = False
    started_at: float = 0.0
    appending: Record | None = None
    appending_since: float = 0.0
    unwritten: str = ""
    links: Mapping[int, Link] = field(default_factory=dict)
    gone: Mapping[str, str] = field(default_factory=dict)
    failures: Mapping[MemberId, Failure] = field(default_factory=dict)
    launched: tuple[ProcessName, ...] = ()
    without_room: int = 0
    requests: Requests = field(default_factory=Requests)
    found: ShardsRecord | None = None
    give_up: GiveUp | None = None
    exported: Exported | None = None
    ended_at: float | None = None
    published: bool = False
    ticked_at: float = 0.0
    checked_at: float = 0.0
    doubted: bool = False
    over: bool = False
    gathered: tuple[int, ...] = ()

    @property
    def wanted(self) -> int:
        """Return how many workers the job wants now."""
        return self.settings.workers if self.journal.wanted is None else self.journal.wanted

    @property
    @abstractmethod
    def why_finished(self) -> str:
        """Return why there was nothing more to train."""

    # ------------------------------------------------------------------ the transition

    def handle(self, now: float, event: Event, *, more: bool = False) -> tuple[Self, tuple[Instruction, ...]]:
        """Take an event at time `now` (seconds, any monotonic clock); return the next state and what is to be done, in order.

        `more`: another event is at hand; what follows from all of them together is worked out with the last one. A thousand members speak
        at once when their group breaks, and each answer looks at all of them.
        """
        if self.over:
            return self, ()
        out: Out = []
        master = self._wake(now)._take(now, event, out)
        if master.over or master._can_wait(event):
            return master, tuple(out)
        if more and self.gathers and isinstance(event, ConnectionOpened | ConnectionLost | Heard):
            return replace(master, gathered=(*master.gathered, event.connection)), tuple(out)
        if isinstance(event, Tick):
            # With other events the journal's answer may lie behind them: a master that was paused finds all of them in its queue.
            master = master._look_at_clock(now)._answer_without_journal(now, out)
        concerned = event.connection if isinstance(event, ConnectionOpened | Heard) else None
        master = master._settle(now, concerned, out)
        return replace(master, gathered=()) if master.gathered else master, tuple(out)

    def _can_wait(self, event: Event) -> bool:
        """Tell whether what follows from an event is time enough for the next tick, as with heartbeats."""
        return isinstance(event, Beat)

    def _wake(self, now: float) -> Self:
        """Take note of the time before anything else; most masters need not."""
        return self

    def _take(self, now: float, event: Event, out: Out) -> Self:
        match event:
            case JournalRead(records, length):
                return self._open(now, read_journal(records, length), out)
            case Appended(record):
                journal = self.journal.with_record(record)
                # Nobody else had appended anything.
                master = replace(
                    self, journal=journal, appending=None, unwritten="", checked_at=now, doubted=False
                )
                return master._appended(now, self.journal, record, out)
            case Unwritten(error):
                return replace(self, unwritten=error)
            case Conflict():
                return self._replaced("another master has appended to the journal", out)
            case Launched(lives):
                return self._note_launches(lives)
            case DataFound(shards, validation):
                return self._find(ShardsRecord(shards, validation))
            case StopAsked(request, reason):
                requests, said = self.requests.with_stop(self.journal, request, reason)
                out += said
                return replace(self, requests=requests)
            case ScaleAsked():
                requests, said = self.requests.with_scale(self.journal, event)
                out += said
                return replace(self, requests=requests)
            case GiveUp():
                return replace(self, give_up=self.give_up or event)
            case Published(error):
                return self._after_publishing(error, out)
            case ConnectionOpened(connection, member, name):
                return self._connect(connection, member, name)
            case ConnectionLost(connection):
                return self._disconnect(now, connection)
            case Heard(connection, message):
                link = self.links.get(connection)
                return self if link is None else self._weigh(now, connection, link, message, out)
            case Beat():
                return self._beat(now, event)
            case RoomLacking(workers):
                return replace(self, without_room=workers)
            case WorkerEnded(worker, cause):
                return self._process_ended(now, worker, cause, out)
            case ManifestWritten():
                return self._take_manifest(now, event, out)
            case Tick():
                return self
        assert_never(event)

    def _weigh(self, now: float, connection: int, link: Any, message: MemberMessage, out: Out) -> Self:
        """Take what a member says, unless it can't be so: then its process is refused, and nothing is noted."""
        if isinstance(message, Register | Enroll) and message.epoch > self.journal.epoch:
            return self._doubt(now, out)
        if not link.registered and not isinstance(message, claims.BEFORE_REGISTRATION):
            return self
        why = claims.impossible(link.name, link.member, self.settings, message)
        if (why := why or self._impossible(link, message)) is None:
            return self._hear(now, connection, link, message, out)
        if not self.opened:
            # Until my epoch is journalled another master may have appended what this process has seen and I have not.
            return self
        out.append(Refuse(connection, f"{link.name} says {type(message).__name__}, which can't be: {why}"))
        return self._disconnect(now, connection)

    @abstractmethod
    def _impossible(self, link: Any, message: MemberMessage) -> str | None:
        """Return why no member can say this, None if one may."""

    def _doubt(self, now: float, out: Out) -> Self:
        """Look whether another master is in charge, as a process says by its epoch; until then this process is not heard.

        Its word alone ends no master: what is journalled decides, for a process that is confused, too.
        """
        if not self.doubted and self._may_append():
            out.append(Check(self.journal.length + 1))
            return replace(self, doubted=True, checked_at=now)
        return replace(self, doubted=True)

    @abstractmethod
    def _connect(self, connection: int, member: MemberId, name: str) -> Self:
        """Take note of a connection on which nothing was said yet."""

    @abstractmethod
    def _disconnect(self, now: float, connection: int) -> Self:
        """Take note of a connection's end."""

    @abstractmethod
    def _hear(self, now: float, connection: int, link: Any, message: MemberMessage, out: Out) -> Self:
        """Take what a member says."""

    @abstractmethod
    def _beat(self, now: float, beat: Beat) -> Self:
        """Take note of a heartbeat."""

    @abstractmethod
    def _process_ended(self, now: float, name: str, cause: str, out: Out) -> Self:
        """Take the proof that a process has ended."""

    def _take_manifest(self, now: float, event: ManifestWritten, out: Out) -> Self:
        """Take note that a snapshot's manifest was written; most masters have none."""
        return self

    def _settle(self, now: float, concerned: int | None, out: Out) -> Self:
        """After every event: append what is due, tell what is known, end when all is done.

        `concerned`: the connection that the event came on, None if on none.
        """
        master = self
        record = master._next_record(now)
        if record is not None:
            master = master._append(now, record, out)
        else:
            master = master._check(now, out)
        if master.opened:
            master = master._tell_all(now, concerned, out)._act(now, out)
        return master._maybe_end(now, out)

    @abstractmethod
    def _tell_all(self, now: float, concerned: int | None, out: Out) -> Self:
        """Tell each connection what it should know by now; what concerns only one of them can leave the others for the next tick."""

    @abstractmethod
    def _act(self, now: float, out: Out) -> Self:
        """Do what time alone makes due."""

    # ------------------------------------------------------------------ the journal

    def _open(self, now: float, journal: Journal, out: Out) -> Self:
        """Begin a life: what the journal says is all that is known. Raises BadData if that can't be."""
        settings, data = founddata.with_plan(self.settings, journal.plan), journal.data
        master = replace(self, journal=journal, started_at=now, settings=settings)
        wrong = None if data is None else founddata.wrong_plan(self.settings, data.plan)
        if why := wrong or master._contradiction(journal):
            raise BadData(why)
        if data is not None:
            master = master._with_data(data.shards, data.validation)
        if (journal.wanted, journal.wanted_servers) != (None, None):
            out.append(Scale(journal.wanted, journal.wanted_servers))
        if journal.terminal is not None:
            return replace(master, opened=True)._reach_end(now, out)
        return master._append(now, EpochRecord(journal.epoch + 1), out)

    @abstractmethod
    def _contradiction(self, journal: Journal) -> str | None:
        """Return why a journal can't say what it says of this job, None if it may."""

    @abstractmethod
    def _with_data(self, shards: tuple[Shard, ...], validation: tuple[Shard, ...]) -> Self:
        """Return what holds once the job's data is known."""

    def _append(self, now: float, record: Record, out: Out) -> Self:
        """J1, J2: durable first; told when `Appended` comes."""
        out.append(Append(self.journal.length + 1, record))
        return replace(self, appending=record, appending_since=now)

    def stuck(self, now: float) -> str:
        """Return why the journal has not taken a record for a while, for people; empty if it has."""
        if self.appending is None:
            return ""
        lasts, alone = now - self.appending_since, self.settings.times.alone
        if self.unwritten and lasts >= alone:
            return f"the journal can't be written ({self.unwritten})"
        if lasts >= max(alone, _HANGS_SECONDS):
            return "the journal can't be written (its storage does not answer)"
        return ""

    def _look_at_clock(self, now: float) -> Self:
        """Begin to wait for the journal anew after a time without ticks: this master was away, and may not have read the answer yet."""
        was_away = now - self.ticked_at >= _HANGS_SECONDS / 2
        return replace(self, ticked_at=now, appending_since=now if was_away else self.appending_since)

    def _answer_without_journal(self, now: float, out: Out) -> Self:
        """Let nobody wait for a journal that can't be written: say so, and end a job that trains nothing.

        No process learns a verdict, as there is none (J1). While neither the journal nor the record under way says who trains what, the
        end of this master loses nothing: the processes are killed after it.
        """
        why = self.stuck(now)
        if not why:
            return self
        requests, said = self.requests.scale_put_off(why)
        out += said
        return replace(self, requests=requests)._answer_stop(now, why, out)

    def _answer_stop(self, now: float, why: str, out: Out) -> Self:
        assert self.appending is not None, "a journal is stuck with a record"
        failure = self._wanted_failure(now)
        asked = failure.reason if isinstance(failure, FailedRecord) else self.requests.stop
        if asked is None:
            return self
        ends = not self.journal.with_record(self.appending).has_begun
        answer = f"the job has ended: {why}" if ends else f"{why}; the job stops when it can be written again"
        requests, said = self.requests.stop_answered(answer)
        out += said
        if ends:
            reason = f"{why}, so the job ends without a result: {asked}"
            out += [Announce(EventKind.FAILED, "", 0, 0, reason), End("failed", reason, 1)]
        return replace(self, requests=requests, over=ends)

    def _may_append(self) -> bool:
        return self.opened and self.appending is None and self.journal.terminal is None

    def _appended(self, now: float, before: Journal, record: Record, out: Out) -> Self:
        """Do what follows from a record that is durable; `before`: what the journal said without it."""
        match record:
            case EpochRecord():
                return replace(self, opened=True)
            case ShardsRecord(shards, validation, plan):
                master = replace(self, settings=founddata.with_plan(self.settings, plan), found=None)
                return master._with_data(shards, validation)
            case StoppingRecord(reason):
                return self._after_stopping(reason, out)
            case WantedRecord():
                requests, done = self.requests.after_scale(record)
                out += done
                return replace(self, requests=requests)
            case LaunchedRecord(lives):
                named = set(lives)
                return replace(self, launched=tuple(life for life in self.launched if life not in named))
            case FinishedRecord() | FailedRecord():
                return self._reach_end(now, out)
            case _:
                return self

    def _next_record(self, now: float) -> Record | None:
        """Return what should be appended next; after a terminal record nothing is (D7)."""
        if not self._may_append():
            return None
        return (
            self._wanted_failure(now)
            or self._wanted_finish()
            or self.requests.stop_record(self.journal)
            or self.requests.scale_record()
            or self.found
            or self._wanted_own(now)
            # names in use, for a master that comes later: the cluster may forget processes that have ended
            or (LaunchedRecord(self.launched) if self.launched else None)
        )

    @abstractmethod
    def _wanted_own(self, now: float) -> Record | None:
        """Return what this way of training wants appended next."""

    def _check(self, now: float, out: Out) -> Self:
        """A master that waits appends nothing, and so would not notice that its processes have gone to another one."""
        if now - self.checked_at < self.settings.times.alone or not self._may_append():
            return self
        if not self.doubted and not self._waits():
            return self
        out.append(Check(self.journal.length + 1))
        return replace(self, checked_at=now)

    @abstractmethod
    def _waits(self) -> bool:
        """Tell whether the job may be waiting for processes that have gone to another master."""

    def _replaced(self, why: str, out: Out) -> Self:
        out.append(End("replaced", why, 1))
        return replace(self, over=True)

    def _tell_everybody(self, connection: int, link: AnyLink, out: Out) -> AnyLink:
        """Tell a connection what all members have to know by now: the data, and how they end."""
        if link.verdict:
            return link
        if not link.data and (data := self.journal.data) is not None:
            self._tell(connection, Data(data.shards, data.validation, data.plan), out)
            link = replace(link, data=True)
        if (verdict := self._verdict(link)) is not None:
            self._tell(connection, verdict, out)
            return replace(link, verdict=True)
        if link.member in self.failures and any(r.worker == link.name for r in self.journal.errors):
            self._tell(connection, Acknowledged("failed"), out)
            return replace(link, verdict=True)
        return link

    @abstractmethod
    def _verdict(self, link: Any) -> Evicted | Released | Finished | Failed | None:
        """Return how a process ends, if it does."""

    def _tell(self, connection: int, message: MasterMessage, out: Out) -> None:
        out.append(Tell(connection, message))

    # ------------------------------------------------------------------ data, an early end, names in use

    def _find(self, found: ShardsRecord, worker: str = "") -> Self:
        """Take the first finding, of a worker if one is named; data that can't be trained on, or is not what others found, ends the job."""
        if (first := self.journal.data or self.found) is not None:
            other = founddata.disagreement(self.settings, first, found, worker)
            return replace(self, give_up=self.give_up or other)
        try:
            check_shards(found.validation)  # a job that evaluates nothing has no plan of it
            founddata.with_plan(self.settings, found.plan).plan(found.shards, found.validation)
        except BadInput as error:
            return replace(self, give_up=self.give_up or GiveUp(str(error), "bad-input"))
        return replace(self, found=found)

    def _hear_stop(self, connection: int, reason: str, out: Out) -> Self:
        """Take a member's wish that the job ends."""
        if self.journal.stopping is not None:
            self._tell(connection, Acknowledged("stop_job"), out)
            return self
        return replace(self, requests=self.requests.with_wish(reason))

    def _after_stopping(self, reason: str, out: Out) -> Self:
        requests, said = self.requests.after_stopping(reason)
        out += said
        for connection, link in self.links.items():
            if link.registered:
                self._tell(connection, Acknowledged("stop_job"), out)
        return replace(self, requests=requests)

    def _note_launches(self, lives: tuple[ProcessName, ...]) -> Self:
        known, waiting = self.journal.launched, set(self.launched)
        new = (life for life in lives if known.get((life.role, life.index)) != life and life not in waiting)
        return replace(self, launched=(*self.launched, *new))

    # ------------------------------------------------------------------ failures

    def _note_failure(self, now: float, link: Link, error: ProgramFailed) -> Self:
        """D10: note a program error; it is said again until it is answered."""
        before = self.failures.get(link.member)
        failure = Failure(link.name, error, now if before is None else before.heard_at)
        return replace(self, failures={**self.failures, link.member: failure})

    def _wanted_failure(self, now: float) -> Record | None:
        record = None
        if self.failures:
            record = next_record(
                self.failures.values(),
                self.journal,
                self.settings.relaunches,
                # An error of which the worker was started once more came after a first result.
                lambda: bool(self.journal.errors) or self._has_committed(),
                self.first,
                now,
                # The others may need so long to find another master.
                self.settings.times.alone if self.journal.epoch > 1 else 0.0,
            )
        asked = self.give_up
        if record is None and asked is not None:
            return FailedRecord(asked.reason, asked.kind, asked.worker, asked.traceback)
        return record

    @abstractmethod
    def _has_committed(self) -> bool:
        """Tell whether there is a first result, as a step that changed the model."""

    # ------------------------------------------------------------------ the end

    def _wanted_finish(self) -> Record | None:
        exported = self.exported
        if exported is None or not self._may_finish(exported):
            return None
        evaluated = self.journal.evaluated.get(exported.state)
        metrics = exported.metrics if evaluated is None else evaluated.values
        return FinishedRecord(exported.view, exported.state, exported.path, exported.digest, metrics)

    @abstractmethod
    def _may_finish(self, exported: Exported) -> bool:
        """Tell whether an export is the result (D7)."""

    def _reach_end(self, now: float, out: Out) -> Self:
        """The terminal record stands: publish the result (by every master that reads it), answer clients, tell everybody."""
        end = self.journal.terminal
        published = self.published
        match end:
            case FinishedRecord(_, state, path):
                text = "the job is finished" + (f" at step {state.step}" if state.step else "")
                out.append(Announce(EventKind.FINISHED, "", end.view, state.step, text))
                out.append(Publish(path))
            case FailedRecord(reason):
                out.append(Announce(EventKind.FAILED, end.worker, 0, 0, reason))
                published = True
        requests, said = self.requests.ended()
        out += said
        return replace(self, ended_at=now, published=published, requests=requests)

    def _after_publishing(self, error: str | None, out: Out) -> Self:
        if error is None:
            return replace(self, published=True)
        out.append(End("failed", error, 1))
        return replace(self, over=True)

    def _maybe_end(self, now: float, out: Out) -> Self:
        """End when the result is in its place and everybody has heard, or had the time to."""
        end = self.journal.terminal
        if self.over or end is None or not self.published or self.ended_at is None:
            return self
        heard = not self.links and self._all_gone()
        if not heard and now - self.ended_at < self.settings.times.alone:
            return self
        if isinstance(end, FinishedRecord):
            out.append(End("finished", self.why_finished, 0))
        else:
            out.append(End("failed", end.reason, 2 if end.kind == "bad-input" else 1))
        return replace(self, over=True)

    @abstractmethod
    def _all_gone(self) -> bool:
        """Tell whether all who took part are proven to have ended."""
