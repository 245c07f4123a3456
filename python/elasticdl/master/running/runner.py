"""A master's runner: brings events to the machine, and carries out what it says.

One thread owns machine, replica sets and history; all others put what happens into its queue. It decides nothing about training
(`master/allreduce/`, `master/ps/`) nor about processes (`master/processes/`). What it keeps is either in the journal or for people. The
order of steps is the same for all ways of training; what differs is asked of a strategy (`strategy.py`).
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import queue
import threading
import time
import traceback
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, assert_never

from elasticdl.checkpoint import layout as checkpoints
from elasticdl.cluster.cluster import (
    ClusterEvent,
    ProcessEnded,
    ProcessEvent,
    ProcessGone,
    ProcessPending,
    ProcessStarted,
    Role,
    ScaleAsked,
    StopAsked,
)
from elasticdl.control.protocol.messages import MemberMessage, Register, Verdict
from elasticdl.control.protocol.profiling import StepRecorded
from elasticdl.control.protocol.psmessages import Enroll
from elasticdl.control.protocol.status import EventKind
from elasticdl.control.transport.refusals import RefusalLog
from elasticdl.control.transport.stream import (
    Answer,
    ControlServer,
    MemberClosed,
    MemberOpened,
    MemberSaid,
    ProfileLeft,
    ProfileWanted,
    ScaleWanted,
    ServerEvent,
    StopWanted,
)
from elasticdl.data.plan.order import idle_for_blocks
from elasticdl.errors import BadData, BadInput, BadSetting, JobFailed, StorageAway
from elasticdl.master.core import events as machine_events
from elasticdl.master.core.journal import REPLACED
from elasticdl.master.core.journalwriter import JournalWriter, Outcome, Overtaken, Unwritten, Written
from elasticdl.master.core.records import FailedRecord, FinishedRecord, ShardsRecord, StoppingRecord
from elasticdl.master.processes import replicas as replicas
from elasticdl.master.processes import starting
from elasticdl.master.reporting.history import EventHistory
from elasticdl.master.running import gathering
from elasticdl.master.running.beats import Beats
from elasticdl.master.running.context import JobContext, Past
from elasticdl.master.running.outputs import Outputs
from elasticdl.master.running.processcontrol import ProcessControl
from elasticdl.master.running.profiling import Profiling
from elasticdl.master.running.reporter import Reporter
from elasticdl.master.running.strategy import Machine, RunnerStrategy, in_background
from elasticdl.master.running.summary import outcome, summary, why_nothing
from elasticdl.spec.jobspec import JobKind, Strategy
from elasticdl.spec.machine import check_scale
from elasticdl.spec.program import name_of

_log = logging.getLogger(__name__)

_BEAT_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class _DataLeft:
    """Only a worker can open the data."""


@dataclass(frozen=True, slots=True)
class _DataRefused:
    reason: str
    kind: str
    traceback: str = ""


@dataclass(frozen=True, slots=True)
class _Indexing:
    done: int
    total: int


@dataclass(frozen=True, slots=True)
class _Storage:
    """Storage does not answer, or does again."""

    text: str
    waits: bool


_Incoming = (
    ServerEvent
    | ClusterEvent
    | Outcome
    | machine_events.DataFound
    | _DataLeft
    | _DataRefused
    | _Indexing
    | _Storage
    | machine_events.ManifestWritten
)


class Runner(Generic[Machine]):
    """One life of a job's master."""

    def __init__(self, job: JobContext, past: Past, strategy: RunnerStrategy[Machine]) -> None:
        """Prepare; nothing runs before `run`. Raises BadInput if the job can't begin."""
        self._job = job
        self._past = past
        self._strategy = strategy
        self._machine = strategy.begin()
        self._inbox: queue.SimpleQueue[_Incoming] = queue.SimpleQueue()
        self._outputs = Outputs(job.place, job.spec)
        self._profiling = Profiling(trains=job.spec.kind is JobKind.TRAIN)
        self._program = name_of(job.spec.job_command) if job.spec.job_command else ""
        self._requests = itertools.count(1)
        self._answers: dict[int, Answer] = {}
        self._data_since: float | None = None
        self._beats = Beats()
        self._next_beat = 0.0
        self._held: machine_events.Append | None = None
        """A record that waits for what has to be done before it."""
        self._told_lost = ""
        self._more = False
        """The event that is taken is followed by another one of a member."""
        self._moment: object = None
        """The moment that was shown last."""
        self._end: machine_events.End | None = None

    def run(self) -> int:
        """Be the job's master until it ends or is replaced; return the exit code."""
        place = self._job.place
        try:
            # First what one process only can have: gRPC would take the socket of a master that lives.
            self._monitor = self._job.monitor()
            self._server = ControlServer(
                place.control_address, place.token(), self._inbox.put, place.identity
            )
        except BadInput as error:
            if self._past.length == 0 and not _is_held(place.heart_address):
                raise
            # A job does not end because another master of it still holds a socket; the next attempt comes soon.
            _log.warning("%s", error)
            return REPLACED
        self._refusals = (
            RefusalLog(self._server, "control plane"),
            RefusalLog(self._monitor, "heartbeats"),
        )
        self._journal_writer = JournalWriter(self._job.journal, self._inbox.put)
        self._reporter = Reporter(
            EventHistory(place.submitted_at),
            self._job.store,
            self._server,
            self._job.observers,
            snapshots_last=bool(self._job.spec.checkpoint_dir),
        )
        self._processes = ProcessControl(
            self._job.cluster,
            place,
            self._past.forces,
            self._reporter,
            self._handle,
            lambda name: self._strategy.leaves_when_told(self._machine, name),
            self._program,
            inherits=self._past.length > 0,
            keeps_spare=self._job.spec.keeps_spare,
        )
        threading.Thread(target=self._find_data, name="data", daemon=True).start()
        threading.Thread(target=self._follow_cluster, name="cluster", daemon=True).start()
        self._take_up()
        self._processes.tick()
        tick = time.monotonic() + self._strategy.tick_seconds
        while self._end is None:
            with contextlib.suppress(queue.Empty):
                events = gathering.receive(self._inbox, max(0.0, tick - time.monotonic()))
                # After a stall of this process the old beats would speak against everybody.
                self._listen()
                self._take_all(events)
            if time.monotonic() >= tick:
                self._tick()
                tick = time.monotonic() + self._strategy.tick_seconds
        return self._finish(self._end)

    # ------------------------------------------------------------------ for the strategy

    @property
    def history(self) -> EventHistory:
        """Return the figures that people see."""
        return self._reporter.history

    def tell(self, kind: EventKind, text: str, *, worker: str = "", view: int = 0) -> None:
        """Tell people of an event."""
        self._reporter.tell(kind, text, worker=worker, view=view)

    def direct(self, event: replicas.Event, role: Role = Role.WORKER) -> None:
        """Ask which processes of a role should run, and see to it."""
        self._processes.direct(event, role)

    # ------------------------------------------------------------------ what there was before

    def _take_up(self) -> None:
        """Take what the journal and the cluster say, and do what the master before this one had begun and not finished."""
        past = self._past
        if past.length:
            self._reporter.recall(past.told)
        try:
            self._handle(machine_events.JournalRead(past.records, past.length))
        except BadData as error:
            raise self._job.journal.contradicts(str(error)) from error
        self._strategy.show_position(self._machine, self.history)
        for record in past.records:
            if isinstance(record, ShardsRecord):
                # A master before this one may have died between the record and the file.
                for refused in self._outputs.begin_audit(record, again=True):
                    self._handle(refused)
        for reported in past.reported:
            self._take(reported)
        journal = self._machine.journal
        if journal.stopping is not None and not journal.has_begun and journal.terminal is None:
            self._handle(machine_events.GiveUp(why_nothing(self._job.spec.kind), "program"))
        self._handle(machine_events.Launched(self._processes.lives()))

    # ------------------------------------------------------------------ other threads

    def _follow_cluster(self) -> None:
        try:
            while True:
                for event in self._job.cluster.events(3600.0):
                    self._inbox.put(event)
        except (OSError, ValueError):
            _log.debug("the connection to the launcher has ended")

    def _find_data(self) -> None:
        if any(isinstance(record, ShardsRecord) for record in self._past.records):
            return
        try:
            found = self._job.open_data(
                lambda done, total: self._inbox.put(_Indexing(done, total)),
                lambda text, waits: self._inbox.put(_Storage(text, waits)),
            )
        except BadInput as error:
            self._inbox.put(_DataRefused(str(error), "bad-input"))
        except StorageAway as error:
            self._inbox.put(_DataRefused(str(error), "storage"))
        except Exception as error:
            text = traceback.format_exc()
            self._inbox.put(_DataRefused(f"the data can't be opened: {error}", "program", text))
        else:
            self._inbox.put(_DataLeft() if found is None else found)

    # ------------------------------------------------------------------ events in

    def _take_all(self, events: Sequence[_Incoming]) -> None:
        """Take events; of those that follow each other and come from members the last one says what is to be done."""
        for event, following in itertools.zip_longest(events, events[1:]):
            self._more = gathering.is_of_member(following)
            if self._end is None:
                self._take(event)
        self._more = False
        if self._machine.gathered:  # the last one was not for the machine
            self._handle(machine_events.Tick())

    def _take(self, event: _Incoming) -> None:
        match event:
            case MemberSaid(connection, StepRecorded() as step):
                self._profiling.heard(connection, step)
            case MemberSaid(connection, message):
                self._hear(connection, message)
            case MemberOpened(connection, worker, member):
                self._profiling.opened(connection, worker)
                self._processes.connected(worker, member)
                self._handle(machine_events.ConnectionOpened(connection, member, worker))
            case MemberClosed(connection):
                self._profiling.closed(connection)
                self._handle(machine_events.ConnectionLost(connection))
            case ProcessPending() | ProcessStarted() | ProcessEnded() | ProcessGone():
                self._take_process(event)
            case StopWanted(reason, answer):
                self._handle(machine_events.StopAsked(self._request(answer), reason))
            case StopAsked(reason):
                self._handle(machine_events.StopAsked(self._request(_log_answer), reason))
            case ScaleWanted(workers, servers, answer):
                self._scale(workers, servers, answer)
            case ScaleAsked(workers, servers):
                self._scale(workers, servers, _log_answer)
            case ProfileWanted():
                for asked, wanted in self._profiling.begin(event):
                    self._server.send(asked, wanted)
            case ProfileLeft(request):
                self._profiling.left(request)
            case Written(append):
                self._after_append(append)
            case Unwritten():
                self._wait_for_journal(event)
            case Overtaken():
                self._handle(machine_events.Conflict())
            case machine_events.DataFound(shards, validation):
                for shard in (*shards, *validation):
                    if not shard.count:
                        self._reporter.note(f"{shard.name} has no records")
                if idle := idle_for_blocks(self._job.spec, shards):
                    self._reporter.note(idle)
                self._handle(event)
            case _DataLeft():
                self._data_since = time.monotonic()
            case _DataRefused(reason, kind, text):
                self._handle(machine_events.GiveUp(reason, kind, "", text))
            case machine_events.ManifestWritten():
                self._handle(event)
            case _Storage(text, waits):
                self._reporter.tell(EventKind.WAITING if waits else EventKind.ANSWERED, text)
            case _Indexing(done, total):
                self._reporter.indexing(done, total)
            case _:
                assert_never(event)

    def _hear(self, connection: int, message: MemberMessage) -> None:
        before = self._machine
        if isinstance(message, Register | Enroll):
            self._beats.forget(message.member)
        self._handle(machine_events.Heard(connection, message))
        if self._strategy.show_message(before, self._machine, message, self.history):
            self._reporter.changed = True
            self._reporter.progressed()

    def _scale(self, workers: int | None, servers: int | None, answer: Answer) -> None:
        try:
            check_scale(self._job.spec, workers, servers)
        except BadSetting as error:
            answer(False, str(error))
        else:
            self._handle(machine_events.ScaleAsked(self._request(answer), workers, servers))

    def _request(self, answer: Answer) -> int:
        number = next(self._requests)
        self._answers[number] = answer
        return number

    def _take_process(self, event: ProcessEvent) -> None:
        ended = self._processes.take(event)
        if ended is not None:
            self._take_end(ended)
        self.direct(event, event.name.role)
        lacking = self._processes.without_room
        if lacking != self._machine.without_room:
            self._handle(machine_events.RoomLacking(lacking))

    def _take_end(self, ended: ProcessEnded | ProcessGone) -> None:
        name, cause = str(ended.name), self._processes.cause_of(ended)
        if isinstance(ended, ProcessEnded):  # otherwise the group judges by its own witnesses (D2)
            self._handle(machine_events.WorkerEnded(name, cause))
            members = set(self._strategy.members_of(self._machine, name))
            for member in members.union(self._processes.forget(name)):
                self._monitor.forget(member)
        self._reporter.end(name, cause)
        lost = self._strategy.why_lost(self._machine, self._processes.observed)
        if lost and lost != self._told_lost:
            self._reporter.note(lost)
        self._told_lost = lost

    def _tick(self) -> None:
        if self._held is not None:
            self._append(self._held, deque())
        now = time.monotonic()
        self._listen()
        self._handle(machine_events.Tick())
        self._processes.tick()
        if self._reporter.is_status_due(now, self._strategy.status_seconds):
            self._show_status()

    def _listen(self) -> None:
        """Hear the heartbeats, if that is due."""
        now = time.monotonic()
        if now < self._next_beat:
            return
        self._next_beat = now + _BEAT_SECONDS
        news, beats = self._beats.heard(now, self._monitor.poll())
        self._run(deque[machine_events.Event](news))
        self._processes.watch_starts(self._strategy.stages(self._machine), beats)
        # Of a local job the only process is the user's own, perhaps in a debugger.
        if self._job.spec.distribution_strategy is not Strategy.LOCAL:
            self._replace_overdue(now)
        for log in self._refusals:
            log.look(now)

    def _replace_overdue(self, now: float) -> None:
        journal = self._machine.journal
        if self._data_since is None and journal.shards is not None:
            self._data_since = now
        times, ready = self._machine.settings.times, self._job.spec.start_seconds
        limits = starting.Limits(times, ready, self._data_since, self._program)
        self._processes.replace_overdue(now, limits, counts=not journal.has_begun)

    # ------------------------------------------------------------------ the machine

    def _handle(self, event: machine_events.Event) -> None:
        self._run(deque([event]))

    def _run(self, events: deque[machine_events.Event]) -> None:
        """Give the machine events, and what comes of its instructions, until nothing is left."""
        while events:
            event = events.popleft()
            more = self._more and gathering.may_wait(event)
            self._machine, instructions = self._machine.handle(time.monotonic(), event, more=more)
            for instruction in instructions:
                self._carry_out(instruction, events)
        if self._machine.gathered:
            return
        # short moments (registered and not yet in the group, the final view) are seen by those who watch
        moment = self._strategy.moment(self._machine)
        if moment != self._moment and self._reporter.may_show(time.monotonic()):
            self._moment = moment
            self._show_status()

    def _carry_out(
        self, instruction: machine_events.Instruction, events: deque[machine_events.Event]
    ) -> None:
        match instruction:
            case machine_events.Append():
                self._append(instruction, events)
            case machine_events.Check():
                self._journal_writer.take(instruction)
            case machine_events.Tell(connection, message):
                if isinstance(message, Verdict):
                    self._processes.told(self._machine.links[connection].name, message)
                self._server.send(connection, message)
            case machine_events.Refuse(connection, reason):
                self._server.refuse(connection, reason)
            case machine_events.Reply(request, text):
                answer = self._answers.pop(request, None)
                if answer is not None:
                    answer(True, text)
            case machine_events.Publish(path):
                events.append(machine_events.Published(self._publish(path)))
            case machine_events.WriteManifest() | machine_events.WriteGroupManifest():
                in_background(self._complete_snapshot, instruction)
            case machine_events.DropSnapshot(number):
                self._drop_draft(number)
            case machine_events.Kill(worker, reason):
                self._processes.kill(worker, reason)
            case machine_events.Scale(workers, servers):
                self._processes.want(Role.WORKER, workers)
                self._processes.want(Role.PS, servers)
            case machine_events.Announce():
                self._announce(instruction)
            case machine_events.End():
                self._end = instruction
            case _:
                assert_never(instruction)

    def _announce(self, announce: machine_events.Announce) -> None:
        event = self._strategy.replicas_event(announce)
        if isinstance(event, replicas.Joined | replicas.Leaving):
            self.direct(event, event.name.role)
        if self._reporter.announce(announce):
            self._show_status()

    def _append(self, append: machine_events.Append, events: deque[machine_events.Event]) -> None:
        """Have a record appended, as soon as what has to come before it is done."""
        match self._strategy.before_append(self._machine, append.record):
            case str(why):
                if self._held is None:
                    self._reporter.note(why)
                self._held = append
                return
            case machine_events.GiveUp() as refused:
                events.append(refused)
        self._held = None
        self._journal_writer.take(append)

    def _wait_for_journal(self, unwritten: Unwritten) -> None:
        """J2: no process learns anything that depends on the record until it is known to exist."""
        if isinstance(unwritten.error, JobFailed) and not self._machine.journal.has_begun:
            raise unwritten.error  # the job can't begin: its data has too many files
        why = f"{getattr(unwritten.error, 'strerror', None) or unwritten.error}: {self._job.journal.where}"
        self._reporter.note(f"the journal can't be written ({why}): the group stays as it is until it can")
        self._handle(machine_events.Unwritten(why))

    def _after_append(self, append: machine_events.Append) -> None:
        """Do what follows a durable record, before any process learns of it; then tell the machine."""
        if self._machine.unwritten:
            self._reporter.note("the journal can be written again")
        record, events = append.record, deque[machine_events.Event]()
        match record:
            case ShardsRecord():
                events.extend(self._outputs.begin_audit(record, again=False))
            case StoppingRecord():
                self.direct(replicas.Ending(stopping=True))
                if not self._machine.journal.has_begun:
                    events.append(machine_events.GiveUp(why_nothing(self._job.spec.kind), "program"))
            case FinishedRecord() | FailedRecord():
                for role in self._processes.forces:
                    self.direct(replicas.Over(), role)
            case _:
                self._strategy.after_append(self._machine, record, self)
        events.append(machine_events.Appended(record))
        self._run(events)

    # ------------------------------------------------------------------ files

    def _complete_snapshot(
        self, told: machine_events.WriteManifest | machine_events.WriteGroupManifest
    ) -> None:
        outputs, journal = self._outputs, self._machine.journal
        if isinstance(told, machine_events.WriteManifest):
            self._inbox.put(outputs.complete_snapshot(told, journal))
        else:
            self._inbox.put(outputs.complete_group(told, journal))

    def _drop_draft(self, number: int) -> None:
        """Remove what is left of a snapshot of slots that was given up."""
        directory = self._job.place.snapshots(self._job.spec)
        if directory is not None:
            in_background(checkpoints.remove_drafts, directory, [number])

    def _publish(self, path: str) -> str | None:
        """Put the result in its place, and complete the audit; return what failed, or None."""
        record = self._machine.journal.terminal
        assert isinstance(record, FinishedRecord)
        if path:
            why = self._outputs.publish(path)
            if why is not None:
                return why
            text = f"{self._outputs.what} at {self._job.spec.output}"
            self._reporter.tell(EventKind.EXPORTED, text, step=record.state.step)
        if not self._machine.journal.has_begun:
            return None
        return self._outputs.complete_audit(
            lambda record: self._strategy.complete_audit(self._machine, record), record
        )

    # ------------------------------------------------------------------ the end

    def _show_status(self) -> None:
        now, processes = time.monotonic(), self._processes
        status = self._strategy.status(self._machine, self.history, processes.forces, processes.observed, now)
        self._reporter.show(now, status)

    def _finish(self, end: machine_events.End) -> int:
        if end.status == "replaced":
            # The socket and the files are the other master's by now.
            self._journal_writer.close()
            _log.warning("this master is replaced: %s", end.reason)
            return REPLACED
        end = outcome(end, self._machine, self._job.spec.kind)
        self._show_status()
        self._reporter.close()
        self._write_summary(end)
        self._journal_writer.close()
        self._profiling.end()
        self._server.close()
        self._monitor.close()
        snapshots = self._job.place.snapshots(self._job.spec)
        self._strategy.drop_snapshots(snapshots, keeps_result=self._outputs.is_unpublished)
        self._outputs.clean(has_begun=self._machine.journal.has_begun)
        return end.exit_code

    def _write_summary(self, end: machine_events.End) -> None:
        figures = self._strategy.figures(self._machine, self.history)
        refused = self._server.refused + self._monitor.refused
        self._job.store.conclude(
            summary(
                self._job.place.name,
                self._job.spec.kind,
                end,
                self._machine.journal.terminal,
                self.history.summary(time.time()),
                {**self._job.facts(), "refused_connections": refused},
                figures,
                self._outputs.published,
            )
        )


def _is_held(address: str) -> bool:
    """Tell whether a socket file of the job itself is there; who could not listen at it finds another master's."""
    kind, _, path = address.partition(":")
    return kind == "unix" and Path(path).is_socket()


def _log_answer(accepted: bool, text: str) -> None:
    """Answer somebody who asked by an annotation: what comes of it is seen in the status."""
    _log.log(logging.INFO if accepted else logging.ERROR, "%s", text)
